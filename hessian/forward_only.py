"""κ from function values alone: trace, Frobenius norm and brackets from second differences, and which μ to take.

    q_p = (f(x + μ z_p) + f(x − μ z_p) − 2 f(x)) / μ²,        p = 1..n.

What their moments say about H stands in ``decomfl_lab.second_differences``. What a second difference is wrong by:

- **truncation**: q_p = z_pᵀ H z_p + c_p μ² + O(μ⁴), c_p = D⁴f(x)[z_p, z_p, z_p, z_p] / 12.
- **rounding**: each value of f has an error of standard deviation ε_f (forward passes in float32: a few 10⁻⁸ of f), so
  q_p has one of √6 ε_f/μ² (weights 1, 1, −2). The error of f(x) is shared by all probes: of the mean over n it leaves
  √(4 + 2/n) ε_f/μ², a bias that no number of probes removes. Between probes only √2 ε_f/μ² differ, so Var q is too
  large by 2 ε_f²/μ⁴, which is taken off.

(c μ²)² + 6 ε_f²/μ⁴ is least at **μ\\* = (√6 ε_f / c)^{1/4}** [root mean square c of the c_p], where both are equal.

**Kinks.** Where f is piecewise smooth (ReLU, max-pooling) q_p does not tend to z_pᵀ H z_p of automatic differentiation,
because the jumps of the gradient count too. For Gaussian z, without any smoothness, with f^s(x) = E f(x + s u),

    E q = (2/μ²) ∫₀^μ s tr ∇²f^s(x) ds :

d/ds E f(x + s z) = E⟨z, ∇f(x + s z)⟩ = s tr ∇²f^s(x) (integration by parts); integrate from 0 to μ, twice, over μ².
So the estimate is of the *smoothed* trace at scales up to μ, the one zeroth-order methods see. It shows on a ladder of μ:
between neighbouring rungs smooth q_p move by c_p (μ'² − μ²), mean square ∝ μ⁴, and kinked ones by a mean square
∝ 1/μ (the chance to meet a kink within μ is ∝ μ, and a kink met counts 1/μ, so 1/μ² in square).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError, require, require_finite_positive, require_int
from decomfl_lab.noise import Distribution
from decomfl_lab.second_differences import BRACKETS, MOMENT_LAWS, PowerSums, cumulants, power_sums
from hessian.estimate import Estimate, require_confidence
from hessian.probes import probe_at

__all__ = [
    "MUS",
    "Bracket",
    "ForwardOnly",
    "MuLadder",
    "Quantity",
    "Rung",
    "evaluation_noise",
    "forward_only",
    "mu_ladder",
    "second_differences",
]

Loss = Callable[[Tensor], float]
Floats = NDArray[np.float64]
Interval = tuple[float, float]

MUS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
"""Rungs of the default ladder: around the μ = 1e-3 of MeZO and the 1e-4 of the authors' image runs."""

_PROBES, _LADDER, _NOISE = 40, 41, 42


def _value(f: Loss, x: Tensor) -> float:
    value = float(f(x))
    require(math.isfinite(value), "loss f", "be finite at every point", value)
    return value


def _require_point(x: Tensor) -> None:
    require(x.ndim == 1 and x.numel() > 0, "x", "be a vector of at least one parameter", tuple(x.shape))
    require(x.dtype in (torch.float32, torch.float64), "x", "be float32 or float64", x.dtype)


def second_differences(f: Loss, x: Tensor, z: Sequence[Tensor] | Tensor, mu: float, center: float | None = None) -> Floats:
    """q_p for every direction z_p (d,), shape (n,), from 2n values of f and f(x), which is ``center`` if it is known.

    Raises:
        InputError: If μ is not positive, or so small that x + μz = x, or f is not finite.
    """
    require_finite_positive("mu", mu)
    center = _value(f, x) if center is None else center
    values = []
    for direction in z:
        points = x + mu * direction, x - mu * direction
        require(not torch.equal(points[0], x), "mu", f"move x (it does not in {x.dtype})", mu)
        values.append([_value(f, point) for point in points])
    return (np.array(values).sum(1) - 2 * center) / mu**2


