"""Many runs on one machine or a cluster: cached by fingerprint, resumed, shown while they go."""

from __future__ import annotations

import _thread
import contextlib
import hashlib
import json
import math
import secrets
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import joblib
import numpy as np
import pandas as pd
import torch

from decomfl_lab.children import safely
from decomfl_lab.datasets.images import Dataset, at_hand, load_dataset
from decomfl_lab.errors import DivergedError, InputError
from decomfl_lab.files import HeldError, held, held_file, write_atomically
from decomfl_lab.interrupts import Interrupted, postponed, telling
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.runs.building import dataset_of
from decomfl_lab.runs.config import TrainConfig, config_from_mapping, read_config
from decomfl_lab.runs.folder import (
    CONFIG_FILE,
    METRICS_FILE,
    PROVENANCE_FILE,
    looked_at,
    read_rows,
)
from decomfl_lab.runs.progress import RunBars, left_words
from decomfl_lab.runs.provenance import code_version, read_provenance
from decomfl_lab.runs.run import train
from decomfl_lab.runs.told import Progress

__all__ = [
    "ROWS_FILE",
    "SO_FAR",
    "Job",
    "Recordable",
    "Result",
    "TableWork",
    "Work",
    "alike",
    "data_set",
    "fingerprint",
    "finished",
    "is_whole",
    "pool_of",
    "run_all",
    "so_far_words",
]

Result = tuple[pd.DataFrame, dict[str, Any]]  # rows and provenance
SO_FAR = "so_far"  # the key in the provenance of an unfinished run that says how many of its rounds there are

ROWS_FILE = "rows.csv"
DONE_FILE = "done"
DIVERGED = "diverged"
PROGRESS_FILE = "progress.json"
TURN_FILE = ".turn"
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 10.0
SETTLED_SECONDS = 20.0  # how long a pace is watched before the time left is told from it
UNSEALED = 0.999  # the most of a work that counts as done before its folder says that it is
ALL = "all runs"  # the bar that sums up the others, and stays


class Work(Protocol):
    """What a part needs computed: it runs in a process of its own and leaves its result in a folder."""

    @property
    def title(self) -> str:
        """Name of its progress bar."""
        ...

    def key(self) -> str:
        """Fingerprint of everything that the result depends on: the name of its folder."""
        ...

    def cost(self) -> float:
        """Forward passes, roughly, in examples of the MNIST CNN: the dearest go first."""
        ...

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        """Compute the result into ``folder`` (which writing makes), going on with what is there; says how it ended."""
        ...

    def result(self, folder: Path, ended: str) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Rows and provenance, from a folder where ``run`` ended so."""
        ...


@runtime_checkable
class Resumable(Work, Protocol):
    """Work that can be shown before it is finished, and taken up where another version of the code left it."""

    def so_far(self, folder: Path) -> Result | None:
        """Rows up to the last evaluation, and provenance with ``SO_FAR``; None where there is no evaluation yet."""
        ...

    def begun(self, root: Path) -> Path | None:
        """The sub-folder of ``root`` in which any version of the code came furthest with it; None if there is none."""
        ...


@runtime_checkable
class Recordable(Work, Protocol):
    """Work whose rows can be told from those of other work among what is recorded."""

    def among(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Those of the rows, of much work, that are of this."""
        ...


@runtime_checkable
class Dependent(Work, Protocol):
    """Work that begins with what other work has left in its own folder, ``folder.parent / other.key()``."""

    @property
    def needs(self) -> Sequence[Work]:
        """Work that has to be done before; it needs nothing itself."""
        ...


def fingerprint(module: str, *what: Any, layers: Sequence[ModuleType] = ()) -> str:
    """A key for a result of ``module`` (its ``__file__``): what it is of, ready for JSON, and the code behind it.

    That is the module itself, decomfl_lab and the other layers.
    """
    # The module's bytes come last: they are in no layer's version where the module is paper_repro's.
    path = Path(module)
    code = [code_version(), *(code_version(Path(str(layer.__file__)).parent) for layer in layers)]
    message = json.dumps([*what, code]).encode() + path.read_bytes()
    return f"{path.stem}-{hashlib.blake2b(message, digest_size=8).hexdigest()}"


