"""What a part needs computed: works, each kept in one sealed file, shown and gone on with."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import torch

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.errors import DivergedError, InputError
from decomfl_lab.interrupts import Interrupted, postponed, telling
from decomfl_lab.language.opt import SIZES, Size
from decomfl_lab.processes import POLL_SECONDS, Call, Processes, tell
from decomfl_lab.progress import Progress, RunBars, left_words
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.folder import METRICS_FILE, looked_at
from decomfl_lab.runs.preparation import Materials
from decomfl_lab.runs.run import Run
from decomfl_lab.storage.files import HeldError, file_digest, held, read_sealed, write_sealed
from decomfl_lab.storage.provenance import code_version, read_provenance
from paper_repro.workflow.data import digest_of, tokens_of

Result = tuple[pd.DataFrame, dict[str, Any]]  # (rows, provenance): of a training run a row an evaluation
Report = Callable[[Progress], None]  # what shows how far a work is
SO_FAR: Final = "so_far"  # the key in the provenance of an unfinished run that says how many of its rounds there are
RESULT_FILE: Final = "result"
PATIENCE_SECONDS: Final = 10.0  # how long works may save what they have after a signal
SETTLED_SECONDS: Final = 20.0  # how long a pace is watched before the time left is told from it
ALL: Final = "all runs"  # the bar that sums up the others, and stays


@dataclass(frozen=True, kw_only=True)
class Work:
    """A function that makes rows, in a process and a folder of its own."""

    title: str  # the name of its progress bar
    # a function of a module, of the folder, of what shows progress and of the arguments: to rows and provenance. It
    # goes on with what is in the folder
    function: Callable[..., Result]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    # columns that are added to its rows, and tell them from those of other work
    labels: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[Work, ...] = ()  # work that has to be done before; their folders are beside this one's
    data: Callable[[], str] = str  # the digest of the data that it reads, which need not be here to list it
    layers: tuple[str, ...] = ()  # packages beside decomfl_lab whose code it runs
    cost: float = 1e5  # forward passes, roughly, in examples of the MNIST CNN (0.1 ms each): the dearest go first
    urgency: int = 0  # where time is limited, works of a smaller number go first
    device: str | None = None  # the device, an argument of the function; None where it computes on the CPU alone

    def key(self) -> str:
        """The name of its folder: what it is of, and the code that computes it."""
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        what = _digest(name, self.arguments, self.data(), [need.key() for need in self.needs])
        code = [code_version()]
        for name in (*self.layers, self.function.__module__):
            path = Path(str(importlib.import_module(name).__file__))
            code.append(code_version(path.parent) if path.name == "__init__.py" else file_digest(path))
        return f"{self.function.__name__.strip('_')}-{what}-{_digest(code)}"

    def run(self, folder: Path, report: Report) -> Result:
        """Compute rows and provenance, going on with what is in the folder."""
        placed = {} if self.device is None else {"device": self.device}
        return self.function(folder, report, **self.arguments, **placed)

    def result(self, folder: Path) -> Result | None:
        """Its rows, with labels, and provenance; None where it has not ended."""
        kept = read_result(folder)
        return kept and (kept[0].assign(**self.labels), kept[1])

    def among(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Those of the rows, of much work, that are of this; none where it has no labels."""
        return alike(rows, self.labels) if self.labels else rows[:0]


