"""Evidence on Theorem 1 and its proof: exact witnesses, searches over rounds and constants."""
# "line-N" is the statement on line N of the paper's LaTeX source; @supports says that what is found speaks for it.

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import sympy as sp
from scipy import stats

from theory.bounds import statement
from theory.findings.corrections import MENDED
from theory.findings.decorators import mends, refutes, supports
from theory.findings.evidence.one_round import OneRound
from theory.findings.evidence.proof_one import DERIVED, PRINTED, plus, printed, slips, times
from theory.findings.evidence.smoothing import norm_moment
from theory.findings.finding import Evidence, by_role
from theory.findings.instruments import (
    Axis,
    Worst,
    agree,
    at_most,
    beyond,
    breaks,
    equal,
    everywhere,
    exceeds,
    keeps,
    linear,
    nearly,
    over,
    search,
    whole,
    within,
)
from theory.notation.formula import value_of
from theory.notation.numbers import down, exactly
from theory.notation.setting import Setting
from theory.notation.symbols import K, a, delta, eta
from theory.problems.quadratic import Quadratic, expected
from theory.problems.spectrum import Spectrum
from theory.problems.waves import Waves
from theory.statements.statement import Variant

# Problems in one dimension, solved exactly by theory.problems.quadratic: f(x; ξ) = x²/2 − ξx, L = 1, E ξ² = σ².


def line(setting: Setting, start: float = 0.0) -> Quadratic:
    """The problem with this setting's σ, from x_0."""
    return Quadratic.of(Spectrum((1.0,), (1,)), D=start**2 / 2, sigma=setting.sigma)


def at_largest(name: str, variant: Variant, setting: Setting, share: float = 1.0) -> Setting:
    """The setting at (a share of) the largest η of a statement that has conditions on it."""
    bound = statement(name, variant)
    return replace(setting, eta=share * bound.step_sizes(setting).largest) if bound.eta else setting


def witness(name: str, variant: Variant, constants: Mapping[str, Any], start: float = 0.0) -> Evidence:
    """That the printed bound is broken, or the corrected one kept, by ``line`` at the largest η of 4 digits it allows.

    So whoever types in what is printed has this instance. A bound of one η alone is at that, to 12 digits.
    """
    setting = Setting(d=1, L=1.0, **constants)
    problem = line(setting, start)
    here = at_largest(name, variant, replace(setting, D=problem.D))
    if here.eta is not None:
        here = replace(here, eta=float(down(here.eta, 4 if statement(name, variant).with_eta else 12)))
    left = statement(name).left.exact(problem, here)
    names = {"σ": here.sigma, "P": here.P, "K": here.K, "R": here.R, "η": here.eta}
    constants_told = ", ".join(f"{symbol} = {exactly(value)}" for symbol, value in names.items() if value)
    judged = breaks if variant == "stated" else keeps
    evidence = judged(name, left.value, here, f"f = x²/2 − ξx from {start:g}, {constants_told}", variant, **left.point)
    return replace(evidence, numbers={**evidence.numbers, "P": here.P})


def noise_after_one_round(key: str) -> Evidence:
    """E f(x_1) from x_0 = x*, one client, K = 1, against the display's right side; μ = 0."""
    here = at_largest("theorem-1", "stated", Setting(d=1, L=1.0, P=1000, R=100, sigma=1.0))
    f = float(expected(line(here), here).f[1])
    values = {**here.values, "a": 0.0, "delta": 0.0, "G": 0.0}
    bound = math.fsum(value_of(term, values) for term in PRINTED[key].values())
    return exceeds(f, bound, f"f = x²/2 − ξx from x*, σ = 1, P = {here.P}, K = m = 1: E f(x_1)")


# Searches over a round of three clients, whose two sides are finite sums.

_TURN: Final = linear(-math.pi, math.pi)


@over(effort=8, x=_TURN, mu=Axis(0.02, 1.5), eta=Axis(0.01, 3.0), theta=_TURN, b=linear(-2.0, 2.0))
def searched(name: str, *, x: float, mu: float, eta: float, theta: float, b: float) -> float:
    """The worst left/right of a display over rounds, d = P = L = 1, K = 2, 2 of 3 clients."""
    r = OneRound(mu=mu, eta=eta, x=x, phases=(0.0, theta, 2.1), slopes=(b, -0.4, 0.2))
    left, right = corrected_sides(name, r) if name.startswith("corrected") else printed_sides(name, r)
    return left / right if right > 0 else math.nan


