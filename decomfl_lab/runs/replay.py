"""Replay: a run's model again from its log alone, and its scalars measured anew where the data are available here."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, inference_mode, nn

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.devices import find_device
from decomfl_lab.errors import InputError, plural, require, require_finite_positive, require_int
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.methods.decomfl import DeComFL, groups_of
from decomfl_lab.models.registry import MODELS, size_of
from decomfl_lab.noise import STREAM_VERSION, Distribution
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.objectives.modules import copied
from decomfl_lab.objectives.normalisation import refuse_evaluation_, uses_batch_statistics
from decomfl_lab.plugins import OWN, is_own
from decomfl_lab.protocol.log import LogEntry, RunLog
from decomfl_lab.protocol.messages import Held
from decomfl_lab.protocol.server import Terms, Tracking
from decomfl_lab.records.record import History, RoundRecord
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.replica import GroupedReplica, Replica
from decomfl_lab.replicas.rules import Group
from decomfl_lab.replicas.start import made_again
from decomfl_lab.runs.configuration import CROSS_ENTROPY, OBJECTS, OWN_LOSS, PARTS, TrainConfig, config_from_mapping
from decomfl_lab.runs.folder import CHECKPOINT_FILE, LOG_FILE, require_own
from decomfl_lab.runs.preparation import Materials, Prepared, tried
from decomfl_lab.runs.run import Run
from decomfl_lab.storage.files import read_file
from decomfl_lab.storage.outside import Header, NamedTensor, read_as

TOLERANCE = 0.02
"""The largest difference of a scalar that is put down to rounding, beside the root mean square of the scalars.

On one machine, with one version of torch, scalars are the same to the bit. Elsewhere losses f differ in their last
bits, and so a scalar by about 2⁻²⁴ f / μ. Between this lab's engines, at the default μ = 10⁻⁴, that was at most 0.33 %
of the root mean square on three models, before and after training. Smaller μ, 16-bit losses and flat losses need more.
"""

_AT_ONCE = 100
"""The most records that are applied in one pass over the model, so that progress can be told."""


@dataclass(frozen=True)
class Compared:
    """A digest of the log beside that of the rebuilt model, after ``round`` rounds."""

    round: int
    recorded: str
    found: str

    @property
    def agrees(self) -> bool:
        """Whether all bits of the model are those of then, optimizer state included."""
        return self.recorded == self.found


@dataclass(frozen=True)
class MeasuredRound:
    """A round whose scalars its participants have measured anew."""

    round: int  # the round
    clients: int  # the number of clients that measured
    difference: float  # the largest |g − g'| of a recorded scalar g and the one measured anew g'; NaN for other shapes
    allowed: float  # the largest difference that is put down to rounding
    # what of the round is not what the configuration and the data say: eta, seeds, distribution, shape or numbers of
    # examples
    others: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether the record is what the clients measure."""
        return not self.others and self.difference <= self.allowed

    def __str__(self) -> str:
        if self.others:
            found = f"{' and '.join(self.others)} differ from what the run says: NOT the record of this run"
        elif self.difference == 0:
            found = "the recorded scalars bit for bit"
        else:
            within = "which rounding explains" if self.agrees else "more than rounding explains: NOT what was recorded"
            found = f"scalars up to {self.difference:.3g} from the recorded ones (allowed {self.allowed:.3g}), {within}"
        return f"round {self.round} measured anew by {plural(self.clients, 'client')}: {found}"


