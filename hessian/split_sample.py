"""Mini-batch bias of ‖H‖₂ and κ, bracketed by two halves of the data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats

from decomfl_lab.errors import require, require_int
from decomfl_lab.noise import derive_seed
from hessian.counted import Counted
from hessian.estimate import Estimate, require_confidence
from hessian.lanczos import Krylov
from hessian.operator import Operator
from hessian.probes import probe

__all__ = ["SplitSampleBracket", "split_sample_bracket"]

PROBES = 7
"""Stage of the probes of the halves' traces."""


@dataclass(frozen=True, kw_only=True)
class SplitSampleBracket:
    """What two independent halves say of the population that both are drawn from.

    Attributes:
        norm_above: (‖H_A‖₂ + ‖H_B‖₂)/2: its expectation is at least ‖H‖₂.
        norm_below: (|u_AᵀH_B u_A| + |u_BᵀH_A u_B|)/2 with the signs of the top eigenvalues; its expectation is at
            most ‖H‖₂.
        trace: (tr(H_A) + tr(H_B))/2, unbiased for tr(H) over the draw of the data; its standard error is that of
            the probes.
        kappa: (low, high): the trace's interval over the norms in [norm_below, norm_above].
        kappa_halves: κ of H_A and of H_B alone, both biased low.
        confidence: Of the trace's interval.
        products: Spent on both.
    """

    norm_above: float
    norm_below: float
    trace: Estimate
    kappa: tuple[float, float]
    kappa_halves: tuple[float, float]
    confidence: float
    products: int


def split_sample_bracket(
    operator_a: Operator,
    operator_b: Operator,
    *,
    steps: int = 15,
    probes: int = 10,
    seed: int,
    confidence: float = 0.95,
) -> SplitSampleBracket:
    """κ of the population from the curvature on two disjoint, independently drawn halves of a sample.

    A norm is convex, so the top eigenvalue of a mean over few examples is too large on average (several times, for a
    mini-batch), while the top eigenvector of one half knows nothing of the noise of the other:

        E ‖H_A‖₂ ≥ ‖E H_A‖₂ = ‖H‖₂,    E u_AᵀH_B u_A = E u_AᵀH u_A ≤ ‖H‖₂

    Both ways are averaged. The trace is linear, hence unbiased. The interval covers the probes' randomness only: how
    the two bounds vary with the draw of the data is not in it.

    Args:
        operator_a: H_A, of one half.
        operator_b: H_B, of the other, at the same x.
        steps: Lanczos steps on each.
        probes: Random probes on each for the trace, at least 2.
        seed: Of everything random, 0..2**64-1.
        confidence: Of the trace's interval (Student's t with probes − 1 degrees of freedom, the fewest it can be).

    Raises:
        InputError: If the operators differ in dimension, an argument breaks a rule, or a half is zero.
    """
    require(operator_b.d == operator_a.d, "operator_b", f"have dimension {operator_a.d}", operator_b.d)
    require_int("steps", steps, 1)
    require_int("probes", probes, 2)
    require_int("seed", seed, 0, 2**64 - 1)
    require_confidence(confidence)
    halves = [Counted(operator_a), Counted(operator_b)]
    norms, tops, traces = [], [], []
    for i, half in enumerate(halves):
        krylov = Krylov(half, derive_seed(seed, i))
        for _ in range(steps):
            krylov.step()
        ritz = krylov.result()
        theta = float(ritz.ritz_values[ritz.top])
        require(theta != 0.0, f"operator_{'ab'[i]}", "not be zero", theta)
        norms.append(abs(theta))
        tops.append((math.copysign(1.0, theta), ritz.ritz_vectors([ritz.top])[0]))
        inside = float(krylov.projected.trace())
        if krylov.following is None:
            traces.append(Estimate(inside, 0.0, 0))
        else:
            zs = (probe(half, derive_seed(seed, i), PROBES, n) for n in range(probes))
            traces.append(Estimate.of([half.quad(krylov.complement(z)) for z in zs], inside))
    crossed = [sign * half.quad(u) for (sign, u), half in zip(tops, reversed(halves), strict=True)]
    above, below = sum(norms) / 2, sum(crossed) / 2
    trace = Estimate(
        (traces[0].value + traces[1].value) / 2,
        math.hypot(traces[0].stderr, traces[1].stderr) / 2,
        traces[0].samples + traces[1].samples,
    )
    width = float(stats.t.ppf(0.5 + confidence / 2, probes - 1)) * trace.stderr
    ends = [
        t / n if n > 0 else math.copysign(math.inf, t)
        for t in (trace.value - width, trace.value + width)
        for n in (below, above)
    ]
    return SplitSampleBracket(
        norm_above=above,
        norm_below=below,
        trace=trace,
        kappa=(min(ends), max(ends)),
        kappa_halves=(traces[0].value / norms[0], traces[1].value / norms[1]),
        confidence=confidence,
        products=sum(half.products for half in halves),
    )
