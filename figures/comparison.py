"""Methods or settings side by side: any quantity against any other, a panel each, one legend for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Unpack

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from decomfl_lab.errors import require_choice
from figures.curves import BAND, COUNT_LABELS, Count, Kind, draw_mean, extra_legend
from figures.layout import LOST_POINTS, Words, axes_of, legend_below, page, require_known
from figures.style import LineStyle

_LEAST_WIDTH: Final = 9.6  # inches of a figure at least; long labels need them
_LOGIT_TICKS: Final = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """One pair of axes."""

    # rows with columns ``series``, ``seed``, ``by``, ``x`` and ``y``; rows without a y are left out. There may be none
    # yet.
    frame: pd.DataFrame
    x: str  # column of the x-axis
    y: str  # column of the y-axis
    xlabel: str  # the label under the x-axis
    ylabel: str  # the label beside the y-axis
    title: str  # the heading above the panel
    xscale: Literal["log", "linear"] = "linear"  # "log" or "linear"
    yscale: Literal["log", "linear", "logit"] = "linear"  # "log", "linear", or "logit" to spread shares near 1
    ylimits: tuple[float, float] | None = None  # range of the y-axis; None fits the data
    by: str = "round"  # column that says which points of two seeds belong together
    reference: pd.DataFrame | None = None  # the authors' rows, of the same columns, drawn thin and dashed; or None
    checks: pd.DataFrame | None = None  # the same curves measured in another way, drawn as dots; or None
    longer: pd.DataFrame | None = None  # the same curves from longer runs, drawn thin; or None

    @property
    def frames(self) -> dict[Kind, pd.DataFrame]:
        """What is drawn, from below to above; of frames without a row nothing is."""
        kinds: dict[Kind, pd.DataFrame | None] = {
            "longer": self.longer,
            "reference": self.reference,
            "curves": self.frame,
            "checks": self.checks,
        }
        return {kind: frame for kind, frame in kinds.items() if frame is not None and not frame.empty}


def by_communication(frame: pd.DataFrame, count: Count, **given: Any) -> Panel:
    """The panel of test accuracy against communicated scalars per client, on a logarithmic axis.

    Args:
        frame: See `Panel`.
        count: How scalars are counted: "wire" (bytes really encoded / 4), "table1" (the paper's formula) or "plotted"
            (what the paper's axis did).
        given: Other attributes of the panel.

    Raises:
        InputError: If ``count`` is unknown.
    """
    require_choice("count", count, COUNT_LABELS)
    xlabel = f"communicated scalars per client\n({COUNT_LABELS[count]})"
    texts = {"title": "accuracy against communication", "xscale": "log"} | given
    return Panel(frame=frame, x=f"{count}_scalars", y="test_accuracy", xlabel=xlabel, ylabel="test accuracy", **texts)


def by_rounds(frame: pd.DataFrame, **given: Any) -> Panel:
    """The panel of test accuracy, or of another y that is given with its words, against rounds."""
    texts = {"y": "test_accuracy", "ylabel": "test accuracy", "title": "accuracy against rounds"} | given
    return Panel(frame=frame, x="round", xlabel="rounds completed", **texts)


def comparison(
    panels: Sequence[Panel],
    styles: Mapping[str, LineStyle],
    *,
    across: int | None = None,
    **words: Unpack[Words],
) -> Figure:
    """Draw the panels in a row or in several, the series in the order of ``styles``, with one legend under all.

    Args:
        panels: The panels from left to right, at least one; one without a point to draw is left empty.
        styles: Style of every series; those that no panel has are left out of the legend.
        across: Panels in a row, which then share their axes with those of the other rows; None for a single row.
        words: See ``Words``.

    Returns:
        A figure without pyplot state; the caller saves it.

    Raises:
        InputError: If a series has no style.
    """
    frames = [(panel, kind, frame) for panel in panels for kind, frame in panel.frames.items()]
    for panel, _, frame in frames:
        require_known(f"series of panel {panel.title!r}", frame["series"], styles)
    averaged = [frame.groupby("series")["seed"] for _, kind, frame in frames if kind in ("curves", "reference")]
    banded = any(bool((seeds.nunique() > 1).any()) for seeds in averaged)
    lost = any(panel.xscale == "log" and bool((frame[panel.x] <= 0).any()) for panel, _, frame in frames)
    shared = across is not None
    across = across or len(panels)
    down = -(-len(panels) // across)
    columns = 2 if across == 1 else 4
    drawn = {series for panel in panels for series in panel.frame["series"]}
    extras = {kind for panel in panels for kind in panel.frames} - {"curves"}
    rows = -(-(len(drawn) + len(extras)) // columns)
    more = [BAND if banded else "", LOST_POINTS if lost else ""]
    with page(max(4.8 * across, _LEAST_WIDTH), 3.2 * down + 0.2 * rows, words, more) as (figure, plots):
        axes = axes_of(plots, down, across, sharex=shared, sharey=shared)
        for ax, panel in zip(axes, panels, strict=False):
            # Other curves below, then ours, and dots over them.
            ax.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel)
            for kind, frame in panel.frames.items():
                shown = frame.dropna(subset=[panel.y])
                if panel.xscale == "log":
                    shown = shown.loc[shown[panel.x] > 0]
                for series, style in styles.items():
                    of_series = shown.loc[shown["series"] == series]
                    if not of_series.empty:
                        draw_mean(ax, of_series, panel.x, panel.y, style, label=series, by=panel.by, kind=kind)
            ax.set(xscale=panel.xscale, yscale=panel.yscale)
            if panel.ylimits is not None:
                ax.set_ylim(*panel.ylimits)
            if panel.xscale == "log":
                ax.grid(True, axis="x", which="minor", linewidth=0.3)
            else:
                ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            if panel.yscale == "logit":
                ax.yaxis.set_major_locator(FixedLocator(_LOGIT_TICKS))
                ax.yaxis.set_minor_locator(NullLocator())
            if panel.y.endswith("accuracy"):
                ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
            if shared:
                ax.label_outer()
        legend_below(plots, axes, columns=columns, order=styles, more=extra_legend(axes))
    return figure
