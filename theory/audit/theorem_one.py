"""Lines 383–434 and 1027–1258 of the paper: Assumptions 1–3, Theorem 1 and its proof, Corollary 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Final

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from theory.audit.entry import Entry, Evidence
from theory.audit.instruments import (
    Axis,
    Worst,
    agree,
    at_most,
    beyond,
    breaks,
    equal,
    exceeds,
    keeps,
    one_unit,
    search,
    within,
    wrong_unit,
)
from theory.audit.one_round import OneRound
from theory.audit.proof_one import DERIVED, PRINTED, follows, plus, printed, scalar, slips, times
from theory.audit.smoothing import norm_moment
from theory.bounds import statement
from theory.formula import Formula
from theory.measured import exact
from theory.quadratic import Quadratic, expected
from theory.setting import Setting
from theory.spectrum import Spectrum
from theory.statement import Variant

__all__ = ["DISPLAYS", "ENTRIES", "searched"]

# Problems in one dimension, solved exactly by theory.quadratic: f(x; ξ) = x²/2 − ξx, L = 1, E ξ² = σ².


def line(setting: Setting, start: float = 0.0) -> Quadratic:
    """The problem with this setting's σ, from x_0."""
    return Quadratic.of(Spectrum((1.0,), (1,)), D=start**2 / 2, sigma=setting.sigma)


def at_largest(name: str, variant: Variant, setting: Setting, share: float = 1.0) -> Setting:
    """The setting at (a share of) the largest η of a statement that has conditions on it."""
    each = statement(name, variant)
    return replace(setting, eta=share * each.step_sizes(setting).largest) if each.eta else setting


def witness(name: str, variant: Variant, setting: Setting, start: float = 0.0) -> Evidence:
    """That the printed bound is broken, or the corrected one kept, by ``line`` at the largest η that it allows."""
    problem = line(setting, start)
    here = at_largest(name, variant, replace(setting, D=problem.D))
    left = exact(name, problem, here)
    constants = ", ".join(
        f"{key} = {getattr(here, key):.4g}" for key in ("sigma", "P", "K", "R", "eta") if getattr(here, key)
    )
    judged = breaks if variant == "stated" else keeps
    return judged(name, left.value, here, f"f = x²/2 − ξx from {start:g}, {constants}", variant, **left.point)


# At x* the noise is all there is: G = −Zξ, E‖G‖² = ρσ².
_NOISY: Final = Setting(d=1, L=1.0, P=100, sigma=1.0)


def _linear_noise_region() -> Evidence:
    """ρσ² > 2(d + 4)σ²/P exactly for P > d + 7."""
    left = scalar("1 + (d + 1)/P") - printed("variance")["noise"] / scalar("sigma") ** 2
    return equal(left, "(P - d - 7)/P", "left − right, over σ²: positive for P > d + 7")


def _noise_after_one_round(key: str, setting: Setting) -> Evidence:
    """E f(x_1) from x_0 = x*, one client, K = 1, against the display's right side; μ = 0."""
    here = at_largest("theorem-1", "stated", setting)
    f = float(expected(line(here), here).f[1])
    bound = math.fsum(
        Formula(PRINTED[key][name])({**here.values, "a": 0.0, "delta": 0.0, "G": 0.0}) for name in PRINTED[key]
    )
    return exceeds(f, bound, f"f = x²/2 from x*, σ = 1, P = {here.P}, K = m = 1: E f(x_1)")


_MANY: Final = Setting(d=1, L=1.0, P=1000, R=100, sigma=1.0)


# Clients share the directions.


def _identical_clients(what: str, d: int = 10, m: int = 100) -> Evidence:
    """f_i(x) = ⟨g, x⟩ for all i, K = P = 1, μ → 0, ‖g‖ = 1: every G_i is zzᵀg."""
    here = Setting(d=d, L=1.0, m=m, eta=1.0)
    rho = here.values["rho"]
    if what == "independence":
        return exceeds(rho - 1, (rho - 1) / m, f"{m} equal linear clients, d = {d}: E‖(1/m)ΣN_i‖², (1/m²)ΣE‖N_i‖²")
    values = {**here.values, "a": 1.0, "delta": 0.0}
    bound = math.fsum(Formula(text)(values) for text in PRINTED["eq.hh"].values()) + 1.0  # A_3 = Lη²‖g‖²
    return exceeds(0.5 * rho, bound, f"{m} equal linear clients, d = {d}, P = 1: A_2")


def _shared_directions(d: int = 10, m: int = 100) -> Evidence:
    """What holds: E‖(1/m)ΣN_i‖² ≤ 2(ρ − 1)(E‖h̄‖² + σ²/m) + σ²/m + μ²L²s₆/(2P), h̄ the mean of ∇f_i: no 1/m."""
    rho = Setting(d=d, L=1.0, m=m).values["rho"]
    return at_most(rho - 1, 2 * (rho - 1), f"{m} equal linear clients, d = {d}: E‖(1/m)ΣN_i‖² against 2(ρ − 1)‖h̄‖²")


# Searches over a round of three clients, whose two sides are finite sums.

_AXES: Final = {
    "x": Axis(-math.pi, math.pi, log=False),
    "mu": Axis(0.02, 1.5),
    "eta": Axis(0.01, 3.0),
    "theta": Axis(-math.pi, math.pi, log=False),
    "b": Axis(-2.0, 2.0, log=False),
}


def _round(at: Mapping[str, float], *, replacement: bool = False) -> OneRound:
    return OneRound(
        mu=at["mu"],
        eta=at["eta"],
        x=at["x"],
        phases=(0.0, at["theta"], 2.1),
        slopes=(at["b"], -0.4, 0.2),
        replacement=replacement,
    )


def searched(sides: Callable[[OneRound], tuple[float, float]], *, replacement: bool = False) -> Worst:
    """The worst left/right of a display over rounds, d = P = L = 1, K = 2, 2 of 3 clients."""

    def ratio(at: Mapping[str, float]) -> float:
        left, right = sides(_round(at, replacement=replacement))
        return left / right if right > 0 else math.nan

    return search(ratio, _AXES, effort=8)


def _identity(sides: Callable[[OneRound], tuple[float, float]], what: str, *, replacement: bool = False) -> Evidence:
    at = OneRound(mu=0.6, eta=0.7, x=0.4, replacement=replacement)
    return agree(*sides(at), f"three clients, K = 2, μ = 0.6, η = 0.7: {what}")


def _bias(r: OneRound) -> float:
    """¼μ²L²(d + 3)³, the square of eq.as, d = L = 1."""
    return 16 * r.mu**2


def _polarised(r: OneRound) -> tuple[float, float]:
    mean = r.smooth.mean(axis=(0, 1))
    return _a1(r), 0.5 * r.K * r.eta * (-(r.a**2) - r.mean(mean**2) + r.mean((mean - r.a) ** 2))


def _a1(r: OneRound) -> float:
    return -r.eta * r.a * r.mean(r.over_sampled(r.G).sum(axis=1))


def _a1_smoothed(r: OneRound) -> tuple[float, float]:
    return _a1(r), -r.K * r.eta * r.a * r.mean(r.smooth.mean(axis=(0, 1)))


