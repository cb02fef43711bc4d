"""A run: built, trained, gone on with, checked."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import pandas as pd
from torch import inference_mode, nn

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.datasets.user_data import first_clients
from decomfl_lab.errors import DivergedError, HookError, InputError, require, require_int
from decomfl_lab.federations.carrier import Elsewhere
from decomfl_lab.federations.federation import Federation
from decomfl_lab.files import held
from decomfl_lab.interrupts import Interrupted, postponed, telling
from decomfl_lab.methods.traffic import TrafficCheck, mean_traffic
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.pictures import save_picture
from decomfl_lab.plugins import OWN, Trust
from decomfl_lab.runs import kept, told
from decomfl_lab.runs.building import dataset_of, name_of_loss
from decomfl_lab.runs.configuration import TrainConfig, config_from_mapping, config_like
from decomfl_lab.runs.course import Course
from decomfl_lab.runs.evaluation import Metric
from decomfl_lab.runs.folder import CHECKPOINT_FILE, LOG_FILE
from decomfl_lab.runs.hooks import Hook, as_hooks, call, closing
from decomfl_lab.runs.joining import data_then, joining
from decomfl_lab.runs.prepared import Prepared
from decomfl_lab.runs.told import Progress, Rebuilt, Sent
from decomfl_lab.runs.trial import tried
from decomfl_lab.runs.tuning import Tuning

CHECKPOINT_SECONDS = 20.0
"""The time between two checkpoints is this, times the seconds that one takes if more than 1: 5 % of a run at most."""

logger = logging.getLogger("decomfl_lab")

OnRound = Callable[[Progress], None]
OnStart = Callable[[dict[str, float]], None]


class Run(Course):
    """A run at some round.

    Attributes:
        config: The configuration of the run.
        dataset: The data.
        federation: The server and the clients.
        tuning: What the learning rate was chosen by; None where it was given.
        seconds: The training time so far.
        folder: Where the run was saved last; None if nowhere.
        resolution: It warns where the scalars of the first rounds are rounding.
    """

    @inference_mode(False)
    def __init__(
        self,
        config: TrainConfig,
        *,
        dataset: Dataset | None = None,
        module: nn.Module | None = None,
        loss: LossFunction | None = None,
        device: str | None = None,
        federation: Elsewhere | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        """A run at round 0.

        Args:
            config: The configuration of the run.
            dataset: The data; None for ``dataset_of(config)``.
            module: The model at x_0, which is copied; None for the one that ``config`` names.
            loss: The loss of a batch (``objectives.batch_loss``); None for the one that ``config`` names.
            device: The device, cpu, cuda, cuda:N or auto; None for the one that the data are on.
            federation: Where the clients are; None for this process. It is no part of the configuration, as records and
                losses are the same to the bit.
            metrics: The user's own measures by name; None for those that ``config`` names.

        Raises:
            InputError: If configuration, data, model and federation do not fit.
        """
        super().__init__(tried(Prepared.of(config, dataset, module, loss, device=device)), federation, metrics=metrics)

    @classmethod
    @inference_mode(False)
    def of(
        cls,
        start: Prepared,
        tuning: Tuning | None = None,
        federation: Elsewhere | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> Self:
        """The run that was prepared, tried and perhaps tuned (``runs.tuning``)."""
        run = cls.__new__(cls)
        Course.__init__(run, start, federation, tuning, metrics)
        return run

    def __repr__(self) -> str:
        return told.summary(self.config, self.dataset.name, self.rows, self.round, self.remark)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """InputError: a copy would share the federation, and a pickle would not have it."""
        rule = "be kept by run.save(folder) and read by lab.load(folder, ...); run.model and run.metrics are copies"
        raise InputError(f"run must {rule}, got a copy or a pickle")

    @property
    def remark(self) -> str:
        """What is to be said of f_i where it was not tried, or is no mean over examples; else empty."""
        if self.config.trust:
            return "model, loss and data were taken on trust"
        whole = "the loss is no mean over examples, so no batch is cut, and f_i is the mean over batches"
        return "" if self.loss.additive else whole

    @property
    def traffic(self) -> Sent:
        """What was sent so far."""
        ledger = self.federation.ledger
        up, d, config = ledger.bytes_up, self.federation.x.numel(), self.config
        took_part = sum(min(config.sampled, config.present(r)) for r in range(self.round))
        part = 0.0 if config.method.alone else took_part / config.clients / max(1, self.round)
        by_models = self.federation.by_records is None
        return Sent(config.clients, self.round, up, ledger.bytes - up, 4 * d, part, by_models)

    def verify(self) -> Rebuilt:
        """Bring a copy of every client's model up to date by the records it missed, and compare it with the global one.

        Bit for bit, optimizer state included. Nothing is sent and no client moves.
        """
        federation = self.federation.by_records
        if federation is None:
            return Rebuilt(0, 0)
        expected = federation.observer.digest()
        digests = list(federation.rebuilt().values())
        return Rebuilt(len(digests), sum(digest == expected for digest in digests))

    def check_traffic(self) -> TrafficCheck:
        """Put the method's ``traffic`` to the ledger: the exact mean over every way in which clients can be sampled.

        A federation of at most 3 clients, 1 of them sampled a round, is played for 4 rounds, on batches of at most 4
        examples, with the run's method, model and data; nothing happens to the run.

        Raises:
            InputError: If the method has no closed form, as with pull auto.
        """
        M = min(3, self.config.clients)
        parts = None if self.dataset.parts is None else self.dataset.parts[:M]
        method = self.config.method.averaged()  # other aggregations need more than one reply, and send the same
        small = min(4, self.config.batch_size)
        config = self.config.but(method, clients=M, sampled=1, joined={}, rounds=4, batch_size=small)
        start = Prepared.of(config, replace(self.dataset, parts=parts), self.module, self.loss)
        said = method.traffic(config.cohort, start.layout.d)
        return TrafficCheck(said, mean_traffic(start.federation(), config.cohort))

    def plot(self, path: Path | str) -> Path:
        """Draw accuracy, where there is one, and losses over the rounds, with the bytes a client sent and got.

        Args:
            path: The file (.png, .pdf, .svg), which is returned; folders above it are made.

        Raises:
            InputError: If the file cannot be written, or has another ending.
        """
        title = f"{self.config.method.name}, {self.config.clients} clients, seed {self.config.seed}"
        return save_picture(told.curves(self.metrics, self.config.clients, title), Path(path))

    @inference_mode(False)
    def train(
        self,
        *,
        out: Path | None = None,
        on_round: OnRound | None = None,
        on_start: OnStart | None = None,
        hooks: Sequence[Hook] = (),
        any_code: bool = False,
    ) -> None:
        """Go on to the last round of the configuration; see ``train``, and ``runs.hooks`` for hooks of the user's."""
        self.folder, self.saved = out or self.folder, None

        def words() -> str:
            return told.interrupted(self.round, self.saved, out)

        with nullcontext() if out is None else held(out), telling(words), closing(hooks):
            # First be where the folder is, by its checkpoint or by its log.
            if out is not None and (out / CHECKPOINT_FILE).exists():
                kept.resume(self, out, any_code=any_code)
                self.saved = self.round
            elif out is not None and kept.rests_on_log(self, out):
                kept.repeat(self, out, on_round)
            elif out is not None:
                kept.begin(self, out)
            with kept.remembered(self) if out is None else kept.logged(self, out):
                self._train(out, on_round, on_start, hooks)

    def _train(
        self, out: Path | None, on_round: OnRound | None, on_start: OnStart | None, hooks: Sequence[Hook]
    ) -> None:
        """Play the rounds that are left, and save now and then."""
        config, rows, by_records = self.config, self.rows, self.federation.by_records
        if config.task and not rows:
            self.evaluate()
        if config.task and on_start is not None:
            on_start(rows[0])
        with ExitStack() as stack:
            # Half a round cannot be saved, so an interrupt waits for its end where there is a folder to save it in; and
            # where clients are elsewhere, as an engine's own callbacks would swallow it.
            waits = out is not None or (by_records is not None and by_records.remote)
            came = stack.enter_context(postponed()) if waits else []
            saver = _Saver(self, out)
            # A run that ended here before has a row of its last round. A longer run evaluates on its own grid alone.
            if self.round < config.rounds:
                rows[:] = [row for row in rows if config.evaluates(int(row["round"]))]
            while self.round < config.rounds:
                loss = self._play_round(out)
                try:
                    if on_round is not None:
                        row = rows[-1] if rows else {}
                        accuracy, test_loss = (row.get(name, float("nan")) for name in ("test_accuracy", "test_loss"))
                        scalars = self.wire_scalars
                        measures = {name: row[f"test_{name}"] for name in config.measures if row}
                        on_round(Progress(self.round, config.rounds, loss, accuracy, scalars, test_loss, measures))
                    stops = call(hooks, self, loss)
                    if came:
                        raise Interrupted(number=came[0])
                except KeyboardInterrupt:
                    saver.save()
                    raise
                except HookError as error:
                    saver.save()
                    raise told.failed(error, self, out) from error.__cause__
                if stops:
                    if not rows or rows[-1]["round"] != self.round:
                        self.evaluate()
                    break
                saver.save_if_it_is_time()
            saver.save()
            if self.first is not None:
                method = config.method
                told.warn_if_risen(self.first, rows[-1]["train_loss"], method, method.eta(self.round - 1))

    def _play_round(self, out: Path | None) -> float:
        """One round, evaluated where the configuration says so; its training loss."""
        federation, config, by_records = self.federation, self.config, self.federation.by_records
        evaluates = config.evaluates(self.round + 1) or self.round + 1 == config.rounds
        if by_records is not None:
            by_records.digest_next = evaluates
        started = time.monotonic()
        try:
            loss = federation.advance()
            if evaluates and not federation.x.isfinite().all():
                raise DivergedError("model")
        except DivergedError as error:
            if out is not None:  # no checkpoint: there is nothing to go on with
                kept.publish(self, out)
            named = told.diverged(error, self.round, config.method, out)
            named.run = self
            raise named from error
        self.seconds += time.monotonic() - started
        self.resolution.tell()
        self.losses.append(loss)
        self.first = loss if self.first is None else self.first
        if evaluates:
            self.evaluate()
        return loss

    def more(self, rounds: int, *, on_round: Hook | Sequence[Hook] | None = None, **options: Any) -> Self:
        """Train so many rounds more, and return the run; ``on_round`` is that of ``decomfl_lab.train``.

        A run that was trained with ``out``, or loaded, is saved in its folder again, unless ``out`` says otherwise.
        """
        hooks = as_hooks(on_round)
        self.config = self.config.but(rounds=self.round + require_int("rounds", rounds, 1))
        self.train(**{"out": self.folder} | options, hooks=hooks)
        return self

    def save(self, folder: Path | str) -> None:
        """Write what ``out`` of ``train`` holds: table, configuration, provenance, checkpoint, and the log if any.

        Raises:
            InputError: If the folder holds another run.
        """
        folder = Path(folder)
        with held(folder):
            if (folder / CHECKPOINT_FILE).exists():
                saved = kept.read_saved(folder, partial(config_like, self.config))[1]
                kept.require_same(self, saved, folder, saved["federation"]["round"])
            kept.save(self, folder)
            kept.write_log(self, folder / LOG_FILE)

    def load(self, folder: Path | str, *, any_code: bool = True) -> None:
        """Be at the round at which the run was saved in the folder.

        Raises:
            InputError: If the folder holds another run, or a damaged one.
        """
        kept.resume(self, Path(folder), any_code=any_code)
        self.folder = Path(folder)


