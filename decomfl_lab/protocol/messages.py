"""The messages of the protocol, as values: what the server asks and what a client answers or reports.

Each is declared once, by ``@message``: its kind on the wire, the numbers that it begins with and their bounds, and what
of it the ledger counts. The wire, the ledger, the closed forms of traffic and the fuzzer read these declarations.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import DivergedError, require
from decomfl_lab.noise import STREAM_VERSION, Distribution
from decomfl_lab.noise.spec import LOW_RANK_CODE, NO_LOW_RANK
from decomfl_lab.protocol.aggregation import MOST_EXAMPLES
from decomfl_lab.records.pool import FINEST, PoolSums
from decomfl_lab.records.record import RoundRecord, ScalarArray
from decomfl_lab.records.seeds import LARGEST_POOL, Seeding, StepSeed, seeding_of

Made = TypeVar("Made")

HEADER_BYTES: Final = 12
"""What every message begins with: magic, version, kind, length and checksum."""


@dataclass(frozen=True)
class Field:
    """A number, or a few bytes, that a message begins with."""

    name: str
    form: str  # as ``struct`` has it
    allowed: range | None = None  # the whole numbers that it may be; None for all that the form can say
    above_zero: bool = False  # whether a floating-point number must be above 0, and not only 0 or more
    hints: tuple[tuple[int, str], ...] = ()  # what is said beside the rule of numbers that are not allowed

    @cached_property
    def whole_numbers(self) -> range:
        """The whole numbers that it may be."""
        bits = 8 * struct.calcsize(f"<{self.form}")
        every = range(2**bits) if self.form.isupper() else range(-(2 ** (bits - 1)), 2 ** (bits - 1))
        return every if self.allowed is None else self.allowed

    def rule(self, value: Any = None) -> str:
        """What the number must be, in words; with what is said of this value."""
        if self.form in "fd":
            return "be a finite number " + ("above 0" if self.above_zero else "of at least 0")
        if self.form.endswith("s"):
            return f"be {self.form[:-1]} bytes"
        every = self.whole_numbers
        rule = f"in {every[0]}..{every[-1]}" if len(every[:3]) > 2 else " or ".join(map(str, every))
        return ", ".join(["be " + rule, *(hint for number, hint in self.hints if number == value)])

    def check(self, value: Any, whose: str) -> None:
        """InputError, which names the field and ``whose`` it is, unless the value is allowed."""
        if self.form in "fd":
            sound = isinstance(value, int | float) and 0 <= value < math.inf and (value > 0 or not self.above_zero)
        elif self.form.endswith("s"):
            sound = isinstance(value, bytes) and len(value) == int(self.form[:-1])
        else:
            sound = isinstance(value, int) and value in self.whole_numbers and not isinstance(value, bool)
        if not sound:  # nothing is put into words for the many that are
            require(sound, f"{self.name} of {whose}", self.rule(value), value)


class Layout:
    """Numbers that stand one after the other."""

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self._struct = struct.Struct("<" + "".join(field.form for field in fields))
        self.size = self._struct.size  # bytes
        # bytes of numbers and back, which nobody has checked
        self.pack_sound, self.unpack_from = self._struct.pack, self._struct.unpack_from

    def check(self, values: Sequence[Any], whose: str) -> None:
        """InputError, which names the field and whose it is, unless every number is allowed."""
        for field, value in zip(self.fields, values, strict=True):
            field.check(value, whose)

    def pack(self, values: Sequence[Any], whose: str) -> bytes:
        """The numbers as bytes; InputError as ``check``."""
        self.check(values, whose)
        return self.pack_sound(*values)


class Kind(IntEnum):
    """The kinds of messages, by their numbers on the wire."""

    layout: Layout
    each: int

    PLAN = 1  # a round's head, then records
    REPLY = 2  # then scalars
    VECTOR = 3  # then the elements
    RECORDS = 4  # each has a round's head
    QUANTIZED = 5  # then the levels
    SPARSE = 6  # then the places of the elements that are sent, and these
    HELD = 7
    SEED = 8
    HELLO = 9
    WELCOME = 10
    ASK = 11
    REFUSAL = 12  # then the text
    SIGNS = 13  # as a reply
    POOL = 14  # then the sums
    EXAMPLES = 15

    @property
    def whose(self) -> str:
        """The message, as errors call it."""
        return f"the {self.name.lower()} message"

    def bytes(self, elements: int = 0) -> int:
        """The bytes of a message of this kind with so many elements."""
        return HEADER_BYTES + self.layout.size + self.each * elements


KINDS: Final[dict[type, Kind]] = {}
"""Of every class of messages."""


def message(kind: Kind, *fields: Field, each: int = 0) -> Callable[[type[Made]], type[Made]]:
    """Declare a class of messages.

    Args:
        kind: Its kind; a class of two has both, and first of all the one that stands next to it.
        fields: The numbers that its body begins with; a message that is no more than these has them for its fields.
        each: The bytes of an element, where the last number counts the elements that follow.
    """
    kind.layout, kind.each = Layout(*fields), each

    def declared(made: type[Made]) -> type[Made]:
        KINDS.setdefault(made, kind)
        return made

    return declared


CLIENT, ROUND = Field("client", "I"), Field("round", "I")
ELEMENTS = Field("elements", "Q")
STEPS, DIRECTIONS = Field("K", "H", range(1, 2**16)), Field("P", "H", range(1, 2**16))
ROUND_HEAD: Final = Layout(
    ROUND,
    Field("eta", "d", above_zero=True),
    STEPS,
    DIRECTIONS,
    Field("distribution", "B", range(len(Distribution)), hints=((LOW_RANK_CODE, NO_LOW_RANK),)),
    Field("stream version", "B", range(STREAM_VERSION, STREAM_VERSION + 1)),
    Field("seeding", "B", range(len(Seeding))),  # with the bit ``SIGNS`` where the scalars are signs
)
"""What a plan and every record begin with; seeds and scalars follow."""
SIGNS: Final = 0x80
"""Added to the seeding of a record whose scalars are signs."""


class Sent:
    """What one side says to the other."""


@message(Kind.HELD, CLIENT, ROUND)
@dataclass(frozen=True)
class Held(Sent):
    """Client → server, where clients track their own last round: which round's model the client holds."""

    client: int  # the client's number i
    round: int  # t_i, the round whose model it holds