def _a1_terms(r: OneRound, *, last: bool) -> tuple[float, float]:
    """The part of line-1152 that is bounded: ½Kη E‖mean − ∇f(x_r)‖² and its bound, the middle or the last one."""
    mean = r.smooth.mean(axis=(0, 1))
    left = 0.5 * r.K * r.eta * r.mean((mean - r.a) ** 2)
    if last:
        return left, r.K * r.eta * _bias(r) + r.eta * r.drift
    return left, 0.5 * r.eta * r.total((r.smooth - r.at_start) ** 2)


def _zero_mean(r: OneRound) -> tuple[float, float]:
    return r.total(r.G), r.total(r.smooth)


def _split_moment(r: OneRound) -> tuple[float, float]:
    return r.total(r.G**2), r.total((r.G - r.smooth) ** 2) + r.total(r.smooth**2)


def _descent(r: OneRound) -> tuple[float, float]:
    """E f(x_{r+1}) and f(x_r) + A_1 + A_2, each shifted by the least value that makes ratios of positive numbers."""
    end = r.x - r.eta * r.over_sampled(r.G).sum(axis=1)
    after = r.mean(sum(r.value(row).mean(axis=0) for row in end) / len(end))
    before = float(r.value(end[0] * 0 + r.x).mean(axis=0)[0])
    rise = after - before - _a1(r)
    return abs(rise), 0.5 * r.L * r.eta**2 * r.sampled_square(r.G)


def _a2_split(r: OneRound) -> tuple[float, float]:
    return 0.5 * r.sampled_square(r.G), r.sampled_square(r.G - r.smooth) + r.sampled_square(r.smooth)


def _a2_independent(r: OneRound) -> tuple[float, float]:
    return r.sampled_square(r.G - r.smooth), r.total((r.G - r.smooth) ** 2) / r.m


def _a3_split(r: OneRound) -> tuple[float, float]:
    return r.sampled_square(r.smooth), r.full_square(r.smooth) + _a4(r)


def _centred(r: OneRound, values: NDArray[np.float64]) -> float:
    """E‖(1/m) Σ_C Σ_k values − (1/M) Σ_i Σ_k values‖²."""
    return r.mean((r.over_sampled(values).sum(axis=1) - values.mean(axis=0).sum(axis=0)) ** 2)


def _a4(r: OneRound) -> float:
    return _centred(r, r.smooth)


def _a4_three(r: OneRound) -> tuple[float, float]:
    bias = r.smooth - r.plain
    return _a4(r), 3 * (r.sampled_square(bias) + _centred(r, r.plain) + r.full_square(bias))


def _a4_bias(r: OneRound) -> tuple[float, float]:
    bias = r.smooth - r.plain
    return 3 * (r.sampled_square(bias) + r.full_square(bias)), 6 * r.K**2 * _bias(r)


def _a5(r: OneRound) -> tuple[float, float]:
    return 3 * _centred(r, r.plain), 18 * r.K * r.drift + 9 * r.K**2 / r.m * r.dissimilarity


def _a5_clients(r: OneRound) -> tuple[float, float]:
    """E‖(1/m) Σ_C [∇f_i(x_r) − ∇f(x_r)]‖² and (1/m²) E Σ_C ‖·‖²."""
    off = r.gradient(r.x)[:, 0] - r.a
    left = sum(off[list(chosen)].mean() ** 2 for chosen in r.subsets) / len(r.subsets)
    return float(left), float((off**2).mean()) / r.m


def _a3(r: OneRound) -> tuple[float, float]:
    """A_3 ≤ its bound in line-1204, without Lη²."""
    return r.sampled_square(r.smooth), r.full_square(r.smooth) + 6 * r.K**2 * _bias(r) + _a5(r)[1]


def _three_parts(r: OneRound) -> tuple[float, float]:
    """line-1056 for the sum over i, k."""
    return r.total(r.plain**2), 3 * r.drift + 3 * r.K * (r.dissimilarity + r.a**2)


def _smooth_moment(r: OneRound) -> tuple[float, float]:
    """line-1085 for the sum over i, k."""
    return r.total(r.smooth**2), 2 * _three_parts(r)[1] + 2 * r.K * _bias(r)


def _walk_sum(r: OneRound) -> tuple[float, float]:
    """χ_r and (K²η²/2) Σ_k (1/M) Σ_i E‖G_i^k‖²."""
    return r.drift, 0.5 * r.K**2 * r.eta**2 * r.total(r.G**2)


def _walk_range() -> Evidence:
    """x_{i,r}^2 − x_r is −η G^1, not η(G^1 + G^2)."""
    r = OneRound(mu=0.6, eta=0.7, x=0.4)
    moved = r.points[:, 1] - r.x
    wrong = float(abs(moved - r.eta * r.G.sum(axis=1)).max())
    right = float(abs(moved + r.eta * r.G[:, 0]).max())
    said = f"x^2 − x_r: off η(G^1 + G^2) by up to {wrong:.3g}, off −ηG^1 by {right:.3g}"
    return Evidence("counter-example", wrong > 1e-3 and right < 1e-12, said)


# Lemma hbhb


def _sum_of_ranges() -> Evidence:
    """Σ_{k≥τ} k at τ = 1 is K(K + 1)/2."""
    k = sp.Symbol("k")
    return equal(
        sp.summation(k, (k, 1, scalar("K"))), "K**2/2 + K/2", "with τ ≤ k the coefficient of X_1 is K(K + 1)/2 > K²/2"
    )


def _sum_of_right_ranges() -> Evidence:
    """Σ_{k>τ} (k − 1) at τ = 1 is K(K − 1)/2."""
    k = sp.Symbol("k")
    total = sp.summation(k - 1, (k, 2, scalar("K")))
    return equal(total, "K**2/2 - K/2", "with τ < k it is K(K − 1)/2 ≤ K²/2")


def _one_local_step() -> Evidence:
    """K = 1, X_1 = 1: Σ_k Σ_{τ≤k} k X_τ = 1 against K²/2."""
    return exceeds(1.0, 0.5, "K = 1: Σ_k Σ_{τ≤k} k X_τ against (K²/2) Σ X_k, X_1 = 1")


def _left_coefficient(eta: str, value: str) -> Evidence:
    found = 1 - printed("line-1112")["drift"].subs(scalar("eta"), scalar(eta)) / scalar("delta") ** 2
    return equal(found, value, f"1 − 6L²K²(d + P + 4)η²/(2P) at η = {eta}")


# From eq.asd to line-1235

_WHOLE: Final = {name: Axis(1, high, whole=True) for name, high in (("d", 1e4), ("P", 1e4), ("K", 100.0), ("m", 100.0))}


def _at(at: Mapping[str, float]) -> Setting:
    return Setting(d=int(at["d"]), P=int(at["P"]), K=int(at["K"]), m=int(at["m"]), L=1.0)


