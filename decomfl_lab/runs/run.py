"""A run: its rounds, the row of the table that each evaluation adds, and its doors, ``lab.train`` and ``lab.load``."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import pandas as pd
import torch
from torch import inference_mode, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.datasets.splits import fixed_choice
from decomfl_lab.datasets.user_data import first_clients, own_dataset
from decomfl_lab.devices import describe
from decomfl_lab.errors import DivergedError, HookError, InputError, plural, require, require_int
from decomfl_lab.estimators.resolution import Resolution
from decomfl_lab.federations.carrier import Elsewhere
from decomfl_lab.federations.setting import Federation
from decomfl_lab.interrupts import Interrupted, postponed, telling
from decomfl_lab.language.finetuning import by_length
from decomfl_lab.layout import MODULE
from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.methods.expected_traffic import TrafficCheck, mean_traffic
from decomfl_lab.methods.method import Method
from decomfl_lab.objectives.batch_loss import BatchLoss, Form, LossFunction
from decomfl_lab.objectives.evaluation import Metric, evaluate
from decomfl_lab.objectives.modules import constants, copied, handed_back_
from decomfl_lab.objectives.normalisation import calibrated
from decomfl_lab.objectives.objective import mean_losses
from decomfl_lab.objectives.trees import row_count, rows
from decomfl_lab.objectives.vectors import length
from decomfl_lab.plugins import OWN, OwnFunction, Trust, is_own, name_of
from decomfl_lab.progress import Progress, run_bar
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.replicas.replica import Snapshot
from decomfl_lab.runs.configuration import CROSS_ENTROPY, PARTS, TrainConfig, config_from_mapping, config_like
from decomfl_lab.runs.folder import (
    CHECKPOINT_FILE,
    LOG_FILE,
    METRICS,
    begin,
    data_then,
    further,
    joining,
    logged,
    publish,
    read_saved,
    remembered,
    repeat,
    require_own,
    require_same,
    resume_run,
    save_run,
    write_log,
)
from decomfl_lab.runs.hooks import Hook, as_hooks, call, closing
from decomfl_lab.runs.messages import Rebuilt, Sent, curves, diverged, warn_if_risen
from decomfl_lab.runs.preparation import Materials, Prepared, fast_layout, name_of_loss, tried
from decomfl_lab.runs.tuning import Tuning, tuned, without_auto
from decomfl_lab.storage.checkpoint_file import CHECKPOINT_SECONDS
from decomfl_lab.storage.files import as_path, held, save_picture
from decomfl_lab.storage.provenance import code_version

OnRound = Callable[[Progress], None]
OnStart = Callable[[dict[str, float]], None]


class Run:
    """A run at some round: what it is made of, its federation, and what came of its rounds.

    From ``rows`` on the attributes are what the folder and the hooks of a run read.

    Attributes:
        config: The configuration of the run.
        dataset: The data.
        federation: The server and the clients.
        tuning: What the learning rate was chosen by; None where it was given.
        seconds: The training time so far.
        folder: Where the run was saved last; None if nowhere.
        resolution: It warns where the scalars of the first rounds are rounding.
        rows: The evaluations so far.
        losses: The training losses since the last of them.
        first: The training loss of the first round; None before it.
        hands: Every version of the code, and every device, that had a hand in the run; and what chose its learning
            rate.
        saved: The round that the folder was saved at last; None for none.
        calibration: The images on which BatchNorm's statistics are made.
        x0: x_0, which clients need who join a saved run; None until one joins.
        log: The log of a run that has no folder yet; None for none.
        measures: The user's own measures on the held-out examples, by their columns.
        whole: That batches are the whole data of every client, in words; empty where they are not.
    """

    @inference_mode(False)
    def __init__(
        self,
        config: TrainConfig | Prepared,
        *,
        dataset: Dataset | None = None,
        module: nn.Module | None = None,
        loss: LossFunction | None = None,
        device: str | None = None,
        federation: Elsewhere | None = None,
        metrics: Mapping[str, Metric] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """A run at round 0.

        Args:
            config: The configuration of the run; or the run as it was prepared and tried, with all but where its
                clients are and its measures.
            dataset: The data; None for what ``config`` names.
            module: The model at x_0, which is copied; None for the one that ``config`` names.
            loss: The loss of a batch (``objectives.batch_loss``); None for the one that ``config`` names.
            device: The device, cpu, cuda, cuda:N or auto; None for the one that the data are on.
            federation: Where the clients are; None for this process. It is no part of the configuration, as records and
                losses are the same to the bit.
            metrics: The user's own measures by name; None for those that ``config`` names.
            tuning: What the learning rate was chosen by, where it was (``runs.tuning``).

        Raises:
            InputError: If configuration, data, model and federation do not fit.
        """
        start = config
        if not isinstance(start, Prepared):
            start = tried(Prepared.of(start, dataset, module, loss, device=device))
        self.config, self.dataset, self.tuning = start.config, start.dataset, tuning
        self.federation: Federation = start.federation(federation)
        exact = "float64" if start.layout.dtype == torch.float64 else "float32"
        self.resolution = Resolution("bfloat16" if start.config.compute == "bfloat16" else exact)
        self.federation.watch(self.resolution)
        self.module, self.layout, self.loss = start.module, start.layout, start.loss
        self._numbers = start.numbers.train_images, start.numbers.train_labels
        # The held-out examples that the run is evaluated on: all for 0, else a fixed random choice of so many.
        numbers, count = start.numbers, start.config.test_examples
        images, labels = numbers.test_images, numbers.test_labels
        if 0 < count < numbers.held_out:
            images, labels = rows((images, labels), fixed_choice(numbers.held_out, count, 5))
        if numbers.pad is not None:
            order = by_length(images, numbers.pad)
            images, labels = images[order], labels[order]
        self._held_out = fast_layout(images), labels
        self.calibration = start.calibration
        self.rows: list[dict[str, float]] = []
        self.losses: list[float] = []
        self.first: float | None = None
        tunings = [] if tuning is None else [str(tuning)]
        self.hands = {"codes": [code_version()], "devices": [describe(self.dataset.device)], "tunings": tunings}
        self.seconds = 0.0
        self.folder: Path | None = None
        self.saved: int | None = None
        self.x0: Snapshot | None = None
        self.log: RunLog | None = None
        sizes = [len(index) for index in start.chosen]
        span = str(max(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        self.whole = (
            f"a batch is a client's whole data, {span} examples" if max(sizes) < start.config.batch_size else ""
        )
        if isinstance(self.config.method.lr_schedule, OwnFunction):  # what is wrong in a late round is told now
            for r in range(self.config.rounds):
                self.config.method.eta(r)
        # The measures of the user's own by their columns: those that are given, else what the configuration names.
        self.measures: dict[str, Metric] = {}
        targets = self.config.measures
        if metrics is not None:
            require(metrics.keys() == targets.keys(), "metrics", f"be {[*targets]}, as in the run", [*metrics])
        for name, target in targets.items():
            metric = OwnFunction.of(target if metrics is None else metrics[name], "metrics", "(outputs, targets)")
            require(callable(metric), f"metric {name!r}", "be a function of (outputs, targets)", metric)
            self.measures[f"test_{name}"] = metric.function
        if self.measures:  # whatever they fail with is told before the first round
            first, again = self._measured(), self._measured()
            for column in self.measures:
                same = np.array_equal(first[column], again[column], equal_nan=True)
                rule = "be the same for the same outputs and targets: keep nothing between calls, seed what is random"
                require(same, f"metric {column.removeprefix('test_')!r}", rule, (first[column], again[column]))

    @property
    def round(self) -> int:
        """Rounds completed."""
        return self.federation.round

    @property
    def wire_scalars(self) -> float:
        """The bytes that a client sent and got so far, divided by 4, mean over the clients that were there."""
        return self.federation.ledger.bytes / 4 / self.config.present(max(self.round - 1, 0))

    @property
    def model(self) -> nn.Module:
        """A module of its own with the global model's parameters, which gives the losses that evaluations report.

        A BatchNorm has the statistics of the calibration images (``objectives.normalisation``), in eval mode.

        Each reading makes a new module. Take it once before it is used (``model = run.model``): inside a function that
        torch.func differentiates it cannot be made.
        """
        self._bind()
        with calibrated(self.module, self.calibration):
            return handed_back_(copied(self.module))

    @property
    def as_trained(self) -> nn.Module:
        """The same but that a BatchNorm normalises as in training, by its batch."""
        self._bind()
        return handed_back_(copied(self.module))

    @property
    def metrics(self) -> pd.DataFrame:
        """One row an evaluation; columns.toml says what the columns are.

        A run with a task has a first row for round 0, before any training, and calibrated_accuracy:

            argmax_c log p_c(prompt) − log p_c(prompt without content)        in place of    argmax_c log p_c(prompt)

        (Zhao, Wallace, Feng, Klein and Singh, "Calibrate before use", ICML 2021; "N/A" in every column).
        """
        method = self.config.method
        more = [*further(self.config), *(["drift"] if method.drifts else [])]
        more += [] if self.federation.curvature is None else list(self.federation.curvature.names)
        return pd.DataFrame(self.rows, columns=[*METRICS, *more])

    def evaluate(self) -> None:
        """Add a row: how good the model is, and what it took."""
        federation = self.federation
        self.rows.append(
            {
                "round": federation.round,
                **self._measured(),
                "train_loss": float(np.mean(self.losses)) if self.losses else float("nan"),
                "norm": length(federation.x),
                "wire_scalars": self.wire_scalars,
                "wire_bytes": federation.ledger.bytes,
                "up_bytes": federation.ledger.bytes_up,
                "gradient_scalars": federation.ledger.scalars,
                "model_pulls": federation.pulls,
                "seconds": self.seconds,
            }
        )
        if federation.drift is not None:
            self.rows[-1]["drift"] = federation.drift
        if federation.curvature is not None and self.losses:
            self.rows[-1].update(federation.curvature.columns())
        if self.config.evaluates(federation.round):  # else a longer run's next row still needs them
            self.losses.clear()
            if federation.curvature is not None:
                federation.curvature.steps.clear()

    def _measured(self) -> dict[str, float]:
        """What is measured on the held-out examples."""
        self.layout.bind(self.module, self.federation.x.to(self.layout.dtype))
        with calibrated(self.module, self.calibration):
            B = self.config.batch_size
            prior = self.dataset.content_free
            return evaluate(self.module, self.loss, *self._held_out, B, self.measures, content_free=prior)

    def constants(self) -> str:
        """What a user's own module brings beside x, which the run does not keep."""
        users = self.config.model == OWN or is_own(self.config.model)
        return constants(self.module, self.layout.names) if users else ""

    def probe(self) -> float | None:
        """The loss of a batch of a user's own model, in its order, by which another model or loss is noticed."""
        users = self.config.model == OWN or is_own(self.config.model) or self.config.loss != CROSS_ENTROPY
        if not users or self.config.trust:
            return None
        n = self.dataset.N if self.dataset.parts is None else len(self.dataset.parts[0])
        inputs, targets = rows(self._numbers, slice(0, min(n, self.config.batch_size)))  # of the first client
        self._bind()
        with calibrated(self.module, self.calibration):
            return mean_losses(self.module, [self.loss], inputs, targets, row_count(inputs))[0]

    def _bind(self) -> None:
        """Give the module a copy of the global model."""
        self.layout.bind(self.module, self.federation.x.to(self.layout.dtype).clone())

    def __repr__(self) -> str:
        config = self.config
        row = self.rows[-1] if self.rows else {}
        names = [*METRICS[1:4], *further(config)]
        measures = ", ".join(f"{name} {row[name]:.4g}" for name in names if math.isfinite(row.get(name, math.nan)))
        state = f"{plural(self.round, 'round')} of {config.rounds}{measures and ': ' + measures}"
        return f"<Run of {config.method.name} on {self.dataset.name}, {state}{self.remark and '; ' + self.remark}>"

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
        stated = method.traffic(config.cohort, start.layout.d)
        return TrafficCheck(stated, mean_traffic(start.federation(), config.cohort))

    def plot(self, path: Path | str) -> Path:
        """Draw accuracy, where there is one, and losses over the rounds, with the bytes a client sent and got.

        Args:
            path: The file (.png, .pdf, .svg), which is returned; folders above it are made.

        Raises:
            InputError: If the file cannot be written, or has another ending.
        """
        title = f"{self.config.method.name}, {self.config.clients} clients, seed {self.config.seed}"
        return save_picture(curves(self.metrics, self.config.clients, title), Path(path))

    @inference_mode(False)
    def train(
        self,
        *,
        out: Path | None = None,
        on_round: OnRound | None = None,
        on_start: OnStart | None = None,
        hooks: Sequence[Hook] = (),
        any_code: bool = False,
    ) -> pd.DataFrame:
        """Go on to the last round of the configuration; with ``out`` it resumes what is there, by checkpoint or log.

        A first SIGINT or SIGTERM is held back to the end of the round, which is then saved in ``out``; a second one is
        not. Where clients send scalars, the folder's ``LOG_FILE`` has an entry for every round (``protocol.log``).

        Args:
            out: The folder for metrics.csv, config.toml, provenance.json, checkpoint and log; made if missing.
            on_round: A function that is called after every round.
            on_start: A function that is called before the first round if the run has a task, with the row of round 0:
                zero-shot accuracies.
            hooks: Functions of the user's that are called after every round (``runs.hooks``).
            any_code: Whether a run goes on that another version of the code began; its provenance lists every version,
                and every device: records are applied to the same bits on each, losses agree to rounding.

        Returns:
            The table, ``metrics``.

        Raises:
            InputError: If the folder does not fit, or another process writes to it; nothing is half-written.
            KeyboardInterrupt: After a signal, once the round is saved; it says where.
            DivergedError: If scalars or models are no longer finite; the evaluations up to there are in ``out``, and
                the run is its attribute ``run``.
        """
        self.folder, self.saved = out or self.folder, None

        def words() -> str:
            begin = f"interrupted after round {self.round}; "
            if out is None:
                return f"{begin}nothing is kept without --out DIR"
            if self.saved is None:
                return f"{begin}nothing was saved in {out} yet; the same command goes on"
            later = "" if self.saved == self.round else f" after round {self.saved}"
            return f"{begin}saved in {out}{later}; the same command goes on"

        by_records = self.federation.by_records
        # Whether records say all of the run, so that its log can stand for a checkpoint that is gone.
        replays = by_records is not None and not by_records.follows and not self.config.method.drifts
        with nullcontext() if out is None else held(out), telling(words), closing(hooks):
            # First be where the folder is, by its checkpoint or by its log.
            if out is not None and (out / CHECKPOINT_FILE).exists():
                resume_run(self, out, any_code=any_code)
                self.saved = self.round
            elif out is not None and replays and (out / LOG_FILE).exists():
                repeat(self, out, on_round)
            elif out is not None:
                begin(self, out)
            with remembered(self) if out is None else logged(self, out):
                self._train(out, on_round, on_start, hooks)
        return self.metrics

    def _train(
        self, out: Path | None, on_round: OnRound | None, on_start: OnStart | None, hooks: Sequence[Hook]
    ) -> None:
        """Play the rounds that are left, and save now and then."""
        config, rows, by_records = self.config, self.rows, self.federation.by_records
        # When the folder was saved, and how long that took: saving takes 5 % of the time at most.
        last, cost = time.monotonic(), 0.0

        def save() -> None:
            nonlocal last, cost
            if out is not None:
                began = time.monotonic()
                save_run(self, out)
                last = time.monotonic()
                cost = last - began

        if config.task and not rows:
            self.evaluate()
        if config.task and on_start is not None:
            on_start(rows[0])
        with ExitStack() as stack:
            # Half a round cannot be saved, so an interrupt waits for its end where there is a folder to save it in; and
            # where clients are elsewhere, as an engine's own callbacks would swallow it.
            waits = out is not None or (by_records is not None and by_records.remote)
            came = stack.enter_context(postponed()) if waits else []
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
                    save()
                    raise
                except HookError as error:
                    save()
                    where = "the run up to there is the error's attribute run"
                    if out is not None:
                        where = f"the run is saved in {out}"
                    failure = HookError(f"{error.args[0]}; {where}")
                    failure.run = self
                    raise failure from error.__cause__
                if stops:
                    if not rows or rows[-1]["round"] != self.round:
                        self.evaluate()
                    break
                if time.monotonic() - last > CHECKPOINT_SECONDS * max(1.0, cost):
                    save()
            save()
            if self.first is not None:
                method = config.method
                warn_if_risen(self.first, rows[-1]["train_loss"], method, method.eta(self.round - 1))

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
                publish(self, out)
            named = diverged(error, self.round, config.method, out)
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
                saved = read_saved(folder, partial(config_like, self.config))[1]
                require_same(self, saved.config, saved.data, folder, saved.federation.round)
            save_run(self, folder)
            write_log(self, folder / LOG_FILE)

    def load(self, folder: Path | str, *, any_code: bool = True) -> None:
        """Be at the round at which the run was saved in the folder.

        Raises:
            InputError: If the folder holds another run, or a damaged one.
        """
        resume_run(self, Path(folder), any_code=any_code)
        self.folder = Path(folder)


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
        own: ``module``, ``loss``, ``metrics`` and ``PARTS`` of a run whose configuration does not name them.

    Raises:
        InputError: If the folder holds no run, one of other data than are available now, or names code.
    """
    model, loss, metrics = own.get("module"), own.get("loss"), own.get("metrics")
    functions = {name: own.pop(name, None) for name in PARTS}
    objects = {"model": model, "loss": loss, "data": dataset, "metrics": metrics, **functions}
    brought = [name for name, value in objects.items() if value is not None]
    understand = partial(config_from_mapping, lenient=True, trust_code=trust_code, unused=brought)
    _, saved = read_saved(out, understand)
    config = understand(saved.config, f"run {out}")
    require_own(config, f"lab.load({str(out)!r}", model=model, loss=loss, clients=dataset, metrics=metrics, **functions)
    config = config.but(None, **{name: value for name, value in functions.items() if value is not None})
    if not isinstance(dataset, Dataset):
        dataset = Materials(config).dataset() if dataset is None else dataset(config)
    # Clients more than the run has, who have brought data, join; a run that samples every client goes on to do so.
    M = config.clients if dataset.parts is None or config.method.alone else len(dataset.parts)
    if config.clients < M:
        sampled = M if config.sampled == config.clients else config.sampled
        config = joining(config.but(clients=M, sampled=sampled), dataset, out)
    if saved.data != data_then(config.of_first(saved.federation.clients), config, dataset):
        words = "; clients, test and their order must be those of then"
        parts = dataset.parts or ()
        fewer = (first_clients(dataset, M) for M in range(1, len(parts) if config.method.alone else 1))
        if any(first is not None and first.digest == saved.data for first in fewer):
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


@inference_mode(False)  # what is made here is differentiated, wherever the caller stands
def train(
    model: nn.Module,
    loss: LossFunction | None = cross_entropy,
    clients: Sequence[Any] = (),
    *,
    method: Method | str | None = None,
    test: Any = None,
    sampled: int | None = None,
    rounds: int = 100,
    seed: int = 0,
    redraw: int = 1,
    out: Path | str | None = None,
    device: str | None = None,
    progress: bool = False,
    on_round: Hook | Sequence[Hook] | None = None,
    federation: Elsewhere | None = None,
    metrics: Mapping[str, Metric] | None = None,
    **options: Any,
) -> Run:
    """Train any module on the examples of any clients.

    Args:
        model: The model at x_0; it is copied and never changed. d is the number of its parameters that need gradients.
        loss: The loss(outputs, targets) of a batch, a scalar; or loss(model, batch), if the first parameter is called
            ``model``; None for the loss that the model returns of its own when it is given ``labels``.
        clients: The examples of each client, read once: (inputs, targets), a mapping with labels, batches of them in a
            list or a DataLoader, or a torch data set. They may be trees of tensors, arrays and tables.
        method: A method with its options, or its name; None for ``DeComFL()`` with the authors' settings.
        test: The held-out examples, in one of these forms, on which the run is evaluated; None for no evaluation.
        sampled: The number m of clients sampled a round; None for all.
        rounds: The number R of communication rounds.
        seed: The seed of everything random but x_0: batches, clients, directions.
        redraw: How many draws are taken of clients' examples that are others each time that they are read, as by random
            augmentation: an epoch of a client is as long as ever, and epoch e has draw e mod ``redraw``.
        out: A folder in which the run is saved, and from which it resumes.
        device: The device, cpu, cuda, cuda:N or auto; None for the one that the examples are on.
        progress: Whether a progress bar is shown on stderr.
        on_round: A function, or a list of them, that is called after every round with a ``runs.hooks.Round``: round,
            train_loss, test_accuracy and test_loss where the round was evaluated, up_bytes, down_bytes, lr, seconds,
            and copies of model and metrics; ``stop()`` ends the run. ``lab.TensorBoard(folder)`` and
            ``lab.WandB(project)`` are such functions.
        federation: Where the clients are, ``Ray(workers=N)`` for N actors of Ray, or another
            ``federations.carrier.Elsewhere``; None for this process. Records, losses and models are the same to the
            bit.
        metrics: {name: metric} of what else is measured on the held-out examples: metric(outputs, targets), a number,
            is called with all of them at once, on the CPU, and stands as test_NAME in the table, beside the accuracy.
        options: Other options of a run (batch_size, eval_every, engine, trust, ...) or of the method (lr, ...).

    Model, loss and data are tried first (``runs.preparation``), unless ``trust`` is true: f_i(x; ξ) is the loss of a
    batch ξ by a model whose parameters are x, and is cut into smaller forward passes only where it is the mean of its
    parts.

    Returns:
        The run: ``run.model``, ``run.metrics``, ``run.traffic``, ``run.verify()``, ``run.check_traffic()``,
        ``run.save(folder)``, ``run.plot(file)``, ``run.more(rounds)``.

    Raises:
        InputError: If a value breaks a rule; the message names the argument, the rule and the value.
        DivergedError: If scalars or models are no longer finite; the run up to there is its attribute ``run``.
        HookError: If a hook fails; the run is saved, and the error's attribute ``run``.

    Source: [DeComFL, Algorithms 3 and 4] for the default method.
    """
    require("data" not in options, "data", "be given as clients", options.get("data"))
    require(isinstance(model, nn.Module), "model", MODULE, model)
    hooks = as_hooks(on_round)
    dataset = own_dataset(clients, test, whole=BatchLoss.of(loss).form is Form.MODEL, redraw=redraw)
    assert dataset.parts is not None
    M = len(dataset.parts)
    options, wanted = without_auto(options | {"redraw": redraw})
    config = TrainConfig(DeComFL() if method is None else method)
    config = config.but(model=OWN, data=OWN, loss=name_of_loss(loss), rounds=rounds, seed=seed, **options)
    rule = "be {name: function of (outputs, targets)}"
    require(metrics is None or isinstance(metrics, Mapping), "metrics", rule, metrics)
    config = config.but(metrics=",".join(f"{name}={name_of(metric)}" for name, metric in (metrics or {}).items()))
    config = config if config.method.alone else config.but(clients=M, sampled=M if sampled is None else sampled)
    start, tuning = tuned(tried(Prepared.of(config, dataset, model, loss, device=device)), wanted)
    run = Run(start, federation=federation, metrics=metrics or {}, tuning=tuning)
    folder = None if out is None else as_path("out", out)
    with run_bar(config.method.name) if progress else nullcontext() as show:
        run.train(out=folder, on_round=show, hooks=hooks)
    return run


def load(
    folder: Path | str,
    model: nn.Module | None = None,
    loss: LossFunction | None = None,
    clients: Sequence[Any] | None = None,
    *,
    test: Any = None,
    federation: Elsewhere | None = None,
    metrics: Mapping[str, Metric] | None = None,
    trust_code: bool = False,
    **parts: Callable[..., Any],
) -> Run:
    """The run that was saved in a folder: bit for bit what it was, ready to go on (``run.more``).

    Args:
        folder: The folder that ``run.save``, ``out`` or ``decomfl train --out`` wrote.
        model: The model at x_0, where the run trained a module of one's own; its weights matter where clients join.
        loss: The loss, where it is neither torch's nor a function of a module that can be imported.
        clients: The clients' examples, where they brought their own: the same as then, and after them those of clients
            that join in the next round.
        test: The held-out examples: the same as then.
        federation: Where the clients are from now on; see ``train``.
        metrics: The user's own measures by name, where they are no functions of a module that can be imported.
        trust_code: Whether to import the code that the folder's files name as module:function, of a model, data, loss
            or another of these that is not given, or a method: whoever wrote the files can then do here what you can.
        parts: The user's own functions ``aggregation``, ``attack`` and ``lr_schedule``, likewise.

    Raises:
        InputError: If the folder holds no run, its checkpoint is damaged, model or data are others, or it names code.
    """
    return load_run(
        as_path("folder", folder),
        None if clients is None else lambda config: Materials(config).dataset(clients=clients, test=test, loss=loss),
        trust_code=trust_code,
        module=model,
        loss=loss,
        federation=federation,
        metrics=metrics,
        **parts,
    )
