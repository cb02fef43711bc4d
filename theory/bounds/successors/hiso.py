"""HiSo: the bounds along scaled directions u = s ⊙ z, and how far s can learn; proofs in docs/methods-theory.md."""

from itertools import pairwise
from typing import Any, Final

import numpy as np
from sympy import Rational

from decomfl_lab.errors import require, require_finite_positive
from theory.bounds.paper import DOMINATED
from theory.checks.stability import moments
from theory.notation.setting import Setting
from theory.notation.symbols import D, L, P, R, kappa, m, mu, phi, rho_kappa, sigma, sigma_G, symbol
from theory.notation.symbols import eta as eta_
from theory.notation.units import F, X
from theory.problems.problem import Floats
from theory.problems.quadratic import Quadratic
from theory.problems.spectrum import Spectrum
from theory.statements.algorithms import Losses, Step, decomfl
from theory.statements.left_sides import Left
from theory.statements.statement import Statement

_GROWTH: Final = symbol("growth")


def whitened(quadratic: Quadratic, s: Floats) -> Quadratic:
    """F(y) = f(Dy), D = diag(s): the problem that a method with the directions u = s ⊙ z solves by plain ones.

        x = Dy,   ∇F = D∇f,   ∇²F = DHD,   F(y_0) = f(x_0)

    Every statement, check and exact recursion of ``theory`` on it is one of the scaled method on ``quadratic``, f.

    Raises:
        InputError: If s, (groups,), is not one finite number above 0 for each group of f's eigenvalues.
    """
    s = np.asarray(s, dtype=np.float64)
    spectrum = quadratic.spectrum
    require(s.shape == (len(spectrum.values),), "s", f"be one for each of {len(spectrum.values)} groups", s.shape)
    require(bool((np.isfinite(s) & (s > 0)).all()), "s", "be finite numbers above 0", s.tolist())
    squares = s**2
    return Quadratic(
        Spectrum(tuple((squares * spectrum.eigenvalues).tolist()), spectrum.counts),
        tuple((np.array(quadratic.start) / squares).tolist()),
        tuple((np.array(quadratic.noise) * squares).tolist()),
        tuple((np.array(quadratic.dissimilarity) * squares).tolist()),
    )


def speed(quadratic: Quadratic, *, P: int, distribution: str = "gaussian") -> float:
    """How much the first round is sure to take off f at the largest certified step, times 8, in F: ‖∇f(x_0)‖²/(Lρ_κ).

    That of ``whitened(quadratic, s)`` over that of ``quadratic`` is by how much the scale s makes the round better.
    """
    return quadratic.gradient2 / quadratic.L / quadratic.setting(P=P, distribution=distribution).values["rho_kappa"]


def learned_scale(squares: Floats, *, P: int, distribution: str = "gaussian") -> Floats:
    """The s that HiSo's recursion settles at while the gradient stays: h² = E S², the only fixed point for ν → 1.

        h_j² = (γ/P) Σ_i v_i/h_i + a v_j/h_j,     s_j = h_j^(−1/2),     S = (1/P) Σ_p z_p z_pᵀ D∇f

    with v_j = E(∇_j f)² and E (Zw)_j² = a w_j² + (γ/P)‖w‖². The first term is the same for all coordinates. The map
    h → √(E S²) halves distances of log h, so its iteration converges.

    Args:
        squares: v, mean squares of the averaged clients' gradient by coordinates, shape (d,), not all 0. [F²/X²]
        P: Number of directions of a step.
        distribution: Distribution of the directions.

    Returns:
        s, shape (d,).

    Raises:
        InputError: If the squares are negative or all 0, or P or the distribution is out of range.
    """
    v = np.asarray(squares, dtype=np.float64)
    require(bool((v >= 0).all() and np.isfinite(v).all() and v.any()), "squares", "be at least 0, not all 0", v[:3])
    a, gamma = moments(v.size, P=P, distribution=distribution)
    log_h = np.zeros(v.size)
    for _ in range(64):  # 2^−64 of the first distance
        w = v / np.exp(log_h)
        log_h = 0.5 * np.log(a * w + gamma / P * w.sum())
    return np.exp(-0.5 * log_h)