@dataclass(frozen=True, eq=False)
class Replay:
    """What came of a replay."""

    # the model after ``round`` rounds. With the data a BatchNorm has the statistics that ``Run.model`` has; without, it
    # normalises by its batch in training mode, and is an error in eval mode.
    model: nn.Module
    round: int  # the number of rounds whose records were applied
    rounds: int  # the number of rounds in the log
    planned: int  # the number of rounds that the run was to have, as the log says it
    digest: str  # the digest of the model, optimizer state included
    compared: tuple[Compared, ...]  # the digests in the log, that of x_0 first, beside those found
    measured: tuple[MeasuredRound, ...]  # the rounds that were measured anew
    unlike: str  # where a record first is none of the run that the log says it is of, in words; empty if all are
    remark: str = ""  # what the model lacks, in words; empty if nothing

    @property
    def agrees(self) -> bool:
        """Whether every digest agrees, every record is of this run, and every round that was measured."""
        exact = all(digest.agrees for digest in self.compared)
        return exact and not self.unlike and all(measured.agrees for measured in self.measured)

    def __str__(self) -> str:
        wrong = [digest.round for digest in self.compared if not digest.agrees]
        if 0 in wrong:
            return (
                "the model does NOT agree: x_0 is not the run's (another model; or torch drew it, as before version 2 "
                "of the log, and draws other numbers on this processor), so no record was applied"
            )
        if wrong:
            last = max((digest.round for digest in self.compared if digest.round < wrong[0]), default=0)
            return (
                f"the model does NOT agree: after {wrong[0]} rounds its bits are not those that the log has a digest "
                f"of, as they were after {last}"
            )
        last = self.compared[-1].round
        agreed = f"x_0 and {plural(len(self.compared) - 1, 'digest')} of the log agree, the last after round {last}"
        rest = ""
        if last != self.round:
            rest = f"; rounds {last + 1} to {self.round} have no digest, so they are not checked"
        if self.unlike:
            rest += f"; but NOT the records of this run: {self.unlike}"
        if self.rounds < self.planned:
            rest += f"; the log ends before the {self.planned} rounds that the run was to have"
        exact = ", bit for bit" if last == self.round else ""
        lacking = f"\n{self.remark}" if self.remark else ""
        return f"the model after {self.round} of {self.rounds} rounds is rebuilt{exact}: {agreed}{rest}{lacking}"


def replay(
    path: Path | str,
    model: nn.Module | None = None,
    loss: LossFunction | None = None,
    clients: Sequence[Any] | None = None,
    *,
    test: Any = None,
    rounds: int | None = None,
    measure: Collection[int] = (),
    tolerance: float = TOLERANCE,
    device: str = "cpu",
    on_round: Callable[[int, int], None] | None = None,
    trust_code: bool = False,
) -> Replay:
    """Rebuild the model of a run from its log, compare it with every digest in it, and perhaps measure rounds anew.

        x_{r+1} = rule(x_r, g_r, z_r),   r = 0..R−1,   g_r from the log, z_r from its seeds

    The log is that of a run, or of ``decomfl_lab.optim.MeZO``. x_0 is what it says: drawn from the stream, or in the
    file. Where it says neither, it is drawn as the run drew it, or the model's that is given. The data are needed to
    measure and for BatchNorm alone.

    Args:
        path: The log, ``run.dcl``, or its folder. It is not written to, and may be that of a run under way.
        model: The model, where the run trained a module of one's own; at x_0, where the log lacks that. Of an
            optimizer's log it is any module with its parameters, and not needed where the log has x_0. It is copied and
            stays as it is; the rebuilt one is ``model`` of what is returned.
        loss: The loss, to measure, where it cannot be found by its name.
        clients: The clients' examples, to measure or for the statistics of a BatchNorm, where they brought their own.
        test: The held-out examples of then, likewise.
        rounds: The number R of rounds to apply; None for all.
        measure: The rounds whose participants measure anew, each at its x_r, with its own data and batches.
        tolerance: The largest difference that counts as rounding, as a share of the root mean square of the scalars.
        device: The device, cpu, cuda, cuda:N or auto.
        on_round: A function of (rounds done, rounds in all), called now and then.
        trust_code: Whether to import the code that the log names as module:function and that is needed and not given
            here: a method or model, and to measure data and loss.

    Returns:
        What agrees, which ``print`` shows, and the rebuilt model: ``rebuilt = lab.replay(...); rebuilt.model``.

    Raises:
        InputError: If the log was changed, is of another stream version or other data than are available here, a round
            is not in it, what the run's user brought is not given, or the log names code.

    Source: [DeComFL, eq. (reconstruct)].
    """
    folder = path = Path(path)
    if folder.is_dir():
        path = folder / LOG_FILE
        # Methods that send models keep no log.
        rule = f"have a log {LOG_FILE}, as where clients send scalars; decomfl export has the model of other runs"
        require(path.exists() or not (folder / CHECKPOINT_FILE).exists(), "folder", rule, str(folder))
    require_finite_positive("tolerance", tolerance)
    require(test is None or clients is not None, "test", "be left out, or given with clients", type(test).__name__)
    with RunLog.open(path, write=False) as log:
        header = read_as(Header, log.header, f"header of the log {path}")
        end = len(log) if rounds is None else require_int("round", rounds, 0, len(log))
        for r in measure:
            require_int("round to measure", r, 0, end - 1)
        if header.tensors:
            require(not measure, "measure", "be left out for an optimizer's log, which has no data", sorted(measure))
            rolling = _of_optimizer(path, log, header, model, device)
            buffers = () if model is None else model.buffers()
            if any(buffer.is_floating_point() for buffer in buffers):  # which training may have written to
                rolling.remark = "parameters only: buffers, as statistics, are those of the module that was given"
        else:
            given = {"model": model, "loss": loss, "clients": clients}
            rolling = _of_run(path, log, header, given, test, frozenset(measure), device, trust_code=trust_code)
            rolling.tolerance = tolerance
        if rolling.compared[0].agrees:
            for r, entry in enumerate(log.entries(0, end), 1):
                rolling.take(entry)
                if on_round is not None and (not rolling.pending or r == end):
                    on_round(r, end)
            rolling.apply()
        done, digest = rolling.observer.round, rolling.observer.digest()
        checks = tuple(rolling.compared), tuple(rolling.measured)
        planned = rolling.planned or len(log)
        return Replay(rolling.model(), done, len(log), planned, digest, *checks, rolling.unlike, rolling.remark)