class TableWork:
    """Work that leaves one table, ``ROWS_FILE``, and where it is made of data their provenance."""

    def result(self, folder: Path, ended: str) -> Result:  # noqa: ARG002 (of the protocol)
        """See ``Work``: the rows; nothing but code made those without provenance."""
        facts = read_provenance(folder) if (folder / PROVENANCE_FILE).exists() else {}
        return pd.read_csv(folder / ROWS_FILE), facts


@dataclass(frozen=True)
class Job:
    """One training run of a figure."""

    config: TrainConfig  # the configuration of the run
    labels: Mapping[str, Any]  # the columns to add to its rows (reading, panel, series, ...)
    title: str  # the title of its progress bar
    urgency: int = field(default=0, kw_only=True)  # a number; where time is limited, runs of a smaller one go first
    # the device; it is no part of the key, as losses agree to rounding and all else to the bit
    device: str = field(default="cpu", kw_only=True)
    # the rounds of the run of which this is the beginning; 0 for a run that is whole itself
    whole: int = field(default=0, kw_only=True)

    def beginning(self, share: float) -> Job:
        """The first rounds of this run, a ``share`` of them but at least up to the second evaluation: the same bits."""
        config = self.config
        rounds = min(config.rounds, max(math.ceil(share * config.rounds), 2 * config.eval_every))
        return replace(self, config=config.but(rounds=rounds), whole=config.rounds if rounds < config.rounds else 0)

    def key(self) -> str:
        """See ``Work``: configuration, seed, data and code."""
        return self.config.fingerprint(data=load_dataset(self.config.data).digest, code=code_version())

    def cost(self) -> float:
        """See ``Work``."""
        config, own = self.config, self.config.method.plain()
        # Examples that pass through the model in the whole run, on m clients a round.
        size = _COSTS.get(config.model, 1.0)
        steps = config.rounds * own.get("local_steps", 1) * config.sampled * config.batch_size * size
        if config.method.gradients:
            return float(3 * steps)  # a forward and a backward pass, which is worth two
        # The mean of P over the rounds. A central difference takes two losses a direction, a forward one takes one.
        P = Schedule(own["perturbations"], own.get("perturbation_schedule", {}))
        directions = sum(P(r) for r in range(config.rounds)) / config.rounds
        return float(directions * (2 if own["estimator"] == "central" else 1) * steps)

    def dataset(self) -> Dataset:
        """Its data."""
        return dataset_of(self.config)

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        """See ``Work``; a run that diverges has a result too: the rows up to there."""
        try:
            train(self.config, dataset=self.dataset(), device=self.device, out=folder, on_round=report, any_code=True)
        except DivergedError as error:
            return f"{DIVERGED}: {error}"
        return f"{self.config.rounds} rounds"

    def result(self, folder: Path, ended: str) -> Result:
        """See ``Work``: evaluations with labels, and with what ``_labelled`` adds."""
        rows = pd.read_csv(folder / METRICS_FILE)
        return self._labelled(rows, finished=True, diverged=ended.startswith(DIVERGED)), read_provenance(folder)

    def so_far(self, folder: Path) -> Result | None:
        """See ``Resumable``."""
        try:
            rows, facts = pd.DataFrame(looked_at(folder).rows), read_provenance(folder)
        except OSError:
            return None
        if rows.empty:
            return None
        facts[SO_FAR] = so_far_words(rows, self.config.rounds)
        return self._labelled(rows, finished=False, diverged=False), facts

    def _labelled(self, rows: pd.DataFrame, *, finished: bool, diverged: bool) -> pd.DataFrame:
        """The rows with labels, seed, rounds ``planned`` and held-out ``examples`` (a task's are in its labels)."""
        own: dict[str, Any] = {"seed": self.config.seed, "diverged": diverged, "finished": finished and not self.whole}
        own["planned"] = self._planned
        if not self.config.task:
            held_out = len(self.dataset().test_labels)
            own["examples"] = min(self.config.test_examples or held_out, held_out)
        return rows.assign(**self.labels, **own)

    def among(self, rows: pd.DataFrame) -> pd.DataFrame:
        """See ``Recordable``: those with its labels, seed and rounds ``planned``."""
        return alike(rows, {**self.labels, "seed": self.config.seed, "planned": self._planned})

    @property
    def _planned(self) -> int:
        return self.whole or self.config.rounds

    def begun(self, root: Path) -> Path | None:
        """See ``Resumable``: by settings, seed and data."""
        wanted = _identity(self.config.to_dict(), self.dataset().digest)
        found = [folder for folder, identity in _identities(root).items() if identity == wanted]
        return max(found, key=lambda folder: ((folder / DONE_FILE).exists(), _rounds_in(folder)), default=None)


