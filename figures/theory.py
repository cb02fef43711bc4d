"""Theory against truth: bounds beside what is measured, speed-ups, step sizes, and a model that was really trained."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Unpack, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from figures.layout import Words, axes_of, legend_below, page, require_known
from figures.style import LOOKS, OKABE_ITO, SOFT, Dash, LineStyle

_BLUE = OKABE_ITO[2]
_DASHES: Final[Mapping[str, Dash]] = {"solid": (0.0, ()), "dashed": (0.0, (5.0, 1.8)), "dotted": (0.0, (1.2, 1.5))}
LINES: Final[Mapping[str, LineStyle]] = {
    series: LineStyle(color=colour, dash=_DASHES[dash], linewidth=width)
    for series, (colour, dash, width) in LOOKS["bounds"].items()
}
"""The series of ``dimension_free`` and ``training``."""
SPEED_LINES: Final[Mapping[str, Dash]] = {series: _DASHES[dash] for series, dash in LOOKS["speed_ups"].items()}
"""The series of ``speed_ups``, with their dashes."""
NOISES: Final[Mapping[str, tuple[str, float]]] = LOOKS["noises"]
"""What makes rounds necessary in ``speed_ups``: noise of gradients, dissimilarity of clients; colour and width."""
CONDITIONS: Final[Mapping[str, str]] = LOOKS["conditions"]
"""Conditions of Theorem 1 as printed."""
FLAT_FROM: Final = 1000  # parameters from which on ``dimension_free`` says how much what is measured still changes
_AVERAGE: Final = "mean over rounds of E‖∇f‖²"


def dimension_free(
    by_d: pd.DataFrame, by_kappa: pd.DataFrame, simulated: pd.DataFrame, **words: Unpack[Words]
) -> Figure:
    """Left: the average of ‖∇f‖² and its bounds as d grows at fixed κ; right: as κ grows at fixed d.

    Args:
        by_d: Columns series (a key of ``LINES``), d, kappa, value and eta; one κ.
        by_kappa: The same with one d.
        simulated: Columns d, kappa, value, low and high: sampled runs, drawn as points with their intervals on the
            left, with the κ of ``by_d``; there may be none.
        words: See ``Words``.

    Returns:
        A figure without pyplot state; InputError if a series is unknown.
    """
    require_known("series", {*by_d["series"], *by_kappa["series"]}, LINES)
    with page(10.2, 3.9, words) as (figure, plots):
        left, right = axes_of(plots, 1, 2, sharey=True)
        for ax, frame, x, fixed in ((left, by_d, "d", "kappa"), (right, by_kappa, "kappa", "d")):
            _draw(ax, frame, x, "value")
            symbol, other = ("d", "κ") if x == "d" else ("κ", "d")
            ax.set(xscale="log", yscale="log", title=f"{symbol} grows, {other} = {frame[fixed].iloc[0]:,.0f}")
            ax.set_xlabel("parameters d" if x == "d" else "effective rank κ")
        left.set_ylabel(_AVERAGE)
        far = by_d[(by_d["d"] >= FLAT_FROM) & by_d["series"].str.startswith("measured")].groupby("series")["value"]
        if far.ngroups:
            flat = f"measured, from d = {FLAT_FROM:,} on:\nmost / least − 1 = {(far.max() / far.min()).max() - 1:.1e}"
            left.text(0.03, 0.97, flat, transform=left.transAxes, ha="left", va="top", color=SOFT)
        if not simulated.empty:
            below, above = simulated["value"] - simulated["low"], simulated["high"] - simulated["value"]
            left.errorbar(
                simulated["d"], simulated["value"], yerr=[below, above], fmt="o", color=_BLUE, markerfacecolor="white",
                markersize=4.6, elinewidth=1.1, capsize=2.4, linestyle="none", label="simulated runs", zorder=4.0,
            )  # fmt: skip
        legend_below(plots, (left, right), columns=3)
    return figure


def speed_ups(
    frame: pd.DataFrame, *, ends: Mapping[str, tuple[float, str]] | None = None, **words: Unpack[Words]
) -> Figure:
    """Rounds to ε against m, P and K, a panel each, with lines of slope −1 to hold them against.

    Args:
        frame: Columns knob (m, P or K), at (its value), noise (a key of ``NOISES``), series (a key of ``SPEED_LINES``)
            and rounds; rows without rounds (never reached) are left out.
        ends: Knob -> its value at which theory ends the speed-up, and that value in words: a vertical line.
        words: See ``Words``.

    Returns:
        A figure without pyplot state; InputError if a knob is unknown.
    """
    knob_names = {"m": "clients sampled", "P": "directions", "K": "local steps"}
    require_known("knob of frame", frame["knob"], knob_names)
    knobs = [knob for knob in knob_names if knob in set(frame["knob"])]
    with page(10.6, 4.0, words, ["Grey: slope −1, the claimed linear speed-up."]) as (figure, plots):
        axes = axes_of(plots, 1, len(knobs), sharey=True)
        for ax, knob in zip(axes, knobs, strict=True):
            of_knob = frame[(frame["knob"] == knob)].dropna(subset=["rounds"])
            for (noise, series), rows in of_knob.groupby(["noise", "series"], sort=False):
                colour, width = NOISES[str(noise)]
                line = rows.sort_values("at")
                marker = "o" if series == "measured" else ""
                label = f"{series}, {noise}"
                ax.plot(
                    line["at"], line["rounds"], color=colour, linestyle=SPEED_LINES[str(series)], marker=marker,
                    linewidth=width if series == "measured" else 1.5, markersize=2.4 + width, label=label,
                )  # fmt: skip
                if series == "measured":
                    first = line.iloc[0]
                    ax.plot(
                        line["at"], first["rounds"] * first["at"] / line["at"], color="#B6BEC7", linewidth=1.0,
                        zorder=1.5, label="_slope",
                    )  # fmt: skip
            ax.set(xscale="log", yscale="log", title=f"more {knob_names[knob]}", xlabel=knob)
            if ends is not None and knob in ends:
                at_end, words_of_end = ends[knob]
                ax.axvline(at_end, color=SOFT, linewidth=0.9, linestyle=(0, (1, 2)), label="_end")
                ax.annotate(
                    words_of_end, (at_end, 1.0), (3, -3), xycoords=("data", "axes fraction"),
                    textcoords="offset points", va="top", color=SOFT,
                )  # fmt: skip
        axes[0].set_ylabel("rounds R to reach ε")
        legend_below(plots, axes, columns=3)
    return figure


def step_sizes(frame: pd.DataFrame, **words: Unpack[Words]) -> Figure:
    """Maps over d/P and m, a column for each K: which printed condition binds, and how far η is from others.

    Rows of maps: the binding condition of Theorem 1 as printed; largest η as printed over the corrected one; the η at
    which a quadratic begins to diverge over the printed one.

    Args:
        frame: Columns K, m, ratio (d/P), binding (a key of ``CONDITIONS``), stated, corrected and limit (largest η of
            each, and where f = L‖x‖²/2 diverges); every K with the same grid of m and ratio.
        words: See ``Words``.

    Returns:
        A figure without pyplot state; InputError if a condition is unknown.
    """
    require_known("binding of frame", frame["binding"], CONDITIONS)
    steps = sorted(frame["K"].unique())
    slack = frame.assign(
        binds=frame["binding"].map({name: i for i, name in enumerate(CONDITIONS)}),
        over_corrected=np.log10(frame["stated"] / frame["corrected"]),
        below_limit=np.log10(frame["limit"] / frame["stated"]),
    )
    palette = ListedColormap(list(CONDITIONS.values()))
    with page(3.1 * len(steps) + 1.6, 7.6, words, grid=False) as (figure, plots):
        grid = plots.subplots(3, len(steps), sharex=True, sharey=True, squeeze=False)
        reach = float(slack["over_corrected"].abs().max()) or 1.0
        shades: dict[str, dict[str, object]] = {
            "binds": {"cmap": palette, "norm": BoundaryNorm(np.arange(len(CONDITIONS) + 1) - 0.5, len(CONDITIONS))},
            "over_corrected": {"cmap": "RdBu_r", "vmin": -reach, "vmax": reach},
            "below_limit": {"cmap": "viridis_r", "vmin": 0.0, "vmax": float(slack["below_limit"].max())},
        }
        for row, (column, shade) in enumerate(shades.items()):
            for ax, K in zip(cast(Sequence[Axes], grid[row]), steps, strict=True):
                table = slack[slack["K"] == K].pivot(index="m", columns="ratio", values=column)
                mesh: dict[str, Any] = {"shading": "nearest", "rasterized": True, **shade}
                drawn = ax.pcolormesh(table.columns, table.index, table.to_numpy(), **mesh)
                ax.set(xscale="log", yscale="log")
                if row == 0:
                    ax.set_title(f"K = {K:g}")
                if row == 2:
                    ax.set_xlabel("d/P")
            cast(Axes, grid[row, 0]).set_ylabel("sampled clients m")
            if column != "binds":
                label = "log₁₀ η stated / corrected" if column == "over_corrected" else "log₁₀ η diverging / stated"
                plots.colorbar(drawn, ax=list(grid[row]), label=label)
        present = [name for name in CONDITIONS if name in set(frame["binding"])]
        plots.legend(
            handles=[Patch(color=CONDITIONS[name], label=f"{name.replace('_', ' ')} binds") for name in present],
            loc="outside lower center", ncols=len(present), frameon=False,
        )  # fmt: skip
    return figure


def training(frame: pd.DataFrame, **words: Unpack[Words]) -> Figure:
    """The running average of ‖∇f(x_r)‖² of real training, and the bounds for as many rounds.

    Args:
        frame: Columns panel, series (a key of ``LINES``), round (rounds completed, ≥ 1) and value, and for the measured
            series low and high.
        words: See ``Words``.

    Returns:
        A figure without pyplot state; InputError if a series is unknown.
    """
    require_known("series of frame", frame["series"], LINES)
    panels = list(dict.fromkeys(frame["panel"]))
    with page(max(7.0, 5.1 * len(panels)), 3.8, words) as (figure, plots):
        axes = axes_of(plots, 1, len(panels))
        for ax, panel in zip(axes, panels, strict=True):
            of_panel = frame[frame["panel"] == panel]
            _draw(ax, of_panel, "round", "value")
            band = of_panel.dropna(subset=["low", "high"]).sort_values("round")
            ax.fill_between(band["round"], band["low"], band["high"], color=_BLUE, alpha=0.18, linewidth=0)
            ax.set(xscale="log", yscale="log", title=panel, xlabel="rounds R")
        axes[0].set_ylabel(_AVERAGE)
        legend_below(plots, axes, columns=3)
    return figure


def _draw(ax: Axes, frame: pd.DataFrame, x: str, y: str) -> None:
    """Every series as a line, in the order of ``LINES``."""
    for series, style in LINES.items():
        rows = frame[frame["series"] == series].sort_values(x)
        if not rows.empty:
            ax.plot(
                rows[x], rows[y], color=style.color, linestyle=style.dash, linewidth=style.linewidth, label=series,
                zorder=3.0 if series.startswith("measured") else 2.5,
            )  # fmt: skip