@dataclass(eq=False)
class _Rolling:
    """A model on its way through the rounds of a log."""

    observer: Replica  # at x_0
    terms: Terms
    x0: str  # the digest of x_0 in the log
    model: Callable[[], nn.Module]  # what is made of the observer in the end
    M: int = 1
    planned: int = 0
    federation: DeComFLFederation | None = None
    measure: Collection[int] = ()
    tolerance: float = TOLERANCE
    remark: str = ""

    def __post_init__(self) -> None:
        self.pending: list[RoundRecord] = []
        self.steps: Counter[int] = Counter()  # local steps that each client has taken
        self.compared = [Compared(0, self.x0, self.observer.digest())]
        self.measured: list[MeasuredRound] = []
        self.unlike = ""

    def take(self, entry: LogEntry) -> None:
        """Go on by a round."""
        record = entry.record
        entry.require_sound(self.M)
        try:
            self.terms.check(record)
        except InputError as error:
            self.unlike = self.unlike or str(error)
        if record.round in self.measure:
            self.apply()
            self.measured.append(self._measure(entry))
        self.pending.append(record)
        for client in entry.answered:
            self.steps[client] += record.K
        if entry.digest is not None or len(self.pending) == _AT_ONCE:
            self.apply()
        if entry.digest is not None:
            self.compared.append(Compared(record.round + 1, entry.digest, self.observer.digest()))

    def apply(self) -> None:
        """Be at the round of the last record."""
        self.observer.catch_up(self.pending)
        self.pending.clear()

    def _measure(self, entry: LogEntry) -> MeasuredRound:
        """What the server makes of its clients' answers at x_r, beside the record."""
        assert self.federation is not None
        server, record = self.federation.server, entry.record
        clients = [self.federation.clients[i] for i in entry.answered]
        for client in clients:
            client.replica.restore(self.observer.snapshot())
            client.steps_taken = self.steps[client.id]
        server.history = History(start=record.round)
        tracking = server.tracking is Tracking.SERVER
        server.held = [record.round] * server.M if tracking else []
        reports = None if tracking else [Held(i, record.round) for i in entry.answered]
        for client in clients:
            if server.weights.lacks(client.id):
                server.note_examples(client.id, client.examples().n)
        plans = server.plan_round(entry.answered, reports)
        replies = self.federation.replies(clients, [plans[client.id] for client in clients])
        for client in clients:
            client.replica.forget()
        again = server.aggregate(replies)
        size = float(np.sqrt(np.mean(np.square([reply.scalars for reply in replies], dtype=np.float64))))
        # What a record has besides its scalars, there and here.
        pairs = {
            "eta": (record.eta, again.eta),
            "seeds": (tuple(record.seeds), tuple(again.seeds)),
            "distribution": (record.distribution, again.distribution),
            "shape": (record.scalars.shape, again.scalars.shape),
        }
        others = tuple(name for name, (recorded, measured) in pairs.items() if recorded != measured)
        if server.weights.of(entry.answered) != entry.examples:
            others += ("numbers of examples",)
        difference = np.nan
        if "shape" not in others:
            difference = float(np.abs(record.scalars.astype(np.float64) - again.scalars).max())
        return MeasuredRound(record.round, len(clients), difference, self.tolerance * size, others)