@dataclass(frozen=True)
class Job:
    """One training run of a figure: it can be shown before its end, and taken up by another version of the code."""

    config: TrainConfig  # the configuration of the run; ``model`` may name a size that is pretrained before
    labels: Mapping[str, Any]  # the columns to add to its rows (reading, panel, series, ...)
    title: str  # the title of its progress bar
    pretraining: Work | None = None  # how the model is made that it begins with; None for a model that there is
    urgency: int = field(default=0, kw_only=True)  # a number; where time is limited, runs of a smaller one go first
    # the device; it is no part of the key, as losses agree to rounding and all else to the bit
    device: str = field(default="cpu", kw_only=True)
    # the rounds of the run of which this is the beginning; 0 for a run that is whole itself
    whole: int = field(default=0, kw_only=True)

    @property
    def needs(self) -> tuple[Work, ...]:
        """See ``Work``."""
        return () if self.pretraining is None else (self.pretraining,)

    def beginning(self, share: float) -> Job:
        """The first rounds of this run, a ``share`` of them but at least up to the second evaluation: the same bits."""
        config = self.config
        rounds = min(config.rounds, max(math.ceil(share * config.rounds), 2 * config.eval_every))
        return replace(self, config=config.but(rounds=rounds), whole=config.rounds if rounds < config.rounds else 0)

    def stem(self) -> str:
        """The beginning of its key, of all versions of the code: configuration, seed and data."""
        data = " ".join([digest_of(self.config), *(need.key() for need in self.needs)])
        return "run-" + self.config.fingerprint(data=data, code="")

    def key(self) -> str:
        """See ``Work``."""
        return f"{self.stem()}-{_digest(code_version())}"

    @property
    def cost(self) -> float:
        """See ``Work``."""
        config, options = self.config, self.config.method.plain()
        # Examples that pass through the model in the whole run, on m clients a round.
        # A forward pass of an example, in passes of the MNIST CNN.
        pass_cost = _COSTS.get(config.model, 1.0)
        if config.task:
            pass_cost = tokens_cost(config.max_length or 31, SIZES.get(config.model, SIZES["opt-125m"]))
        steps = config.rounds * options.get("local_steps", 1) * config.sampled * config.batch_size * pass_cost
        if config.method.gradients:
            return float(3 * steps)  # a forward and a backward pass, which is worth two
        # The mean of P over the rounds. A central difference takes two losses a direction, a forward one takes one.
        P = Schedule(options["perturbations"], options.get("perturbation_schedule", {}))
        directions = sum(P(r) for r in range(config.rounds)) / config.rounds
        return float(directions * (2 if options["estimator"] == "central" else 1) * steps)

    def placed(self, root: Path) -> Job:
        """The job with the folder of its model, among those of works in ``root``, as ``config.model``."""
        models = [str(root / need.key()) for need in self.needs] or [self.config.model]
        return replace(self, config=self.config.but(model=models[0]))

    def dataset(self) -> Dataset:
        """Its data; of a task the token numbers, which runs of the same model and process share."""
        config = self.config
        if not config.task:
            return Materials(config).dataset()
        return tokens_of(config.model, config.task, config.max_length, config.cb_two_way)

    def run(self, folder: Path, report: Report) -> Result:
        """See ``Work``; a run that diverges has a result too: the rows up to there."""
        job = self.placed(folder.parent)
        diverged = False
        try:
            Run(job.config, dataset=job.dataset(), device=self.device).train(out=folder, on_round=report, any_code=True)
        except DivergedError:
            diverged = True
        rows = pd.read_csv(folder / METRICS_FILE)
        if rows.empty:
            # It diverged before its first evaluation: a row of round 0, of which no accuracy and no loss is known.
            unknown = ("test_accuracy", "test_loss", "train_loss")
            rows = pd.DataFrame({name: [math.nan if name in unknown else 0] for name in rows})
        return rows.assign(diverged=diverged), read_provenance(folder)

    def result(self, folder: Path) -> Result | None:
        """See ``Work``: evaluations with labels; up to the last one where the run has not ended, with ``SO_FAR``."""
        if (kept := read_result(folder)) is not None:
            return self._labelled(kept[0], finished=True), kept[1]
        rows = pd.DataFrame(looked_at(folder).rows) if folder.exists() else pd.DataFrame()
        if rows.empty:
            return None
        facts = {**read_provenance(folder), SO_FAR: so_far_words(rows, self.config.rounds)}
        return self._labelled(rows.assign(diverged=False), finished=False), facts

    def _labelled(self, rows: pd.DataFrame, *, finished: bool) -> pd.DataFrame:
        """The rows with labels, seed, rounds ``planned`` and held-out ``examples`` (a task's are in its labels)."""
        columns = {**self._marks, "finished": finished and not self.whole}
        if not self.config.task:
            held_out = len(self.dataset().test_labels)
            columns["examples"] = min(self.config.test_examples or held_out, held_out)
        return rows.assign(**columns)

    @property
    def _marks(self) -> dict[str, Any]:
        """The columns by which its rows are told from those of other runs."""
        return {**self.labels, "seed": self.config.seed, "planned": self.whole or self.config.rounds}

    def among(self, rows: pd.DataFrame) -> pd.DataFrame:
        """See ``Work``: those with its labels, seed and rounds ``planned``."""
        return alike(rows, self._marks)

    def begun(self, root: Path) -> Path:
        """The folder in which any version of the code came furthest with it; its own where there is none."""

        def far(folder: Path) -> tuple[bool, int]:  # (whether it has ended, its rounds)
            return (folder / RESULT_FILE).exists(), looked_at(folder).round

        return max(root.glob(f"{self.stem()}-*"), key=far, default=root / self.key())


_COSTS: Final = {"cnn-fashion": 6.0}  # what a forward pass takes, in passes of the MNIST CNN


