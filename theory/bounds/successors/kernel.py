"""How far P random directions move a network's tangent kernel; proved in docs/two-theories.md.

One step of descent along A = (1/P) Σ_p z_p z_pᵀ in place of I changes a network's outputs by K_P = J A Jᵀ in place of
K = JJᵀ. Both depend on the network by the spectrum of K alone (Gaussian and sphere), so a ``Quadratic`` with H = JᵀJ
stands for it, and its κ = tr(K)/‖K‖ is r, the kernel's effective rank: ``hessian.tangent_kernel``.
"""

from typing import Final

import numpy as np
import sympy as sp

from decomfl_lab.errors import InputError, require_choice
from theory.notation.setting import DISTRIBUTIONS, Setting
from theory.notation.symbols import L, P, d, kappa, symbol
from theory.notation.units import F, X
from theory.problems.problem import Bowl, Floats
from theory.problems.quadratic import Quadratic, spread
from theory.statements.algorithms import Losses
from theory.statements.left_sides import Left, MeasuredSide
from theory.statements.statement import Constant, Statement

_UNIT: Final = F / X**2
_TRACE: Final = symbol("T", _UNIT)  # tr K
_SQUARES: Final = symbol("T2", _UNIT**2)  # ‖K‖_F²
_DIAGONAL: Final = symbol("S", _UNIT**2)  # Σ_j (JᵀJ)_jj²


def _error2(quadratic: Quadratic, setting: Setting) -> MeasuredSide:
    """E‖K_P‖_F² − ‖K‖_F², as E‖K_P‖_F² = tr(H E AHA)."""
    spectrum = quadratic.spectrum
    moved = spread(quadratic, setting, spectrum.eigenvalues * spectrum.multiplicities)
    return MeasuredSide(float(spectrum.eigenvalues @ moved) - spectrum.power_sum(2))


def _errors(losses: Losses, x: Floats, v: Floats, z: Floats, setting: Setting) -> tuple[Floats, Floats]:
    """The eigenvalues of K_P − K in place of x⁺: what these statements bound is a norm of them."""
    problem = losses.problem
    if not isinstance(problem, Bowl):
        raise InputError(f"problem must be a Quadratic, whose H has K's spectrum, got {type(problem).__name__}")
    moved = z * np.sqrt(problem.eigenvalues)  # (runs, P, n): a run's rows have K_P's eigenvalues but for 1/P
    errors = np.linalg.eigvalsh(np.einsum("rpi,rpj->rij", moved, moved) / setting.P - np.diag(problem.eigenvalues))
    return np.broadcast_to(errors[:, None], x.shape), v


FROBENIUS: Final = Left(
    "E‖K_P − K‖_F²", _UNIT**2, lambda _, x: (x[1] ** 2).sum(-1), closed={Quadratic: _error2}, step=_errors
)
NORM: Final = Left("E‖K_P − K‖", _UNIT, lambda _, x: np.abs(x[1]).max(-1), step=_errors)
BELOW: Final = Left("−E‖K_P − K‖", _UNIT, lambda _, x: -np.abs(x[1]).max(-1), step=_errors)


def _power_sum(n: int) -> Constant:
    """The value of tr Kⁿ as a constant of a statement."""

    def value(problem: Quadratic | Bowl, _: Setting) -> float:
        quadratic = problem.quadratic if isinstance(problem, Bowl) else problem
        return quadratic.spectrum.power_sum(n)

    return value


def kernel_frobenius(distribution: str = "gaussian") -> Statement:
    """The exact mean square error of the kernel: both sides are equal.

        gaussian    ((tr K)² + ‖K‖_F²)/P
        sphere      (d/(d + 2) ((tr K)² + 2‖K‖_F²) − ‖K‖_F²)/P
        rademacher  ((tr K)² + ‖K‖_F² − 2 Σ_j (JᵀJ)_jj²)/P

    A ``Quadratic`` has a diagonal H, so for signs it stands for networks whose JᵀJ is diagonal alone. As both sides are
    equal, a simulation leaves undecided whether one is the larger.

    Raises:
        InputError: If the distribution is none.
    """
    require_choice("distribution", distribution, DISTRIBUTIONS)
    fourth = {
        "gaussian": _TRACE**2 + 2 * _SQUARES,
        "sphere": d / (d + 2) * (_TRACE**2 + 2 * _SQUARES),
        "rademacher": _TRACE**2 + 2 * _SQUARES - 2 * _DIAGONAL,
    }[distribution]
    constants = {"T": _power_sum(1), "T2": _power_sum(2), "S": _power_sum(2)}
    return Statement(
        f"kernel-frobenius, {distribution}",
        left=FROBENIUS,
        step=_errors,
        terms={"error": (fourth - _SQUARES) / P},
        constants={name: constants[name] for name in ("T", "T2", *(("S",) if distribution == "rademacher" else ()))},
        distributions=(distribution,),
        assumptions="independent directions",
    )


KERNEL_NORM: Final = Statement(
    "kernel-norm",
    left=NORM,
    step=_errors,
    terms={
        "root": 2 * L * (sp.sqrt(kappa) + 2) / sp.sqrt(P),
        "rest": L * ((sp.sqrt(kappa) + 2) ** 2 + 1) / P,
    },
    distributions=("gaussian", "sphere"),
    assumptions="independent directions",
)
"""E‖K_P − K‖/‖K‖ ≤ 2(√r + 2)/√P + ((√r + 2)² + 1)/P, whatever the spectrum is."""

KERNEL_NORM_BELOW: Final = Statement(
    "kernel-norm-below",
    left=BELOW,
    step=_errors,
    terms={
        "least": -L
        * sp.Max(
            sp.sqrt(2 * (kappa - 1) / (sp.pi * (P + 1))), kappa / P - 1, 2 * sp.exp(-1 / (6 * P)) / sp.sqrt(sp.pi * P)
        )
    },
    distributions=("gaussian",),
    assumptions="independent directions",
)
"""E‖K_P − K‖/‖K‖ ≥ max(√(2(r − 1)/(π(P + 1))), r/P − 1, 2e^(−1/(6P))/√(πP)), both sides with a minus."""
