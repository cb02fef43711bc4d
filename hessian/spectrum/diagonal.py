"""``hessian.diagonal``: the diagonal of H with a standard error for each element."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Unpack

import torch
from scipy import stats
from torch import Tensor

from decomfl_lab.datasets.given import Data
from decomfl_lab.errors import InputError, known_options, plural, require_int
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.batch_loss import LossFunction
from hessian.estimate import require_confidence
from hessian.operators.asked import Source, curvature
from hessian.operators.counted import Counted
from hessian.operators.mean_loss import enabled
from hessian.operators.options import CurvatureKeywords
from hessian.operators.probes import probe_at

__all__ = ["Diagonal", "diagonal"]

_SIGNS = 12
"""Stage of the random signs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Diagonal:
    """The diagonal of H.

    Attributes:
        operator: The name of the matrix.
        values: The estimates of H_ii, (d,).
        stderr: The standard error of each, (d,); 0 where the diagonal is exact.
        products: The number of products.
        exact: Whether it was read off H's columns, and has no sampling error.
        seed: The seed of the random signs.
        layout: The names and shapes of the parameters; None where H has none.
    """

    operator: str
    values: Tensor = field(repr=False)
    stderr: Tensor = field(repr=False)
    products: int
    exact: bool
    seed: int
    layout: Layout | None = field(repr=False)

    def __str__(self) -> str:
        error = "exact" if self.exact else f"± {self.error:.2g} of its norm"
        low, high = float(self.values.min()), float(self.values.max())
        spent = plural(self.products, "product")
        return f"diagonal of the {self.operator}, d = {len(self.values):,}: {low:.4g} .. {high:.4g}, {error} ({spent})"

    @property
    def error(self) -> float:
        """The expected distance from the true diagonal, √(Σ stderr²), relative to ‖values‖."""
        size = float(self.values.double().norm())
        return float(self.stderr.double().norm()) / size if size else math.inf

    @property
    def named(self) -> dict[str, Tensor]:
        """The estimates by the names of the parameters, in their shapes; InputError where H has no parameters."""
        if self.layout is None:
            raise InputError(f"the {self.operator} must be a matrix of a module's parameters to have their names")
        parts = self.values.split(self.layout.sizes)
        return {n: part.view(s) for n, s, part in zip(self.layout.names, self.layout.shapes, parts, strict=True)}

    def interval(self, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
        """Ends of Student's t interval of each element on its own, (d,) each.

        An element to which few others of its row add, each much, is no mean of normal numbers: its interval is rough.
        """
        require_confidence(confidence)
        half = self.stderr if self.exact else float(stats.t.ppf(0.5 + confidence / 2, self.products - 1)) * self.stderr
        return self.values - half, self.values + half


@known_options
def diagonal(
    model: Source,
    loss: LossFunction | None = None,
    data: Data | None = None,
    *,
    products: int = 100,
    seed: int = 0,
    **options: Unpack[CurvatureKeywords],
) -> Diagonal:
    """The diagonal of H from products with random signs, or exactly where d is at most ``products``.

        z ⊙ Hz = diag(H) + Σ_{j≠i} z_i z_j H_ij,    variance Σ_{j≠i} H_ij² of element i, z_i = ±1

    The mean of N of them has that over N, which their own spread tells: √N is slow, so a small element in a row of
    large ones needs many products. For the sum alone ``trace`` is far better.

    Args:
        model: See ``effective_rank``.
        loss: See ``effective_rank``.
        data: See ``effective_rank``.
        products: The number of products, at least 2; d of them, or more, are columns of H.
        seed: The seed of the random signs, 0..2**64-1.
        options: Which matrix: those of ``curvature``.

    Raises:
        InputError: If an argument breaks a rule, or a product is not finite.

    Source: Bekas, Kokiopoulou and Saad 2007.
    """
    require_int("products", products, 2)
    require_int("seed", seed, 0, 2**64 - 1)
    operator = curvature(model, loss, data, **options)
    counted, exact = Counted(operator), products >= operator.d
    mean, squares = (torch.zeros(operator.d, dtype=operator.dtype, device=operator.device) for _ in range(2))
    with enabled():
        for i in range(operator.d if exact else products):
            if exact:
                unit = torch.zeros_like(mean)
                unit[i] = 1.0
                mean[i] = counted.matvec(unit)[i]
            else:
                z = probe_at(mean, seed, _SIGNS, i, Distribution.RADEMACHER)
                # Welford's update of the mean and of the sum of squares about it.
                off = z.mul_(counted.matvec(z)) - mean
                mean.add_(off, alpha=1 / (i + 1))
                squares.add_(off.square_(), alpha=i / (i + 1))
    return Diagonal(
        operator=operator.name,
        values=mean,
        stderr=squares.div_(products * (products - 1)).sqrt_(),
        products=counted.products,
        exact=exact,
        seed=seed,
        layout=operator.layout,
    )