def tokens_cost(tokens: int, size: Size) -> float:
    """What a forward pass of so many tokens takes, in passes of the MNIST CNN: 12 weights a layer and width²."""
    return tokens * 12 * size.depth * size.width**2 / 4e5


def _digest(*what: Any) -> str:
    """A short hash of values that are ready for JSON, or dataclasses of such; and of works."""

    def plain(value: Any) -> Any:
        if isinstance(value, Work | Job):
            return value.key()
        return value.to_dict() if isinstance(value, TrainConfig) else vars(value)

    text = json.dumps(what, sort_keys=True, default=plain)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def alike(rows: pd.DataFrame, values: Mapping[str, Any]) -> pd.DataFrame:
    """The rows that have these values, of which a missing one equals a missing one; none where a column is missing."""
    if not set(values) <= set(rows.columns):
        return rows.iloc[:0]
    # NaN equals nothing, not even NaN.
    same = [rows[name].isna() if pd.isna(value) else rows[name] == value for name, value in values.items()]
    return rows[np.logical_and.reduce(same)]


def is_whole(rows: pd.DataFrame) -> bool:
    """Whether the rows of a run are those of a finished one; only runs that can be shown earlier say that they are."""
    return "finished" not in rows or bool(rows["finished"].all())


def so_far_words(rows: pd.DataFrame, planned: int) -> str:
    """How many of its ``planned`` rounds the evaluations of a run have, as ``SO_FAR`` says it."""
    return f"{rows['round'].max():,.0f} of {planned:,} rounds"


def read_result(folder: Path) -> Result | None:
    """What a work has left in a folder, None where it has not ended; InputError where that is not as it was left."""
    path = folder / RESULT_FILE
    if not path.exists():
        return None
    sealed = read_sealed(path)
    digests = {} if sealed is None else sealed["facts"].get("files", {})
    changed = [name for name, digest in digests.items() if file_digest(folder / name) != digest]
    if sealed is None or changed:
        names = ", ".join(changed) or RESULT_FILE
        raise InputError(f"runs must be as they were left, got {folder} with another {names}: remove it to run it anew")
    return pd.DataFrame(sealed["rows"]), sealed["facts"]


def _do(work: Work | Job, folder: Path, threads: int) -> str:
    """Do one work in this process, and say what came of it: done, stopped, or held by another process."""
    # A process is used for many works: what the last one set would stay.
    torch.set_num_threads(threads)
    shown = 0.0

    def report(at: Progress) -> None:
        nonlocal shown
        if time.monotonic() - shown > POLL_SECONDS or at.round == at.rounds:
            shown = time.monotonic()
            tell((folder, at))

    try:
        with held(folder, wait=POLL_SECONDS):
            # Whoever held the folder before may have finished it.
            if not (folder / RESULT_FILE).exists():
                rows, facts = work.run(folder, report)
                write_sealed(folder / RESULT_FILE, {"rows": rows.to_dict("list"), "facts": facts})
    except HeldError:
        return "held"
    except KeyboardInterrupt:
        return "stopped"
    return "done"


class Bars:
    """How far the works are, all and (if asked to) each, and how long the rest takes at the pace so far."""

    def __init__(self, works: Mapping[Path, Work | Job], before: int, shown: RunBars, *, each: bool) -> None:
        self._works, self._before, self._each = works, before, each
        self._costs = {folder: max(1.0, work.cost) for folder, work in works.items()}
        self._shares = dict.fromkeys(works, 0.0)
        self._first: tuple[float, float] | None = None
        self._bars = shown

    def reached(self, folder: Path, at: Progress) -> None:
        """A work has come so far; it is done when its result is there."""
        self._shares[folder] = min(at.round / max(1, at.rounds), 0.999)
        if self._each:
            self._bars.update(self._works[folder].title, at)

    def done(self, folder: Path) -> None:
        """A work has ended."""
        self._shares[folder] = 1.0
        self._bars.remove(self._works[folder].title)

    def show(self) -> None:
        """Draw the bar that sums up the others."""
        done = self._before + sum(share == 1 for share in self._shares.values())
        total = self._before + len(self._shares)
        self._bars.show(ALL, done, total, "", left_words(self.left(time.monotonic())) if done < total else "")

    def left(self, now: float) -> float:
        """The seconds that the rest takes; infinite so long as there is no pace, from ``SETTLED_SECONDS`` on."""
        # The pace is taken from the first look on: what was there at the start took no time now.
        done = sum(self._costs[folder] * share for folder, share in self._shares.items())
        done_before, since = self._first = self._first or (done, now)
        settled = now - since >= SETTLED_SECONDS and done > done_before
        return (now - since) * (sum(self._costs.values()) - done) / (done - done_before) if settled else math.inf


