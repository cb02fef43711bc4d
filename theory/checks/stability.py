"""When DeComFL is stable in mean square on a quadratic: the largest step size, exactly, momentum included."""

import math
from typing import Final

import numpy as np
from scipy import optimize

from decomfl_lab.errors import require, require_choice, require_int
from theory.notation.setting import DISTRIBUTIONS
from theory.problems.quadratic import Quadratic, round_map
from theory.problems.spectrum import Spectrum

_OWN: Final = {"gaussian": 2.0, "sphere": 2.0, "rademacher": 0.0}
"""b in E z zᵀV z zᵀ = γ(tr V · I + b V), on the diagonal."""


def moments(d: int, *, P: int, distribution: str) -> tuple[float, float]:
    """(a, γ) with E (Zv)_i² = a E v_i² + (γ/P) E‖v‖²: a = 1 − 1/P + γb/P, γ = d/(d + 2) on the sphere, else 1."""
    require_int("P", P, 1)
    require_choice("distribution", distribution, DISTRIBUTIONS)
    gamma = d / (d + 2) if distribution == "sphere" else 1.0
    return 1.0 - 1.0 / P + gamma * _OWN[distribution] / P, gamma


def load(spectrum: Spectrum, h: float, *, P: int, beta: float = 0.0, distribution: str = "gaussian") -> float:
    """S(h), how much of the stability of m ← βm + ĝ, x ← x − ηm is used up at h = η/(1 − β); from 1 on it is lost.

        S(h) = Σ_j hλ_j / (2P − hλ_j(1 + P(1 − β)/(1 + β)))                          (Gaussian z)

    on f = ½xᵀHx with the eigenvalues λ_j, ĝ = (1/P) Σ_p z_p z_pᵀHx. E‖x_r‖² stays bounded for every x_0 where
    S < 1, and grows where S > 1. It is about h tr(H)/(2P) where no eigenvalue is large: P directions share the whole
    trace.
    Neither m nor K is in it: clients that share H and the directions move as one.

    Args:
        spectrum: Spectrum of H ⪰ 0.
        h: η/(1 − β) ≥ 0, how far a constant gradient moves x in a step. [X²/F]
        P: Number of directions a step.
        beta: Momentum β in [0, 1), as torch has it.
        distribution: Distribution of the directions; ``docs/theory.md`` treats those that are not Gaussian.

    Returns:
        S; infinite where a single eigenvalue is too large already.

    Raises:
        InputError: If P, β or the distribution is out of range, or h is negative or not finite.

    Source: ``docs/theory.md``, "Stability in mean square"; for P = 1 see Song, Zhang, Li, He, Muehlebach and Oh,
    "Zeroth-order optimization at the edge of stability", 2026 (arXiv 2604.14669).
    """
    require(0.0 <= beta < 1.0, "beta", "be in [0, 1)", beta)
    a, gamma = moments(spectrum.d, P=P, distribution=distribution)
    require(math.isfinite(h) and h >= 0, "h", "be a finite number of at least 0", h)
    steps = h * spectrum.eigenvalues
    left = 2.0 - steps * (a - 2.0 * beta / (1.0 + beta))
    if (left <= 0).any():
        return math.inf
    return gamma / P * float(spectrum.multiplicities @ (steps / left))


def largest_step(spectrum: Spectrum, *, P: int, beta: float = 0.0, distribution: str = "gaussian") -> float:
    """The h = η/(1 − β), in X²/F, at which S(h) = 1 (see ``load``): above it E‖x_r‖² grows.

    With κ = tr(H)/λ_max and β = 0 it lies between 2P/((κ + P + 1)λ_max), exact for equal eigenvalues, and 2P/tr(H).

    Raises:
        InputError: If P, β or the distribution is out of range.
    """
    top = 2.0 * P / spectrum.trace
    while load(spectrum, top, P=P, beta=beta, distribution=distribution) < 1.0:  # only where z is not Gaussian
        top *= 2.0
    return float(
        optimize.brentq(
            lambda h: min(load(spectrum, h, P=P, beta=beta, distribution=distribution), 2.0) - 1.0, 0.0, top
        )
    )


def growth(spectrum: Spectrum, h: float, *, P: int, beta: float = 0.0, distribution: str = "gaussian") -> float:
    """By how much second moments are multiplied in a step in the long run: the spectral radius of ``round_map``."""
    still = Quadratic.of(spectrum, D=0.0)
    setting = still.setting(eta=(1.0 - beta) * h, P=P, beta=beta, distribution=distribution)
    return float(np.abs(np.linalg.eigvals(round_map(still, setting)[:-1, :-1])).max())
