"""Matrices that come from outside: tensors, arrays, scipy's and other libraries' operators, functions of a vector.

What is outside keeps no promise of this package, so it is tried at the start, by three products with two fixed random
vectors u and v:

    H(−2u) = −2 Hu      it is linear, and the same each time: what draws examples or noise anew is not
    uᵀ(Hv) = vᵀ(Hu)     it is symmetric: for Gaussian u and v the difference is as large as ‖H − Hᵀ‖_F

The vector must not be written, and the result be d finite numbers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError, known_options, require, require_choice, require_int
from decomfl_lab.objectives.trees import torch_tree
from hessian.operators.operator import DenseOperator, Operator, digest
from hessian.operators.options import DTYPES
from hessian.operators.probes import probe

_TRIAL = 11  # stage of the vectors u and v
_AGREES = 1e-3
"""What may differ, relative to ‖Hu‖: products by differences are no finer. What does differ is how fine they are taken
to be, and κ's interval has room for it. A fault of order 1 is seen; one of a hundredth of ‖H‖_F may pass."""


class FunctionOperator(Operator):
    """H as a function v ↦ Hv that is called with a tensor (d,) and returns one, or an array."""

    @known_options
    def __init__(
        self,
        product: Callable[[Tensor], Any],
        d: int,
        *,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        name: str = "function",
        trust: bool = False,
    ) -> None:
        """Try the function by three products, which no result counts.

        Args:
            product: The function. It is the same at every call, linear, symmetric, and does not write to v.
            d: The dimension of the matrix.
            dtype: The dtype of v, float32 or float64; the result is cast to it.
            device: The device of v.
            name: What H is called in results.
            trust: Whether nothing is tried.

        Raises:
            InputError: If the function is none of these, an argument breaks a rule, or the result has not d finite
                numbers.
        """
        require(callable(product), "product", "be a function of a vector", product)
        self.product, self.name, self.trusted = product, name, trust
        self.d = require_int("d", d, 1)
        self.dtype = dtype_of(dtype)
        self.device = torch.device(device)
        self._precision = torch.finfo(self.dtype).eps
        self._fingerprint = "" if trust else self._tried()

    @property
    def precision(self) -> float:
        """How fine products are, as far as the trial tells: a function may work more coarsely than in its dtype."""
        return self._precision

    def matvec(self, v: Tensor) -> Tensor:
        """See ``Operator``; InputError where the function returns no d numbers."""
        product = torch_tree(self.product(v))
        if not isinstance(product, Tensor):
            raise InputError(f"{self._what} must be a tensor or an array, got {type(product).__name__}")
        fits = tuple(product.shape) == (self.d,) and product.dtype in (torch.float32, torch.float64)
        rule = f"have shape ({self.d},) and numbers of float32 or float64"
        require(fits, self._what, rule, (tuple(product.shape), product.dtype))
        self._precision = max(self._precision, torch.finfo(product.dtype).eps)
        mine = product.detach().to(self.device, self.dtype)
        # The function may return v itself, or keep what it returns: a new tensor is nobody else's.
        return mine.clone() if mine.data_ptr() == product.data_ptr() else mine

    def fingerprint(self) -> str:
        """A digest of Hu to the bit, u a fixed random vector: nothing else can be known of a function.

        Two matrices with one digest are equal along a random vector, so they are the same but for an accident of
        probability 0. One matrix has two digests where its products are not the same to the bit from one process to the
        next (sums in no fixed order); its checkpoints are then refused.
        """
        return self._fingerprint or self._digest(self.matvec(probe(self, 0, _TRIAL, 0)))

    @property
    def remarks(self) -> tuple[str, ...]:
        return (f"{self.name} was taken on trust",) if self.trusted else ()

    @property
    def _what(self) -> str:
        return f"what {self.name} gives for a vector"

    def _digest(self, product: Tensor) -> str:
        return digest(f"{self.name} {self.d} {self.dtype}", product)

    def _tried(self) -> str:
        """The digest of Hu; InputError unless the function is linear, symmetric and the same each time."""
        u, v = (probe(self, 0, _TRIAL, i) for i in range(2))
        kept = u.clone()
        Hu = self.matvec(u)
        require(torch.equal(u, kept), self.name, "not write to the vector that it is given", "another vector after it")
        require(bool(torch.isfinite(Hu).all()), self._what, "be finite", "NaN or infinity")
        size = float(Hu.double().norm())
        twice = float((self.matvec(-2 * kept) + 2 * Hu).double().norm()) / 2
        if not twice <= _AGREES * size:
            again = float((self.matvec(kept) - Hu).double().norm())
            rule = "be linear, H(-2v) = -2 Hv"
            if not again <= _AGREES * size:
                rule = "give the same product for the same vector (is there noise, dropout, or a new batch?)"
                twice = again
            raise InputError(f"{self.name} must {rule}, got a difference of {twice / size if size else twice:.2g} ‖Hv‖")
        Hv = self.matvec(v)
        left, right = (float(a.double() @ b.double()) for a, b in ((kept, Hv), (v, Hu)))
        size = max(size, float(Hv.double().norm()))
        symmetric = abs(left - right) <= _AGREES * size
        require(symmetric, self.name, "be symmetric, uᵀHv = vᵀHu", (left, right))
        if size > 0:
            self._precision = max(self._precision, twice / size, abs(left - right) / size)
        return self._digest(Hu)


