"""Products that are counted and checked, whichever estimator asks for them."""

import math

import torch
from torch import Tensor

from decomfl_lab.errors import require
from hessian.operators.operator import Around, Operator, is_finite


class Counted(Around):
    """An operator that counts its products and refuses those that are not finite."""

    def __init__(self, operator: Operator, products: int = 0, quadratic_forms: int = 0) -> None:
        """Count products of ``operator`` from ``products`` on; InputError if its dimension or dtype is none."""
        require(operator.d >= 1, "operator", "have a dimension of at least 1", operator.d)
        require(operator.dtype in (torch.float32, torch.float64), "operator", "be float32 or float64", operator.dtype)
        super().__init__(operator)
        self.products = products  # the number of products so far, quadratic forms included
        self.quadratic_forms = quadratic_forms  # the number of those that gave only vᵀHv

    def matvec(self, v: Tensor) -> Tensor:
        """H v, see ``Operator``; InputError that names the product if it is not finite."""
        self.products += 1
        w = self.inner.matvec(v)
        if w.untyped_storage().data_ptr() == v.untyped_storage().data_ptr():
            w = w.clone()  # the identity may give v itself, and products are written to
        require(w.shape == (self.d,), self._what(), f"have shape ({self.d},)", tuple(w.shape))
        if not is_finite(w):
            broken = int((~torch.isfinite(w)).sum())
            require(broken == 0, self._what(), "be finite", f"NaN or infinity in {broken} of {self.d} elements")
        return w

    def quad(self, v: Tensor) -> float:
        """vᵀHv, see ``Operator``; InputError that names the product if it is not finite."""
        self.products += 1
        self.quadratic_forms += 1
        value = float(self.inner.quad(v))
        require(math.isfinite(value), self._what(), "be finite", value)
        return value

    def _what(self) -> str:
        return f"product {self.products} of {self.name}"
