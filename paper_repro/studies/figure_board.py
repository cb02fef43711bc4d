"""Races: what every method has reached after so many bytes, and after so many forward passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator

from decomfl_lab.errors import require
from figures.layout import page, require_columns, require_known
from figures.style import LineStyle, rc, series_styles

__all__ = ["AXES", "line_styles", "races"]

AXES: Final[Mapping[str, str]] = {
    "client_bytes": "bytes of a client, up and down",
    "passes": "forward passes of a batch, of all clients together",
}
"""The columns that the axes show, with their labels."""


def line_styles(lines: Mapping[str, bool]) -> dict[str, LineStyle]:
    """A style for each line, given whether it needs gradients: those in greys, the others in colours."""
    found: dict[str, LineStyle] = {}
    for gradients in (False, True):
        found |= series_styles([name for name, own in lines.items() if own is gradients], baseline=gradients)
    return {name: found[name] for name in lines}


def races(frame: pd.DataFrame, styles: Mapping[str, LineStyle], *, title: str = "", caption: str = "") -> Figure:
    """For each problem the best accuracy, or loss, so far against each of ``AXES``, and below who took how much.

    Args:
        frame: Rows with the columns problem, line, seed, round, accuracy (NaN where the problem has a loss alone),
            loss, target, by ("accuracy" or "loss"), reached, and those of ``AXES``; a reached run ends at the target.
        styles: The style of every line.
        title: The heading of the figure.
        caption: The text under the plots.

    Returns:
        Above: each seed. Below: the geometric mean over the seeds of what the target took, its bar the range; hollow
        where a seed did not get there, with what it spent in vain. A line that is at 0 on an axis is not on it.

    Raises:
        InputError: If a column is missing, there is no row, or a line has no style.
    """
    require_columns("frame", frame, ("problem", "line", "seed", "round", "accuracy", "loss", "target", "by", "reached"))
    require_columns("frame", frame, tuple(AXES))
    require_known("lines of frame", frame["line"], styles)
    problems = list(dict.fromkeys(frame["problem"]))
    with matplotlib.rc_context(rc()):
        heights = [2.7, 0.17 * frame["line"].nunique() + 0.5]
        figure, plots = page(11.0, len(problems) * sum(heights), title=title, caption=[caption])
        shape = {"height_ratios": heights * len(problems)}
        axes = plots.subplots(2 * len(problems), len(AXES), squeeze=False, gridspec_kw=shape)
        for n, problem in enumerate(problems):
            own = frame[frame["problem"] == problem]
            for above, below, (column, label) in zip(axes[2 * n], axes[2 * n + 1], AXES.items(), strict=True):
                below.sharex(above)
                _race(above, own, column, styles)
                _ranking(below, own, column, styles)
                below.set_xlabel(label)
                above.tick_params(labelbottom=False)
            axes[2 * n][0].set_ylabel(f"test {own['by'].iloc[0]}, best so far")
            axes[2 * n][0].set_title(problem, loc="left")
    return figure


def _race(ax: Axes, rows: pd.DataFrame, column: str, styles: Mapping[str, LineStyle]) -> None:
    """The runs, as far as they are on the axes."""
    by, target = str(rows["by"].iloc[0]), float(rows["target"].iloc[0])
    require(by in ("accuracy", "loss"), "by", "be accuracy or loss", by)
    rows = rows[(rows[column] > 0) & np.isfinite(rows[by])].sort_values("round")
    ax.axhline(target, color="#57606A", linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    for (line, _), run in rows.groupby(["line", "seed"], sort=False):
        best, style = run[by].cummax() if by == "accuracy" else run[by].cummin(), styles[str(line)]
        ax.plot(run[column], best, color=style.color, linestyle=style.dash, linewidth=1.1, alpha=0.75, zorder=2)
    ax.set_xscale("log")
    if by == "loss":
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set_ylim(0.9 * target, 1.5 * float(rows.groupby(["line", "seed"])[by].first().median()))
    else:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        ax.set_ylim(top=target + 0.03)


def _ranking(ax: Axes, rows: pd.DataFrame, column: str, styles: Mapping[str, LineStyle]) -> None:
    """A row for each line, the cheapest on top, those that did not get there below."""
    last = rows[rows[column] > 0].sort_values("round").groupby(["line", "seed"], sort=False).tail(1)
    found = last.groupby("line").agg(
        low=(column, "min"),
        middle=(column, lambda own: float(np.exp(np.log(own).mean()))),
        high=(column, "max"),
        there=("reached", "all"),
    )
    found = found.sort_values(["there", "middle"], ascending=[False, True])
    numbers = zip(found.index, found.to_numpy().tolist(), strict=True)
    for place, (line, (low, middle, high, there)) in enumerate(numbers):
        style = styles[str(line)]
        ax.plot([0, 1], [place] * 2, color=style.color, linestyle=style.dash, linewidth=0.8, alpha=0.5,
                transform=ax.get_yaxis_transform(), zorder=1)  # fmt: skip
        ax.plot([low, high], [place] * 2, color=style.color, linewidth=4.5, alpha=0.45, zorder=2)
        ax.plot([middle], [place], "o", color=style.color, markersize=6, zorder=3,
                markerfacecolor=style.color if there else "white")  # fmt: skip
    ax.set_xscale("log")
    ax.set_yticks(range(len(found)), [str(line) for line in found.index], fontsize=8)
    ax.set_ylim(len(found) - 0.4, -0.6)
    ax.grid(False, axis="y")
    ax.xaxis.set_major_formatter(EngFormatter("B" if column.endswith("bytes") else ""))
