"""The drawing of the study of the edge of stability: how many runs diverge, and on what way."""

from collections.abc import Mapping
from typing import Any, Final, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from decomfl_lab.errors import require
from figures.layout import Words, legend_below, page
from figures.style import INK, OKABE_ITO, SOFT

_ORANGE, _GREEN, _BLUE, _RED, _PINK, _SKY = OKABE_ITO
_SERIES: Final = ((_BLUE, "o", "-"), (_RED, "s", "--"), (_ORANGE, "D", ":"))  # colour, marker, dash
_BANDS: Final = (_GREEN, _PINK)
_STAYED, _APART = _BLUE, _RED
_HIGHEST: Final = 20.0  # at which losses, S and T are cut off
_SLANTED: Final[dict[str, Any]] = {"rotation": 38, "ha": "right", "rotation_mode": "anchor"}
_LEAST_ROOM: Final = 0.055  # between two series at one point, as a share of the distance to the next point


def edge(
    by_step: pd.DataFrame,
    lines: pd.DataFrame,
    along: pd.DataFrame,
    *,
    limits: Mapping[str, tuple[float, float]],
    **words: Unpack[Words],
) -> Figure:
    """Shares of runs that diverge, above; the test loss, T and S on the way of every run, below.

    Args:
        by_step: Columns series, h (η/(1 − β)), share, low and high (ends of an interval).
        lines: Columns knob ("B", "P", "K" or "β"), at (its value), share, low and high; there may be no row.
        along: Columns run, apart, step, test_loss, push (T) and load (S): measurements of some runs.
        limits: Name -> the range of h in which a limit lies: a vertical band in the first panel.
        words: See ``Words``.

    Returns:
        A figure without pyplot state; InputError if there are too many series or limits.
    """
    series = list(dict.fromkeys(by_step["series"]))
    require(len(series) <= len(_SERIES), "series of by_step", f"be at most {len(_SERIES)}", series)
    require(len(limits) <= len(_BANDS), "limits", f"be at most {len(_BANDS)}", list(limits))
    with page(11.0, 6.4, words) as (figure, plots):
        grid = plots.add_gridspec(2, 6)
        steps = plots.add_subplot(grid[0, :3])
        ticks = sorted(set(by_step["h"]))
        for (name, (low, high)), colour in zip(limits.items(), _BANDS, strict=False):
            steps.axvspan(low, high, facecolor=colour, edgecolor=colour, alpha=0.25, linewidth=1.5, label=name)
        for i, (name, (colour, marker, dash)) in enumerate(zip(series, _SERIES, strict=False)):
            points = by_step[by_step["series"] == name].sort_values("h")
            beside = np.exp(_LEAST_ROOM * (i - (len(series) - 1) / 2))  # so that intervals do not cover each other
            _intervals(steps, points["h"] * beside, points, colour, marker, label=name, dash=dash)
        steps.set_xscale("log")
        steps.set_xticks(ticks, [f"{h:g}" for h in ticks], **_SLANTED)
        steps.set_xticks([], minor=True)
        steps.set_xlabel("η/(1 − β)")
        steps.set_title("runs that diverge, by step size")
        # The values of each knob side by side, a group a knob.
        by_knob = plots.add_subplot(grid[0, 3:])
        by_knob.set_title("by batch size, directions, local steps, momentum")
        places: list[float] = []
        labels: list[str] = []
        at = 0.0
        for knob, points in lines.groupby("knob", sort=False):
            ordered = points.sort_values("at")
            x = at + np.arange(len(ordered))
            colour, marker, dash = _SERIES[0]
            _intervals(by_knob, x, ordered, colour, marker, label=str(knob), dash=dash)
            places += x.tolist()
            labels += [f"{knob} = {value:g}" for value in ordered["at"]]
            at = float(x[-1]) + 1.7
        if not places:
            by_knob.text(0.5, 0.5, "not run here", transform=by_knob.transAxes, ha="center", color=SOFT)
        by_knob.set_xticks(places, labels, **_SLANTED)
        by_knob.grid(visible=False, axis="x")
        for ax in (steps, by_knob):
            ax.set_ylim(-0.03, 1.03)
            ax.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=" %", decimals=0))
        loss, push, load = (plots.add_subplot(grid[1, 2 * i : 2 * i + 2]) for i in range(3))
        _way(loss, along, "test_loss", "where the test loss turns …")
        loss.set_ylim(0.8 * float(along["test_loss"].min()), min(loss.get_ylim()[1], _HIGHEST))
        handles = [Line2D([], [], color=colour, linewidth=1.6) for colour in (_STAYED, _APART)]
        _way(push, along, "push", "… T: noise over descent …", limit="loss rises above")
        _way(load, along, "load", "… S: stability used up", limit="unstable above")
        runs = [*zip(handles, ("run that stayed together", "run that diverged"), strict=True)]
        legend_below(plots, [steps], columns=4, more=runs)
    return figure


def _intervals(ax: Axes, x: Any, frame: pd.DataFrame, colour: str, marker: str, *, label: str, dash: str) -> None:
    """The shares of a frame at these places, with their intervals."""
    errors = [frame["share"] - frame["low"], frame["high"] - frame["share"]]
    ax.errorbar(
        x, frame["share"], yerr=errors, color=colour, marker=marker, markersize=5.0, markerfacecolor="white",
        linewidth=1.4, linestyle=dash, elinewidth=1.0, capsize=2.4, label=label, zorder=3,
    )  # fmt: skip


def _way(ax: Axes, along: pd.DataFrame, y: str, title: str, *, limit: str = "") -> None:
    """A line a run, those that stayed below those that diverged; and the limit of 1, if there is one."""
    for apart in (False, True):
        for _, run in along[along["apart"] == apart].groupby("run", sort=False):
            path = run.sort_values("step").dropna(subset=[y])
            colour = _APART if apart else _STAYED
            ax.plot(
                path["step"], path[y].clip(upper=_HIGHEST), color=colour, linewidth=1.1, alpha=0.6, zorder=2.5 + apart
            )
    ax.set(yscale="log", xlabel="local steps", title=title)
    if limit:
        ax.axhline(1.0, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=4)
        started = along.groupby("run", sort=False)["test_loss"].transform("first")
        # A net that is lost may have no curvature left.
        kept = along[y][(along["test_loss"] <= started) & (along[y] > 0)]
        ax.set_ylim(0.5 * float(kept.min()) if len(kept) else None, _HIGHEST)
        ax.annotate(
            limit, (0.0, 1.0), (4, 3), xycoords=("axes fraction", "data"), textcoords="offset points", color=INK,
            fontsize=7.6, zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
        )  # fmt: skip
