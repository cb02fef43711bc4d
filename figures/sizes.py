"""Models of several sizes trained alike: their curves, and the rounds that they need against d and against κ."""

from collections.abc import Mapping
from typing import Final, Unpack

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

from figures.curves import BAND, draw_mean
from figures.layout import Words, axes_of, legend_below, page, require_known
from figures.style import SOFT, LineStyle

READINGS: Final[Mapping[str, str]] = {"kappa": "o", "d": "s"}  # what the rounds are drawn against, with its marker
ROOM: Final = 3.0  # times the rounds of the smallest model, up and down, that the last panel shows at least


def size_figure(
    curves: pd.DataFrame,
    points: pd.DataFrame,
    styles: Mapping[str, LineStyle],
    *,
    share: float,
    **words: Unpack[Words],
) -> Figure:
    """Accuracy and loss against rounds; and the rounds to a share of a run's fall against κ and against d.

    In the last panel a model's circle is at its κ and its square at its d, joined by a line; the dashed line is what
    rounds in proportion to d would be, from the smallest model on.

    Args:
        curves: Evaluations of every run, with columns series, seed, round, test_accuracy and relative_loss (test loss
            over that at round 0).
        points: One row a model, with columns series, d, kappa, kappa_low, kappa_high, rounds, rounds_low,
            rounds_high; rounds are NaN where they were not reached.
        styles: The style of every series, in the order of the legend.
        share: The share of the fall at which a run has converged, for the words of the caption.
        words: See ``Words``.

    Returns:
        A figure without pyplot state; InputError if a series has no style.
    """
    require_known("series", {*curves["series"], *points["series"]}, styles)
    banded = bool((curves.groupby("series")["seed"].nunique() > 1).any())
    reached = points.dropna(subset=["rounds"])
    with page(14.0, 3.6, words, [BAND if banded else ""]) as (figure, plots):
        accuracy, loss, needed = axes_of(plots, 1, 3)
        for series, style in styles.items():
            of_series = curves[curves["series"] == series]
            if not of_series.empty:
                draw_mean(accuracy, of_series, "round", "test_accuracy", style, label=series)
                draw_mean(loss, of_series, "round", "relative_loss", style, label=series)
        for ax in (accuracy, loss):
            ax.set_xlabel("rounds completed")
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        accuracy.set_title("test accuracy")
        accuracy.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=" %", decimals=None))
        loss.set_title("test loss, of that before training")
        _needed(needed, reached, styles, share)
        legend_below(plots, [accuracy], columns=len(styles))
    return figure


def _needed(ax: Axes, points: pd.DataFrame, styles: Mapping[str, LineStyle], share: float) -> None:
    """The panel of the rounds, of those models that got there."""
    ax.set_title(f"rounds to {share:.0%} of the fall")
    ax.set_xlabel("circles: effective rank κ;  squares: parameters d")
    ax.set_ylabel("rounds")
    if points.empty:
        ax.text(0.5, 0.5, "no run got there", transform=ax.transAxes, ha="center", color=SOFT)
        return
    for point in points.to_dict("records"):
        style = styles[point["series"]]
        ax.plot([point["kappa"], point["d"]], [point["rounds"]] * 2, color=style.color, linewidth=0.6, alpha=0.6)
        for reading, marker in READINGS.items():
            at = point[reading]
            across = [[at - point["kappa_low"]], [point["kappa_high"] - at]] if reading == "kappa" else None
            up = [[point["rounds"] - point["rounds_low"]], [point["rounds_high"] - point["rounds"]]]
            ax.errorbar(
                at, point["rounds"], yerr=up, xerr=across, color=style.color, marker=marker, markersize=6.5, capsize=2.5
            )
    ax.set(xscale="log", yscale="log")
    smallest, ratio = points.sort_values("d").iloc[0], points["d"].max() / points["d"].min()
    d, rounds = smallest["d"], smallest["rounds"]
    if ratio > 1:
        dash = (0.0, (5.0, 1.8))
        (line,) = ax.plot([d, ratio * d], [rounds, ratio * rounds], color=SOFT, linestyle=dash, linewidth=1.2)
        ax.legend([line], ["in proportion to d"], loc="upper left")
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, rounds / ROOM), max(high, rounds * ROOM))
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
