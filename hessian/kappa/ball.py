"""Assumption 4: κ and λ_max not at a point but over the ball that the assumption speaks of.

[DeComFL, Assumption 4]: there is one matrix H(x_r) ⪯ L·I with ∇²f(x) ⪯ H(x_r) for all x with ‖x − x_r‖ ≤ 2ηd G(x_r),
G(x_r) = max_i max_ξ ‖∇f_i(x_r; ξ)‖, and tr H(x_r)/‖H(x_r)‖₂ ≤ κ. With H_j = ∇²f(x_j) at x_0 = x_r, x_1, ...:

- **Necessary.** H ⪰ H_j for every j, so ‖H‖ ≥ Λ = max_j λ_max(H_j) and tr H ≥ T = max_j tr H_j; and tr H ≥ tr(H_0)₊,
  as the sum of H's eigenvalues along the eigenvectors of (H_0)₊ is at least theirs, and H has no negative one.
- **Only the trace matters.** Theorem 2 needs κ through κL only (its proof bounds tr H ≤ κ‖H‖ ≤ κL); κ alone can be
  made as small as 1 by adding to H along one direction, which raises ‖H‖. With the smallest L = Λ, κ ≥ T/Λ; with
  another L the product κL must still reach T.
- **Sufficient, for these points.** D = (H_0)₊ + Σ_{j≥1} (H_j − H_0)₊ is positive semi-definite and dominates all H_j,
  because A₊ ⪰ A and A₊ ⪰ 0. Its trace is T_D = tr(H_0)₊ + Σ_j tr(H_j − H_0)₊, and ‖D‖ ≥ Λ, so κ(D) ≤ **T_D/Λ**; for any
  L ≥ ‖D‖ the product (T_D/Λ)·L reaches T_D. That is the κ to put into Theorem 2.

What is shown is about the points that were sampled, up to the stated intervals. Between them nothing is: a ball of
millions of dimensions cannot be searched, so T_D/Λ is evidence for Assumption 4 and no proof of it, while one point
with a larger λ_max than the L in use refutes it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from decomfl_lab.errors import require, require_finite_positive, require_int
from hessian.estimate import Estimate, require_confidence
from hessian.kappa.effective_rank import effective_rank
from hessian.kappa.result import EffectiveRank
from hessian.operators.matrices import as_operator
from hessian.operators.probes import probe
from hessian.readings import Reading, Reported

_DIRECTIONS = 45


def ball_radius(eta: float, d: int, G: float) -> float:
    """2 η d G(x_r), the radius of Assumption 4's ball, in units of x; InputError if an argument is not positive.

    η is the learning rate, d the number of parameters, G the largest norm of a stochastic gradient at x_r, over
    clients and batches.

    Source: [DeComFL, Assumption 4].
    """
    return 2.0 * require_finite_positive("eta", eta) * require_int("d", d, 1) * require_finite_positive("G", G)


@dataclass(frozen=True)
class BallPoint:
    """What was measured at one point."""

    distance: float  # the distance of the point from the centre, ‖x_j − x_0‖
    rank: EffectiveRank  # the trace, λ_max and κ there, each with its interval
    # what this point adds to the trace of D: tr(H_j − H_0)₊, and tr(H_0)₊ at x_0. None where it was not asked for.
    raised: Estimate | None


@dataclass(frozen=True, repr=False)
class BallProbe(Reported):
    """κ, trace and λ_max over sampled points."""

    in_json = ("recommended",)

    points: tuple[BallPoint, ...]  # what was measured at every point, x_0 first
    radius: float  # the radius of the ball, or the largest distance from x_0
    relative_radius: float  # the ratio radius/‖x_0‖; infinite at x_0 = 0
    seed: int  # the seed of everything random
    confidence: float  # the confidence of all intervals of all points together (each point has its share)
    lambda_max: float  # the largest Ritz value Λ; every L must be at least that
    trace: float  # the largest trace T; every dominating matrix has at least that
    kappa_necessary: float  # T/Λ at the cautious ends of the intervals: no dominating matrix of norm Λ has a smaller κ
    # T_D/Λ at the cautious ends: some matrix that dominates at all sampled points has no larger κ. None where it was
    # not asked for.
    kappa_sufficient: float | None
    reason: str  # what this says and what not, in a line

    @property
    def recommended(self) -> float:
        """The κ to put into Theorem 2, with an L of at least ``lambda_max``: sufficient if known, else necessary."""
        return self.kappa_necessary if self.kappa_sufficient is None else self.kappa_sufficient

    def report(self) -> tuple[str, Sequence[Reading], str]:
        """κ for Theorem 2, and κ at each point; see ``Reported``."""
        sure = f"{100 * self.confidence:g} % confidence over all"
        sufficient = math.nan if self.kappa_sufficient is None else self.kappa_sufficient
        found = [
            Reading("κ, necessary", self.kappa_necessary, words=f"for Theorem 2, with L ≥ {self.lambda_max:.5g}"),
            Reading("κ, sufficient", sufficient, words="for Theorem 2 at the sampled points"),
        ]
        for point in self.points:
            rank, raised = point.rank, ""
            if point.raised is not None:
                raised = f", adds {point.raised.value:.4g} to a dominating trace"
            words = f"tr(H) = {rank.trace.value:.5g}, λ_max = {rank.lambda_max:.5g}{raised}"
            found.append(Reading(f"κ at {point.distance:.4g}", rank.kappa, *rank.interval, words))
        return f"κ over a ball of radius {self.radius:.4g} = {self.relative_radius:.3g} ‖x‖; {sure}", found, self.reason


def ball_probe(
    operator_at: Callable[[Tensor], Any],
    x: Tensor,
    radius: float,
    *,
    points: int = 4,
    seed: int,
    dominate: bool = True,
    rtol: float = 0.1,
    confidence: float = 0.95,
    max_products: int = 60,
) -> BallProbe:
    """κ at x and at random points of a ball around it, all distances alike, and the κ for Theorem 2.

    Args:
        operator_at: A function that returns ∇²f at a point (d,), as ``as_operator`` takes it, of the same data and mode
            everywhere.
        x: The model x_r, (d,).
        radius: The radius of the ball, e.g. ``ball_radius``.
        points: The number of points beside x.
        seed: The seed of directions, distances and estimates.
        dominate: Whether to measure what makes ``kappa_sufficient``, by ``max_products`` products more a point, of two
            operators each.
        rtol: The ``rtol`` of ``effective_rank`` at each point.
        confidence: The confidence of all intervals together.
        max_products: The ``max_products`` of ``effective_rank`` at each point.

    Raises:
        InputError: If an argument breaks its rule.

    Source: [DeComFL, Assumption 4].
    """
    require_finite_positive("radius", radius)
    require_int("points", points, 1)
    # Directions are uniform, and so are distances in [0, radius): in many dimensions a uniform point is at the rim.
    uniform = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_DIRECTIONS,))).random(points)
    others = []
    for j, u in enumerate(uniform):
        z = probe(x, seed, _DIRECTIONS, j)
        others.append(x + (radius * float(u) / float(z.norm())) * z)
    return _probed(operator_at, [x, *others], radius, seed, dominate, rtol, confidence, max_products)


def along_training(
    operator_at: Callable[[Tensor], Any],
    checkpoints: Sequence[Tensor],
    *,
    seed: int,
    dominate: bool = False,
    rtol: float = 0.1,
    confidence: float = 0.95,
    max_products: int = 60,
) -> BallProbe:
    """The same at the points that training went through, x_0 the first: see ``ball_probe``.

    Raises:
        InputError: If there is no checkpoint, or an argument breaks its rule.
    """
    require(len(checkpoints) > 0, "checkpoints", "hold at least one model", len(checkpoints))
    return _probed(operator_at, checkpoints, None, seed, dominate, rtol, confidence, max_products)


def _probed(
    operator_at: Callable[[Tensor], Any],
    places: Sequence[Tensor],
    radius: float | None,
    seed: int,
    dominate: bool,
    rtol: float,
    confidence: float,
    max_products: int,
) -> BallProbe:
    """What all points together say, within a radius or, for None, the largest distance; they have the same probes."""
    require_confidence(confidence)
    # Each interval has its share of the error probability (Bonferroni). Each point has one of κ and, where D is
    # measured, one of its term.
    level = 1.0 - (1.0 - confidence) / (len(places) * (2 if dominate else 1))
    at_centre, points = as_operator(operator_at(places[0])), []
    added: list[float] = []  # the upper end of each term of tr D
    least = -math.inf  # the lower end of tr(H_0)₊
    for j, place in enumerate(places):
        at_place = at_centre if j == 0 else as_operator(operator_at(place))
        rank = effective_rank(at_place, rtol=rtol, confidence=level, max_products=max_products, seed=seed)
        raised = None
        if dominate:
            # The terms of D: Σ max(λ, 0) of H_0 at the centre, of H_j − H_0 at every other point.
            asked: dict[str, Any] = {"confidence": level, "products": max_products, "seed": seed}
            term = effective_rank(at_place - at_centre if j else at_centre, part="positive", **asked)
            raised, ends = term.trace, term.trace_interval
            added.append(ends[1])
            if j == 0:  # what dominates H_0 has at least the trace of its positive part
                least = ends[0]
        points.append(BallPoint(float((place - places[0]).norm()), rank, raised))
    radius = max(point.distance for point in points) if radius is None else radius
    ranks = [point.rank for point in points]
    top = max(rank.lambda_max for rank in ranks)
    # Cautious ends: the necessary κ divides the lowest trace by the highest λ_max, the sufficient one the other way.
    highest = max(rank.norm_interval[1] for rank in ranks)
    norm = float(places[0].norm())
    parts = ["holds at the sampled points, up to the intervals; between them nothing is shown"]
    if not top > 0:
        parts = ["no sampled point has a positive eigenvalue: any L and κ will do for these"]
    if radius > norm:
        parts.append("the ball is larger than the model's own norm: a value at x_r says little of it")
    missed = sum(not rank.reached for rank in ranks)
    if missed:
        parts.append(f"{missed} of {len(ranks)} points missed the asked accuracy: more max_products")
    return BallProbe(
        points=tuple(points),
        radius=radius,
        relative_radius=radius / norm if norm else math.inf,
        seed=seed,
        confidence=confidence,
        lambda_max=top,
        trace=max(rank.trace.value for rank in ranks),
        kappa_necessary=max(least, *(rank.trace_interval[0] for rank in ranks)) / highest if top > 0 else math.nan,
        kappa_sufficient=sum(added) / top if added and top > 0 else None,
        reason="; ".join(parts),
    )
