"""What the estimators of this layer work on: a symmetric matrix that is known by its products with vectors."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError, require
from decomfl_lab.objectives.trees import torch_tree

__all__ = ["DenseOperator", "Operator", "is_finite", "zeros"]


class Operator(Protocol):
    """A symmetric matrix H in R^{d×d}, by its products.

    Attributes:
        name: What it is, for results: "hessian", "gauss-newton", "fisher", "smoothed", ...
        d: The dimension of the matrix.
        dtype: The dtype of the vectors that it takes and returns, float32 or float64.
        device: The device that the vectors are on.
    """

    name: str
    d: int
    dtype: torch.dtype
    device: torch.device

    def matvec(self, v: Tensor) -> Tensor:
        """H v, shape (d,), a new tensor; v (d,) is not written."""
        ...

    def quad(self, v: Tensor) -> float:
        """vᵀHv, by the cheapest way the operator has."""
        ...

    def fingerprint(self) -> str:
        """A digest of everything that H depends on (model, data, mode, dtype): a saved run goes on with no other."""
        ...


def zeros(operator: Operator) -> Tensor:
    """A zero of the operator's space, (d,), a new tensor."""
    if operator.device.type != "cpu":
        return torch.zeros(operator.d, dtype=operator.dtype, device=operator.device)
    # numpy asks the system for large pages, and torch does not: d = 10⁷ takes 5 ms for 17, an eighth of a product.
    return torch.from_numpy(np.zeros(operator.d, np.float32 if operator.dtype == torch.float32 else np.float64))


def is_finite(vector: Tensor) -> bool:
    """Whether all elements are finite, by one pass that makes no tensor of that size."""
    # A sum is finite only if its terms are; that of finite terms may overflow, and only then all are looked at.
    return math.isfinite(float(vector.sum())) or bool(torch.isfinite(vector).all())


class DenseOperator:
    """H as a dense matrix: the truth in tests, and for models of a few thousand parameters."""

    def __init__(self, matrix: Tensor | NDArray[Any], name: str = "dense") -> None:
        """Take the symmetric ``matrix`` (d, d), a tensor or array of float32 or float64; InputError if it is none."""
        matrix = torch_tree(matrix)
        if not isinstance(matrix, Tensor):
            raise InputError(f"matrix must be a tensor or an array, got {type(matrix).__name__}")
        require(matrix.dtype in (torch.float32, torch.float64), "matrix", "be of float32 or float64", matrix.dtype)
        require(matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1], "matrix", "be square", tuple(matrix.shape))
        require(bool(torch.isfinite(matrix).all()), "matrix", "be finite", "NaN or infinity")
        gap, scale = float((matrix - matrix.T).abs().max()), float(matrix.abs().max())
        require(gap <= 1e-5 * scale, "matrix", "be symmetric", f"|A - Aᵀ| up to {gap:.3g}")
        self.name = name
        self.matrix = matrix
        self.d = matrix.shape[0]
        self.dtype = matrix.dtype
        self.device = matrix.device

    def matvec(self, v: Tensor) -> Tensor:
        """See ``Operator``."""
        return self.matrix @ v

    def quad(self, v: Tensor) -> float:
        """See ``Operator``."""
        return float(v.double() @ self.matvec(v).double())

    def fingerprint(self) -> str:
        """See ``Operator``."""
        return hashlib.blake2b(self.matrix.cpu().numpy().tobytes(), digest_size=8).hexdigest()