def _after_substitution(name: str) -> tuple[Formula, Formula]:
    """What eq.asd with Lemma hbhb's bound on χ needs for a term, and what line-1235 has for it."""
    asd, target = printed("eq.asd"), printed("line-1235")[name]
    found = plus(asd, times(asd["drift"] / scalar("delta") ** 2, printed("local-drift")))[name]
    before = scalar("1/2*K*eta*a**2") if name == "gradient" else 0
    return Formula(str(before + found)), Formula(str(before + target))


def simplification(name: str, share: float) -> Worst:
    """The worst needed/printed for a term of line-1235, at a share of the largest admissible η."""
    left, right = _after_substitution(name)

    def ratio(at: Mapping[str, float]) -> float:
        here = at_largest("theorem-1", "stated", _at(at), share)
        values = {**here.values, "a": 1.0, "sigma": 1.0, "sigma_G": 1.0, "mu": 1.0}
        return left(values) / right(values)

    return search(ratio, _WHOLE, effort=12)


def _too_little_room(name: str) -> Evidence:
    return beyond(simplification(name, 1.0))


def _room(name: str) -> Evidence:
    return within(simplification(name, _ROOM))


_ROOM: Final = 1 / 3  # with every printed condition on η divided by 3 the four terms fit


def _cancels() -> Evidence:
    """(−½Kη + Lη²K²)‖mean‖² ≤ 0 needs η ≤ 1/(2KL); the fourth condition is below 1/(6KL)."""
    fourth = statement("theorem-1", "stated").eta["smoothing"].expression
    slack = sp.simplify(1 / fourth - scalar("6*K*L"))
    return equal(slack, "2*L*(d + 6)**3/(m*P*(d + 3)**3)", "1/η of the fourth condition − 6KL is positive")


def _condition_implied() -> Evidence:
    """Lemma hbhb's printed condition follows from the theorem's second."""

    def ratio(at: Mapping[str, float]) -> float:
        here = _at(at)
        allowed = statement("local-drift", "stated").step_sizes(here).largest
        return statement("theorem-1", "stated").step_sizes(here).largest / allowed

    return within(search(ratio, _WHOLE, effort=12))


def _mended_condition_not_implied() -> Evidence:
    """The condition that hbhb's proof needs, η ≤ √P/(√6LK√(d + P + 4)), does not."""
    here = Setting(d=1, P=1000, K=1, m=1, L=1.0)
    needed = math.sqrt(1000 / (6 * 1005))
    conditions = statement("theorem-1", "stated").step_sizes(here).conditions
    largest = min(conditions[name] for name in ("variance", "drift", "local_steps"))
    return exceeds(largest, needed, "d = K = m = 1, P = 1000, L = 1: largest η of the theorem and of hbhb's proof")


# Theorem 1 and Corollary 1


def chain() -> Evidence:
    """The corrected theorem's terms from the steps of its proof in ``docs/theory.md``: needed/claimed, the largest.

    L = μ = σ = σ_G = φ = d = P = m = 1, as each term is in proportion to its own; q = ρ − 1, w = s₆/4.
    """
    drift, theorem = statement("local-drift"), statement("theorem-1")

    def ratio(at: Mapping[str, float]) -> float:
        K, q, w = at["K"], at["q"], at["w"]
        values = dict.fromkeys(("L", "mu", "sigma", "sigma_G", "phi", "d", "P", "m", "a", "R", "D"), 1.0)
        values |= {"K": K, "rho": 1 + q, "s6": 4 * w}
        values["eta"] = eta = at["share"] * theorem.eta["descent"](values)
        # χ ≤ per {(K + 2q)(a² + σ_G²) + ρσ² + μ²L²(Kd + d + w)}
        per = 2 * eta**2 * K * (K - 1) / (1 - 2 * eta**2 * (K - 1) * (K + 4 * q))
        # E f(x_{r+1}) − f(x_r) over ηK/4: coefficient of χ, then each term
        chi = 2 / K + 4 * eta * (2 + 4 * q / K)
        needed = {
            "start": theorem.terms["start"](values),
            "dissimilarity": 4 * eta * (2 * K + 4 * q),
            "noise": 4 * eta * 2 * (1 + q),
            "drift": chi * per * (K + 2 * q + 1 + q),
            "smoothing": 2 + 8 * eta * K + chi * per * K + (8 * eta + chi * per) * (1 + w),
        }
        shares = [value / theorem.terms[name](values) for name, value in needed.items() if value]
        shares.append(16 * q * eta + chi * per * (K + 2 * q))  # of a², where 2 − 1 are left
        if K > 1:
            braces = {"gradient": K + 2 * q, "dissimilarity": K + 2 * q, "noise": 1 + q, "smoothing": K + 1 + w}
            shares += [per * brace / drift.terms[name](values) for name, brace in braces.items()]
        return max(shares)

    axes = {"K": Axis(1, 1e3, whole=True), "q": Axis(1e-6, 1e6), "w": Axis(1e-2, 1e9), "share": Axis(1e-3, 1.0)}
    return within(search(ratio, axes, effort=25))


def _rate(setting: Setting) -> float:
    return math.sqrt(setting.d / (setting.m * setting.P * setting.K * setting.R))


def _rate_ratio(P: int) -> float:
    """Exact left side over √(d/(mPKR)) at η = √(mP/(dRK)), d = m = K = L = σ = 1, D = 0, R = 100 P: η = 0.1."""
    here = Setting(d=1, L=1.0, P=P, R=100 * P, sigma=1.0, D=0.0, eta=0.1)
    assert statement("corollary-1", "stated").admits(here)
    return exact("corollary-1", line(here), here).value / _rate(here)


def _rate_fails() -> Evidence:
    few, many = _rate_ratio(16), _rate_ratio(1024)
    what = "f = x²/2 from x*, σ = 1, R = 100P: left/√(d/(mPKR)) at P = 1024 against 30 times that at 16"
    return exceeds(many, 30 * few, what)


def _rate_of_dissimilarity() -> Evidence:
    term = scalar("72*K*L*eta/m").subs(scalar("eta"), scalar("sqrt(m*P/(d*R*K))"))
    rate = scalar("sqrt(d/(m*P*K*R))")
    return equal(term / rate, "72*L*K*P/d", "72KLη/m over the claimed rate, at its η")


def _rounds_needed() -> Evidence:
    """η = √(mP/(dRK)) ≤ 2P/(mKL(d + P + 4)) is a condition on R."""
    eta, bound = scalar("sqrt(m*P/(d*R*K))"), scalar("2*P/(m*K*L*(d + P + 4))")
    rounds = scalar("m**3*K*L**2*(d + P + 4)**2/(4*P*d)")
    return equal(
        eta.subs(sp.Symbol("R", positive=True), rounds), bound, "η is admissible from R = m³KL²(d + P + 4)²/(4Pd)"
    )


# Assumptions


def _variance_away_from_start() -> Evidence:
    """f_i(x; ξ) = ±bx + ξx²/2, Eξ = 0, Eξ² = c²: no noise at x_0 = 0, the only iterate for R = 1; at x_i^2 c²η²b²ρ."""
    rho = Setting(d=1, L=1.0).values["rho"]
    b, c, eta = 1.0, 1.0, 0.1
    return exceeds(c**2 * eta**2 * b**2 * rho, 0.0, "f_i = ±x + ξx²/2, x_0 = 0, η = 0.1: variance at x_i^2, σ² at x_0")


