"""Lanczos with full reorthogonalisation: outer eigenvalues with their residuals, and a space to deflate."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.devices import available_memory, free_memory
from decomfl_lab.errors import Told, require, require_finite_positive, require_int
from decomfl_lab.storage.outside import SavedKrylov, SavedPoles
from hessian.operators.matrices import as_operator
from hessian.operators.operator import Counted, Operator
from hessian.operators.probes import probe
from hessian.resumption import Checkpoint
from hessian.spectrum.unseen_eigenvalues import Hidden, Pole

Array = NDArray[np.float64]

START = 1  # stage of the probes that Lanczos starts from, and starts again from when its space is invariant

LEAST_BASIS = 4  # the fewest vectors that a basis may be bounded by
_SHARE = 0.9  # of the memory that is left so much is taken at most without being told: graphs are not counted

_FINE, _COARSE = 1 << 15, 1 << 17
"""Elements of a block on the CPU. Within one, sums are of the vectors' dtype, and beyond it float64: of 10⁶ terms of
one sign a sum in float32 is 60 units of rounding off, in coarse blocks 3 and in fine ones 1/2. Coarse ones take less
time, and do where terms are of both signs. Other devices sum a whole vector well, in one launch."""

_LEAST = 1e-24  # where a sum in float32 is below it, and all others are, terms may be so small that they were lost
_BLOCKS = 4  # so many of one vector stay in the cache while those of a basis pass by
SMALL = 0.1  # a vector that loses a larger part of its length to a basis is not orthogonal to it to rounding
_ROUNDING = 4  # units: so much of another vector is in one that is orthogonal to it


def dot(u: Tensor, v: Tensor) -> float:
    """The inner product of two vectors, summed in float64 by blocks."""
    return coefficients([u], v)[0]


def coefficients(vectors: Sequence[Tensor], v: Tensor, block: int = _FINE, *, wide: bool = False) -> list[float]:
    """Qv for the rows Q = vectors, (k,), summed in float64; within blocks in the dtype of Q, unless ``wide``."""
    dtype = torch.float64 if wide else vectors[0].dtype
    size = block if v.device.type == "cpu" else len(v)
    blocks, rows = v.split(size), [q.split(size) for q in vectors]
    dots: list[list[Tensor]] = [[] for _ in vectors]  # of each row, those of its blocks
    for first in range(0, len(blocks), _BLOCKS):
        some = slice(first, first + _BLOCKS)
        parts = [part.to(dtype) for part in blocks[some]]
        for row, of_row in zip(rows, dots, strict=True):
            of_row.extend(torch.dot(part.to(dtype), mine) for part, mine in zip(row[some], parts, strict=True))
    terms = torch.stack([term for of_row in dots for term in of_row]).view(len(vectors), -1)
    sums: list[float] = terms.double().sum(1).tolist()
    if dtype == torch.float32 and not _LEAST < max(map(abs, sums)) < math.inf:
        return coefficients(vectors, v, block, wide=True)
    return sums


def _add_(v: Tensor, vectors: Sequence[Tensor], c: Sequence[float]) -> Tensor:
    """The sum v + Qᵀc in place of v, for the rows Q = vectors; those of no weight are not read."""
    size = _BLOCKS * _COARSE if v.device.type == "cpu" else len(v)
    rows = [(q.split(size), weight) for q, weight in zip(vectors, c, strict=True) if weight]
    for i, part in enumerate(v.split(size)):
        for row, weight in rows:
            part.add_(row[i], alpha=weight)
    return v


def _combination(vectors: Sequence[Tensor], c: Tensor) -> Tensor:
    """Qᵀc for the rows Q = vectors, (d,)."""
    return _add_(torch.zeros_like(vectors[0]), vectors, c.tolist())


def complement_(vectors: Sequence[Tensor], v: Tensor) -> Tensor:
    """(I − QᵀQ)v in place of v, orthogonal to each row of Q to rounding.

    One pass of classical Gram-Schmidt does, unless v loses much of its length; then there is another, and twice is
    enough (Daniel, Gragg, Kaufman and Stewart 1976; Giraud et al. 2005). How much of a row is in v is known before
    it is taken out, and where that is no more than rounding it stays.
    """
    for _ in range(2 if vectors else 0):
        *c, square = coefficients([*vectors, v], v, _COARSE)
        least = _ROUNDING * torch.finfo(v.dtype).eps * math.sqrt(square)
        _add_(v, vectors, [-each if abs(each) > least else 0.0 for each in c])
        if math.hypot(*c) <= SMALL * math.sqrt(square):
            break
    return v


@dataclass(frozen=True, repr=False)
class Lanczos(Told):
    """A Krylov space and what it says of H:  H Qᵀ = Qᵀ T + q cᵀ,  Q Qᵀ = I,  Q q = 0."""

    # the matrix T = Q H Qᵀ, (k, k) float64 on the CPU; tridiagonal unless restarted within ``max_basis``
    projected: Tensor
    # the vector c, (k,) float64: (0, ..., 0, β_k) unless just restarted; zero if the space is invariant
    coupling: Tensor
    vectors: tuple[Tensor, ...]  # the rows of Q, k vectors (d,) of the operator's dtype
    following: Tensor | None  # the next vector q, (d,), or None where the vectors span everything
    ritz_values: Tensor  # the eigenvalues θ of T, (k,) ascending
    ritz_residuals: Tensor  # the norm ‖H u − θ u‖ = |cᵀs| of each, (k,): an eigenvalue of H is at most that far from θ
    hidden: Hidden  # how probably a larger eigenvalue was missed, which no residual tells
    products: int  # the number of products spent so far
    # whether the residual of the Ritz value of the largest magnitude is at most tol·|θ|, and a much larger one is as
    # good as excluded; False without tol
    converged: bool = False

    def __str__(self) -> str:
        low, high = (float(end) for end in (self.ritz_values[0], self.ritz_values[-1]))
        return f"{len(self.ritz_values)} Ritz values in {low:.4g} .. {high:.4g}, {self.products} products"

    @property
    def weights(self) -> Tensor | None:
        """Share of the spectrum at each Ritz value as the start vector sees it, (k,), by Gauss's rule.

        None if restarted.
        """
        if self.products != len(self.vectors):
            return None
        first: Tensor = torch.linalg.eigh(self.projected).eigenvectors[0]
        return first**2

    @property
    def top(self) -> int:
        """Index of the Ritz value of the largest magnitude, an estimate of ±‖H‖₂."""
        return int(self.ritz_values.abs().argmax())

    def ritz_vectors(self, indices: Sequence[int]) -> list[Tensor]:
        """Unit vectors u, (d,), of the Ritz values at ``indices``."""
        s = torch.linalg.eigh(self.projected).eigenvectors
        return [_combination(self.vectors, s[:, i]) for i in indices]


class Krylov:
    """A Krylov space that grows by one product a step.

    Classical Gram-Schmidt against all vectors keeps them orthogonal to rounding, so no eigenvalue appears twice
    ("ghosts"); T, dots and norms are float64 whatever the vectors are. T is on the CPU, the vectors are on the
    operator's device, and a step reads a few numbers from there, whatever d and k are. Where the space becomes
    invariant (a residual at rounding level) it goes on from a new random vector orthogonal to it, with c = 0.
    With ``max_basis`` a full basis is replaced by the Ritz vectors of the largest magnitudes, half as many (thick
    restart, Wu and Simon 2000); T is then their diagonal and c their coupling to the next vector.
    """

    def __init__(self, operator: Counted, seed: int, max_basis: int | None = None) -> None:
        """Begin at a random unit vector (Gaussian, normalised)."""
        self.operator = operator
        self.seed = seed
        self.max_basis = max_basis
        self.vectors: list[Tensor] = []
        self.projected = torch.zeros(0, 0, dtype=torch.float64)
        self.coupling = torch.zeros(0, dtype=torch.float64)
        self.drawn = 0
        self.steps = 0
        self.origin = 0  # the place in the basis of the start vector or, after a restart, of the vector behind it
        self.before: list[Pole] = []  # what ``Hidden`` is told of restarts
        self.ended: Hidden | None = None  # what the start vector has told once its space is invariant
        self._known: tuple[Tensor, Tensor, Tensor] | None = None  # T, its eigenvalues and eigenvectors
        self._told: tuple[Tensor, Hidden] | None = None  # c, and what the start vector tells with it
        self.following = self._random()

    def _random(self) -> Tensor | None:
        """The next random unit vector orthogonal to the basis; None if the basis spans everything."""
        if len(self.vectors) == self.operator.d:
            return None
        z = probe(self.operator, self.seed, START, self.drawn)
        self.drawn += 1
        v = self.complement_(self.complement_(z))
        return v.div_(math.sqrt(dot(v, v)))

    def complement_(self, v: Tensor) -> Tensor:
        """P v in place of v (d,), with P the projector onto the complement of the space."""
        return complement_(self.vectors, v)

    def complement_of_product_(self, w: Tensor) -> Tensor:
        """P w in place of w = Hu (d,) of a u in the complement, where QHu = TQu + c qᵀu = c qᵀu: few vectors matter."""
        return complement_([v for v, c in zip(self.vectors, self.coupling.tolist(), strict=True) if c], w)

    @property
    def invariant(self) -> bool:
        """Whether H maps the space into itself: every eigenvalue of T is one of H."""
        return bool(self.vectors) and not bool(self.coupling.any())

    def step(self) -> None:
        """Grow the space by one product with H; nothing happens once it is the whole space."""
        if self.following is None:
            return
        if len(self.vectors) == self.max_basis:
            # The Ritz vectors of the largest magnitudes are kept.
            # In the basis of Ritz vectors T is diagonal, and the coupling to the next vector is cᵀ s_i. The next vector
            # itself stays: it is orthogonal to all of them.
            values, s = self._eigen()
            self.before.append(self._hidden(self.coupling).pole)
            kept = values.abs().argsort(descending=True)[: max(1, len(self.vectors) // 2)]
            self.vectors = [_combination(self.vectors, s[:, i]) for i in kept]
            self.coupling = self.coupling @ s[:, kept]
            self.projected = values[kept].diag()
            self.origin = len(kept)
        q, k = self.following, len(self.vectors)
        w = self.operator.matvec(q)
        # T of the larger basis: H Qᵀ = Qᵀ T + q cᵀ, so the new column is c and then qᵀHq. After a plain step c is 0 but
        # for its last entry. After a restart it couples q to all Ritz vectors that were kept.
        projected = self.projected.new_zeros(k + 1, k + 1)
        projected[:k, :k] = self.projected
        projected[k, :k] = projected[:k, k] = self.coupling
        projected[k, k] = dot(q, w)
        self.projected = projected
        self.vectors.append(q)
        # What is left of Hq beside the space is β times the next vector. What is within is known but for rounding, and
        # of few vectors. It is taken out first: so little is left of it that one pass against all of them is enough.
        w = self.complement_(_add_(w, self.vectors, (-projected[k]).tolist()))
        # Where what is left is rounding alone, the space is invariant: dividing by β would make a vector of noise.
        beta = math.sqrt(dot(w, w))
        rounding = torch.finfo(self.operator.dtype).eps * float(projected.abs().max())
        self.coupling = projected.new_zeros(k + 1)
        if beta > 10 * rounding and k + 1 < self.operator.d:
            self.coupling[k] = beta
            self.following = w.div_(beta)
        else:
            if self.ended is None:
                # A part of v along another eigenvector would show in β, unless it is lost in the rounding.
                last = self.coupling.clone()
                last[k] = max(beta, rounding)
                self.ended = self._hidden(last)
            self.following = self._random()
        self.steps += 1

    def finish(self) -> None:
        """No step follows: of the next vector it stays known that there is one, and its memory is free."""
        if self.following is not None:
            self.following = self.following.new_empty(0)

    def resume(self) -> None:
        """Undo ``finish``: the next vector q again, by a product, as PHqⱼ = cⱼq for a vector of the basis."""
        if self.invariant:
            self.drawn -= 1
            self.following = self._random()
            return
        j = int(self.coupling.abs().argmax())
        w = self.complement_(self.operator.matvec(self.vectors[j]))
        self.following = w.div_(math.copysign(math.sqrt(dot(w, w)), float(self.coupling[j])))

    def _eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues of T, ascending, and its eigenvectors in columns, once a step."""
        # ``projected`` is replaced at every step and never written to, so the same object means the same T.
        if self._known is None or self._known[0] is not self.projected:
            self._known = (self.projected, *torch.linalg.eigh(self.projected))
        return self._known[1:]

    def _hidden(self, coupling: Tensor) -> Hidden:
        """What the start vector says of eigenvalues that it has not shown."""
        values, s = self._eigen()
        seen = (values.tolist(), (coupling @ s).tolist(), s[self.origin].tolist())
        return Hidden(self.operator.d, *seen, tuple(self.before))

    def result(self, tol: float | None = None) -> Lanczos:
        """What the space says now; its vectors are shared, and never written again."""
        values, s = self._eigen()
        residuals = (self.coupling @ s).abs()  # ‖Hu − θu‖ of a Ritz vector u = Qᵀs is |cᵀs|: no product is needed
        if self._told is None or self._told[0] is not self.coupling:
            self._told = (self.coupling, self._hidden(self.coupling))
        hidden = self.ended or self._told[1]
        top = values.abs().argmax()
        near = tol is not None and float(residuals[top]) <= tol * float(values[top].abs())
        return Lanczos(
            projected=self.projected,
            coupling=self.coupling,
            vectors=tuple(self.vectors),
            following=self.following,
            ritz_values=values,
            ritz_residuals=residuals,
            hidden=hidden,
            products=self.steps,
            converged=near and hidden.excludes(),
        )

    def state(self) -> tuple[dict[str, Tensor], SavedKrylov]:
        """Tensors and values that ``restore`` brings back."""
        tensors = {f"vector.{i}": v for i, v in enumerate(self.vectors)}
        tensors |= {"projected": self.projected, "coupling": self.coupling}
        if self.following is not None:
            tensors["following"] = self.following
        before = [(list(poles), list(numerators)) for poles, numerators in self.before]
        ended = None if self.ended is None else SavedPoles(**asdict(self.ended))
        return tensors, SavedKrylov(self.drawn, self.steps, self.origin, before, ended)

    def restore(self, tensors: dict[str, Tensor], values: SavedKrylov) -> None:
        """Become the space whose ``state`` this is, to the bit."""
        here, k, d = self.operator.device, len(tensors["coupling"]), self.operator.d
        shapes = {"projected": (k, k), "coupling": (k,), "following": (d,), **{f"vector.{i}": (d,) for i in range(k)}}
        for name, shape in shapes.items():
            if name not in tensors:
                require(name == "following", f"{name} in the checkpoint", "be there", None)
                continue
            tensor = tensors[name]
            dtype = torch.float64 if name in ("projected", "coupling") else self.operator.dtype
            shape = (0,) if name == "following" and not tensor.numel() else shape
            actual, expected = (tuple(tensor.shape), tensor.dtype), (shape, dtype)
            require(actual == expected, f"{name} in the checkpoint", f"have shape and type {expected}", actual)
            length = float(tensor.norm()) if name.startswith("vector.") else 1.0
            require(abs(length - 1) < 0.01, f"{name} in the checkpoint", "be of length 1", length)
        self.projected, self.coupling = tensors["projected"], tensors["coupling"]
        self.vectors = [tensors[f"vector.{i}"].to(here) for i in range(k)]
        self.following = tensors["following"].to(here) if "following" in tensors else None
        self.drawn, self.steps, self.origin = values.drawn, values.steps, values.origin
        self.before = list(values.before)
        self.ended = None if values.ended is None else Hidden(**structs.asdict(values.ended))


