"""``hessian.top_eigenvalues``: the outer eigenvalues of H, each with a bound of its error."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import torch
from torch import Tensor

from decomfl_lab.datasets.batches import Data
from decomfl_lab.errors import known_options, plural, require, require_choice, require_finite_positive, require_int
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.objectives.function import enabled
from hessian.estimate import NOT_IN_JSON
from hessian.operators.matrices import as_operator
from hessian.operators.operator import Counted
from hessian.operators.options import CurvatureKeywords
from hessian.operators.selection import Source, curvature
from hessian.readings import Reading, Reported
from hessian.spectrum.lanczos import Krylov, lanczos, require_room

_ORDERS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "magnitude": torch.abs,
    "largest": torch.positive,
    "smallest": torch.neg,
}
"""What the eigenvalues that are wanted have most of."""

_CHANCE = 0.01  # the probability that is left to ``bound``


@dataclass(frozen=True, kw_only=True, repr=False)
class TopEigenvalues(Reported):
    """Outer eigenvalues of H.

    A residual proves that an eigenvalue of H is that near. It proves neither that no further one was missed, nor how
    often an eigenvalue occurs: equal ones are seen once.
    """

    operator: str  # the name of the matrix
    d: int  # its dimension
    which: str  # what was looked for: the eigenvalues of the largest "magnitude", the "largest" or the "smallest"
    values: tuple[float, ...]  # the Ritz values, outermost first
    # the residual ‖Hu − θu‖ of each, at least the rounding of products: an eigenvalue is that near
    residuals: tuple[float, ...]
    # No eigenvalue is further out than this but with probability 1 %, that of a random start vector which sees so
    # little of it (``hessian.spectrum.unseen_eigenvalues``): one of ‖H‖₂, of λ_max or of λ_min. Where the vectors span
    # everything it is the outermost value.
    bound: float
    products: int  # the number of products
    converged: bool  # whether all residuals are at most rtol·‖H‖₂, and one much further out is as good as excluded
    # a unit eigenvector (d,) of each, where they were asked for
    vectors: tuple[Tensor, ...] = field(repr=False, metadata=NOT_IN_JSON)
    seed: int  # the seed of the start vector

    def __str__(self) -> str:
        shown = ", ".join(f"{v:.5g} ± {r:.1g}" for v, r in zip(self.values, self.residuals, strict=True))
        proved = f"none beyond {self.bound:.5g}, with 99 %" if self.products < self.d else "all are known"
        short = "" if self.converged else ", not converged"
        return f"λ = {shown} ({plural(self.products, 'product')}{short}; {proved})"

    def report(self) -> tuple[str, Sequence[Reading], str]:
        """The eigenvalues within their residuals; see ``Reported``."""
        both = enumerate(zip(self.values, self.residuals, strict=True), 1)
        readings = [Reading(f"λ {i}", value, value - off, value + off) for i, (value, off) in both]
        return f"{self}; {self.operator}, d = {self.d:,}", readings, ""


@known_options
def top_eigenvalues(
    model: Source,
    loss: LossFunction | None = None,
    data: Data | None = None,
    *,
    k: int = 1,
    which: str = "magnitude",
    rtol: float = 0.01,
    max_products: int = 200,
    seed: int = 0,
    vectors: bool = False,
    **options: Unpack[CurvatureKeywords],
) -> TopEigenvalues:
    """The k outermost eigenvalues of H by Lanczos with full reorthogonalisation, each with its residual.

    Args:
        model: See ``curvature``.
        loss: See ``curvature``.
        data: See ``curvature``.
        k: The number of eigenvalues, at most d. Equal ones count once, and then others follow.
        which: The eigenvalues of the largest "magnitude", the "largest", or the "smallest" (the most negative).
        rtol: The residual to reach, relative to ‖H‖₂.
        max_products: The most products to spend, and vectors (d,) to keep.
        seed: The seed of the start vector, 0..2**64-1.
        vectors: Whether eigenvectors are returned too.
        options: Which matrix: those of ``curvature``.

    Raises:
        InputError: If an argument breaks a rule, a product is not finite, or the device has no room for the vectors.

    Source: Golub and Van Loan, Matrix Computations, 10.1-10.3.
    """
    require_choice("which", which, _ORDERS)
    require_int("k", k, 1)
    require_int("max_products", max_products, k)
    require_int("seed", seed, 0, 2**64 - 1)
    require_finite_positive("rtol", rtol)
    operator = curvature(model, loss, data, **options)
    d = operator.d
    require_int("k", k, 1, d)
    require_room(operator, max_products, 5, name="max_products")
    rounding = torch.finfo(operator.dtype).eps
    with enabled():
        krylov, converged = Krylov(Counted(operator), seed), False
        while krylov.following is not None and krylov.steps < max_products and not converged:
            krylov.step()
            space = krylov.result()
            how_far = _ORDERS[which](space.ritz_values)
            chosen = how_far.argsort(descending=True)[:k]
            size = float(space.ritz_values.abs().max())
            residuals = space.ritz_residuals[chosen].clamp(min=rounding * size)
            near = float(residuals.max()) <= rtol * size
            converged = len(chosen) == k and near and space.hidden.excludes(which=which)
        bound = float(how_far.max()) if krylov.following is None else space.hidden.above(_CHANCE, which)
        return TopEigenvalues(
            operator=operator.name,
            d=d,
            which=which,
            values=tuple(space.ritz_values[chosen].tolist()),
            residuals=tuple(residuals.tolist()),
            bound=-bound if which == "smallest" else bound,
            products=krylov.steps,
            converged=converged or krylov.following is None,
            vectors=tuple(space.ritz_vectors(chosen.tolist())) if vectors else (),
            seed=seed,
        )


@dataclass(frozen=True, repr=False)
class SplitSample(Reported):
    """λ_max of two halves, and what each half's top eigenvector finds in the other."""

    in_json = ("above", "below")

    own: tuple[float, float]  # the largest eigenvalues (λ_max(H_A), λ_max(H_B)), each of its own half
    crossed: tuple[float, float]  # the forms (u_Aᵀ H_B u_A, u_Bᵀ H_A u_B), each on the other half
    products: int  # the number of products spent on both halves

    @property
    def above(self) -> float:
        """Mean of λ_max of the halves: above λ_max of all data in expectation."""
        return sum(self.own) / 2

    @property
    def below(self) -> float:
        """Mean of what is found in the other half: below it in expectation."""
        return sum(self.crossed) / 2

    def kappa(self, trace: float) -> tuple[float, float]:
        """κ by the upper and by the lower λ_max, for tr(H) = ``trace`` ≥ 0, which no sampling biases.

        The ends are NaN where a λ_max is not positive.
        """
        low, high = (trace / top if top > 0 else float("nan") for top in (self.above, self.below))
        return low, high

    def report(self) -> tuple[str, Sequence[Reading], str]:
        title = f"λ_max of all data in {self.below:.5g} .. {self.above:.5g}, in expectation, by two halves of them"
        return title, [Reading("λ_max of all data", math.nan, self.below, self.above, "in expectation")], ""