def _rough_clients(setting: Setting) -> tuple[float, float]:
    """Two clients ±σ_G(√(‖x‖² + δ²) − δ), f = 0, x = 0: E‖G‖² and G's variance bound; L → 0, δ/μ = 0.01.

    g ≥ σ_G(‖z‖ − δ/μ), so E g²‖z‖² ≥ σ_G² E(‖z‖ − 0.01)²‖z‖²; ∇f_i^μ(0) = 0, P = 1.
    """
    d, c = setting.d, 0.01
    left = norm_moment(d, 4) - 2 * c * norm_moment(d, 3) + c**2 * norm_moment(d, 2)
    return left, math.fsum(statement("variance", "stated").bound(setting, a=0.0, delta=0.0))


def _rough() -> Evidence:
    here = Setting(d=20, L=1e-6, mu=1e-3, sigma_G=1.0)
    left, right = _rough_clients(here)
    return exceeds(left, right, "f_i = ±(√(‖x‖² + δ²) − δ), f = 0, d = 20, P = 1: E‖G − ∇f_i^μ‖², eq.lemma.zo_var")


def _not_rough() -> Evidence:
    """With L = 1/δ, which these clients have, the bound is kept: δ = 10⁻⁵."""
    here = Setting(d=20, L=1e5, mu=1e-3, sigma_G=1.0)
    return keeps("variance", _rough_clients(here)[0], here, "the same with L = 1/δ, their own", a=0.0, delta=0.0)


def _rerouted() -> Evidence:
    """‖∇f_i(y)‖ ≤ ‖∇f_i(y) − ∇f(y)‖ + ‖∇f(y) − ∇f(x)‖ + ‖∇f(x)‖ needs f smooth only: line-1056 is kept at ±σ_G."""
    return at_most(1.0, 3.0, "the same clients, σ_G = 1: ‖∇f_i(y)‖² ≤ 3L²‖y − x‖² + 3σ_G² + 3‖∇f(x)‖² with L → 0")


def _variance_everywhere() -> Evidence:
    """With σ² = 1 at every x, as f_i(x; ξ) = ±bx + ξx has it: the variance at x_i^2 is 1."""
    return at_most(1.0, 1.0, "f_i = ±x + ξx, E ξ² = 1: variance at x_i^2, σ²")


def _total_variance() -> Evidence:
    """Given ξ the P estimates are independent; over ξ, ∇f^μ(x; ξ) has variance σ² at most: ρσ² ≤ (2ρ − 1)σ² here."""
    rho = _NOISY.values["rho"]
    return at_most(rho, 2 * rho - 1, "f_i(x; ξ) = ξx, d = 1, P = 100: E‖G − ∇f^μ‖² against (2ρ − 1)σ²")


def _monotone() -> Evidence:
    """The printed conditions at d = 28938, m = 10: larger for more P, smaller for more K."""
    each = statement("theorem-1", "stated")
    few, more = (each.step_sizes(Setting(d=28938, m=10, P=P, K=4, L=1.0)).largest for P in (5, 50))
    long = each.step_sizes(Setting(d=28938, m=10, P=5, K=40, L=1.0)).largest
    return Evidence(
        "arithmetic", long < few < more, f"η at P = 5, 50: {few:.3g}, {more:.3g}; at K = 40 for 4: {long:.3g}"
    )


def _walk_exact(r: OneRound) -> tuple[float, float]:
    return r.drift, r.eta**2 * r.mean((r.G[:, 0] ** 2).mean(axis=0))


def _substituted_drift() -> Evidence:
    """For f = x²/2 from x*, σ = 1, K = 2, P = 100: χ against the noise term of line-1107 and line-1112."""
    here = Setting(d=1, L=1.0, K=2, P=100, sigma=1.0, eta=0.01)
    left = exact("local-drift", line(here), here).value
    values = {**here.values, "delta": math.sqrt(left)}
    right = sum(Formula(PRINTED["line-1112"][name])(values) for name in ("noise", "drift"))
    return exceeds(left, right, "f = x²/2 from x*, σ = 1, K = 2, P = 100, η = 0.01: χ")


def _spare_smoothing() -> Evidence:
    spare = printed("line-1112")["smoothing"] - DERIVED["line-1112"]()["smoothing"]
    return equal(spare, "mu**2*L**2*K**3*(d + 6)**3*eta**2/(4*P)", "smoothing of line-1112, printed − derived")


def _a2_not_independent() -> Evidence:
    left, right = _a2_independent(OneRound(mu=0.6, eta=0.7, x=0.4, phases=(0.0, 0.0, 0.0), scales=(1.0, 1.0, 1.0)))
    return exceeds(left, right, "three clients of different slopes: E‖(1/m)ΣΣ[G − ∇f^μ]‖² against (1/mM)ΣΣE‖·‖²")


def _shared_bound() -> Evidence:
    """The mended bound of line-1166.2 over rounds of three clients, ρ − 1 = 2, s₆ = 15, σ = 0."""

    def sides(r: OneRound) -> tuple[float, float]:
        mean = r.over_sampled(r.plain)
        return r.sampled_square(r.G - r.smooth), 4 * r.mean((mean**2).sum(axis=1)) + r.K * r.mu**2 * 15 / 2

    return within(searched(sides))


_A5_C: Final = "(c), 2 of 3 clients with replacement"


def _a5_clients_phi(r: OneRound) -> tuple[float, float]:
    left, right = _a5_clients(r)
    return left, (r.M - r.m) / (r.M - 1) * right


def _a5_not_equal() -> Evidence:
    left, right = _a5_clients(OneRound(mu=0.6, eta=0.7, x=0.4))
    return exceeds(right, left, "(c), 2 of 3 clients without replacement: right side, left side")


_SMOOTH: Final = " It needs every f_i(·; ξ) smooth (assumption.lip)."
_MINIBATCH: Final = (
    "The P estimates of a step share the mini-batch ξ, so they are independent only given ξ, and the noise does not "
    "fall with P: for f_i(x; ξ) = ⟨ξ, x⟩ the left side is ρσ², ρ = 1 + (d + 1)/P."
)


def _mean_of_three() -> Evidence:
    """Three independent values, uniform on {0, 1, 5}: both sides of eq.lemma.avg_rv by enumeration."""
    values, mean, P = (0, 1, 5), sp.Integer(2), 3
    left = sum(((sp.Integer(sum(y)) / P - mean) ** 2 for y in product(values, repeat=P)), sp.Integer(0)) / 27
    right = P * sum((v - mean) ** 2 for v in values) / sp.Integer(3) / P**2
    return equal(left, right, "three independent values, uniform on {0, 1, 5}")


