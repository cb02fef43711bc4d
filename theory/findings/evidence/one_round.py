"""One round of a small federation whose every expectation is a finite sum."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from theory.notation.setting import Setting

Floats = NDArray[np.float64]


# The z of both local steps, shape (2, n), and probabilities (n,): Gauss–Hermite nodes.
_ONE, _WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
_Z: Final = np.stack([axis.ravel() for axis in np.meshgrid(_ONE, _ONE, indexing="ij")])
_PROBABILITY: Final = np.multiply.outer(_WEIGHTS / _WEIGHTS.sum(), _WEIGHTS / _WEIGHTS.sum()).ravel()


@dataclass(frozen=True, kw_only=True)
class OneRound:
    """A round with d = 1, P = 1, K = 2, L = 1 and three clients f_i(x) = c_i cos(x + θ_i) + b_i x, max |c_i| = 1.

    Every f_i is L-smooth, f_i^μ(x) = c_i e^{−μ²/2} cos(x + θ_i) + b_i x. Two clients are sampled and share z_1, z_2.
    """

    mu: float  # μ > 0
    eta: float  # η
    x: float  # x_r
    phases: tuple[float, float, float] = (0.0, 1.3, -0.8)  # θ_i
    scales: tuple[float, float, float] = (1.0, 0.6, -0.9)  # c_i
    slopes: tuple[float, float, float] = (0.5, -0.4, 0.2)  # b_i
    replacement: bool = False  # clients sampled with replacement, as in the proofs, not without, as in the algorithm

    M = 3
    m = 2
    K = 2
    L = 1.0

    @cached_property
    def subsets(self) -> tuple[tuple[int, ...], ...]:
        """The equally likely choices of clients."""
        if self.replacement:
            return tuple(product(range(self.M), repeat=self.m))
        return tuple(combinations(range(self.M), self.m))

    def _columns(self) -> tuple[Floats, Floats, Floats]:
        """θ, c and b, each (M, 1)."""
        return tuple(np.array(v)[:, None] for v in (self.phases, self.scales, self.slopes))  # type: ignore[return-value]

    def value(self, x: Floats) -> Floats:
        """f_i(x), shape (M, n), for x of that shape or (n,)."""
        phases, scales, slopes = self._columns()
        return scales * np.cos(x + phases) + slopes * x

    def gradient(self, x: Floats | float, *, smoothed: bool = False) -> Floats:
        """∇f_i(x) or ∇f_i^μ(x), shape (M, n)."""
        phases, scales, slopes = self._columns()
        shrink = np.exp(-(self.mu**2) / 2) if smoothed else 1.0
        return -shrink * scales * np.sin(x + phases) + slopes

    @cached_property
    def _walk(self) -> tuple[Floats, Floats]:
        """The points x_{i,r}^k and the estimates G_{i,r}^k, both (M, K, n), n the outcomes of (z_1, z_2)."""
        x = np.full((self.M, _Z.shape[1]), self.x)
        points, estimates = [], []
        for k in range(self.K):
            estimate = (self.value(x + self.mu * _Z[k]) - self.value(x)) / self.mu * _Z[k]
            points.append(x)
            estimates.append(estimate)
            x = x - self.eta * estimate
        return np.stack(points, axis=1), np.stack(estimates, axis=1)

    @property
    def points(self) -> Floats:
        """x_{i,r}^k, shape (M, K, n)."""
        return self._walk[0]

    @property
    def G(self) -> Floats:
        """G_{i,r}^k, shape (M, K, n)."""
        return self._walk[1]

    @cached_property
    def smooth(self) -> Floats:
        """∇f_i^μ(x_{i,r}^k), shape (M, K, n)."""
        return np.stack([self.gradient(self.points[:, k], smoothed=True) for k in range(self.K)], axis=1)

    @cached_property
    def plain(self) -> Floats:
        """∇f_i(x_{i,r}^k), shape (M, K, n)."""
        return np.stack([self.gradient(self.points[:, k]) for k in range(self.K)], axis=1)

    @cached_property
    def at_start(self) -> Floats:
        """∇f_i(x_r) for every k and outcome, shape (M, K, n)."""
        return np.broadcast_to(self.gradient(self.x)[:, :, None], self.G.shape).astype(np.float64)

    @property
    def smoothed_mean(self) -> Floats:
        """(1/MK) Σ_i Σ_k ∇f_i^μ(x_{i,r}^k), shape (n,)."""
        mean: Floats = self.smooth.mean(axis=(0, 1))
        return mean

    @property
    def a(self) -> float:
        """∇f(x_r)."""
        return float(self.gradient(self.x).mean())

    @property
    def dissimilarity(self) -> float:
        """σ_G² at x_r: max_i ‖∇f_i(x_r) − ∇f(x_r)‖²."""
        return float(((self.gradient(self.x) - self.a) ** 2).max())

    @property
    def drift(self) -> float:
        """χ_r = E (1/M) Σ_i Σ_k ‖x_{i,r}^k − x_r‖²."""
        return self.mean(((self.points - self.x) ** 2).sum(axis=1).mean(axis=0))

    def over_sampled(self, values: Floats) -> Floats:
        """Means over the sampled clients, (M, K, n) to (subsets, K, n)."""
        return np.stack([values[list(chosen)].mean(axis=0) for chosen in self.subsets])

    def mean(self, values: Floats) -> float:
        """E over the choice of clients, if it is an axis before the last, and the directions, the last."""
        return float(np.atleast_2d(values).mean(axis=0) @ _PROBABILITY)

    def sampled_square(self, values: Floats) -> float:
        """E‖(1/m) Σ_{i∈C} Σ_k values_i^k‖²."""
        return self.mean(self.over_sampled(values).sum(axis=1) ** 2)

    def full_square(self, values: Floats) -> float:
        """E‖(1/M) Σ_i Σ_k values_i^k‖²."""
        return self.mean(values.mean(axis=0).sum(axis=0) ** 2)

    def total(self, squares: Floats) -> float:
        """E (1/M) Σ_i Σ_k squares_i^k."""
        return self.mean(squares.mean(axis=0).sum(axis=0))

    def centred(self, values: Floats) -> float:
        """E‖(1/m) Σ_C Σ_k values − (1/M) Σ_i Σ_k values‖²."""
        return self.mean((self.over_sampled(values).sum(axis=1) - values.mean(axis=0).sum(axis=0)) ** 2)

    @property
    def A_1(self) -> float:
        """−η E⟨∇f(x_r), (1/m) Σ_C Σ_k G⟩."""
        return -self.eta * self.a * self.mean(self.over_sampled(self.G).sum(axis=1))

    @property
    def rise(self) -> float:
        """E f(x_{r+1}) − f(x_r)."""
        ends = self.x - self.eta * self.over_sampled(self.G).sum(axis=1)
        after = np.stack([self.value(end).mean(axis=0) for end in ends])
        return self.mean(after - self.value(np.array([self.x])).mean())

    @property
    def mean_of_clients(self) -> tuple[float, float]:
        """E‖(1/m) Σ_C [∇f_i(x_r) − ∇f(x_r)]‖² and (1/m²) E Σ_C ‖·‖²: (c) of line-1191."""
        off = self.gradient(self.x)[:, 0] - self.a
        left = sum(off[list(chosen)].mean() ** 2 for chosen in self.subsets) / len(self.subsets)
        return float(left), float((off**2).mean()) / self.m

    @property
    def setting(self) -> Setting:
        """Its constants, σ_G² the mean of ‖∇f_i(x_r) − ∇f(x_r)‖² over the clients."""
        sigma_G = math.sqrt(float(((self.gradient(self.x) - self.a) ** 2).mean()))
        return Setting(d=1, L=self.L, m=self.m, M=self.M, K=self.K, eta=self.eta, mu=self.mu, sigma_G=sigma_G)
