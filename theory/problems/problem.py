"""Problems with known constants that can be simulated: what DeComFL's clients measure, coordinate by coordinate.

Only the first n of d coordinates are held. The loss does not depend on the others, which cost nothing: of a direction
z in R^d only z[0:n] is ever drawn.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import InputError, require, require_int
from theory.notation.setting import Setting
from theory.problems.quadratic import Quadratic, signs

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Problem(Protocol):
    """Losses f_i(·; ξ) of M clients with constants that are known (or upper bounds).

    x (..., n) holds points, clients (...) the numbers of clients, ξ (...) uniform numbers in [0, 1) of which a problem
    makes the data sample it needs; shapes broadcast.
    """

    @property
    def d(self) -> int:
        """Parameters."""
        ...

    @property
    def M(self) -> int:
        """Clients."""
        ...

    @property
    def start(self) -> Floats:
        """x_0, its first n coordinates; the others are 0."""
        ...

    def sampled(self, x: Floats, clients: Integers, xi: Floats) -> Floats:
        """f_i(x; ξ), up to a constant that x does not change; shape (...)."""
        ...

    def sampled_gradient(self, x: Floats, clients: Integers, xi: Floats) -> Floats:
        """∇f_i(x; ξ), shape (..., n)."""
        ...

    def gradient(self, x: Floats) -> Floats:
        """∇f(x), shape (..., n)."""
        ...

    def setting(self, **run: Any) -> Setting:
        """The constants of a run: d, M, L, D, κ, σ, σ_G of the problem, the others given."""
        ...


def coin(xi: Floats) -> Floats:
    """±1, each for half of the uniform numbers."""
    return np.where(xi < 0.5, 1.0, -1.0)


@dataclass(frozen=True)
class Bowl:
    """A ``Quadratic`` coordinate by coordinate: f_i(x; ξ) = ½ Σ_j λ_j x_j² − (b_i + s)ᵀx.

    Raises:
        InputError: If more than 10⁵ coordinates have curvature, noise or a start that is not 0.
    """

    quadratic: Quadratic  # the problem by groups
    M: int  # number of clients

    def __post_init__(self) -> None:
        require_int("M", self.M, 1)
        held = sum(count for count, _ in self._coordinates)
        rule = "have at most 100,000 eigenvalues above 0 to be simulated (those of 0 cost nothing: "
        rule += "Quadratic.of(Spectrum((1, (kappa - 1)/199, 0), (1, 199, d - 200)), ...) has the same kappa)"
        require(held <= 100_000, "spectrum", rule, held)

    @property
    def _coordinates(self) -> list[tuple[int, int]]:
        """How many coordinates of each group are held, and its number; of a group with λ = 0 only the first."""
        spectrum = self.quadratic.spectrum
        groups = zip(spectrum.values, spectrum.counts, strict=True)
        return [(count if value > 0 else 1, group) for group, (value, count) in enumerate(groups)]

    def _vector(self, squares: tuple[float, ...]) -> Floats:
        """The vector (n,) with these squares by groups, all in the first coordinate of its group."""
        parts = [[math.sqrt(squares[group])] + [0.0] * (count - 1) for count, group in self._coordinates]
        return np.concatenate(parts)

    @property
    def d(self) -> int:
        """Parameters."""
        return self.quadratic.d

    @cached_property
    def eigenvalues(self) -> Floats:
        """λ_j of the coordinates held, shape (n,)."""
        spectrum = self.quadratic.spectrum
        return np.concatenate([np.full(count, spectrum.values[group]) for count, group in self._coordinates])

    @cached_property
    def start(self) -> Floats:
        """See ``Problem``."""
        return self._vector(self.quadratic.start)

    @cached_property
    def tilts(self) -> Floats:
        """∇f − ∇f_i of every client, shape (M, n)."""
        return np.multiply.outer(signs(self.M), self._vector(self.quadratic.dissimilarity))

    @cached_property
    def _noise(self) -> Floats:
        """s₀, shape (n,)."""
        return self._vector(self.quadratic.noise)

    def sampled(self, x: Floats, clients: Integers, xi: Floats) -> Floats:
        """See ``Problem``."""
        tilt = self.tilts[clients] + coin(xi)[..., None] * self._noise
        losses: Floats = ((0.5 * self.eigenvalues * x - tilt) * x).sum(-1)
        return losses

    def sampled_gradient(self, x: Floats, clients: Integers, xi: Floats) -> Floats:
        """See ``Problem``."""
        return self.gradient(x) - (self.tilts[clients] + coin(xi)[..., None] * self._noise)

    def gradient(self, x: Floats) -> Floats:
        """See ``Problem``."""
        return self.eigenvalues * x

    least = 0.0
    """f*."""

    def value(self, x: Floats) -> Floats:
        """f(x), shape (...)."""
        losses: Floats = 0.5 * (self.eigenvalues * x**2).sum(-1)
        return losses

    def distance2(self, x: Floats) -> Floats:
        """‖x − x*‖², x* the nearest minimiser, shape (...)."""
        distances: Floats = (x[..., self.eigenvalues > 0] ** 2).sum(-1)
        return distances

    def setting(self, **run: Any) -> Setting:
        """See ``Problem``."""
        return self.quadratic.setting(M=self.M, **run)


def subspace(problem: Problem | Quadratic, M: int) -> Problem:
    """The problem coordinate by coordinate; InputError if it is made for another number of clients."""
    if isinstance(problem, Quadratic):
        return Bowl(problem, M)
    if problem.M != M:
        raise InputError(f"M must be the problem's {problem.M}, got {M}")
    return problem


def directions(distribution: str, shape: tuple[int, ...], n: int, d: int, rng: np.random.Generator) -> Floats:
    """The first n coordinates of a batch of gaussian, sphere or rademacher directions in R^d, (*shape, n) float64.

    On the sphere z = √d w/‖w‖ of a Gaussian w, and ‖w[n:]‖² is χ² with d − n degrees of freedom, independent of w[:n].
    """
    if distribution == "rademacher":
        return np.where(rng.random((*shape, n)) < 0.5, 1.0, -1.0)
    w = rng.standard_normal((*shape, n))
    if distribution == "gaussian":
        return w
    rest2 = rng.chisquare(d - n, shape) if d > n else np.zeros(shape)
    z: Floats = w * np.sqrt(d / ((w**2).sum(-1) + rest2))[..., None]
    return z