def data_set(name: str) -> str:
    """The data set of this name where it is available here, else MNIST, which always is; captions say which."""
    return name if at_hand(name) else "mnist"


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


def _identity(config: Mapping[str, Any], data: str) -> str:
    return json.dumps([config, data], sort_keys=True)


# Reading every folder's settings takes seconds where there are hundreds.
@lru_cache(maxsize=1)
def _identities(root: Path) -> dict[Path, str]:
    """The settings, seed and data of each run in the sub-folders of ``root``, where they can be read."""
    found = {}
    for path in root.glob(f"*/{CONFIG_FILE}"):
        with contextlib.suppress(InputError, OSError, ValueError, KeyError):
            config = config_from_mapping(read_config(path), str(path), lenient=True).to_dict()
            found[path.parent] = _identity(config, read_provenance(path.parent)["data_digest"])
    return found


def _rounds_in(folder: Path) -> int:
    """Evaluated so far."""
    return int(max((row["round"] for row in read_rows(folder / METRICS_FILE)), default=0))


_COSTS = {"cnn-fashion": 6.0}  # what a forward pass takes, in passes of the MNIST CNN


def _sealed(ended: str, folder: Path) -> str:
    """What ``DONE_FILE`` says: how the work ended, and the SHA-256 of that and of every file that it left."""
    # Hidden files are locks.
    left = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    sums = {path.relative_to(folder).as_posix(): path for path in left if path.name not in (DONE_FILE, PROGRESS_FILE)}
    lines = [ended, f"{hashlib.sha256(ended.encode()).hexdigest()}  {DONE_FILE}"]
    for name, path in sorted(sums.items()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}")
    return "\n".join(lines) + "\n"


def _ended(folder: Path) -> str:
    """How the work in ``folder`` ended; InputError if a file there is not as it was left."""
    content = (folder / DONE_FILE).read_bytes().decode(errors="replace")
    ended = content.partition("\n")[0]
    # Lines that only one side has: a file that is changed, gone or new.
    changed = set(content.splitlines()) ^ set(_sealed(ended, folder).splitlines())
    if changed:
        names = ", ".join(sorted({line.partition("  ")[2] or DONE_FILE for line in changed}))
        raise InputError(f"runs must be as they were left, got {folder} with another {names}: remove it to run it anew")
    return ended


