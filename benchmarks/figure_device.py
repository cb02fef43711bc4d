"""How many times faster a device does the lab's work than the usual way on the same device."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from figures.layout import require_columns
from figures.style import OKABE_ITO, rc

__all__ = ["device_ratios"]


def device_ratios(frame: pd.DataFrame, *, device: str) -> Figure:
    """Bars of the ratio to the usual way, one for each thing that was timed, on a logarithmic axis.

    Args:
        frame: The rows, with columns what, how, seconds, ratio and "of limit" (a share, or None).
        device: The device on which it was measured, for the title.

    Returns:
        Colour: what was timed. At each bar stand its ratio, its seconds and the share of the device's limit. The
        dotted line at 1 is the usual way.

    Raises:
        InputError: If a column is missing or there is no row.
    """
    require_columns("frame", frame, ("what", "how", "seconds", "ratio", "of limit"))
    frame = frame[frame["ratio"] != 1.0] if (frame["ratio"] != 1.0).any() else frame
    kinds = list(dict.fromkeys(frame["what"]))
    with matplotlib.rc_context(rc()):
        figure = Figure(figsize=(8.2, 1.1 + 0.27 * len(frame)))
        ax = figure.subplots()
        places = np.arange(len(frame))[::-1]
        colors = [OKABE_ITO[kinds.index(what) % len(OKABE_ITO)] for what in frame["what"]]
        ax.barh(places, frame["ratio"], color=colors, height=0.72)
        for place, row in zip(places, frame.to_dict("records"), strict=True):
            share = row["of limit"]
            known = "" if share is None or np.isnan(share) else f", {share:.0%} of the limit"
            ax.annotate(
                f"{row['ratio']:.1f}×  ({row['seconds']:.2g} s{known})",
                (row["ratio"], place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
        ax.axvline(1.0, color="#57606A", linestyle=":", linewidth=1.0)
        ax.set_xscale("log")
        ax.set_xlim(min(0.5, 0.7 * frame["ratio"].min()), 30 * frame["ratio"].max())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_yticks(places, [f"{what}: {how}" for what, how in zip(frame["what"], frame["how"], strict=True)])
        ax.set_xlabel("times faster than the usual way on the same device")
        ax.set_title(device, loc="left")
        return figure
