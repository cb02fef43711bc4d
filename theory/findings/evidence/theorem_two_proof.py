"""The proof of Theorem 2 (lines 1261-1296 and 1377-1443), step by step."""
# "line-N" is the statement on line N of the paper's LaTeX source; @supports says that what is found speaks for it.

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from theory.bounds import statement
from theory.findings.corrections import MENDED
from theory.findings.decorators import mends, supports
from theory.findings.evidence.covariance import SAMPLE, Clients, printed_covariance
from theory.findings.evidence.designs import design
from theory.findings.finding import Evidence
from theory.findings.instruments import Axis, everywhere, exceeds, linear, over, same, unlike, whole
from theory.notation.setting import Setting, effective_factor
from theory.problems.quadratic import Quadratic, spread
from theory.problems.spectrum import Spectrum

Floats = NDArray[np.float64]


# The estimate ----------------------------------------------------------------------------------------------------


# θ with f_i(1) − f_i(0) = f_i'(θ) for f_1 = x³ and f_2 = x⁴: (1/3)^{1/2} and (1/4)^{1/3}.
_THETA: Final = sp.Symbol("theta", positive=True)
_CUBIC: Final = sp.solve(3 * _THETA**2 - 1, _THETA)[0]
_QUARTIC: Final = sp.solve(4 * _THETA**3 - 1, _THETA)[0]


@mends("eq.fjiow.es")
def remainder_of_a_quadratic() -> Evidence:
    """For f = ‖x‖²/2, μ = 1: ε = ½‖z‖² z, its square against μ²L²d³."""
    z = design("sphere", 8).z
    squares = (0.5 * (z**2).sum(axis=1) * np.sqrt((z**2).sum(axis=1))) ** 2
    stated, corrected = (
        math.fsum(statement("remainder", variant).bound(Setting(d=8, L=1.0, mu=1.0, distribution="sphere")))
        for variant in ("stated", "corrected")
    )
    says = f"f = ‖x‖²/2, d = 8: ‖ε‖² = {squares.max():.6g}, mended bound {corrected:.6g}, print {stated:.6g}"
    tight = math.isclose(float(squares.max()), corrected)
    return Evidence(
        "counter-example", tight and math.isclose(stated, 4 * corrected), says, {"factor": stated / corrected}
    )


@mends("eq.fjiow.es")
@everywhere("mended bound of ‖ε‖² against the printed one")
@over(effort=10, d=whole(1, 1e9), P=whole(1, 1e4))
def remainder_search(d: int, P: int) -> float:
    setting = Setting(d=d, P=P, L=1.0, mu=1.0, distribution="sphere")
    stated, corrected = (math.fsum(statement("remainder", kind).bound(setting)) for kind in ("stated", "corrected"))
    return corrected / stated


# One step --------------------------------------------------------------------------------------------------------

_STEP: Final = {
    "kappa": Axis(1.0, 8.0),
    "angle": linear(0.0, math.pi / 2),
    "share": Axis(1e-2, 1),
    "mu": Axis(1e-3, 1e3),
    "sigma": Axis(1e-3, 10),
}


_E8: Final = design("sphere", 8)