def fixed_step(name: str) -> Evidence:
    """A display holds on all rounds that a search tries."""
    return within(searched(name), f"{name}, rounds of three clients, K = 2")


def identity(name: str, *, replacement: bool = False) -> Evidence:
    """The two sides of an identity at one round."""
    one_round = OneRound(mu=0.6, eta=0.7, x=0.4, replacement=replacement)
    return agree(*printed_sides(name, one_round), f"three clients, K = 2, μ = 0.6, η = 0.7: {name}")


def printed_sides(name: str, r: OneRound) -> tuple[float, float]:
    """The two sides of a display of the paper, or of a step between two, as expectations over a round."""
    square = 16 * r.mu**2  # ¼μ²L²(d + 3)³, the square of eq.as, d = L = 1
    match name:
        # Identities.
        case "A_1 by polarisation":  # −⟨u, v⟩ = ½(‖u − v‖² − ‖u‖² − ‖v‖²) of line-1152
            squares = -(r.a**2) - r.mean(r.smoothed_mean**2) + r.mean((r.smoothed_mean - r.a) ** 2)
            return r.A_1, 0.5 * r.K * r.eta * squares
        case "A_1, clients without replacement" | "A_1, clients with replacement":  # eq.ybc
            return r.A_1, -r.K * r.eta * r.a * r.mean(r.smoothed_mean)
        case "E(1/M)ΣΣG = E(1/M)ΣΣ∇f_i^μ(x_i^k)":
            return r.total(r.G), r.total(r.smooth)
        case "E‖G‖² = E‖G − ∇f^μ‖² + E‖∇f^μ‖²":  # line-1080, summed over i and k
            return r.total(r.G**2), r.total((r.G - r.smooth) ** 2) + r.total(r.smooth**2)
        case "A_3, clients without replacement" | "A_3, clients with replacement":  # line-1177, without Lη²
            return r.sampled_square(r.smooth), r.full_square(r.smooth) + r.centred(r.smooth)
        case "(c), 2 of 3 clients with replacement":
            return r.mean_of_clients
        case "(c) with φ = ½, 2 of 3 clients without replacement":
            left, right = r.mean_of_clients
            return left, MENDED["line-1191.2"].value({"M": r.M, "m": r.m}) * right
        case "χ_r = η² (1/M) Σ_i E‖G_i^1‖² for K = 2":  # line-1101 with τ < k
            return r.drift, r.eta**2 * r.mean((r.G[:, 0] ** 2).mean(axis=0))
        # Inequalities.
        case "E f(x_{r+1}) − f(x_r) − A_1 ≤ A_2":
            return abs(r.rise - r.A_1), 0.5 * r.L * r.eta**2 * r.sampled_square(r.G)
        case "line-1152, Jensen" | "line-1152, smoothness":  # ½Kη E‖mean − ∇f(x_r)‖², its middle and its last bound
            left = 0.5 * r.K * r.eta * r.mean((r.smoothed_mean - r.a) ** 2)
            if name == "line-1152, smoothness":
                return left, r.K * r.eta * square + r.eta * r.drift
            return left, 0.5 * r.eta * r.total((r.smooth - r.at_start) ** 2)
        case "line-1166, Jensen":
            return 0.5 * r.sampled_square(r.G), r.sampled_square(r.G - r.smooth) + r.sampled_square(r.smooth)
        case "line-1182 (a)":
            bias = r.smooth - r.plain
            return r.centred(r.smooth), 3 * (r.sampled_square(bias) + r.centred(r.plain) + r.full_square(bias))
        case "line-1182 (b)":
            bias = r.smooth - r.plain
            return 3 * (r.sampled_square(bias) + r.full_square(bias)), 6 * r.K**2 * square
        case "line-1191" | "line-1204":  # the latter is A_3 without Lη²
            right = 18 * r.K * r.drift + 9 * r.K**2 / r.m * r.dissimilarity
            if name == "line-1191":
                return 3 * r.centred(r.plain), right
            return r.sampled_square(r.smooth), r.full_square(r.smooth) + 6 * r.K**2 * square + right
        case "line-1056" | "line-1085":  # for the sum over i and k
            right = 3 * r.drift + 3 * r.K * (r.dissimilarity + r.a**2)
            if name == "line-1056":
                return r.total(r.plain**2), right
            return r.total(r.smooth**2), 2 * right + 2 * r.K * square
        case "line-1101, conclusion":  # χ_r and (K²η²/2) Σ_k (1/M) Σ_i E‖G_i^k‖²
            return r.drift, 0.5 * r.K**2 * r.eta**2 * r.total(r.G**2)
    raise KeyError(name)


