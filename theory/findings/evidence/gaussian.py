"""Theorem 2 for Gaussian directions and its proof (lines 1445-1481)."""
# "line-N" is the statement on line N of the paper's LaTeX source; @supports says that what is found speaks for it.

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np
import sympy as sp
from scipy import stats

from theory.bounds import statement
from theory.findings.corrections import MENDED
from theory.findings.decorators import mends, refutes
from theory.findings.evidence.designs import design
from theory.findings.finding import Evidence
from theory.findings.instruments import (
    Axis,
    agree,
    at_most,
    equal,
    everywhere,
    exceeds,
    linear,
    over,
    unlike,
    whole,
    within,
)
from theory.notation.setting import Setting, effective_factor
from theory.problems.quadratic import Quadratic, expected
from theory.problems.spectrum import Spectrum

STATED: Final = statement("theorem-2-gaussian", "stated")
CORRECTED: Final = statement("theorem-2-gaussian", "corrected")


# The theorem -----------------------------------------------------------------------------------------------------


@mends("line-1448")
@everywhere("exact quadratics against the corrected bound")
@over(
    effort=1,
    d=whole(2, 1e6),
    rank=linear(0.01, 0.99),
    P=whole(1, 1e4),
    m=whole(1, 100),
    idle=whole(1, 100),
    share=Axis(1e-3, 1),
    R=whole(1, 1e5),
    D=Axis(1e-6, 1e6),
    mu=Axis(1e-9, 1e3),
    sigma=Axis(1e-3, 1e3),
    sigma_G=Axis(1e-3, 1e3),
)
def quadratics(**at: Any) -> float:
    """Exact E‖∇f‖² of quadratics, which H dominates everywhere (no escape), against the corrected bound."""
    d, m, parts = at["d"], at["m"], (1.0, 1.0)
    problem = Quadratic.of(
        Spectrum.two_level(d, d ** at["rank"]),
        D=at["D"], sigma=at["sigma"], sigma_G=at["sigma_G"], start=parts, noise=parts, dissimilarity=parts,
    )  # fmt: skip
    setting = problem.setting(P=at["P"], m=m, M=m + at["idle"], R=at["R"], mu=at["mu"], G=0.0)
    setting = replace(setting, eta=at["share"] * CORRECTED.step_sizes(setting).largest)
    return expected(problem, setting).average / math.fsum(CORRECTED.bound(setting))


@mends("line-1466", "line-1470")
@everywhere("|g z| against z²G for f = √(1 + x²)")
@over(effort=10, x=linear(-10, 10), mu=Axis(1e-3, 1e2), z=linear(-5, 5))
def bounded_gradient(x: float, mu: float, z: float) -> float:
    """For f = √(1 + x²), G = 1 everywhere: |f(x + μz) − f(x)| |z|/μ ≤ z²G."""
    return abs(math.hypot(1, x + mu * z) - math.hypot(1, x)) / (mu * abs(z)) if z else 0.0


# The tail --------------------------------------------------------------------------------------------------------

# By label; Chernoff: min_t (1 − 2t)^{−n/2} e^{−2nt} = (2/e)^{n/2}
EXPONENTS: Final = {
    **{key: -math.log(MENDED[key].value({"d": 1.0, "P": 1.0})) for key in ("line-1474.2", "line-1474.3")},
    "stated": 1 / 16,
}

refutes("line-1474", cause="formula-slips")(
    unlike,
    round(float(stats.chi2.cdf(2, 1)), 6),
    round(float(stats.chi2.sf(2, 1)), 6),
    "m = d = P = 1: Pr[‖z‖² ≤ 2] against Pr[χ²_1 > 2]",
)


@over(effort=20, n=whole(1, 4000))
def _tail(exponent: float, *, n: int) -> float:
    return float(stats.chi2.sf(2 * n, n) * math.exp(exponent * n))


def tail(key: str) -> Evidence:
    exponent = EXPONENTS[key]
    return within(_tail(exponent), f"Pr[χ²_n ≥ 2n] against exp(−{exponent:.4g} n)")


def true_exponent(key: str) -> Evidence:
    exponent = EXPONENTS[key]
    n = 4000
    measured = -float(stats.chi2.logsf(2 * n, n)) / n
    says = f"−ln Pr[χ²_n ≥ 2n]/n = {measured:.5f} at n = {n}; (1 − ln 2)/2 = {exponent:.5f}, printed 1/16 = {1 / 16}"
    says += f", {16 * exponent:.2f} times less"
    numbers = {"found": measured, "exponent": exponent, "ratio": 16 * exponent}
    return Evidence("search", abs(measured - exponent) < 0.002, says, numbers)


