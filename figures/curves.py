"""A curve with its band: the mean over seeds, beside the same curve from other runs."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from decomfl_lab.errors import InputError
from figures.style import AUTHORS_DASH, CHECKS, LOOKS, LineStyle

Count = Literal["wire", "table1", "plotted"]

BAND = "Bands: mean ± 1 standard deviation for 3 or more seeds, minimum to maximum for 2, none for 1."

COUNT_LABELS: Mapping[str, str] = LOOKS["counts"]
Kind = Literal["curves", "reference", "longer", "checks"]
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "reference": {"linestyle": AUTHORS_DASH, "linewidth": 0.9, "alpha": 0.6, "zorder": 2.0},
    "longer": {"linewidth": 0.8, "alpha": 0.55, "zorder": 1.9},
    "checks": {**CHECKS, "markevery": 0.035, "zorder": 3.2},
}
"""How the kinds of curves are drawn that have no band, but for their colours."""


def mean_and_band(curves: pd.DataFrame, x: str, y: str = "test_accuracy", by: str = "round") -> pd.DataFrame:
    """Average the seeds of one series, round by round.

        x(r) = mean_s x_s(r),   y(r) = mean_s y_s(r),   band: y ± 1 standard deviation (n - 1), n >= 3 seeds

    Seeds are evaluated at the same rounds but reach them with slightly different counts of scalars (clients
    lag differently), so both coordinates are averaged. Rounds that not every seed has reached are left out:
    a mean over fewer seeds would jump where a run ends.

    Args:
        curves: The rows of one series, with columns ``seed``, ``x``, ``y`` and ``by``.
        x: The column of the x-axis.
        y: The column of the y-axis.
        by: The column that says which points of two seeds belong together.

    Returns:
        Frame with columns ``round`` (or ``by``), ``x``, ``y``, ``low``, ``high``, ``seeds``, ordered by it; ``low``
        and ``high`` are minimum and maximum for two seeds, and equal ``y`` for one.

    Raises:
        InputError: If a (seed, round) occurs twice, or the seeds have no evaluated round in common.
    """
    repeated = curves.duplicated(["seed", by])
    if repeated.any():
        first = curves.loc[repeated].iloc[0]
        raise InputError(
            f"curves must hold each seed and {by} of a series once, got seed {first['seed']} {by} {first[by]} again"
        )
    number_of_seeds = int(curves["seed"].nunique())
    frame = pd.DataFrame({by: curves[by], "x": curves[x], "y": curves[y]})
    groups = frame.groupby(by, sort=True)
    result = groups.mean()
    result["low"] = groups["y"].min()
    result["high"] = groups["y"].max()
    if number_of_seeds >= 3:
        deviation = groups["y"].std(ddof=1)
        result["low"] = result["y"] - deviation
        result["high"] = result["y"] + deviation
    result = result.loc[groups.size() == number_of_seeds]
    if result.empty:
        raise InputError(f"curves must share at least one evaluated {by} between the seeds of a series, got none")
    result["seeds"] = number_of_seeds
    return result.reset_index()


def draw_mean(
    ax: Axes,
    series: pd.DataFrame,
    x: str,
    y: str,
    style: LineStyle,
    *,
    label: str,
    by: str = "round",
    kind: Kind = "curves",
) -> None:
    """Draw the mean over seeds with its band (of longer and checks without).

    Args:
        ax: The axes to draw on.
        series: The rows of one series, as `mean_and_band` wants them.
        x: Column of the x-axis.
        y: Column of the y-axis; a band of an accuracy is cut at 0 and 1.
        style: Colour, dash and width.
        label: The label in the legend; other kinds than curves have one entry for all, see ``extra_legend``.
        by: See `mean_and_band`.
        kind: curves; reference, the authors' logs: thin, dashed, fainter; longer, from longer runs: thin; checks, the
            same measured in another way: dots.
    """
    mean = mean_and_band(series, x, y, by)
    xs, ys = mean["x"].to_numpy(), mean["y"].to_numpy()
    if kind == "reference" and int(mean["seeds"].iloc[0]) > 1:
        ax.fill_between(xs, mean["low"], mean["high"], color=style.color, alpha=0.08, linewidth=0, zorder=1.8)
    if kind != "curves":
        ax.plot(xs, ys, **_line(kind, style), label=f"_{kind}")
        return
    if int(mean["seeds"].iloc[0]) > 1:
        low, high = mean["low"], mean["high"]
        if y == "test_accuracy":
            low, high = low.clip(0.0, 1.0), high.clip(0.0, 1.0)
        ax.fill_between(xs, low.to_numpy(), high.to_numpy(), color=style.color, alpha=0.18, linewidth=0, zorder=2.2)
    ax.plot(
        xs,
        ys,
        color=style.color,
        linestyle=style.dash,
        linewidth=style.linewidth,
        marker="o" if len(mean) <= 12 else "",
        markersize=3.2,
        zorder=3.0,
        label=label,
    )


def _line(kind: str, style: LineStyle) -> dict[str, Any]:
    """What matplotlib is told of a curve without a band."""
    return {"color": style.color, "linestyle": style.dash, **_KINDS[kind]}


def extra_legend(axes: Iterable[Axes]) -> list[tuple[Line2D, str]]:
    """One entry for each kind of curves in the axes that are not named one by one."""
    drawn = {str(line.get_label()) for ax in axes for line in ax.get_lines()}
    grey = LineStyle(color="#777777", dash=(0.0, ()), linewidth=1.6)
    return [
        (Line2D([], [], **_line(kind, grey)), words) for kind, words in LOOKS["kinds"].items() if f"_{kind}" in drawn
    ]