@message(Kind.EXAMPLES, CLIENT, Field("n", "I", range(1, MOST_EXAMPLES + 1)))
@dataclass(frozen=True)
class Examples(Sent):
    """Client → server, with its first reply, where clients are weighed by their examples."""

    client: int  # the client's number i
    n: int  # n_i, the number of its examples, which stays the same for a run


@message(Kind.PLAN)
@dataclass(frozen=True)
class Plan(Sent):
    """Server → client: the records it missed, then what to measure in round ``round``."""

    round: int  # the round r to measure in
    eta: float  # the learning rate η of this round, for the local steps
    P: int  # the number of directions a local step
    distribution: Distribution  # the distribution of the directions z
    seeds: Sequence[StepSeed]  # the seeds s_r^k, k = 1..K, in one of the forms of ``draw_seeds``
    # the records of the rounds that the server believes the client has not applied
    records: tuple[RoundRecord, ...] = ()

    @property
    def K(self) -> int:
        """Local steps."""
        return len(self.seeds)

    @property
    def seeding(self) -> Seeding:
        """How many seeds the plan carries."""
        return seeding_of(self.seeds, self.P)


@message(Kind.SIGNS, CLIENT, ROUND, STEPS, DIRECTIONS)
@message(Kind.REPLY, CLIENT, ROUND, STEPS, DIRECTIONS)
@dataclass(frozen=True, eq=False)
class Reply(Sent):
    """Client → server: g_{i,r,p}^k."""

    client: int  # the client's number i
    round: int  # the round r that was measured
    scalars: ScalarArray  # the measured g_{i,r,p}^k, shape (K, P): float32, or int8 signs
    # the mean loss over the local steps; it serves the log alone, and is neither sent nor counted
    loss: float = float("nan")
    # the second differences, shape (K, P), where they are measured; they serve the log alone, too
    curvature: NDArray[np.float64] | None = None


