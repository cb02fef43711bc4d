"""Progress on stderr: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from decomfl_lab.runs.run import Progress

__all__ = ["RunBars", "run_bar", "words"]

LINE_SECONDS = 15.0


def words(at: Progress) -> str:
    """What is known of a run: its loss, its accuracy after an evaluation, what it has communicated."""
    known = (
        "" if math.isnan(at.train_loss) else f"loss {at.train_loss:.3f}",
        "" if math.isnan(at.test_accuracy) else f"accuracy {at.test_accuracy:.3f}",
        f"{at.scalars:,.0f} scalars/client" if at.scalars else "",
    )
    return ", ".join(each for each in known if each)


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
            TimeRemainingColumn(),
            console=console,
            disable=not self.live,
        )
        self._tasks: dict[str, TaskID] = {}
        self._spoken = time.monotonic()

    def __enter__(self) -> RunBars:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def update(self, name: str, at: Progress) -> None:
        """Show that the run ``name`` has reached ``at``."""
        self.show(name, at.round, at.rounds, words(at))

    def show(self, name: str, done: int, total: int | None, words: str) -> None:
        """Show that ``done`` of ``total`` steps of ``name`` are taken (None: nobody knows of how many)."""
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, now="")
        self._bars.update(self._tasks[name], completed=done, total=total, now=words)
        if not self.live and (time.monotonic() - self._spoken > LINE_SECONDS or done == total):
            self._spoken = time.monotonic()
            print(f"{name}: {done}/{total or '?'}, {words}", file=sys.stderr, flush=True)

    def remove(self, name: str) -> None:
        """Take the bar of a finished run away."""
        if name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))


@contextmanager
def run_bar(name: str) -> Iterator[Callable[[Progress], None]]:
    """The bar of one run, as what shows that it has come to a state."""
    with RunBars() as bars:
        yield partial(bars.update, name)