class Step:
    """One step on f = ½xᵀHx, d = 8, L = 1, ‖∇f‖ = 1, P = m = 1, noise ±s along ∇f: every expectation exact.

    H has the eigenvalue 1 once and (κ − 1)/7 seven times; the seventh moments of E8 are those of the sphere.
    """

    def __init__(self, at: Mapping[str, float]) -> None:
        self.d, self.mu, self.sigma = 8, at["mu"], at["sigma"]
        self.H = np.array([1.0] + [(at["kappa"] - 1) / 7] * 7)
        self.rho = effective_factor("sphere", d=8, P=1, kappa=at["kappa"])
        self.eta = at["share"] / (4 * self.rho)
        self.a = np.zeros(8)
        self.a[:2] = math.cos(at["angle"]), math.sin(at["angle"])
        self.z = _E8.z
        self.zHz = (self.z**2) @ self.H

        # zᵀ∇f(x; ξ), shape (directions, 2), over the two signs of the noise.
        self.slopes = np.outer(self.z @ self.a, 1 + self.sigma * np.array([-1.0, 1.0]))
        g = self.slopes + 0.5 * self.mu * self.zHz[:, None]
        slope = (self.z @ self.a)[:, None]
        # E f(x_{r+1}) − f(x_r).
        self.change = self.mean(-self.eta * g * slope + 0.5 * self.eta**2 * g**2 * self.zHz[:, None])
        # E ∇̄fᵀ H ∇̄f.
        self.weighted = self.mean(self.slopes**2 * self.zHz[:, None])
        # ημ²L²(d + 3)³/8, and η²L E‖ε‖².
        self.smoothing = self.eta * self.mu**2 * (self.d + 3) ** 3 / 8
        squares = 0.25 * self.mu**2 * self.zHz**2 * (self.z**2).sum(axis=1)
        self.remainder = self.eta**2 * self.mean(np.outer(squares, [1, 1]))

    def mean(self, values: Floats) -> float:
        """E over directions and the sign of the noise, of values of shape (directions, 2)."""
        return float(_E8.mean(values).mean())


@mends("assumption.low-rank", "line-1378.2", "line-1384")
@everywhere("exact step on quadratics, d = 8, against the line with H for ∇²f")
@over(effort=8, **_STEP)
def hessian_first(**at: float) -> float:
    """E f(x_{r+1}) ≤ f − η⟨∇f, ∇f^μ⟩ + η²E ∇̄fᵀH∇̄f + η²L E‖ε‖²; ∇f^μ = ∇f here."""
    step = Step(at)
    return (step.change + step.eta) / (step.eta**2 * step.weighted + step.remainder)


@mends("line-1389", "line-1394")
@everywhere("exact step on quadratics, d = 8, against the mended line")
@over(effort=8, **_STEP)
def descent_by_trace(**at: float) -> float:
    """E f(x_{r+1}) ≤ f − (η/2)‖∇f‖² + ημ²L²(d + 3)³/8 + η²E ∇̄fᵀH∇̄f, without a term of ‖ε‖²."""
    step = Step(at)
    return (step.change + 0.5 * step.eta) / (step.eta**2 * step.weighted + step.smoothing)


@mends("line-1412")
@everywhere("exact step on quadratics, d = 8, against the mended line")
@over(effort=8, **_STEP)
def descent_by_rank(**at: float) -> float:
    """E f(x_{r+1}) ≤ f − (η/2)‖∇f‖² + ημ²L²(d + 3)³/8 + η²Lρ_κ(‖∇f‖² + σ²), without a term of ‖ε‖²."""
    step = Step(at)
    right = step.smoothing + step.eta**2 * step.rho * (1 + step.sigma**2)
    return (step.change + 0.5 * step.eta) / right


@supports("line-1378")
def taylor() -> Evidence:
    """For f = x⁴ from x = 1 to 1/2: f''(x') = 12x'² gives an x' between."""
    x, h = Fraction(1), Fraction(-1, 2)
    square = ((x + h) ** 4 - x**4 - 4 * x**3 * h) / (h**2 / 2) / 12
    between = (x + h) ** 2 < square < x**2
    return Evidence("algebra", between, f"f = x⁴ from 1 to 1/2: x'² = {square} is between 1/4 and 1")


@mends("assumption.low-rank")
@supports("line-1394.2")
@everywhere("longest step against 2ηd max(G, μL√d/2)")
@over(effort=8, **{name: axis for name, axis in _STEP.items() if name != "share"})
def large_ball(**at: float) -> float:
    """The step on quadratics, over all directions of E8, against 2ηd max(G, μL√d/2)."""
    step = Step({**at, "share": 1.0})
    g = step.slopes + 0.5 * step.mu * step.zHz[:, None]
    G = (1 + step.sigma) * float(np.linalg.norm(step.a))
    radius = MENDED["assumption.low-rank"].value({"eta": 1.0, "d": 8.0, "L": 1.0, "mu": step.mu, "G": G})
    return float(np.abs(g).max() * math.sqrt(8) / radius)