@message(Kind.SEED, Field("seed", "Q"))
@dataclass(frozen=True)
class RunSeed(Sent):
    """Server → client, once, where no plan carries seeds."""

    seed: int  # the run's seed, which those of all rounds derive from


@message(Kind.VECTOR, ROUND, Field("bytes an element", "B", range(4, 9, 4)), ELEMENTS, each=4)
@dataclass(frozen=True, eq=False)
class Dense(Sent):
    """Server → client: a vector of the model of round ``round``, instead of records."""

    round: int  # r
    # A state vector of the optimizer or, last, the parameters: float32 or float64, shape (d,).
    x: NDArray[np.float32] | NDArray[np.float64]


@message(Kind.QUANTIZED, ROUND, Field("bits", "B", range(2, 9)), Field("scale", "f"), ELEMENTS, each=1)
@dataclass(frozen=True, eq=False)
class Quantized(Sent):
    """Client → server: the update v of round ``round``, v_j ≈ scale · levels_j / L with L = 2^(bits−1) − 1."""

    round: int
    bits: int  # 2 to 8
    scale: float  # max |v_j|, float32
    levels: NDArray[np.int8]  # int8 (d,), in −L..L

    @property
    def size(self) -> int:
        """The dimension d."""
        return self.levels.size

    def dense(self) -> NDArray[np.float32]:
        """The vector, float32 (d,)."""
        largest = 2 ** (self.bits - 1) - 1
        v: NDArray[np.float32] = (self.levels.astype(np.float64) * (self.scale / largest)).astype(np.float32)
        return v


@message(Kind.SPARSE, ROUND, Field("d", "Q", range(2**32 + 1)), ELEMENTS, each=8)
@dataclass(frozen=True, eq=False)
class Sparse(Sent):
    """Client → server: the largest elements of the update of round ``round``; the others are 0."""

    round: int
    size: int  # the dimension d
    indices: NDArray[np.int64]  # rising positions, int64 (k,)
    values: NDArray[np.float32]  # float32 (k,)

    def __post_init__(self) -> None:
        require(self.indices.shape == self.values.shape, "indices and values", "be equally many", self.indices.shape)
        rising = bool((np.diff(self.indices) > 0).all()) if self.indices.size > 1 else True
        inside = not self.indices.size or (self.indices[0] >= 0 and self.indices[-1] < self.size)
        require(rising and bool(inside), "indices", f"rise within 0..{self.size - 1}", self.indices[:5].tolist())

    def dense(self) -> NDArray[np.float32]:
        """The vector, float32 (d,)."""
        out = np.zeros(self.size, dtype=np.float32)
        out[self.indices] = self.values
        return out


# What a dense update can be shrunk to before it is sent.

MAGNITUDE, VALUE = "magnitude", "value"

Floats = NDArray[np.float32] | NDArray[np.float64]


def _check(v: Floats) -> None:
    require(v.ndim == 1 and v.size > 0, "vector", "be non-empty and flat", v.shape)
    if not np.isfinite(v).all():
        raise DivergedError("vector")


def quantize(r: int, v: Floats, bits: int, seed: tuple[int, ...]) -> Quantized:
    """Round v/max|v|·L to integers at random, so that E[dense()] = v.

        |dense()_j − v_j| ≤ max|v| / L,    L = 2^(bits−1) − 1     (and one rounding to float32)

    Args:
        r: The round.
        v: Vector (d,).
        bits: 2 to 8.
        seed: Entropy and path of the random bits: every message has its own.

    Raises:
        InputError: If v is not finite.

    Source: Haddadpour et al., "Federated learning with compression" (FedCOM), AISTATS 2021: any unbiased
    quantiser; this is the uniform one.
    """
    _check(v)
    largest = 2 ** (bits - 1) - 1
    scale = float(np.float32(np.abs(v).max()))
    if scale == 0:
        return Quantized(r, bits, 0.0, np.zeros(v.size, dtype=np.int8))
    exact = v.astype(np.float64) * (largest / scale)
    uniform = np.random.default_rng(np.random.SeedSequence(seed[0], spawn_key=seed[1:])).random(v.size)
    # float32 rounding of the scale may leave |exact| a little above L.
    levels = np.clip(np.floor(exact + uniform), -largest, largest).astype(np.int8)
    return Quantized(r, bits, scale, levels)


