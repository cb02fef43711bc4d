"""Assumption 4 and Theorem 2 (lines 435-470, 1261-1443): the statements, their rates and the claims around them."""
# "line-N" is the statement on line N of the paper's LaTeX source; @supports says that what is found speaks for it.

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import sympy as sp
import torch
from sympy import sqrt

from hessian.kappa.effective_rank import effective_rank
from hessian.operators.operator import DenseOperator
from theory.bounds import statement
from theory.communication import table1_scalars_decomfl
from theory.findings.corrections import MENDED
from theory.findings.decorators import mends, refutes, supports
from theory.findings.finding import Evidence
from theory.findings.instruments import Axis, everywhere, exceeds, linear, over, same, whole
from theory.notation.formula import value_of
from theory.notation.setting import DISTRIBUTIONS, Setting
from theory.notation.symbols import D, L, P, R, d, eta, kappa, m, mu, sigma, sigma_G
from theory.problems.quadratic import Quadratic, expected
from theory.problems.spectrum import Spectrum
from theory.statements.statement import Statement

STATED: Final = statement("theorem-2", "stated")
CORRECTED: Final = statement("theorem-2", "corrected")


def without_remainder(setting: Setting) -> float:
    """The printed bound less its term of the wrong unit, 4μ²L⁴d³η."""
    terms = STATED.bound(setting)
    return math.fsum(terms) - terms[list(STATED.terms).index("remainder")]


# The theorem -----------------------------------------------------------------------------------------------------


def rough_clients(setting: Setting, *, curvature: float, delta: float) -> float:
    """(1/2) Σ_{r<2} E‖∇f(x_r)‖² exactly, for two clients of which one is drawn.

    f_i = (h/2) x_1² ± σ_G(√(‖x‖² + δ²) − δ), x_0 = 0, sphere, P = 1: f is h-smooth and ‖∇f_i − ∇f‖ ≤ σ_G, but f_i is
    only (h + σ_G/δ)-smooth. From x_0 the scalar is ±c + hμz_1²/2, c = σ_G(√(μ²d + δ²) − δ)/μ, and
    E‖∇f(x_1)‖² = h²η² E g²z_1² = h²η²(c² + h²μ² E z_1⁶/4), E z_1⁶ = 15d²/((d + 2)(d + 4)). h is the ``curvature`` in
    F/X², δ is in X; the setting has d, η, μ and σ_G.
    """
    assert setting.eta is not None
    d, mu = setting.d, setting.mu
    slope = setting.sigma_G * mu * d / (math.hypot(mu * math.sqrt(d), delta) + delta)
    second = slope**2 + (curvature * mu) ** 2 * 15 * d**2 / (4 * (d + 2) * (d + 4))
    return 0.5 * (curvature * setting.eta) ** 2 * second


def _rough_setting(claim: Statement, *, d: int, L: float, mu: float, share: float = 1.0) -> Setting:
    """The setting of ``rough_clients`` at a share of the largest η that the claim admits."""
    setting = Setting(d=d, L=L, m=1, M=2, R=2, mu=mu, sigma_G=1.0, D=0.0, kappa=1.0, distribution="sphere")
    return replace(setting, eta=share * claim.step_sizes(setting).largest)


@refutes("the.2", cause="smoothness", witness=True)
def rough_printed() -> Evidence:
    setting = _rough_setting(STATED, d=10**4, L=1.0, mu=1e-9)
    left = rough_clients(setting, curvature=1.0, delta=1e-14)
    what = "f 1-smooth but f_i not, d = 10⁴, D = 0, R = 2, σ_G = 1, largest η: average against bound"
    compared = exceeds(left, math.fsum(STATED.bound(setting)), what)
    return replace(compared, numbers={**compared.numbers, "d": setting.d})


@mends("the.2")
@everywhere("these clients with their own L against the corrected bound")
@over(effort=5, d=whole(1, 1e6), h=Axis(1e-3, 1e3), delta=Axis(1e-9, 1e3), mu=Axis(1e-9, 1e3), share=Axis(1e-2, 1))
def rough_mended(d: int, h: float, delta: float, mu: float, share: float) -> float:
    L = h + 1 / delta  # of every f_i
    setting = _rough_setting(CORRECTED, d=d, L=L, mu=mu, share=share)
    return rough_clients(setting, curvature=h, delta=delta) / math.fsum(CORRECTED.bound(setting))


_CONSTANTS: Final = {
    "d": whole(1, 1e9),
    "rank": linear(0, 1),
    "P": whole(1, 1e4),
    "m": whole(1, 100),
    "idle": whole(1, 100),
    "share": Axis(1e-3, 1),
    "D": Axis(1e-6, 1e6),
    "mu": Axis(1e-9, 1e3),
    "sigma": Axis(1e-3, 1e3),
    "sigma_G": Axis(1e-3, 1e3),
}


