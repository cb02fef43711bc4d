"""Losses whose slope is piecewise linear: bowls that flatten, hills beside them, Huber's loss."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from decomfl_lab.errors import require, require_finite_positive, require_int
from theory.notation.setting import Setting
from theory.problems.problem import Floats, Integers, coin
from theory.problems.quadratic import signs


@dataclass(frozen=True)
class Piecewise:
    """f_i(x; ξ) = h(x_1) − (b_i + s)x_1 in d dimensions; h is even and its slope piecewise linear.

        h(0) = 0;   h'(t) = Lt for 0 ≤ t ≤ w,   beyond it falls with curvature −cL to qLw,   where it stays.

    b_i is +b for even and −b for odd i (0 for the last of an odd number of clients), s is ±s₀ by a fair coin at every
    step of every client. c = 0 or q = 1 is Huber's loss; otherwise there are hills beside the bowl, f is not convex.
    """

    at: float  # coordinate x_1 of x_0; the others are 0. [X]
    width: float = 1.0  # half the width w of the bowl, > 0. [X]
    fall: float = 1.0  # curvature c of the hills as a share of L, in 0..1
    rest: float = 0.0  # slope q far away as a share of the largest, in 0..1
    noise: float = 0.0  # |s₀|, which is σ. [F/X]
    dissimilarity: float = 0.0  # |b|, which is σ_G. [F/X]
    L: float = 1.0  # curvature of the bowl, > 0. [F/X²]
    d: int = 1  # number of parameters
    M: int = 1  # number of clients

    def __post_init__(self) -> None:
        for name in ("width", "L"):
            require_finite_positive(name, getattr(self, name))
        for name in ("fall", "rest"):
            require(0 <= getattr(self, name) <= 1, name, "be in 0..1", getattr(self, name))
        for name in ("noise", "dissimilarity"):
            require(0 <= getattr(self, name) < np.inf, name, "be a finite number of at least 0", getattr(self, name))
        require(bool(np.isfinite(self.at)), "at", "be a finite number", self.at)
        for name in ("d", "M"):
            require_int(name, getattr(self, name), 1)

    @property
    def start(self) -> Floats:
        """See ``Problem``."""
        return np.array([self.at])

    @property
    def _end(self) -> float:
        """Where the slope has come to rest."""
        return self.width * (1 + (1 - self.rest) / self.fall) if self.fall else np.inf

    least = 0.0
    """f*."""

    def value(self, x: Floats) -> Floats:
        """f(x), shape (...)."""
        t, w, c = abs(x[..., 0]), self.width, self.fall
        bowl, hill = np.minimum(t, w), np.clip(t, w, self._end) - w
        beyond = np.maximum(t - self._end, 0.0)
        return self.L * (0.5 * bowl**2 + w * hill - 0.5 * c * hill**2 + self.rest * w * beyond)

    def distance2(self, x: Floats) -> Floats:
        """‖x − x*‖², x* the nearest minimiser, shape (...)."""
        distances: Floats = (x**2).sum(-1)
        return distances

    def gradient(self, x: Floats) -> Floats:
        """See ``Problem``."""
        t = abs(x)
        slope = np.minimum(t, self.width) - self.fall * (np.clip(t, self.width, self._end) - self.width)
        return self.L * np.sign(x) * slope

    def _tilt(self, clients: Integers, xi: Floats) -> Floats:
        """b_i + s of clients and their samples, shape (...)."""
        return signs(self.M)[clients] * self.dissimilarity + coin(xi) * self.noise

    def sampled(self, x: Floats, clients: Integers, xi: Floats) -> Floats:
        """See ``Problem``."""
        return self.value(x) - self._tilt(clients, xi) * x[..., 0]

    def sampled_gradient(self, x: Floats, clients: Integers, xi: Floats) -> Floats:
        """See ``Problem``."""
        return self.gradient(x) - self._tilt(clients, xi)[..., None]

    def setting(self, **run: Any) -> Setting:
        """See ``Problem``; κ = 1, for H = L in one coordinate and 0 elsewhere."""
        return Setting(**{
            "d": self.d, "M": self.M, "L": self.L, "D": float(self.value(self.start)), "kappa": 1.0,
            "sigma": self.noise, "sigma_G": self.dissimilarity if self.M > 1 else 0.0,
            "G": self.L * self.width + self.noise + self.dissimilarity, **run,
        })  # fmt: skip