def _of_optimizer(path: Path, log: RunLog, header: Header, model: nn.Module | None, device: str) -> _Rolling:
    """The parameters of an optimizer (``decomfl_lab.optim``) before its first step."""
    require(header.stream == STREAM_VERSION, f"stream of the log {path}", f"be {STREAM_VERSION}", header.stream)
    config = config_from_mapping(header.config, f"log {path}", lenient=True, unused=OBJECTS)
    method = config.method
    require(isinstance(method, DeComFL), f"method of the log {path}", "be decomfl in one of an optimizer", method.name)
    assert isinstance(method, DeComFL)
    x = made_again(header.start, log.start, header.d)
    if x is None:
        rule = "be given, as the log has not x_0: lab.replay(log, module), or decomfl replay --start FILE"
        require(model is not None, "weights at x_0", rule, None)
        assert model is not None
        # x, shape (d,), of the module's parameters that the log is of.
        parameters = _places(model, header.tensors)
        kinds = sorted({str(p.dtype) for p in parameters})
        plain = len(kinds) == 1 and parameters[0].is_floating_point()
        require(plain, "dtype of the weights at x_0", "be one for all", kinds)
        x = torch.cat([p.detach().reshape(-1) for p in parameters])
    else:
        x = method.rule.begin(x)
    sizes = [math.prod(tensor.shape) for tensor in header.tensors]
    groups = groups_of(method, header.groups) or [Group(len(sizes), method.rule)]
    observer = GroupedReplica(x.to(find_device(device)), groups, sizes=sizes)
    seeding, kind = Seeding(method.seeds), Distribution(method.distribution)
    terms = Terms(1, method.P, None, kind, seeding, log.header["run_seed"], np.float32)

    def rebuilt() -> nn.Module:
        """A copy of the module with x in the parameters that the log is of; without one the weights alone."""
        parts = zip(header.tensors, observer.x.split(sizes), strict=True)
        weights = [(tensor.name, part.view(tensor.shape)) for tensor, part in parts]
        if model is None:
            module = with_weights({name or str(n): w for n, (name, w) in enumerate(weights)})
        else:
            module = copied(model)
            for p, (_, w) in zip(_places(module, header.tensors), weights, strict=True):
                p.data = w.to(p.device)
        refuse_evaluation_(module, "the module in eval mode, with the statistics that it was trained with")
        return module

    return _Rolling(observer, terms, header.x0, rebuilt)


@inference_mode(False)
def _of_run(
    path: Path,
    log: RunLog,
    header: Header,
    given: dict[str, Any],
    test: Any,
    measure: Collection[int],
    device: str,
    *,
    trust_code: bool,
) -> _Rolling:
    """The model of a run at round 0, with all of its clients where they measure.

    The run has its data where they are needed, and examples of zeros elsewhere; ``given`` are the model, loss and
    clients that ``replay`` was given.
    """
    require(header.stream == STREAM_VERSION, f"stream of the log {path}", f"be {STREAM_VERSION}", header.stream)
    with_data = bool(measure) or header.config.get("batchnorm") == "frozen"
    objects = {"model": given["model"], "loss": given["loss"], "data": given["clients"]}
    unused = [name for name in objects if objects[name] is not None or not (with_data or name == "model")]
    # No metrics are computed; and the log has what came of the parts, which are made to measure alone.
    unused += ["metrics", *(() if measure else PARTS)]
    config = config_from_mapping(header.config, f"log {path}", lenient=True, trust_code=trust_code, unused=unused)
    if not measure:
        rates = {} if isinstance(config.lr_schedule, str) else config.lr_schedule
        config = config.but(config.method.averaged(), lr_schedule=rates)
    x = made_again(header.start, log.start, header.d)
    wanted = given if with_data else {"model": given["model"]}
    require_own(config, f"lab.replay({str(path)!r}", **wanted)
    if with_data:
        dataset = _data(path, header, config, given, test)
        start = Prepared.of(config, dataset, given["model"], given["loss"], device=device, x=x)
    else:
        if given["model"] is None and config.model in MODELS and not config.task:
            d = size_of(config.model, header.shape, header.classes)  # before memory is taken for it
            require(d == header.d, "model", f"have d = {header.d}, as in {path}", d)
        alone = config.but(clients=1, sampled=1, joined={}, compute="float32", engine="auto", trust=True)
        # Two examples that have nothing of the run's but their shape: all that a model at x_0 needs.
        inputs = torch.zeros(2, *header.shape, dtype=getattr(torch, header.dtype))
        labels = torch.zeros(2, dtype=torch.int64)
        zeros = Dataset(
            name="none",
            train_images=inputs,
            train_labels=labels,
            test_images=inputs[:0],
            test_labels=labels[:0],
            classes=header.classes,
            source="no data",
            digest=header.data,
            parts=[np.arange(2)],
        )
        start = Prepared.of(alone, zeros, given["model"], lambda *_: torch.zeros(()), device=device, x=x)
    run, lacking = Run(tried(start)), ""
    if not with_data and uses_batch_statistics(run.module):
        lacking = _calibrate_(run, path, header, config, given, test, trust_code=trust_code)
    federation = run.federation.by_records
    assert federation is not None  # no other method has a log
    require(federation.x.numel() == header.d, "model", f"have d = {header.d}, as in {path}", federation.x.numel())
    drifts = any(client.replica.drifts for client in federation.clients)
    rule = "be left out for revert sync, where clients measure at models that no record gives"
    require(not (measure and drifts), "measure", rule, "rounds")

    def model() -> nn.Module:
        if not lacking:
            return run.model
        module = run.as_trained
        refuse_evaluation_(module, "the clients and test of the run")
        return module

    federation.server.replica = None  # the observer is the only model that moves
    terms = Terms.of(federation.server)
    if isinstance(header.config.get("lr_schedule"), str) and not measure:  # the records alone have η
        terms = replace(terms, eta=None)
    rolling = _Rolling(federation.observer, terms, header.x0, model, config.clients, config.rounds, federation, measure)
    rolling.remark = lacking and f"parameters only, no BatchNorm statistics: {lacking}"
    return rolling


