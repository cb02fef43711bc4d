"""``hessian.solve``: H⁻¹b by conjugate gradients."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from decomfl_lab.errors import plural, require, require_finite_positive, require_int
from decomfl_lab.objectives.function import enabled
from decomfl_lab.objectives.vectors import inner
from hessian.operators.matrices import as_operator
from hessian.operators.operator import Counted
from hessian.readings import Reading, Reported

_SURE = 0.9
"""So much of the residual asked for ends the one that is carried along: by rounding the true one differs from it."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Solution(Reported):
    """The solution of (H + damping·I) x = b."""

    operator: str  # the name of the matrix, damping included
    d: int  # its dimension
    x: Any = field(repr=False)  # in the form of b
    residual: float  # ‖b − Hx‖/‖b‖, by a product of its own
    form: float  # bᵀx, which is bᵀH⁻¹b: at most that for a positive definite H, but for rounding
    products: int  # all products with H
    rtol: float  # the residual that was asked for
    converged: bool  # whether it is that small

    @property
    def title(self) -> str:
        """See ``Reported``."""
        short = "" if self.converged else f", not the {self.rtol:.2g} asked for: allow more products, or damp"
        spent = f"residual {self.residual:.2g} after {plural(self.products, 'product')}{short}"
        return f"solution with the {self.operator}, d = {self.d:,}: {spent}"

    @property
    def readings(self) -> tuple[Reading, ...]:
        """See ``Reported``."""
        return (
            Reading("bᵀH⁻¹b", self.form, words="from below"),
            Reading("‖b − Hx‖/‖b‖", self.residual, words=f"after {plural(self.products, 'product')}"),
        )

    def to_json(self) -> dict[str, Any]:
        """Every field but x, ready for ``json.dumps``."""
        own = (self.operator, self.d, self.residual, self.form, self.products, self.rtol, self.converged)
        names = ("operator", "d", "residual", "form", "products", "rtol", "converged")
        return dict(zip(names, own, strict=True))


def solve(operator: Any, b: Any, *, damping: float = 0.0, rtol: float = 1e-4, max_products: int = 200) -> Solution:
    """The x of (H + damping·I) x = b by conjugate gradients, for a positive definite H.

    Args:
        operator: The matrix H, or what ``as_operator`` makes it of.
        b: The right side: a tensor (d,), or tensors in the shapes of the parameters, as a list or by name.
        damping: What is added to every eigenvalue of H, at least 0.
        rtol: The residual ‖b − Hx‖ to reach, relative to ‖b‖.
        max_products: The most products to spend, at least 2; the last one measures the residual.

    Raises:
        InputError: If a direction shows that H is not positive definite, or an argument breaks a rule.

    Source: Hestenes and Stiefel 1952.
    """
    require_finite_positive("rtol", rtol)
    require_int("max_products", max_products, 2)
    require(damping >= 0 and math.isfinite(damping), "damping", "be a finite number of at least 0", damping)
    damped = as_operator(operator)
    damped = damped + damping if damping else damped
    H, right = Counted(damped), damped.flat(b)
    require(right.shape == (H.d,) and bool(right.isfinite().all()), "b", f"be {H.d} finite numbers", tuple(right.shape))
    x, r = torch.zeros_like(right), right.clone()
    p, square, size = r.clone(), inner(r, r), math.sqrt(inner(r, r))
    with enabled():
        while math.sqrt(square) > _SURE * rtol * size and H.products < max_products - 1:
            Hp = H.matvec(p)
            curvature = inner(p, Hp)
            if not curvature > 0:
                share = curvature / inner(p, p)
                remedy = f'damping above {-share:.3g}, or the Gauss-Newton matrix (operator="gauss-newton"), may do'
                require(False, damped.name, f"be positive definite; {remedy}", f"pᵀHp/‖p‖² = {share:.3g}")
            x.add_(p, alpha=square / curvature)
            r.sub_(Hp, alpha=square / curvature)
            before, square = square, inner(r, r)
            p.mul_(square / before).add_(r)
        off = right - H.matvec(x)
    residual = math.sqrt(inner(off, off)) / (size or 1.0)
    return Solution(
        operator=damped.name,
        d=H.d,
        x=damped.like(b, x),
        residual=residual,
        form=inner(right, x),
        products=H.products,
        rtol=rtol,
        converged=residual <= rtol,
    )