def corrected_sides(name: str, r: OneRound) -> tuple[float, float]:
    """The same of the corrected proof in ``docs/theory.md``: ρ = 3, s₆ = 15, φ = ½, σ = 0."""
    if name in ("corrected proof, drift", "corrected proof, a round"):  # with η at most the corrected theorem's
        r = replace(r, eta=r.eta / 3 * statement("theorem-1").step_sizes(r.setting).largest)
    match name:
        case "corrected proof, A_1":
            left = r.A_1 + 0.5 * r.eta * r.K * (r.a**2 + r.mean(r.smoothed_mean**2))
            return left, 0.5 * r.eta * (r.drift + r.K * r.mu**2)
        case "corrected proof, drift":
            return r.drift, math.fsum(statement("local-drift").bound(r.setting, a=abs(r.a)))
        case "corrected proof, a round":  # ‖∇f(x_r)‖² + (4/(ηK))(E f(x_{r+1}) − f(x_r)), the terms but the first
            bound = statement("theorem-1").bound(replace(r.setting, D=0.0))
            return r.a**2 + 4 / (r.eta * r.K) * r.rise, math.fsum(bound)
    values = r.setting.values
    h = r.mean((r.over_sampled(r.plain) ** 2).sum(axis=1))  # E Σ_k ‖(1/m) Σ_C ∇f_i(x_i^k)‖²
    match name:
        case "corrected proof, ΣB":
            apart = 2 * r.K * r.drift + 2 * r.K**2 * (r.mu**2 + values["sigma_G"] ** 2)
            return r.sampled_square(r.smooth), r.full_square(r.smooth) + values["phi"] / r.m * apart
        case "corrected proof, N":
            remainder = r.K * r.mu**2 * values["s6"] / (2 * values["P"])
            return r.sampled_square(r.G - r.smooth), 2 * (values["rho"] - 1) * h + remainder
        case "corrected proof, mean gradient":
            return h, 2 * r.K * (r.a**2 + values["phi"] / r.m * values["sigma_G"] ** 2) + 2 * r.drift
        case "corrected line-1166.2":
            mended = MENDED["line-1166.2"]
            terms = {key: value_of(term, values) for key, term in mended.terms.items() if key != "gradient"}
            shared = value_of(mended["gradient"], values) * h
            return r.sampled_square(r.G - r.smooth), shared + r.K * terms["smoothing"]
    raise KeyError(name)


@refutes("line-1100", "line-1101", cause="step-index")
def walk_range() -> Evidence:
    """x_{i,r}^2 − x_r is −η G^1, not η(G^1 + G^2)."""
    r = OneRound(mu=0.6, eta=0.7, x=0.4)
    moved = r.points[:, 1] - r.x
    wrong = float(abs(moved - r.eta * r.G.sum(axis=1)).max())
    right = float(abs(moved + r.eta * r.G[:, 0]).max())
    says = f"x^2 − x_r: off η(G^1 + G^2) by up to {wrong:.3g}, off −ηG^1 by {right:.3g}"
    return Evidence("counter-example", wrong > 1e-3 and right < 1e-12, says)


# The printed dissimilarity of line-1112 is half of what the substitution gives.
refutes("line-1112", cause="conditions")(slips, "line-1112", "dissimilarity", sp.Rational(1, 2))


# From eq.asd to line-1235

_WHOLE: Final = {name: whole(1, high) for name, high in (("d", 1e4), ("P", 1e4), ("K", 100.0), ("m", 100.0))}