def two_lines_of_t3(*, added: bool) -> Evidence:
    """⟨H, E ∇̄f∇̄fᵀ⟩ against its two lines added, or multiplied, as there is no sign between them in print."""
    m, P, d, H = 2, 2, SAMPLE.d, np.diag([3, 1, 1, 0])
    total = (H * SAMPLE.second_moment(m, P, replacement=True)).sum()
    A = SAMPLE.mean_square(m, replacement=True)  # ∇f∇fᵀ + Σ/m + Δ/m
    first = Fraction(d, P * (d + 2)) * np.trace(A) * int(np.trace(H))
    second = (1 + Fraction(d - 2, P * (d + 2))) * (H * A).sum()
    if added:
        return same(total, first + second, "H = diag(3, 1, 1, 0): T_3 and the sum of its two lines")
    return unlike(total, first * second, "H = diag(3, 1, 1, 0): T_3 against the product of its two lines")


@supports("line-1403")
@everywhere("‖H‖₂ against L")
@over(effort=10, first=linear(-1, 1), second=linear(-1, 1), more=linear(0, 2), other=linear(0, 2), angle=linear(0, 3.2))
def norm_of_h(first: float, second: float, more: float, other: float, angle: float) -> float:
    """Random ∇²f with ‖∇²f‖₂ ≤ L = 1 and ∇²f ⪯ H ⪯ I: ‖H‖₂ ≤ 1, tr H ≤ κ‖H‖₂ ≤ κ."""
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    H = turn @ np.diag([first, second]) @ turn.T + np.diag([more, other])
    values = np.linalg.eigvalsh(H)
    return float(np.abs(values).max()) if values.max() <= 1 else math.nan


@everywhere("exact E (Zv)ᵀH(Zv) against Lρ_κ‖v‖²")
@over(effort=10, d=whole(2, 1e9), rank=linear(0, 0.99), P=whole(1, 1e4), first=linear(0, 1))
def weighted_by_rank(distribution: str, *, d: int, rank: float, P: int, first: float) -> float:
    """Exact E (Zv)ᵀH(Zv) ≤ Lρ_κ‖v‖² with v on the first or the other eigenvectors; equality at the first."""
    problem = Quadratic.of(Spectrum.two_level(d, d**rank))
    parts = np.array([first, 1 - first])
    moved = spread(problem, problem.setting(P=P, distribution=distribution), parts)
    weighted = float(problem.spectrum.eigenvalues @ moved)
    return weighted / effective_factor(distribution, d=d, P=P, kappa=problem.spectrum.kappa)


# Two sides, each exact ------------------------------------------------------------------------------------------------


