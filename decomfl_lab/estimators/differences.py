"""Scalar estimators: how the loss changes along random directions, from function values alone.

An estimator names all the points x + c·z_p of a local step at once and combines the values found there, so that
whoever evaluates them is free in order, grouping and threads (``decomfl_lab.engines``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

Point = tuple[int, float]
"""(p, c) for x + c·z_p; (0, 0.0) is x."""
Values = Any
"""float64, an array or, of a GPU that is not waited for, a tensor."""


@dataclass(frozen=True)
class ScalarEstimate:
    """g (P,), the loss at or around x and perhaps second differences (P,), which the values give for free.

    g is float32, or int8 signs, and then ``signed`` (P,) are the scalars whose signs they are. They are where the
    values were, perhaps on a GPU.
    """

    g: Any
    loss: Any
    curvature: Values | None = None
    signed: Any = None


class Estimator(Protocol):
    """It makes the scalars g_p, p = 0..P-1, of values of the loss on the lines x + c z_p."""

    wants_slopes: bool  # whether ``combine`` reads the slopes ⟨∇f(x), z_p⟩, which need a backward pass

    def points(self, P: int, mu: float) -> list[Point]:
        """The points at which the loss must be known, at smoothing radius μ."""

    def combine(self, values: Values, slopes: Values, mu: float) -> ScalarEstimate:
        """The scalars from the loss at each of ``points``, and the slopes (P,), empty unless they are wanted."""


class _Forward:
    """Forward differences: g_p = (f(x + μ z_p) − f(x)) / μ, from P + 1 function values.

    g is in units of f per unit of x, rounded once to float32; the loss is f(x).

    Source: [DeComFL, eq. (zo-grad)].
    """

    wants_slopes = False

    def points(self, P: int, mu: float) -> list[Point]:
        return [(0, 0.0), *((p, mu) for p in range(P))]

    def combine(self, values: Values, slopes: Values, mu: float) -> ScalarEstimate:  # noqa: ARG002
        with np.errstate(invalid="ignore"):  # inf - inf gives NaN, which the server refuses by name
            return _estimate((values[1:] - values[0]) / mu, values[0])


class _Central:
    """Central differences: g_p = (f(x + μ z_p) − f(x − μ z_p)) / (2μ), from 2P function values.

    Exact on quadratics for every μ. Units as for forward differences; the loss is
    mean_p (f(x + μ z_p) + f(x − μ z_p)) / 2, which is f(x) up to O(μ²).

    Source: what the authors' image runs use; the paper writes forward differences only.
    """

    wants_slopes = False

    def points(self, P: int, mu: float) -> list[Point]:
        return [(p, c) for p in range(P) for c in (mu, -mu)]

    def combine(self, values: Values, slopes: Values, mu: float) -> ScalarEstimate:  # noqa: ARG002
        with np.errstate(invalid="ignore"):
            # Points come in pairs, +μ before −μ.
            return _estimate((values[::2] - values[1::2]) / (2.0 * mu), values.mean())


class _CentralCurved(_Central):
    """Central differences, to the bit, and from one value more second differences along the same directions.

        q_p = (f(x + μ z_p) + f(x − μ z_p) − 2 f(x)) / μ²,

    in units of f per unit of x squared: z_pᵀ∇²f(x)z_p up to O(μ²) (``decomfl_lab.estimators.second_differences``).
    """

    def points(self, P: int, mu: float) -> list[Point]:
        return [*super().points(P, mu), (0, 0.0)]

    def combine(self, values: Values, slopes: Values, mu: float) -> ScalarEstimate:
        # f(x + μz_1), f(x − μz_1), f(x + μz_2), ..., and f(x) last.
        around, center = values[:-1], values[-1]
        with np.errstate(invalid="ignore"):
            q = (around[::2] + around[1::2] - 2.0 * center) / mu**2
        return replace(super().combine(around, slopes, mu), curvature=q)


class _Projection:
    """Gradient projection: g_p = ⟨∇f(x), z_p⟩, the limit of both differences as μ → 0; one backward pass in all.

    Units as for forward differences; the loss is f(x).

    Source: [DeComFL, appendix, gradient projection].
    """

    wants_slopes = True

    def points(self, P: int, mu: float) -> list[Point]:  # noqa: ARG002
        return [(0, 0.0)]

    def combine(self, values: Values, slopes: Values, mu: float) -> ScalarEstimate:  # noqa: ARG002
        return _estimate(slopes, values[0])


class _Sign:
    """The signs of another estimator's scalars: 1 for g ≥ 0, else −1; and 0, which is none, where g is not finite.

    Source: [FeedSign], arXiv 2501.17610.
    """

    def __init__(self, of: Estimator) -> None:
        self.wants_slopes, self.points, self._of = of.wants_slopes, of.points, of

    def combine(self, values: Values, slopes: Values, mu: float) -> ScalarEstimate:
        found = self._of.combine(values, slopes, mu)
        # ±1; times 0 where a scalar is infinite or NaN, of which |g| < ∞ is false.
        signs = ((found.g >= 0) * 2 - 1) * (abs(found.g) < np.inf)
        if isinstance(signs, np.ndarray):
            return replace(found, g=signs.astype(np.int8), signed=found.g)
        import torch

        return replace(found, g=signs.to(torch.int8), signed=found.g)


def fetched(estimates: Sequence[ScalarEstimate]) -> list[ScalarEstimate]:
    """The estimates as arrays and floats; what is on a GPU comes by one transfer."""
    if isinstance(estimates[0].g, np.ndarray):
        return list(estimates)
    import torch

    # One row an estimate, so that one copy brings all that it has, as float64, which holds float32 and int8 exactly.
    first = estimates[0]
    there = [own.name for own in fields(first) if getattr(first, own.name) is not None]
    rows = [torch.cat([getattr(at, name).double().reshape(-1) for name in there]) for at in estimates]
    ends = np.cumsum([getattr(first, name).numel() for name in there])
    kinds = {"g": np.int8 if first.g.dtype is torch.int8 else np.float32, "signed": np.float32}
    found = []
    for row in torch.stack(rows).cpu().numpy():
        parts = zip(there, np.split(row, ends[:-1]), strict=True)
        own = {name: part.astype(kinds.get(name, np.float64)) for name, part in parts}
        found.append(ScalarEstimate(**own | {"loss": float(own["loss"][0])}))
    return found


def _estimate(g: Values, loss: Any) -> ScalarEstimate:
    if isinstance(g, np.ndarray):
        # A scalar too large for float32 becomes ∞, which the server refuses by name.
        with np.errstate(over="ignore"):
            return ScalarEstimate(g.astype(np.float32), float(loss))
    return ScalarEstimate(g.float(), loss)


forward, central, central_curved, projection = _Forward(), _Central(), _CentralCurved(), _Projection()

ESTIMATORS: dict[str, Estimator] = {
    "forward": forward,
    "central": central,
    "projection": projection,
    "forward-sign": _Sign(forward),
    "central-sign": _Sign(central),
}