def _setting(at: Mapping[str, Any]) -> Setting:
    """With L = 1 (a choice of the unit of f), κ = d^rank and η the given share of the largest printed one."""
    d, m = at["d"], at["m"]
    setting = Setting(
        d=d, L=1.0, kappa=min(d ** at["rank"], d), P=at["P"], m=m, M=m + at["idle"], R=at.get("R", 1),
        mu=at["mu"], sigma=at["sigma"], sigma_G=at["sigma_G"], D=at["D"], distribution="sphere",
    )  # fmt: skip
    return replace(setting, eta=at["share"] * STATED.step_sizes(setting).largest)


@mends("the.2", "line-447.2")
@supports("line-447", "line-1364")
@everywhere("corrected bound against the printed one without its last term")
@over(effort=3, **_CONSTANTS)
def implied(**at: Any) -> float:
    """The corrected bound is no larger than the printed one, less the remainder, at every step size of the print."""
    setting = _setting(at)
    return math.fsum(CORRECTED.bound(setting)) / without_remainder(setting) if CORRECTED.admits(setting) else 1e9


_TWO_LEVELS: Final = {
    **_CONSTANTS,
    "d": whole(2, 1e6),
    "rank": linear(0.01, 0.99),
    "R": whole(1, 1e5),
    "low": Axis(1e-3, 1e3),
}


@mends("the.2")
@everywhere("exact quadratics against the printed bound without its last term")
@over(effort=1, **_TWO_LEVELS)
def quadratics(low: float, **at: Any) -> float:
    """Exact E‖∇f‖² on quadratics of two eigenvalues keep the printed bound, less the remainder."""
    setting = _setting(at)
    assert setting.kappa is not None
    parts = (1.0, low)
    problem = Quadratic.of(
        Spectrum.two_level(setting.d, setting.kappa),
        D=setting.D, sigma=setting.sigma, sigma_G=setting.sigma_G, start=parts, noise=parts, dissimilarity=parts,
    )  # fmt: skip
    return expected(problem, setting).average / without_remainder(setting)


_PHASE: Final = linear(0, 2 * math.pi)


@mends("the.2")
@everywhere("one exact step on waves against the corrected bound's smoothing")
@over(
    effort=15,
    A=linear(0, 1),
    v=Axis(0.1, 10),
    w=Axis(0.1, 10),
    alpha=_PHASE,
    beta=_PHASE,
    mu=Axis(1e-2, 1e2),
    share=Axis(1e-2, 1),
)
def waves(A: float, v: float, w: float, alpha: float, beta: float, mu: float, share: float) -> float:
    """One exact step without noise on f = A sin(vx + α)/v² + (1 − A) sin(wx + β)/w² (1-smooth, not convex) from x = 0.

    d = 1, z = ±1: E f(x_{r+1}) − f + (η/2)f'² against η/2 of the corrected bound's smoothing.
    """
    parts = ((A, v, alpha), (1 - A, w, beta))
    setting = Setting(d=1, L=1.0, kappa=1.0, D=0.0, mu=mu, distribution="sphere")
    eta = share * CORRECTED.step_sizes(setting).largest

    def f(x: float) -> float:
        return sum(size * math.sin(rate * x + phase) / rate**2 for size, rate, phase in parts)

    slope = sum(size * math.cos(phase) / rate for size, rate, phase in parts)
    after = sum(f(-eta * (f(z * mu) - f(0.0)) / mu * z) for z in (-1, 1)) / 2
    allowed = eta / 2 * math.fsum(CORRECTED.bound(replace(setting, eta=eta)))
    return (after - f(0.0) + eta / 2 * slope**2) / allowed


# Terms, conditions, rates ----------------------------------------------------------------------------------------


with sp.evaluate(False):  # to be printed as written here
    _ETA: Final = sqrt(m * P / (kappa * R))
    _MU: Final = kappa ** sp.Rational(1, 4) / ((m * R * P) ** sp.Rational(1, 4) * sqrt((d + 3) ** 3))
_RATE: Final = sqrt(kappa / (m * R * P))
_SHORT_RATE: Final = sqrt(P / (m * kappa * R))


@mends("line-453")
def orders() -> Evidence:
    """The printed terms at the printed η and μ as multiples of the printed rate: constants where R is large."""
    chosen = {eta: _ETA.doit(), mu: _MU.doit(), sigma: 1, sigma_G: 0}
    second = {"noise": _RATE + _SHORT_RATE}
    multiple = {
        name: sp.simplify(term.doit().subs(chosen) / second.get(name, _RATE)) for name, term in STATED.terms.items()
    }
    known = {
        "start": 4 * D,
        "noise": 2 * L * (P + kappa + 1) / (P + kappa),  # at most 4L: κ ≥ 1
        "smoothing": L**2 / 2,
        "remainder": sp.Integer(0),
    }
    large = {name: sp.limit(sp.limit(each, d, sp.oo), R, sp.oo) for name, each in multiple.items()}
    wrong = [name for name in known if sp.simplify(large[name] - known[name]) != 0]
    return Evidence("algebra", not wrong, f"multiples of the rate for large d, R: {large}; others than known: {wrong}")


