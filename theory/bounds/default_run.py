"""What ``decomfl train`` does by default: central differences and momentum, in one local step or several.

Every bound here is one of two theorems, for one local step or for any number, at one of three sets of assumptions.
An assumption gives r, B² and W of ``docs/theory-more.md``: how much larger a step along random directions is than one
along the gradient, the squared bias of the scalars' differences, and their second moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sympy as sp
from sympy import Rational, sqrt

from theory.bounds.paper import DOMINATED, EACH
from theory.notation.symbols import (
    H3,
    D,
    K,
    L,
    P,
    R,
    a,
    beta,
    delta,
    eta,
    kappa,
    m,
    mu,
    phi,
    rho,
    rho_kappa,
    s2,
    s4,
    s6,
    s8,
    sigma,
    sigma_G,
)
from theory.statements.measured import LOCAL_SECOND_MOMENT, SMOOTHED_GRADIENT
from theory.statements.statement import Statement

__all__ = ["CURVED", "DEFAULT_RUN", "LOW_RANK", "SMOOTH", "Assumption"]

_TAU: Final = beta / (1 - beta)
_MOMENTUM: Final = "momentum in torch's form, kept over local steps and rounds"


@dataclass(frozen=True)
class Assumption:
    """What is assumed of the losses, and what it gives.

    Attributes:
        words: The assumption.
        r: The factor of a second moment along random directions, ρ or ρ_κ.
        bias2: B², a bound on the squared bias of a scalar's estimate. [F²/X²]
        second: W, a bound on the second moment of what differences add to the estimate. [F²/X²]
        central: Whether it needs central differences.
    """

    words: str
    r: sp.Expr
    bias2: sp.Expr
    second: sp.Expr
    central: bool = False


SMOOTH: Final = Assumption(
    EACH,
    rho,
    mu**2 * L**2 * s2,
    mu**2 * L**2 * (s2 + s6 / (4 * P)),
)
CURVED: Final = Assumption(
    f"{SMOOTH.words}, with an H₃-Lipschitz Hessian; central differences",
    rho,
    mu**4 * H3**2 * s4 / 4,
    mu**4 * H3**2 * (s4 / 4 + s8 / (36 * P)),
    central=True,
)
_RANK_BIAS2 = mu**2 * L**2 * kappa * (kappa + 2) / 4
LOW_RANK: Final = Assumption(
    DOMINATED,
    rho_kappa,
    _RANK_BIAS2,
    _RANK_BIAS2 * (1 + (kappa + 3) / P),
)


def _single(name: str, of: Assumption, note: str) -> Statement:
    """One local step: 2D/(hR) + 2Lh(1 + 3Lhτ)(rN + W) + 7B²/2 for Lh(4r + 5τ) ≤ 1, h = η/(1 − β), τ = β/(1 − β)."""
    h = eta / (1 - beta)
    noise = 2 * L * h * (1 + 3 * L * h * _TAU)
    return Statement(
        name,
        variant="corrected",
        terms={
            "start": 2 * D / (R * h),
            "dissimilarity": noise * of.r * phi / m * sigma_G**2,
            "noise": noise * of.r / m * sigma**2,
            "smoothing": Rational(7, 2) * of.bias2 + noise * of.second,
        },
        eta={"descent": (1 - beta) / (L * (4 * of.r + 5 * _TAU))},
        central=of.central,
        single_step=True,
        assumptions=f"{of.words}; {_MOMENTUM}",
        note=note,
    )


def _several(name: str, of: Assumption, note: str) -> Statement:
    """Any number of local steps: see ``docs/theory-more.md``."""
    h = eta / (1 - beta)
    later = 1 + 4 * L * h * _TAU
    return Statement(
        name,
        variant="corrected",
        terms={
            "start": 4 * D / (K * R * h),
            "dissimilarity": 8 * L * h * later * (K + 2 * of.r) * phi / m * sigma_G**2,
            "noise": 8 * L * h * later * of.r / m * sigma**2,
            "drift": 26 * L**2 * h**2 * (K - 1) * ((K + 4 * of.r) * sigma_G**2 + 2 * of.r * sigma**2),
            "smoothing": 6 * of.bias2 + 13 * L * h * of.second,
        },
        eta={"descent": (1 - beta) / (11 * L * (K + 2 * of.r + _TAU))},
        central=of.central,
        assumptions=f"{of.words}; {_MOMENTUM}",
        note=note,
    )


DEFAULT_RUN: Final = (
    _single(
        "momentum", SMOOTH, "h = η/(1 − β) has the place of η, and β/(1 − β) hardly counts where ρ is much larger."
    ),
    _single(
        "default-run", CURVED, "What the lab runs by default, less its weight decay of 10⁻⁵. On quadratics H₃ = 0."
    ),
    _single("momentum-dimension-free", LOW_RANK, "Nothing in it grows with d."),
    _several("momentum-local", SMOOTH, "Rademacher directions too, which Theorem 1 leaves out for K > 1."),
    _several("default-run-local", CURVED, "The lab's default with K local steps, less its weight decay of 10⁻⁵."),
    _several("theorem-2-local", LOW_RANK, "Theorem 2 for K > 1: clients drift by a distance that H sees, not by ρ."),
    Statement(
        "central-bias",
        variant="corrected",
        left=SMOOTHED_GRADIENT,
        terms={"smoothing": sqrt(CURVED.bias2)},
        central=True,
        assumptions=CURVED.words,
        note="Forward differences have the same mean and so the same bias.",
    ),
    Statement(
        "central-second-moment",
        variant="corrected",
        left=LOCAL_SECOND_MOMENT,
        terms={
            "gradient": 6 * rho * a**2,
            "drift": 6 * rho * L**2 * delta**2,
            "dissimilarity": 6 * rho * sigma_G**2,
            "noise": 2 * rho * sigma**2,
            "smoothing": 2 * CURVED.second,
        },
        central=True,
        assumptions=CURVED.words,
    ),
)
