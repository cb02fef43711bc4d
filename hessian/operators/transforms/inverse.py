"""``hessian.solve``: H⁻¹b by conjugate gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from decomfl_lab.errors import plural, require, require_finite_positive, require_int
from decomfl_lab.objectives.function import enabled
from decomfl_lab.objectives.vectors import inner
from hessian.operators.matrices import as_operator
from hessian.operators.operator import Counted
from hessian.readings import Reading, Reported


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Solution(Reported):
    """The solution of Hx = b."""

    operator: str  # the name of the matrix
    d: int  # its dimension
    x: Any = field(repr=False)  # in the form of b
    residual: float  # ‖b − Hx‖/‖b‖, by a product of its own
    form: float  # bᵀx, which is at most bᵀH⁻¹b
    products: int  # all products with H
    rtol: float  # the residual that was asked for
    converged: bool  # whether it was reached

    def report(self) -> tuple[str, Sequence[Reading], str]:
        spent = f"after {plural(self.products, 'product')}"
        short = "" if self.converged else f"not within {self.rtol:.2g}: allow more products or damping, or take float64"
        title = f"solution with the {self.operator}, d = {self.d:,}: residual {self.residual:.2g} {spent}"
        readings = [Reading("bᵀx", self.form, words="bᵀH⁻¹b, from below"), Reading("‖b − Hx‖/‖b‖", self.residual)]
        return title, readings, short


def solve(operator: Any, b: Any, *, rtol: float = 1e-4, max_products: int = 200) -> Solution:
    """The x of Hx = b by conjugate gradients, for a positive definite H: ``solve(H + damping, b)`` for others.

    Args:
        operator: The matrix H, or what ``as_operator`` makes it of.
        b: The right side: a tensor (d,), or tensors in the shapes of the parameters, as a list or by name.
        rtol: The residual ‖b − Hx‖ to reach, relative to ‖b‖.
        max_products: The most products to spend, at least 2; the last one measures the residual.

    Raises:
        InputError: If a direction shows that H is not positive definite, or an argument breaks a rule.

    Source: Hestenes and Stiefel 1952.
    """
    require_finite_positive("rtol", rtol)
    require_int("max_products", max_products, 2)
    H = Counted(as_operator(operator))
    right = H.flat(b)
    require(right.shape == (H.d,) and bool(right.isfinite().all()), "b", f"be {H.d} finite numbers", tuple(right.shape))
    x, r = torch.zeros_like(right), right.clone()
    p, square, size = r.clone(), inner(r, r), math.sqrt(inner(r, r))
    with enabled():
        while math.sqrt(square) > rtol * size and H.products < max_products - 1:
            Hp = H.matvec(p)
            curvature = inner(p, Hp)
            if not curvature > 0:
                share = curvature / inner(p, p)
                remedy = f"add more than −λ_min, which is at least {-share:.3g}, or take the Gauss-Newton matrix"
                require(False, H.name, f"be positive definite ({remedy})", f"pᵀHp/‖p‖² = {share:.3g}")
            x.add_(p, alpha=square / curvature)
            r.sub_(Hp, alpha=square / curvature)
            before, square = square, inner(r, r)
            p.mul_(square / before).add_(r)
        off = right - H.matvec(x)  # the residual that is carried along may be smaller than the true one
    residual = math.sqrt(inner(off, off)) / (size or 1.0)
    return Solution(
        operator=H.name,
        d=H.d,
        x=H.like(b, x),
        residual=residual,
        form=inner(right, x),
        products=H.products,
        rtol=rtol,
        converged=residual <= rtol,
    )
