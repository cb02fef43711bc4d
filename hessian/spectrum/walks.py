"""The trace of the positive part of H, and of |H|, on a space, by walks: short Lanczos runs from random vectors.

After m steps from u, with T the tridiagonal matrix of the α_i and β_i, the moments uᵀH^k u of degree up to 2m are
known, and nothing else of u's spectrum is. They are also the moments of

    T_s = T with one row and column more, β_m beside and s on the diagonal,    ‖u‖² e₁ᵀ f(T_s) e₁,    any real s

so for f(λ) = max(λ, 0) the true uᵀf(H)u may be any of these values. It is none outside of them: let s be such that T_s
has the eigenvalue 0, and p the polynomial of degree 2m that touches f in the other m eigenvalues of T_s and meets it
in 0. Between neighbouring zeros of p' left of 0, and of p' − 1 right of it, p″ has a zero: 2m − 2 in all, as many as
it can have. So p' rises from 0 to 1 around 0, p ≤ f everywhere, and the value of T_s, uᵀp(H)u, is the least. Where p
touches f in all m + 1 eigenvalues of T_s, which happens for one s between two that have the eigenvalue 0, p ≥ f by
the same count: the most.

Source: canonical representations: Karlin and Studden 1966, chapters II and III; rules: Golub and Meurant 2010.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dstev
from scipy.optimize import fminbound
from torch import Tensor

from decomfl_lab.storage.outside import SavedForms
from hessian.operators.operator import Operator
from hessian.parts import PARTS
from hessian.spectrum.forms import CAUTION, SphereForms
from hessian.spectrum.lanczos import dot

Array = NDArray[np.float64]

_FINE = 1e-12  # products as fine as that have no noise to speak of

_NEAR = -20.0  # the logarithm of how near to 0, relative to the nodes beside it, an eigenvalue of T_s is looked for

_SINGLE = 0.3  # what is at least this share of the outermost node is one eigenvalue at least


@dataclass
class Walk:
    """Lanczos' numbers from one start vector."""

    alphas: list[float] = field(default_factory=list)  # T's diagonal, (m,)
    betas: list[float] = field(default_factory=list)  # beside it, (m,); the last is 0 if its space is invariant

    def rule(self, last: float | None = None) -> tuple[Array, Array, Array]:
        """Nodes, their weights, which sum to 1, and the residual of each: of T, or of T_s with ``last`` for s."""
        more = [] if last is None else [last]
        beside = self.betas[:-1] if last is None else self.betas
        nodes, vectors, _ = dstev(self.alphas + more, beside or [0.0])
        return nodes, vectors[0] ** 2, self.betas[-1] * np.abs(vectors[-1])

    def bounds(self) -> tuple[float, float]:
        """The least and the most that the mean of max(λ, 0) can be."""
        nodes, weights, residuals = self.rule()
        if self.betas[-1] == 0:
            exact = float(weights @ nodes.clip(0.0))
            return exact, exact

        def value(node: float) -> float:
            """The mean by the T_s that has this eigenvalue: s = x + β² e_mᵀ(T − x)⁻¹e_m."""
            nodes_, weights_, _ = self.rule(node + float((residuals**2 / (nodes - node)).sum()))
            return float(weights_ @ nodes_.clip(0.0))

        # As s runs through all numbers, an eigenvalue goes from 0 to the next node, where s is infinite and the rule is
        # Gauss's, and another comes from the last one below 0 to 0. On the way the value rises and falls once.
        size = float(np.abs(nodes).max()) + self.betas[-1]
        most = float(weights @ nodes.clip(0.0))
        for end in (nodes[nodes > 0].min(initial=size), nodes[nodes < 0].max(initial=-size)):
            _, lowest, _, _ = fminbound(
                lambda x, end=end: -value(end * math.exp(x)), _NEAR, 0.0, (), 0.05, full_output=True
            )
            most = max(most, -float(lowest))
        nearest = float(np.abs(nodes).min())
        return value(0.0) if nearest > 1e-14 * size else float(weights @ nodes.clip(0.0)), most