def simplification(terms: Sequence[str], share: float) -> Worst:
    """The worst needed/printed for these terms of line-1235, at a share of the largest admissible η."""
    pairs = []
    for name in terms:
        # What eq.asd with Lemma hbhb's bound on χ needs for the term, and what line-1235 has for it.
        asd, target = printed("eq.asd"), printed("line-1235")[name]
        derived = plus(asd, times(asd["drift"] / delta**2, printed("local-drift")))[name]
        before = K * eta * a**2 / 2 if name == "gradient" else 0
        pairs.append((before + derived, before + target))

    def ratio(at: Mapping[str, float]) -> float:
        sizes: dict[str, Any] = {name: int(at[name]) for name in _WHOLE}
        here = at_largest("theorem-1", "stated", Setting(L=1.0, **sizes), share)
        values = {**here.values, "a": 1.0, "sigma": 1.0, "sigma_G": 1.0, "mu": 1.0}
        return max(value_of(left, values) / value_of(right, values) for left, right in pairs)

    return search(ratio, _WHOLE, effort=8)


def too_little_room(name: str) -> Evidence:
    """The printed conditions leave too little for this term."""
    return beyond(simplification([name], 1.0), f"{name} of line-1235, needed over printed")


@mends("line-1234")
def room() -> Evidence:
    """A share of them leaves enough for all."""
    share = 1 / 3  # with every printed condition on η divided by 3 the four terms fit
    terms = ("gradient", "dissimilarity", "noise", "smoothing")
    evidence = within(simplification(terms, share), "the same for all four, η three times smaller")
    return replace(evidence, numbers={**evidence.numbers, "room": share})


@mends("line-1119")
@everywhere("largest η of the theorem over that of hbhb's proof")
@over(effort=12, **_WHOLE)
def condition_implied(**sizes: Any) -> float:
    """The theorem's conditions imply the one that Lemma hbhb's proof needs, so that its slip does no harm there."""
    here = Setting(L=1.0, **sizes)
    return statement("theorem-1", "stated").step_sizes(here).largest / MENDED["line-1119"].value(here.values)


# Theorem 1 and Corollary 1


@mends("the.1")
@everywhere("what the proof needs over what the corrected theorem has")
@over(effort=25, K=whole(1, 1e3), q=Axis(1e-6, 1e6), w=Axis(1e-2, 1e9), share=Axis(1e-3, 1.0))
def chain(K: int, q: float, w: float, share: float) -> float:
    """The corrected theorem's terms from the steps of its proof in ``docs/theory.md``: needed/claimed, the largest.

    L = μ = σ = σ_G = φ = d = P = m = 1, as each term is in proportion to its own; q = ρ − 1, w = s₆/4.
    """
    drift, theorem = statement("local-drift"), statement("theorem-1")
    values = dict.fromkeys(("L", "mu", "sigma", "sigma_G", "phi", "d", "P", "m", "a", "R", "D"), 1.0)
    values |= {"K": K, "rho": 1 + q, "s6": 4 * w}
    values["eta"] = eta = share * value_of(theorem.eta["descent"], values)
    # χ ≤ per {(K + 2q)(a² + σ_G²) + (q + ½)σ² + μ²L²(Kd + w)}
    per = 2 * eta**2 * K * (K - 1) / (1 - 2 * eta**2 * (K - 1) * (K + 4 * q))
    # E f(x_{r+1}) − f(x_r) over ηK/4: coefficient of χ, then each term
    chi = 2 / K + 4 * eta * (2 + 4 * q / K)
    needed = {
        "start": value_of(theorem.terms["start"], values),
        "dissimilarity": 4 * eta * (2 * K + 4 * q),
        "noise": 4 * eta * (1 + 2 * q),
        "drift": chi * per * (K + 2 * q + q + 0.5),
        "smoothing": 2 + 8 * eta * K + chi * per * K + (8 * eta + chi * per) * w,
    }
    shares: list[float] = [need / value_of(theorem.terms[name], values) for name, need in needed.items() if need]
    shares.append(16 * q * eta + chi * per * (K + 2 * q))  # of a², where 2 − 1 are left
    if K > 1:
        braces = {"gradient": K + 2 * q, "dissimilarity": K + 2 * q, "noise": q + 0.5, "smoothing": K + w}
        shares += [per * brace / value_of(drift.terms[name], values) for name, brace in braces.items()]
    return max(shares)


