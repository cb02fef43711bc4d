"""``decomfl bench moments``: is the stream as random as it should be?"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass

import click
from rich.progress import TaskID

from benchmarks.commands.shared import DISTRIBUTIONS, Rows, measuring, names, print_tables
from benchmarks.moments import stream_statistics
from decomfl_lab.cli.command import command
from decomfl_lab.errors import require
from decomfl_lab.noise import Distribution
from decomfl_lab.options import option

__all__ = ["moments"]


@dataclass(frozen=True, kw_only=True)
class MomentsOptions:
    """The options of ``decomfl moments``."""

    draws: float = option(1e8, "How many numbers to draw, 1e6 or more. [default: 1e8]")
    distribution: str = option(DISTRIBUTIONS, "Distributions of z.")
    seed: int = option(0, "Run key of the stream.")
    as_json: bool = option(False, "Print the record of it as JSON.", flag="--json")


@command
def moments(options: MomentsOptions) -> None:
    """Compare moments, tails and correlations of z with the truth.

    Exit code 1 if one average is more than five standard errors away.
    """
    require(1e6 <= options.draws < math.inf, "draws", "be a finite number of at least 1e6", options.draws)
    rows = []
    started = time.monotonic()
    with measuring() as bars:
        for name in names("distribution", options.distribution, Distribution):
            task = bars.add_task(name, total=int(options.draws))

            def show(done: int, task: TaskID = task) -> None:
                bars.update(task, completed=done)

            for at in stream_statistics(Distribution(name), int(options.draws), seed=options.seed, on_draws=show):
                rows.append({"distribution": name, **asdict(at), "deviation": at.deviation})
    worst = max(abs(float(row["deviation"])) for row in rows)
    columns = {
        "distribution": "{distribution}",
        "average of": "{name}",
        "draws": "{draws:,}",
        "value": "{value:.7f}",
        "expected": "{expected:.7f}",
        "standard error": "{standard_error:.1e}",
        "deviation": "{deviation:+.2f}",
    }
    title = f"Averages over the stream (seed {options.seed}, {time.monotonic() - started:.0f} s)"
    print_tables(Rows(title, rows, columns, words=2), width=130, as_json=options.as_json)
    if not options.as_json:
        print(f"largest deviation: {worst:.2f} standard errors")
    if worst > 5:
        raise click.exceptions.Exit(1)
