"""The drawings of the studies: races of methods, and how many runs diverge at the edge of stability."""

from collections.abc import Mapping
from typing import Any, Final

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator, PercentFormatter

from decomfl_lab.errors import require
from figures.layout import legend_below, page, require_columns, require_known
from figures.style import INK, OKABE_ITO, SOFT, LineStyle, rc, series_styles

# --- races: what every method has reached after so many bytes, and after so many forward passes -----------------------

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


def ranking(frame: pd.DataFrame, styles: Mapping[str, LineStyle], *, title: str = "", caption: str = "") -> Figure:
    """Who took how many bytes on the one problem of ``frame``; see ``races``."""
    column, label = next(iter(AXES.items()))
    with matplotlib.rc_context(rc()):
        figure, plots = page(6.2, 0.26 * frame["line"].nunique() + 0.7, title=title, caption=[caption])
        ax = plots.subplots()
        _ranking(ax, frame, column, styles)
        ax.set(xlabel=label, title=frame["problem"].iloc[0])
    return figure


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
    ax.axhline(target, color=SOFT, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
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
    ax.set_yticks(range(len(found)), [str(line) for line in found.index])
    ax.set_ylim(len(found) - 0.4, -0.6)
    ax.grid(False, axis="y")
    ax.xaxis.set_major_formatter(EngFormatter("B" if column.endswith("bytes") else ""))


# --- the edge of stability --------------------------------------------------------------------------------------------

_ORANGE, _GREEN, _BLUE, _RED, _PINK, _SKY = OKABE_ITO
_SERIES: Final = ((_BLUE, "o", "-"), (_RED, "s", "--"), (_ORANGE, "D", ":"))
_BANDS: Final = (_GREEN, _PINK)
_STAYED, _APART = _BLUE, _RED
_HIGHEST: Final = 20.0
_SLANTED: Final[dict[str, Any]] = {"rotation": 38, "ha": "right", "rotation_mode": "anchor"}
_LEAST_ROOM: Final = 0.055  # between two series at one point, as a share of the distance to the next point


def edge(
    by_step: pd.DataFrame,
    lines: pd.DataFrame,
    along: pd.DataFrame,
    *,
    limits: Mapping[str, tuple[float, float]],
    title: str = "",
    caption: str = "",
) -> Figure:
    """Shares of runs that diverge, above; the test loss, T and S on the way of every run, below.

    Args:
        by_step: Columns series, h (η/(1 − β)), share, low and high (ends of an interval).
        lines: Columns knob ("B", "P", "K" or "β"), at (its value), share, low and high; there may be no row.
        along: Columns run, apart, step, test_loss, push (T) and load (S): measurements of some runs.
        limits: Name -> the range of h in which a limit lies: a vertical band in the first panel.
        title: Heading.
        caption: The text under the plots: data, scale, seeds, the rule.

    Returns:
        A figure without pyplot state.

    Raises:
        InputError: If a column is missing, by_step or along has no row, or there are too many series or limits.
    """
    require_columns("by_step", by_step, ("series", "h", "share", "low", "high"))
    require_columns("along", along, ("run", "apart", "step", "test_loss", "push", "load"))
    series = list(dict.fromkeys(by_step["series"]))
    require(len(series) <= len(_SERIES), "series of by_step", f"be at most {len(_SERIES)}", series)
    require(len(limits) <= len(_BANDS), "limits", f"be at most {len(_BANDS)}", list(limits))
    with matplotlib.rc_context(rc()):
        figure, plots = page(11.0, 6.4, title=title, caption=[caption])
        grid = plots.add_gridspec(2, 6)
        steps = plots.add_subplot(grid[0, :3])
        ticks = sorted(set(by_step["h"]))
        for (name, (low, high)), colour in zip(limits.items(), _BANDS, strict=False):
            steps.axvspan(low, high, facecolor=colour, edgecolor=colour, alpha=0.25, linewidth=1.5, label=name)
        for i, (name, (colour, marker, dash)) in enumerate(zip(series, _SERIES, strict=False)):
            own = by_step[by_step["series"] == name].sort_values("h")
            beside = np.exp(_LEAST_ROOM * (i - (len(series) - 1) / 2))  # so that intervals do not cover each other
            _intervals(steps, own["h"] * beside, own, colour, marker, label=name, dash=dash)
        steps.set_xscale("log")
        steps.set_xticks(ticks, [f"{h:g}" for h in ticks], **_SLANTED)
        steps.set_xticks([], minor=True)
        steps.set_xlabel("η/(1 − β)")
        _percent(steps)
        steps.set_title("runs that diverge, by step size")
        _shares_by_knob(plots.add_subplot(grid[0, 3:]), lines)
        loss, push, load = (plots.add_subplot(grid[1, 2 * i : 2 * i + 2]) for i in range(3))
        _way(loss, along, "test_loss", "where the test loss turns …")
        loss.set_ylim(0.8 * float(along["test_loss"].min()), min(loss.get_ylim()[1], _HIGHEST))
        handles = [Line2D([], [], color=colour, linewidth=1.6) for colour in (_STAYED, _APART)]
        _way(push, along, "push", "… T: noise over descent …", limit="loss rises above")
        _way(load, along, "load", "… S: stability used up", limit="unstable above")
        runs = [*zip(handles, ("run that stayed together", "run that diverged"), strict=True)]
        legend_below(plots, [steps], columns=4, more=runs)
    return figure


def _shares_by_knob(ax: Axes, frame: pd.DataFrame) -> None:
    """The values of each knob side by side, a group a knob."""
    ax.set_title("by batch size, directions, local steps, momentum")
    places, labels, at = [], [], 0.0
    for knob, own in frame.groupby("knob", sort=False):
        ordered = own.sort_values("at")
        x = at + np.arange(len(ordered))
        colour, marker, dash = _SERIES[0]
        _intervals(ax, x, ordered, colour, marker, label=str(knob), dash=dash)
        places += x.tolist()
        labels += [f"{knob} = {value:g}" for value in ordered["at"]]
        at = float(x[-1]) + 1.7
    if not places:
        ax.text(0.5, 0.5, "not run here", transform=ax.transAxes, ha="center", color=SOFT)
    ax.set_xticks(places, labels, **_SLANTED)
    ax.grid(visible=False, axis="x")
    _percent(ax)


def _intervals(ax: Axes, x: Any, frame: pd.DataFrame, colour: str, marker: str, *, label: str, dash: str) -> None:
    errors = [frame["share"] - frame["low"], frame["high"] - frame["share"]]
    ax.errorbar(
        x, frame["share"], yerr=errors, color=colour, marker=marker, markersize=5.0, markerfacecolor="white",
        linewidth=1.4, linestyle=dash, elinewidth=1.0, capsize=2.4, label=label, zorder=3,
    )  # fmt: skip


def _way(ax: Axes, along: pd.DataFrame, y: str, title: str, *, limit: str = "") -> None:
    """A line a run, those that stayed below those that diverged; and the limit of 1, if there is one."""
    for apart in (False, True):
        for _, run in along[along["apart"] == apart].groupby("run", sort=False):
            own = run.sort_values("step").dropna(subset=[y])
            colour = _APART if apart else _STAYED
            ax.plot(
                own["step"], own[y].clip(upper=_HIGHEST), color=colour, linewidth=1.1, alpha=0.6, zorder=2.5 + apart
            )
    ax.set(yscale="log", xlabel="local steps", title=title)
    if limit:
        ax.axhline(1.0, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=4)
        started = along.groupby("run", sort=False)["test_loss"].transform("first")
        kept = along[y][
            (along["test_loss"] <= started) & (along[y] > 0)
        ]  # a net that is lost may have no curvature left
        ax.set_ylim(0.5 * float(kept.min()) if len(kept) else None, _HIGHEST)
        ax.annotate(
            limit, (0.0, 1.0), (4, 3), xycoords=("axes fraction", "data"), textcoords="offset points", color=INK,
            fontsize=7.6, zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
        )  # fmt: skip


def _percent(ax: Axes) -> None:
    ax.set_ylim(-0.03, 1.03)
    ax.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=" %", decimals=0))
