"""Expectations over random directions as exact finite sums: designs that have a distribution's moments."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import require, require_choice


@dataclass(frozen=True, eq=False)
class Design:
    """Finitely many directions z = √scale·v whose mixed moments up to an order are exactly those of a distribution."""

    points: NDArray[np.int64]  # v, whole numbers, shape (n, d)
    weights: NDArray[np.int64]  # weights of the points, whole numbers, shape (n,)
    scale: int  # ‖z‖²/‖v‖²
    order: int  # moments up to it agree with the distribution's

    @property
    def d(self) -> int:
        """Parameters."""
        return int(self.points.shape[1])

    @property
    def z(self) -> NDArray[np.float64]:
        """The directions in float64, shape (n, d); their probabilities are ``weights`` over their sum."""
        directions: NDArray[np.float64] = np.sqrt(self.scale) * self.points
        return directions

    def mean(self, values: NDArray[Any]) -> Any:
        """E of what has the given values at the directions, shape (n, …) -> (…)."""
        return np.tensordot(self.weights / self.weights.sum(), values, axes=1)

    def sandwich(self, A: NDArray[Any], P: int = 1) -> NDArray[Any]:
        """E[Z A Z] for Z = (1/P) Σ_p z_p z_pᵀ, summed over all n^P choices of the P directions.

        A (d, d) has rational entries and need not be symmetric; the result is in Fractions, (d, d), exact for a design
        of order 4 or more.
        """
        A = np.array([[Fraction(entry) for entry in row] for row in A], dtype=object)
        denominator = np.lcm.reduce([entry.denominator for entry in A.ravel()])
        numerators = (A * int(denominator)).astype(np.int64)
        dyads = self.scale * self.points[:, :, None] * self.points[:, None, :]  # z zᵀ, (n, d, d)
        sums, weights = dyads, self.weights  # of the first directions: Σ_p z_p z_pᵀ, (n^p, d, d), and (n^p,)
        for _ in range(P - 1):
            sums = (sums[:, None] + dyads).reshape(-1, self.d, self.d)
            weights = np.outer(weights, self.weights).ravel()
        total = np.tensordot(weights, sums @ numerators @ sums, axes=1)
        mean: NDArray[Any] = total.astype(object) * Fraction(1, int(weights.sum()) * P**2 * int(denominator))
        return mean


def design(distribution: str, d: int) -> Design:
    """A design of that distribution: d = 1, 4 or 8 on the sphere of radius √d, any small d for the others.

    Raises:
        InputError: If the distribution or d has none.
    """
    require(d >= 1, "d", "be at least 1", d)
    require_choice("distribution", distribution, ("gaussian", "sphere", "rademacher"))
    if distribution == "gaussian":
        # Three points a coordinate, (−√3, 0, √3) with weights (1, 4, 1)/6: Gauss-Hermite, exact to the fifth moment.
        points = np.array(list(product((-1, 0, 1), repeat=d)), dtype=np.int64)
        return Design(points, 4 ** (points == 0).sum(axis=1), 3, 5)
    signs = np.array(list(product((-1, 1), repeat=d)), dtype=np.int64)
    if distribution == "rademacher" or d == 1:
        return Design(signs, np.ones(len(signs), dtype=np.int64), 1, 1000)
    require(d in (4, 8), "d", "be 1, 4 or 8 for a design of the sphere", d)
    # ±1 in two coordinates, 0 in the others: for d = 4 the roots of D4 (a 24-cell), a spherical 5-design.
    points = np.array([
        [{i: s, j: t}.get(k, 0) for k in range(d)]
        for i, j in combinations(range(d), 2)
        for s, t in product((-1, 1), repeat=2)
    ], dtype=np.int64)  # fmt: skip
    scale, order = 2, 5
    if d == 8:
        # Twice these, and the vectors of an even number of −1: the roots of E8, a spherical 7-design.
        points = np.concatenate([2 * points, signs[signs.prod(axis=1) == 1]])
        scale, order = 1, 7
    return Design(points, np.ones(len(points), dtype=np.int64), scale, order)