def threshold(d: int) -> Evidence:
    """For f = ‖x‖²/2 − ⟨ξ, x⟩ from x*, R = 3000: the printed bound is exceeded for P = 30(d + 4)."""
    problem = Quadratic.of(Spectrum.flat(d, 1.0), D=0.0, sigma=1.0)
    here = at_largest("theorem-1", "stated", problem.setting(P=30 * (d + 4), R=3000))
    left = statement("theorem-1").left.exact(problem, here).value
    return breaks("theorem-1", left, here, f"f = ‖x‖²/2 − ⟨ξ, x⟩ from x*, d = {d}, P = 30(d + 4), R = 3000")


@mends("the.1")
@everywhere("K = 1, P ≤ 7d + 31: proved over printed, term by term")
@over(effort=20, d=whole(1, 1e6), m=whole(1, 100), share=Axis(1e-6, 1), eta=Axis(1e-3, 1))
def still_true(d: int, m: int, share: float, eta: float) -> float:
    """K = 1, P ≤ 7d + 31: every term of the proved bound is within the printed one, at every η that both admit."""
    proved, stated = statement("theorem-1-single"), statement("theorem-1", "stated")
    P = max(1, int(share * (7 * d + 31)))
    here = Setting(d=d, L=1.0, m=m, P=P, mu=1.0, sigma=1.0, sigma_G=1.0, replacement=True)
    largest = min(each.step_sizes(here).largest for each in (proved, stated))
    values = {**here.values, "eta": largest * eta}
    return max(value_of(term, values) / value_of(stated.terms[name], values) for name, term in proved.terms.items())


def rate_fails(rounds: int) -> Evidence:
    """Exact left side over the stated √(d/(mPKR)) at η = √(mP/(dRK)), which grows like P; d = m = K = L = σ = 1, D = 0.

    ``rounds`` is R/P; ``given.toml`` says which entries rest on it.
    """
    stated, ratios = statement("corollary-1", "stated"), []
    for P in (16, 1024):
        here = Setting(d=1, L=1.0, P=P, R=rounds * P, sigma=1.0, D=0.0, eta=rounds**-0.5)
        assert stated.admits(here)
        left = statement("corollary-1").left.exact(line(here), here).value
        ratios.append(left / math.fsum(stated.bound(here)))
    what = f"f = x²/2 − ξx from x*, σ = 1, R = {rounds}P: left/√(d/(mPKR)) at P = 1024 against 30 times that at 16"
    return exceeds(ratios[1], 30 * ratios[0], what)


# Assumptions


def held_up(slope: float = 0.487) -> Evidence:
    """Theorem 1 where f alone is smooth: clients f ± φ with φ' = ±1 beside a kink at 49 hold x where f' = slope.

    f is Huber's loss, f' = Lx up to the slope; φ = |x − 49|, its kink rounded off over 10⁻⁶ below 49, cancels in f. One
    of two clients steps over the kink and turns round there: with w_1, w_2 means of P squares and μ → 0,

        x⁺ = x − ηw_1 p + ηw_2(1 − p)   if it does, p the slope,   x⁺ − 49 ≥ η(w_1 − w_2 p) − 10⁻⁶   if not.

    As (1 − ap)(1 + a(1 − p)) = 1 for a = (1 − 2p)/(p(1 − p)), E exp(−θ(x − 49)) does not grow in the first case at
    θ = aP/(2η). So x comes to 49 within R rounds with probability exp(−θ(x_0 − 49)) + R(second case) at most. |f'| is
    nowhere larger than p.
    """
    kink, start, rounded, p = 49.0, 50.0, 1e-6, slope
    here = Setting(d=1, L=0.01, m=2, M=2, K=2, P=2000, R=20_000, eta=0.1, sigma_G=1.0)
    here = replace(here, D=p**2 / (2 * here.L) + p * (start - p / here.L))
    assert here.eta is not None
    a = max(0.0, (1 - 2 * p) / (p * (1 - p)))
    theta = a * here.P / (2 * here.eta)
    alike = -here.P / 2 * (math.log1p(a) + math.log1p(-a * p)) + theta * rounded  # log E exp(−θη(w_1 − w_2 p))
    far = float(stats.chi2.sf((kink - p / here.L) / (here.eta * (1 + p)) * here.P, here.P))  # a step below slope/L
    lost = math.exp(-theta * (start - kink)) + here.R * (math.exp(alike) + 2 * far)
    what = f"clients f ± |x − 49|, P = 2000, K = 2, L = 0.01, η = 0.1; x is held up but for a chance of {lost:.1g}"
    return breaks("theorem-1", max(0.0, 1 - lost) * p**2, here, what)


