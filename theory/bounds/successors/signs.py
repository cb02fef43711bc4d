"""What FeedSign's votes are worth, and where constant steps stop; proved in docs/methods-theory.md."""

import math
from typing import Any, Final

import numpy as np
import sympy as sp
from scipy import integrate, optimize, special

from decomfl_lab.errors import require, require_finite_positive, require_int
from theory.notation.setting import Setting
from theory.notation.symbols import D, L, R, kappa, sigma, sigma_G, symbol
from theory.notation.units import F, X
from theory.problems.problem import Floats
from theory.problems.spectrum import Spectrum
from theory.statements.algorithms import Losses, Step
from theory.statements.left_sides import Left
from theory.statements.statement import ONE_HESSIAN, Statement

LENGTH: Final = symbol("length", X)
"""η of a step whose length does not depend on the gradient's: in units of x."""
_C: Final = symbol("c")
_MEAN: Final = math.sqrt(2 / math.pi)
"""E|N| of a standard normal N."""

AVERAGE_NORM: Final = Left(
    "(1/R) Σ_r E‖∇f(x_r)‖",
    F / X,
    lambda problem, x: np.mean([np.linalg.norm(problem.gradient(each), axis=-1) for each in x[:-1]], axis=0),
)


def step_length(_: Any, setting: Setting) -> float:
    """η of the setting, read as a length."""
    setting.require("eta")
    assert setting.eta is not None
    return setting.eta


def wrong_vote(gradient: float, noise: float) -> float:
    """Pr[sign(⟨a, z⟩ + τN) ≠ sign⟨a, z⟩] = arctan(τ/‖a‖)/π for Gaussian z and standard normal N.

    It is also the chance that a client whose gradient u has the angle θ to a, tan θ = τ/‖a‖, votes against a: θ/π.
    ‖a‖ > 0 and τ ≥ 0, the standard deviation of the scalar's noise, are in F/X; InputError if one is out of range.
    """
    _require_noise(gradient, noise)
    return math.atan(noise / gradient) / math.pi


