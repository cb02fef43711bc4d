"""``hessian.top_eigenvalues``: the outer eigenvalues of H, each with a bound of its error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.datasets.given import Data
from decomfl_lab.errors import known_options, plural, require_choice, require_finite_positive, require_int
from decomfl_lab.objectives.batch_loss import LossFunction
from hessian.estimate import Jsonable
from hessian.operators.asked import Source, curvature
from hessian.operators.counted import Counted
from hessian.operators.mean_loss import enabled
from hessian.operators.options import CurvatureKeywords
from hessian.spectrum.hidden import Hidden
from hessian.spectrum.lanczos import Krylov, require_room

__all__ = ["TopEigenvalues", "top_eigenvalues"]

_ORDERS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "magnitude": torch.abs,
    "largest": torch.positive,
    "smallest": torch.neg,
}
"""What the eigenvalues that are wanted have most of."""

_WORDS = {"magnitude": "further out than ±", "largest": "above", "smallest": "below"}
_MISSED = 0.01
"""The most probability that an eigenvalue further out than ``TopEigenvalues.beyond`` was missed."""
_DISTANCES = np.geomspace(1e-6, 1e9, 400)
"""Distances from the outermost Ritz value, relative to the largest magnitude, at which that is looked at."""


@dataclass(frozen=True, kw_only=True)
class TopEigenvalues(Jsonable):
    """Outer eigenvalues of H.

    A residual proves that an eigenvalue of H is that near. It proves neither that none was missed, for which ``beyond``
    has a bound at the outer end alone, nor how often an eigenvalue occurs: equal ones are seen once.

    Attributes:
        operator: The name of the matrix.
        d: Its dimension.
        which: What was looked for: the eigenvalues of the largest "magnitude", the "largest" or the "smallest".
        values: The Ritz values, outermost first.
        residuals: The residual ‖Hu − θu‖ of each, at least the rounding of products: an eigenvalue is that near.
        beyond: What lies further out than the outermost value: no eigenvalue does with 99 %, whatever the spectrum is
            (``hessian.spectrum.hidden``); for "magnitude" this is one of ‖H‖₂.
        products: The number of products.
        converged: Whether all residuals, and the distance to ``beyond``, are at most rtol times the largest
            magnitude.
        vectors: A unit eigenvector (d,) of each, where they were asked for.
        seed: The seed of the start vector.
    """

    operator: str
    d: int
    which: str
    values: tuple[float, ...]
    residuals: tuple[float, ...]
    beyond: float
    products: int
    converged: bool
    vectors: tuple[Tensor, ...] = field(repr=False)
    seed: int

    def __str__(self) -> str:
        shown = ", ".join(f"{v:.5g} ± {r:.1g}" for v, r in zip(self.values, self.residuals, strict=True))
        proved = f"with 99 % none is {_WORDS[self.which]} {self.beyond:.5g}".replace("± ", "±")
        short = "" if self.converged else ", not converged"
        return f"λ = {shown} ({plural(self.products, 'product')}{short}; {proved})"

    def to_json(self) -> dict[str, Any]:
        """Every field but the vectors, ready for ``json.dumps``."""
        found = Jsonable.to_json(replace(self, vectors=()))
        del found["vectors"]
        return found


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
        rtol: The residual to reach, and the distance to ``beyond``, relative to the largest magnitude.
        max_products: The most products to spend, and vectors (d,) to keep.
        seed: The seed of the start vector, 0..2**64-1.
        vectors: Whether eigenvectors are returned too.
        options: Which matrix: those of ``curvature``.

    Raises:
        InputError: If an argument breaks a rule, a product is not finite, or the device has no room for the vectors.

    Source: Golub and Van Loan, Matrix Computations, 10.1-10.3; ``beyond``: see ``hessian.spectrum.hidden``.
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
            found = krylov.result()
            chosen = _ORDERS[which](found.ritz_values).argsort(descending=True)[:k]
            size = float(found.ritz_values.abs().max())
            residuals = found.ritz_residuals[chosen].clamp(min=rounding * size)
            outer = size if which == "magnitude" else float(found.ritz_values[chosen[0]])
            beyond = outer if krylov.following is None else _beyond(found.hidden, which, outer, size)
            off = max(float(residuals.max()), abs(beyond - outer))
            converged = krylov.following is None or (len(chosen) == k and off <= rtol * size)
        return TopEigenvalues(
            operator=operator.name,
            d=d,
            which=which,
            values=tuple(found.ritz_values[chosen].tolist()),
            residuals=tuple(residuals.tolist()),
            beyond=beyond,
            products=krylov.steps,
            converged=converged,
            vectors=tuple(found.ritz_vectors(chosen.tolist())) if vectors else (),
            seed=seed,
        )


def _beyond(hidden: Hidden, which: str, outer: float, size: float) -> float:
    """Beyond which value an eigenvalue was missed with the probability ``_MISSED`` at most."""
    if which == "magnitude":
        return max(hidden.above(_MISSED), outer)
    sign = 1.0 if which == "largest" else -1.0
    ends = outer + sign * size * _DISTANCES
    within = np.minimum.accumulate(hidden.probability(ends)) <= _MISSED
    return float(ends[within.argmax()]) if within.any() else sign * math.inf
