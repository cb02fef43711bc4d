"""The theorems with smaller constants, proved in docs/theory.md; those of Theorem 1 in ``theory.bounds.intervals``."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import sympy as sp
from sympy import Min, Rational, evaluate, sqrt

from theory.bounds.intervals import Young
from theory.bounds.paper import DOMINATED, EACH
from theory.notation.setting import DISTRIBUTIONS
from theory.notation.symbols import D, K, L, P, R, d, eta, kappa, m, mu, phi, rho, rho_kappa, s2, s6, sigma, sigma_G
from theory.statements.statement import Statement, Variant


@dataclass(frozen=True)
class Sharpened:
    """Constants of Theorem 1 and what proves them."""

    variant: Variant  # the variant that has them
    limit: Rational  # the largest ηL(K + 2(ρ − 1))
    # By the names of ``intervals.needed``, whose values for ``young`` must not be above them.
    constants: Mapping[str, Rational]
    young: Young  # the free parameters of the proof


def _sharpened(variant: Variant, limit: str, constants: str, young: str) -> Sharpened:
    names = ("start", "dissimilarity", "noise", "drift", "bias", "remainder")
    numbers = dict(zip(names, map(Rational, constants.split()), strict=True))
    return Sharpened(variant, Rational(limit), numbers, Young(*map(Fraction, young.split())))


SHARPENED: Final = (
    _sharpened("sharper", "1/9", "5/4 3/4 9/10 4 4 7", ".109 .2 .223 .177 .033 .237 .233 .231 1.059 .349"),
    _sharpened("wider", "1/4", "7/4 11/10 3/2 35/4 23/4 14", ".165 .257 .457 .176 .066 .377 .935 .398 .612 .253"),
)


def _theorem_1(of: Sharpened) -> Statement:
    c, inverse = of.constants, 1 / of.limit
    with evaluate(False):
        spread = K + 2 * (rho - 1)
        terms = {
            "start": c["start"] * D / (K * R * eta),
            "dissimilarity": c["dissimilarity"] * L * eta * spread * phi / m * sigma_G**2,
            "noise": c["noise"] * L * eta * rho / m * sigma**2,
            "drift": c["drift"] * L**2 * eta**2 * (K - 1) * (spread * sigma_G**2 + rho * sigma**2),
            "smoothing": mu**2 * L**2 * (c["bias"] * s2 + c["remainder"] * L * eta * s6 / (4 * P)),
        }
        limits = {"descent": 1 / (inverse * L * spread)}
    return Statement(
        "theorem-1",
        variant=of.variant,
        source="the.1",
        terms=terms,
        eta=limits,
        assumptions=EACH,
        note="For all three distributions. Its constants are proved by interval arithmetic (theory.bounds.intervals).",
    )


def _corollary_1(of: Sharpened) -> Statement:
    """Theorem 1 at 1/η = L(K + 2(ρ − 1))/limit + √(noise·LKRN/(start·Dm)), which balances its terms in 1/η and η."""
    c, inverse = of.constants, 1 / of.limit
    share, both, one = c["dissimilarity"] / c["noise"], 4 * c["start"] * c["noise"], c["noise"] / c["start"]
    first, last = c["start"] * inverse, c["remainder"] * of.limit / 4
    with evaluate(False):
        spread = K + 2 * (rho - 1)
        noise = rho * sigma**2 + share * spread * phi * sigma_G**2
        rate = sqrt(D) / (inverse * L * spread * sqrt(D) + sqrt(one * L * K * R * noise / m))
        terms = {
            "rate": sqrt(both * D * L * noise / (m * K * R)),
            "start": first * D * L * spread / (K * R),
            "drift": c["drift"] * L**2 * rate**2 * (K - 1) * (spread * sigma_G**2 + rho * sigma**2),
            "smoothing": mu**2 * L**2 * (c["bias"] * s2 + last * s6 / (P * spread)),
        }
    return Statement(
        "corollary-1",
        variant=of.variant,
        source="coro-1",
        terms=terms,
        eta={"rate": rate},
        assumptions=EACH,
        note=f"This is Theorem 1 ({of.variant}) at the largest η allowed here.",
    )


# ‖E e‖² ≤ μ²L²·_BIAS and E eᵀHe ≤ μ²L³((1 − 1/P)·_BIAS + _SIXTH): of two bounds the smaller one.
_BIAS: Final = Min(kappa * (kappa + 2) / 4, s2)
with evaluate(False):
    _SIXTH: Final = Min(kappa * (kappa + 2) * (kappa + 4), kappa * s6 / d) / (4 * P)
    _SIXTH_ALONG: Final = kappa * s6 / (4 * d * P)


def _theorem_2(name: str, bias: sp.Expr, sixth: sp.Expr, assumptions: str, *distributions: str) -> Statement:
    with evaluate(False):
        terms = {
            "start": 2 * D / (R * eta),
            "noise": 2 * L * eta / m * rho_kappa * (phi * sigma_G**2 + sigma**2),
            "smoothing": 2 * mu**2 * L**2 * (bias + L * eta * ((1 - 1 / P) * bias + sixth)),
        }
        limits = {"descent": 1 / (4 * L * rho_kappa)}
    return Statement(
        name,
        variant="sharper",
        source=_SOURCES[name],
        terms=terms,
        eta=limits,
        single_step=True,
        assumptions=assumptions,
        distributions=distributions,
    )


_SOURCES: Final = {"theorem-2": "the.2", "theorem-2-gaussian": "line-1448", "theorem-2-dimension-free": "line-442"}
_ALONG: Final = (
    "; f twice differentiable, 0 ⪯ H(x_r) ⪯ L I, tr H(x_r) ≤ κL, ∇²f ⪯ H(x_r) from x_r to x_{r+1}, whatever the step"
)

SHARPER: Final = (
    *map(_theorem_1, SHARPENED),
    *map(_corollary_1, SHARPENED),
    _theorem_2("theorem-2", s2, _SIXTH_ALONG, EACH + _ALONG, "sphere", "rademacher"),
    _theorem_2("theorem-2-gaussian", s2, _SIXTH_ALONG, EACH + _ALONG, "gaussian"),
    _theorem_2("theorem-2-dimension-free", _BIAS, _SIXTH, DOMINATED, *DISTRIBUTIONS),
)
