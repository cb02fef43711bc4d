"""Lines 383–434 and 1027–1258 of the paper: Assumptions 1–3, Theorem 1 and its proof, Corollary 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from sympy import sqrt

from theory.audit import evidence_one
from theory.audit.entry import Entry, Evidence
from theory.audit.instruments import one_unit, wrong_unit
from theory.audit.proof_one import HALF, follows, slips
from theory.bounds import statement
from theory.setting import Setting
from theory.symbols import D, K, L, P, R, a, d, delta, eta, mu, sigma, sigma_G

__all__ = ["ENTRIES"]

_SMOOTH: Final = " It needs every f_i(·; ξ) smooth (assumption.lip)."
_MINIBATCH: Final = (
    "The P estimates of a step share the mini-batch ξ, so they are independent only given ξ, and the noise does not "
    "fall with P: for f_i(x; ξ) = ⟨ξ, x⟩, E‖G‖² = ρσ², ρ = 1 + (d + 1)/P."
)


_THEOREM: Final = Entry(
    label="the.1",
    line=402,
    kind="theorem",
    says="(1/R) Σ E‖∇f(x_r)‖² ≤ 4D/(KRη) + (72KLη/m + 24(d + 4)Lη/(mP))σ_G² + 16L(d + 4)η/(mP) σ² + 2μ²L²(d + 3)³",
    finding="false",
    why=_MINIBATCH + " So the bound fails for P of 30(d + 4) and more. Besides, its proof takes the clients' errors "
    "for independent, though they share z (eq.hh), and has no room for the drift (line-1234). For K = 1, P ≤ 7d + 31 "
    "and η ≤ 1/(4Lρ) it is true by the corrected proof. E_r on the left is E.",
    fix="η ≤ 1/(9L(K + 2(ρ − 1))): (1/R) Σ E‖∇f(x_r)‖² ≤ 4D/(KRη) + (8Lη/m)(K + 2(ρ − 1))φσ_G² + (8Lη(ρ − ½)/m)σ² + "
    "(25/4)L²η²(K − 1)((K + 2(ρ − 1))σ_G² + (ρ − ½)σ²) + μ²L²(3d + 9Lηs₆/(4P))",
    checks=(
        partial(evidence_one.witness, "theorem-1", "stated", evidence_one.MANY),
        partial(evidence_one.witness, "theorem-1", "stated", replace(evidence_one.MANY, K=3)),
        partial(evidence_one.witness, "theorem-1", "corrected", evidence_one.MANY),
        partial(evidence_one.witness, "theorem-1", "corrected", replace(evidence_one.MANY, K=3)),
        partial(evidence_one.threshold, 1),
        partial(evidence_one.threshold, 1000),
        evidence_one.still_true,
        partial(one_unit, **statement("theorem-1").terms),
        evidence_one.chain,
        *(
            partial(evidence_one.fixed_step, name)
            for name in evidence_one.DISPLAYS
            if name.startswith("corrected proof")
        ),
    ),
)
_LIP: Final = Entry(
    label="assumption.lip",
    line=395,
    kind="assumption",
    says="f is L-smooth",
    finding="does not follow",
    why="The lemmas apply smoothness to every f_i(·; ξ). With f alone smooth, two clients with a kink at x that "
    "cancels in f have E‖G‖² of order d²σ_G², and eq.lemma.zo_var fails, as Theorem 2 does.",
    fix="every f_i(·; ξ) is L-smooth",
    checks=(evidence_one.rough, evidence_one.not_rough, partial(evidence_one.through_f, rerouted=False)),
)
_GRADIENT: Final = Entry(
    label="ass.g",
    line=384,
    kind="assumption",
    says="E∇f_i(x_r; ξ_r) = ∇f_i(x_r), E‖∇f_i(x_r; ξ_r) − ∇f_i(x_r)‖² ≤ σ², r ≥ 1",
    finding="typo",
    why="The proof uses it at the local points x_{i,r}^k (line-1050) and from r = 0; as printed the noise may "
    "vanish at every x_r and nowhere else.",
    fix="for every x, independently for all i, r, k: E∇f_i(x; ξ) = ∇f_i(x), E‖∇f_i(x; ξ) − ∇f_i(x)‖² ≤ σ²",
    checks=(
        evidence_one.variance_away_from_start,
        evidence_one.noise_adds,
        partial(one_unit, left=a**2, right=sigma**2),
    ),
)
_DISSIMILARITY: Final = Entry(
    label="ass.w",
    line=391,
    kind="assumption",
    says="‖∇f(x) − ∇f_i(x)‖² ≤ σ_G²",
    finding="correct",
    why="The corrected Theorem 1 needs it at x_r and on average over i only.",
    checks=(
        partial(one_unit, left=a**2, right=sigma_G**2),
        partial(
            evidence_one.identity, evidence_one.a5_clients, "(c), 2 of 3 clients with replacement", replacement=True
        ),
    ),
)
_VARIANCE: Final = Entry(
    label="lemma.pp.v2",
    line=1034,
    kind="lemma",
    says="E‖G − ∇f_i^μ‖² ≤ (6(d + 4)/P)(‖∇f‖² + L²δ² + σ_G²) + 2(d + 4)σ²/P + μ²L²(d + 6)³/(2P)",
    finding="false",
    why=_MINIBATCH + " It fails for P > d + 7.",
    fix="E‖G − ∇f_i^μ‖² ≤ 6(ρ − 1)(‖∇f‖² + L²δ² + σ_G²) + (2ρ − 1)σ² + μ²L²s₆/(2P)",
    checks=(
        partial(evidence_one.witness, "variance", "stated", evidence_one.NOISY),
        evidence_one.linear_noise_region,
        partial(evidence_one.witness, "variance", "corrected", evidence_one.NOISY),
        partial(evidence_one.witness, "variance", "corrected", replace(evidence_one.NOISY, P=1)),
    ),
)
_MOMENTS: Final = Entry(
    label="line-1073",
    line=1073,
    kind="lemma",
    says="E‖G‖² ≤ (6(d + P + 4)/P)(‖∇f‖² + L²δ² + σ_G²) + 2(d + 4)σ²/P + μ²L²((d + 6)³/(2P) + (d + 3)³/2)",
    finding="false",
    why=_MINIBATCH + " It fails for P > d + 7.",
    fix="E‖G‖² ≤ 6ρ(‖∇f‖² + L²δ² + σ_G²) + 2ρσ² + 2μ²L²(d + s₆/(4P))",
    checks=(
        partial(evidence_one.witness, "local-second-moment", "stated", evidence_one.NOISY),
        partial(evidence_one.witness, "local-second-moment", "corrected", evidence_one.NOISY),
        partial(follows, "local-second-moment"),
    ),
)
_DRIFT: Final = Entry(
    label="lemma.hbhb",
    line=1094,
    kind="lemma",
    says="η ≤ 2P/(√6LK√(d + P + 4)): χ_r ≤ (6‖∇f‖² + 3σ_G²)K³(d + P + 4)η²/P + 2K³(d + 4)η²/P σ² + μ² terms",
    finding="false",
    why="The noise is that of eq.lemma.zo_m2; and the condition lets η grow with √P, so that |1 − ηL| is above 1 and "
    "local steps diverge.",
    fix="η ≤ 1/(9L(K + 2(ρ − 1))): χ_r ≤ (9/4)η²K(K − 1){(K + 2(ρ − 1))(‖∇f‖² + σ_G²) + (ρ − ½)σ² + "
    "μ²L²(Kd + s₆/(4P))}",
    checks=(
        partial(evidence_one.witness, "local-drift", "stated", replace(evidence_one.NOISY, K=2)),
        partial(evidence_one.witness, "local-drift", "stated", Setting(d=1, L=1.0, K=5, P=1000), 1.0),
        partial(evidence_one.witness, "local-drift", "corrected", replace(evidence_one.NOISY, K=2)),
        partial(evidence_one.witness, "local-drift", "corrected", Setting(d=1, L=1.0, K=5, P=1000), 1.0),
        partial(follows, "local-drift"),
    ),
)
_COROLLARY: Final = Entry(
    label="coro-1",
    line=418,
    kind="corollary",
    says="μ ≤ 1/((d + 3)√(PKR)), η = O(√(mP/(dRK))): the rate is O(√(d/(mPKR))) for large R",
    finding="false",
    why="The noise does not fall with P (the.1), so the left side over the rate grows like P, however large R. "
    "Even from the printed theorem the constant hides 72LKP/d, so it needs KP of order d; η is admissible only from "
    "R = m³KL²(d + P + 4)²/(4Pd) on; and μ has the unit of x, which 1/((d + 3)√(PKR)) lacks.",
    fix="1/η = 9L(K + 2(ρ − 1)) + √(2LKRN/(Dm)), N = (ρ − ½)σ² + (K + 2(ρ − 1))φσ_G²: "
    "O(√(DLN/(mKR)) + DL(K + 2(ρ − 1))/(KR)), of the printed order where P ≤ d and K ≤ d/P",
    checks=(
        partial(evidence_one.rate_fails, 100),
        partial(evidence_one.rate_fails, 400),
        evidence_one.rate_of_dissimilarity,
        evidence_one.rounds_needed,
        partial(wrong_unit, "printed", printed=statement("corollary-1", "stated").mu["rate"], mu=mu),
        partial(
            evidence_one.witness, "corollary-1", "corrected", Setting(d=1, L=1.0, P=16, R=100 * 16, sigma=1.0), 1.0
        ),
        partial(
            evidence_one.witness, "corollary-1", "corrected", Setting(d=1, L=1.0, P=1024, R=100 * 1024, sigma=1.0), 1.0
        ),
    ),
)


def _inherits(label: str, line: int, says: str, key: str, *checks: Callable[[], Evidence]) -> Entry:
    """A display whose step is right and whose content is false, with the terms of ``PRINTED[key]``."""
    return Entry(
        label=label,
        line=line,
        kind="equation",
        says=says,
        finding="false",
        why="The algebra of this step is right; the noise that it starts from is not (lemma.pp.v2).",
        fix="the corrected Theorem 1 has its own chain (docs/theory.md)",
        checks=(*checks, partial(evidence_one.noise_after_one_round, key)),
    )


ENTRIES: Final = (
    _GRADIENT,
    replace(_GRADIENT, label="line-386", line=386, kind="equation"),
    _DISSIMILARITY,
    _LIP,
    Entry(
        label="line-397",
        line=397,
        kind="equation",
        says="‖∇f(x) − ∇f(y)‖ ≤ L‖x − y‖",
        finding="correct",
        why="As a definition; it is asked of too few functions (assumption.lip).",
        checks=(partial(one_unit, left=a, right=L * delta),),
    ),
    _THEOREM,
    replace(_THEOREM, label="eq.theorem.1", line=406, kind="equation", checks=_THEOREM.checks[:4]),
    Entry(
        label="line-412",
        line=412,
        kind="remark",
        says="the fourth term, of the finite differences, is often negligible since μ is typically very small",
        finding="does not follow",
        why="It is 2μ²L²(d + 3)³: a small μ does not make it small at the dimensions of the paper.",
        fix="negligible for μ far below √(2D/(KRη))/(L(d + 3)^{3/2})",
        checks=(
            evidence_one.negligible,
            partial(one_unit, mu=mu, fix=sqrt(2 * D / (K * R * eta)) / (L * sqrt((d + 3) ** 3))),
        ),
    ),
    _COROLLARY,
    Entry(
        label="line-423",
        line=423,
        kind="remark",
        says="K and P in the denominator of the rate mean a linear speed-up; more P allow a larger η, more K a smaller",
        finding="does not follow",
        why="The rate has dropped 72KLη/m σ_G², which at its η is 72LKP/d times it: K and P speed up only while KP is "
        "below d, and P not beyond d for the noise. P averages directions, not clients, who share them.",
        fix="speed-up in K up to K ~ d/P, in P up to P ~ d; η ~ 1/(L(K + 2(d + 1)/P))",
        checks=(evidence_one.rate_of_dissimilarity, partial(evidence_one.rate_fails, 100), evidence_one.monotone),
    ),
    Entry(
        label="line-429",
        line=429,
        kind="claim",
        says="the convergence rate of the zeroth-order method depends on the model's dimension",
        finding="correct",
        why="Without an assumption on the Hessian: for f = ‖x‖²/2 the exact left side grows like ρ.",
        checks=(evidence_one.dimension_matters,),
    ),
    Entry(
        label="line-1029",
        line=1029,
        kind="equation",
        says="G_{i,r}^k = (1/P) Σ_p g_{i,r,p}^k z_{r,p}^k, one mini-batch ξ_{i,r}^k for all p",
        finding="correct",
        checks=(
            partial(evidence_one.identity, evidence_one.zero_mean, "E(1/M)ΣΣG = E(1/M)ΣΣ∇f_i^μ(x_i^k)"),
            partial(one_unit, g=a, G=L * mu),
        ),
    ),
    _VARIANCE,
    replace(_VARIANCE, label="eq.lemma.zo_var", line=1035, kind="equation"),
    Entry(
        label="eq.lemma.avg_rv",
        line=1042,
        kind="equation",
        says="E‖(1/P)Σy_p − ȳ‖² = (1/P²) Σ E‖y_p − ȳ‖² for independent y_p of mean ȳ",
        finding="correct",
        why="It is used where it does not apply (line-1050).",
        checks=(evidence_one.mean_of_three,),
    ),
    Entry(
        label="line-1046",
        line=1046,
        kind="equation",
        says="E_r‖G_{i,r,p}^k − ∇f_i^μ‖² ≤ 2(d + 4)‖∇f_i(x; ξ)‖² + ½μ²L²(d + 6)³",
        finding="typo",
        why="The left side is a mean over ξ, the right side one draw of it." + _SMOOTH,
        fix="E_r‖G_{i,r,p}^k − ∇f_i^μ‖² ≤ 2(d + 4) E_r‖∇f_i(x; ξ)‖² + ½μ²L²(d + 6)³",
        checks=(
            partial(evidence_one.one_draw, averaged=False),
            partial(evidence_one.one_draw, averaged=True),
            partial(follows, "line-1046"),
        ),
    ),
    Entry(
        label="line-1050",
        line=1050,
        kind="equation",
        says="E‖G − ∇f_i^μ‖² ≤ (2(d + 4)/P) E‖∇f_i(x; ξ)‖² + μ²L²(d + 6)³/(2P)",
        finding="false",
        why=_MINIBATCH,
        fix="E‖G − ∇f_i^μ‖² ≤ 2(ρ − 1)‖∇f_i‖² + (2ρ − 1)σ² + μ²L²s₆/(2P)",
        checks=(
            partial(evidence_one.witness, "variance", "stated", evidence_one.NOISY),
            evidence_one.total_variance,
            partial(follows, "line-1050"),
        ),
    ),
    Entry(
        label="line-1056",
        line=1056,
        kind="equation",
        says="E‖∇f_i(x_i^k)‖² ≤ 3L²E‖x_i^k − x_r‖² + 3σ_G² + 3‖∇f(x_r)‖²",
        finding="correct",
        why="Through ∇f(x_i^k) in place of ∇f_i(x_r) it needs f alone smooth.",
        checks=(
            partial(evidence_one.fixed_step, "line-1056"),
            partial(follows, "line-1056"),
            partial(evidence_one.through_f, rerouted=True),
        ),
    ),
    Entry(
        label="line-1064",
        line=1064,
        kind="equation",
        says="plugging back: eq.lemma.zo_var",
        finding="false",
        why="The algebra of this step is right; what is plugged in is false (line-1050).",
        fix=_VARIANCE.fix,
        checks=(partial(follows, "variance"), *_VARIANCE.checks),
    ),
    _MOMENTS,
    replace(_MOMENTS, label="eq.lemma.zo_m2", line=1074, kind="equation"),
    Entry(
        label="line-1080",
        line=1080,
        kind="equation",
        says="E‖G‖² = E‖G − ∇f_i^μ‖² + E‖∇f_i^μ‖²",
        finding="correct",
        why="Not by Jensen's inequality, as said: G has the mean ∇f_i^μ given x_i^k.",
        checks=(partial(evidence_one.identity, evidence_one.split_moment, "E‖G‖² = E‖G − ∇f^μ‖² + E‖∇f^μ‖²"),),
    ),
    Entry(
        label="line-1085",
        line=1085,
        kind="equation",
        says="E‖∇f_i^μ(x_i^k)‖² ≤ 6L²E‖x_i^k − x_r‖² + 6σ_G² + 6‖∇f(x_r)‖² + ½μ²L²(d + 3)³",
        finding="correct",
        checks=(partial(evidence_one.fixed_step, "line-1085"), partial(follows, "line-1085")),
    ),
    _DRIFT,
    replace(_DRIFT, label="line-1095", line=1095, kind="equation"),
    Entry(
        label="line-1100",
        line=1100,
        kind="claim",
        says="x_{i,r}^k − x_r = η Σ_{τ=1}^k G_{i,r}^τ",
        finding="typo",
        why="The sign is minus, and x_{i,r}^k comes before the k-th step: τ < k.",
        fix="x_{i,r}^k − x_r = −η Σ_{τ=1}^{k−1} G_{i,r}^τ",
        checks=(evidence_one.walk_range,),
    ),
    Entry(
        label="line-1101",
        line=1101,
        kind="equation",
        says="χ_r = (η²/M) ΣΣ E‖Σ_{τ≤k} G^τ‖² ≤ (η²/M) ΣΣΣ_{τ≤k} k E‖G^τ‖²",
        finding="typo",
        why="As in line-1100, τ < k is meant.",
        fix="χ_r = (η²/M) ΣΣ E‖Σ_{τ<k} G^τ‖² ≤ (η²/M) ΣΣΣ_{τ<k} (k − 1) E‖G^τ‖²",
        checks=(
            evidence_one.walk_range,
            partial(evidence_one.identity, evidence_one.walk_exact, "χ_r = η² (1/M) Σ_i E‖G_i^1‖² for K = 2"),
        ),
    ),
    Entry(
        label="line-1101.2",
        line=1101,
        kind="equation",
        says="Σ_k Σ_{τ≤k} k X_τ ≤ (K²/2) Σ_k X_k",
        finding="does not follow",
        why="The coefficient of X_1 is K(K + 1)/2; for K = 1 the step is 1 ≤ ½. With the range that the algorithm has, "
        "it is K(K − 1)/2, and the conclusion holds. E_r is missing in the last line.",
        fix="Σ_k Σ_{τ<k} (k − 1) X_τ ≤ (K(K − 1)/2) Σ_k X_k",
        checks=(
            partial(evidence_one.coefficient, 1, inclusive=True),
            partial(evidence_one.coefficient, 5, inclusive=True),
            partial(evidence_one.coefficient, 5, inclusive=False),
            evidence_one.sum_of_ranges,
            evidence_one.sum_of_right_ranges,
            partial(evidence_one.fixed_step, "line-1101, conclusion"),
        ),
    ),
    Entry(
        label="line-1107",
        line=1107,
        kind="equation",
        says="eq.lemma.zo_m2 substituted in χ_r ≤ (K²η²/2M) ΣΣ E‖G‖²",
        finding="false",
        why="The substitution is right; eq.lemma.zo_m2 is not.",
        fix=_DRIFT.fix,
        checks=(evidence_one.substituted_drift, *_DRIFT.checks[2:4]),
    ),
    Entry(
        label="line-1112",
        line=1112,
        kind="equation",
        says="(1 − 6L²K²(d + P + 4)η²/(2P)) χ_r ≤ 3K³(d + P + 4)η²/P ‖∇f‖² + 3K³(d + P + 4)η²/(2P) σ_G² + …",
        finding="does not follow",
        why="Substitution gives 3K³(d + P + 4)η²/P for σ_G², twice the print; and half the printed (d + 6)³ term, "
        "which is safe. The noise is that of eq.lemma.zo_m2.",
        fix="3K³(d + P + 4)η²/P σ_G², μ²L²K³(d + 6)³η²/(4P)",
        checks=(
            partial(follows, "line-1112", "dissimilarity", "smoothing"),
            partial(slips, "line-1112", "dissimilarity", HALF),
            evidence_one.spare_smoothing,
            evidence_one.substituted_drift,
        ),
    ),
    Entry(
        label="line-1119",
        line=1119,
        kind="claim",
        says="for η ≤ 2P/(√6LK√(d + P + 4)) the coefficient of χ_r is larger than ½",
        finding="false",
        why="It is 1 − 2P there, at most −1: √P is meant for 2P.",
        fix="η ≤ √P/(√6LK√(d + P + 4)), where it is at least ½; the theorem's four conditions imply it",
        checks=(
            partial(evidence_one.left_coefficient, statement("local-drift", "stated").eta["drift"], 1 - 2 * P),
            partial(evidence_one.left_coefficient, sqrt(P) / (sqrt(6) * L * K * sqrt(d + P + 4)), HALF),
            evidence_one.condition_implied,
        ),
    ),
    replace(_THEOREM, label="line-1123", line=1123, checks=_THEOREM.checks[:4]),
    replace(_THEOREM, label="eq.theorem.1.restate", line=1125, kind="equation", checks=_THEOREM.checks[:4]),
    Entry(
        label="line-1135",
        line=1135,
        kind="equation",
        says="f(x_{r+1}) ≤ f(x_r) − η⟨∇f(x_r), (1/m)ΣΣG⟩ + (η²L/2)‖(1/m)ΣΣG‖²",
        finding="correct",
        checks=(partial(evidence_one.fixed_step, "E f(x_{r+1}) − f(x_r) − A_1 ≤ A_2"),),
    ),
    Entry(
        label="line-1142",
        line=1142,
        kind="equation",
        says="E_r f(x_{r+1}) ≤ f(x_r) + A_1 + A_2",
        finding="correct",
        checks=(partial(evidence_one.fixed_step, "E f(x_{r+1}) − f(x_r) − A_1 ≤ A_2"),),
    ),
    Entry(
        label="line-1147",
        line=1147,
        kind="claim",
        says="E (1/M) ΣΣ (G_{i,r}^k − ∇f_i^μ(x_{i,r}^k)) = 0",
        finding="correct",
        why="The mean is over the directions too, not over ξ alone.",
        checks=(partial(evidence_one.identity, evidence_one.zero_mean, "E(1/M)ΣΣG = E(1/M)ΣΣ∇f_i^μ(x_i^k)"),),
    ),
    Entry(
        label="eq.ybc",
        line=1148,
        kind="equation",
        says="A_1 = −Kη E⟨∇f(x_r), (1/MK) ΣΣ ∇f_i^μ(x_i^k)⟩",
        finding="correct",
        checks=(
            partial(evidence_one.identity, evidence_one.a1_smoothed, "A_1, clients without replacement"),
            partial(evidence_one.identity, evidence_one.a1_smoothed, "A_1, clients with replacement", replacement=True),
        ),
    ),
    Entry(
        label="line-1152",
        line=1152,
        kind="equation",
        says="A_1 ≤ −½Kη‖∇f‖² − ½Kη E‖(1/MK)ΣΣ∇f_i^μ‖² + ¼μ²KL²(d + 3)³η + L²ηχ_r",
        finding="correct",
        why="Without the second Jensen: ½ηL²(χ_r + Kμ²d)." + _SMOOTH,
        checks=(
            partial(evidence_one.identity, evidence_one.polarised, "A_1 by polarisation"),
            partial(evidence_one.fixed_step, "line-1152, Jensen"),
            partial(evidence_one.fixed_step, "line-1152, smoothness"),
            partial(follows, "line-1152"),
        ),
    ),
    Entry(
        label="line-1166",
        line=1166,
        kind="equation",
        says="A_2 ≤ Lη²E‖(1/m)ΣΣ[G − ∇f_i^μ]‖² + Lη²E‖(1/m)ΣΣ∇f_i^μ‖²",
        finding="correct",
        checks=(partial(evidence_one.fixed_step, "line-1166, Jensen"),),
    ),
    Entry(
        label="line-1166.2",
        line=1166,
        kind="equation",
        says="Lη²E‖(1/m)ΣΣ[G − ∇f_i^μ]‖² = (Lη²/(mM)) ΣΣE‖G − ∇f_i^μ‖²",
        finding="false",
        why="All clients of a step share its directions, so their errors are not independent: with equal clients they "
        "are equal, and the left side is m times the right one. Between steps it is right.",
        fix="E‖(1/m)Σ_i[G_i − ∇f_i^μ]‖² ≤ 2(ρ − 1)(E‖h̄‖² + σ²/m) + σ²/m + μ²L²s₆/(2P), h̄ = (1/m)Σ∇f_i(x_i^k)",
        checks=(evidence_one.a2_not_independent, evidence_one.shared_bound),
    ),
    Entry(
        label="eq.hh",
        line=1166,
        kind="equation",
        says="A_2 ≤ (6L³(d + 4)η²/(mP))χ_r + (KLη²/m)[6(d + 4)/P (‖∇f‖² + σ_G²) + 2(d + 4)/P σ² + …] + A_3",
        finding="false",
        why="Neither does the part of ‖∇f‖² fall with m (line-1166.2), nor the noise with P (lemma.pp.v2).",
        fix="A_2 ≤ Lη²Σ_k{2(ρ − 1)E‖h̄^k‖² + (2ρ − 1)σ²/m + μ²L²s₆/(2P)} + A_3",
        checks=(
            evidence_one.equal_clients,
            partial(evidence_one.noise_after_one_round, "eq.hh"),
            partial(follows, "eq.hh"),
            evidence_one.shared_bound,
        ),
    ),
    Entry(
        label="line-1177",
        line=1177,
        kind="equation",
        says="A_3 = Lη²E‖(1/M)ΣΣ∇f_i^μ‖² + Lη²A_4",
        finding="correct",
        checks=(
            partial(evidence_one.identity, evidence_one.a3_split, "A_3, clients without replacement"),
            partial(evidence_one.identity, evidence_one.a3_split, "A_3, clients with replacement", replacement=True),
        ),
    ),
    Entry(
        label="eq.iffew.sio",
        line=1182,
        kind="equation",
        says="A_4 ≤ (3/2)μ²K²L²(d + 3)³ + A_5",
        finding="correct",
        why="A detour: A_4 is a variance over clients, φ/m of that over one." + _SMOOTH,
        checks=(
            partial(evidence_one.fixed_step, "line-1182 (a)"),
            partial(evidence_one.fixed_step, "line-1182 (b)"),
            partial(follows, "eq.iffew.sio"),
        ),
    ),
    Entry(
        label="line-1191",
        line=1191,
        kind="equation",
        says="A_5 ≤ 18KL²χ_r + (9K²/m)σ_G²",
        finding="correct",
        why="(a), (b) and (d); for (c) see line-1191.2." + _SMOOTH,
        checks=(partial(evidence_one.fixed_step, "line-1191"), partial(follows, "line-1191")),
    ),
    Entry(
        label="line-1191.2",
        line=1191,
        kind="equation",
        says="(c): E‖(1/m)Σ_{C_r}[∇f_i(x_r) − ∇f(x_r)]‖² = (1/m²) E Σ_{C_r}‖∇f_i(x_r) − ∇f(x_r)‖²",
        finding="typo",
        why="An equality only for clients drawn with replacement; the algorithm draws a set, which gives "
        "φ = (M − m)/(M − 1) of it, 0 for m = M. The text names ∇f_i(x_r) − ∇f_i(x_i^k); ∇f_i(x_r) − ∇f(x_r) is meant.",
        fix="… ≤ …, or = φ/m of the mean over all clients",
        checks=(
            evidence_one.a5_not_equal,
            partial(
                evidence_one.identity, evidence_one.a5_clients, "(c), 2 of 3 clients with replacement", replacement=True
            ),
            partial(
                evidence_one.identity, evidence_one.a5_clients_phi, "(c) with φ = ½, 2 of 3 clients without replacement"
            ),
        ),
    ),
    Entry(
        label="line-1204",
        line=1204,
        kind="equation",
        says="A_3 ≤ Lη²E‖(1/M)ΣΣ∇f_i^μ‖² + (3/2)μ²K²L³(d + 3)³η² + 18KL³η²χ_r + 9K²Lη²/m σ_G²",
        finding="correct",
        why=_SMOOTH.strip(),
        checks=(partial(follows, "line-1204"), partial(evidence_one.fixed_step, "line-1204")),
    ),
    _inherits("line-1209", 1209, "A_2 with A_3 put back and grouped", "line-1209", partial(follows, "line-1209")),
    _inherits("eq.vb", 1219, "E f(x_{r+1}) ≤ f(x_r) + the bounds of A_1 and A_2", "eq.vb", partial(follows, "eq.vb")),
    _inherits(
        "eq.asd",
        1219,
        "the same without ‖(1/MK)ΣΣ∇f_i^μ‖²",
        "eq.asd",
        partial(follows, "eq.asd"),
        evidence_one.cancels,
    ),
    Entry(
        label="line-1234",
        line=1234,
        kind="claim",
        says="with Lemma hbhb and the four conditions on η, eq.asd simplifies to line-1235",
        finding="does not follow",
        why="Each condition is used up before χ_r is bounded: η ≤ mP/(24L(d + 4)) by ½ → ¼, the fourth by the μ terms "
        "of eq.asd alone, 1/(mK²L) by the noise in L²ηχ_r; nothing is left for the rest. Needed/printed is above 7 "
        "for ‖∇f‖², 2.6 for σ², 1.6 for σ_G², 1.3 for μ².",
        fix="with every condition divided by 3 it does (given the lemma as printed)",
        checks=(*(partial(evidence_one.too_little_room, name) for name in evidence_one.TERMS), evidence_one.room),
    ),
    _inherits(
        "line-1235",
        1235,
        "E f(x_{r+1}) ≤ f(x_r) − ¼Kη‖∇f‖² + (18K²L/m + 6(d + 4)LK/(mP))η²σ_G² + 4KL(d + 4)η²/(mP) σ² + ½μ²KL²(d + 3)³η",
        "line-1235",
    ),
    _inherits("line-1241", 1241, "line-1235 rearranged", "line-1235"),
    _inherits("eq.final", 1247, "line-1241 times 4/(Kη)", "line-1235", partial(follows, "eq.final")),
    replace(
        _THEOREM,
        label="line-1254",
        line=1254,
        kind="equation",
        says="eq.final summed over the rounds: the theorem",
        why="The telescoping is right, f(x_R) ≥ f*; eq.final is not. The expectation on the left is over all rounds.",
        checks=(*_THEOREM.checks[:4], partial(follows, "theorem-1")),
    ),
)
