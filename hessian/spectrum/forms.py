"""The trace of a symmetric matrix from quadratic forms on a sphere, with an interval from the products behind them."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.optimize import brentq
from scipy.special import stdtr, stdtrit
from torch import Tensor

from hessian.spectrum.lanczos import dot

__all__ = ["PRODUCTS", "SphereForms"]

PRODUCTS = 6
"""Probes whose whole products are looked at: they tell the variance of all, and as many vectors (d,) are kept."""


class SphereForms:
    """tr(B) of a symmetric B on a space of n dimensions, from u_iᵀBu_i with u_i uniform on the sphere of radius √n.

    With ρ = u_0ᵀBu_0/n, C = B − ρI, y_i = Cu_i and t_k = tr(C^k), for i ≠ j,

        E uᵀBu = tr(B),    Var uᵀBu = 2n/(n + 2)·(t₂ − t₁²/n),    E‖y_i‖² = t₂,
        E (u_iᵀy_j)(y_iᵀy_j) = t₃,    E (y_iᵀy_j)² = t₄

    So the products that the forms are made of measure the variance far better than the spread of a few forms does:
    ‖y‖² has a relative variance of 2(t₄/t₂² − 1/n), which is 2 if one eigenvalue is all there is, and small if many are
    alike. From m products the variance therefore has ν = m/(t₄/t₂² − 1/n) degrees of freedom, at least m.

    A mean x̄ of N forms above the trace comes with a variance that is estimated too large, for
    Cov(uᵀBu, 2‖y‖²) = 4t₃, and forms are skewed themselves, with a third cumulant of 8t₃. Both together move the
    quantiles of (x̄ − tr B)/(σ̂/√N), to the first order in 1/√N (Cornish and Fisher 1938), by
    −(t₃/t₂)(q² + 2)/(3√N σ), so that the interval is

        x̄ + (t₃/t₂)(q² + 2)/(3N) ± q σ̂/√N,    q = t_ν's quantile

    Attributes:
        n: The dimension of the space.
        values: The quadratic forms.
        squares: The squares ‖y‖² of the first of them.
        pairs: The products (u_jᵀy_i, y_jᵀy_i) of their pairs.
    """

    def __init__(self, n: int = 0) -> None:
        """Begin without forms on a space of ``n`` dimensions."""
        self.n = n
        self.values: list[float] = []
        self.squares: list[float] = []
        self.pairs: list[tuple[float, float]] = []
        self._images: list[Tensor] = []  # y_i, as long as there are pairs to come

    @property
    def wants_products(self) -> bool:
        """Whether ``add`` needs the product of the next probe."""
        return len(self.values) < PRODUCTS

    def add(self, form: float, u: Tensor, product: Tensor | None) -> None:
        """Take in uᵀBu and, where it is wanted, Bu within the space (written to)."""
        self.values.append(form)
        if product is None:
            return
        # y = Bu − ρu, with ρ from the first form: ρn is that form.
        y = product.sub_(u, alpha=self.values[0] / self.n)
        self.squares.append(dot(y, y))
        # With every y_i before: (u_jᵀy_i, y_jᵀy_i). Their mean product is t₃, their mean second square t₄.
        self.pairs += [(dot(u, image), dot(y, image)) for image in self._images]
        self._images.append(y)
        if not self.wants_products:
            self._images = []

    @property
    def mean(self) -> float:
        """The estimate of tr(B)."""
        return math.fsum(self.values) / len(self.values)

    def moments(self) -> tuple[float, float, float]:
        """Estimates of Var uᵀBu, of t₃/t₂ and of m's share in ν, t₄/t₂² − 1/n."""
        second = math.fsum(self.squares) / len(self.squares)
        # t₂ − t₁²/n, where t₁ = tr C = tr B − ρn is the mean less the first form.
        variance = 2 * self.n / (self.n + 2) * max(second - (self.mean - self.values[0]) ** 2 / self.n, 0.0)
        # One product alone has no pairs: no skewness, and the fewest degrees of freedom.
        if not (self.pairs and variance > 0):
            return variance, 0.0, 1.0
        third = math.fsum(form * square for form, square in self.pairs) / len(self.pairs)
        fourth = math.fsum(square**2 for _, square in self.pairs) / len(self.pairs)
        return variance, third / second, min(max(fourth / second**2 - 1 / self.n, 0.0), 1.0)

    @property
    def stderr(self) -> float:
        """Standard error of the mean."""
        return math.sqrt(self.moments()[0] / len(self.values))

    def interval(self, confidence: float, play: float = 0.0) -> tuple[float, float]:
        """Ends of the interval for tr(B).

        With ``play`` Δ > 0 they are ends for one who knows no better than that a value lies between tr(B) − Δ and
        tr(B), and widens the interval by Δ below. The value cannot be near both ends, so that less is needed than t_ν's
        two-sided quantile: q solves F(q + Δ√N/σ̂) − F(−q) = confidence, F being t_ν's distribution function, and the
        widened interval still holds the value with that confidence wherever it lies.

        Source: Imbens and Manski 2004, equation (7), for the quantile.
        """
        N, (variance, skew, share) = len(self.values), self.moments()
        # ν = m/share. A share near 0 means many eigenvalues alike, and then t is as good as normal.
        freedom, stderr = len(self.squares) / max(share, 1e-9), math.sqrt(variance / N)
        one_sided, q = (float(stdtrit(freedom, p)) for p in (confidence, 0.5 + confidence / 2))

        def excess(at: float) -> float:
            further = at + play / stderr if stderr > 0 else math.inf
            return float(stdtr(freedom, further) - stdtr(freedom, -at)) - confidence

        # The quantile lies between the one-sided one, for much play, and the two-sided one, for none.
        if play > 0 and excess(q) > 0 > excess(one_sided):
            q = brentq(excess, one_sided, q)
        middle = self.mean + skew * (q**2 + 2) / (3 * N)
        return middle - q * stderr, middle + q * stderr

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and values that ``restore`` brings back."""
        tensors = {f"image.{i}": image for i, image in enumerate(self._images)}
        return tensors, {"n": self.n, "values": self.values, "squares": self.squares, "pairs": self.pairs}

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any], device: torch.device) -> None:
        """Become what this ``state`` is of, to the bit."""
        self.n, self.values, self.squares = values["n"], list(values["values"]), list(values["squares"])
        self.pairs = [(form, square) for form, square in values["pairs"]]
        names = sorted(name for name in tensors if name.startswith("image."))
        self._images = [tensors[name].to(device) for name in names]