def lanczos(
    operator: Any,
    *,
    steps: int,
    seed: int,
    tol: float | None = None,
    max_basis: int | None = None,
    checkpoint: Path | None = None,
) -> Lanczos:
    """Outer eigenvalues of H by at most ``steps`` products.

    Args:
        operator: The matrix H, or what ``as_operator`` makes it of.
        steps: The most products to spend; fewer where the vectors span everything.
        seed: The seed of the start vector, 0..2**64-1.
        tol: The residual of the Ritz value of the largest magnitude, relative to it, that is small enough to stop, once
            a much larger eigenvalue is as good as excluded (``Hidden``).
        max_basis: The most vectors to keep, at least 4 (thick restart); all by default.
        checkpoint: A file that is written along the way (a tenth of the time at most), and gone on from if it is there.

    Returns:
        Ritz values with residual bounds, the basis, and T.

    Raises:
        InputError: If an argument breaks a rule, a product is not finite, or ``checkpoint`` is of another run.

    Source: Golub and Van Loan, Matrix Computations, 10.1-10.3; restarts: Wu and Simon 2000.
    """
    require_int("steps", steps, 1)
    require_int("seed", seed, 0, 2**64 - 1)
    if tol is not None:
        require_finite_positive("tol", tol)
    if max_basis is not None:
        require_int("max_basis", max_basis, 4)
    operator, basis = as_operator(operator), min(steps, max_basis or steps)
    require_room(operator, basis, 3, restarts=basis < steps)
    krylov = Krylov(Counted(operator), seed, max_basis)
    run = {"operator": operator.fingerprint(), "seed": seed, "max_basis": max_basis} if checkpoint else {}
    file = Checkpoint(checkpoint, lambda: run, SavedKrylov)
    if state := file.load():
        krylov.restore(*state)
    while krylov.following is not None and krylov.steps < steps:
        if tol is not None and krylov.steps and krylov.result(tol).converged:
            break
        krylov.step()
        file.save(krylov.state, last=False)
    file.save(krylov.state, last=True)
    return krylov.result(tol)


