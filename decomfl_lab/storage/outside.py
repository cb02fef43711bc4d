"""What comes from outside, as types: files and peers are read into them, whole, before anything is made of them.

A type says what its values may be, and its ``__post_init__`` what they have to do with each other. Options of a run are
the exception: they have their rules in ``runs.configuration``, and are a table of plain values here. Keys that a type
does not know are left alone, as a later version may have written them.
"""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from decomfl_lab.errors import InputError, require
from decomfl_lab.noise.starts import MOST_TENSORS, Start

if TYPE_CHECKING:  # what is said of a run needs no tensors
    from torch import Tensor

T = TypeVar("T")

_LONG = (1 << 63) - 1
Whole = Annotated[int, Meta(ge=0, le=_LONG)]
Amount = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Size = Annotated[int, Meta(ge=1, le=1 << 48)]
_MOST = (1 << 32) - 1
Count = Annotated[int, Meta(ge=0, le=_MOST)]
"""Rounds, and what there is of clients and examples: 32 bits in messages and logs."""
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Index = Annotated[str, Meta(pattern=r"^[0-9]{1,9}\Z")]
Plain = dict[str, Any]
Number = Annotated[int, Meta(ge=-_LONG, le=_LONG)] | float
"""Whole numbers beyond 64 bits count nothing, and are no floating-point numbers either."""
_PLAIN = {
    "int": "a whole number",
    "float": "a number",
    "int | float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
"""What JSON has, in plain words."""
MOST_GROUPS = 1 << 12
"""The most groups of parameters, as every step is made for each of them."""
_MOST_NUMBERS = 1 << 26
"""The most numbers of an example of a log: more of it is refused before memory is taken for it."""


def read_as(kind: type[T], values: Any, what: str) -> T:
    """Plain values, as JSON has them, as this type, with text that can be written down again.

    InputError, which says ``what`` they are ("header of the log a/run.dcl"), and names the first that is not such.
    """
    # InputError where a text has half of a character, as JSON can write it: no file and no terminal takes that.
    left = [values]
    while left:
        part = left.pop()
        if isinstance(part, str):
            whole = part.isascii() or not re.search("[\ud800-\udfff]", part)
            require(whole, f"text in the {what}", "be of whole characters", part)
        elif isinstance(part, Mapping):
            left += [*part, *part.values()]
        elif isinstance(part, list | tuple):
            left += part
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        name = place.rstrip("`").lstrip(".")
        value = values
        try:
            for step in re.findall(r"[^.\[\]]+", name):
                value = value[step] if isinstance(value, Mapping) else value[int(step)]
        except (LookupError, ValueError):  # "..." is any key of a mapping, and what holds it is shown
            pass
        rule = message.split(", got ")[0].replace("Expected", "be").replace("Object missing required field", "have")
        rule = re.sub("`([^`]*)`", lambda named: _PLAIN.get(named[1], named[1]), rule)
        where = f"{name} in the {what}" if name else what
        if rule.startswith(("be ", "have ")):
            require(False, where, rule, value)
        raise InputError(f"{where} must be sound: {message}") from None


# What a log says of itself (docs/run-log.md).


@dataclass(frozen=True, kw_only=True)
class Drawn(Start):
    """How a tensor of x_0 begins, and its shape."""

    shape: Annotated[tuple[Whole, ...], Meta(max_length=16)]


class StreamStart(Struct, frozen=True, tag_field="by", tag="stream"):
    """x_0 is drawn from the stream, with this key, tensor by tensor."""

    key: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
    tensors: Annotated[tuple[Drawn, ...], Meta(max_length=MOST_TENSORS)]


class StartInFile(Struct, frozen=True, tag_field="by", tag="file"):
    """x_0 stands in the file, compressed."""

    dtype: Literal["float32", "float64"]
    bytes: Whole


class GivenStart(Struct, frozen=True, tag_field="by", tag="given"):
    """The run's user brought x_0."""


class LibrariesStart(Struct, frozen=True, tag_field="by", tag="libraries"):
    """Torch drew x_0."""


class NamedTensor(Struct, frozen=True):
    """A parameter of an optimizer's, by the name that it was given, if any."""

    name: Annotated[str, Meta(max_length=1000)]
    shape: Annotated[tuple[Whole, ...], Meta(max_length=16)]


class TensorGroup(Struct, frozen=True):
    """Consecutive parameters of an optimizer's, whose learning rate is that of the record times a factor."""

    tensors: Annotated[int, Meta(ge=0, le=MOST_TENSORS)]
    factor: Amount
    weight_decay: Amount


class Header(Struct, frozen=True, kw_only=True):
    """What a log says of its run."""

    config: Plain
    data: str
    source: str = ""
    code: str = "unknown"
    shape: Annotated[tuple[Size, ...], Meta(max_length=16)]
    dtype: Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
    classes: Annotated[int, Meta(ge=0, le=1 << 24)]
    d: Size
    x0: Digest
    stream: Whole
    start: StreamStart | StartInFile | GivenStart | LibrariesStart = LibrariesStart()
    """Logs of version 1 do not have it."""
    tensors: Annotated[tuple[NamedTensor, ...], Meta(max_length=MOST_TENSORS)] = ()
    """The parameters, in the log of an optimizer (``decomfl_lab.optim``); none in that of a run."""
    groups: Annotated[tuple[TensorGroup, ...], Meta(max_length=MOST_GROUPS)] = ()
    """The groups that these are in, in a log of version 3; none where they are of one group."""

    def __post_init__(self) -> None:
        numbers = math.prod(self.shape)
        require(numbers <= _MOST_NUMBERS, "shape", f"be of at most {_MOST_NUMBERS} numbers", self.shape)
        if isinstance(self.start, StreamStart):
            elements = sum(math.prod(tensor.shape) for tensor in self.start.tensors)
            require(elements == self.d, "elements of the tensors of x_0", f"be d = {self.d} in all", elements)
        if self.tensors:
            elements = sum(math.prod(tensor.shape) for tensor in self.tensors)
            require(elements == self.d, "elements of the parameters", f"be d = {self.d} in all", elements)
            names = [tensor.name for tensor in self.tensors if tensor.name]
            rule = "differ, and be of all or none"
            sound = len({*names}) == len(names) and len(names) in (0, len(self.tensors))
            require(sound, "names of the parameters", rule, names)
        if self.groups:
            count = sum(group.tensors for group in self.groups)
            require(count == len(self.tensors), "tensors of the groups", f"be {len(self.tensors)} in all", count)


# What a server says of its run before a client says hello.


class Offer(Struct, frozen=True):
    """The run's identity, the digest of x_0, and the configuration."""

    run: Digest
    x0: Digest
    config: Plain


# What a checkpoint of a run has beside its tensors.


class Counts(Struct, frozen=True):
    """What each client was sent and sent: messages, bytes, scalars, seeds."""

    up: list[tuple[Whole, Whole, Whole, Whole]]
    down: list[tuple[Whole, Whole, Whole, Whole]]


class SavedFederation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Server and clients, in this process or elsewhere; lists of M have a value for each client.

    One agent alone has a number of steps, and no ledger. What clients elsewhere hold is not known: there is no base.
    """

    round: Count
    steps_taken: list[Whole] | Whole
    ledger: Counts | None = None
    examples: list[tuple[Count, Annotated[int, Meta(ge=1, le=_MOST)]]] = []
    pulls: Whole = 0
    held: list[Count] = []
    told: list[bool | int] | None = None
    base: Count | None = None
    first: Count = 0
    client_rounds: list[Count] = []
    drift: Annotated[float, Meta(ge=0)] | None = None
    taken: dict[str, list[tuple[int | list[int], list[Number], Number, str]]] = {}
    curvature: list[tuple[Number, Number, Number]] | None = None
    states: dict[str, list[str]] | None = None

    def __post_init__(self) -> None:
        M, r, ledger = self.clients, self.round, self.ledger
        counts: dict[str, Sequence[object]] = {} if ledger is None else {"up": ledger.up, "down": ledger.down}
        every = {"held": self.held, "client_rounds": self.client_rounds}
        rounds = {name: of_clients for name, of_clients in every.items() if of_clients}
        for name, of_clients in (counts | rounds).items():
            require(len(of_clients) == M, f"length of {name}", f"be {M}, as of steps_taken", len(of_clients))
        if self.told is not None and any(isinstance(client, bool) for client in self.told):
            require(len(self.told) == M, "length of told", f"be {M}, as of steps_taken", len(self.told))
        for name, numbers in (rounds | {"base and first": [self.base or 0, self.first]}).items():
            require(max(numbers) <= r, name, f"be at most the round, {r}", numbers)
        if self.held and self.client_rounds:
            same = self.held == self.client_rounds
            require(same, "held", "be client_rounds, as the server knows its clients' rounds", self.held)
        if isinstance(self.steps_taken, list):
            require(ledger is not None, "ledger", "be there, as there are clients", ledger)
        require(all(i < M for i, _ in self.examples), "clients in examples", f"be in 0..{M - 1}", self.examples)

    @property
    def steps(self) -> list[int]:
        """The steps that each client, or the one agent, has taken."""
        return self.steps_taken if isinstance(self.steps_taken, list) else [self.steps_taken]

    @property
    def counts(self) -> Counts:
        """What the ledger of clients counts."""
        assert self.ledger is not None
        return self.ledger

    @property
    def clients(self) -> int:
        """M."""
        return len(self.steps)

    def padded(self, M: int) -> Self:
        """The same of M clients, where some join: these have taken no step, hold round 0 and were told nothing."""
        more = M - self.clients
        nothing = [(0, 0, 0, 0)] * more  # is what they were sent
        counts = Counts([*self.counts.up, *nothing], [*self.counts.down, *nothing])
        grown: dict[str, Any] = {"steps_taken": [*self.steps, *[0] * more], "ledger": counts}
        if self.held:  # empty where clients track their rounds
            grown["held"] = [*self.held, *[0] * more]
        if self.client_rounds:  # clients elsewhere are listed by their numbers once they are told
            grown["client_rounds"] = [*self.client_rounds, *[0] * more]
            grown["told"] = [*(self.told or ()), *[False] * more]
        return replace(self, **grown)


Saved = tuple[dict[str, "Tensor"], SavedFederation]
"""What a federation goes on from."""


class SavedRun(Struct, frozen=True, kw_only=True):
    """A run, as it goes on from a checkpoint."""

    config: Plain
    federation: SavedFederation
    data: str
    code: str
    rows: list[dict[str, Number]]
    losses: list[Number]
    seconds: Annotated[float, Meta(ge=0)]
    first: Number | None = None
    constants: str = ""
    probe: Number | None = None
    codes: list[str] = []
    devices: list[str] = []
    tunings: list[str] = []

    def __post_init__(self) -> None:
        require_rows(self.rows, "rows")
        last = self.rows[-1]["round"] if self.rows else 0
        r = self.federation.round
        require(last <= r, "round of the last row", f"be at most that of the run, {r}", last)
        if self.rows and (ledger := self.federation.ledger) is not None:
            up, down = (sum(counts[1] for counts in way) for way in (ledger.up, ledger.down))
            for name, most in {"wire_bytes": up + down, "up_bytes": up}.items():
                counted = self.rows[-1][name]
                require(counted <= most, f"{name} of the last row", f"be at most that of the ledger, {most}", counted)
        M, clients = self.config.get("clients"), self.federation.clients
        require(clients == M, "clients in config", f"be {clients}, as steps_taken has them", M)


class SavedHost(Struct, frozen=True):
    """What a host goes on from where a process lives no longer than a message: local steps and answers of clients."""

    run: Digest
    round: Count
    steps: dict[Index, Whole]
    answers: dict[Index, tuple[Count, Annotated[str, Meta(pattern=r"^([0-9a-f]{2})*\Z")]]]


# What a run says of itself in provenance.json, beside what people read there.


class Provenance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a result was computed with; older files have less of it."""

    code: str
    codes: list[str] = []  # all versions of the code that worked on it, and all devices, where there are several
    devices: list[str] = []
    tunings: list[str] = []  # how the learning rate was chosen, where it was
    data: str = ""
    data_digest: str = ""
    python: str = ""
    torch: str = ""
    numpy: str = ""
    transformers: str | None = None  # of a task's run
    noise_backend: str = ""
    stream_version: Count = 0
    device: str = ""
    metrics_sha256: str | None = None  # of a run's table, where there is one


# What an estimate of κ goes on from (``hessian.resumption``).


class SavedPoles(Struct, frozen=True):
    """What the start vector has told once its space is invariant (``hessian.spectrum.unseen_eigenvalues.Hidden``)."""

    n: Size
    poles: list[Number]
    couplings: list[Number]
    seen: list[Number]
    before: list[tuple[list[Number], list[Number]]] = []

    def __post_init__(self) -> None:
        lengths = {len(self.poles), len(self.couplings), len(self.seen)}
        require(len(lengths) == 1, "poles, couplings and seen", "be as many", sorted(lengths))


class SavedKrylov(Struct, frozen=True):
    """The space of Lanczos; its vectors are tensors."""

    drawn: Whole
    steps: Whole
    origin: Whole
    before: list[tuple[list[Number], list[Number]]]
    ended: SavedPoles | None


class SavedForms(Struct, frozen=True):
    """The quadratic forms of random probes."""

    n: Whole
    values: list[Number]
    squares: list[Number]
    pairs: list[tuple[Number, Number, Number]]
    lengths: list[Number]
    walks: list[tuple[list[Number], list[Number]]] = []
    noise: Number = 0.0
    ahead: list[list[Number]] = []  # of products that are sketched: their dots with the probes to come

    def __post_init__(self) -> None:
        require(self.n > 0 or not (self.values or self.walks), "n", "be at least 1 where there are values", self.n)
        steps = all(0 < len(alphas) == len(betas) for alphas, betas in self.walks)
        require(steps, "walks", "be pairs of lists of one length", self.walks)


class SavedEstimate(Struct, frozen=True):
    """An estimate of κ under way."""

    krylov: SavedKrylov
    products: tuple[Whole, Whole]
    forms: tuple[Whole, Whole]
    predicted: list[tuple[Number, Number]]
    beyond: list[Number]
    excluded: bool
    deflated: bool
    inside: Number
    sampled: SavedForms
    history: list[tuple[Whole, Number, Number, Number, Number]]
    seconds: Annotated[float, Meta(ge=0)]
    fine: Number | None = None  # of walks: the truncation at which they end, and what each depth would cost
    costs: list[tuple[Number, Number]] = []
    basis: Whole | None = None  # the most Lanczos vectors, where free memory bounds them
    # rtol, confidence, the most products, whether fewer will do
    asked: tuple[Number, Number, Whole, bool] | None = None


FILES: dict[str, type] = {
    "log": Header,
    "checkpoint": SavedRun,
    "provenance": Provenance,
    "offer": Offer,
    "host": SavedHost,
    "kappa-checkpoint": SavedEstimate,
}
"""What is written in JSON, by what a user calls it."""

_NUMBERS = {
    **dict.fromkeys(("wire_scalars", "seconds", "norm"), (math.inf, "be a number of at least 0")),
    **dict.fromkeys(("test_accuracy", "calibrated_accuracy"), (1, "be a share, in 0..1")),
}
_COUNTS = ("round", "wire_bytes", "up_bytes", "gradient_scalars", "model_pulls")


def require_rows(rows: Sequence[Mapping[str, Any]], what: str) -> None:
    """InputError unless these can be evaluations of one run, in order: counts that do not fall, shares in 0..1."""
    for row in rows:
        for name in _COUNTS:
            sound = type(row.get(name)) is int and 0 <= row[name] <= _LONG
            require(sound, f"{name} in {what}", "be a whole number of at least 0, below 2^63", row.get(name))
        for name, (most, rule) in _NUMBERS.items():  # NaN where there is nothing to measure, or no classes
            number = row.get(name, -1 if name in ("wire_scalars", "seconds") else 0)  # of earlier versions no other
            require(not (number < 0 or number > most), f"{name} in {what}", rule, row.get(name))
    for before, after in pairwise(rows):
        fallen = [name for name in _COUNTS if after[name] < before[name]]
        grown = not fallen and after["round"] > before["round"]
        rule = "grow from row to row"
        require(grown, f"round and counts in {what}", rule, (before["round"], after["round"], fallen))