def _one_draw(*, averaged: bool) -> Evidence:
    """f(x; ξ) = ξx, ξ = 0 or 2 by a fair coin, d = 1, μ → 0: E(z²ξ − 1)², given ξ = 0 or over both."""
    if not averaged:
        return exceeds(1.0, 0.0, "f(x; ξ) = ξx, ξ ∈ {0, 2}, at ξ = 0: E_z‖G_p − ∇f^μ‖² against 10‖∇f(x; ξ)‖²")
    left = 0.5 * 1 + 0.5 * (3 * 4 - 2 * 2 + 1)
    return at_most(left, 10 * 0.5 * 4, "the same with E over ξ on both sides")


def _negligible() -> Evidence:
    """2μ²L²(d + 3)³ with the experiments' μ = 10⁻³ and d = 1.3·10⁹, over L² · 1 unit of x squared."""
    term = statement("theorem-1", "stated").terms["smoothing"]({"mu": 1e-3, "L": 1.0, "d": 1.3e9})
    needed = math.sqrt(1 / statement("theorem-1", "stated").terms["smoothing"]({"mu": 1.0, "L": 1.0, "d": 1.3e9}))
    says = f"OPT-1.3B, μ = 10⁻³, L = 1: the fourth term is {term:.2g}; it is below 1 for μ < {needed:.1g}"
    return Evidence("arithmetic", term > 1e20, says, {"term": term, "mu": needed})


def _grows_with(d: int) -> float:
    problem = Quadratic.of(Spectrum.flat(d, 1.0), D=0.0, sigma=1.0)
    return expected(problem, problem.setting(eta=1e-5, R=10)).average


def _dimension_matters() -> Evidence:
    return exceeds(
        _grows_with(1000), 80 * _grows_with(10), "f = ‖x‖²/2, σ = 1, P = 1: left at d = 1000, 80 times that at 10"
    )


def _fixed_step(name: str) -> Evidence:
    return within(searched(DISPLAYS[name]))


# Left and right sides of displays that are inequalities between expectations over a round.
DISPLAYS: Final[dict[str, Callable[[OneRound], tuple[float, float]]]] = {
    "descent": _descent,
    "jensen": partial(_a1_terms, last=False),
    "smoothness": partial(_a1_terms, last=True),
    "a2": _a2_split,
    "a4": _a4_three,
    "a4 bias": _a4_bias,
    "a5": _a5,
    "a3": _a3,
    "three": _three_parts,
    "smoothed": _smooth_moment,
    "walk": _walk_sum,
}

_THEOREM: Final = Entry(
    label="the.1",
    line=402,
    kind="theorem",
    says="(1/R) Σ E‖∇f(x_r)‖² ≤ 4D/(KRη) + (72KLη/m + 24(d + 4)Lη/(mP))σ_G² + 16L(d + 4)η/(mP) σ² + 2μ²L²(d + 3)³",
    verdict="false",
    why=_MINIBATCH + " So the bound fails for P above about 30(d + 4). Besides, its proof takes the clients' errors "
    "for independent, though they share z (eq.hh), and has no room for the drift (line-1234). E_r on the left is E.",
    fix="η ≤ 1/(9L(K + 2(ρ − 1))): (1/R) Σ E‖∇f(x_r)‖² ≤ 4D/(KRη) + (8Lη/m)(K + 2(ρ − 1))φσ_G² + (8Lηρ/m)σ² + "
    "(25/4)L²η²(K − 1)((K + 2(ρ − 1))σ_G² + ρσ²) + μ²L²(3d + 9Lη(d + s₆/(4P)))",
    checks=(
        partial(witness, "theorem-1", "stated", _MANY),
        partial(witness, "theorem-1", "stated", replace(_MANY, K=3)),
        partial(witness, "theorem-1", "corrected", _MANY),
        partial(witness, "theorem-1", "corrected", replace(_MANY, K=3)),
        partial(one_unit, **{name: formula.text for name, formula in statement("theorem-1").terms.items()}),
        chain,
    ),
)
_LIP: Final = Entry(
    label="assumption.lip",
    line=395,
    kind="assumption",
    says="f is L-smooth",
    verdict="does not follow",
    why="The lemmas apply smoothness to every f_i(·; ξ). With f alone smooth, two clients with a kink at x that "
    "cancels in f have E‖G‖² of order d²σ_G², and eq.lemma.zo_var fails, as Theorem 2 does.",
    fix="every f_i(·; ξ) is L-smooth",
    checks=(_rough, _not_rough),
)
_GRADIENT: Final = Entry(
    label="ass.g",
    line=384,
    kind="assumption",
    says="E∇f_i(x_r; ξ_r) = ∇f_i(x_r), E‖∇f_i(x_r; ξ_r) − ∇f_i(x_r)‖² ≤ σ², r ≥ 1",
    verdict="typo",
    why="The proof uses it at the local points x_{i,r}^k (line-1050) and from r = 0; as printed the noise may vanish "
    "at every x_r and nowhere else.",
    fix="for every x, independently for all i, r, k: E∇f_i(x; ξ) = ∇f_i(x), E‖∇f_i(x; ξ) − ∇f_i(x)‖² ≤ σ²",
    checks=(_variance_away_from_start, _variance_everywhere, partial(one_unit, left="a**2", right="sigma**2")),
)
_DISSIMILARITY: Final = Entry(
    label="ass.w",
    line=391,
    kind="assumption",
    says="‖∇f(x) − ∇f_i(x)‖² ≤ σ_G²",
    verdict="correct",
    why="The corrected Theorem 1 needs it at x_r and on average over i only.",
    checks=(
        partial(one_unit, left="a**2", right="sigma_G**2"),
        partial(_identity, _a5_clients, _A5_C, replacement=True),
    ),
)
_VARIANCE: Final = Entry(
    label="lemma.pp.v2",
    line=1034,
    kind="lemma",
    says="E‖G − ∇f_i^μ‖² ≤ (6(d + 4)/P)(‖∇f‖² + L²δ² + σ_G²) + 2(d + 4)σ²/P + μ²L²(d + 6)³/(2P)",
    verdict="false",
    why=_MINIBATCH + " It fails for P > d + 7.",
    fix="E‖G − ∇f_i^μ‖² ≤ 6(ρ − 1)(‖∇f‖² + L²δ² + σ_G²) + 2ρσ² + 2μ²L²(d + s₆/(4P))",
    checks=(
        partial(witness, "variance", "stated", _NOISY),
        _linear_noise_region,
        partial(witness, "variance", "corrected", _NOISY),
        partial(witness, "variance", "corrected", replace(_NOISY, P=1)),
    ),
)
_MOMENTS: Final = Entry(
    label="line-1073",
    line=1073,
    kind="lemma",
    says="E‖G‖² ≤ (6(d + P + 4)/P)(‖∇f‖² + L²δ² + σ_G²) + 2(d + 4)σ²/P + μ²L²((d + 6)³/(2P) + (d + 3)³/2)",
    verdict="false",
    why=_MINIBATCH + " It fails for P > d + 7.",
    fix="E‖G‖² ≤ 6ρ(‖∇f‖² + L²δ² + σ_G²) + 2ρσ² + 2μ²L²(d + s₆/(4P))",
    checks=(
        partial(witness, "local-second-moment", "stated", _NOISY),
        partial(witness, "local-second-moment", "corrected", _NOISY),
        partial(follows, "local-second-moment"),
    ),
)
_DRIFT: Final = Entry(
    label="lemma.hbhb",
    line=1094,
    kind="lemma",
    says="η ≤ 2P/(√6LK√(d + P + 4)): χ_r ≤ (6‖∇f‖² + 3σ_G²)K³(d + P + 4)η²/P + 2K³(d + 4)η²/P σ² + μ² terms",
    verdict="false",
    why="The noise is that of eq.lemma.zo_m2; and the condition lets η grow with √P, so that |1 − ηL| is above 1 and "
    "local steps diverge.",
    fix="η ≤ 1/(9L(K + 2(ρ − 1))): χ_r ≤ (9/4)η²K(K − 1){(K + 2(ρ − 1))(‖∇f‖² + σ_G²) + ρσ² + μ²L²(Kd + d + s₆/(4P))}",
    checks=(
        partial(witness, "local-drift", "stated", replace(_NOISY, K=2)),
        partial(witness, "local-drift", "stated", Setting(d=1, L=1.0, K=5, P=1000), 1.0),
        partial(witness, "local-drift", "corrected", replace(_NOISY, K=2)),
        partial(witness, "local-drift", "corrected", Setting(d=1, L=1.0, K=5, P=1000), 1.0),
        partial(follows, "local-drift"),
    ),
)
_COROLLARY: Final = Entry(
    label="coro-1",
    line=418,
    kind="corollary",
    says="μ ≤ 1/((d + 3)√(PKR)), η = O(√(mP/(dRK))): the rate is O(√(d/(mPKR))) for large R",
    verdict="false",
    why="The noise does not fall with P (the.1), so the left side over the rate grows like P. Even from the printed "
    "theorem the constant hides 72LKP/d, so it needs KP of order d; η is admissible only from "
    "R = m³KL²(d + P + 4)²/(4Pd) on; and μ has the unit of x, which 1/((d + 3)√(PKR)) lacks.",
    fix="1/η = 9L(K + 2(ρ − 1)) + √(2LKRN/(Dm)), N = ρσ² + (K + 2(ρ − 1))φσ_G²: "
    "O(√(DLN/(mKR)) + DL(K + 2(ρ − 1))/(KR)), of the printed order where P ≤ d and K ≤ d/P",
    checks=(
        _rate_fails,
        _rate_of_dissimilarity,
        _rounds_needed,
        partial(wrong_unit, "printed", printed="1/((d + 3)*sqrt(P*K*R))", mu="mu"),
        partial(witness, "corollary-1", "corrected", Setting(d=1, L=1.0, P=16, R=100 * 16, sigma=1.0), 1.0),
        partial(witness, "corollary-1", "corrected", Setting(d=1, L=1.0, P=1024, R=100 * 1024, sigma=1.0), 1.0),
    ),
)


