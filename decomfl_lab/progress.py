"""How far work has come, and who shows it on stderr: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

LINE_SECONDS = 15.0


@dataclass(frozen=True)
class Progress:
    """The state of a run after a round, as a progress bar shows it."""

    round: int
    rounds: int
    train_loss: float = math.nan
    test_accuracy: float = math.nan  # of the latest evaluation, NaN before the first
    scalars: float = 0.0  # communicated scalars a client, bytes / 4, averaged over clients
    test_loss: float = math.nan  # of the latest evaluation
    measures: Mapping[str, float] = field(default_factory=dict)  # the user's own, of the latest evaluation


def words(progress: Progress) -> str:
    """What is known of a run: its loss, its accuracy after an evaluation, what it has communicated."""
    parts = (
        "" if math.isnan(progress.train_loss) else f"loss {progress.train_loss:.3f}",
        "" if math.isnan(progress.test_accuracy) else f"accuracy {progress.test_accuracy:.3f}",
        *(f"{name} {value:.3f}" for name, value in progress.measures.items() if not math.isnan(value)),
        f"{progress.scalars:,.0f} scalars/client" if progress.scalars else "",
    )
    return ", ".join(word for word in parts if word)


def left_words(seconds: float) -> str:
    """A time that is left, as people say it: "about 14 min left"; "" for one that nobody knows."""
    if not math.isfinite(seconds):
        return ""
    minutes = seconds / 60
    time_left = f"{minutes:.0f} min" if 1 <= minutes < 90 else f"{minutes / 60:.1f} h" if minutes >= 90 else "a minute"
    return f"about {time_left} left"


class _Left(TimeRemainingColumn):
    """The time left, where a task has no words of its own about it."""

    def render(self, task: Task) -> Text:
        left: str | None = task.fields["left"]
        return super().render(task) if left is None else Text(left)


class RunBars:
    """Bars of several runs: steps taken, what is known (loss, accuracy, scalars sent ...), time left."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self.live = console.is_terminal
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
            _Left(),
            console=console,
            disable=not self.live,
        )
        self._tasks: dict[str, TaskID] = {}
        self._spoken = dict.fromkeys((False, True), time.monotonic())

    def __enter__(self) -> RunBars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self, name: str, progress: Progress) -> None:
        """Show that the run ``name`` has reached ``progress``."""
        self.show(name, progress.round, progress.rounds, words(progress))

    def show(self, name: str, done: int, total: int | None, words: str, left: str | None = None) -> None:
        """Show that ``done`` of ``total`` steps of ``name`` are taken (None: nobody knows of how many).

        ``left`` has the words about the time left; None for those that follow from the steps.
        """
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, now="", left=None)
        self._bars.update(self._tasks[name], completed=done, total=total, now=words, left=left)
        summary = left is not None  # which has its turn beside the lines of what it sums up
        if not self.live and (time.monotonic() - self._spoken[summary] > LINE_SECONDS or done == total):
            self._spoken[summary] = time.monotonic()
            line = ", ".join(filter(None, (f"{done}/{total or '?'}", words, left)))
            print(f"{name}: {line}", file=sys.stderr, flush=True)

    def remove(self, name: str) -> None:
        """Take the bar of a finished run away."""
        if name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))


@contextmanager
def run_bar(name: str) -> Iterator[Callable[[Progress], None]]:
    """The bar of one run, as what shows that it has come to a state."""
    with RunBars() as bars:
        yield partial(bars.update, name)
