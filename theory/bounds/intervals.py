"""Constants proved by interval arithmetic: what the sharper Theorem 1 needs for every K ≥ 1, ρ ≥ 1 and admissible η.

The proof below has ten free parameters; docs/theory.md, "Theorem 1, sharper and wider", has the statement and the facts
F1 to F5. Whatever the parameters are, it gives a constant for each term of the bound, a function of

    λ = ηL(K + 2q) in [0, limit],    x = K/(K + 2q) in [0, 1],    c = 1/K in [0, 1],    q = ρ − 1,

so K and ρ, which have no upper limit, become points of a box. ``needed`` covers the box by cells and rounds outwards.

Let q = ρ − 1, S = K + 2q, w = s₆/(4P). The proof of Theorem 1 loses by polarisation (½ of ‖a‖² at once), by splitting Σ
B^k around u, and by 2 in every square. This one has a free parameter at each of these places, ten in all: α, β, θ, s,
t, their counterparts β', θ', s', t' in the drift, and ν. "Young" is ‖x + y‖² ≤ (1 + β)‖x‖² + (1 + 1/β)‖y‖².

*Two facts for all distributions.* Let ν = 0 and s_ν = d for Gaussian and sphere; for Rademacher let ν > 0 and s_ν = (1
+ ν)d + (1 + 1/ν)d/4. Then

- **(F4')** ‖b_i(x) − ∇f_i(x')‖² ≤ L²((1 + ν)‖x − x'‖² + μ²s_ν). Gaussian and sphere: F4. Rademacher: b_i(x) = E ∇f_i(x
  + μz) + r with ‖r‖ ≤ μL√d/2 (F4), and ‖E ∇f_i(x + μz) − ∇f_i(x')‖² ≤ L²(‖x − x'‖² + μ²d) by Jensen; Young.
- **(F5')** E‖N‖² ≤ (1 + s)(q‖h̄‖² + ρσ²/m) + (1 + 1/s)μ²L²(w + s₂/9), the last s₂/9 for Rademacher only. Given the
  mini-batches the variance of Zv̄ + e is at most (1 + s)q‖v̄‖² + (1 + 1/s)μ²L²w, and E‖v̄‖² ≤ ‖h̄‖² + σ²/m. To this
  comes the variance over mini-batches of the mean over z: at most σ²/m for Gaussian and sphere (F5); for Rademacher it
  is that of (1/m) Σ E ∇f_i(x_i + μz; ξ_i), at most σ²/m, and of the mean of r, at most μ²L²d/4 = μ²L²s₂/9, joined by
  Young with the same s. And (1 + s)q + 1 ≤ (1 + s)ρ.

*Descent.* Let A² = (1/M) Σ_i ‖∇f_i(x_r)‖² ≤ ‖a‖² + σ_G², B_r = (1/m) Σ_{i∈C} ∇f_i(x_r), E‖B_r‖² ≤ ‖a‖² + φσ_G²/m.

- −⟨a, u⟩ = −‖a‖² − ⟨a, u − a⟩ ≤ −(1 − α)‖a‖² + ‖u − a‖²/(4α), and E‖u − a‖² ≤ L²((1 + ν)χ/K + μ²s_ν) (F4', Jensen).
- Σ_k (B^k + N^k) = K B_r + Σ_k (B^k − B_r) + Σ_k N^k. B_r is known when the round begins and N is a martingale
  difference, so E⟨K B_r, Σ N^k⟩ = 0: of the three products two are left, and

      E‖Σ (B^k + N^k)‖² ≤ (1 + β)K²E‖B_r‖² + (1 + 1/β + 1/θ)E‖Σ (B^k − B_r)‖² + (1 + θ) Σ E‖N^k‖².

- E‖Σ (B^k − B_r)‖² ≤ K((1 + ν)L²χ + Kμ²L²s_ν) (Cauchy, Jensen over C, F4').
- Σ E‖N^k‖² by F5', with E‖h̄^k‖² ≤ (1 + t)E‖B_r‖² + (1 + 1/t)L²χ_k.

*Drift.* In the same way x_i^k − x_r = −η[(k − 1)∇f_i(x_r) + Σ_{τ<k} (b_i^τ − ∇f_i(x_r)) + Σ_{τ<k} n_i^τ], the first and
the last not correlated. With Σ_k (k − 1)² = K(K − 1)(2K − 1)/6 and Σ_k (k − 1) = ½K(K − 1) exactly, and F5' for one
client,

    (1 − η²L²(K − 1){½(1 + ν)(1 + 1/β' + 1/θ')K + (1 + θ')(1 + s')(1 + 1/t')q}) χ
      ≤ η²K(K − 1){[(1 + β')(2K − 1)/6 + (1 + θ')(1 + s')(1 + t')q/2]A² + (1 + θ')(1 + s')ρσ²/2
        + μ²L²[(1 + 1/β' + 1/θ')(2K − 1)s_ν/6 + (1 + θ')(1 + 1/s')(w + s₂/9)/2]}.

*Constants.* Put the second into the first. With p = ηLK, r = ηLq (so p + 2r = ηLS) and c = 1/K, the coefficient of
−ηK‖a‖² is

    A = 1 − α − ½[(1 + β)p + (1 + θ)(1 + s)(1 + t)r] − Δ(1 − c)p[(1 + β')(2 − c)p/6 + (1 + θ')(1 + s')(1 + t')r/2],
    Δ = {(1 + ν)[1/(4α) + ½(1 + 1/β + 1/θ)p] + ½(1 + θ)(1 + s)(1 + 1/t)r}
        / {1 − (1 − c)p[½(1 + ν)(1 + 1/β' + 1/θ')p + (1 + θ')(1 + s')(1 + 1/t')r]},

and the other coefficients are likewise functions of p, r and c. Sum over r and divide by ηKRA: c₁ = 1/A, and, with x =
K/S, p = ηLS·x and 2r = ηLS·(1 − x),

    c₂ = [½(1 + β)x + ¼(1 + θ)(1 + s)(1 + t)(1 − x)]/A,    c₃ = ½(1 + θ)(1 + s)/A,
    c₄ = Δ max{(1 + β')(2 − c)x/6 + ¼(1 + θ')(1 + s')(1 + t')(1 − x), ½(1 + θ')(1 + s')}/A,
    c₅ = {(s_ν/s₂)[1/(4α) + ½(1 + 1/β + 1/θ)p + Δ(1 + 1/β' + 1/θ')(1 − c)(2 − c)p²/6] + c₆A·cp/9}/A,
    c₆ = ½{(1 + θ)(1 + 1/s) + Δ(1 − c)p(1 + θ')(1 + 1/s')}/A.

All K ≥ 1, all q ≥ 0 and all admissible η are the points of the box ηLS ∈ [0, 1/9] (or [0, 1/4]), x ∈ [0, 1], c ∈ [0,
1]. The parameters, the same for all of them, are in ``theory.bounds.sharp_constants``; 2,000 intervals in x cover the
box. That A > 0 and that none of c₁ … c₆ is above the table is thereby proved. Gaussian and sphere need less than
Rademacher, whose ν and s_ν were put in. ∎
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
    size, c, by_cell = iv.mpf([0, 1]) * _interval(limit), iv.mpf([0, 1]), []
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
        by_cell.append(
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
    return {name: max(float(each[name].b) for each in by_cell) for name in by_cell[0]}


def _interval(number: Fraction) -> Any:
    return iv.mpf(number.numerator) / number.denominator