# The escape ------------------------------------------------------------------------------------------------------


def escape_of(curvature: float) -> Evidence:
    """½η²⟨L I − H, E ∇̂f∇̂fᵀ 1(Aᶜ)⟩ over η²LG² of linear clients of slope G, d = P = 1, against the mended line-1478."""
    here = Setting(d=1, L=1.0, P=1, eta=1.0, G=1.0, kappa=1.0)
    mended = MENDED["line-1478"].value(here.values)  # the theorem has it times 2/η
    left = 0.5 * (1 - curvature) * 3 * float(stats.chi2.sf(2, 5))  # E z⁴ 1(z² ≥ 2) = 3 Pr[χ²_5 ≥ 2]
    judged = agree if curvature == 0 else exceeds
    return judged(
        left, mended, f"linear clients, d = P = 1, H = {curvature:g}·L: escape term/(η²LG²) against the mended"
    )


# Single problems -------------------------------------------------------------------------------------------------


def at_one(name: str) -> Evidence:
    """Two numbers of one problem, of which the left is larger, keeps a bound, or is the right one."""
    # f = Lx²/2 with gradient noise ±σ from x_0 = x*, d = P = m = 1, L = 10⁶, σ = 1, μ → 0.
    resting = Quadratic.of(Spectrum.flat(1, 1e6), D=0.0, sigma=1.0)
    match name:
        case "resting noise":
            # At η = 1/(4L). G² = max_r (|Lx_r| + σ)² is at most Σ_r (2L²x_r² + 2σ²) on average; in these units η²LG² is
            # small all the same.
            setting = resting.setting(eta=0.25e-6, R=1000, distribution="gaussian")
            gradient2 = expected(resting, setting).gradient2[1:]
            G = math.sqrt(float((2 * gradient2 + 2 * resting.sigma**2).sum()))
            bound = math.fsum(STATED.bound(replace(setting, G=G)))
            what = "f = Lx²/2, noise ±σ, D = 0, L = 10⁶, R = 1000: average against bound"
            return exceeds(float(gradient2.mean()), bound, what)
        case "resting noise, mended":
            setting = resting.setting(R=1000, distribution="gaussian", G=0.0)
            setting = replace(setting, eta=CORRECTED.step_sizes(setting).largest)
            left, bound = expected(resting, setting).average, math.fsum(CORRECTED.bound(setting))
            what = "the same at the largest corrected η: average against corrected bound without escape"
            return at_most(left, bound, what)
        case "fourth moment":  # E zᵀAz zᵀ… with d = P = κ = 1: E z⁴
            fourth = design("gaussian", 1).sandwich(np.array([[1]]))[0, 0]
            printed = effective_factor("sphere", d=1, P=1, kappa=1.0)
            return exceeds(float(fourth), printed, "d = P = κ = L = 1: E z⁴ against 1 + (κd + d − 2)/(P(d + 2))")
        case "always outside":  # at x_r = 0 the radius 2ηdG(x_r) is 0: every step with z ≠ 0 leaves the ball
            z = np.random.default_rng(0).standard_normal(1000)
            share = float(np.mean(np.abs(z**2 / 2 * z) > 0))
            what = "f = x²/2, x_r = 0, μ = 1: share of draws in Aᶜ against Pr[z² ≥ 2]"
            return exceeds(share, float(stats.chi2.sf(2, 1)), what)
        case "escape":
            # As x² times the density of χ²_n is n(n + 2) times that of χ²_{n+4}, so are the integrals from any t on.
            n, x, k = sp.symbols("n x k", positive=True)
            density = x ** (k / 2 - 1) * sp.exp(-x / 2) / (2 ** (k / 2) * sp.gamma(k / 2))  # of χ²_k
            ratio = sp.gammasimp(sp.powsimp(x**2 * density.subs(k, n) / density.subs(k, n + 4)))
            return equal(ratio, n * (n + 2), "x²·density of χ²_n as a multiple of that of χ²_{n+4}")
        case "vanishes":  # at the d of the smallest model here, P = 1; Chernoff at t = 1/4: tail ≤ 2^{(d+4)/2} e^{−d/2}
            d = 28_938
            found = math.log(d * (d + 2)) + (d + 4) / 2 * math.log(2) - d / 2
            says = f"d = {d}, P = 1: ln(d(d + 2) Pr[χ²_(d+4) ≥ 2d]) ≤ {found:.0f}"
            return Evidence("arithmetic", found < -1000, says)
    raise KeyError(name)
