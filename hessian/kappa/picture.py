"""What κ is made of, to look at: where the eigenvalues lie beside ‖H‖₂, and how κ and its interval settled."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from decomfl_lab.errors import require
from decomfl_lab.storage.tables import table_beside

if TYPE_CHECKING:
    from hessian import ByLayer, EffectiveRank, SpectralDensity

Floats = NDArray[np.float64]

_BLUE, _RED, _INK, _SOFT = "#0072B2", "#D55E00", "#1F2328", "#57606A"
STYLE: Final[Mapping[Any, Any]] = table_beside(__name__, "picture.toml")
"""The rcParams of a picture, on which those of all figures are built."""
_CONVERGED = 0.01  # a Ritz value with a residual of at most this share of its magnitude is drawn as one eigenvalue
_LEAST = 0.3  # the least number of eigenvalues on the logarithmic axis, so that a single one stands out of it


def picture(result: EffectiveRank, density: SpectralDensity | None = None, caption: str = "") -> Figure:
    """Left: how many eigenvalues lie near each λ, with ‖H‖₂; right: κ and its interval after every product.

    A single eigenvalue has the height 1 on the left. What is not known one by one is the quadrature of the random
    start vector, or of the density's probes, with their range; between its nodes it is smoothed.

    Args:
        result: The estimate.
        density: The spectral density of the same matrix, for a finer curve with a band.
        caption: A sentence to set under the plots: which model, which data.

    Returns:
        A figure without pyplot state.

    Raises:
        InputError: If κ is undefined, or the density is of another matrix.
    """
    require(result.norm > 0, "result", "have a κ, for a picture", result.kappa)
    if density is not None:
        require(density.d == result.d, "density", f"be of d = {result.d} eigenvalues", density.d)
    lines = textwrap.wrap(f"{result.operator}, d = {result.d:,}: {result.reason}. {caption}", 165)
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(10.2, 4.3 + 0.16 * len(lines)), dpi=150)
        room = 0.035 * len(lines)
        figure.set_layout_engine("constrained", rect=(0, room, 1, 1 - room))
        figure.suptitle(str(result), x=0.012, ha="left", fontsize=12.5, fontweight="bold")
        left, right = figure.subplots(1, 2, width_ratios=[1.5, 1.0])
        _eigenvalues(left, result, density)
        _settling(right, result)
        figure.text(0.012, 0.015, "\n".join(lines), ha="left", va="bottom", fontsize=8.0, color=_SOFT)
    return figure


def picture_of_layers(found: ByLayer) -> Figure:
    """Left: κ of every layer with its interval, the first layer on top; right: its share of the trace, in per cent."""
    names = [each.name for each in found.readings]
    kappa = np.array([row.rank.kappa for row in found.rows])
    ends = np.array([row.rank.interval for row in found.rows])
    shares = 100 * np.array([(row.share.value, row.share.stderr) for row in found.rows])
    at = np.arange(len(names))
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(10.2, 1.6 + 0.24 * len(names)), dpi=150, layout="constrained")
        title = f"κ of the {found.operator} by layer, d = {found.d:,}"
        figure.suptitle(title, x=0.012, ha="left", fontsize=12.5, fontweight="bold")
        left, right = figure.subplots(1, 2, sharey=True)
        reach = np.nan_to_num(np.abs(ends - kappa[:, None]).T, posinf=0.0)
        left.errorbar(kappa, at, xerr=reach, fmt="o", color=_BLUE, markersize=4, elinewidth=2)
        left.set_title(f"κ with its {100 * found.confidence:g} % interval")
        right.barh(at, shares[:, 0], xerr=shares[:, 1], height=0.6, color=_BLUE, alpha=0.6, ecolor=_INK)
        right.set_title("share of tr(H), with its standard error")
        right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        left.set_yticks(at, names)
        left.invert_yaxis()
        for ax in (left, right):
            ax.axvline(0.0, color=_SOFT, linewidth=0.8)
    return figure


# --- eigenvalues ------------------------------------------------------------------------------------------------------


class _Scale:
    """λ on an axis that is linear around 0 and logarithmic outside: u = asinh(λ/λ₀)."""

    def __init__(self, values: Floats, norm: float) -> None:
        """An axis for these values; λ₀ is a third of a small one of them, and not below a thousandth of ‖H‖₂."""
        self.linear = max(float(np.quantile(np.abs(values), 0.2)) / 3, norm / 1000)
        ends = self(np.array([values.min(), 0.0, values.max()]))
        margin = 0.1 * float(ends.max() - ends.min())
        self.low, self.high = float(ends.min()) - margin, float(ends.max()) + margin
        self.window = (self.high - self.low) / 90

    def __call__(self, values: Any) -> Any:
        return np.arcsinh(np.asarray(values) / self.linear)

    def back(self, u: Any) -> Any:
        """λ of u."""
        return np.sinh(u) * self.linear


def _eigenvalues(ax: Axes, result: EffectiveRank, density: SpectralDensity | None) -> None:
    """The left panel of ``picture``."""
    ritz, residuals = np.array(result.ritz_values), np.array(result.ritz_residuals)
    known = residuals <= _CONVERGED * np.abs(ritz)
    scale = _Scale(ritz if density is None else np.concatenate([ritz, density.nodes]), result.norm)
    u = np.linspace(scale.low, scale.high, 900)
    # The number of eigenvalues near each u, as the start vector or each probe sees it; none after a restart.
    seen: list[Floats] = []
    if density is not None:
        nodes, spread = density.nodes, ~density.exact
        fixed = _bumps(scale, u, nodes[density.exact], np.ones(int(density.exact.sum())), np.zeros(0))
        each = (_bumps(scale, u, nodes[spread], result.d * shares[spread], nodes[spread]) for shares in density.samples)
        seen += [fixed + bumps for bumps in each]
    elif result.ritz_weights:
        # The eigenvalues that are not known one by one are d less those: the weights share them out.
        rest, weights = ritz[~known], np.array(result.ritz_weights)[~known]
        counts = weights * (result.d - known.sum()) / (weights.sum() or 1.0)
        fixed = _bumps(scale, u, ritz[known], np.ones(int(known.sum())), np.zeros(0))
        seen.append(fixed + _bumps(scale, u, rest, counts, rest))
    x, curves = scale.back(u), np.array(seen)
    if len(curves):
        low, mean, high = curves.min(axis=0), curves.mean(axis=0), curves.max(axis=0)
        ax.fill_between(x, _LEAST, np.maximum(mean, _LEAST), color=_BLUE, alpha=0.16, linewidth=0)
        if len(curves) > 1:
            ax.fill_between(x, low, high, color=_BLUE, alpha=0.25, linewidth=0, label="range of the probes")
        ax.plot(x, mean, color=_BLUE, linewidth=1.5, label="eigenvalues nearby (quadrature)")
    ax.vlines(ritz[known], _LEAST, 1.0, color=_RED, linewidth=1.2)
    ax.plot(ritz[known], np.ones(known.sum()), "o", color=_RED, markersize=3.6, label="single eigenvalues")
    top = 20 * max(float(curves.max(initial=1.0)), 1.0)
    at = result.norm if result.lambda_max >= -result.lambda_min else -result.norm
    ax.axvline(at, color=_INK, linewidth=1.0, linestyle=(0, (4, 2)), label="_norm")
    side = "right" if at > 0 else "left"
    ax.text(at, top / 1.5, f"  ‖H‖₂ = {result.norm:.4g}  ", ha=side, va="top", color=_INK, fontweight="bold")
    ax.set_xscale("asinh", linear_width=scale.linear)
    ax.set_xlim(x[0], x[-1])
    ax.set_yscale("log")
    ax.set_ylim(_LEAST, top)
    ax.yaxis.set_major_locator(LogLocator(numticks=7))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    crowded = 4 * scale.linear  # labels nearer to 0 would touch
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: "" if 0 < abs(value) < crowded else f"{value:.3g}".replace("-", "−"))
    )
    ax.set_title(f"where the {result.d:,} eigenvalues lie")
    ax.set_xlabel("eigenvalue λ")
    ax.set_ylabel("eigenvalues near λ")
    ax.legend(loc="upper left" if at > 0 else "upper right")


def _bumps(scale: _Scale, u: Floats, nodes: Floats, counts: Floats, neighbours: Floats) -> Floats:
    """Gaussians at the nodes (n,) of the counts' areas (n,) in the unit of a window, to the next of the neighbours."""
    total = np.zeros_like(u)
    order = np.sort(scale(neighbours))
    for node, count in zip(scale(nodes), counts, strict=True):
        i = int(np.searchsorted(order, node))
        gaps = [abs(order[j] - node) for j in (i - 1, i + 1) if 0 <= j < len(order)]
        # Wide enough to reach the neighbours, so that a smooth part of the spectrum does not look like single peaks.
        width = max(scale.window, 0.6 * float(np.mean(gaps)) if gaps else 0.0)
        total += count * scale.window / width * np.exp(-0.5 * ((u - node) / width) ** 2)
    return total


