"""What a panel shows, read back from matplotlib, beside the rows: an axis is of the column that its label names."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

COLUMNS = {
    "rounds completed": "round",
    "training loss": "train_loss",
    "test accuracy": "test_accuracy",
    "communicated scalars per client\n(counted by wire: bytes really encoded / 4)": "wire_scalars",
    "communicated scalars per client\n(counted by the formula of the paper's Table 1)": "table1_scalars",
    "communicated scalars per client\n(counted as on the paper's own axis)": "plotted_scalars",
}
"""What a label says that is on its axis."""
_NEAR = 1e-9


def label_of(ax: Axes, axis: str) -> str:
    """The label of an axis, or that of the panel with which it is shared and which shows it for both."""
    shared = ax.get_shared_x_axes() if axis == "x" else ax.get_shared_y_axes()
    # Columns of a grid share what is under the lowest, rows what is beside the leftmost.
    place = ax.get_subplotspec()
    assert place is not None
    span = place.colspan if axis == "x" else place.rowspan
    for each in [ax, *shared.get_siblings(ax)]:
        spec = each.get_subplotspec()
        text = each.get_xlabel() if axis == "x" else each.get_ylabel()
        if text and spec is not None and span == (spec.colspan if axis == "x" else spec.rowspan):
            return str(text)
    raise AssertionError(f"no label of axis {axis} of {ax.get_title(loc='left')!r}")


def lines_of(ax: Axes) -> list[tuple[str, str, np.ndarray]]:
    """(label, colour, points) of every line of the panel."""
    found = []
    for line in ax.get_lines():
        points = np.column_stack([line.get_xdata(orig=True), line.get_ydata(orig=True)]).astype(float)
        found.append((str(line.get_label()), to_hex(line.get_color()), points))
    return found


def bands_of(ax: Axes) -> dict[str, list[pd.DataFrame]]:
    """{colour: low and high by x} of the filled bands."""
    found: dict[str, list[pd.DataFrame]] = {}
    for each in ax.collections:
        if isinstance(each, PolyCollection):
            corners = pd.DataFrame(each.get_paths()[0].vertices, columns=["x", "y"]).groupby("x").y.agg(["min", "max"])
            found.setdefault(to_hex(each.get_facecolor()[0]), []).append(corners)
    return found


def mean_of(frame: pd.DataFrame, x: str, y: str, by: str, *, log: bool) -> pd.DataFrame:
    """Mean over seeds by round where all of them are, with the band that the caption promises."""
    own = frame.dropna(subset=[y])
    own = own[own[x] > 0] if log else own
    own = own[list(dict.fromkeys([by, x, y]))].assign(one=1, at=own[x], up=own[y], key=own[by])
    table = own.groupby("key").agg(
        x=("at", "mean"), y=("up", "mean"), low=("up", "min"), high=("up", "max"), std=("up", "std"), n=("one", "sum")
    )
    seeds = frame.dropna(subset=[y]).seed.nunique()
    table = table[table.n == seeds]
    if seeds > 2:
        table = table.assign(low=table.y - table["std"], high=table.y + table["std"])
    if y.endswith("accuracy"):
        table = table.assign(low=table.low.clip(0, 1), high=table.high.clip(0, 1))
    return table.assign(seeds=seeds)


def wrong_in(
    ax: Axes, kinds: Mapping[str, pd.DataFrame], *, by: str = "round", columns: Mapping[str, str] = COLUMNS
) -> list[str]:
    """What a panel of curves shows otherwise than the rows have it, or does not show, or shows beside them.

    Args:
        ax: The panel.
        kinds: "curves", and "checks", "longer" and "reference" where there are some: rows with series and seed.
        by: The column that says which points of two seeds belong together.
        columns: The column for each label of an axis.
    """
    x, y = columns[label_of(ax, "x")], columns[label_of(ax, "y")]
    told, log = [], ax.get_xscale() == "log"
    drawn, bands = lines_of(ax), bands_of(ax)
    root = ax.get_figure(root=True)
    assert root is not None
    # A series has one colour in all panels; beside another reading the authors' may be alone.
    colours = {label: colour for each in root.axes for label, colour, _ in lines_of(each) if label[0] != "_"}
    expected = []
    for kind, frame in kinds.items():
        for name, own in frame.groupby("series"):
            mean = mean_of(own, x, y, by, log=log)
            if len(mean):
                expected.append((name if kind == "curves" else f"_{kind}", colours.get(name), mean, kind, name))
    for label, colour, mean, kind, name in expected:
        points = mean[["x", "y"]].to_numpy()
        same = [each for each in drawn if each[:2] == (label, colour) and _alike(each[2], points)]
        if not same:
            told.append(f"{name} ({kind}): no line of its colour has {y} against {x}")
        elif kind in ("curves", "reference") and mean.seeds.iloc[0] > 1:
            band = mean.groupby("x")[["low", "high"]].agg({"low": "min", "high": "max"}).to_numpy()
            if not any(_alike(each.to_numpy(), band) for each in bands.get(str(colour), [])):
                told.append(f"{name} ({kind}): no band of its colour is that of its seeds")
    banded = sum(kind in ("curves", "reference") and mean.seeds.iloc[0] > 1 for *_, mean, kind, _ in expected)
    if len(drawn) != len(expected) or sum(map(len, bands.values())) != banded:
        told.append(f"{len(drawn)} lines and {sum(map(len, bands.values()))} bands, not {len(expected)} and {banded}")
    return told


def named(figure: Figure) -> dict[str, Axes]:
    """The panels by their titles."""
    return {ax.get_title(loc="left") or ax.get_title(): ax for ax in figure.axes}


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=_NEAR, atol=0, equal_nan=True))