def hiso_step(nu: float, s: float | Floats = 1.0) -> Step:
    """HiSo's step for K = 1: x ← x − ηG along u = s ⊙ z, then h ← νh + (1 − ν)Ḡ² with h = s^(−2), Ḡ the clients' mean.

    ν = 1 keeps the scale; s is the first one, for all coordinates held or for each. InputError if ν is not in [0, 1].
    """
    require(0.0 <= nu <= 1.0, "nu", "be in [0, 1]", nu)
    first = np.asarray(s, dtype=np.float64) ** -2.0

    def step(losses: Losses, x: Floats, v: Floats, z: Floats, setting: Setting) -> tuple[Floats, Floats]:
        h = first + v[:, 0]
        moved, _ = decomfl(losses, x, np.zeros_like(x), z / np.sqrt(h)[:, None], setting)
        assert setting.eta is not None
        h = _next(h, (x - moved).mean(axis=1), nu, setting.eta)
        return moved, np.broadcast_to((h - first)[:, None], x.shape)

    return step


def _next(h: Floats, moved: Floats, nu: float, eta: float) -> Floats:
    """νh + (1 − ν)G², G = moved/η."""
    return nu * h + (1.0 - nu) * (moved / eta) ** 2


def hiso(nu: float, eta: float) -> Statement:
    """The dimension-free Theorem 2 for HiSo with h_0 = 1, whatever s does: (1/R) Σ_r E‖D_r∇f(x_r)‖² is bounded.

        2D/(ηR) + (2c²Lηρ_κ/m)(σ² + φσ_G²) + ½c²μ²L²κ(κ + 2)(1 + cLη(1 + (κ + 3)/P))   for η ≤ 1/(4cLρ_κ)

    κ and L are those of H, and c ≥ s_{r,j}² in all R rounds. h falls by ν a round at most, so c = ν^(1−R) is one; for
    h that is kept above a floor, ``theory.check`` takes ``growth`` = 1/floor. By the run's η the left side tells s_r
    from x_0..x_R; it is simulated, so ``theory.check`` needs ``source="simulation"``.

    Raises:
        InputError: If ν is not in [0, 1] or η is out of range.
    """
    require_finite_positive("eta", eta)
    follow = hiso_step(nu)

    def step(losses: Losses, x: Floats, v: Floats, z: Floats, setting: Setting) -> tuple[Floats, Floats]:
        require(setting.eta == eta, "eta", f"be the {eta:g} of the statement", setting.eta)
        return follow(losses, x, v, z, setting)

    def average(problem: Any, x: Floats) -> Floats:
        h, total = np.ones_like(x[0]), np.zeros(x.shape[1])
        for here, there in pairwise(x):
            total += (problem.gradient(here) ** 2 / h).sum(-1)
            h = _next(h, here - there, nu, eta)
        return total / (len(x) - 1)

    c = _GROWTH
    fourth = kappa * (kappa + 2) * (1 + c * L * eta_ * (1 + (kappa + 3) / P))
    return Statement(
        f"hiso, ν = {nu:g}",
        left=Left("(1/R) Σ_r E‖D_r∇f(x_r)‖²", (F / X) ** 2, average),
        step=step,
        terms={
            "start": 2 * D / (R * eta_),
            "noise": 2 * c**2 * L * eta_ / m * rho_kappa * (phi * sigma_G**2 + sigma**2),
            "smoothing": Rational(1, 2) * c**2 * mu**2 * L**2 * fourth,
        },
        eta={"descent": 1 / (4 * c * L * rho_kappa)},
        constants={"growth": lambda _, setting: nu ** (1 - setting.R)},
        single_step=True,
        assumptions=DOMINATED,
        note="For both kinds of differences. s_0 = 1.",
    )