@over(effort=15, x=linear(-3, 3), y=linear(-3, 3), s=Axis(0.1, 10), delta=Axis(1e-3, 1))
def _gradients_apart(rerouted: bool, *, x: float, y: float, s: float, delta: float) -> float:
    """Left over right side of ``through_f``'s inequality for f_i = cos x + s√(x² + δ²) at x and y.

    Rerouted, ∇f_i(y) goes by y → x in f, and client → f → client: ‖∇f_i(y)‖² ≤ 3‖y − x‖² + 3σ_G² + 3‖∇f(x)‖², as
    a square of three terms is at most 3 times the sum of their squares.
    """
    slopes = [-math.sin(v) + s * v / math.sqrt(v * v + delta**2) for v in (x, y)]
    if rerouted:
        return slopes[1] ** 2 / (3 * (y - x) ** 2 + 3 * s**2 + 3 * math.sin(x) ** 2)
    return (slopes[1] - slopes[0]) ** 2 / (y - x) ** 2 if abs(y - x) > 1e-3 else math.nan


def through_f(*, rerouted: bool) -> Evidence:
    """Clients cos x ± s(√(x² + δ²) − δ), f = cos, L = 1, σ_G = s: ‖∇f_i(y) − ∇f_i(x)‖² ≤ ‖y − x‖² fails.

    Rerouted through f, which alone is smooth, the display of the paper's line 1056 holds with the sum of three squares.
    """
    worst = _gradients_apart(rerouted)
    if rerouted:
        return within(worst, "line-1056 with f alone smooth")
    return beyond(worst, "‖∇f_i(y) − ∇f_i(x)‖² ≤ L²‖y − x‖² with f alone smooth")


@mends("line-1050")
@everywhere("variance on random waves, sharper bound")
@over(effort=4, n=whole(1, 6), noise=Axis(0.1, 10), seed=whole(1, 1000), P=whole(1, 1000), mu=Axis(1e-3, 10))
def total_variance(n: int, noise: float, seed: int, P: int, mu: float) -> float:
    """The fix of line-1050 on random waves of one client: P estimates independent given ξ, then σ² of ∇f^μ(x; ξ)."""
    problem = Waves.random(waves=3, n=n, noise=noise, seed=seed)
    here = problem.setting(P=P, mu=mu)
    left, values = statement("variance").left.exact(problem, here), here.values
    terms = {name: value_of(MENDED["line-1050"][name], values) for name in MENDED["line-1050"].terms}
    return left.value / (terms["gradient"] * left.point["a"] ** 2 + terms["noise"] + terms["smoothing"])


def variance_alone(key: str, term: str, share: float, **constants: float) -> Evidence:
    """Where one term of a mended variance stands alone, the truth reaches a share of it: equal clients that share z.

    f_i = ⟨g + ξ_i, x⟩ has (ρ − 1)‖g‖², with independent ξ_i of variance σ² for g = 0 ρσ²/m, and ‖x‖²/2 at 0 has
    ¼μ²L²E‖z‖⁶/P, as G = ½μ‖z‖²z there.
    """
    values = Setting(d=10, L=1.0, **constants).values  # type: ignore[arg-type]
    m, P, d, rho = (values[name] for name in ("m", "P", "d", "rho"))
    noise = rho * values["sigma"] ** 2 / m
    truth = {"gradient": rho - 1, "noise": noise, "smoothing": norm_moment(int(d), 6) / (4 * P)}
    what = f"{term} alone, d = 10, P = {P:g}: variance of the mean of {m:g} clients against the mended {key}"
    return nearly(truth[term], value_of(MENDED[key][term], {**values, "mu": 1.0}), what, share)


