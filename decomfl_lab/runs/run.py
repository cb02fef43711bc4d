"""A run: built, advanced, evaluated, saved, brought back, checked."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, inference_mode, nn

from decomfl_lab.carriers.ray import Ray
from decomfl_lab.checkpoint import read_checkpoint, understood, write_checkpoint
from decomfl_lab.datasets.images import Dataset
from decomfl_lab.datasets.own import first_clients
from decomfl_lab.devices import describe, find_device, use_tf32_
from decomfl_lab.errors import DivergedError, InputError, plural, require, require_int
from decomfl_lab.estimators.resolution import Resolution, span
from decomfl_lab.federations.federation import Federation, Saved
from decomfl_lab.federations.in_process import DeComFLFederation
from decomfl_lab.federations.newcomers import with_newcomers
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.files import held, write_atomically
from decomfl_lab.interrupts import Interrupted, postponed, telling
from decomfl_lab.methods.scalars import Differences, Scalars
from decomfl_lab.methods.traffic import TrafficCheck, mean_traffic
from decomfl_lab.noise import STREAM_VERSION
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.objectives.modules import constants, handed_back_
from decomfl_lab.objectives.normalisation import calibrated
from decomfl_lab.objectives.objective import mean_losses
from decomfl_lab.objectives.trees import row_count, rows, tensors
from decomfl_lab.pictures import save_picture
from decomfl_lab.plugins import OWN, is_own
from decomfl_lab.protocol.aggregation import Mean
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.replicas.replica import Snapshot
from decomfl_lab.runs.building import build_federation, dataset_of, elsewhere, name_of_loss
from decomfl_lab.runs.config import CROSS_ENTROPY, TrainConfig, config_from_mapping, read_config
from decomfl_lab.runs.evaluation import calibration_images, evaluate, held_out
from decomfl_lab.runs.folder import CHECKPOINT_FILE, CONFIG_FILE, LOG_FILE, METRICS, METRICS_FILE, read_rows
from decomfl_lab.runs.joining import data_then, differing, joining
from decomfl_lab.runs.provenance import PROVENANCE_FILE, code_version, read_provenance, write_provenance
from decomfl_lab.runs.told import Progress, Rebuilt, Sent
from decomfl_lab.runs.trial import tried
from decomfl_lab.runs.tuning import tuned

__all__ = [
    "CHECKPOINT_FILE",
    "CONFIG_FILE",
    "LOG_FILE",
    "METRICS",
    "METRICS_FILE",
    "Run",
    "load_run",
    "require_own",
    "train",
]

CHECKPOINT_SECONDS = 20.0
"""The time between two checkpoints is this, times the seconds that one takes if more than 1: 5 % of a run at most."""
PROBED = 1e-3
"""By how much a loss may differ, relative to it, where it is computed by other kernels or on another device."""
RISEN = 10.0
"""A run whose loss ends above so many times that of its first round is warned of."""

logger = logging.getLogger("decomfl_lab")


class Run:
    """A run at some round.

    Attributes:
        config: The configuration of the run; where it was left to be chosen, the learning rate is a number here.
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
        federation: Ray | None = None,
    ) -> None:
        """A run at round 0.

        Args:
            config: The configuration of the run.
            dataset: The data; None for ``dataset_of(config)``.
            module: The model at x_0, which is copied; None for the one that ``config`` names.
            loss: The loss of a batch (``objectives.batch_loss``); None for the one that ``config`` names.
            device: The device, cpu, cuda or auto; None for the one that the data are on.
            federation: Where the clients are; None for this process. It is no part of the configuration, as records and
                losses are the same to the bit.

        Raises:
            InputError: If configuration, data, model and federation do not fit.
        """
        dataset = dataset_of(config) if dataset is None else dataset
        self.dataset = dataset if device is None else dataset.to(find_device(device))
        use_tf32_(config.compute == "tf32")
        self._loss = measure = tried(config, self.dataset, module, loss)
        config, self.tuning = tuned(config, self.dataset, module, measure)
        self.config = config
        self.federation, self._module, self._layout = build_federation(
            config, self.dataset, module=module, loss=measure
        )
        if federation is not None:
            self.federation = elsewhere(self.federation, config, self.dataset, module, measure, federation)
        exact = "float64" if self._layout.dtype == torch.float64 else "float32"
        self.resolution = Resolution("bfloat16" if config.compute == "bfloat16" else exact)
        for client in getattr(self.federation, "clients", [getattr(self.federation, "agent", None)]):
            if hasattr(client, "resolution"):
                client.resolution = self.resolution
        numbers = self.dataset.cast(self._layout.dtype)
        self._numbers = numbers.train_images, numbers.train_labels
        self._held_out = held_out(config, numbers)
        self._calibration = calibration_images(config, numbers)
        self._rows: list[dict[str, float]] = []
        self._losses: list[float] = []
        self._first: float | None = None
        # Every version of the code, and every device, that had a hand in the run; and what chose its learning rate.
        self._hands = {"codes": [code_version()], "devices": [describe(self.dataset.device)]}
        self._hands["tunings"] = [] if self.tuning is None else [str(self.tuning)]
        self.seconds = 0.0
        self.folder: Path | None = None
        self._saved_round: int | None = None
        self._start: Snapshot | None = None  # x_0, which clients need who join a saved run

    def __repr__(self) -> str:
        config, row = self.config, self._rows[-1] if self._rows else {}
        found = ", ".join(f"{name} {row[name]:.4g}" for name in METRICS[1:4] if np.isfinite(row.get(name, np.nan)))
        done = f"{plural(self.round, 'round')} of {config.rounds}"
        more = "".join(f"; {words}" for words in [self.remark] if words)
        return f"<Run of {config.method.name} on {self.dataset.name}, {done}{found and ': ' + found}{more}>"

    @property
    def remark(self) -> str:
        """What is to be said of f_i where it was not tried, or is no mean over examples; else empty."""
        if self.config.trust:
            return "model, loss and data were taken on trust"
        whole = "the loss is no mean over examples, so no batch is cut, and f_i is the mean over batches"
        return "" if self._loss.additive else whole

    @property
    def round(self) -> int:
        """Rounds completed."""
        return self.federation.round

    @property
    def model(self) -> nn.Module:
        """A module of its own with the global model's parameters, which gives the losses that evaluations report.

        A BatchNorm has the statistics of the calibration images (``objectives.normalisation``), in eval mode.
        """
        self._bind()
        with calibrated(self._module, self._calibration):
            return handed_back_(copy.deepcopy(self._module))

    @property
    def as_trained(self) -> nn.Module:
        """The same but that a BatchNorm normalises as in training, by its batch."""
        self._bind()
        return handed_back_(copy.deepcopy(self._module))

    @property
    def metrics(self) -> pd.DataFrame:
        """One row an evaluation, see ``train``."""
        method = self.config.method
        more = ["calibrated_accuracy"] if self.config.task else []
        more += ["drift"] if getattr(method, "revert", "") == "sync" else []
        more += [] if self.federation.curvature is None else list(self.federation.curvature.names)
        return pd.DataFrame(self._rows, columns=[*METRICS, *more])

    @property
    def traffic(self) -> Sent:
        """What was sent so far."""
        ledger = self.federation.ledger
        up, d = ledger.bytes_up, self.federation.x.numel()
        return Sent(self.config.clients, self.round, up, ledger.bytes - up, 4 * d)

    def verify(self) -> Rebuilt:
        """Bring a copy of every client's model up to date by the records it missed, and compare it with the global one.

        Bit for bit, optimizer state included. Nothing is sent and no client moves.
        """
        if not isinstance(self.federation, DeComFLFederation):
            return Rebuilt(0, 0)
        expected = self.federation.observer.digest()
        digests = list(self.federation.rebuilt().values())
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
        method = self.config.method
        if isinstance(method, Scalars):
            method = replace(method, aggregation=Mean())  # others need more than one reply, and send the same
        small = min(4, self.config.batch_size)
        config = self.config.but(method, clients=M, sampled=1, joined={}, rounds=4, batch_size=small)
        dataset = replace(self.dataset, parts=parts)
        federation, _, layout = build_federation(config, dataset, module=self._module, loss=self._loss)
        said = config.method.traffic(config.cohort, layout.d)
        return TrafficCheck(said, mean_traffic(federation, config.cohort))

    def plot(self, path: Path | str) -> Path:
        """Draw accuracy, where there is one, and losses over the rounds, with the bytes a client sent and got.

        Args:
            path: The file (.png, .pdf, .svg), which is returned; folders above it are made.

        Raises:
            InputError: If the file cannot be written, or has another ending.
        """
        from matplotlib.figure import Figure

        rows = self.metrics
        has_accuracy = bool(rows.test_accuracy.notna().any())
        figure = Figure(figsize=(9 if has_accuracy else 5, 3.6), dpi=150, layout="constrained")
        axes = np.atleast_1d(figure.subplots(1, 1 + has_accuracy))
        # Bytes a client and round, from which the upper axes are made.
        wire = rows.wire_bytes.max() / self.config.clients / max(1, rows["round"].max())
        for own, columns in zip(
            axes, [["test_accuracy"], ["train_loss", "test_loss"]][1 - has_accuracy :], strict=True
        ):
            for column in columns:
                own.plot(rows["round"], rows[column], marker="o", markersize=3, label=column.replace("_", " "))
            own.set(xlabel="communication round", ylabel=columns[0].split("_")[-1])
            own.grid(alpha=0.3)
            own.legend(frameon=False)
            if wire:
                above = own.secondary_xaxis("top", functions=(lambda r: r * wire / 1e3, lambda b: b * 1e3 / wire))
                above.set_xlabel("kB a client, both ways")
        figure.suptitle(f"{self.config.method.name}, {self.config.clients} clients, seed {self.config.seed}")
        return save_picture(figure, Path(path))

    @inference_mode(False)
    def train(
        self,
        *,
        out: Path | None = None,
        on_round: Callable[[Progress], None] | None = None,
        on_start: Callable[[dict[str, float]], None] | None = None,
        any_code: bool = False,
    ) -> None:
        """Go on to the last round of the configuration; see ``train``."""
        self.folder = out or self.folder
        with nullcontext() if out is None else held(out), telling(lambda: self._interrupted(out)):
            if out is not None and (out / CHECKPOINT_FILE).exists():
                with understood(out / CHECKPOINT_FILE):
                    self._resume(out, any_code=any_code)
            elif out is not None and self._rests_on_log(out):
                with understood(out / METRICS_FILE):
                    self._repeat(out, on_round)
            with nullcontext() if out is None else self._logged(out):
                self._train(out, on_round, on_start)

    @contextmanager
    def _logged(self, out: Path) -> Iterator[None]:
        """Write the folder's log inside, where records say all; later rounds than the present are cut from it."""
        federation, path = self.federation, out / LOG_FILE
        if not isinstance(federation, DeComFLFederation):
            yield
        elif self.round and not path.exists() and not federation.follows:
            logger.info(f"no {path}: it would have to begin at round 0, so the run goes on without one")
            yield
        else:
            goes_on = bool(self.round) or (federation.follows and path.exists())
            end = None if federation.follows else self.round
            with RunLog.open(path, end=end) if goes_on else RunLog.create(path, self._identity()) as log:
                self._require_same(log.header, path, len(log))
                if log.header["config"].get("clients", self.config.clients) < self.config.clients:
                    log.rewrite(path, self._header_with_newcomers(log.header))
                if len(log) < self.round:
                    remedy = "" if federation.follows else ", or remove it to go on without one"
                    raise InputError(
                        f"log {path} must have the {self.round} rounds of the run, got {len(log)}: put a copy of it "
                        f"back{remedy}"
                    )
                federation.log_to(log)
                try:
                    yield
                finally:
                    federation.log_to(None)

    def _identity(self) -> dict[str, Any]:
        """What the log says of a run at round 0: enough to have its model again without the data."""
        federation, inputs = self.federation, next(tensors(self.dataset.train_images))
        assert isinstance(federation, DeComFLFederation)
        return {
            "config": self.config.to_dict(),
            "data": self.dataset.digest,
            "source": self.dataset.source,
            "shape": list(inputs.shape[1:]),
            "dtype": str(inputs.dtype).removeprefix("torch."),
            "classes": self.dataset.classes,
            "d": federation.x.numel(),
            "x0": federation.observer.digest(),
            "run_seed": federation.server.run_seed,
            "stream": STREAM_VERSION,
            "code": code_version(),
        }

    def _header_with_newcomers(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """What a log says of the run from now on, where it did not know of clients that join."""
        config = self.config.but(rounds=header["config"]["rounds"])
        data = {"data": self.dataset.digest, "source": self.dataset.source, "classes": self.dataset.classes}
        return {**header, "config": config.to_dict(), **data}

    def _train(
        self,
        out: Path | None,
        on_round: Callable[[Progress], None] | None,
        on_start: Callable[[dict[str, float]], None] | None,
    ) -> None:
        federation, config, rows = self.federation, self.config, self._rows
        self._saved_round = federation.round if out is not None and (out / CHECKPOINT_FILE).exists() else None
        if config.task and not rows:
            self._evaluate()
        if config.task and on_start is not None:
            on_start(rows[0])
        with ExitStack() as stack:
            # Half a round cannot be saved, so an interrupt waits for its end where there is a folder to save it in; and
            # where clients are elsewhere, as an engine's own callbacks would swallow it.
            waits = out is not None or isinstance(federation, RemoteFederation)
            came = stack.enter_context(postponed()) if waits else []
            last_save, saving = time.monotonic(), 0.0
            if federation.round < config.rounds:  # a run that ended here before has a row that a longer one has not
                rows[:] = [row for row in rows if row["round"] % config.eval_every == 0]
            while federation.round < config.rounds:
                evaluates = (federation.round + 1) % config.eval_every == 0 or federation.round + 1 == config.rounds
                if isinstance(federation, DeComFLFederation):
                    federation.digest_next = evaluates
                started = time.monotonic()
                try:
                    loss = federation.advance()
                    if evaluates and not federation.x.isfinite().all():
                        raise DivergedError("model")
                except DivergedError as error:
                    if out is not None:  # no checkpoint: there is nothing to go on with
                        self._publish(out)
                    raise self._diverged(error, out) from error
                self.seconds += time.monotonic() - started
                self._look_at_scalars()
                self._losses.append(loss)
                self._first = loss if self._first is None else self._first
                if evaluates:
                    self._evaluate()
                try:
                    if on_round is not None:
                        row = rows[-1] if rows else {}
                        accuracy, test_loss = (row.get(name, float("nan")) for name in ("test_accuracy", "test_loss"))
                        scalars = federation.ledger.scalars_per_client
                        on_round(Progress(federation.round, config.rounds, loss, accuracy, scalars, test_loss))
                    if came:
                        raise Interrupted(number=came[0])
                except KeyboardInterrupt:
                    self._save(out)
                    raise
                if (began := time.monotonic()) - last_save > CHECKPOINT_SECONDS * max(1.0, saving):
                    self._save(out)
                    last_save = time.monotonic()
                    saving = last_save - began
            self._save(out)
            if self._first is not None and (last := rows[-1]["train_loss"]) > RISEN * abs(self._first):
                lr = config.method.eta(self.round - 1)
                logger.warning(
                    f"the training loss ended at {last:.3g}, far above the {self._first:.3g} of the first round, at "
                    f"lr = {lr:g}; try lr = {lr / 10:g}"
                )

    def _look_at_scalars(self) -> None:
        """Warn where the scalars of the first rounds are rounding; clients in this process have shown theirs."""
        federation, method = self.federation, self.config.method
        if isinstance(federation, RemoteFederation) and isinstance(method, Differences):
            distance = span(method.measured_by(), method.mu)
            for i, reply in federation.coordinator.replies.items():
                if reply.scalars.dtype == np.float32:
                    self.resolution.note(reply.scalars, federation.coordinator.losses[i], distance, method.mu)
        self.resolution.tell()

    def more(self, rounds: int, **options: Any) -> Run:
        """Train so many rounds more, and return the run; options as ``train``'s.

        A run that was trained with ``out``, or loaded, is saved in its folder again, unless ``out`` says otherwise.
        """
        self.config = self.config.but(rounds=self.round + require_int("rounds", rounds, 1))
        self.train(**{"out": self.folder} | options)
        return self

    def save(self, folder: Path | str) -> None:
        """Write metrics.csv, config.toml, provenance.json and a checkpoint with a checksum, as ``out`` of ``train``.

        Raises:
            InputError: If the folder holds another run.
        """
        folder = Path(folder)
        with held(folder):
            if (folder / CHECKPOINT_FILE).exists():
                saved = _read(folder)[1]
                self._require_same(saved, folder, saved["federation"]["round"])
            self._save(folder)

    def load(self, folder: Path | str, *, any_code: bool = True) -> None:
        """Be at the round at which the run was saved in the folder.

        Raises:
            InputError: If the folder holds another run, or a damaged one.
        """
        with understood(Path(folder) / CHECKPOINT_FILE):
            self._resume(Path(folder), any_code=any_code)
        self.folder = Path(folder)

    def _resume(self, folder: Path, *, any_code: bool) -> None:
        tensors, saved = _read(folder)
        done = saved["federation"]["round"]
        self._require_same(saved, folder, done)
        self._take_over(folder, saved, done, any_code=any_code)
        then, now = tensors["x"].numel(), self.federation.x.numel()
        require(then == now, "model", f"have d = {then}, as that of the run in {folder}", now)
        kept = saved.get("constants", self._constants())  # older checkpoints have none
        rule = f"have the frozen parameters, buffers and padding rows of the run in {folder}"
        require(kept == self._constants(), "model", rule, f"others ({self._constants()} for {kept})")
        probe = saved.get("probe")
        state = tensors, saved["federation"]
        if saved["config"]["clients"] < self.config.clients:
            state = self._joined(folder, state)
        self.federation.load(state)
        self._rows[:], self._losses[:], self.seconds = saved["rows"], saved["losses"], saved["seconds"]
        self._first = saved.get("first")
        if probe is not None and (now_ := self._probe()) is not None:
            same = math.isclose(probe, now_, rel_tol=PROBED, abs_tol=1e-6)
            require(same, "model and loss", f"give the loss {probe:.6g} that they gave in {folder}", now_)

    def _joined(self, folder: Path, state: Saved) -> Saved:
        """A saved state of fewer clients, with all that those need who join."""
        federation, path = self.federation, folder / LOG_FILE
        if not isinstance(federation, DeComFLFederation) or federation.follows:
            return state  # they are sent a model, or the records of the log that is gone on with
        if self._start is None:
            require(self.round == 0, "run", f"be at round 0 to take clients more than {folder} has", self.round)
            self._start = federation.observer.snapshot()

        def before(r: int) -> tuple[RoundRecord, ...] | None:
            if not path.exists():
                rule = f"be there, or the server keep a model: clients that join need the records before round {r}"
                require(federation.server.replica is not None, f"log {path}", rule, "none")
                return None
            with RunLog.open(path, write=False) as log:
                require(len(log) >= r, f"log {path}", f"have the rounds before {r}", len(log))
                return log.records(0, r)

        x0 = None
        if path.exists():
            with RunLog.open(path, end=0, write=False) as log:
                self._require_same(log.header, path, state[1]["round"])
                x0 = log.header.get("x0")
        return with_newcomers(federation, state, self._start, x0, before)

    def _take_over(self, folder: Path, facts: Mapping[str, Any], done: int, *, any_code: bool) -> None:
        """Have the hands of the run in the folder, at round ``done``; InputError if it may not go on here."""
        self.resolution.over = done > 0  # the first rounds have been looked at then
        for name, own in self._hands.items():
            earlier = facts.get(name, [facts["code"]] if name == "codes" else [])
            self._hands[name] = list(dict.fromkeys([*earlier, *own]))
        if facts["code"] != code_version() and not any_code:
            raise InputError(f"out must hold a run of this code ({code_version()}), got one of {facts['code']}")
        least = f"be at least the {done} of the run in {folder}"
        require(self.config.rounds >= done, "rounds", least, self.config.rounds)

    def _rests_on_log(self, folder: Path) -> bool:
        """Whether the folder has all of a run but its checkpoint, and records from which that can be had again."""
        records_say_all = isinstance(self.federation, DeComFLFederation) and not self.federation.follows
        drifts = getattr(self.config.method, "revert", "") == "sync"
        kept = all((folder / name).exists() for name in (LOG_FILE, METRICS_FILE, PROVENANCE_FILE))
        return kept and records_say_all and not drifts

    def _repeat(self, folder: Path, on_round: Callable[[Progress], None] | None) -> None:
        """Be at the last evaluation in the folder, whose checkpoint is gone, by its log.

        The rounds after it are computed again, as train_loss is the mean of all losses between two evaluations. Any
        version of the code may go on, as it is compared with the digests that it has the bits of then.
        """
        federation, path = self.federation, folder / LOG_FILE
        assert isinstance(federation, DeComFLFederation)
        with RunLog.open(path, write=False) as log:
            self._require_same(log.header, folder, len(log))
            self._take_over(folder, {"devices": []} | read_provenance(folder), len(log), any_code=True)
            x0, stream = federation.observer.digest(), log.header.get("stream")
            require(stream == STREAM_VERSION, f"stream of {path}", f"be {STREAM_VERSION}", stream)
            require(log.header.get("x0") == x0, f"x_0 of {path}", f"have the digest {x0}", log.header.get("x0"))
            table = read_rows(folder / METRICS_FILE)
            rows = [row for row in table if row["round"] % self.config.eval_every == 0 and row["round"] <= len(log)]
            last = rows[-1] if rows else {"round": 0}
            if not (end := int(last["round"])):
                return
            logger.info(
                f"no {folder / CHECKPOINT_FILE}: rounds up to {end} are those of {path}, and not measured again"
            )
            for entry in log.entries(0, end):
                federation.repeat(entry)
                found = federation.observer.digest() if entry.digest else entry.digest
                what = f"model after round {entry.record.round} of {path}"
                require(found == entry.digest, what, f"have the digest {entry.digest}", found)
                if on_round is not None:
                    scalars = federation.ledger.scalars_per_client
                    on_round(Progress(self.round, self.config.rounds, float("nan"), last["test_accuracy"], scalars))
        sent, wire = federation.ledger.bytes, last["wire_bytes"]
        require(wire == sent, f"wire_bytes of round {end} in {folder / METRICS_FILE}", f"be {sent}, as in {path}", wire)
        self._rows[:], self.seconds = rows, last["seconds"]

    def _require_same(self, saved: Mapping[str, Any], folder: Path, done: int) -> None:
        """InputError that names what differs where a saved run is not this one, in more than its length.

        Clients may have joined too, after the rounds that are done.
        """
        earlier = config_from_mapping(saved["config"], "the saved run", lenient=True).but(rounds=self.config.rounds)
        others = differing(earlier, self.config, done)
        if saved["data"] != data_then(earlier, self.config, self.dataset):
            others.append("the examples, or their order" if self.config.data == OWN else "the examples")
        if others:
            what = f"hold the same run (only rounds may differ), got {folder}, which differs in {', '.join(others)}"
            join = "; clients more join by lab.load(folder, ..., clients=...)"
            hint = join * (self.config.clients > earlier.clients and self.config.joined == earlier.joined)
            raise InputError(f"out must be empty or {what}{hint}")

    def _save(self, out: Path | None) -> None:
        if out is not None:
            tensors, values = self.federation.save()
            state = {"federation": values, "rows": self._rows, "losses": self._losses, "seconds": self.seconds}
            state["first"], state["constants"], state["probe"] = self._first, self._constants(), self._probe()
            state |= {"config": self.config.to_dict(), "data": self.dataset.digest, "code": code_version()}
            if isinstance(self.federation, DeComFLFederation) and self.federation.log is not None:
                self.federation.log.sync()  # no checkpoint is ahead of its log
            write_checkpoint(out / CHECKPOINT_FILE, tensors, state | self._hands)
            self._publish(out)
            self._saved_round = self.round

    def _constants(self) -> str:
        """What a user's own module brings beside x, which the run does not keep."""
        own = self.config.model == OWN or is_own(self.config.model)
        return constants(self._module, self._layout.names) if own else ""

    def _probe(self) -> float | None:
        """The loss of a batch of a user's own model, in its order, by which another model or loss is noticed."""
        own = self.config.model == OWN or is_own(self.config.model) or self.config.loss != CROSS_ENTROPY
        if not own or self.config.trust:
            return None
        n = self.dataset.N if self.dataset.parts is None else len(self.dataset.parts[0])
        inputs, targets = rows(self._numbers, slice(0, min(n, self.config.batch_size)))  # of the first client
        self._bind()
        with calibrated(self._module, self._calibration):
            return mean_losses(self._module, [self._loss], inputs, targets, row_count(inputs))[0]

    def _publish(self, folder: Path) -> None:
        write_atomically(folder / CONFIG_FILE, self.config.to_toml())
        write_provenance(folder, self.dataset, **self._hands)
        write_atomically(folder / METRICS_FILE, self.metrics.to_csv(index=False))

    def _bind(self) -> None:
        self._layout.bind(self._module, self.federation.x.to(self._layout.dtype).clone())

    def _evaluate(self) -> None:
        federation = self.federation
        self._layout.bind(self._module, federation.x.to(self._layout.dtype))
        with calibrated(self._module, self._calibration):
            found = evaluate(self._module, self._loss, self.dataset, *self._held_out, self.config.batch_size)
        self._rows.append(
            {
                "round": federation.round,
                **found,
                "train_loss": float(np.mean(self._losses)) if self._losses else float("nan"),
                "wire_scalars": federation.ledger.scalars_per_client,
                "wire_bytes": federation.ledger.bytes,
                "up_bytes": federation.ledger.bytes_up,
                "gradient_scalars": federation.ledger.scalars,
                "model_pulls": federation.pulls,
                "seconds": self.seconds,
            }
        )
        if federation.drift is not None:
            self._rows[-1]["drift"] = federation.drift
        if federation.curvature is not None and self._losses:
            self._rows[-1].update(federation.curvature.columns())
        if federation.round % self.config.eval_every == 0:  # else a longer run's next row still needs them
            self._losses.clear()
            if federation.curvature is not None:
                federation.curvature.clear()

    def _diverged(self, error: DivergedError, out: Path | None) -> DivergedError:
        """The error with the round, the learning rate, what to try, and where the rounds before it are."""
        lr = self.config.method.eta(self.round)
        kept = "" if out is None else f"; the rounds before are in {out / METRICS_FILE}"
        named = DivergedError(error.args[0], f"in round {self.round} at lr = {lr:g}; try lr = {lr / 10:g}{kept}")
        named.run = self
        return named

    def _interrupted(self, out: Path | None) -> str:
        if out is None:
            return f"interrupted after round {self.round}; nothing is kept without --out DIR"
        saved = self._saved_round
        if saved is None:
            where = f"nothing was saved in {out} yet"
        else:
            where = f"saved in {out}" + ("" if saved == self.round else f" after round {saved}")
        return f"interrupted after round {self.round}; {where}; the same command goes on"


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
        device: The device, cpu, cuda or auto; None for the one that the data are on. A run may go on on another one,
            and its provenance lists all: records are applied to the same bits, losses agree to rounding.

    Returns:
        One row an evaluation, columns ``METRICS``: round (completed), test_accuracy, test_loss, train_loss (mean
        over the rounds since the last evaluation), wire_scalars (bytes / 4 a client, mean over clients), wire_bytes
        (all) and those of them that went up, gradient_scalars (all), model_pulls (rebuilds replaced by sending the
        model), seconds (training time so far); with revert sync also drift, the largest ‖x_i − x‖∞ / ‖x‖∞ of a
        client's rebuilt model so far; with log_kappa also ``CurvatureLog.names`` of the rounds since the last
        evaluation. A run with a task has a first row for round 0, before any training, and calibrated_accuracy:

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


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The checkpoint in a folder; InputError if there is none, or its configuration is not that of config.toml."""
    file, written = folder / CHECKPOINT_FILE, folder / CONFIG_FILE
    require(file.exists(), "folder", "be one in which a run was saved", str(folder))
    tensors, saved = read_checkpoint(file)
    with understood(file):
        ours = config_from_mapping(saved["config"], f"run {folder}", lenient=True)
    if written.exists():
        theirs = config_from_mapping(read_config(written), str(written), lenient=True)
        a, b = theirs.to_dict(), ours.to_dict()
        others = [name for name in differing(theirs, ours) if name != "rounds"]
        if others:
            found = ", ".join(f"{name} = {a.get(name)!r} for {b.get(name)!r}" for name in others)
            raise InputError(
                f"{written} must be as the run left it (only rounds may differ), got {found}: put that back, or remove "
                "the file, which the checkpoint does not need; another run needs another folder"
            )
    return tensors, saved


def require_own(config: TrainConfig, call: str, **given: Any) -> None:
    """InputError that shows the call to write where what is given lacks something that the run's user brought.

    Args:
        config: The run.
        call: The call up to the arguments in question, as ``lab.load('runs/a'``.
        given: The arguments in question, of model, loss and clients; None for what is not given.
    """
    kept = {"model": config.model, "loss": config.loss, "clients": config.data}
    wanted = [name for name in kept if name in given and kept[name].split(" ")[0] == OWN]
    if lacking := [name for name in wanted if given[name] is None]:
        again = "".join(f", {name}={name}" for name in wanted) + ", test=test" * ("clients" in wanted)
        raise InputError(
            f"{' and '.join(lacking)} must be given again, as {call}{again}): the run trained its user's own, got None"
        )


def _with_newcomers(config: TrainConfig, dataset: Dataset, out: Path) -> TrainConfig:
    """The saved run with the clients more that have brought data; a run that samples every client goes on to do so."""
    M = config.clients if dataset.parts is None or config.method.alone else len(dataset.parts)
    if config.clients >= M:
        return config
    sampled = M if config.sampled == config.clients else config.sampled
    return joining(config.but(clients=M, sampled=sampled), dataset, out)


def load_run(out: Path, dataset: Dataset | None = None, **own: Any) -> Run:
    """The run that ``train`` left in the folder ``out``.

    All of it is the checkpoint's, under its checksum; config.toml is for people and for ``--config``, and is refused
    where it says something else than the checkpoint does.

    Args:
        out: The folder.
        dataset: The run's data where they are loaded already, or are its user's own. Clients more than the run has
            join in its next round.
        own: ``module`` and ``loss`` of a run whose configuration does not name them.

    Raises:
        InputError: If the folder holds no run, or one of other data than are at hand now.
    """
    _, saved = _read(out)
    config = config_from_mapping(saved.get("config", {}), f"run {out}", lenient=True)
    given = {"model": own.get("module"), "loss": own.get("loss"), "clients": dataset}
    require_own(config, f"lab.load({str(out)!r}", **given)
    dataset = dataset_of(config) if dataset is None else dataset
    config = _with_newcomers(config, dataset, out)
    if saved["data"] != data_then(config.of_first(saved["config"]["clients"]), config, dataset):
        words = "; clients, test and their order must be those of then"
        parts = dataset.parts or ()
        fewer = (first_clients(dataset, M) for M in range(1, len(parts) if config.method.alone else 1))
        if any(first is not None and first.digest == saved["data"] for first in fewer):
            raise InputError(f"clients must be those of then for {config.method.name}, which is one agent, got more")
        more = words if config.data == OWN else ""
        raise InputError(f"run {out} must be of the data at hand ({dataset.source}), got one of other data{more}")
    if own.get("loss") is not None and (name := name_of_loss(own["loss"])) != config.loss:
        same = config.loss.startswith(OWN) and name.split(":")[-1] == config.loss.split(" ")[-1]  # was in __main__ then
        require(same, "loss", f"be that of run {out}, which is {config.loss}", name)
    run = Run(config, dataset=dataset, **own)
    run.load(out)
    return run
