"""Constants proved by interval arithmetic: what the sharper Theorem 1 needs for every K ≥ 1, ρ ≥ 1 and admissible η.

The proof, in ``theory/bounds/proofs.md``, has ten free parameters. Whatever they are, it gives a constant for each term
of the bound, a function of points of a box. ``needed`` covers the box by cells and rounds outwards.
"""

from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from mpmath import iv


@dataclass(frozen=True)
class Young:
    """The free parameters of the proof, each above 0, named as there."""

    alpha: Fraction  # share of ‖∇f‖² that is spent on ⟨∇f, u − ∇f⟩
    beta: Fraction  # of K B_r against Σ(B^k − B_r)
    theta: Fraction  # of Σ(B^k − B_r) against Σ N^k
    s: Fraction  # of Zv̄ against e
    t: Fraction  # of ∇f_i(x_r) against ∇f_i(x_i^k) − ∇f_i(x_r)
    beta_1: Fraction  # as beta, in the drift
    theta_1: Fraction  # as theta, in the drift
    s_1: Fraction  # as s, in the drift
    t_1: Fraction  # as t, in the drift
    nu: Fraction  # of E ∇f_i(x + μz) against r, where directions are of ±1


def needed(young: Young, limit: Fraction, *, cells: int = 2000) -> dict[str, float]:
    """Upper bounds of the constants that the proof gives, over all K ≥ 1, ρ ≥ 1 and η with ηL(K + 2(ρ − 1)) ≤ limit.

    Args:
        young: The free parameters.
        limit: The largest ηL(K + 2(ρ − 1)).
        cells: How many intervals of x = K/(K + 2q) are looked at; more give smaller upper bounds.

    Returns:
        By the constant's name (start, dissimilarity, noise, drift, bias, remainder) a number that is not below it;
        infinite where the proof fails because the coefficient of ‖∇f‖² may reach 0.
    """
    y = SimpleNamespace(**{name: _interval(each) for name, each in vars(young).items()})
    shares = [iv.mpf([cell, cell + 1]) / cells for cell in range(cells)]
    size, c, found = iv.mpf([0, 1]) * _interval(limit), iv.mpf([0, 1]), []
    for x in shares:
        # The constants at λ = size, x and c, in the letters of the proof.
        p, r = size * x, size * (1 - x) / 2  # ηLK, ηLq
        step, step_1 = 1 + 1 / y.beta + 1 / y.theta, 1 + 1 / y.beta_1 + 1 / y.theta_1
        noise, noise_1 = (1 + y.theta) * (1 + y.s), (1 + y.theta_1) * (1 + y.s_1)
        remainder, remainder_1 = (1 + y.theta) * (1 + 1 / y.s) / 2, (1 + y.theta_1) * (1 + 1 / y.s_1) / 2
        bias = (1 + y.nu + (1 + 1 / y.nu) / 4) * 4 / 9  # s_ν in units of s₂
        itself = (1 - c) * p * ((1 + y.nu) * step_1 * p / 2 + noise_1 * (1 + 1 / y.t_1) * r)
        drift = ((1 + y.nu) * (1 / (4 * y.alpha) + step * p / 2) + noise * (1 + 1 / y.t) * r / 2) / (1 - itself)
        start = (1 + y.beta_1) * (2 - c) * x / 6 + noise_1 * (1 + y.t_1) * (1 - x) / 4
        descent = (
            1
            - y.alpha
            - ((1 + y.beta) * p + noise * (1 + y.t) * r) / 2
            - drift * (1 - c) * p * ((1 + y.beta_1) * (2 - c) * p / 6 + noise_1 * (1 + y.t_1) * r / 2)
        )
        if not (descent.a > 0 and itself.b < 1):
            descent = iv.mpf(0)
        of_e = remainder + drift * (1 - c) * p * remainder_1
        found.append(
            {
                "start": 1 / descent,
                "dissimilarity": ((1 + y.beta) * x / 2 + noise * (1 + y.t) * (1 - x) / 4) / descent,
                "noise": noise / 2 / descent,
                "drift": drift * max(start.b, (noise_1 / 2).b) / descent,
                "bias": (
                    bias * (1 / (4 * y.alpha) + step * p / 2 + drift * step_1 * (1 - c) * (2 - c) * p**2 / 6)
                    + of_e * c * p / 9
                )
                / descent,
                "remainder": of_e / descent,
            }
        )
    return {name: max(float(each[name].b) for each in found) for name in found[0]}


def _interval(number: Fraction) -> Any:
    return iv.mpf(number.numerator) / number.denominator