@mends("line-423")
@supports("line-424")
def monotone() -> Evidence:
    """The printed conditions at d = 28938, m = 10: larger for more P, smaller for more K."""
    theorem = statement("theorem-1", "stated")
    few, more = (theorem.step_sizes(Setting(d=28938, m=10, P=P, K=4, L=1.0)).largest for P in (5, 50))
    long = theorem.step_sizes(Setting(d=28938, m=10, P=5, K=40, L=1.0)).largest
    return Evidence(
        "arithmetic", long < few < more, f"η at P = 5, 50: {few:.3g}, {more:.3g}; at K = 40 for 4: {long:.3g}"
    )


for _term, _mended in MENDED["line-1112"].terms.items():
    mends("line-1112")(equal, DERIVED["line-1112"]()[_term], _mended, f"{_term} of line-1112, derived and mended")


@mends("line-1166.2", "eq.hh")
def shared_bound() -> Evidence:
    """The mended bound of line-1166.2 over rounds of three clients, ρ − 1 = 2, s₆ = 15, σ = 0."""
    return within(searched("corrected line-1166.2"), "the mended line-1166.2, rounds of three clients")


def one_draw(*, averaged: bool) -> Evidence:
    """f(x; ξ) = ξx, ξ = 0 or 2 by a fair coin, d = 1, μ → 0: E_z(z²ξ − 1)² at ξ = 0, or over both."""
    draws = (0.0, 2.0) if averaged else (0.0,)
    bound = PRINTED["line-1046"]["gradient"]
    left = math.fsum(norm_moment(1, 4) * xi**2 - 2 * xi + 1 for xi in draws) / len(draws)
    right = math.fsum(value_of(bound, {"d": 1.0, "a": xi}) for xi in draws) / len(draws)
    what = "f(x; ξ) = ξx, ξ ∈ {0, 2}: E‖G_p − ∇f^μ‖² " + ("with E over ξ on both sides" if averaged else "given ξ = 0")
    return (at_most if averaged else exceeds)(left, right, what)


@refutes("line-412", cause="smoothing-terms")
def negligible() -> Evidence:
    """2μ²L²(d + 3)³ with the experiments' μ = 10⁻³ and d = 1.3·10⁹, over L² · 1 unit of x squared."""
    term = statement("theorem-1", "stated").terms["smoothing"]
    reached, unit = (value_of(term, {"mu": mu, "L": 1.0, "d": 1.3e9}) for mu in (1e-3, 1.0))
    needed = math.sqrt(1 / unit)
    says = f"OPT-1.3B, μ = 10⁻³, L = 1: the fourth term is {reached:.2g}; it is below 1 for μ < {needed:.1g}"
    return Evidence("arithmetic", reached > 1e20, says, {"term": reached, "mu": needed})


# One problem at concrete numbers