def vote_gain(gradient: float, noise: float = 0.0, *, honest: int = 1, liars: int = 0) -> float:
    """E v⟨a, z⟩, how far a step of length η = 1 descends to first order, v the majority of the votes; ties are a coin.

        E|t|(2 Pr[B + C > n/2] − 1),   t = ‖a‖N,  B ~ Bin(h, Φ(|t|/τ)),  C the coin of a tie,  n = h + f

    h ≥ 1 clients see one gradient a, each through noise of its own, of standard deviation τ ≥ 0 in F/X as ‖a‖ > 0 is;
    f ≥ 0 liars vote against a, which they know. One client has √(2/π) ‖a‖²/√(‖a‖² + τ²).

    Returns:
        The gain, in F/X; below 0 where the vote leads uphill.

    Raises:
        InputError: If one of them is out of range.
    """
    _require_noise(gradient, noise)
    require_int("honest", honest, 1)
    require_int("liars", liars, 0)
    lost, at_most = ((honest + liars + 1) // 2 - 1, (honest + liars) // 2)

    def right(q: float) -> float:
        """Pr[the majority is right] − Pr[it is wrong] where an honest vote is right with chance q."""
        below, upto = (special.bdtr(min(count, honest), honest, q) for count in (lost, at_most))
        return float(1.0 - below - upto)

    if noise == 0:
        return _MEAN * gradient * right(1.0)

    def density(s: float) -> float:
        return _MEAN * gradient * s * math.exp(-0.5 * s * s) * right(special.ndtr(s * gradient / noise))

    turn = min(8.0, 4 * noise / gradient)  # where the votes' certainty changes
    return sum(float(integrate.quad(density, low, high, limit=200)[0]) for low, high in ((0.0, turn), (turn, 40.0)))


def tolerated_gradient(noise: float, *, honest: int, liars: int) -> float:
    """The ‖a‖ in F/X at which f liars undo the vote of h honest clients: below it a step leads uphill on average.

    For many clients it is τ·erf⁻¹(f/h)/√(ln 2): the share of liars decides, not their number.

    Raises:
        InputError: If f is not below h, or a number is out of range.
    """
    require_finite_positive("noise", noise)
    require_int("honest", honest, 1)
    require_int("liars", liars, 0, honest - 1)
    if not liars:
        return 0.0
    many = noise * float(special.erfinv(liars / honest)) / math.sqrt(math.log(2))
    low, high = many / 64, many * 64
    return float(optimize.brentq(lambda a: vote_gain(a, noise, honest=honest, liars=liars), low, high, rtol=1e-9))


def sign_floor(spectrum: Spectrum, eta: float, noise: float = 0.0) -> tuple[float, float]:
    """Between what the long-run mean of E f(x_r) lies on f = ½xᵀHx, H > 0, under one vote a step of constant length.

        q(b)/(2L) ≤ E f ≤ q(B)/(2α),   q(b) = ½b(b + √(b² + 4τ²)),   b = η√(π/8) T,
        B = η√(π/8)(T + 2L + (4L/π) max(0, 2(T₂ − αT)/T² − 1)),   T = tr H,  T₂ = tr H²

    Where τ = 0 the long-run mean of E‖∇f‖ is b exactly.

    *Proof.* Far away f falls by ηc‖a‖ a step on average and steps have exponential moments, so the chain has a
    stationary law with all moments (Meyn and Tweedie, chapters 14 and 15). With t, v, and w = zᵀHz, f⁺ = f − ηvt +
    ½η²w. The mean of f⁺ − f is 0: **E g(‖a‖) = ½ηT** with the gain g(s) = √(2/π)s²/√(s² + τ²); for τ = 0 that is E‖a‖ =
    b. *Below:* g is concave in s², so g at E‖a‖² is at least ½ηT, that is E‖a‖² ≥ q(b); and f ≥ ‖a‖²/(2L). *Above:* the
    mean of f⁺² − f² is 0: 2E f g(‖a‖) = η(E‖a‖² + T E f) + (η³/4)(T² + 2T₂) − η²E vtw. Here E vtw ≥ (T + α)E g: with N
    the part of z along u = a/‖a‖, w has the mean T + (N² − 1)uᵀHu given N, and N² − 1 has at least the mean 1 under the
    weight |t| erf(|t|/(τ√2)), as it has under |t| and erf grows. With ‖a‖² ≤ 2Lf, 2E f g(‖a‖) ≤ η(2L + T)F + (η³/4)(2T₂
    − T² − 2αT), F = E f, and as η²T² = 8b²/π and F ≥ b²/(2L), the last is at most η(4L/π) max(0, 2(T₂ − αT)/T² − 1) F.
    On the left ‖a‖² ≥ 2αf, and f ↦ f²/√(2αf + τ²) is convex: 2√(2/π)·2αF²/√(2αF + τ²) ≤ η(...)F, which is 2αF ≤ q(B). ∎

    Args:
        spectrum: Spectrum of H; α is its least eigenvalue, > 0.
        eta: η > 0, the length of a step. [X]
        noise: τ ≥ 0, the standard deviation of the scalar's noise. [F/X]

    Raises:
        InputError: If one of them is out of range.
    """
    alpha, top, T, T2 = spectrum.lambda_min, spectrum.L, spectrum.trace, spectrum.power_sum(2)
    require(alpha > 0, "spectrum", "have eigenvalues above 0", spectrum.values)
    require_finite_positive("eta", eta)
    require(math.isfinite(noise) and noise >= 0, "noise", "be a finite number of at least 0", noise)

    def squared(trace: float) -> float:
        b = eta * math.sqrt(math.pi / 8) * trace
        return 0.5 * b * (b + math.hypot(b, 2 * noise))

    more = 4 / math.pi * max(0.0, 2 * (T2 - alpha * T) / T**2 - 1)
    return squared(T) / (2 * top), squared(T + (2 + more) * top) / (2 * alpha)


def efficiency(d: int, P: int = 1) -> float:
    """What signs of P scalars are worth, as a share of the scalars: descent at the best step, one client, no noise.

        (‖E S‖²/E‖S‖²)/(‖E G‖²/E‖G‖²) = (2/π)(P + d + 1)/(d + (P − 1)(2/π)),
        S = (1/P) Σ sign(g_p) z_p,  G = (1/P) Σ g_p z_p

    It is near 2/π for d ≫ P, above 1 for d ≤ 3, and 1 in the limit of many directions.

    Raises:
        InputError: If d or P is below 1.
    """
    require_int("d", d, 1)
    require_int("P", P, 1)
    share = 2 / math.pi
    return share * (P + d + 1) / (d + (P - 1) * share)


def feedsign(honest: int, liars: int = 0) -> Statement:
    """The bound of FeedSign for h honest clients and f liars, K = P = 1, every step of length η, whatever η is.

        (1/R) Σ_r E‖∇f(x_r)‖ ≤ (D/(ηR) + ½ηκL)/c + 2 min(h/k, √(h/k)/c) √(σ² + σ_G²),   k = ⌊(h + f)/2⌋ + 1 − f

    c is E|⟨z, u⟩| of a unit vector u: √(2/π) for Gaussian z, a little more on the sphere. f, σ and σ_G are those of the
    honest clients, who all take part (M = m = h); liars may know everything.

    *Proof.* f(x_{r+1}) ≤ f(x_r) − ηv⟨a, z⟩ + ½η² zᵀHz, and E zᵀHz = T ≤ κL. Let W be the number of honest votes against
    sign⟨a, z⟩, e_i = u_i − a. Liars do most by voting against it, all of them. Then E v⟨a, z⟩ ≥ E|t|(1 − ψ), where ψ =
    2 if W + f > n/2, 1 if W + f = n/2 (z and −z occur alike and with the same W, and the tie's +1 is right for one of
    them), 0 otherwise.

    - ψ ≤ 2W/k. For odd n the vote fails from W = k on. For even n, ψ = 1 at W = k − 1 ≥ 1, and 1 ≤ 2(k − 1)/k if k ≥ 2,
      which f < h gives.
    - Who votes wrongly has |t| ≤ |⟨e_i, z⟩|, as ⟨u_i, z⟩ = t + ⟨e_i, z⟩ has another sign than t. So ψ|t| ≤ (2/k) Σ_i
      |⟨e_i, z⟩|, whose mean is at most (2c/k) Σ_i E‖e_i‖ ≤ 2c(h/k)√(σ² + σ_G²).
    - Also W t² ≤ Σ_i ⟨e_i, z⟩² and ψ ≤ 2√(W/k), so ψ|t| ≤ 2(Σ_i ⟨e_i, z⟩²/k)^{1/2}, whose mean is at most 2√(h/k)√(σ² +
      σ_G²).

    So ηE v⟨a, z⟩ ≥ ηc‖a‖ − ηc·2 min(·)√(σ² + σ_G²). Sum over r, divide by ηcR. ∎

    Returns:
        The statement; its left side is simulated, so ``theory.check`` needs ``source="simulation"``.

    Raises:
        InputError: If there are not more honest clients than liars.
    """
    require_int("honest", honest, 1)
    require_int("liars", liars, 0, honest - 1)
    share = sp.Rational(honest, (honest + liars) // 2 + 1 - liars)
    return Statement(
        f"feedsign, {honest} honest, {liars} liars",
        left=AVERAGE_NORM,
        step=_step(honest, liars),
        terms={
            "start": D / (_C * LENGTH * R),
            "length": LENGTH * kappa * L / (2 * _C),
            "votes": 2 * sp.Min(share, sp.sqrt(share) / _C) * sp.sqrt(sigma**2 + sigma_G**2),
        },
        constants={"length": step_length, "c": _mean_product},
        distributions=("gaussian", "sphere"),
        single_step=True,
        without=("mu",),
        assumptions=f"{ONE_HESSIAN}; M = m honest clients, all sampled, and liars who may know everything",
    )


def _mean_product(_: Any, setting: Setting) -> float:
    """E|⟨z, u⟩| of a unit vector u."""
    if setting.distribution == "gaussian":
        return _MEAN
    return math.sqrt(setting.d / math.pi) * math.exp(math.lgamma(setting.d / 2) - math.lgamma((setting.d + 1) / 2))


def _require_noise(gradient: float, noise: float) -> None:
    require_finite_positive("gradient", gradient)
    require(math.isfinite(noise) and noise >= 0, "noise", "be a finite number of at least 0", noise)


def _step(honest: int, liars: int) -> Step:
    """x⁺ = x − ηvz, v the majority of the honest clients' signs and of liars who vote against ∇f."""

    def step(losses: Losses, x: Floats, v: Floats, z: Floats, setting: Setting) -> tuple[Floats, Floats]:
        require(
            setting.m == setting.clients == honest, "m", f"be M = {honest}: all honest clients take part", setting.m
        )
        require(setting.P == 1, "P", "be 1", setting.P)
        z = z[:, 0]  # (runs, n); the honest clients' gradients are (runs, m, n), votes and majority (runs,)
        votes = np.where(np.einsum("rmn,rn->rm", losses.gradient(x), z) >= 0, 1.0, -1.0).sum(-1)
        against = np.where((losses.problem.gradient(x[:, 0]) * z).sum(-1) >= 0, -1.0, 1.0)
        majority = np.where(votes + liars * against >= 0, 1.0, -1.0)
        return x - step_length(None, setting) * (majority[:, None] * z)[:, None], v

    return step