def split_sample(halves: tuple[Any, Any], *, seed: int, steps: int = 30, tol: float = 0.01) -> SplitSample:
    """The bracket of λ_max from the operators of two disjoint halves of a random sample.

    λ_max of a mean over few examples is too large, by a factor of several for small batches; its trace is not. With H_A
    and H_B of the halves, u_A the unit eigenvector of λ_max(H_A), and H the mean over all data there could be,

        E λ_max(H_A) ≥ λ_max(H)                     λ_max is convex: Jensen
        E u_Aᵀ H_B u_A = E u_Aᵀ H u_A ≤ λ_max(H)    B is independent of u_A

    Args:
        halves: The matrices H_A and H_B (``as_operator``), of the same dimension; they must be of disjoint examples.
        seed: The seed of the start vectors.
        steps: The most products for the λ_max of a half.
        tol: The residual, relative to λ_max, at which fewer are enough.

    Raises:
        InputError: If the dimensions differ, or an argument breaks a rule.
    """
    operators = [as_operator(half) for half in halves]
    sizes = tuple(half.d for half in operators)
    require(len(set(sizes)) == 1, "halves", "have one dimension", sizes)
    # The two forms at the end count as products from the start.
    tops, vectors, products = [], [], 2
    for half in operators:
        of_half = lanczos(half, steps=steps, seed=seed, tol=tol)
        tops.append(float(of_half.ritz_values[-1]))
        vectors += of_half.ritz_vectors([len(of_half.ritz_values) - 1])
        products += of_half.products
        del of_half  # its basis, before the other half's is made
    # u_B goes to H_A and u_A to H_B: crossed is (u_Bᵀ H_A u_B, u_Aᵀ H_B u_A), and the result has them the other way.
    crossed = [half.quad(u) for half, u in zip(operators, reversed(vectors), strict=True)]
    return SplitSample((tops[0], tops[1]), (crossed[1], crossed[0]), products)