def band(operator: Counted, starts: list[Tensor], products: int) -> tuple[Array, Array, Array]:
    """The space of several start vectors and their products with H: Q Qᵀ = I, the rows of Q its vectors.

    Each vector's product joins a queue, and what is left of the first in it, beside all vectors, is the next vector.

    Returns:
        T = QHQᵀ, (k, k); the directions of the start vectors in the basis, (starts, k); and the Gram matrix of what is
        left of the products HQᵀ beside the space, (k, k): sᵀ(Gram)s is the squared residual of an eigenvector s of T.

    Source: Ruhe 1979 (band Lanczos).
    """
    vectors: list[Tensor] = []
    columns: list[list[float]] = []
    # What waits to become a vector: the start vectors, as number −1, and then the product of each vector j.
    queue: list[tuple[int, Tensor]] = [(-1, z) for z in starts]
    size = 0.0
    while queue and len(vectors) < min(products, operator.d):
        _, w = queue.pop(0)
        v = complement_(vectors, w.clone())
        length = math.sqrt(dot(v, v))
        if length <= 10 * torch.finfo(operator.dtype).eps * max(size, math.sqrt(dot(w, w))):
            continue  # within the space
        v /= length
        # Once more at length 1: where little was left, the rounding of the first time is not small beside it.
        v = complement_(vectors, v)
        v /= math.sqrt(dot(v, v))
        vectors.append(v)
        product = operator.matvec(v)
        # Column j of T down to the diagonal. Below it T is known by symmetry, from the columns of later vectors.
        columns.append(coefficients(vectors, product))
        size = max(size, *map(abs, columns[-1]))
        queue.append((len(vectors) - 1, product))
    k = len(vectors)
    T, gram = np.zeros((k, k)), np.zeros((k, k))
    for j, column in enumerate(columns):
        T[: j + 1, j] = T[j, : j + 1] = column
    # Products that are still in the queue may reach beyond the space. Those taken out are within it: their residual is
    # 0, as is that of all once the space is everything.
    left = [(j, complement_(vectors, w)) for j, w in queue if j >= 0] if k < operator.d else []
    for i, u in left:
        for j, v in left:
            gram[i, j] = dot(u, v)
    coordinates = np.array([coefficients(vectors, z) for z in starts])
    return T, coordinates / np.linalg.norm(coordinates, axis=1, keepdims=True), gram


