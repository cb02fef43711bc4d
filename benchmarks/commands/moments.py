"""``decomfl bench moments``: is the stream as random as it should be?"""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import TaskID

from benchmarks.commands.shared import DISTRIBUTIONS, Rows, measuring, names, print_tables
from benchmarks.moments import stream_statistics
from decomfl_lab.errors import require
from decomfl_lab.noise import Distribution

__all__ = ["moments"]


def moments(
    *,
    draws: Annotated[
        float, typer.Option(help="How many numbers to draw, 1e6 or more. [default: 1e8]", show_default=False)
    ] = 1e8,
    distribution: Annotated[str, typer.Option(help="Distributions of z.")] = DISTRIBUTIONS,
    seed: Annotated[int, typer.Option(help="Run key of the stream.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record of it as JSON.")] = False,
) -> None:
    """Compare moments, tails and correlations of z with the truth.

    Exit code 1 if one average is more than five standard errors away.
    """
    require(1e6 <= draws < math.inf, "draws", "be a finite number of at least 1e6", draws)
    rows = []
    started = time.monotonic()
    with measuring() as bars:
        for name in names("distribution", distribution, Distribution):
            task = bars.add_task(name, total=int(draws))

            def show(done: int, task: TaskID = task) -> None:
                bars.update(task, completed=done)

            for at in stream_statistics(Distribution(name), int(draws), seed=seed, on_draws=show):
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
    title = f"Averages over the stream (seed {seed}, {time.monotonic() - started:.0f} s)"
    print_tables(Rows(title, rows, columns, words=2), width=130, as_json=as_json)
    if not as_json:
        print(f"largest deviation: {worst:.2f} standard errors")
    if worst > 5:
        raise typer.Exit(1)