class _Turn:
    """The file that lets the processes of one ``run_all`` work: when it is gone they save and stop, wherever they run.

    Who begins removes the files of those that were killed, and so stops what they have left behind.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / f"{TURN_FILE}-{secrets.token_hex(8)}"

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        for path in self._path.parent.glob(f"{TURN_FILE}-*"):
            with contextlib.suppress(HeldError), held_file("checkpoint", path):  # of those who live it is held
                path.unlink(missing_ok=True)
        # The lock says that this process lives, the file that its works may go on.
        with held_file("checkpoint", self._path):
            write_atomically(self._path, "")
            try:
                yield
            finally:
                self.end()

    def lasts(self) -> bool:
        return self._path.exists()

    def end(self) -> None:
        self._path.unlink(missing_ok=True)


def _execute(work: Work, folder: Path, turn: _Turn, threads: int) -> tuple[Path, bool]:
    """Do one piece of work in this process; its folder ends with ``DONE_FILE``, written last.

    Returns:
        The folder, and whether the work has to be asked for again, as another process is at it.
    """
    if not turn.lasts():
        return folder, False
    # A process is used for many works: what the last one set would stay.
    torch.set_num_threads(threads)
    shown = 0.0

    def report(at: Progress) -> None:
        nonlocal shown
        # Each report is a file written and a file looked for: not more often than the watcher looks.
        if time.monotonic() - shown > POLL_SECONDS or at.round == at.rounds:
            shown = time.monotonic()
            if not turn.lasts():
                raise Interrupted
            write_atomically(folder / PROGRESS_FILE, json.dumps(vars(at)))

    try:
        # Whoever held the folder before may have finished it.
        with held(folder, wait=POLL_SECONDS):
            if not (folder / DONE_FILE).exists():
                write_atomically(folder / DONE_FILE, _sealed(work.run(folder, report), folder))
    except HeldError:
        return folder, True
    except KeyboardInterrupt:
        turn.end()  # for all
    return folder, False


@contextlib.contextmanager
def pool_of(n_jobs: int) -> Iterator[joblib.Parallel]:
    """Processes that were started such that a terminal's Ctrl-C, which goes to all, is left to this one.

    Their number is ``n_jobs``, -1 for one a CPU; where it is 1 it is this one.
    """
    # joblib renews processes that have grown large. Where warnings are errors, the thread that does it would end there,
    # and nobody would ever bring the results.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
    with contextlib.ExitStack() as stack:
        stack.enter_context(safely())
        with _deaf():
            pool = stack.enter_context(joblib.Parallel(n_jobs, backend="loky", return_as="generator_unordered"))
            # Work for each process, so that all of them are started while SIGINT is ignored.
            list(pool(joblib.delayed(int)() for _ in range(joblib.effective_n_jobs(n_jobs))))
        yield pool


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Ignore SIGINT, as processes that are started meanwhile go on doing."""
    # Only the main thread may set a handler, and only it gets the signal.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _execute_all(
    pool: joblib.Parallel,
    works: Sequence[tuple[Path, Work]],
    turn: _Turn,
    processes: int,
    ended: Callable[[Path], None],
) -> None:
    """Do the works, or see that others do them: what they have begun comes last, and waits for them.

    Training runs that are fewer than the processes share these, a thread each: no record depends on it. ``ended`` is
    called with the folder of each work that is done, while others go on.
    """
    left = dict(works)
    while left and turn.lasts():
        threads = max(1, processes // len(left)) if all(isinstance(work, Job) for work in left.values()) else 1
        asked, left = left, {}
        calls = (joblib.delayed(_execute)(work, folder, turn, threads) for folder, work in asked.items())
        for folder, again in pool(calls):
            if again:
                left[folder] = asked[folder]
            elif (folder / DONE_FILE).exists():
                ended(folder)


class _Tally:
    """How many works are done, and how long the rest takes at the pace so far, by their costs."""

    def __init__(self, works: Mapping[Path, Work], before: int) -> None:
        self.before = before  # the number of works that were done at the start
        self._costs = {folder: max(1.0, work.cost()) for folder, work in works.items()}
        self._shares = dict.fromkeys(works, 0.0)
        self._first: tuple[float, float] | None = None

    def reached(self, folder: Path, share: float) -> None:
        """Take down how much of a work is done; all of it once its folder says so."""
        self._shares[folder] = share

    @property
    def counts(self) -> tuple[int, int]:
        """How many works are done, and how many there are."""
        return self.before + sum(share == 1 for share in self._shares.values()), self.before + len(self._shares)

    def left(self, now: float) -> float:
        """The seconds that the rest takes; infinite so long as there is no pace, from ``SETTLED_SECONDS`` on."""
        # The pace is taken from the first look on: what was there at the start took no time now.
        done = sum(self._costs[folder] * share for folder, share in self._shares.items())
        there, since = self._first = self._first or (done, now)
        rest = sum(self._costs.values()) - done
        settled = now - since >= SETTLED_SECONDS and done > there
        return (now - since) * rest / (done - there) if settled else math.inf


class _Watcher(threading.Thread):
    """Shows how far the works are, all and (if asked to) each, and ends their turn when a signal has come.

    They then have ``PATIENCE_SECONDS`` to save what they have. It also ends when the ``seconds`` are over; then they
    have the time that the round takes.
    """

    def __init__(
        self, works: Mapping[Path, Work], before: int, turn: _Turn, came: Sequence[int], seconds: float, *, each: bool
    ) -> None:
        super().__init__(daemon=True)
        self.late = False  # whether the time was over
        self._each = each
        self._until = time.monotonic() + seconds
        self._titles = {folder: work.title for folder, work in works.items()}
        self._tally = _Tally(works, before)
        self._turn = turn
        self._came = came
        self._over = threading.Event()
        self._seen: dict[Path, int] = {}

    def run(self) -> None:
        with RunBars() as bars:
            patience = PATIENCE_SECONDS
            done, total = self._tally.counts
            bars.show(ALL, done, total, "", "")
            while not self._over.wait(POLL_SECONDS):
                if not self.late and time.monotonic() > self._until:
                    self.late = True
                    self._turn.end()
                if self._came:
                    self._turn.end()
                    patience -= POLL_SECONDS
                    if patience < 0:
                        _thread.interrupt_main()  # a second signal, which is not held back
                        return
                self._show_each(bars)
                if self._tally.counts[0] < total:
                    bars.show(ALL, self._tally.counts[0], total, "", left_words(self._tally.left(time.monotonic())))
            self._show_each(bars)
            bars.show(ALL, *self._tally.counts, "", "")

    def _show_each(self, bars: RunBars) -> None:
        for folder, title in self._titles.items():
            try:
                at = Progress(**json.loads((folder / PROGRESS_FILE).read_text()))
            except (OSError, ValueError):
                at = None  # not begun yet
            if at is not None and at.round != self._seen.get(folder):
                self._seen[folder] = at.round
                self._tally.reached(folder, min(at.round / max(1, at.rounds), UNSEALED))
                if self._each:
                    bars.update(title, at)
                    if at.round == at.rounds:
                        bars.remove(title)
            if (folder / DONE_FILE).exists():
                self._tally.reached(folder, 1.0)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()


def finished(result: Result | None) -> bool:
    """Whether a result of ``run_all`` is that of finished work."""
    return result is not None and SO_FAR not in result[1]


def run_all(
    works: Sequence[Work],
    root: Path,
    *,
    n_jobs: int,
    hours: float | None = None,
    resume: bool = False,
    on_result: Callable[[Work, Result], None] | None = None,
) -> list[Result | None]:
    """Do all work that has no result yet, ``n_jobs`` at a time, and gather the results.

    Others may do so in the same folder at the same time, on any machine that shares it and its locks: each key is done
    once, and who comes to work that another has begun does all else before waiting for it.

    Args:
        works: The work; what has the same key is done once.
        root: The folder of results, one sub-folder a key.
        n_jobs: The number of processes; -1 for one a CPU.
        hours: The hours after which no work is begun, and what is under way is saved; the most urgent work goes first,
            the cheapest of it before the others. Without a limit the dearest does, so that the processes end together.
        resume: Whether to take up ``Resumable`` work that another version of the code has begun or done.
        on_result: Called with each work that is done and its result, while others go on. With it works go in the order
            in which they are given, if the time is not limited, and one bar stands for all.

    Returns:
        Rows and provenance of each; where the hours did not suffice rows so far, or None.

    Raises:
        InputError: If the folder cannot be written, or a run failed.
        Interrupted: After a signal, once the runs under way are saved.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out must be a folder that can be written, got {root} ({error.strerror})") from None
    _identities.cache_clear()  # other processes have begun runs since
    folders = [_folder(work, root, resume=resume) for work in works]
    by_urgency = sorted(zip(folders, works, strict=True), key=lambda item: -_urgency(item[1]))  # the most urgent stays
    todo = {folder: work for folder, work in by_urgency if not (folder / DONE_FILE).exists()}
    # Three heaps: what others need, what needs nothing, and what waits for the first.
    dependent = {folder: work for folder, work in todo.items() if isinstance(work, Dependent)}
    first = {root / need.key(): need for work in dependent.values() for need in work.needs}
    first = {folder: need for folder, need in first.items() if not (folder / DONE_FILE).exists()}
    free = {folder: work for folder, work in todo.items() if folder not in dependent and folder not in first}
    limited = hours is not None

    def ended(folder: Path) -> None:
        if on_result is not None:
            for each in (work for own, work in zip(folders, works, strict=True) if own == folder):
                on_result(each, each.result(folder, _ended(folder)))

    for folder in dict.fromkeys(folders):
        if folder not in todo:
            ended(folder)
    if todo:
        with telling(lambda: _kept(folders, root)), postponed() as came:
            turn = _Turn(root)
            every = first | todo  # what is needed may be asked for by itself as well
            before = len(set(folders) - set(every))
            seconds = 3600 * hours if hours is not None else math.inf
            watcher = _Watcher(every, before, turn, came, seconds, each=on_result is None)
            with turn.taken(), watcher:
                with pool_of(n_jobs) as pool:
                    # What others wait for comes before all else.
                    ordered = [*_in_order(first, limited=limited), *_in_order(free, limited=limited)]
                    if on_result is not None and not limited:
                        ordered.sort(key=lambda each: (each[0] not in first, folders.index(each[0])))
                    processes = joblib.effective_n_jobs(n_jobs)
                    _execute_all(pool, ordered, turn, processes, ended)
                    _execute_all(pool, _in_order(dependent, limited=limited), turn, processes, ended)
                # The turn ends by a signal, or when the hours are over, which is no interruption.
                if not turn.lasts() and not (watcher.late and not came):
                    raise Interrupted(number=came[0] if came else signal.SIGINT)
    return [_result(work, folder) for work, folder in zip(works, folders, strict=True)]


def _folder(work: Work, root: Path, *, resume: bool) -> Path:
    own = root / work.key()
    if not (resume and isinstance(work, Resumable)):
        return own
    return work.begun(root) or own


def _result(work: Work, folder: Path) -> Result | None:
    if (folder / DONE_FILE).exists():
        return work.result(folder, _ended(folder))
    return work.so_far(folder) if isinstance(work, Resumable) else None


def _in_order(todo: Mapping[Path, Work], *, limited: bool) -> list[tuple[Path, Work]]:
    if limited:
        return sorted(todo.items(), key=lambda item: (_urgency(item[1]), item[1].cost()))
    return sorted(todo.items(), key=lambda item: -item[1].cost())


def _urgency(work: Work) -> int:
    return int(getattr(work, "urgency", 0))


def _kept(folders: Sequence[Path], root: Path) -> str:
    """What an interrupted ``run_all`` says."""
    done = len({folder for folder in folders if (folder / DONE_FILE).exists()})
    kept = f"{done} of {len(set(folders))} runs are finished, and kept with those under way in {root}"
    return f"interrupted; {kept}; the same command goes on"
