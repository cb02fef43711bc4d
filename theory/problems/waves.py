"""Non-convex losses whose smoothing is known exactly: sums of cosines, by the characteristic functions of z.

With t·z for z of one of the three distributions (symmetric, E zzᵀ = I),

    φ(t) = E cos(t·z),   ψ(t) = E z sin(t·z) = −∇φ(t),   ω(t) = E ‖z‖² cos(t·z):

    gaussian     e^{−‖t‖²/2}                     ψ = t φ(t)                        ω = (d − ‖t‖²) φ(t)
    rademacher   Π_k cos t_k                     ψ_k = sin t_k Π_{l≠k} cos t_l     ω = d φ(t)
    sphere       ₀F₁(d/2; −d‖t‖²/4)              ψ = t ₀F₁(d/2 + 1; −d‖t‖²/4)      ω = d φ(t)
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy import special

from decomfl_lab.errors import require, require_finite_positive, require_int
from theory.notation.setting import Setting
from theory.problems.problem import Floats, Integers, coin
from theory.problems.quadratic import signs


@dataclass(frozen=True)
class Waves:
    """f_i(x; ξ) = Σ_j A_j cos(w_j·x + θ_j), A = a ± b ± s.

    A client's own ±b is 0 on average; ±s is thrown anew, by a fair coin, at each step of each client. So f(x) =
    Σ_j a_j cos(w_j·x + θ_j), not convex, and the Hessians of all f_i(·; ξ) lie between ∓Σ_j c_j w_j w_jᵀ,
    c = |a| + |b| + |s|.
    """

    a: Floats  # amplitudes of f, shape (J,). [F]
    b: Floats  # what clients add or take away, shape (J,). [F]
    s: Floats  # what the data sample adds or takes away, shape (J,). [F]
    w: Floats  # wave vectors, shape (J, n). [1/X]
    theta: Floats  # phases, shape (J,)
    start: Floats  # x_0, shape (n,). [X]
    d: int  # number of parameters, at least n
    M: int = 1  # number of clients

    def __post_init__(self) -> None:
        require(self.w.ndim == 2, "w", "be of shape (J, n)", self.w.shape)
        for name in ("a", "b", "s", "theta"):
            require(
                getattr(self, name).shape == self.w.shape[:1], name, "be one for each wave", getattr(self, name).shape
            )
        require(self.start.shape == self.w.shape[1:], "start", "be of the wave vectors' length", self.start.shape)
        require_int("d", self.d, self.w.shape[1])
        require_int("M", self.M, 1)

    @classmethod
    def random(cls, *, waves: int, n: int, d: int | None = None, M: int = 1, noise: float = 0.3, seed: int = 0) -> Self:
        """Gaussian wave vectors of length about 1 and random amplitudes; b and s are ``noise`` times as large as a."""
        rng = np.random.default_rng(seed)
        a, b, s = rng.standard_normal((3, waves)) * np.array([[1.0], [noise], [noise]])
        w = rng.standard_normal((waves, n)) / np.sqrt(n)
        return cls(a, b, s, w, rng.uniform(0, 2 * np.pi, waves), rng.standard_normal(n), n if d is None else d, M)

    def amplitudes(self, clients: Integers, xi: Floats) -> Floats:
        """A of clients and samples, shape (..., J)."""
        return self.a + signs(self.M)[clients][..., None] * self.b + coin(xi)[..., None] * self.s

    def _phases(self, x: Floats) -> Floats:
        """w_j·x + θ_j, shape (..., J)."""
        return x @ self.w.T + self.theta

    def sampled(self, x: Floats, clients: Integers, xi: Floats) -> Floats:
        """See ``Problem``."""
        losses: Floats = (self.amplitudes(clients, xi) * np.cos(self._phases(x))).sum(-1)
        return losses

    def sampled_gradient(self, x: Floats, clients: Integers, xi: Floats) -> Floats:
        """See ``Problem``."""
        return -(self.amplitudes(clients, xi) * np.sin(self._phases(x))) @ self.w

    def value(self, x: Floats) -> Floats:
        """f(x), shape (...)."""
        return np.cos(self._phases(x)) @ self.a

    def gradient(self, x: Floats) -> Floats:
        """See ``Problem``."""
        return -(self.a * np.sin(self._phases(x))) @ self.w

    def _bound(self, c: Floats) -> Floats:
        """Σ_j c_j w_j w_jᵀ, shape (n, n) for c (J,)."""
        return (self.w.T * c) @ self.w

    @cached_property
    def L(self) -> float:
        """λ_max(Σ_j c_j w_j w_jᵀ): every f_i(·; ξ) is that smooth."""
        return float(np.linalg.eigvalsh(self._bound(abs(self.a) + abs(self.b) + abs(self.s)))[-1])

    def setting(self, **run: Any) -> Setting:
        """See ``Problem``; upper bounds: |cos|, |sin| ≤ 1, f* ≥ −Σ|a_j|, H = Σ_j |a_j| w_j w_jᵀ ⪰ ∇²f everywhere."""
        lengths = np.linalg.norm(self.w, axis=1)
        by_length = {name: float(abs(getattr(self, name)) @ lengths) for name in ("a", "b", "s")}
        amplitudes = abs(self.a) + abs(self.b) + abs(self.s)
        return Setting(**{
            "d": self.d, "M": self.M, "L": self.L, "D": float(self.value(self.start) + abs(self.a).sum()),
            "kappa": max(1.0, float(np.trace(self._bound(abs(self.a)))) / self.L),
            "sigma": by_length["s"], "sigma_G": by_length["b"] if self.M > 1 else 0.0, "G": sum(by_length.values()),
            "H3": float(amplitudes @ lengths**3),
            **run,
        })  # fmt: skip

    # Closed forms at a point x.

    def _phi(self, distribution: str, t: Floats) -> Floats:
        """φ(t), shape (...) for t (..., n)."""
        phi: Floats
        square = (t**2).sum(-1)
        if distribution == "gaussian":
            phi = np.exp(-square / 2)
        elif distribution == "rademacher":
            phi = np.cos(t).prod(-1)
        else:
            phi = _hyp0f1(self.d / 2, -self.d * square / 4)
        return phi

    def _omega(self, distribution: str, t: Floats) -> Floats:
        """ω(t), likewise."""
        square = (t**2).sum(-1) if distribution == "gaussian" else 0.0
        return (self.d - square) * self._phi(distribution, t)

    def smoothed(self, x: Floats, mu: float, distribution: str) -> float:
        """f^μ(x) = E f(x + μz) = Σ_j a_j φ(μw_j) cos(w_j·x + θ_j)."""
        return float(self.a * self._phi(distribution, mu * self.w) @ np.cos(self._phases(x)))

    def mean_estimate(self, x: Floats, mu: float, distribution: str, amplitudes: Floats | None = None) -> Floats:
        """E g z of forward and central differences alike: −(1/μ) Σ_j a_j sin(w_j·x + θ_j) ψ(μw_j), shape (n,).

        For Gaussian z that is ∇f^μ(x) (Stein), on the sphere the gradient of f smoothed over the ball.
        """
        require_finite_positive("mu", mu)
        a = self.a if amplitudes is None else amplitudes
        t = mu * self.w
        psi: Floats  # shape (..., n)
        if distribution == "rademacher":
            is_own = np.eye(t.shape[-1], dtype=bool)
            psi = np.where(is_own, np.sin(t)[..., None, :], np.cos(t)[..., None, :]).prod(-1)
        else:
            square = (t**2).sum(-1)
            gaussian = distribution == "gaussian"
            factor = np.exp(-square / 2) if gaussian else _hyp0f1(self.d / 2 + 1, -self.d * square / 4)
            psi = t * factor[..., None]
        return -(a * np.sin(self._phases(x))) @ psi / mu

    def second_moment(
        self, x: Floats, mu: float, distribution: str, amplitudes: Floats | None = None, *, central: bool = False
    ) -> float:
        """E‖g z‖² over all d coordinates, of forward or of central differences.

        With θ_j the phases at x and t_j = μw_j it is, for central ones,

            (1/μ²) Σ_jl a_j a_l sin θ_j sin θ_l ½(ω(t_j − t_l) − ω(t_j + t_l)),

        as their g is −(1/μ) Σ_j a_j sin θ_j sin(t_j·z), and for forward ones

            (1/μ²) Σ_jl a_j a_l (½ cos(θ_j + θ_l) ω(t_j + t_l) + ½ cos(θ_j − θ_l) ω(t_j − t_l)
                                 + cos θ_j cos θ_l (d − ω(t_j) − ω(t_l))).

        Differences cancel: an error of about 10⁻¹⁶ d (Σ|a_j|)²/μ² is left.
        """
        require_finite_positive("mu", mu)
        a = self.a if amplitudes is None else amplitudes
        phases, t = self._phases(x), mu * self.w
        both, apart = phases[:, None] + phases, phases[:, None] - phases
        sums, differences = self._omega(distribution, t[:, None] + t), self._omega(distribution, t[:, None] - t)
        if central:
            of_sines = a * np.sin(phases)
            return float(of_sines @ (0.5 * (differences - sums)) @ of_sines) / mu**2
        omega, cosines = self._omega(distribution, t), np.cos(phases)
        terms = (
            0.5 * np.cos(both) * sums
            + 0.5 * np.cos(apart) * differences
            + np.multiply.outer(cosines, cosines) * (self.d - omega[:, None] - omega)
        )
        return float(a @ terms @ a) / mu**2


def _hyp0f1(b: float, x: Floats) -> Floats:
    """₀F₁(b; x) for x ≤ 0 to 3·10⁻⁷: scipy's, and for large b, where that overflows, the series.

    |₀F₁(b; x)| ≤ e^{x/b} is taken for 0 where its terms are too large to be added.
    """
    if b <= 50:
        return np.asarray(special.hyp0f1(b, x), dtype=np.float64)
    near = np.maximum(x, np.float64(-15 * b))
    term: Floats = np.ones(near.shape)
    total: Floats = np.ones(near.shape)
    for k in range(80):
        term = term * near / ((b + k) * (k + 1))
        total = total + term
    return np.where(x < near, 0.0, total)