def run_all(
    works: Sequence[Work | Job],
    root: Path,
    processes: Processes,
    *,
    until: float = math.inf,
    resume: bool = False,
    on_result: Callable[[Work | Job], None] | None = None,
) -> list[Result | None]:
    """Do all work that has no result yet, and gather the results.

    Others may do so in the same folder at the same time: each key is done once, and who comes to work that another
    process is at does all else before waiting for it.

    Args:
        works: The work; what has the same key is done once.
        root: The folder of results, one sub-folder a key.
        processes: What it is done by. Training runs that are fewer share these, a thread each: no record depends on it.
        until: The time (monotonic) when no work is begun any more, and what is under way is saved. Then the most urgent
            work goes first, the cheapest of it before the others. Without a limit the dearest does, so that the
            processes end together.
        resume: Whether to take up training runs that another version of the code has begun or done.
        on_result: Called with each work that is done, while others go on. With it works go in the order
            in which they are given, if the time is not limited, and one bar stands for all.

    Returns:
        Rows and provenance of each; of training runs that are not finished rows so far; else None.

    Raises:
        InputError: If the folder cannot be written, or a work failed.
        Interrupted: After a signal, once the runs under way are saved.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out must be a folder that can be written, got {root} ({error.strerror})") from None
    folders = [
        work.begun(root) if resume and isinstance(work, Job) and not work.needs else root / work.key() for work in works
    ]
    by_folder: dict[Path, list[Work | Job]] = {}
    for folder, work in zip(folders, works, strict=True):
        by_folder.setdefault(folder, []).append(work)

    def is_done(folder: Path) -> bool:
        return (folder / RESULT_FILE).exists()

    def ended(folder: Path) -> None:
        if on_result is not None:
            for work in by_folder.get(folder, ()):
                on_result(work)

    def order(work: Work | Job) -> tuple[float, float]:
        if until < math.inf:
            return work.urgency, work.cost
        return (0, -work.cost) if on_result is None else (0, 0)

    # Of works with one key the most urgent stays. What others need comes before all else.
    unfinished = {
        folder: min(same, key=lambda work: work.urgency) for folder, same in by_folder.items() if not is_done(folder)
    }
    needs = {root / need.key(): need for work in unfinished.values() for need in work.needs}
    waiting: dict[Path, Work | Job] = {folder: need for folder, need in needs.items() if not is_done(folder)}
    waiting |= dict(sorted(unfinished.items(), key=lambda item: order(item[1])))
    for folder in by_folder:
        if folder not in waiting:
            ended(folder)
    jobs_alone = all(isinstance(work, Job) for work in waiting.values())
    threads = max(1, processes.count // len(waiting)) if waiting and jobs_alone else 1
    given_up = math.inf  # when works that were told to stop have had their time

    def next_call() -> Call | None:
        for folder, work in waiting.items():
            if all(is_done(root / need.key()) for need in work.needs) and not processes.stopped:
                del waiting[folder]
                under_way[folder] = work
                return folder, _do, (work, folder, threads)
        return None

    def kept() -> str:
        counts = f"{sum(map(is_done, by_folder))} of {len(by_folder)} runs are finished"
        return f"interrupted; {counts}, and kept with those under way in {root}; the same command goes on"

    def look() -> None:
        nonlocal given_up
        if (came or time.monotonic() > until) and not processes.stopped:
            processes.stop()
            given_up = time.monotonic() + PATIENCE_SECONDS if came else math.inf
        if time.monotonic() > given_up:
            raise Interrupted(number=came[0])
        bars.show()

    under_way: dict[Path, Work | Job] = {}
    before = len(by_folder) - len(unfinished)
    if waiting:
        with telling(kept), postponed() as came, RunBars() as shown:
            bars = Bars(dict(waiting), before, shown, each=on_result is None)
            bars.show()
            for folder, outcome in processes.results(next_call, lambda told: bars.reached(*told), look, ahead=True):
                if outcome == "held":
                    waiting[folder] = under_way[folder]
                elif outcome == "stopped":
                    processes.stop()
                else:
                    bars.done(folder)
                    ended(folder)
            bars.show()
            # They stop by a signal, or when the hours are over, which is no interruption.
            if came or (processes.stopped and time.monotonic() < until):
                raise Interrupted(number=came[0] if came else signal.SIGINT)
    return [work.result(folder) for work, folder in zip(works, folders, strict=True)]
