"""One style for every figure: rcParams as a value, and colours by the role of a series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decomfl_lab.errors import require
from decomfl_lab.storage.tables import table_beside
from hessian.kappa.picture import STYLE

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

Dash = tuple[float, tuple[float, ...]]

_OWN = table_beside(__name__, "style.toml")
"""The rcParams that are not those of a picture of κ, and do not follow from them."""
LOOKS: Mapping[str, Mapping[str, Any]] = table_beside(__name__, "looks.toml")
"""What figures draw, by name."""
INK, SOFT = "#1F2328", "#57606A"  # what is written or drawn in black, and in grey

# Okabe and Ito's colours for all kinds of colour vision. The first three are ordered from light to dark,
# so that small, middle and large K (or P) stay in order in a black-and-white print.
OKABE_ITO: tuple[str, ...] = ("#E69F00", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#56B4E9")

_GREYS: tuple[str, ...] = ("#8C8C8C", "#555555", "#000000")
_DASHES: tuple[Dash, ...] = (
    (0.0, (1.0, 1.3)),
    (0.0, (6.0, 1.6)),
    (0.0, ()),
    (0.0, (6.0, 1.6, 1.0, 1.6)),
)

_DECOMFL, _FEDAVG = OKABE_ITO[2], _GREYS[2]

AUTHORS_DASH: Dash = (0.0, (3.0, 2.2))
CHECKS: Mapping[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 3.6,
    "markeredgecolor": INK,
    "markeredgewidth": 0.7,
}
"""The style of points that check a line of the same colour."""


@dataclass(frozen=True, kw_only=True)
class LineStyle:
    """How one series is drawn."""

    color: str  # hexadecimal colour
    dash: Dash  # matplotlib dash pattern (offset, on-off lengths in line widths); no lengths is a solid line
    linewidth: float  # width in points


def rc() -> dict[RcKeyType, Any]:
    """Return the rcParams of every figure, to be applied with ``matplotlib.rc_context(rc())``."""
    size = STYLE["font.size"]
    return {
        **STYLE,
        **_OWN,
        "axes.labelsize": size,
        "axes.labelcolor": STYLE["text.color"],
        "xtick.labelsize": size * 0.92,
        "ytick.labelsize": size * 0.92,
    }


def series_styles(series: Iterable[str], *, baseline: bool = False) -> dict[str, LineStyle]:
    """Return a style for each series, in their order.

    Args:
        series: Labels, with repetitions or without.
        baseline: False for one colour each and solid lines, of other dashes where colours repeat; True for first-order
            baselines such as FedAvg: greys to black, each with a dash pattern of its own, the last of up to three a
            solid black line.
    """
    labels, n = list(dict.fromkeys(series)), len(OKABE_ITO)
    if not baseline:
        return {
            label: LineStyle(color=OKABE_ITO[i % n], dash=_DASHES[(2 + i // n) % len(_DASHES)], linewidth=1.9)
            for i, label in enumerate(labels)
        }
    first = max(0, 3 - len(labels))
    return {
        label: LineStyle(color=_GREYS[min(i, len(_GREYS) - 1)], dash=_DASHES[i % len(_DASHES)], linewidth=1.6)
        for i, label in enumerate(labels, first)
    }


def method_styles(series: Sequence[str]) -> dict[str, LineStyle]:
    """Return a style for each series, in their order: DeComFL in blue, FedAvg in black, the others in colours.

    FedAvg's line is broken, so that what it lies over is seen: by bytes the first-order methods are close together.

    Args:
        series: Labels; those that start with "DeComFL" and "FedAvg" (but not "FedAvg+") have their own colours,
            and a second one of the same kind is dashed otherwise.

    Raises:
        InputError: If ``series`` is empty.
    """
    require(bool(series), "series", "hold at least one label", list(series))
    others = [colour for colour in OKABE_ITO if colour != _DECOMFL]
    styles: dict[str, LineStyle] = {}
    seen = {_DECOMFL: 0, _FEDAVG: 0}
    for label in dict.fromkeys(series):
        if label.startswith("DeComFL"):
            colour = _DECOMFL
        elif label.startswith("FedAvg") and not label.startswith("FedAvg+"):
            colour = _FEDAVG
        else:
            colour = others[len([each for each in styles.values() if each.color in others]) % len(others)]
        again = seen.get(colour, 0)
        seen[colour] = again + 1
        first, second = (_DASHES[1], _DASHES[3]) if colour == _FEDAVG else (_DASHES[2], _DASHES[1])
        dash = first if again == 0 or colour in others else second
        styles[label] = LineStyle(color=colour, dash=dash, linewidth=2.2 if colour == _DECOMFL else 1.6)
    return styles
