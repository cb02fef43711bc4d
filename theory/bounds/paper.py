"""The theorems, the corollary and the lemmas of the paper, as printed and as mended."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sympy import Min, Rational, evaluate, exp, sqrt

from theory.notation.symbols import (
    D,
    G,
    K,
    L,
    P,
    R,
    a,
    d,
    delta,
    eta,
    kappa,
    m,
    mu,
    phi,
    rho,
    rho_kappa,
    s2,
    s6,
    sigma,
    sigma_G,
    tail,
)
from theory.statements.left_sides import (
    AVERAGE,
    DRIFT,
    LOCAL_SECOND_MOMENT,
    REMAINDER,
    SECOND_MOMENT,
    SMOOTHED_GRADIENT,
    SMOOTHED_VALUE,
    VARIANCE,
    WEIGHTED,
    Left,
)
from theory.statements.statement import ONE_HESSIAN, Statement

# Distributions whose ∇f^μ is a mean of ∇f over shifted points: gaussian (by Stein), sphere (over its ball).
SMOOTHED: Final = ("gaussian", "sphere")
_PRINTED = "unbiased gradients of variance σ²; dissimilarity σ_G; f is L-smooth"
UNBIASED = "unbiased gradients of variance σ² at every point, independent between clients and steps; dissimilarity σ_G"
EACH = f"{UNBIASED}; every f_i(·; ξ) is L-smooth"
DOMINATED = f"{UNBIASED}; {ONE_HESSIAN} ⪯ L I, tr H ≤ κL"
_BELOW = "; f twice differentiable, H(x_r) ⪯ L I, tr H(x_r) ≤ κL, ∇²f ⪯ H(x_r) for ‖x − x_r‖ ≤ 2ηdG"
_INDEFINITE = _BELOW + "(x_r), G(x_r) the largest ‖∇f_i(x_r; ξ)‖"
_LOW_RANK = _INDEFINITE.replace("H(x_r)", "0 ⪯ H(x_r)", 1)
_LOW_RANK_WIDE = _BELOW.replace("H(x_r)", "0 ⪯ H(x_r)", 1) + ", G ≥ ‖∇f_i(x; ξ)‖ for every x"


def _pair(
    name: str, source: str, *, left: Left = AVERAGE, stated: Mapping[str, Any], corrected: Mapping[str, Any]
) -> tuple[Statement, Statement]:
    """A statement as printed and as mended, each with its terms and what else is its own."""
    both = {"name": name, "left": left, "source": source}
    return (
        Statement(**{**both, "variant": "stated", "assumptions": _PRINTED, **stated}),
        Statement(**{**both, "variant": "corrected", "assumptions": EACH, **corrected}),
    )


with evaluate(False):  # so that a formula is printed as it is written here
    _PRINTED_ETA = {
        "variance": m * P / (24 * L * (d + 4)),
        "drift": 2 * P / (m * K * L * (d + P + 4)),
        "local_steps": 1 / (m * K**2 * L),
        "smoothing": m * P * (d + 3) ** 3 / (2 * L * (3 * m * P * K * (d + 3) ** 3 + (d + 6) ** 3)),
    }
    # How far clients' walks come apart, for each of their K − 1 steps before the last.
    _APART = (K + 2 * (rho - 1)) * sigma_G**2 + (rho - Rational(1, 2)) * sigma**2
    # η of the rate balances 4D/(KRη) with 8LηN/m, N the noise; the largest η of the theorem and it, added harmonically.
    _NOISE = (rho - Rational(1, 2)) * sigma**2 + (K + 2 * (rho - 1)) * phi * sigma_G**2
    _RATE = sqrt(D) / (9 * L * (K + 2 * (rho - 1)) * sqrt(D) + sqrt(2 * L * K * R * _NOISE / m))
    _MU_2 = kappa ** Rational(1, 4) / ((m * R * P) ** Rational(1, 4) * sqrt((d + 3) ** 3))  # lines 452 and 1429

    PAPER: Final = (
        *_pair(
            "theorem-1",
            "the.1",
            stated={
                "terms": {
                    "start": 4 * D / (K * R * eta),
                    "dissimilarity": (72 * K * L * eta / m + 24 * (d + 4) * L * eta / (m * P)) * sigma_G**2,
                    "noise": 16 * L * (d + 4) * eta / (m * P) * sigma**2,
                    "smoothing": 2 * mu**2 * L**2 * (d + 3) ** 3,
                },
                "eta": _PRINTED_ETA,
                "distributions": ("gaussian",),
                "note": "False as printed for P above 28 to 32 times d + 4, as d, m and K are: all P directions see "
                "the same mini-batch, so its noise stays, however large P is. The proof also takes the clients' errors "
                "for independent, but they share the directions.",
            },
            corrected={
                "terms": {
                    "start": 4 * D / (K * R * eta),
                    "dissimilarity": 8 * L * eta * (K + 2 * (rho - 1)) * phi / m * sigma_G**2,
                    "noise": 8 * L * eta * (rho - Rational(1, 2)) / m * sigma**2,
                    "drift": Rational(25, 4) * L**2 * eta**2 * (K - 1) * _APART,
                    "smoothing": mu**2 * L**2 * (3 * d + 9 * L * eta * s6 / (4 * P)),
                },
                "eta": {"descent": 1 / (9 * L * (K + 2 * (rho - 1)))},
                "distributions": SMOOTHED,
                "note": "ρ − 1 = (d + 1)/P for Gaussian directions. The step size does not depend on m: the drift is a "
                "term of its own, without 1/m.",
            },
        ),
        Statement(
            "theorem-1-single",
            variant="corrected",
            source="the.1",
            terms={
                "start": 2 * D / (R * eta),
                "dissimilarity": 2 * L * eta * rho * phi / m * sigma_G**2,
                "noise": 2 * L * eta * rho / m * sigma**2,
                "smoothing": 2 * mu**2 * L**2 * (s2 + L * eta * (s2 + s6 / (4 * P))),
            },
            eta={"descent": 1 / (4 * L * rho)},
            single_step=True,
            assumptions=EACH,
            note="Theorem 1 for K = 1, where no client drifts.",
        ),
        *_pair(
            "corollary-1",
            "coro-1",
            stated={
                "terms": {"rate": sqrt(d / (m * P * K * R))},
                "eta": {**_PRINTED_ETA, "rate": sqrt(m * P / (d * R * K))},
                "mu": {"rate": 1 / ((d + 3) * sqrt(P * K * R))},
                "distributions": ("gaussian",),
                "note": "An order: its constant is hidden, and with it the units. It needs K ≤ d/P (else 72KLη/m is "
                "larger), and R of order m³KdL²/(4P) before the rate's η is admissible.",
            },
            corrected={
                "terms": {
                    "rate": sqrt(128 * D * L * _NOISE / (m * K * R)),
                    "start": 36 * D * L * (K + 2 * (rho - 1)) / (K * R),
                    "drift": Rational(25, 4) * L**2 * _RATE**2 * (K - 1) * _APART,
                    "smoothing": mu**2 * L**2 * (3 * d + s6 / (4 * P * (K + 2 * (rho - 1)))),
                },
                "eta": {"rate": _RATE},
                "distributions": SMOOTHED,
                "note": "Of corrected Theorem 1 at the largest η allowed here. The first term is of order √(LD(1 + "
                "d/P)(σ² + φσ_G²)/(mKR)) as long as K ≤ d/P; beyond, the part of φσ_G² no longer falls with K, and "
                "that of σ² stops falling with P at P = d: a mini-batch is shared by all directions.",
            },
        ),
        *_pair(
            "theorem-2",
            "the.2",
            stated={
                "terms": {
                    "start": 4 * D / (R * eta),
                    "noise": 2 * L * eta / m * (1 + (kappa * d + d - 2) / (P * (d + 2))) * (sigma_G**2 + sigma**2),
                    "smoothing": Rational(1, 2) * mu**2 * L**2 * (d + 3) ** 3,
                    "remainder": 4 * mu**2 * L**4 * d**3 * eta,
                },
                "eta": {"descent": 1 / (4 * L) / (1 + (kappa * d + d - 2) / (P * (d + 2)))},
                "rate_mu": {"rate": _MU_2},
                "distributions": ("sphere",),
                "single_step": True,
                "assumptions": _PRINTED + "; low κ-effective rank",
                "note": "False as printed, where only f is smooth and not every f_i(·; ξ). With that mended it is "
                "true, though its proof ends with 4Lη/m for the printed 2Lη/m, and the remainder (wrong unit: L³ is "
                "meant) is not needed.",
            },
            corrected={
                "terms": {
                    "start": 2 * D / (R * eta),
                    "noise": 2 * L * eta / m * rho_kappa * (phi * sigma_G**2 + sigma**2),
                    "smoothing": 2 * mu**2 * L**2 * (s2 + L * eta * (s2 + s6 / 2)),
                },
                "eta": {"descent": 1 / (4 * L * rho_kappa)},
                "distributions": ("sphere", "rademacher"),
                "single_step": True,
                "assumptions": EACH + _INDEFINITE,
            },
        ),
        Statement(
            "theorem-2-dimension-free",
            variant="corrected",
            source="line-442",
            terms={
                "start": 2 * D / (R * eta),
                "noise": 2 * L * eta / m * rho_kappa * (phi * sigma_G**2 + sigma**2),
                "smoothing": Rational(1, 2)
                * mu**2
                * L**2
                * kappa
                * (kappa + 2)
                * (1 + L * eta * (1 + (kappa + 3) / P)),
            },
            eta={"descent": 1 / (4 * L * rho_kappa)},
            single_step=True,
            assumptions=DOMINATED,
            note="Nothing in it grows with d, the terms in μ included, which in print need μ of order d^(−3/2). κ is "
            "that of H: the effective rank of ∇²f alone is not enough.",
        ),
        *_pair(
            "theorem-2-gaussian",
            "line-1448",
            stated={
                "terms": {
                    "start": 4 * D / (R * eta),
                    "noise": 2 * L * eta / m * (1 + (kappa * d + d - 2) / (P * (d + 2))) * (sigma_G**2 + sigma**2),
                    "escape": eta**2 * L * G**2 * exp(-m * d * P / 16),
                    "smoothing": Rational(1, 2) * mu**2 * L**2 * (d + 3) ** 3 + 4 * mu**2 * L**3 * d**3 * eta,
                },
                "eta": {"descent": 1 / (4 * L) / (1 + (kappa * d + d - 2) / (P * (d + 2)))},
                "rate_mu": {"rate": _MU_2},
                "distributions": ("gaussian",),
                "single_step": True,
                "assumptions": _PRINTED + "; low κ-effective rank",
                "note": "Ω(mdP) is read as the proof's mdP/16, O(μ²) as the μ terms of its proof with the unit mended.",
            },
            corrected={
                "terms": {
                    "start": 2 * D / (R * eta),
                    "noise": 2 * L * eta / m * rho_kappa * (phi * sigma_G**2 + sigma**2),
                    "escape": eta * L * G**2 * d * (d + 2 / P) * tail,
                    "smoothing": 2 * mu**2 * L**2 * (d + L * eta * (d + s6 / (4 * P))),
                },
                "eta": {"descent": 1 / (4 * L * rho_kappa)},
                "distributions": ("gaussian",),
                "single_step": True,
                "assumptions": EACH + _LOW_RANK_WIDE,
                "note": "tail = Pr[χ²_{dP+4} ≥ 2dP], at most exp(−dP/16) up to a factor: dP degrees of freedom, not "
                "mdP. Where H dominates ∇²f everywhere the escape term falls away (G = 0).",
            },
        ),
        *_pair(
            "smoothed-value",
            "eq.oo",
            left=SMOOTHED_VALUE,
            stated={"terms": {"smoothing": Rational(1, 2) * mu**2 * L * d}, "assumptions": EACH},
            corrected={
                "terms": {"smoothing": Rational(1, 2) * mu**2 * L * d},
                "note": "Tight: equality for f = L‖x‖²/2.",
            },
        ),
        *_pair(
            "smoothed-gradient",
            "eq.as",
            left=SMOOTHED_GRADIENT,
            stated={"terms": {"smoothing": Rational(1, 2) * mu * L * sqrt((d + 3) ** 3)}, "assumptions": EACH},
            corrected={
                "terms": {"smoothing": mu * L * sqrt(s2)},
                "note": "∇f^μ(x) = E ∇f(x + μy): the printed bound is (d + 3)^{3/2}/(2√d) times larger, 4 times for "
                "d = 1.",
            },
        ),
        *_pair(
            "second-moment",
            "line-1011",
            left=SECOND_MOMENT,
            stated={
                "terms": {"smoothing": mu**2 / 2 * L**2 * (d + 6) ** 3, "gradient": 2 * (d + 4) * a**2},
                "distributions": ("gaussian",),
                "assumptions": EACH,
            },
            corrected={
                "terms": {"smoothing": mu**2 / 2 * L**2 * d * (d + 2) * (d + 4), "gradient": 2 * (d + 2) * a**2},
                "distributions": ("gaussian",),
            },
        ),
        *_pair(
            "variance",
            "lemma.pp.v2",
            left=VARIANCE,
            stated={
                "terms": {
                    "gradient": 6 * (d + 4) / P * a**2,
                    "drift": 6 * L**2 * (d + 4) / P * delta**2,
                    "dissimilarity": 6 * (d + 4) / P * sigma_G**2,
                    "noise": 2 * (d + 4) / P * sigma**2,
                    "smoothing": mu**2 * L**2 * (d + 6) ** 3 / (2 * P),
                },
                "distributions": ("gaussian",),
            },
            corrected={
                "terms": {
                    "gradient": 6 * (rho - 1) * a**2,
                    "drift": 6 * (rho - 1) * L**2 * delta**2,
                    "dissimilarity": 6 * (rho - 1) * sigma_G**2,
                    "noise": (2 * rho - 1) * sigma**2,
                    "smoothing": mu**2 * L**2 * s6 / (2 * P),
                },
                "distributions": SMOOTHED,
            },
        ),
        *_pair(
            "local-second-moment",
            "eq.lemma.zo_m2",
            left=LOCAL_SECOND_MOMENT,
            stated={
                "terms": {
                    "gradient": 6 * (d + P + 4) / P * a**2,
                    "drift": 6 * L**2 * (d + P + 4) / P * delta**2,
                    "dissimilarity": 6 * (d + P + 4) / P * sigma_G**2,
                    "noise": 2 * (d + 4) / P * sigma**2,
                    "smoothing": mu**2 * L**2 * (d + 6) ** 3 / (2 * P) + Rational(1, 2) * mu**2 * L**2 * (d + 3) ** 3,
                },
                "distributions": ("gaussian",),
            },
            corrected={
                "terms": {
                    "gradient": 6 * rho * a**2,
                    "drift": 6 * rho * L**2 * delta**2,
                    "dissimilarity": 6 * rho * sigma_G**2,
                    "noise": 2 * rho * sigma**2,
                    "smoothing": 2 * mu**2 * L**2 * (s2 + s6 / (4 * P)),
                }
            },
        ),
        *_pair(
            "local-drift",
            "lemma.hbhb",
            left=DRIFT,
            stated={
                "terms": {
                    "gradient": 6 * K**3 * (d + P + 4) * eta**2 / P * a**2,
                    "dissimilarity": 6 * K**3 * (d + P + 4) * eta**2 / (2 * P) * sigma_G**2,
                    "noise": 2 * K**3 * (d + 4) * eta**2 / P * sigma**2,
                    "smoothing": mu**2 * L**2 * K**3 * (d + 6) ** 3 * eta**2 / P
                    + Rational(1, 2) * mu**2 * L**2 * K**3 * (d + 3) ** 3 * eta**2,
                },
                "eta": {"drift": 2 * P / (sqrt(6) * L * K * sqrt(d + P + 4))},
                "distributions": ("gaussian",),
            },
            corrected={
                "terms": {
                    "gradient": Rational(9, 4) * eta**2 * K * (K - 1) * (K + 2 * (rho - 1)) * a**2,
                    "dissimilarity": Rational(9, 4) * eta**2 * K * (K - 1) * (K + 2 * (rho - 1)) * sigma_G**2,
                    "noise": Rational(9, 4) * eta**2 * K * (K - 1) * (rho - Rational(1, 2)) * sigma**2,
                    "smoothing": Rational(9, 4) * eta**2 * K * (K - 1) * mu**2 * L**2 * (K * d + s6 / (4 * P)),
                },
                "eta": {"drift": 1 / (9 * L * (K + 2 * (rho - 1)))},
                "distributions": SMOOTHED,
            },
        ),
        *_pair(
            "remainder",
            "eq.fjiow.es",
            left=REMAINDER,
            stated={
                "terms": {"smoothing": L**2 * mu**2 * d**3},
                "left": replace(REMAINDER, text="‖ε_r‖²"),
                "distributions": ("sphere",),
            },
            corrected={
                "terms": {"smoothing": mu**2 * L**2 * Min(s6 / 4, s2 + s6 / (4 * P))},
                "note": "|g − zᵀ∇f(x)| ≤ μL‖z‖²/2; on the sphere the first of the two holds for every draw, not only "
                "on average.",
            },
        ),
        *_pair(
            "weighted-second-moment",
            "lemma.covariance",
            left=WEIGHTED,
            stated={
                "terms": {
                    "gradient": L * (1 + (kappa * d + d - 2) / (P * (d + 2))) * a**2,
                    "noise": L * (1 + (kappa * d + d - 2) / (P * (d + 2))) / m * (sigma_G**2 + sigma**2),
                },
                "distributions": ("sphere",),
                "single_step": True,
                "assumptions": _PRINTED + "; low κ-effective rank",
            },
            corrected={
                "terms": {
                    "gradient": L * rho_kappa * a**2,
                    "noise": L * rho_kappa / m * (phi * sigma_G**2 + sigma**2),
                },
                "single_step": True,
                "assumptions": EACH + _LOW_RANK,
            },
        ),
    )