def _data(path: Path, header: Header, config: TrainConfig, given: dict[str, Any], test: Any) -> Dataset:
    """The data that are given, or that the configuration names; InputError if they are not those of the log."""
    dataset = Materials(config).dataset(clients=given["clients"], test=test, loss=given["loss"])
    if dataset.digest != header.data:
        raise InputError(f"data must be those of the log {path} ({header.source}), got {dataset.source}")
    return dataset


def _calibrate_(
    run: Run, path: Path, header: Header, config: TrainConfig, given: dict[str, Any], test: Any, *, trust_code: bool
) -> str:
    """Give the run the images on which BatchNorm's statistics are made, or say in words why they are not to be had."""
    with_clients = given["clients"] is not None
    if not with_clients and (config.data == OWN or (is_own(config.data) and not trust_code)):
        return "lab.replay makes them of the clients and test of the run, which were not given"
    of_ours = config.loss in (CROSS_ENTROPY, OWN_LOSS) or (trust_code and is_own(config.loss))
    rule = "be given with clients, as it says what form batches have"
    require(not with_clients or of_ours or given["loss"] is not None, "loss", rule, None)
    try:
        dataset = _data(path, header, config, given, test)
    except InputError as error:
        if with_clients:
            raise
        return str(error)
    run.calibration = Materials(config).calibration(dataset.cast(run.layout.dtype).to(run.dataset.device))
    return ""


def with_weights(tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module that holds these tensors under these names, and can do nothing else."""
    module = nn.Module()
    # Not by register_parameter, which takes no name with dots.
    module._parameters.update({name: nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors.items()})
    return module


def read_weights(path: Path) -> nn.Module:
    """The weights in a file of safetensors; InputError if it cannot be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = read_file("start", path)
    try:
        return with_weights(load(content))
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise InputError(f"start must be weights as safetensors, got {path} ({error})") from None


def _places(module: nn.Module, tensors: Sequence[NamedTensor]) -> list[nn.Parameter]:
    """The module's parameters that the log is of, in its order.

    InputError if a name or a shape is another; where the log has no names the trainable parameters are taken.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    if any(tensor.name for tensor in tensors):
        for tensor in tensors:
            rule = f"have the parameter {tensor.name!r} of the log"
            require(tensor.name in named, "weights at x_0", rule, list(named))
        parameters = [named[tensor.name] for tensor in tensors]
    else:
        parameters = [p for p in module.parameters() if p.requires_grad]
        rule = f"have the {len(tensors)} trainable parameters of the log, which has no names of them"
        require(len(parameters) == len(tensors), "model at x_0", rule, len(parameters))
    for tensor, p in zip(tensors, parameters, strict=True):
        shape = tuple(p.shape)
        require(shape == tensor.shape, f"shape of {tensor.name!r} at x_0", f"be {tensor.shape}", shape)
    return parameters