@dataclass
class _Saver:
    """It saves a run in its folder, if it has one, and seldom enough that saving takes 5 % of the time at most."""

    run: Run
    folder: Path | None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.last = time.monotonic()

    def save(self) -> None:
        """Save now."""
        if self.folder is not None:
            kept.save(self.run, self.folder)

    def save_if_it_is_time(self) -> None:
        """Save where the last time is long enough ago."""
        if (began := time.monotonic()) - self.last > CHECKPOINT_SECONDS * max(1.0, self.seconds):
            self.save()
            self.last = time.monotonic()
            self.seconds = self.last - began


def train(
    config: TrainConfig,
    *,
    dataset: Dataset | None = None,
    out: Path | None = None,
    on_round: Callable[[Progress], None] | None = None,
    on_start: Callable[[dict[str, float]], None] | None = None,
    on_end: Callable[[Federation], None] | None = None,
    any_code: bool = False,
    device: str | None = None,
) -> pd.DataFrame:
    """Run ``config``; with ``out`` it resumes what is there, by checkpoint or log, and can be interrupted at any time.

    A first SIGINT or SIGTERM is held back to the end of the round, which is then saved in ``out``; a second one is not.
    Where clients send scalars, the folder's ``LOG_FILE`` has an entry for every round (``protocol.log``).

    Args:
        config: The configuration of the run.
        dataset: The data; None for ``dataset_of(config)``.
        out: The folder for metrics.csv, config.toml, provenance.json, checkpoint and log; made if missing.
        on_round: A function that is called after every round.
        on_start: A function that is called before the first round if the run has a task, with the row of round 0:
            zero-shot accuracies.
        on_end: A function that is called after the last round with the federation.
        any_code: Whether a run goes on that another version of the code began; its provenance lists every version.
        device: The device, cpu, cuda, cuda:N or auto; None for the one that the data are on. A run may go on on another
            one, and its provenance lists all: records are applied to the same bits, losses agree to rounding.

    Returns:
        One row an evaluation, columns ``METRICS``: round (completed), test_accuracy, test_loss, train_loss (mean
        over the rounds since the last evaluation), norm (‖x‖₂ of the trained parameters), wire_scalars (bytes / 4 a
        client, mean over clients), wire_bytes (all) and those of them that went up, gradient_scalars (all), model_pulls
        (rebuilds replaced by sending the model), seconds (training time so far); with revert sync also drift, the
        largest ‖x_i − x‖∞ / ‖x‖∞ of a client's rebuilt model so far; with log_kappa also ``CurvatureLog.names`` of the
        rounds since the last evaluation. A run with a task has a first row for round 0, before any training, and
        calibrated_accuracy:

            argmax_c log p_c(prompt) − log p_c(prompt without content)        in place of    argmax_c log p_c(prompt)

        (Zhao, Wallace, Feng, Klein and Singh, "Calibrate before use", ICML 2021; "N/A" in every column).

    Raises:
        InputError: If the configuration, the data or the folder does not fit, or another process writes to the folder;
            nothing is half-written.
        Interrupted: After a signal, once the round is saved; it says where.
        DivergedError: If scalars or models are no longer finite; the evaluations up to there are in ``out``, and the
            run is its attribute ``run``.
    """
    run = Run(config, dataset=dataset, device=device)
    run.train(out=out, on_round=on_round, on_start=on_start, any_code=any_code)
    if on_end is not None:
        on_end(run.federation)
    return run.metrics