@mends("line-453")
@everywhere("corrected bound against the mended rate")
@over(effort=2, **_CONSTANTS, R=whole(1, 1e6))
def mended_rate(**at: Any) -> float:
    """The corrected bound at 1/η = 4Lρ_κ + √(LRρ_κN/(mD)), N = σ² + φσ_G², against the mended rate; μ = 0."""
    setting = replace(_setting(at), mu=0.0)
    values = setting.values
    setting = replace(setting, eta=1 / MENDED["line-453.eta"].value(values))
    return math.fsum(CORRECTED.bound(setting)) / MENDED["line-453"].value(values)


# Claims ----------------------------------------------------------------------------------------------------------


_LLM: Final = {"kappa": 10.0, "m": 2.0, "R": 3000.0, "P": 10.0}


@refutes("line-136", "line-442", cause="small-mu", witness=True)
def below_resolution() -> Evidence:
    """Where μ‖∇f‖, the change of the loss, is below half a unit in the last place of the loss, ‖∇f‖ = f = 1."""
    reach = {
        name: (value_of(_MU, {**_LLM, "d": 0.0}) * 3**1.5 * 2.0**bits) ** (2 / 3)
        for name, bits in (("32", 24), ("64", 53))
    }
    mu = value_of(_MU, {**_LLM, "d": 1e9})
    says = (
        f"κ = 10, m = 2, P = 10, R = 3000: μ ≤ {mu:.2g} at d = 10⁹; the loss changes by less than half a unit in its "
        f"last place from d = {reach['32']:.2g} (float32), {reach['64']:.2g} (float64) on"
    )
    return Evidence(
        "arithmetic", mu < 2.0**-24 and reach["32"] < 1e5 < reach["64"], says, {"mu": mu, "d": 1e9, **reach}
    )


@refutes("line-442", cause="small-mu")
def no_change() -> Evidence:
    """Float32 weights of standard deviation 0.02, as in language models: which of them does x + μz change?"""
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal(10_000).astype(np.float32) for _ in range(2))
    x *= np.float32(0.02)
    mu = np.float32(value_of(_MU, {**_LLM, "d": 1e9}))
    moved = float(np.mean(x + mu * z != x))
    return Evidence("execution", moved < 0.01, f"share of float32 weights that x + μz changes at d = 10⁹: {moved:.4f}")


@mends("line-442")
@everywhere("exact quadratics of κ = 10, d up to 10⁹, against the bound without d")
@over(
    effort=1,
    **{name: _CONSTANTS[name] for name in ("P", "share", "D", "mu", "sigma")},
    distribution=Axis(0, 2, log=False, whole=True),
    d=whole(11, 1e9),
    R=whole(1, 1e5),
)
def without_dimension(**at: Any) -> float:
    """Exact E‖∇f‖² of quadratics with κ = 10 against the bound that has no d, for every distribution and μ."""
    claim, distribution = statement("theorem-2-dimension-free"), DISTRIBUTIONS[at["distribution"]]
    problem = Quadratic.of(Spectrum.two_level(at["d"], 10.0), D=at["D"], sigma=at["sigma"], noise=(1.0, 1.0))
    setting = problem.setting(P=at["P"], R=at["R"], mu=at["mu"], distribution=distribution)
    setting = replace(setting, eta=at["share"] * claim.step_sizes(setting).largest)
    return expected(problem, setting).average / math.fsum(claim.bound(setting))


@supports("line-442.2")
def scalars_by_steps() -> Evidence:
    one, four = (table1_scalars_decomfl(100, M=10, m=2, K=K, P=5) for K in (1, 4))
    return same(four - 4 * one, 0.0, "scalars at K = 4 as a multiple of those at K = 1, less 4")


@supports("line-464")
def kappa_in_few_products() -> Evidence:
    d = 400
    values = 1 / np.arange(1, d + 1) ** 1.5
    estimate = effective_rank(DenseOperator(torch.diag(torch.tensor(values))), rtol=0.05, seed=0)
    true = float(values.sum() / values.max())
    error = abs(estimate.kappa / true - 1)
    says = f"κ = {true:.4f}, estimated to {error:.2%} with {estimate.products} products with H, d = {d}"
    return Evidence("execution", error < 0.05 and estimate.products < d / 4, says, {"products": estimate.products})