# --- κ ----------------------------------------------------------------------------------------------------------------


def _settling(ax: Axes, result: EffectiveRank) -> None:
    """The right panel of ``picture``."""
    history = np.array(result.history, dtype=np.float64)
    products, kappa, low, high = history[:, 0], history[:, 2], history[:, 3], history[:, 4]
    reach = 2.2 * max(abs(result.kappa), *(abs(end) for end in result.interval if np.isfinite(end)))
    bottom, top = (-reach, 0.0) if result.kappa < 0 else (0.0, reach)
    shown = ~np.isnan(kappa) & np.isfinite(low)
    if shown.any():
        label = f"{100 * result.confidence:g} % interval"
        ax.fill_between(products[shown], low[shown], high[shown], color=_BLUE, alpha=0.2, linewidth=0, label=label)
    ax.plot(products, kappa, color=_BLUE, marker="o", markersize=3.2, linewidth=1.4, label="κ so far")
    ends = [end for end in result.interval if np.isfinite(end)]
    ax.vlines(products[-1], min(ends, default=result.kappa), max(ends, default=result.kappa), color=_RED, linewidth=2.2)
    for end in ends:
        ax.axhline(end, color=_RED, linewidth=0.9, linestyle=":")
    begun = result.products - result.probes
    if result.probes:
        ax.axvline(begun + 0.5, color=_SOFT, linewidth=0.8, linestyle=(0, (4, 2)))
        ax.text(begun + 0.5, top, "Lanczos  ", ha="right", va="top", color=_SOFT)
        ax.text(begun + 0.5, top, "  probes", ha="left", va="top", color=_SOFT)
    ax.set_ylim(bottom, top)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_title("how sure κ = tr(H)/‖H‖₂ is")
    ax.set_xlabel("products H·v spent")
    ax.set_ylabel("κ")
    ax.legend(loc="lower left" if result.kappa > 0 else "upper left")
