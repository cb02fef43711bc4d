"""Races: what every method has reached after so many bytes, and after so many forward passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from decomfl_lab.errors import require
from figures.layout import legend_below, page, require_columns, require_known
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
    """A row of two panels for each problem: the best accuracy, or loss, so far against each of ``AXES``.

    Args:
        frame: Rows with the columns problem, line, seed, round, accuracy (NaN where the problem has a loss alone),
            loss, target, by ("accuracy" or "loss"), reached, and those of ``AXES``; a reached run ends at the target.
        styles: The style of every line; those that have no rows are left out of the legend.
        title: The heading of the figure.
        caption: The text under the plots.

    Returns:
        Thin: each seed; the dot at the target is the geometric mean over the seeds of the runs that got there, its bar
        the range. A line that is at 0 on an axis is not on it.

    Raises:
        InputError: If a column is missing, there is no row, or a line has no style.
    """
    require_columns("frame", frame, ("problem", "line", "seed", "round", "accuracy", "loss", "target", "by", "reached"))
    require_columns("frame", frame, tuple(AXES))
    require_known("lines of frame", frame["line"], styles)
    problems = list(dict.fromkeys(frame["problem"]))
    with matplotlib.rc_context(rc()):
        rows = -(-frame["line"].nunique() // 4)
        figure, plots = page(10.6, 3.3 * len(problems) + 0.2 * rows, title=title, caption=[caption])
        axes = plots.subplots(len(problems), len(AXES), squeeze=False, sharey="row")
        for across, problem in zip(axes, problems, strict=True):
            own = frame[frame["problem"] == problem]
            for ax, (column, label) in zip(across, AXES.items(), strict=True):
                _race(ax, own, column, styles)
                ax.set_xlabel(label)
            across[0].set_ylabel(f"test {own['by'].iloc[0]}, best so far")
            across[0].set_title(problem, loc="left")
        legend_below(plots, axes.flat, columns=4, order=styles)
    return figure


def _race(ax: Axes, rows: pd.DataFrame, column: str, styles: Mapping[str, LineStyle]) -> None:
    by, target = str(rows["by"].iloc[0]), float(rows["target"].iloc[0])
    require(by in ("accuracy", "loss"), "by", "be accuracy or loss", by)
    rows = rows[(rows[column] > 0) & np.isfinite(rows[by])].sort_values("round")
    ax.axhline(target, color="#57606A", linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    for line, style in styles.items():
        own = rows[rows["line"] == line]
        ends = []
        for _, run in own.groupby("seed"):
            best = run[by].cummax() if by == "accuracy" else run[by].cummin()
            ax.plot(run[column], best, color=style.color, linestyle=style.dash, linewidth=0.9, alpha=0.65, zorder=2)
            if run["reached"].iloc[-1]:
                ends.append(float(run[column].iloc[-1]))
        if ends:
            middle = float(np.exp(np.mean(np.log(ends))))
            ax.plot([min(ends), max(ends)], [target, target], color=style.color, linewidth=3.5, alpha=0.5, zorder=3)
            ax.plot([middle], [target], "o", color=style.color, markeredgecolor="white", markersize=7, zorder=4)
        if len(own):
            ax.plot([], [], color=style.color, linestyle=style.dash, linewidth=style.linewidth, label=line)
    ax.set_xscale("log")
    if by == "loss":
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else ""))
        start = rows[by].clip(upper=3 * rows.groupby(["line", "seed"])[by].transform("first").median()).max()
        ax.set_ylim(0.8 * target, start)
    else:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        ax.set_ylim(top=target + 0.05)