def _inherits(label: str, line: int, says: str, key: str, *checks: Callable[[], Evidence], fix: str = "") -> Entry:
    """A display whose step is right and whose content is false, with the terms of ``PRINTED[key]``."""
    return Entry(
        label=label,
        line=line,
        kind="equation",
        says=says,
        verdict="false",
        why="The algebra of this step is right; the noise that it starts from is not (lemma.pp.v2).",
        fix=fix or "the corrected Theorem 1 has its own chain (docs/theory.md)",
        checks=(*checks, partial(_noise_after_one_round, key, _MANY)),
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
        verdict="correct",
        why="As a definition; it is asked of too few functions (assumption.lip).",
        checks=(partial(one_unit, left="a", right="L*delta"),),
    ),
    _THEOREM,
    replace(_THEOREM, label="eq.theorem.1", line=406, kind="equation"),
    Entry(
        label="line-412",
        line=412,
        kind="remark",
        says="the fourth term, of the finite differences, is often negligible since μ is typically very small",
        verdict="does not follow",
        why="It is 2μ²L²(d + 3)³: a small μ does not make it small at the dimensions of the paper.",
        fix="negligible for μ far below √(2D/(KRη))/(L(d + 3)^{3/2})",
        checks=(_negligible, partial(one_unit, mu="mu", fix="sqrt(2*D/(K*R*eta))/(L*(d + 3)**(3/2))")),
    ),
    _COROLLARY,
    Entry(
        label="line-423",
        line=423,
        kind="remark",
        says="K and P in the denominator of the rate mean a linear speed-up; more P allow a larger η, more K a smaller",
        verdict="does not follow",
        why="The rate has dropped 72KLη/m σ_G², which at its η is 72LKP/d times it: K and P speed up only while KP is "
        "below d, and P not beyond d for the noise. P averages directions, not clients, who share them.",
        fix="speed-up in K up to K ~ d/P, in P up to P ~ d; η ~ 1/(L(K + 2(d + 1)/P))",
        checks=(_rate_of_dissimilarity, _rate_fails, _monotone),
    ),
    Entry(
        label="line-429",
        line=429,
        kind="claim",
        says="the convergence rate of the zeroth-order method depends on the model's dimension",
        verdict="correct",
        why="Without an assumption on the Hessian: for f = ‖x‖²/2 the exact left side grows like ρ.",
        checks=(_dimension_matters,),
    ),
    Entry(
        label="line-1029",
        line=1029,
        kind="equation",
        says="G_{i,r}^k = (1/P) Σ_p g_{i,r,p}^k z_{r,p}^k, one mini-batch ξ_{i,r}^k for all p",
        verdict="correct",
        checks=(
            partial(_identity, _zero_mean, "E(1/M)ΣΣG = E(1/M)ΣΣ∇f_i^μ(x_i^k)"),
            partial(one_unit, g="a", G="L*mu"),
        ),
    ),
    _VARIANCE,
    replace(_VARIANCE, label="eq.lemma.zo_var", line=1035, kind="equation"),
    Entry(
        label="eq.lemma.avg_rv",
        line=1042,
        kind="equation",
        says="E‖(1/P)Σy_p − ȳ‖² = (1/P²) Σ E‖y_p − ȳ‖² for independent y_p of mean ȳ",
        verdict="correct",
        why="It is used where it does not apply (line-1050).",
        checks=(_mean_of_three,),
    ),
    Entry(
        label="line-1046",
        line=1046,
        kind="equation",
        says="E_r‖G_{i,r,p}^k − ∇f_i^μ‖² ≤ 2(d + 4)‖∇f_i(x; ξ)‖² + ½μ²L²(d + 6)³",
        verdict="typo",
        why="The left side is a mean over ξ, the right side one draw of it." + _SMOOTH,
        fix="E_r‖G_{i,r,p}^k − ∇f_i^μ‖² ≤ 2(d + 4) E_r‖∇f_i(x; ξ)‖² + ½μ²L²(d + 6)³",
        checks=(partial(_one_draw, averaged=False), partial(_one_draw, averaged=True), partial(follows, "line-1046")),
    ),
    Entry(
        label="line-1050",
        line=1050,
        kind="equation",
        says="E‖G − ∇f_i^μ‖² ≤ (2(d + 4)/P) E‖∇f_i(x; ξ)‖² + μ²L²(d + 6)³/(2P)",
        verdict="false",
        why=_MINIBATCH,
        fix="E‖G − ∇f_i^μ‖² ≤ 2(ρ − 1)‖∇f_i‖² + (2ρ − 1)σ² + μ²L²s₆/(2P)",
        checks=(
            partial(witness, "variance", "stated", _NOISY),
            _total_variance,
            partial(follows, "line-1050"),
        ),
    ),
    Entry(
        label="line-1056",
        line=1056,
        kind="equation",
        says="E‖∇f_i(x_i^k)‖² ≤ 3L²E‖x_i^k − x_r‖² + 3σ_G² + 3‖∇f(x_r)‖²",
        verdict="correct",
        why="Through ∇f(x_i^k) in place of ∇f_i(x_r) it needs f alone smooth.",
        checks=(partial(_fixed_step, "three"), partial(follows, "line-1056"), _rerouted),
    ),
    Entry(
        label="line-1064",
        line=1064,
        kind="equation",
        says="plugging back: eq.lemma.zo_var",
        verdict="false",
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
        verdict="correct",
        why="Not by Jensen's inequality, as said: G has the mean ∇f_i^μ given x_i^k.",
        checks=(partial(_identity, _split_moment, "E‖G‖² = E‖G − ∇f^μ‖² + E‖∇f^μ‖²"),),
    ),
    Entry(
        label="line-1085",
        line=1085,
        kind="equation",
        says="E‖∇f_i^μ(x_i^k)‖² ≤ 6L²E‖x_i^k − x_r‖² + 6σ_G² + 6‖∇f(x_r)‖² + ½μ²L²(d + 3)³",
        verdict="correct",
        checks=(partial(_fixed_step, "smoothed"), partial(follows, "line-1085")),
    ),
    _DRIFT,
    replace(_DRIFT, label="line-1095", line=1095, kind="equation"),
    Entry(
        label="line-1100",
        line=1100,
        kind="claim",
        says="x_{i,r}^k − x_r = η Σ_{τ=1}^k G_{i,r}^τ",
        verdict="typo",
        why="The sign is minus, and x_{i,r}^k comes before the k-th step: τ < k.",
        fix="x_{i,r}^k − x_r = −η Σ_{τ=1}^{k−1} G_{i,r}^τ",
        checks=(_walk_range,),
    ),
    Entry(
        label="line-1101",
        line=1101,
        kind="equation",
        says="χ_r = (η²/M) ΣΣ E‖Σ_{τ≤k} G^τ‖² ≤ (η²/M) ΣΣΣ_{τ≤k} k E‖G^τ‖²",
        verdict="typo",
        why="As in line-1100, τ < k is meant.",
        fix="χ_r = (η²/M) ΣΣ E‖Σ_{τ<k} G^τ‖² ≤ (η²/M) ΣΣΣ_{τ<k} (k − 1) E‖G^τ‖²",
        checks=(_walk_range, partial(_identity, _walk_exact, "χ_r = η² (1/M) Σ_i E‖G_i^1‖² for K = 2")),
    ),
    Entry(
        label="line-1101.2",
        line=1101,
        kind="equation",
        says="Σ_k Σ_{τ≤k} k X_τ ≤ (K²/2) Σ_k X_k",
        verdict="does not follow",
        why="The coefficient of X_1 is K(K + 1)/2; for K = 1 the step is 1 ≤ ½. With the range that the algorithm has, "
        "it is K(K − 1)/2, and the conclusion holds. E_r is missing in the last line.",
        fix="Σ_k Σ_{τ<k} (k − 1) X_τ ≤ (K(K − 1)/2) Σ_k X_k",
        checks=(_one_local_step, _sum_of_ranges, _sum_of_right_ranges, partial(_fixed_step, "walk")),
    ),
    Entry(
        label="line-1107",
        line=1107,
        kind="equation",
        says="eq.lemma.zo_m2 substituted in χ_r ≤ (K²η²/2M) ΣΣ E‖G‖²",
        verdict="false",
        why="The substitution is right; eq.lemma.zo_m2 is not.",
        fix=_DRIFT.fix,
        checks=(_substituted_drift, *_DRIFT.checks[2:4]),
    ),
    Entry(
        label="line-1112",
        line=1112,
        kind="equation",
        says="(1 − 6L²K²(d + P + 4)η²/(2P)) χ_r ≤ 3K³(d + P + 4)η²/P ‖∇f‖² + 3K³(d + P + 4)η²/(2P) σ_G² + …",
        verdict="does not follow",
        why="Substitution gives 3K³(d + P + 4)η²/P for σ_G², twice the print; and half the printed (d + 6)³ term, "
        "which is safe. The noise is that of eq.lemma.zo_m2.",
        fix="3K³(d + P + 4)η²/P σ_G², μ²L²K³(d + 6)³η²/(4P)",
        checks=(
            partial(follows, "line-1112", "dissimilarity", "smoothing"),
            partial(slips, "line-1112", "dissimilarity", "1/2"),
            _spare_smoothing,
            _substituted_drift,
        ),
    ),
    Entry(
        label="line-1119",
        line=1119,
        kind="claim",
        says="for η ≤ 2P/(√6LK√(d + P + 4)) the coefficient of χ_r is larger than ½",
        verdict="false",
        why="It is 1 − 2P there, at most −1: √P is meant for 2P.",
        fix="η ≤ √P/(√6LK√(d + P + 4)), where it is at least ½; the theorem's conditions do not imply that for K = 1",
        checks=(
            partial(_left_coefficient, "2*P/(sqrt(6)*L*K*sqrt(d + P + 4))", "1 - 2*P"),
            partial(_left_coefficient, "sqrt(P)/(sqrt(6)*L*K*sqrt(d + P + 4))", "1/2"),
            _condition_implied,
            _mended_condition_not_implied,
        ),
    ),
    replace(_THEOREM, label="line-1123", line=1123),
    replace(_THEOREM, label="eq.theorem.1.restate", line=1125, kind="equation"),
    Entry(
        label="line-1135",
        line=1135,
        kind="equation",
        says="f(x_{r+1}) ≤ f(x_r) − η⟨∇f(x_r), (1/m)ΣΣG⟩ + (η²L/2)‖(1/m)ΣΣG‖²",
        verdict="correct",
        checks=(partial(_fixed_step, "descent"),),
    ),
    Entry(
        label="line-1142",
        line=1142,
        kind="equation",
        says="E_r f(x_{r+1}) ≤ f(x_r) + A_1 + A_2",
        verdict="correct",
        checks=(partial(_fixed_step, "descent"),),
    ),
    Entry(
        label="line-1147",
        line=1147,
        kind="claim",
        says="E (1/M) ΣΣ (G_{i,r}^k − ∇f_i^μ(x_{i,r}^k)) = 0",
        verdict="correct",
        checks=(partial(_identity, _zero_mean, "E(1/M)ΣΣG = E(1/M)ΣΣ∇f_i^μ(x_i^k)"),),
    ),
    Entry(
        label="eq.ybc",
        line=1148,
        kind="equation",
        says="A_1 = −Kη E⟨∇f(x_r), (1/MK) ΣΣ ∇f_i^μ(x_i^k)⟩",
        verdict="correct",
        checks=(
            partial(_identity, _a1_smoothed, "A_1, clients without replacement"),
            partial(_identity, _a1_smoothed, "A_1, clients with replacement", replacement=True),
        ),
    ),
    Entry(
        label="line-1152",
        line=1152,
        kind="equation",
        says="A_1 ≤ −½Kη‖∇f‖² − ½Kη E‖(1/MK)ΣΣ∇f_i^μ‖² + ¼μ²KL²(d + 3)³η + L²ηχ_r",
        verdict="correct",
        why="Without the second Jensen: ½ηL²(χ_r + Kμ²d)." + _SMOOTH,
        checks=(
            partial(_identity, _polarised, "A_1 by polarisation"),
            partial(_fixed_step, "jensen"),
            partial(_fixed_step, "smoothness"),
            partial(follows, "line-1152"),
        ),
    ),
    Entry(
        label="line-1166",
        line=1166,
        kind="equation",
        says="A_2 ≤ Lη²E‖(1/m)ΣΣ[G − ∇f_i^μ]‖² + Lη²E‖(1/m)ΣΣ∇f_i^μ‖²",
        verdict="correct",
        checks=(partial(_fixed_step, "a2"),),
    ),
    Entry(
        label="line-1166.2",
        line=1166,
        kind="equation",
        says="Lη²E‖(1/m)ΣΣ[G − ∇f_i^μ]‖² = (Lη²/(mM)) ΣΣE‖G − ∇f_i^μ‖²",
        verdict="false",
        why="All clients of a step share its directions, so their errors are not independent: with equal clients they "
        "are equal, and the left side is m times the right one. Between steps it is right.",
        fix="E‖(1/m)Σ_i[G_i − ∇f_i^μ]‖² ≤ 2(ρ − 1)(E‖h̄‖² + σ²/m) + σ²/m + μ²L²s₆/(2P), h̄ = (1/m)Σ∇f_i(x_i^k)",
        checks=(partial(_identical_clients, "independence"), _a2_not_independent, _shared_directions, _shared_bound),
    ),
    Entry(
        label="eq.hh",
        line=1166,
        kind="equation",
        says="A_2 ≤ (6L³(d + 4)η²/(mP))χ_r + (KLη²/m)[6(d + 4)/P (‖∇f‖² + σ_G²) + 2(d + 4)/P σ² + …] + A_3",
        verdict="false",
        why="Neither does the part of ‖∇f‖² fall with m (line-1166.2), nor the noise with P (lemma.pp.v2).",
        fix="A_2 ≤ Lη²Σ_k{2(ρ − 1)E‖h̄^k‖² + (2ρ − 1)σ²/m + μ²L²s₆/(2P)} + A_3",
        checks=(
            partial(_identical_clients, "conclusion"),
            partial(_noise_after_one_round, "eq.hh", _MANY),
            partial(follows, "eq.hh"),
            _shared_bound,
        ),
    ),
    Entry(
        label="line-1177",
        line=1177,
        kind="equation",
        says="A_3 = Lη²E‖(1/M)ΣΣ∇f_i^μ‖² + Lη²A_4",
        verdict="correct",
        checks=(
            partial(_identity, _a3_split, "A_3, clients without replacement"),
            partial(_identity, _a3_split, "A_3, clients with replacement", replacement=True),
        ),
    ),
    Entry(
        label="eq.iffew.sio",
        line=1182,
        kind="equation",
        says="A_4 ≤ (3/2)μ²K²L²(d + 3)³ + A_5",
        verdict="correct",
        why="A detour: A_4 is a variance over clients, φ/m of that over one." + _SMOOTH,
        checks=(partial(_fixed_step, "a4"), partial(_fixed_step, "a4 bias"), partial(follows, "eq.iffew.sio")),
    ),
    Entry(
        label="line-1191",
        line=1191,
        kind="equation",
        says="A_5 ≤ 18KL²χ_r + (9K²/m)σ_G²",
        verdict="correct",
        why="(a), (b) and (d); for (c) see line-1191.2." + _SMOOTH,
        checks=(partial(_fixed_step, "a5"), partial(follows, "line-1191")),
    ),
    Entry(
        label="line-1191.2",
        line=1191,
        kind="equation",
        says="(c): E‖(1/m)Σ_{C_r}[∇f_i(x_r) − ∇f(x_r)]‖² = (1/m²) E Σ_{C_r}‖∇f_i(x_r) − ∇f(x_r)‖²",
        verdict="typo",
        why="An equality only for clients drawn with replacement; the algorithm draws a set, which gives "
        "φ = (M − m)/(M − 1) of it, 0 for m = M. The text names ∇f_i(x_r) − ∇f_i(x_i^k); ∇f_i(x_r) − ∇f(x_r) is meant.",
        fix="… ≤ …, or = φ/m of the mean over all clients",
        checks=(
            _a5_not_equal,
            partial(_identity, _a5_clients, _A5_C, replacement=True),
            partial(_identity, _a5_clients_phi, "(c) with φ = ½, 2 of 3 clients without replacement"),
        ),
    ),
    Entry(
        label="line-1204",
        line=1204,
        kind="equation",
        says="A_3 ≤ Lη²E‖(1/M)ΣΣ∇f_i^μ‖² + (3/2)μ²K²L³(d + 3)³η² + 18KL³η²χ_r + 9K²Lη²/m σ_G²",
        verdict="correct",
        why=_SMOOTH.strip(),
        checks=(partial(follows, "line-1204"), partial(_fixed_step, "a3")),
    ),
    _inherits("line-1209", 1209, "A_2 with A_3 put back and grouped", "line-1209", partial(follows, "line-1209")),
    _inherits("eq.vb", 1219, "E f(x_{r+1}) ≤ f(x_r) + the bounds of A_1 and A_2", "eq.vb", partial(follows, "eq.vb")),
    _inherits(
        "eq.asd",
        1219,
        "the same without ‖(1/MK)ΣΣ∇f_i^μ‖²",
        "eq.asd",
        partial(follows, "eq.asd"),
        _cancels,
    ),
    Entry(
        label="line-1234",
        line=1234,
        kind="claim",
        says="with Lemma hbhb and the four conditions on η, eq.asd simplifies to line-1235",
        verdict="does not follow",
        why="Each condition is used up before χ_r is bounded: η ≤ mP/(24L(d + 4)) by ½ → ¼, the fourth by the μ terms "
        "of eq.asd alone, 1/(mK²L) by the noise in L²ηχ_r; nothing is left for the rest. Needed/printed is up to 7.8 "
        "for ‖∇f‖², 2.6 for σ², 1.6 for σ_G², 1.4 for μ².",
        fix="with every condition divided by 3 it does (given the lemma as printed)",
        checks=tuple(
            partial(check, name)
            for name in ("gradient", "dissimilarity", "noise", "smoothing")
            for check in (_too_little_room, _room)
        ),
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
        checks=(*_THEOREM.checks, partial(follows, "theorem-1")),
    ),
)
