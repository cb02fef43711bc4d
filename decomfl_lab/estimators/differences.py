"""Scalar estimators: how the loss changes along random directions, from function values alone.

An estimator names all the points x + c·z_p of a local step at once and combines the values found there, so that
whoever evaluates them is free in order, grouping and threads (``decomfl_lab.engines``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
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


class Stencil:
    """The estimators of the lab, by how many sides of x the values are taken from: one, two, or none.

        forward       g_p = (f(x + μ z_p) − f(x)) / μ                    from P + 1 values
        central       g_p = (f(x + μ z_p) − f(x − μ z_p)) / (2μ)         from 2P values
        projection    g_p = ⟨∇f(x), z_p⟩                                 by one backward pass in all

    g is in units of f per unit of x, rounded once to float32. Central differences are exact on quadratics for every μ;
    their loss is mean_p (f(x + μ z_p) + f(x − μ z_p)) / 2, which is f(x) up to O(μ²). That of the others is f(x). The
    projection is the limit of both differences as μ → 0.

    Source: [DeComFL, eq. (zo-grad), and appendix, gradient projection]; central differences are what the authors' image
    runs use.
    """

    def __init__(self, sides: int, *, curved: bool = False, signs: bool = False) -> None:
        """An estimator.

        Args:
            sides: 1 for forward differences, 2 for central ones, 0 for the projection.
            curved: Whether central ones also give, from one value more, second differences along the same directions,
                q_p = (f(x + μ z_p) + f(x − μ z_p) − 2 f(x)) / μ², in units of f per unit of x squared: z_pᵀ∇²f(x)z_p up
                to O(μ²) (``decomfl_lab.estimators.second_differences``). g is the same to the bit.
            signs: Whether g are the signs of the scalars ([FeedSign], arXiv 2501.17610): 1 for g ≥ 0, else −1; and 0,
                which is none, where g is not finite.
        """
        self.sides, self.curved, self.signs, self.wants_slopes = sides, curved, signs, not sides

    def points(self, P: int, mu: float) -> list[Point]:
        """See ``Estimator``."""
        here = (0, 0.0)
        if self.sides == 2:  # pairs, +μ before −μ, and x last, where it is asked for
            return [(p, c) for p in range(P) for c in (mu, -mu)] + [here] * self.curved
        return [here, *((p, mu) for p in range(P * self.sides))]

    def combine(self, values: Values, slopes: Values, mu: float) -> ScalarEstimate:
        """See ``Estimator``."""
        q = signed = None
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf gives NaN, which the server refuses by name
            if self.sides == 2:
                around = values[:-1] if self.curved else values
                if self.curved:
                    q = (around[::2] + around[1::2] - 2.0 * values[-1]) / mu**2
                g, loss = (around[::2] - around[1::2]) / (2.0 * mu), around.mean()
            else:
                g = (values[1:] - values[0]) / mu if self.sides else slopes
                loss = values[0]
            on_host = isinstance(g, np.ndarray)
            g = g.astype(np.float32) if on_host else g.float()  # one too large for it becomes ∞, which is refused, too
        if self.signs:
            # ±1; times 0 where a scalar is infinite or NaN, of which |g| < ∞ is false.
            g, signed = ((g >= 0) * 2 - 1) * (abs(g) < np.inf), g
            g = g.astype(np.int8) if on_host else g.char()
        return ScalarEstimate(g, float(loss) if on_host else loss, q, signed)


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


forward, central, projection = Stencil(1), Stencil(2), Stencil(0)
central_curved = Stencil(2, curved=True)

ESTIMATORS: dict[str, Estimator] = {
    "forward": forward,
    "central": central,
    "projection": projection,
    "forward-sign": Stencil(1, signs=True),
    "central-sign": Stencil(2, signs=True),
}
