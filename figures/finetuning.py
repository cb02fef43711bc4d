"""Fine-tuning in pictures: accuracies of every method on every task, and what a round sends against d."""

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from figures.layout import Words, axes_of, page, require_known
from figures.style import INK, LOOKS, SOFT, LineStyle

_GREY = "#8C959F"
_BEFORE: Mapping[str, tuple[str, Any]] = LOOKS["before"]
"""Column of an accuracy that needs no training: its name and how its line is drawn."""
_MARKERS = ("o", "s", "^")
_COLUMNS = 4


def accuracies(frame: pd.DataFrame, styles: Mapping[str, LineStyle], **words: Unpack[Words]) -> Figure:
    """A panel a task: each method's accuracy with two standard errors, and as lines what needs no training.

    Args:
        frame: A row for each cell, with columns panel (its title), series, tuned (what is trained: a marker each),
            accuracy, error (standard), printed (the paper's accuracy or NaN, a hollow diamond), and zero_shot,
            calibrated_zero_shot, majority, of which a panel shows the first row's.
        styles: Colour of every series, in the order from top to bottom.
        words: See ``Words``.

    Raises:
        InputError: If a series has no style.
    """
    require_known("series", frame.series, styles)
    names = [name for name in styles if name in set(frame.series)]
    markers = dict(zip(dict.fromkeys(frame.tuned), _MARKERS, strict=False))
    panels = list(frame.groupby("panel", sort=False))
    across = min(_COLUMNS, len(panels))
    down = -(-len(panels) // across)
    height = down * (0.9 + 0.27 * len(names)) + 0.6
    with page(max(6.0, 2.9 * across + 0.6), height, words) as (figure, plots):
        axes = axes_of(plots, down, across, sharey=True)
        for ax, (panel, cells) in zip(axes, panels, strict=False):
            ax.set_title(str(panel))
            for column, (_, dash) in _BEFORE.items():
                ax.axvline(float(cells[column].iloc[0]), color=SOFT, linestyle=dash, linewidth=1.1, zorder=1)
            for cell in cells.to_dict("records"):
                place = list(markers).index(cell["tuned"]) - (len(markers) - 1) / 2
                y = names.index(cell["series"]) + 0.3 * place
                ax.plot([cell["printed"]], [y], "D", markersize=5, markerfacecolor="white", color=_GREY, zorder=2)
                ax.errorbar(
                    [cell["accuracy"]],
                    [y],
                    xerr=[2 * cell["error"]],
                    fmt=markers[cell["tuned"]],
                    markersize=4.5,
                    color=styles[cell["series"]].color,
                    elinewidth=1.4,
                    zorder=3,
                )
            ax.xaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=" %", decimals=0))
            ax.tick_params(axis="y", length=0)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_ylim(len(names) - 0.4, -0.6)  # the first on top; shared by all
        key = [_spot(marker, INK, name) for name, marker in markers.items()]
        key += [_spot("D", _GREY, "the paper's, of its own model", hollow=True), *map(_line, _BEFORE.values())]
        plots.legend(handles=key, loc="outside lower center", ncols=3, frameon=False, handlelength=2.4)
    return figure


def _spot(marker: str, colour: str, label: str, *, hollow: bool = False) -> Line2D:
    """An entry of a legend: a marker."""
    face = "white" if hollow else colour
    return Line2D([], [], marker=marker, linestyle="", markersize=5, markerfacecolor=face, color=colour, label=label)


def _line(entry: tuple[str, Any]) -> Line2D:
    """An entry of a legend: (what is said of a grey line, its dash)."""
    name, dash = entry
    return Line2D([], [], color=SOFT, linestyle=dash, linewidth=1.1, label=name)


def round_costs(
    frame: pd.DataFrame,
    formulas: Mapping[str, tuple[float, float]],
    styles: Mapping[str, LineStyle],
    **words: Unpack[Words],
) -> Figure:
    """Bytes that a client moves a round against d, both axes logarithmic: measured, printed, and by formula.

    Args:
        frame: Columns series, d, bytes (a client and round), printed (whether the paper has it: hollow).
        formulas: {series: (a, b)}: bytes = a + b·d, drawn dashed.
        styles: Colour of every series.
        words: See ``Words``.

    Raises:
        InputError: If a series has no style.
    """
    require_known("series", {*frame.series, *formulas}, styles)
    with page(5.8, 4.2, words) as (figure, plots):
        ax = plots.subplots()
        d = np.geomspace(frame.d.min() / 2, frame.d.max() * 2, 50)
        for name, (constant, slope) in formulas.items():
            ax.plot(d, constant + slope * d, color=styles[name].color, linestyle="dashed", linewidth=1.0)
        for cell in frame.to_dict("records"):
            colour = styles[cell["series"]].color
            marker, face = ("D", "white") if cell["printed"] else ("o", colour)
            ax.plot(cell["d"], cell["bytes"], marker, markerfacecolor=face, color=colour, markersize=5)
        ax.set(xscale="log", yscale="log", xlabel="trained parameters d", ylabel="bytes a client and round")
        handles = [_spot("o", style.color, series) for series, style in styles.items() if series in set(frame.series)]
        handles += [_spot("D", SOFT, "printed in the paper", hollow=True), _line(("the paper's formula", "dashed"))]
        plots.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure
