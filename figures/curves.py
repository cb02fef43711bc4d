"""Test accuracy against communicated scalars, as in the paper's Figure 2."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator, PercentFormatter

from decomfl_lab.errors import InputError, require, require_choice
from figures.layout import LOST_POINTS, page, require_columns
from figures.style import AUTHORS_DASH, CHECKS, LineStyle, rc, series_styles

__all__ = [
    "BAND",
    "COUNT_LABELS",
    "Count",
    "Kind",
    "accuracy_by_communication",
    "draw_mean",
    "extra_legend",
    "mean_and_band",
]

Count = Literal["wire", "table1", "plotted"]
YScale = Literal["linear", "logit"]

BAND = "Bands: mean ± 1 standard deviation for 3 or more seeds, minimum to maximum for 2, none for 1."

_COLUMNS = ("reading", "panel", "method", "series", "K", "P", "seed", "round", "test_accuracy")
COUNT_LABELS: dict[str, str] = {
    "wire": "counted by wire: bytes really encoded / 4",
    "table1": "counted by the formula of the paper's Table 1",
    "plotted": "counted as on the paper's own axis",
}
_PANELS = {"local-updates": "K", "perturbations": "P"}
_PANEL_TITLES = {"local-updates": "local updates K", "perturbations": "perturbations P"}
_BASELINE = "FedAvg"
Kind = Literal["curves", "reference", "longer", "checks"]
_LINE_OF: Mapping[str, Callable[[LineStyle], dict[str, Any]]] = {
    "reference": lambda style: {
        "color": style.color,
        "linestyle": AUTHORS_DASH,
        "linewidth": 0.9,
        "alpha": 0.6,
        "zorder": 2.0,
    },
    "longer": lambda style: {
        "color": style.color,
        "linestyle": style.dash,
        "linewidth": 0.8,
        "alpha": 0.55,
        "zorder": 1.9,
    },
    "checks": lambda style: {"color": style.color, **CHECKS, "markevery": 0.035, "zorder": 3.2},
}
"""How the kinds of curves are drawn that have no band."""
_EXTRA = {
    "checks": "dots: finite differences, μ = 1e-4",
    "longer": "thin: recorded runs at full scale",
    "reference": "authors' logs (same colours)",
}
_LOGIT_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)


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
        InputError: If a column is missing, ``curves`` is empty, a (seed, round) occurs twice, or the seeds
            have no evaluated round in common.
    """
    require_columns("curves", curves, ("seed", by, x, y))
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


def accuracy_by_communication(
    curves: pd.DataFrame,
    *,
    count: Count = "wire",
    reference: pd.DataFrame | None = None,
    checks: pd.DataFrame | None = None,
    longer: pd.DataFrame | None = None,
    title: str = "",
    caption: str = "",
    yscale: YScale = "linear",
    ylimits: tuple[float, float] | None = None,
) -> Figure:
    """Draw test accuracy against accumulated communicated scalars per client, on a logarithmic axis.

    One row of axes for each reading; left, local updates K at fixed P; right, perturbations P at fixed K; the
    first-order baseline in both (a panel without FedAvg rows of its own borrows those of the other panel).

    Args:
        curves: One row for each evaluation of each run, with columns ``reading``, ``panel``
            ("local-updates" or "perturbations"), ``method``, ``series`` (legend label), ``K``, ``P``,
            ``seed``, ``round`` (rounds completed), ``test_accuracy`` (0 to 1) and the column that ``count``
            names: ``wire_scalars``, ``table1_scalars`` or ``plotted_scalars``.
        count: How communicated scalars are counted: "wire" (bytes really encoded / 4), "table1" (the paper's
            formula) or "plotted" (what the paper's axis did). Points at 0 cannot be drawn, and the caption says so.
        reference: The authors' curves, same columns (their ``reading`` is ignored: they appear in each row);
            drawn thin and dashed in the colour of the same K or P, with a fainter band.
        checks: The same curves measured in another way, same columns: drawn as dots in the same colours.
        longer: The same curves from longer runs, same columns: drawn thin, below.
        title: Heading of the whole figure.
        caption: Text under the plots; say the scale of the runs here.
        yscale: "linear", or "logit" to spread accuracies near 100 %.
        ylimits: Range of the y-axis in accuracy, 0 to 1; None fits the data.

    Returns:
        A figure without pyplot state; the caller saves it.

    Raises:
        InputError: If a column is missing, a frame is empty, or ``count``, ``yscale`` or a panel is unknown.
    """
    require_choice("count", count, COUNT_LABELS)
    require_choice("yscale", yscale, ("linear", "logit"))
    x, xlabel = f"{count}_scalars", f"communicated scalars per client\n({COUNT_LABELS[count]})"
    others = {"reference": reference, "checks": checks, "longer": longer}
    frames = {"curves": curves, **{name: frame for name, frame in others.items() if frame is not None}}
    for name, frame in frames.items():
        _require_frame(name, frame, x)
    everything = pd.concat(frames.values(), ignore_index=True)
    readings = list(dict.fromkeys(curves["reading"]))
    lost = bool((everything[x] <= 0).any())
    if lost:
        frames = {name: frame.loc[frame[x] > 0] for name, frame in frames.items()}

    with matplotlib.rc_context(rc()):
        words = [caption, BAND, LOST_POINTS if lost else ""]
        figure, plots = page(9.6, 3.0 * len(readings) + 1.25, title=title, caption=words)
        axes = plots.subplots(len(readings), len(_PANELS), sharex=True, sharey=True, squeeze=False)
        for row, reading in enumerate(readings):
            for column, panel in enumerate(_PANELS):
                ax = cast(Axes, axes[row, column])
                own = {
                    name: _of_panel(frame if name == "reference" else frame[frame["reading"] == reading], panel)
                    for name, frame in frames.items()
                }
                _draw(ax, own, everything, panel=panel, x=x)
                ax.set_title(f"{reading} · {_PANEL_TITLES[panel]}{_fixed(own['curves'], panel)}")
                if column == 0:
                    ax.set_ylabel("test accuracy")
                if row == len(readings) - 1:
                    ax.set_xlabel(xlabel)
        _scale_axes(cast(list[Axes], list(axes.flat)), yscale, ylimits)
        for column in range(len(_PANELS)):
            _legend([cast(Axes, ax) for ax in axes[:, column]], below=0.29)
    return figure


def _draw(ax: Axes, frames: Mapping[str, pd.DataFrame], everything: pd.DataFrame, *, panel: str, x: str) -> None:
    """Draw the series of one panel: others below, then bands and means, and dots over them."""
    knob = _PANELS[panel]
    is_baseline = everything["method"] == _BASELINE
    in_panel = everything["panel"] == panel
    colours = _styles(everything.loc[~is_baseline & in_panel, knob], baseline=False)
    greys = _styles(everything.loc[is_baseline, "K"], baseline=True)

    for kind in ("longer", "reference", "curves", "checks"):
        for label, series in _in_order(frames[kind], knob) if kind in frames else []:
            first = series.iloc[0]
            style = greys[int(first["K"])] if first["method"] == _BASELINE else colours[int(first[knob])]
            draw_mean(ax, series, x, "test_accuracy", style, label=label, kind=kind)


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
    at, middle = mean["x"].to_numpy(), mean["y"].to_numpy()
    if kind == "reference" and int(mean["seeds"].iloc[0]) > 1:
        ax.fill_between(at, mean["low"], mean["high"], color=style.color, alpha=0.08, linewidth=0, zorder=1.8)
    if kind != "curves":
        ax.plot(at, middle, **_LINE_OF[kind](style), label=f"_{kind}")
        return
    if int(mean["seeds"].iloc[0]) > 1:
        low, high = mean["low"], mean["high"]
        if y == "test_accuracy":
            low, high = low.clip(0.0, 1.0), high.clip(0.0, 1.0)
        ax.fill_between(at, low.to_numpy(), high.to_numpy(), color=style.color, alpha=0.18, linewidth=0, zorder=2.2)
    ax.plot(
        at,
        middle,
        color=style.color,
        linestyle=style.dash,
        linewidth=style.linewidth,
        marker="o" if len(mean) <= 12 else "",
        markersize=3.2,
        zorder=3.0,
        label=label,
    )


def extra_legend(axes: Iterable[Axes]) -> list[tuple[Line2D, str]]:
    """One entry for each kind of curves in the axes that are not named one by one."""
    drawn = {str(line.get_label()) for ax in axes for line in ax.get_lines()}
    grey = LineStyle(color="#777777", dash=(0.0, ()), linewidth=1.6)
    return [(Line2D([], [], **_LINE_OF[kind](grey)), words) for kind, words in _EXTRA.items() if f"_{kind}" in drawn]


def _in_order(rows: pd.DataFrame, knob: str) -> list[tuple[str, pd.DataFrame]]:
    """Split rows by series: DeComFL by the panel's knob, then the baselines by K."""
    series = [(str(label), group) for label, group in rows.groupby("series", sort=False)]

    def key(item: tuple[str, pd.DataFrame]) -> tuple[bool, int]:
        first = item[1].iloc[0]
        baseline = bool(first["method"] == _BASELINE)
        return baseline, int(first["K" if baseline else knob])

    return sorted(series, key=key)


def _of_panel(rows: pd.DataFrame, panel: str) -> pd.DataFrame:
    """Return the rows of a panel, with the baselines of the other panel where it has none of its own."""
    own = rows.loc[rows["panel"] == panel]
    if (own["method"] == _BASELINE).any():
        return own
    others = rows.loc[(rows["panel"] != panel) & (rows["method"] == _BASELINE)]
    return pd.concat([own, others], ignore_index=True)


def _fixed(rows: pd.DataFrame, panel: str) -> str:
    """Say what is held fixed in a panel, as " (P = 20)"; empty where nothing is."""
    other = "P" if _PANELS[panel] == "K" else "K"
    values = sorted(set(rows.loc[rows["method"] != _BASELINE, other]))
    return f" ({other} = {int(values[0])})" if len(values) == 1 else ""


def _styles(values: Collection[int], *, baseline: bool) -> dict[int, LineStyle]:
    """Return the styles of the values, none where there are none."""
    integers = [int(value) for value in values]
    return series_styles(integers, baseline=baseline) if integers else {}


def _scale_axes(grid: Sequence[Axes], yscale: YScale, ylimits: tuple[float, float] | None) -> None:
    """Set scales, limits and tick texts; all axes of the grid share them."""
    for each in grid:
        each.set_yscale(yscale)
        each.set_xscale("log", nonpositive="mask")
        each.grid(True, axis="x", which="minor", linewidth=0.3)
        if yscale == "logit":
            each.yaxis.set_major_locator(FixedLocator(list(_LOGIT_TICKS)))
            each.yaxis.set_minor_locator(NullLocator())
            each.yaxis.set_minor_formatter(NullFormatter())
            each.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g} %"))
        else:
            each.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=" %", decimals=0))
    if ylimits is not None:
        grid[0].set_ylim(*ylimits)
    elif yscale == "linear":
        grid[0].set_ylim(top=min(grid[0].get_ylim()[1], 1.0))


def _legend(column: list[Axes], *, below: float) -> None:
    """Put one legend for a column of axes under its lowest axes, ``below`` in heights of axes."""
    lines: dict[str, Line2D] = {}
    for each in column:
        for line in each.get_lines():
            label = str(line.get_label())
            if not label.startswith("_"):
                lines.setdefault(label, line)
    left = [(label, line) for label, line in lines.items() if not label.startswith(_BASELINE)]
    right = [(label, line) for label, line in lines.items() if label.startswith(_BASELINE)]
    right += [(words, line) for line, words in extra_legend(column)]
    # Matplotlib fills a legend column by column; blanks keep DeComFL left and the rest right.
    blank = ("", Line2D([], [], linestyle="none"))
    rows = max(len(left), len(right))
    if left and right:
        left += [blank] * (rows - len(left))
        right += [blank] * (rows - len(right))
    column[-1].legend(
        [line for _, line in left + right],
        [label for label, _ in left + right],
        loc="upper left",
        bbox_to_anchor=(0.0, -below),
        ncols=2 if left and right else 1,
        borderaxespad=0.0,
    )


def _require_frame(name: str, frame: pd.DataFrame, x: str) -> None:
    """Raise InputError unless ``frame`` can be drawn against ``x``."""
    require_columns(name, frame, tuple(dict.fromkeys((*_COLUMNS, x))))
    unknown = sorted(set(map(str, frame["panel"])) - set(_PANELS))
    require(not unknown, f"{name} column panel", f"hold only {', '.join(_PANELS)}", unknown)
    for column in (x, "test_accuracy"):
        values = frame[column].to_numpy(dtype=float)
        broken = values[~np.isfinite(values)]
        require(not len(broken), f"{name} column {column}", "hold finite numbers", list(broken[:1]))