def at_one(name: str) -> Evidence:
    """Two numbers of one problem that are equal, or of which the left is larger, or keeps a bound."""
    one_round = OneRound(mu=0.6, eta=0.7, x=0.4)
    # Two clients ±σ_G(√(‖x‖² + δ²) − δ), f = 0, x = 0: E‖G‖², L → 0, δ/μ = 0.01, P = 1. As g ≥ σ_G(‖z‖ − δ/μ), it is
    # at least σ_G² E(‖z‖ − 0.01)²‖z‖²; ∇f_i^μ(0) = 0.
    kinked = norm_moment(20, 4) - 2 * 0.01 * norm_moment(20, 3) + 0.01**2 * norm_moment(20, 2)
    match name:
        case "equal clients":  # f_i(x) = ⟨g, x⟩ for all i, K = P = 1, μ → 0, ‖g‖ = 1: A_2 = (L/2)η²ρ, A_3 = Lη²
            values = {**Setting(d=10, L=1.0, m=100, eta=1.0).values, "a": 1.0, "delta": 0.0}
            bound = math.fsum(value_of(term, values) for term in PRINTED["eq.hh"].values()) + 1.0
            return exceeds(0.5 * values["rho"], bound, "100 equal linear clients, d = 10, P = 1: A_2")
        case "rough":  # the variance of G for clients whose kinks cancel in f, against eq.lemma.zo_var with the L of f
            flat = Setting(d=20, L=1e-6, mu=1e-3, sigma_G=1.0)
            bound = math.fsum(statement("variance", "stated").bound(flat, a=0.0, delta=0.0))
            what = "f_i = ±(√(‖x‖² + δ²) − δ), f = 0, d = 20, P = 1: E‖G − ∇f_i^μ‖², eq.lemma.zo_var"
            return exceeds(kinked, bound, what)
        case "not rough":  # with L = 1/δ, which these clients have, the bound is kept: δ = 10⁻⁵
            here = Setting(d=20, L=1e5, mu=1e-3, sigma_G=1.0)
            return keeps("variance", kinked, here, "the same with L = 1/δ, their own", a=0.0, delta=0.0)
        case "substituted drift":  # χ against the noise term of line-1107 and line-1112
            here = Setting(d=1, L=1.0, K=2, P=100, sigma=1.0, eta=0.01)
            left = statement("local-drift").left.exact(line(here), here).value
            values = {**here.values, "delta": math.sqrt(left)}
            right = sum(value_of(PRINTED["line-1112"][name], values) for name in ("noise", "drift"))
            return exceeds(left, right, "f = x²/2 from x*, σ = 1, K = 2, P = 100, η = 0.01: χ")
        case "A_2 is not of independent clients":  # whose errors do not add like independent ones
            r = replace(one_round, phases=(0.0, 0.0, 0.0), scales=(1.0, 1.0, 1.0))
            what = "three clients of different slopes: E‖(1/m)ΣΣ[G − ∇f^μ]‖² against (1/mM)ΣΣE‖·‖²"
            return exceeds(r.sampled_square(r.G - r.smooth), r.total((r.G - r.smooth) ** 2) / r.m, what)
        case "Jensen doubles":  # E‖G‖² ≤ 2E‖G − ∇f_i^μ‖² + 2E‖∇f_i^μ‖², which Jensen's inequality gives, is no equality
            r = one_round
            left, right = r.total(r.G**2), 2 * r.total((r.G - r.smooth) ** 2) + 2 * r.total(r.smooth**2)
            return exceeds(right, left, "three clients, K = 2: Jensen's bound against ΣE‖G‖²")
        case "sums exchanged":  # Σ_k Σ_{τ≤k} kX_τ and Σ_τ (Σ_{k≥τ} k)X_τ, K = 4
            X = sp.symbols("X1:5")
            by_step = sum(k * X[tau - 1] for k in range(1, 5) for tau in range(1, k + 1))
            exchanged = sum(sum(range(tau, 5)) * X[tau - 1] for tau in range(1, 5))
            return equal(by_step, exchanged, "K = 4: both orders of the sums")
        case "(c) is not equal":
            left, right = one_round.mean_of_clients
            return exceeds(right, left, "(c), 2 of 3 clients without replacement: right side, left side")
        case "mean of three":  # both sides of eq.lemma.avg_rv by enumeration
            drawn, mean, P = (0, 1, 5), sp.Integer(2), 3
            squares = ((sp.Integer(sum(y)) / P - mean) ** 2 for y in product(drawn, repeat=P))
            right = P * sum((v - mean) ** 2 for v in drawn) / sp.Integer(3) / P**2
            return equal(sum(squares, sp.Integer(0)) / 27, right, "three independent values, uniform on {0, 1, 5}")
        case "dimension matters":  # to an isotropic quadratic
            average = {}
            for d in (10, 1000):
                problem = Quadratic.of(Spectrum.flat(d, 1.0), D=0.0, sigma=1.0)
                average[d] = expected(problem, problem.setting(eta=1e-5, R=10)).average
            what = "f = ‖x‖²/2, σ = 1, P = 1: left at d = 1000, 80 times that at 10"
            return exceeds(average[1000], 80 * average[10], what)
    raise KeyError(name)


supports("line-429")(by_role(at_one), "dimension matters")