def load_run(
    out: Path,
    dataset: Dataset | Callable[[TrainConfig], Dataset] | None = None,
    *,
    trust_code: Trust = False,
    **own: Any,
) -> Run:
    """The run that ``train`` left in the folder ``out``.

    All of it is the checkpoint's, under its checksum; config.toml is for people and for ``--config``, and is refused
    where it says something else than the checkpoint does.

    Args:
        out: The folder.
        dataset: The run's data where they are loaded already, or are its user's own; or what makes them for its
            configuration. Clients more than the run has join in its next round.
        trust_code: Whether the folder's files may name code to import, or which.
        own: ``module``, ``loss`` and ``metrics`` of a run whose configuration does not name them.

    Raises:
        InputError: If the folder holds no run, one of other data than are available now, or names code.
    """
    model, loss, metrics = own.get("module"), own.get("loss"), own.get("metrics")
    objects = {"model": model, "loss": loss, "data": dataset, "metrics": metrics}
    given = [name for name, each in objects.items() if each is not None]
    understand = partial(config_from_mapping, lenient=True, trust_code=trust_code, unused=given)
    _, saved = kept.read_saved(out, understand)
    config = understand(saved.get("config", {}), f"run {out}")
    kept.require_own(config, f"lab.load({str(out)!r}", model=model, loss=loss, clients=dataset, metrics=metrics)
    if not isinstance(dataset, Dataset):
        dataset = dataset_of(config) if dataset is None else dataset(config)
    # Clients more than the run has, who have brought data, join; a run that samples every client goes on to do so.
    M = config.clients if dataset.parts is None or config.method.alone else len(dataset.parts)
    if config.clients < M:
        sampled = M if config.sampled == config.clients else config.sampled
        config = joining(config.but(clients=M, sampled=sampled), dataset, out)
    if saved["data"] != data_then(config.of_first(saved["config"]["clients"]), config, dataset):
        words = "; clients, test and their order must be those of then"
        parts = dataset.parts or ()
        fewer = (first_clients(dataset, M) for M in range(1, len(parts) if config.method.alone else 1))
        if any(first is not None and first.digest == saved["data"] for first in fewer):
            raise InputError(f"clients must be those of then for {config.method.name}, which is one agent, got more")
        more = words if config.data == OWN else ""
        raise InputError(
            f"run {out} must be of the data available here ({dataset.source}), got one of other data{more}"
        )
    if own.get("loss") is not None and (name := name_of_loss(own["loss"])) != config.loss:
        same = config.loss.startswith(OWN) and name.split(":")[-1] == config.loss.split(" ")[-1]  # was in __main__ then
        require(same, "loss", f"be that of run {out}, which is {config.loss}", name)
    run = Run(config, dataset=dataset, **own)
    run.load(out)
    return run