def top_k(r: int, v: Floats, fraction: float, by: str = MAGNITUDE) -> Sparse:
    """The k = ⌈fraction·d⌉ elements of largest |v_j| of round r's update; of equal ones those with the smallest j.

    No other k-sparse vector is nearer to v in the Euclidean norm. By value it is those of largest v_j, which loses what
    falls most: no sensible compression, but what ``torch.topk`` gives who forgets the absolute value. InputError if v
    is not finite.
    """
    _check(v)
    k = math.ceil(fraction * v.size)
    size = np.abs(v) if by == MAGNITUDE else v
    least = np.partition(size, v.size - k)[v.size - k]
    kept = size > least
    kept[np.flatnonzero(size == least)[: k - np.count_nonzero(kept)]] = True
    indices = np.flatnonzero(kept)
    return Sparse(r, v.size, indices, v[indices].astype(np.float32))


@message(Kind.HELLO, CLIENT, Field("run", "16s"), ROUND, Field("digest", "16s"))
@dataclass(frozen=True)
class Hello(Sent):
    """Client → server, on a network: who it is, which run it is in, and the model that it holds."""

    client: int  # the client's number i
    run: bytes  # the run's identity, 16 bytes
    round: int  # t_i, the round whose model it holds
    digest: bytes  # the BLAKE2b-128 of that model, optimizer state included


@message(Kind.WELCOME, ROUND, Field("steps", "Q"))
@dataclass(frozen=True)
class Welcome(Sent):
    """Server → client, on a network: where the client goes on."""

    round: int  # the round whose model it keeps; 0 for x_0, whatever it holds
    steps: int  # the number of local steps that it has measured in the rounds of the record, which picks its next batch


@message(Kind.ASK)
@dataclass(frozen=True)
class Ask(Sent):
    """Server → client, on a network: say hello."""


@message(Kind.REFUSAL, Field("diverged", "B", range(2)))
@dataclass(frozen=True)
class Refusal(Sent):
    """Either way, on a network: why a message could not be served."""

    text: str  # the reason
    diverged: bool = False  # whether it is that losses are no longer finite numbers


Message = Sent | PoolSums | tuple[RoundRecord, ...]
"""All that the wire has a form for; records alone are what a server stores, sums of a pool what may stand for them."""


# What is declared elsewhere: sums of a pool, and records alone.
message(
    Kind.POOL, ROUND, Field("exponent", "b", range(FINEST, 1)), Field("sums", "Q", range(1, LARGEST_POOL + 1)), each=4
)(PoolSums)
message(Kind.RECORDS)(tuple)


def carried(message: Message) -> tuple[int, int]:
    """The gradient scalars, or elements of a model, and the seeds that a message carries; others carry neither."""
    match message:
        case RunSeed():
            return 0, 1
        # The indices of a sparse message are in the bytes, not in the scalars.
        case (
            Reply(scalars=numbers)
            | Dense(x=numbers)
            | PoolSums(values=numbers)
            | Quantized(levels=numbers)
            | Sparse(values=numbers)
        ):
            return numbers.size, 0
        case Plan() | tuple():
            records = message.records if isinstance(message, Plan) else message
            heads: Sequence[Plan | RoundRecord] = (message, *records) if isinstance(message, Plan) else records
            scalars = sum(record.scalars.size for record in records)
            return scalars, sum(head.seeding.sent(head.K, head.P) for head in heads)
    return 0, 0