def evaluation_noise(f: Loss, x: Tensor, *, seed: int) -> float:
    """ε_f: the standard deviation of the rounding error of f near x, from nine values.

    f at nine points of a line, so near to each other (128 units in the last place of a typical parameter) that f itself
    is a polynomial of low degree there: its k-th differences vanish, and those of independent errors of variance ε² have
    the variance (2k)!/(k!)² ε². ε_k from the k-th differences is taken at the first k from which on it
    stays within a factor of 4 for three k, and not below half a unit roundoff of f(x).

    Source: Moré and Wild, "Estimating computational noise", SIAM J. Sci. Comput. 33 (2011), ECnoise.
    """
    _require_point(x)
    unit = torch.finfo(x.dtype).eps / 2
    scale = float(x.double().square().mean().sqrt()) or 1.0
    z = probe_at(x, seed, _NOISE, 0)
    table = np.array([_value(f, x + (128 * unit * scale * i) * z) for i in range(9)])
    floor = 0.5 * unit * abs(float(table[0]))
    levels = []
    for k in range(1, 7):
        table = np.diff(table)
        levels.append(math.sqrt(float(np.mean(table**2)) * math.factorial(k) ** 2 / math.factorial(2 * k)))
    for k in range(len(levels) - 2):
        three = levels[k : k + 3]
        if max(three) <= 4 * min(three):
            return max(three[0], floor)
    return max(levels[-1], floor)


@dataclass(frozen=True)
class Rung:
    """Second differences at one μ.

    Attributes:
        mu: μ.
        trace: Their mean, with its standard error over the probes.
        rounding: √6 ε_f/μ², standard deviation of the rounding error of one q_p.
        truncation: c μ², root mean square of c_p μ² (infinite where kinks leave no c).
    """

    mu: float
    trace: Estimate
    rounding: float
    truncation: float


@dataclass(frozen=True)
class MuLadder:
    """Second differences along the same few directions at several μ.

    Attributes:
        rungs: One a μ, rising.
        noise: ε_f.
        fourth: c, so that truncation is c μ²; an upper estimate where rounding hides it. NaN with kinks.
        kinked: Whether q_p changes with μ as at kinks.
        mu: The recommended μ.
        reason: Why that one, in a line.
        evaluations: Of f.
    """

    rungs: tuple[Rung, ...]
    noise: float
    fourth: float
    kinked: bool
    mu: float
    reason: str
    evaluations: int

    def errors_at(self, mu: float) -> tuple[float, float]:
        """(truncation, rounding) of one q_p at μ: c μ² and √6 ε_f/μ²."""
        return _truncation(self.fourth, mu), math.sqrt(6.0) * self.noise / mu**2


def _truncation(fourth: float, mu: float) -> float:
    return fourth * mu**2 if math.isfinite(fourth) else math.inf


def mu_ladder(
    f: Loss,
    x: Tensor,
    *,
    seed: int,
    mus: Sequence[float] = MUS,
    probes: int = 8,
    noise: float | None = None,
    law: Distribution = Distribution.GAUSSIAN,
) -> MuLadder:
    """Second differences at every μ of ``mus`` along the same ``probes`` directions, and which μ to take.

    Let D_j² be the mean square over probes of q_p(μ_{j+1}) − q_p(μ_j), and V_j = 2 ε_f² (1/μ_j² − 1/μ_{j+1}²)² +
    2 ε_f² (1/μ_j⁴ + 1/μ_{j+1}⁴) + ... its share of rounding. Where D_j² is well above V_j the excess tells truncation
    (∝ μ⁴) from kinks (∝ 1/μ); c is taken from the lowest such pair.

    Args:
        f: The loss, of a vector (d,).
        x: Where, (d,) float32 or float64.
        seed: Of the directions.
        mus: At least three, rising.
        probes: Directions, at least 2.
        noise: ε_f, if it is known; else ``evaluation_noise``.
        law: Of the directions.

    Raises:
        InputError: If there are fewer than three μ, one is not positive or does not move x, or f is not finite.
    """
    _require_point(x)
    rising = len(mus) >= 3 and all(a < b for a, b in zip(mus, mus[1:], strict=False))
    require(rising, "mus", "be at least three rising numbers", tuple(mus))
    for mu in mus:
        require_finite_positive("mu", mu)
    require_int("probes of the ladder", probes, 2)
    evaluations = 1 + 2 * probes * len(mus) + (9 if noise is None else 0)
    noise = evaluation_noise(f, x, seed=seed) if noise is None else noise
    center = _value(f, x)
    z = [probe_at(x, seed, _LADDER, p, law) for p in range(probes)]
    q = np.stack([second_differences(f, x, z, mu, center) for mu in mus])
    raise NotImplementedError
