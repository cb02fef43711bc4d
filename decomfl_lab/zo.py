"""Scalar estimators: how the loss changes along random directions, from function values alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["ESTIMATORS", "Estimate", "Estimator", "LineProbe", "central", "forward", "projection"]


class LineProbe(Protocol):
    """The loss on the lines x + c·z_p."""

    def __call__(self, p: int, c: float) -> float:
        """f(x + c·z_p); of (0, 0.0) f(x)."""
        ...

    def slope(self, p: int) -> float:
        """⟨∇f(x), z_p⟩, by backpropagation."""
        ...


@dataclass(frozen=True)
class Estimate:
    """g (P,) float32, and the loss at or around x that the function values give for free."""

    g: NDArray[np.float32]
    loss: float


class Estimator(Protocol):
    """From a probe of the loss on the lines x + c z_p to the scalars g_p."""

    def __call__(self, probe: LineProbe, P: int, mu: float) -> Estimate:
        """The scalars of directions 0..P-1 at smoothing radius μ."""
        ...


def forward(probe: LineProbe, P: int, mu: float) -> Estimate:
    """Forward differences: g_p = (f(x + μ z_p) − f(x)) / μ, from P + 1 function values.

    Args:
        probe: probe(p, c) = f(x + c z_p).
        P: Number of directions.
        mu: Smoothing radius μ > 0, in units of x.

    Returns:
        g in units of f per unit of x, rounded once to float32, and the loss f(x).

    Source: [DeComFL, eq. (zo-grad)].
    """
    base = probe(0, 0.0)
    g = np.array([(probe(p, mu) - base) / mu for p in range(P)])
    return Estimate(g.astype(np.float32), base)


def central(probe: LineProbe, P: int, mu: float) -> Estimate:
    """Central differences: g_p = (f(x + μ z_p) − f(x − μ z_p)) / (2μ), from 2P function values.

    Exact on quadratics for every μ. Arguments and units as ``forward``'s.

    Returns:
        g, and the loss mean_p (f(x + μ z_p) + f(x − μ z_p)) / 2, which is f(x) up to O(μ²).

    Source: what the authors' image runs use; the paper writes forward differences only.
    """
    values = np.array([(probe(p, mu), probe(p, -mu)) for p in range(P)])
    with np.errstate(invalid="ignore"):  # inf - inf gives NaN, which the server refuses by name
        g = (values[:, 0] - values[:, 1]) / (2.0 * mu)
    return Estimate(g.astype(np.float32), float(values.mean()))


def projection(probe: LineProbe, P: int, mu: float) -> Estimate:  # noqa: ARG001
    """Gradient projection: g_p = ⟨∇f(x), z_p⟩, the limit of both differences as μ → 0; one backward pass in all.

    Returns:
        g in units of f per unit of x, rounded once to float32, and the loss f(x).

    Source: [DeComFL, appendix, gradient projection].
    """
    g = np.array([probe.slope(p) for p in range(P)])
    return Estimate(g.astype(np.float32), probe(0, 0.0))


ESTIMATORS: dict[str, Estimator] = {"forward": forward, "central": central, "projection": projection}
