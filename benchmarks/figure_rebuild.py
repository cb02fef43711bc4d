"""How many times faster a fused rebuild is than the plain way."""

from __future__ import annotations

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from decomfl_lab.errors import require
from figures.style import OKABE_ITO, rc

__all__ = ["rebuild_speed"]

_COLUMNS = ("distribution", "d", "pairs", "workers", "dtype", "ns_per_element_pair", "ratio")


def rebuild_speed(frame: pd.DataFrame) -> Figure:
    """One panel a distribution: ratio to the plain way against the number of missed directions, log-log.

    Args:
        frame: Rows of ``benchmarks.rebuild.Row``: distribution, d, pairs, workers, dtype, ratio and more.

    Returns:
        Colour: d. Solid: one worker; dashed: more. The dotted line at 1 is the plain way.

    Raises:
        InputError: If a column is missing or there is no row.
    """
    missing = [name for name in _COLUMNS if name not in frame.columns]
    require(not missing, "frame", f"have the columns {', '.join(_COLUMNS)}", list(frame.columns))
    require(len(frame) > 0, "frame", "have rows", 0)
    distributions = list(dict.fromkeys(frame["distribution"]))
    sizes = sorted(frame["d"].unique())
    with matplotlib.rc_context(rc()):
        figure = Figure(figsize=(3.1 * len(distributions) + 0.6, 3.5))
        axes = figure.subplots(1, len(distributions), sharex=True, sharey=True, squeeze=False)[0]
        for ax, distribution in zip(axes, distributions, strict=True):
            rows = frame[frame["distribution"] == distribution]
            for (d, workers, dtype), line in rows.groupby(["d", "workers", "dtype"]):
                line = line.sort_values("pairs")
                several = f", {dtype}" if frame["dtype"].nunique() > 1 else ""
                ax.plot(
                    line["pairs"],
                    line["ratio"],
                    color=OKABE_ITO[sizes.index(d) % len(OKABE_ITO)],
                    linestyle="-" if workers == 1 else (0, (4, 1.5)),
                    marker="o",
                    markersize=3.5,
                    label=f"d = {d:,}, {workers} worker{'s' if workers > 1 else ''}{several}",
                )
            ax.axhline(1.0, color="#57606A", linestyle=":", linewidth=1.0)
            ax.set_title(distribution)
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_xlabel("missed directions")
            ax.xaxis.set_major_locator(FixedLocator(sorted(frame["pairs"].unique())))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ticks = [t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if t <= 1.3 * frame["ratio"].max()]
            ax.yaxis.set_major_locator(FixedLocator([t for t in ticks if t >= 0.7 * frame["ratio"].min()]))
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
            ax.yaxis.set_minor_formatter(NullFormatter())
        axes[0].set_ylabel("times faster than randn + add_")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(handles), 3), frameon=False)
        return figure
