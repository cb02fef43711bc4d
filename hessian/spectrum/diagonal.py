"""``hessian.diagonal``: the diagonal of H with a standard error for each element."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Unpack

import torch
from scipy import stats
from torch import Tensor

from decomfl_lab.datasets.batches import Data
from decomfl_lab.errors import InputError, known_options, plural, require_int
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.objectives.function import enabled
from hessian.estimate import NOT_IN_JSON, require_confidence
from hessian.operators.operator import Counted
from hessian.operators.options import CurvatureKeywords
from hessian.operators.probes import probe
from hessian.operators.selection import Source, curvature
from hessian.readings import Reading, Reported
from hessian.spectrum.lanczos import Krylov, require_room

_SIGNS = 12  # stage of the random signs


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Diagonal(Reported):
    """The diagonal of H."""

    operator: str  # the name of the matrix
    values: Tensor = field(repr=False)  # the estimates of H_ii, (d,)
    stderr: Tensor = field(repr=False)  # the standard error of each, (d,); 0 where the diagonal is exact
    samples: int  # the number of random sign vectors; 0 where the diagonal was read off H's columns, and is exact
    products: int  # the number of products
    seed: int  # the seed of everything random
    # the names and shapes of the parameters; None where H has none
    layout: Layout | None = field(repr=False, metadata=NOT_IN_JSON)

    def __str__(self) -> str:
        error = "exact" if not self.samples else f"± {self.error:.2g} of its norm"
        low, high = float(self.values.min()), float(self.values.max())
        spent = plural(self.products, "product")
        return f"diagonal of the {self.operator}, d = {len(self.values):,}: {low:.4g} .. {high:.4g}, {error} ({spent})"

    def report(self) -> tuple[str, Sequence[Reading], str]:
        """The least and the largest element, each with its own interval; see ``Reported``."""
        low, high = self.interval()
        places = (("the least", int(self.values.argmin())), ("the largest", int(self.values.argmax())))
        readings = [
            Reading(f"H_{i},{i}", float(self.values[i]), float(low[i]), float(high[i]), words) for words, i in places
        ]
        return str(self), readings, ""

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
        return self.layout.named(self.values)

    def interval(self, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
        """Ends of Student's t interval of each element on its own, (d,) each.

        An element to which few others of its row add, each much, is no mean of normal numbers: its interval is rough.
        """
        require_confidence(confidence)
        half = self.stderr
        if self.samples:
            half = half * float(stats.t.ppf(0.5 + confidence / 2, self.samples - 1))
        return self.values - half, self.values + half


@known_options
def diagonal(
    model: Source,
    loss: LossFunction | None = None,
    data: Data | None = None,
    *,
    products: int = 100,
    seed: int = 0,
    max_basis: int | None = None,
    **options: Unpack[CurvatureKeywords],
) -> Diagonal:
    """The diagonal of H by Lanczos and random signs in what Lanczos left, or exactly where d is at most ``products``.

    With Q the k Lanczos vectors (rows), T = QHQᵀ, HQᵀ = QᵀT + qcᵀ and P = I − QᵀQ,

        H = QᵀTQ + qcᵀQ + Qᵀcqᵀ + ρP + C,    C = P(H − ρI)P,    E z ⊙ Cz = diag(C),    z_i = ±1

    where all but C is known from the k products that make Q; ρ is the median of the spectrum as Lanczos' start vector
    sees it. Element i of a z ⊙ Cz has the variance Σ_{j≠i} C_ij², which their own spread tells. Of a trained network
    the outer eigenvalues make most of it: with half of 60 products for Lanczos the error is 0.4 to 5 % of the norm
    where all for signs leave 36 to 54 % (the nets of `decomfl bench coverage`). For the sum alone ``trace`` is better.

    Args:
        model: See ``curvature``.
        loss: See ``curvature``.
        data: See ``curvature``.
        products: The number of products, at least 4; d of them, or more, are columns of H.
        seed: The seed of everything random, 0..2**64-1.
        max_basis: The most Lanczos vectors (d,) to keep; half of the products by default.
        options: Which matrix: those of ``curvature``.

    Raises:
        InputError: If an argument breaks a rule, or a product is not finite.

    Source: Bekas, Kokiopoulou and Saad 2007; with deflation: Baston and Nakatsukasa 2022.
    """
    require_int("products", products, 4)
    require_int("seed", seed, 0, 2**64 - 1)
    steps = products // 2 if max_basis is None else min(products // 2, require_int("max_basis", max_basis, 1))
    operator = curvature(model, loss, data, **options)
    d, counted = operator.d, Counted(operator)
    values, squares = (torch.zeros(d, dtype=operator.dtype, device=operator.device) for _ in range(2))
    samples = 0
    with enabled():
        if products >= d:
            for i in range(d):
                unit = torch.zeros_like(values)
                unit[i] = 1.0
                values[i] = counted.matvec(unit)[i]
        else:
            require_room(operator, steps, 8)
            krylov = Krylov(counted, seed)
            for _ in range(steps):
                krylov.step()
            space = krylov.result()
            assert space.weights is not None  # there are no restarts
            rho = float(space.ritz_values[int((space.weights.cumsum(0) >= 0.5).double().argmax())])
            for samples in range(1, products - steps + 1):
                z = probe(values, seed, _SIGNS, samples, Distribution.RADEMACHER)
                Pz = krylov.complement_(z.clone())
                # Welford's update of the mean and of the sum of squares about it.
                off = z * krylov.complement_of_product_(counted.matvec(Pz).sub_(Pz, alpha=rho)) - values
                values.add_(off, alpha=1 / samples)
                squares.add_(off.square_(), alpha=1 - 1 / samples)
            # diag(QᵀTQ + qcᵀQ + Qᵀcqᵀ + ρP), by Ritz pairs as ρ + Σ (θ − ρ)u² and c, which is 0 but for its last entry.
            assert krylov.following is not None
            known = krylov.vectors[-1] * krylov.following * (2 * float(krylov.coupling[-1])) + rho
            for i, value in enumerate(space.ritz_values.tolist()):
                (u,) = space.ritz_vectors([i])
                known.add_(u.square_(), alpha=value - rho)
            values += known
    return Diagonal(
        operator=operator.name,
        values=values,
        stderr=squares.div_(max(samples * (samples - 1), 1)).sqrt_(),
        samples=samples,
        products=counted.products,
        seed=seed,
        layout=operator.layout,
    )