def exact(name: str) -> Evidence:
    """Exact numbers that are one, or are not, or one of which is the larger."""
    match name:
        case "averaged scalars":  # (1/(mP)) Σ_i Σ_p g_p z_p with g_p the mean over clients, or g_{i,p}; m = 3, P = 2
            g: Any = np.array([[Fraction(3), Fraction(-1)], [Fraction(2), Fraction(5)], [Fraction(-4), Fraction(1, 2)]])
            z = design("sphere", 4).points[:2]
            mean = np.tile(g.sum(axis=0) / 3, (3, 1))
            return same((mean @ z).sum(0)[0], (g @ z).sum(0)[0], "Σ g_{r,p} z_p and Σ g_{i,r,p} z_p, first coordinate")
        case "one point for all":
            return unlike(_CUBIC, _QUARTIC, "f_1 = x³, f_2 = x⁴, x_r = 0, μz = 1: θ of the two clients")
        case "a point each":
            both = (3 * _CUBIC**2 + 4 * _QUARTIC**3) / 2
            return same(both, sp.Integer(1), "½(f_1'(θ_1) + f_2'(θ_2)) and the mean scalar")
        case "without smoothing":  # E zzᵀ zzᵀ = d E zzᵀ on the sphere
            eye = np.eye(4, dtype=int)
            return same(design("sphere", 4).sandwich(eye) / 4, eye, "E Z, d = 4")
        case "sphere of radius √8":
            eye = np.eye(8, dtype=int)
            moment = design("sphere", 8).sandwich(eye) / 8  # E zzᵀ zzᵀ = d E zzᵀ
            return same(moment, eye, "E zzᵀ on the sphere of radius √8")
        case "own directions":  # two clients with ∇f_i = v: E ∇̄f ∇̄fᵀ against shared ones, as in the algorithm
            v = np.array([1, 2, 0, -1])
            shared = design("sphere", 4).sandwich(np.outer(v, v))
            what = "m = 2, equal gradients: own directions against shared"
            return unlike((shared + np.outer(v, v)) / 2, shared, what)
        case "quartic":  # f = x_1⁴: coefficient of μ²x_1, 4 E z_1⁴ of the sphere, 12 d E u_1² = 12d/(d + 2) of its ball
            fourth = sum(Fraction(int(v)) ** 4 for v in design("sphere", 8).points[:, 0]) / 240
            return same(4 * fourth, Fraction(12 * 8, 10), "f = x_1⁴, d = 8: sphere and its ball (12 for Gaussian z)")
        case "negative T_3":
            # For f = ½xᵀHx from 0, noise ±e_3, μ → 0, P = m = 1: E f(x_{r+1}) − f = ½η²T_3 where the line has η²T_3.
            # H = diag(1, 1, −1, 0) has κ = tr H = 1, and T_3 = E (zᵀe_3)² zᵀHz = (d/(d + 2))(tr H − 2) < 0.
            e = np.array([0, 0, 1, 0])
            t3 = float((np.diag([1, 1, -1, 0]) * design("sphere", 4).sandwich(np.outer(e, e))).sum())
            eta = 0.25 / effective_factor("sphere", d=4, P=1, kappa=1.0)
            what = "f = ½xᵀHx, H = diag(1, 1, −1, 0), x = 0, noise ±e_3, largest η: E f(x_{r+1}) − f against η²T_3"
            return exceeds(0.5 * eta**2 * t3, eta**2 * t3, what)
        case "short ball":  # f = ‖x‖²/2 without noise: x_r + z is at ‖z‖²/2 higher, but ∇f(x_r) = 0
            x, directions = np.zeros(8), _E8.z
            steps = 0.5 * (((x + directions) ** 2).sum(axis=1) - (x**2).sum())[:, None] * directions
            length, radius = np.linalg.norm(steps, axis=1).max(), 16 * np.linalg.norm(x)
            what = "f = ‖x‖²/2, x_r = 0, d = 8, η = μ = 1: step against 2ηdG(x_r)"
            return exceeds(float(length), float(radius), what)
        case "one noisy agent":
            # A single agent of gradient ∇f whose noise has the second moment Σ + Δ:
            # (1/12)(Σ (2s_i)² + Σ (2(∇f_i − ∇f))²).
            spreads = 2 * (SAMPLE.gradients - SAMPLE.gradient)
            noises = np.vstack([2 * SAMPLE.noises, spreads, np.zeros((6, 4), dtype=int)])
            agent = printed_covariance(Clients(np.tile(SAMPLE.gradient, (12, 1)), noises), 2, 2)
            what = "second moment of the federation and of one agent, m = 2, P = 2"
            return same(SAMPLE.second_moment(2, 2, replacement=True), agent, what)
        case "total variance":
            total = np.trace(SAMPLE.mean_square(1, replacement=False)) - (SAMPLE.gradient**2).sum()
            parts = np.trace(SAMPLE.between + SAMPLE.within)
            return same(total, parts, "Var of one client's gradient, between and within")
    raise KeyError(name)