def dtype_of(dtype: torch.dtype | str) -> torch.dtype:
    """float32 or float64, which may be given by its name."""
    name = str(dtype).removeprefix("torch.")
    chosen: torch.dtype = getattr(torch, require_choice("dtype", name, DTYPES))
    return chosen


@known_options
def as_operator(
    matrix: Any, d: int | None = None, *, dtype: torch.dtype | str | None = None, name: str = "", trust: bool = False
) -> Operator:
    """A symmetric matrix of any kind as an ``Operator``, tried by three products unless it is dense.

    Args:
        matrix: An ``Operator``, which is returned; a tensor or array (d, d); whatever has ``shape``, ``dtype`` and
            ``@``, as a sparse matrix or ``LinearOperator`` of scipy, or an operator of curvlinops; or a function of a
            tensor (d,) that returns Hv.
        d: The dimension, of a function alone.
        dtype: The dtype of the vectors that a function takes, float32 (the default) or float64; the others have one.
        name: What it is called in results; the name of its class by default.
        trust: Whether nothing is tried.

    Raises:
        InputError: If it is none of these, is not square, of float32 or float64, linear, symmetric and the same each
            time, or writes to the vector that it is given.
    """
    if isinstance(matrix, Operator):
        require(d is None and dtype is None, "d and dtype", "stay unset with an operator, which has them", (d, dtype))
        return matrix
    shaped = all(hasattr(matrix, each) for each in ("shape", "dtype", "__matmul__"))
    if not shaped:
        known = "a torch module, an operator (hessian.Operator), a matrix or a function of a vector with its d"
        require(callable(matrix), "model", f"be {known}", type(matrix).__name__)
        if d is None:
            raise InputError("d must be given with a function of a vector, as the dimension of its matrix, got None")
        called = name or getattr(matrix, "__name__", type(matrix).__name__)
        return FunctionOperator(matrix, d, dtype=dtype or torch.float32, name=called, trust=trust)
    require(d is None and dtype is None, "d and dtype", "stay unset with a matrix, which has them", (d, dtype))
    shape = tuple(matrix.shape)
    called = name or type(matrix).__name__
    require(len(shape) == 2 and shape[0] == shape[1], f"shape of {called}", "be (d, d)", shape)
    masked = isinstance(matrix, np.ma.MaskedArray)
    require(not masked, called, "have no mask (matrix.filled(0.0) is one matrix without it)", "a masked array")
    if isinstance(matrix, np.ndarray) or (isinstance(matrix, Tensor) and matrix.layout == torch.strided):
        return DenseOperator(matrix, name or "dense")
    bits = str(matrix.dtype).removeprefix("torch.")
    require(bits in DTYPES, f"dtype of {called}", "be float32 or float64", bits)
    if isinstance(matrix.dtype, torch.dtype):
        device = getattr(matrix, "device", "cpu")
        return FunctionOperator(lambda v: matrix @ v, shape[0], dtype=bits, device=device, name=called, trust=trust)

    def product(v: Tensor) -> NDArray[Any]:
        return np.asarray(matrix @ v.numpy())

    return FunctionOperator(product, shape[0], dtype=bits, name=called, trust=trust)
