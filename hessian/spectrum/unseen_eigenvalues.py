"""What a random start vector can have missed: how large an eigenvalue may be that Lanczos has not shown.

A residual proves that an eigenvalue is there. It proves nothing of others: a start vector v that has hardly any part
along an eigenvector e hardly shows its eigenvalue λ. But v is random, so that part is seldom small, and Lanczos' own
numbers say how small it would have to be. From He = λe and HQᵀ = Qᵀ T + q cᵀ,

    Qe = (λ − T)⁻¹c γ,    γ = qᵀe,    |vᵀe|² = φ(λ)²γ²,    φ(λ) = vᵀQᵀ(λ − T)⁻¹c,    ‖Qe‖² + γ² ≤ 1

so that every eigenvalue λ of H, whatever the others are, has

    |vᵀe|² ≤ w(λ),    w(λ) = φ(λ)²/(1 + ‖(λ − T)⁻¹c‖²) = 1/Σ_{j≤k} p_j(λ)²

with p_j Lanczos' orthonormal polynomials: w falls as fast as they grow outside of the Ritz values. For v uniform on the
unit sphere of n dimensions |vᵀe|² has the distribution Beta(½, (n − 1)/2), of function F. Let L be where F(w(L)) has
come down to p, the larger of L and −L, and e the eigenvector of ‖H‖₂. Then

    P(‖H‖₂ > L) ≤ P(|vᵀe|² < F⁻¹(p)) = p

for the L of all steps at once, as |vᵀe|² is drawn once: one may stop where one likes.

Source: van Dorsselaer, Hochstenbach and van der Vorst 2000, section 4, who use p_k alone; the sum is Christoffel's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc

Array = NDArray[np.float64]
Pole = tuple[Sequence[float], Sequence[float]]  # poles of a rational function, and the numerator above each

FAR, UNLIKELY = 0.25, 1e-4
"""An end of the spectrum that is further out by this share of ‖H‖₂ must be so unlikely before it is called found."""

UNSEEN = 0.3
"""What the bound weighs once an end is found: it is of the worst spectrum, and most have no such eigenvalue."""

_SIGNS = {"magnitude": (1, -1), "largest": (1,), "smallest": (-1,)}  # of H, to look for each end at its top

_BEYOND = np.geomspace(1e-6, 1e9, 400)
"""Distances from the outermost Ritz value, relative to θ, at which the bound is looked at."""


@dataclass(frozen=True)
class Hidden:
    """What is known of eigenvalues that Lanczos has not shown."""

    n: int  # the dimension of the sphere that the start vector was drawn from
    poles: Sequence[float]  # the Ritz values, (k,)
    couplings: Sequence[float]  # the coupling cᵀs of each to the next vector, (k,)
    seen: Sequence[float]  # the start vector's component along each Ritz vector, (k,)
    before: Sequence[Pole] = ()  # what φ is to be multiplied by, from before each restart

    @property
    def pole(self) -> Pole:
        """φ's poles and numerators, which what follows a restart is told of."""
        return list(self.poles), [above * c for above, c in zip(self.seen, self.couplings, strict=True)]

    def probability(self, values: ArrayLike) -> Array:
        """The most probability that the largest eigenvalue in magnitude is a λ of these, outside the Ritz values."""
        at = np.asarray(values, dtype=np.float64)[..., None]
        if self.n <= 1:  # the vector is all that there is
            return np.zeros(at.shape[:-1])
        factors = [(np.array(above), np.array(poles)) for poles, above in (self.pole, *self.before)]
        with np.errstate(divide="ignore", invalid="ignore"):
            phi: Array = np.prod([(above / (at - poles)).sum(-1) for above, poles in factors], axis=0)  # φ(λ)
            within = ((np.array(self.couplings) / (at - np.array(self.poles))) ** 2).sum(-1)
            w = np.nan_to_num(phi**2 / (1 + within), nan=1.0, posinf=1.0)  # at a pole nothing is known
        return np.asarray(betainc(0.5, (self.n - 1) / 2, np.clip(w, 0.0, 1.0)))

    def norms(self, which: str = "magnitude") -> tuple[Array, Array]:
        """‖H‖₂ (magnitude), λ_max (largest) or −λ_min (smallest) as a distribution: values, and the weight of each.

        Until one that is larger by FAR is as good as excluded, the weight of all above a value is the most probability
        that so large a one was missed; the last value is infinite. From then on the outermost Ritz value is taken to
        rise to what ``risen`` says, and that probability counts with the weight UNSEEN.
        """
        values, beyond = self._beyond(which)
        weights, risen = beyond[:-1] - beyond[1:], self.risen(which)
        share = UNSEEN if self.excludes(which=which) else 1.0
        values = np.append(np.maximum(values, risen), risen)
        weights = np.append(share * weights, 1 - share)
        return values[weights > 0], weights[weights > 0]

    def risen(self, which: str = "magnitude") -> float:
        """What the outermost Ritz value θ will rise to, by its residual r and its distance δ from the next one.

        It is the larger eigenvalue of the matrix (θ, r; r, θ − δ), about θ + r²/δ: the bound of Kato (1949) and Temple
        (1928), were δ the distance of the eigenvalues themselves, which is unknown.
        """
        ends = []
        for sign in _SIGNS[which]:
            values = sign * np.array(self.poles)
            last = int(values.argmax())
            half = (values[last] - np.delete(values, last).max()) / 2 if len(values) > 1 else 0.0
            ends.append(float(values[last] + np.hypot(half, self.couplings[last]) - half))
        return max(ends)

    def above(self, probability: float, which: str = "magnitude") -> float:
        """What ‖H‖₂ (magnitude), λ_max (largest) or −λ_min (smallest) is above with at most this probability."""
        values, beyond = self._beyond(which)
        return float(values[(beyond[1:] <= probability).argmax()])

    def excludes(self, share: float = FAR, which: str = "magnitude") -> bool:
        """Whether an end that is further out by this share of θ is as good as excluded: it has UNLIKELY at most."""
        return self.above(UNLIKELY, which) - self.above(1.0, which) <= share * max(map(abs, self.poles))

    def _beyond(self, which: str = "magnitude") -> tuple[Array, Array]:
        """Values, and the most probability that the end is as far out as the one before each: 1, ..., 0, one more."""
        if which in self._tables:
            return self._tables[which]
        start = max(sign * pole for sign in _SIGNS[which] for pole in self.poles)
        size = max(map(abs, self.poles))
        ends = start + size * _BEYOND
        missed = np.minimum.accumulate(np.max([self.probability(sign * ends) for sign in _SIGNS[which]], axis=0))
        self._tables[which] = np.array([start, *ends[1:], np.inf]), np.array([1.0, *missed, 0.0])
        return self._tables[which]

    @cached_property
    def _tables(self) -> dict[str, tuple[Array, Array]]:
        """What ``_beyond`` has made so far."""
        return {}