def require_room(
    operator: Operator, basis: int, beside: int, *, restarts: bool = False, name: str = "max_basis"
) -> None:
    """InputError unless the operator's device has memory for ``basis`` + ``beside`` vectors (d,), if it tells.

    The CPU does not. Graphs and activations are not counted. A restart holds half a basis more.
    """
    free = free_memory(operator.device)
    if free is None:
        return
    fit = _fitting(operator, free, beside, restarts=restarts)
    size = operator.d * operator.dtype.itemsize
    room = f"(vectors of {size / 2**30:.2f} GiB, {free / 2**30:.1f} GiB free on {operator.device})"
    require(min(basis, operator.d) <= fit, name, f"be at most {fit} {room}", basis)


def basis_that_fits(operator: Operator, basis: int, beside: int, *, restarts: bool) -> int:
    """``basis``, or as many vectors, at least 4, as there is memory for beside others, if the system tells."""
    available = available_memory(operator.device)
    if available is None or min(basis, operator.d) <= _fitting(operator, int(_SHARE * available), beside):
        return basis
    return max(LEAST_BASIS, _fitting(operator, int(_SHARE * available), beside, restarts=restarts))


def _fitting(operator: Operator, free: int, beside: int, *, restarts: bool = False) -> int:
    """How many vectors fit into so many bytes beside others."""
    fit = max(0, free // (operator.d * operator.dtype.itemsize) - beside)
    # While a restart makes k/2 new vectors the k old ones are there too: 3/2 k must fit.
    return 2 * fit // 3 if restarts else fit