class Walks(SphereForms):
    """tr(B) of B = f(PHP) on a space of n dimensions, by walks from u_i uniform on the sphere of radius √n.

    The forms uᵀBu, the middles of what their moments allow, have half of that as an error of their own, ``truncation``.
    Their variance is 2 tr(C²), C = B − (tr B/n)I, as for every form on a sphere; and the walks themselves, each of
    which sees the spectrum, tell the tr(C^k) that a few forms do not.
    """

    def __init__(self, n: int = 0, part: str = "positive") -> None:
        """Begin without walks on a space of ``n`` dimensions."""
        super().__init__(n)
        self.part = part
        self.walks: list[Walk] = []
        self.gaps: list[float] = []  # how far each form may be from uᵀf(PHP)u
        self.noise = 0.0  # ‖Ev‖ of a unit vector, E what products add to H by rounding
        self._ahead: list[Tensor] = []  # the walk's next vector, and the one before it

    def begin(self, u: Tensor) -> None:
        """Begin a walk from u, (d,), ‖u‖² = n; it is written to."""
        self.walks.append(Walk())
        self._ahead = [u.div_(math.sqrt(self.n))]

    def step(self, operator: Operator, project_: Callable[[Tensor], Tensor]) -> None:
        """Go one step further, by one product; one more, once, tells the noise of products in less than float64.

        ``project_`` is the projector P, in place of its argument (d,).
        """
        walk, (v, *before) = self.walks[-1], self._ahead
        w = project_(operator.matvec(v))
        if before and not self.noise and operator.precision > _FINE:
            # H(v₁ + v₂) − Hv₂ − Hv₁ is 0 but for the noise of three products, one of them of a vector of length √2.
            off = project_(operator.matvec(v + before[0])).sub_(w)
            off.sub_(before[0], alpha=walk.alphas[-1]).sub_(v, alpha=walk.betas[-1])
            self.noise = math.sqrt(dot(off, off)) / 2
        for u in before:
            w.sub_(u, alpha=walk.betas[-1])
        alpha = dot(v, w)
        w.sub_(v, alpha=alpha)
        beta = math.sqrt(dot(w, w))
        walk.alphas.append(alpha)
        size = max(map(abs, (*walk.alphas, *walk.betas)))
        ends = beta <= 10 * torch.finfo(operator.dtype).eps * size or len(walk.alphas) == self.n
        walk.betas.append(0.0 if ends else beta)
        self._ahead = [] if ends else [w.div_(beta), v]

    def take(self, number: int) -> None:
        """Count the form of walk ``number`` by what its steps so far tell."""
        walk = self.walks[number]
        mean = walk.alphas[0]  # of λ, and |λ| = 2 max(λ, 0) − λ
        least, most = (mean, mean) if self.part == "signed" else walk.bounds()
        if self.part == "absolute":
            least, most = (2 * end - mean for end in (least, most))
        self.values[number:] = [self.n * (least + most) / 2]
        self.gaps[number:] = [self.n * (most - least) / 2]

    def of(self, part: str) -> "Walks":
        """The same walks for another part of ``PARTS``."""
        walks = Walks(self.n, part)
        walks.walks, walks.noise = self.walks, self.noise
        for number in range(len(self.values)):
            walks.take(number)
        return walks

    @property
    def over(self) -> bool:
        """Whether no walk is under way: there is none, or the last one's space is invariant."""
        return not self._ahead

    @property
    def truncation(self) -> float:
        """How far the mean of the forms may be from that of uᵀf(PHP)u."""
        return math.fsum(self.gaps) / len(self.gaps)

    def moments(self) -> tuple[float, float, float]:
        """See ``SphereForms``: of the spectrum that walks see, each of the outermost nodes counted once at least."""
        f = PARTS[self.part].of
        values, counts = [], []
        for walk in self.walks[: self.measured]:
            # T_s rather than T, so that β_m, without which one step shows no variance at all, has its part.
            nodes, weights, _ = walk.rule(walk.alphas[-1])
            seen = self.n * weights
            alone = np.abs(nodes) >= _SINGLE * np.abs(nodes).max()
            values.append(f(nodes))
            counts.append(np.where(alone, np.maximum(seen, 1.0), seen) / self.measured)
        centred, count = np.concatenate(values) - self.mean / self.n, np.concatenate(counts)
        second, third, fourth = (float(count @ centred**k) for k in (2, 3, 4))
        if second <= 0:
            return 0.0, 0.0, 1.0
        return 2 * second, third / math.sqrt(second * fourth), min(CAUTION * fourth / second**2, 1.0)

    @property
    def measured(self) -> int:
        return len(self.values)

    def state(self) -> tuple[dict[str, Tensor], SavedForms]:
        tensors = {f"walk.{i}": v for i, v in enumerate(self._ahead)}
        return tensors, SavedForms(
            self.n, self.values, self.gaps, [], [], [(walk.alphas, walk.betas) for walk in self.walks], self.noise
        )

    def restore(self, tensors: dict[str, Tensor], values: SavedForms, device: torch.device) -> None:
        self.n = values.n
        self.noise = values.noise
        self.walks = [Walk(*each) for each in values.walks]
        self.values, self.gaps = values.values, values.squares
        self._ahead = [tensors[name].to(device) for name in sorted(tensors) if name.startswith("walk.")]
