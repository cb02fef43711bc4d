"""What ``decomfl train`` does by default: central differences and momentum, in one local step or several.

Besides, for one local step of plain SGD, what holds of the last iterate, or of f itself, where f has more than a lower
bound.

Every bound of the default run is one of two theorems, for one local step or for any number, at one of three sets of
assumptions. An assumption gives r, B² and W of ``docs/theory-more.md``: how much larger a step along random directions
is than one along the gradient, the squared bias of the scalars' differences, and their second moment.
"""

from dataclasses import dataclass
from typing import Final

import sympy as sp
from sympy import Rational, exp, sqrt

from theory.bounds.paper import DOMINATED, EACH, SMOOTHED
from theory.notation.symbols import (
    H3,
    D,
    K,
    L,
    P,
    Q,
    R,
    a,
    alpha,
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
from theory.statements.left_sides import AVERAGE_LOSS, LAST_DISTANCE, LAST_LOSS, LOCAL_SECOND_MOMENT, SMOOTHED_GRADIENT
from theory.statements.statement import Statement

_TAU: Final = beta / (1 - beta)
_MOMENTUM: Final = "momentum in torch's form, kept over local steps and rounds"


@dataclass(frozen=True)
class Assumption:
    """What is assumed of the losses, and what it gives."""

    words: str  # the assumption
    r: sp.Expr  # the factor of a second moment along random directions, ρ or ρ_κ
    bias2: sp.Expr  # B², a bound on the squared bias of a scalar's estimate. [F²/X²]
    second: sp.Expr  # W, a bound on the second moment of what differences add to the estimate. [F²/X²]
    central: bool = False  # whether it needs central differences


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
    """Any number of local steps; ``docs/theory-more.md`` has the statement, (A), (B) and (C).

    *Proof.* Walks of clients outside C are virtual, as in theory.md: z and mini-batches do not depend on C. For all i ≤
    M let b_i^k be the mean of G_i^k given the walks so far, w_i^k = b_i^k − ∇f_i(x_r), and, all averaged over rounds
    and in expectation,

        A = ‖∇f(x_r)‖²,  x = (L/KM) Σ_{i,k} |x_i^k − x_r|²,  Ψ = (1/KM) Σ_{i,k} ‖w_i^k‖² ≤ 2x + 2B²,
        γ = Lβ²h²|v_r|²,  S = φσ_G²/m.

    Abbreviate k̂ = LhK, r̂ = Lhr, t̂ = Lhτ, p = k̂ + 2r̂; the condition is p + t̂ ≤ 1/11. B^k, N^k are the means over C
    of b_i^k and of G_i^k − b_i^k. With y = x_r − βhv_r again y_{r+1} = y_r − h Σ_k ĝ^k, for the means over C move as
    one heavy ball.

    *Descent.* E Σ_k ĝ^k = K E u with u = a + w, w = (1/KM) Σ w_i^k, and −⟨a + Δ, a + w⟩ ≤ −½‖a‖² + ½‖w‖² + ½‖Δ‖²
    (polarisation). N^k is a martingale difference, so ½h²E|Σ ĝ^k|² ≤ h²(L E‖Σ B^k‖² + Σ E|N^k|²); E‖Σ B^k‖² ≤ 2K²(A + S
    + Ψ); and E|N^k|² ≤ E|Zv̄^k + e|² ≤ 2Lr(2(A + S) + 2L E|x_i^k − x_r|² + σ²/m) + 2LW, the mean over i of the walks.
    Together

        ½A ≤ D/(hKR) + 2p(A + S) + (½ + 2k̂)Ψ + ½γ + 4r̂x + 2Lh(rσ²/m + W).                                     (i)

    *Momentum.* v_r is a sum over past steps of β to the power of their age. Put ĝ^k = (a + mean_C w_i^k) + ζ + N^k, ζ =
    mean_C ∇f_i(x_r) − a. ζ (once a round) and N^k are martingale differences. A step's weights add up, over r, to
    β^{K−k}/(1 − β^K) for k = 1..K, whose sum over k is 1/(1 − β); K/(1 − β^K) ≤ K + τ as β^{−K} ≥ 1 + K(1 − β)/β; the
    squared weights of ζ add up to at most K/(1 − β); those of N^k to 1/(1 − β²) over k, and K/(1 − β^{2K}) ≤ K + τ/2.
    So, with |u|² ≤ L‖u‖² and β²/(1 − β²) ≤ τ/2,

        γ ≤ 4t̂(t̂ + r̂)A + 2t̂pS + 2t̂Lh(rσ²/m + W) + 4t̂(k̂ + t̂)Ψ + 8r̂(k̂ + t̂/2)x.                                (ii)

    *Drift.* x_i^k − x_r = −h[β(1 − β^k)v_r + Σ_{l<k} (1 − β^{k−l})G_i^l], all factors in [0, 1]. Split G = b + n; ‖b‖²
    ≤ 2‖∇f_i(x_r)‖² + 2‖w‖², E|n|² ≤ 2Lr(‖∇f_i(x_i)‖² + σ²) + 2LW, Σ_k k ≤ ½K(K − 1) as for `local-drift`:

        x ≤ 2γ + 4L²h²(K − 1)[(K + 4r)(A + σ_G² + x) + K(x + 2B²) + 2rσ² + 2W].                                    (iii)

    *Together.* In (iii) put (ii) and Ψ ≤ 2x + 2B²: the coefficients of x on the right add up to at most 16(p + t̂)² ≤
    16/121. So x ≤ (121/105)(2γ₀ + 16t̂(k̂ + t̂)B² + y), with γ₀ the first three terms of (ii) and y those of (iii)
    without γ and x. In (i) x has in all at most 1 + 4/11 + 4/121 = 169/121, hence

        ½A ≤ D/(hKR) + 2p(A + S) + 2Lh(rσ²/m + W) + 3.72γ₀ + 1.61y + B²(1 + 4k̂ + 30t̂(k̂ + t̂)).

    A has 2p + 14.88t̂(t̂ + r̂) + 6.44k̂(k̂ + 4r̂) ≤ 2p + 14.88t̂(t̂ + p/2) + 6.44p² on the right. Along p + t̂ = 1/11
    this is convex in t̂ and so at most 0.236, its value at t̂ = 0. So ¼A ≤ the rest. Multiply by 4: S has 8p(1 +
    3.72t̂), σ²/m and W 8Lh(1 + 3.72t̂); y at most 26 times its bracket; W with the part in y at most Lh(8 + 32t̂ +
    52k̂) ≤ 13Lh; B² at most 4 + 16k̂ + 120t̂(k̂ + t̂) + 52k̂² ≤ 6. ∎
    """
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


_CONVEX_BIAS = SMOOTH.bias2 / L + 2 * eta * SMOOTH.second


def _polyak(name: str, of: Assumption) -> Statement:
    """Gradients dominate: ½‖∇f‖² ≥ α(f − f*)."""
    return Statement(
        name,
        variant="corrected",
        left=LAST_LOSS,
        terms={
            "start": exp(-alpha * eta * R) * D,
            "dissimilarity": L * eta * of.r * phi / (m * alpha) * sigma_G**2,
            "noise": L * eta * of.r / (m * alpha) * sigma**2,
            "smoothing": (of.bias2 + L * eta * of.second) / alpha,
        },
        eta={"descent": 1 / (4 * L * of.r)},
        single_step=True,
        assumptions=f"{of.words}; the PL inequality ½‖∇f(x)‖² ≥ α(f(x) − f*) at every x",
        note="The last iterate; f need not be convex. exp(−ηαR) stands for the (1 − ηα)^R of the proof.",
    )


CONVEX: Final = (
    _polyak("pl", SMOOTH),
    _polyak("pl-dimension-free", LOW_RANK),
    Statement(
        "strongly-convex",
        variant="corrected",
        left=LAST_DISTANCE,
        terms={
            "start": exp(-alpha * eta * R) * Q,
            "dissimilarity": 2 * eta * rho * phi / (m * alpha) * sigma_G**2,
            "noise": 2 * eta * rho / (m * alpha) * sigma**2,
            "smoothing": _CONVEX_BIAS / alpha,
        },
        eta={"descent": 1 / (4 * L * rho)},
        distributions=SMOOTHED,
        single_step=True,
        assumptions=f"{SMOOTH.words}; f is α-strongly convex",
        note="Q = ‖x_0 − x*‖². exp(−ηαR) stands for the (1 − ηα)^R of the proof.",
    ),
    Statement(
        "convex",
        variant="corrected",
        left=AVERAGE_LOSS,
        terms={
            "start": Q / (R * eta),
            "dissimilarity": 2 * eta * rho * phi / m * sigma_G**2,
            "noise": 2 * eta * rho / m * sigma**2,
            "smoothing": _CONVEX_BIAS,
        },
        eta={"descent": 1 / (4 * L * rho)},
        distributions=SMOOTHED,
        single_step=True,
        assumptions=f"{SMOOTH.words}; f is convex and has a minimum x*",
        note="Q = ‖x_0 − x*‖². By Jensen f of the mean of x_0, …, x_{R−1} keeps the same bound.",
    ),
)
