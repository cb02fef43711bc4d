"""FZOO: a step divided by the spread of its own scalars; proved in docs/methods-theory.md."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import sympy as sp
from scipy import optimize

from decomfl_lab.errors import require, require_int
from theory.bounds.successors.signs import AVERAGE_NORM, LENGTH, step_length
from theory.notation.setting import Setting
from theory.notation.symbols import D, L, P, R, kappa, m, phi, sigma, sigma_G, symbol
from theory.problems.problem import Floats
from theory.statements.algorithms import Losses
from theory.statements.statement import ONE_HESSIAN, Statement


@dataclass(frozen=True)
class NormalisedStep:
    """Moments of S = (1/(Ps)) Σ_p g_p z_p, g_p = ⟨a, z_p⟩ along Gaussian z_p, s their standard deviation.

    E S = c a/‖a‖,   E SᵀHS = b(tr H + (P − 1)uᵀHu),  u = a/‖a‖
    """

    c: float  # √(2/(P − 1)) Γ(P/2)/Γ((P − 1)/2) · (P − 1)²/(P(P − 2)); near 1
    b: float  # (P − 1)(P − 2)/((P − 3)P²); near 1/P


def normalised_step(P: int) -> NormalisedStep:
    """The moments for P directions.

    Let ν = P − 1 and u = a/‖a‖.

    *Proof.* g_p = ‖a‖N_p, so z_p = N_p u + w_p with w_p orthogonal to u and independent of the N. Let A = Σ N_p² = νs²
    + PN̄² (‖a‖ = 1); N̄ and s are independent, N̄ has variance 1/P, νs² is χ² with ν degrees of freedom: E s =
    √(2/ν)Γ(P/2)/Γ(ν/2), E 1/s = (ν/(ν − 1))E s for ν > 1, E 1/s² = ν/(ν − 2) for ν > 2. Along u, S is A/(Ps): its mean
    is (ν E s + E 1/s)/P = c_P, its square's (ν² E s² + 2ν + 3E 1/s²)/P² = ν(ν² − 1)/((ν − 2)P²) = Pb_P. Each direction
    orthogonal to it has E A/(P²s²) = (ν + ν/(ν − 2))/P² = b_P. ∎

    Raises:
        InputError: If P is below 4: E‖S‖² is infinite for P = 2 and 3, and E S for P = 2.
    """
    require_int("P", P, 4)
    mean = math.sqrt(2 / (P - 1)) * math.exp(math.lgamma(P / 2) - math.lgamma((P - 1) / 2))
    return NormalisedStep(c=mean * (P - 1) ** 2 / (P * (P - 2)), b=(P - 1) * (P - 2) / ((P - 3) * P**2))


def forward_passes_saved(P: int, fall: float) -> float:
    """How many times fewer forward passes FZOO needs than central differences, each with its best constant η.

        2P/(P + 1) · (1/P) 2 ln ϱ / ((b/(2c²)) min_θ ((ϱ − 1) + θ ln((ϱ − θ)/(1 − θ)))/θ),   0 < θ < 1

    Both have P ≥ 4 directions and lead from ‖x_0‖ to ‖x_0‖/ϱ on f = ½L‖x‖², d ≫ P, without noise; ϱ = ``fall`` > 1 is
    by what the gradient's norm falls. InputError if one of them is out of range.
    """
    moments = normalised_step(P)
    require(1 < fall < math.inf, "fall", "be a finite number above 1", fall)

    def steps(theta: float) -> float:
        return ((fall - 1) + theta * math.log((fall - theta) / (1 - theta))) / theta

    least = optimize.minimize_scalar(steps, bounds=(0.0, 1.0), method="bounded").fun
    return 2 * P / (P + 1) * (2 * math.log(fall) / P) / (moments.b / (2 * moments.c**2) * float(least))


def _step(losses: Losses, x: Floats, v: Floats, z: Floats, setting: Setting) -> tuple[Floats, Floats]:
    """x⁺ = x − (η/(Ps)) Σ_p g_p z_p with g_p the mean over the clients of ⟨∇f_i, z_p⟩; no step where s = 0."""
    g = np.einsum("rn,rpn->rp", losses.gradient(x).mean(1), z)
    s = g.std(axis=1, ddof=1, keepdims=True)
    c = np.divide(g, s, out=np.zeros_like(g), where=s > 0)
    return x - step_length(None, setting) / setting.P * np.einsum("rp,rpn->rn", c, z)[:, None], v


_C, _B = symbol("c"), symbol("b")

fzoo: Final = Statement(
    "fzoo",
    left=AVERAGE_NORM,
    step=_step,
    terms={
        "start": D / (_C * LENGTH * R),
        "length": LENGTH * _B * (kappa + P - 1) * L / (2 * _C),
        "noise": 2 * sp.sqrt((sigma**2 + phi * sigma_G**2) / m),
    },
    constants={
        "length": step_length,
        "c": lambda _, setting: normalised_step(setting.P).c,
        "b": lambda _, setting: normalised_step(setting.P).b,
    },
    distributions=("gaussian",),
    single_step=True,
    without=("mu",),
    assumptions=ONE_HESSIAN,
    note="P ≥ 4. η is the length of a step, in units of x, and nothing limits it.",
)
"""(1/R) Σ_r E‖∇f(x_r)‖ ≤ D/(cηR) + ηb(κ + P − 1)L/(2c) + 2√((σ² + φσ_G²)/m), c and b of ``normalised_step``."""
