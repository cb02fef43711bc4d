"""Methods or settings side by side: any quantity against any other, a panel each, one legend for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, PercentFormatter

from decomfl_lab.errors import InputError, require
from figures.curves import BAND, COUNT_LABELS, Count, Kind, draw_mean, extra_legend
from figures.layout import LOST_POINTS, page, require_columns
from figures.style import LineStyle, rc

__all__ = ["Panel", "by_communication", "comparison"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """One pair of axes.

    Attributes:
        frame: Rows with columns ``series``, ``seed``, ``by``, ``x`` and ``y``; rows without a y are left out.
        x: Column of the x-axis.
        y: Column of the y-axis.
        xlabel: The label under the x-axis.
        ylabel: The label beside the y-axis.
        title: The heading above the panel.
        xscale: "log" or "linear".
        yscale: "log" or "linear".
        by: Column that says which points of two seeds belong together.
        reference: The authors' rows, of the same columns, drawn thin and dashed; or None.
        checks: The same curves measured in another way, drawn as dots; or None.
        longer: The same curves from longer runs, drawn thin; or None.
    """

    frame: pd.DataFrame
    x: str
    y: str
    xlabel: str
    ylabel: str
    title: str
    xscale: Literal["log", "linear"] = "linear"
    yscale: Literal["log", "linear"] = "linear"
    by: str = "round"
    reference: pd.DataFrame | None = None
    checks: pd.DataFrame | None = None
    longer: pd.DataFrame | None = None

    @property
    def frames(self) -> dict[Kind, pd.DataFrame]:
        """What is drawn, from below to above."""
        kinds: dict[Kind, pd.DataFrame | None] = {
            "longer": self.longer,
            "reference": self.reference,
            "curves": self.frame,
            "checks": self.checks,
        }
        return {kind: frame for kind, frame in kinds.items() if frame is not None}


def by_communication(
    frame: pd.DataFrame,
    count: Count,
    *,
    title: str = "accuracy against communication",
    xscale: Literal["log", "linear"] = "log",
    reference: pd.DataFrame | None = None,
    checks: pd.DataFrame | None = None,
    longer: pd.DataFrame | None = None,
) -> Panel:
    """The panel of test accuracy against scalars per client, counted as ``count`` says (see `COUNT_LABELS`)."""
    return Panel(
        frame=frame,
        x=f"{count}_scalars",
        y="test_accuracy",
        xlabel=f"communicated scalars per client\n({COUNT_LABELS[count]})",
        ylabel="test accuracy",
        title=title,
        xscale=xscale,
        reference=reference,
        checks=checks,
        longer=longer,
    )


def comparison(
    panels: Sequence[Panel], styles: Mapping[str, LineStyle], *, title: str = "", caption: str = ""
) -> Figure:
    """Draw the panels in a row, the series in the order of ``styles``, with one legend under all.

    Args:
        panels: The panels from left to right, at least one.
        styles: Style of every series; those that no panel has are left out of the legend.
        title: Heading of the whole figure.
        caption: Text under the plots; say the scale of the runs here.

    Returns:
        A figure without pyplot state; the caller saves it.

    Raises:
        InputError: If there is no panel, a column is missing, a frame is empty, or a series has no style.
    """
    require(len(panels) > 0, "panels", "be at least one", len(panels))
    for panel in panels:
        for name, frame in panel.frames.items():
            require_columns(f"{name} of panel {panel.title!r}", frame, ("series", "seed", panel.by, panel.x, panel.y))
            unknown = sorted(set(frame["series"]) - set(styles))
            require(not unknown, f"series of panel {panel.title!r}", f"be among {', '.join(styles)}", unknown)
    banded = any(panel.frame.groupby("series")["seed"].nunique().max() > 1 for panel in panels)
    lost = any(panel.xscale == "log" and bool((panel.frame[panel.x] <= 0).any()) for panel in panels)
    with matplotlib.rc_context(rc()):
        width = max(4.8 * len(panels), 9.6)
        columns = 2 if len(panels) == 1 else 4
        drawn = {series for panel in panels for series in panel.frame["series"]}
        extras = {kind for panel in panels for kind in panel.frames} - {"curves"}
        rows = -(-(len(drawn) + len(extras)) // columns)
        figure, plots = page(
            width, 3.2 + 0.2 * rows, title=title, caption=[caption, BAND if banded else "", LOST_POINTS if lost else ""]
        )
        axes = cast(list[Axes], list(plots.subplots(1, len(panels), squeeze=False)[0]))
        lines: dict[str, Line2D] = {}
        for ax, panel in zip(axes, panels, strict=True):
            _draw(ax, panel, styles)
            for line in ax.get_lines():
                lines.setdefault(str(line.get_label()), line)
        labels = [label for label in styles if label in lines]
        handles = [lines[label] for label in labels]
        for handle, words in extra_legend(axes):
            labels.append(words)
            handles.append(handle)
        plots.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.4)
    return figure


def _draw(ax: Axes, panel: Panel, styles: Mapping[str, LineStyle]) -> None:
    """Draw one panel: other curves below, then ours, and dots over them."""
    ax.set_title(panel.title)
    ax.set_xlabel(panel.xlabel)
    ax.set_ylabel(panel.ylabel)
    for kind, frame in panel.frames.items():
        rows = frame.dropna(subset=[panel.y])
        if panel.xscale == "log":
            rows = rows.loc[rows[panel.x] > 0]
        for series, style in styles.items():
            own = rows.loc[rows["series"] == series]
            if not own.empty:
                draw_mean(ax, own, panel.x, panel.y, style, label=series, by=panel.by, kind=kind)
    if not ax.get_lines():
        raise InputError(f"panel {panel.title!r} must have rows with a {panel.y}, got none")
    ax.set_yscale(panel.yscale)
    ax.set_xscale(panel.xscale)
    if panel.xscale == "log":
        ax.grid(True, axis="x", which="minor", linewidth=0.3)
    else:
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if panel.y.endswith("accuracy"):
        ax.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=" %", decimals=None))
        ax.set_ylim(top=min(ax.get_ylim()[1], 1.0))
