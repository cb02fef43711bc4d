"""What the estimators of this layer work on: a symmetric matrix that is known by its products with vectors."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError, is_number, require
from decomfl_lab.layout import ALIGNMENT, Layout
from decomfl_lab.objectives.trees import torch_tree
from decomfl_lab.objectives.vectors import inner


def digest(text: str, tensor: Tensor | None = None) -> str:
    """A digest of a text, and of a tensor's bytes."""
    h = hashlib.blake2b(text.encode(), digest_size=8)
    if tensor is not None:
        h.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return h.hexdigest()


def zeros(operator: Operator) -> Tensor:
    """A zero of the operator's space, (d,), a new tensor."""
    if operator.device.type != "cpu":
        return torch.zeros(operator.d, dtype=operator.dtype, device=operator.device)
    # numpy asks the system for large pages, and torch does not: d = 10⁷ takes 5 ms for 17, an eighth of a product.
    dtype = np.dtype(np.float32 if operator.dtype == torch.float32 else np.float64)
    room = np.zeros(operator.d + ALIGNMENT // dtype.itemsize, dtype)
    return torch.from_numpy(room[-room.ctypes.data % ALIGNMENT // dtype.itemsize :][: operator.d])


def is_finite(vector: Tensor) -> bool:
    """Whether all elements are finite, by one pass that makes no tensor of that size."""
    # A sum is finite only if its terms are; that of finite terms may overflow, and only then all are looked at.
    return math.isfinite(float(vector.sum())) or bool(torch.isfinite(vector).all())


class Noise(NamedTuple):
    """What products add to H, E: as measured, so that it is more by chance about once in a hundred times."""

    trace: float = 0.0  # the most that |tr(E)| is
    size: float = 0.0  # ‖E‖_F, which is at least ‖E‖₂


class Operator(ABC):
    """A symmetric matrix H in R^{d×d}, by its products: ``H @ v``, ``G + 0.1 * H``, ``H + 0.1``, ``H.to_scipy()``.

    A number that is added is that multiple of the identity: damping.

    A class of one's own that derives from it has these from ``matvec`` and ``fingerprint``, and is taken at its word:
    what other libraries or functions give is tried (``as_operator``).

    Attributes:
        name: What it is, for results: "hessian", "gauss-newton", "fisher", "smoothed", ...
        d: The dimension of the matrix.
        dtype: The dtype of the vectors that it takes and returns, float32 or float64.
        device: The device that the vectors are on.
        semidefinite: Whether H has no negative eigenvalue by construction.
        noise: What products add to H beside the rounding that ``precision`` tells; nothing, where it was not measured.
        layout: The names and shapes of the parameters that the d elements are; None where they are none.
    """

    name: str
    d: int
    dtype: torch.dtype
    device: torch.device
    semidefinite = False
    noise = Noise()
    layout: Layout | None = None
    __array_ufunc__ = None  # numpy's numbers leave a product with an operator to it

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of d = {self.d:,}, {self.dtype} on {self.device}>"

    @abstractmethod
    def matvec(self, v: Tensor) -> Tensor:
        """H v, shape (d,), a new tensor; v (d,) is not written."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest of everything that H depends on (model, data, mode, dtype): a saved run goes on with no other."""

    def quad(self, v: Tensor) -> float:
        """vᵀHv, by the cheapest way the operator has; accumulated in float64."""
        return inner(v, self.matvec(v))

    @property
    def shape(self) -> tuple[int, int]:
        """(d, d)."""
        return self.d, self.d

    @property
    def precision(self) -> float:
        """How fine products are, relative to their length; that of the dtype."""
        return torch.finfo(self.dtype).eps

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is to be said of H beside its numbers: what was not tried, or taken on trust."""
        return ()

    def gradient(self) -> Tensor | None:
        """∇f, (d,), where H is a matrix of a function f at a point; None where it is none."""
        return None

    @property
    def T(self) -> Operator:
        """Hᵀ, which is H."""
        return self

    def __matmul__(self, v: Any) -> Any:
        """H v for a vector (d,), or for each column of a matrix (d, n); as many products as there are columns.

        A list or tuple of tensors in the shapes of the parameters, or a dictionary by their names, gives one like it;
        an array of numpy gives an array.
        """
        if isinstance(v, np.ndarray):
            # A copy: scipy may hand over a part of an array of its own, in another dtype or read-only.
            mine = torch.tensor(np.ascontiguousarray(v), dtype=self.dtype, device=self.device)
            return (self @ mine).cpu().numpy()
        if isinstance(v, list | tuple | Mapping):
            return self.like(v, self @ self.flat(v))
        if not isinstance(v, Tensor):
            raise InputError(f"v must be a tensor, an array or tensors like the parameters, got {type(v).__name__}")
        fine = v.ndim == 1 or (v.ndim == 2 and v.shape[1] > 0)
        require(fine, "v", "be a vector (d,) or a matrix (d, n) of at least one column", tuple(v.shape))
        columns = [v] if v.ndim == 1 else [column.contiguous() for column in v.T]
        self._check(columns[0])
        products = [self.matvec(column) for column in columns]
        return products[0] if v.ndim == 1 else torch.stack(products, 1)

    def flat(self, tree: Any) -> Tensor:
        """The vector (d,) of tensors in the shapes of the parameters: in their order, or by name."""
        if isinstance(tree, Tensor):
            return tree
        layout = self.layout
        if layout is None:
            raise InputError(f"v must be a tensor with an operator that has no parameters, got {type(tree).__name__}")
        others = sorted(map(str, tree.keys() - set(layout.names))) if isinstance(tree, Mapping) else []
        require(not others, "v", "have the parameters' names alone", others)
        parts: Sequence[Any] = [tree.get(n) for n in layout.names] if isinstance(tree, Mapping) else tree
        got = [tuple(part.shape) if isinstance(part, Tensor) else None for part in parts]
        fits = got == [*layout.shapes]
        require(fits, "v", f"have the parameters' shapes {[tuple(shape) for shape in layout.shapes]}", got)
        return torch.cat([part.reshape(-1) for part in parts])

    def like(self, tree: Any, v: Tensor) -> Any:
        """The vector v in the form of ``tree``, which ``flat`` took."""
        if isinstance(tree, Tensor) or self.layout is None:
            return v
        named = self.layout.named(v)
        return {name: named[name] for name in tree} if isinstance(tree, Mapping) else type(tree)(named.values())

    def __add__(self, other: Operator | float) -> Operator:
        if is_number(other):
            return _Affine(self, 1.0, float(other))  # type: ignore[arg-type]
        return _Sum((self, other)) if isinstance(other, Operator) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Operator | float) -> Operator:
        return self + -1.0 * other if isinstance(other, Operator) or is_number(other) else NotImplemented

    def __rsub__(self, other: float) -> Operator:
        return -self + other if is_number(other) else NotImplemented

    def __truediv__(self, divisor: float) -> Operator:
        return self * (1 / divisor) if is_number(divisor) else NotImplemented

    def __mul__(self, factor: float) -> Operator:
        return _Affine(self, float(factor)) if is_number(factor) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Operator:
        return -1.0 * self

    def to_scipy(self) -> Any:
        """H as a ``scipy.sparse.linalg.LinearOperator``, for ``eigsh`` and the like: arrays of H's dtype on the CPU."""
        from scipy.sparse.linalg import LinearOperator

        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        product = self.__matmul__
        return LinearOperator(self.shape, matvec=product, rmatvec=product, matmat=product, rmatmat=product, dtype=dtype)

    def _check(self, v: Tensor) -> None:
        wanted = ((self.d,), self.dtype, self.device)
        got = (tuple(v.shape), v.dtype, v.device)
        require(got == wanted, "v", f"have shape, dtype and device {wanted}", got)


class _Sum(Operator):
    """Σ_j H_j of operators of one space."""

    def __init__(self, terms: Sequence[Operator]) -> None:
        spaces = [(term.d, term.dtype, term.device) for term in terms]
        require(len(set(spaces)) == 1, "operators of a sum", "have one dimension, dtype and device", spaces)
        self.terms = tuple(terms)
        self.name = " + ".join(term.name for term in terms)
        self.d, self.dtype, self.device = spaces[0]
        self.noise = Noise(sum(term.noise.trace for term in terms), sum(term.noise.size for term in terms))
        self.layout = terms[0].layout

    def matvec(self, v: Tensor) -> Tensor:
        total = self.terms[0].matvec(v)
        for term in self.terms[1:]:
            total += term.matvec(v)
        return total

    def quad(self, v: Tensor) -> float:
        return math.fsum(term.quad(v) for term in self.terms)

    def fingerprint(self) -> str:
        return digest(f"sum {[term.fingerprint() for term in self.terms]}")

    @property
    def precision(self) -> float:
        return max(term.precision for term in self.terms)

    @property
    def remarks(self) -> tuple[str, ...]:
        """See ``Operator``; each once."""
        return tuple(dict.fromkeys(remark for term in self.terms for remark in term.remarks))


class Around(Operator):
    """What is made of one other operator, ``inner``: S H Sᵀ with the identity for S, unless a class has another one."""

    def __init__(self, inner: Operator, name: str = "") -> None:
        """Something of ``inner``, which has its name unless another is given."""
        self.inner = inner
        self.name = name or inner.name
        self.d, self.dtype, self.device = inner.d, inner.dtype, inner.device
        self.semidefinite = inner.semidefinite
        self.noise, self.layout = inner.noise, inner.layout

    def lifted(self, v: Tensor) -> Tensor:
        """The vector Sᵀv of the space of ``inner``."""
        return v

    def reduced(self, v: Tensor) -> Tensor:
        """The vector Sv of this space, of a v of that of ``inner``."""
        return v

    def matvec(self, v: Tensor) -> Tensor:
        return self.reduced(self.inner.matvec(self.lifted(v)))

    def quad(self, v: Tensor) -> float:
        return self.inner.quad(self.lifted(v))

    @property
    def precision(self) -> float:
        return self.inner.precision

    def fingerprint(self) -> str:
        return self.inner.fingerprint()

    def gradient(self) -> Tensor | None:
        return self.inner.gradient() if self.d == self.inner.d else None

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.inner.remarks


class _Affine(Around):
    """c·H + s·I of an operator."""

    shift: float

    def __init__(self, inner: Operator, factor: float, shift: float = 0.0) -> None:
        compound = isinstance(inner, _Sum) or (isinstance(inner, _Affine) and inner.shift != 0)
        name = f"({inner.name})" if compound else inner.name
        name = inner.name if factor == 1 else f"{factor:g} × {name}"
        super().__init__(inner, f"{name} + {shift:g}" if shift else name)
        self.factor, self.shift = factor, shift
        self.semidefinite = inner.semidefinite and factor >= 0 and shift >= 0
        self.noise = Noise(*(abs(factor) * part for part in inner.noise))

    def matvec(self, v: Tensor) -> Tensor:
        product = self.inner.matvec(v)
        if not self.shift:
            return product.mul_(self.factor)
        return product.mul(self.factor).add_(v, alpha=self.shift)

    def quad(self, v: Tensor) -> float:
        return self.factor * self.inner.quad(v) + (self.shift * inner(v, v) if self.shift else 0.0)

    def fingerprint(self) -> str:
        shift = f" + {self.shift.hex()}" if self.shift else ""
        return digest(f"{self.factor.hex()} {self.inner.fingerprint()}{shift}")


class DenseOperator(Operator):
    """H as a dense matrix: the truth in tests, and for models of a few thousand parameters."""

    def __init__(self, matrix: Tensor | NDArray[Any], name: str = "dense") -> None:
        """Take the symmetric ``matrix`` (d, d), a tensor or array of float32 or float64; InputError if it is none."""
        matrix = torch_tree(matrix)
        if not isinstance(matrix, Tensor):
            raise InputError(f"matrix must be a tensor or an array, got {type(matrix).__name__}")
        matrix = matrix.detach()
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
        return self.matrix @ v

    def fingerprint(self) -> str:
        return digest("", self.matrix)


class BlockOperator(Around):
    """S H Sᵀ, S the rows of the identity at some places of x. A product costs one with H, and two vectors of its size.

    It has the name of H, as the block of a positive semi-definite matrix is one too.
    """

    def __init__(self, inner: Operator, places: Sequence[slice]) -> None:
        """The block of ``inner`` at these places, each with a beginning and an end within its d elements."""
        super().__init__(inner)
        self.places = tuple(places)
        self.sizes = [place.stop - place.start for place in places]
        self.d = sum(self.sizes)
        if self.d != inner.d:  # ‖E‖_F is no larger on a part of the space, and |tr(E)| at most √d‖E‖_F there
            self.noise = Noise(math.sqrt(self.d) * inner.noise.size, inner.noise.size)

    def fingerprint(self) -> str:
        return digest(f"{self.places} {self.inner.fingerprint()}")

    def reduced(self, v: Tensor) -> Tensor:
        return torch.cat([v[place] for place in self.places])

    def lifted(self, v: Tensor) -> Tensor:
        """See ``Around``: v at the places, 0 elsewhere."""
        whole = v.new_zeros(self.inner.d)
        for place, part in zip(self.places, v.split(self.sizes), strict=True):
            whole[place] = part
        return whole


class Counted(Around):
    """An operator that counts its products and refuses those that are not finite."""

    def __init__(self, operator: Operator, *, noisy: bool = False) -> None:
        """Count products of ``operator``; InputError if its dimension or dtype is none.

        With ``noisy``, whoever counts has room for what products add to H, and else they must add nothing.
        """
        require(operator.d >= 1, "operator", "have a dimension of at least 1", operator.d)
        require(operator.dtype in (torch.float32, torch.float64), "operator", "be float32 or float64", operator.dtype)
        fine = noisy or operator.noise.size == 0
        require(fine, "compute", "be float32 where intervals have no room for the noise of products", operator.name)
        super().__init__(operator)
        self.products = 0  # the number of products so far, quadratic forms included
        self.quadratic_forms = 0  # the number of those that gave only vᵀHv

    def matvec(self, v: Tensor) -> Tensor:
        """H v, see ``Operator``; InputError that names the product if it is not finite."""
        self.products += 1
        w = self.inner.matvec(v)
        # The identity may give v itself, and products are written to; one that begins elsewhere has other sums.
        if w.untyped_storage().data_ptr() == v.untyped_storage().data_ptr() or w.data_ptr() % ALIGNMENT:
            w = w.clone()
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
