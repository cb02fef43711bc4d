"""The memory table (appendix): what server and client need, measured, in models of d parameters."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from decomfl_lab.methods.memory import ROLES, memory_rows
from decomfl_lab.progress import Progress
from figures.comparison import Panel, comparison
from figures.style import series_styles
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import notes
from paper_repro.workflow.runs import Report, Result, Work
from paper_repro.workflow.verdicts.claim_verdicts import judged


def jobs(options: Options) -> list[Work]:
    """The measurement, the same but for its sizes at every scale."""
    sizes = {"sizes": options.scale.memory.d}
    return [Work(title="memory of server and client", function=_peaks, arguments=sizes, cost=2e5)]


def _peaks(folder: Path, report: Report, sizes: Sequence[int]) -> Result:  # noqa: ARG001 (of the protocol)
    """The peaks of every role at every size, each in a process of its own."""
    rows = []
    for row in memory_rows(sizes):
        rows.append(row)
        report(Progress(len(rows), len(sizes) * len(ROLES)))
    return pd.DataFrame(rows), {}


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:  # noqa: ARG001
    """The table, its plot and its verdicts."""
    listed = ", ".join(f"{d:,}" for d in sorted(set(rows.d)))
    words = f"d = {listed}; eight equal layers, φ = d/8"
    table = rows.assign(what=[ROLES[role].what for role in rows.role])
    # Curves that end on each other, to a hundredth of a model.
    largest = table[table.d == table.d.max()].dropna(subset="models")
    names = largest.what.str.partition(":")[0]
    alike = [" and ".join(same) for _, same in names.groupby(largest.models.round(2)) if len(same) > 1]
    figure = partial(
        comparison,
        [
            Panel(
                frame=table.dropna(subset="models").assign(series=table.what, seed=0),
                x="d",
                y="models",
                by="d",
                xlabel="parameters d",
                ylabel="peak memory in models",
                title="one round, in a fresh process",
                xscale="log",
            )
        ],
        series_styles(table.what),
        title="Memory of server and client",
        caption=f"Models of {words}." + (f" On each other end: {'; '.join(alike)}." if alike else ""),
    )
    wide = table.pivot_table(index=["what", "expected"], columns="d", values="models", sort=False)
    wide.columns = pd.Index([f"d = {d:,}" for d in wide.columns])
    return made(
        "memory",
        judged("memory", words, {"": table[table.d == table.d.max()]}),
        {"memory": figure},
        {"memory": table},
        notes=notes("memory"),
        table=wide.reset_index(),
        facts={"models": words},
    )
