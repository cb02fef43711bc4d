"""When DeComFL is stable in mean square on a quadratic: the largest step size, exactly, momentum included."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from decomfl_lab.errors import require, require_choice, require_int
from theory.problems.spectrum import Spectrum
from theory.setting import DISTRIBUTIONS

__all__ = ["growth", "largest_step", "load", "moment_map"]

Floats = NDArray[np.float64]

_OWN: Final = {"gaussian": 2.0, "sphere": 2.0, "rademacher": 0.0}
"""b in E z zᵀV z zᵀ = γ(tr V · I + b V), on the diagonal."""


def _moments(spectrum: Spectrum, *, P: int, beta: float, distribution: str) -> tuple[float, float]:
    """(a, γ) with E (Zv)_i² = a E v_i² + (γ/P) E‖v‖²: a = 1 − 1/P + γb/P, γ = d/(d + 2) on the sphere, else 1."""
    require_int("P", P, 1)
    require(0.0 <= beta < 1.0, "beta", "be in [0, 1)", beta)
    require_choice("distribution", distribution, DISTRIBUTIONS)
    gamma = spectrum.d / (spectrum.d + 2) if distribution == "sphere" else 1.0
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
    a, gamma = _moments(spectrum, P=P, beta=beta, distribution=distribution)
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


def moment_map(spectrum: Spectrum, h: float, *, P: int, beta: float = 0.0, distribution: str = "gaussian") -> Floats:
    """How a step moves E x_i², E x_i m_i and E m_i² of a coordinate in each group of eigenvalues, shape (3n, 3n).

    With g = λx and T = (γ/P) Σ_j λ_j² E x_j²,

        E m⁺² = β² E m² + 2βλ E xm + aλ² E x² + T
        E x⁺m⁺ = β E xm + λ E x² − η E m⁺²
        E x⁺² = E x² − 2η(β E xm + λ E x²) + η² E m⁺²

    Args:
        spectrum: Spectrum of H ⪰ 0, in n groups; x is alike in all coordinates of a group.
        h: η/(1 − β). [X²/F]
        P: Number of directions a step.
        beta: Momentum β, as torch has it.
        distribution: Distribution of the directions; a and γ are its fourth moments, see ``docs/theory.md``.
    """
    a, gamma = _moments(spectrum, P=P, beta=beta, distribution=distribution)
    eta, H, n = (1.0 - beta) * h, spectrum.eigenvalues, spectrum.multiplicities
    groups = len(H)
    x2, xm, m2 = (np.arange(groups) + part * groups for part in range(3))
    found: Floats = np.zeros((3 * groups, 3 * groups))
    found[m2, m2], found[m2, xm], found[m2, x2] = beta**2, 2 * beta * H, a * H**2
    found[np.ix_(m2, x2)] += gamma / P * n[None, :] * H[None, :] ** 2  # every coordinate of j moves every one of i
    found[xm] = -eta * found[m2]
    found[xm, xm] += beta
    found[xm, x2] += H
    found[x2] = eta**2 * found[m2]
    found[x2, x2] += 1 - 2 * eta * H
    found[x2, xm] += -2 * eta * beta
    return found


def growth(spectrum: Spectrum, h: float, *, P: int, beta: float = 0.0, distribution: str = "gaussian") -> float:
    """By how much second moments are multiplied in a step in the long run: the spectral radius of ``moment_map``."""
    return float(np.abs(np.linalg.eigvals(moment_map(spectrum, h, P=P, beta=beta, distribution=distribution))).max())
