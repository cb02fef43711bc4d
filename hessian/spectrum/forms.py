"""The trace of a symmetric matrix from quadratic forms on a sphere, with an interval from the products behind them."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit
from torch import Tensor
from torch.nn.functional import pad

from decomfl_lab.noise import Distribution, derive_seed
from decomfl_lab.storage.outside import SavedForms
from hessian.operators.probes import probe
from hessian.spectrum.lanczos import coefficients, dot

Array = NDArray[np.float64]

_HALF = {torch.float32: torch.bfloat16, torch.float64: torch.float32}
"""The dtypes that products are kept in, of the same range or scaled to it."""

PRODUCTS = 6
"""Probes whose whole products are looked at: they tell the variance of all."""

LARGE = 1 << 20
"""Elements from which on no product is kept, but its sketch and its dots with the probes to come."""

SKETCH = 1 << 16  # numbers of a sketch: it tells the dots of vectors of length 1 to 1/256

CAUTION = 1.25
"""h counts so much more: few pairs tell it roughly, and whoever stops where an interval looks narrow is misled by those
that are too low. (Measured: at 1 some spectra hold in 93.5 % in place of 94.5.)"""


def sketch(y: Tensor) -> Tensor:
    """Σ_b σ_b ⊙ (block b of y, turned round), (SKETCH,): E (Sx)ᵀ(Sy) = xᵀy, to ‖x‖‖y‖/√SKETCH at most.

    Each block has its own turn, so two of its elements never meet and those of different blocks seldom do; and where
    they do, their signs are random (the count-sketch of Charikar, Chen and Farach-Colton 2002).
    """
    signs = probe(y.new_empty(SKETCH), 0, 0, 0, Distribution.RADEMACHER)
    total = torch.zeros_like(signs)
    for b, block in enumerate(y.split(SKETCH)):
        turns = derive_seed(0, b)
        sign, turn, other = 1 - 2 * (turns & 1), (turns >> 1) % SKETCH, (turns >> 32) % SKETCH
        padded = pad(block, (0, SKETCH - len(block)))
        total.addcmul_(padded.roll(turn), signs.roll(other), value=sign)
    return total


class SphereForms:
    """tr(B) of a symmetric B on a space of n dimensions, from u_iᵀBu_i with u_i uniform on the sphere of radius √n.

    With ρ_i = u_iᵀBu_i/n, C = B − ρ_0 I, y_i = Cu_i and t_k = tr(C^k), for i ≠ j and whatever the eigenvalues are,

        E uᵀBu = tr(B),    Var uᵀBu = 2 E‖Bu − ρu‖²,
        E (u_iᵀy_j)² ≈ t₂,    E (u_iᵀy_j)(y_iᵀy_j) ≈ t₃,    E (y_iᵀy_j)² ≈ t₄

    So the products that the forms are made of measure the variance far better than the spread of a few forms does:
    ‖Bu − ρu‖² has a relative variance of 2t₄/t₂² =: 2h, which is 2 if one eigenvalue is all there is, and small if many
    are alike. From m products the variance therefore has ν = m/h degrees of freedom, at least m.

    A mean x̄ of N forms above the trace comes with a variance that is estimated too large, and forms are skewed
    themselves. Both together move the quantiles of (x̄ − tr B)/(σ̂/√N), to the first order in 1/√N (Cornish and Fisher
    1938), by −c√h (q² + 2)/(3√2√N), with c = t₃/√(t₂t₄) in [−1, 1]: ±1 if the eigenvalues that matter have one sign and
    one size. So the quantiles of tr(B) are

        x̄ + c√h (q² + 2) σ̂/(3√2 N) + q σ̂/√N,    q the quantiles of Student's t_ν

    h and c are measured by what does not depend on how long the few u_i happen to be along the few eigenvectors that
    matter: h by the cosines of the y_i, c by the correlation of u_iᵀy_j and y_iᵀy_j over the pairs. With one eigenvalue
    left both are exact from two products on.
    """

    def __init__(self, n: int = 0) -> None:
        """Begin without forms on a space of ``n`` dimensions."""
        self.n = n  # the dimension of the space
        self.values: list[float] = []  # the quadratic forms
        self.squares: list[float] = []  # the squares ‖Bu − ρu‖² of the first of them
        # the products (u_jᵀy_i, y_jᵀy_i, ‖y_j − ..‖²‖y_i − ..‖²) of their pairs
        self.pairs: list[tuple[float, float, float]] = []
        self._images: list[Tensor] = []  # y_i/‖y_i‖ or its sketch, as long as there are pairs to come
        self._lengths: list[float] = []  # ‖y_i‖
        self._dots: list[list[float]] = []  # of y_i that are sketched: their dots with the z_j to come
        self._scale = 1.0  # u/Pz of the last probe

    @property
    def wants_products(self) -> bool:
        """Whether ``add`` needs the product of the next probe."""
        return len(self.values) < PRODUCTS

    def on_sphere_(self, u: Tensor) -> Tensor:
        """The next probe, of length √n, in place of u = Pz."""
        self._scale = math.sqrt(self.n) / (math.sqrt(dot(u, u)) or 1.0)
        return u.mul_(self._scale)

    def add(self, form: float, u: Tensor, product: Tensor | None, drawn: Callable[[int], Tensor]) -> None:
        """Take in the form uᵀBu of the next probe u (d,) and, where it is wanted, its product Bu (d,), written to.

        ``drawn`` gives the z of a probe by its number: with y in the space, u_jᵀy is z_jᵀy times a scale.
        """
        self.values.append(form)
        if product is None:
            return
        # y = Bu − ρ_0 u, with ρ_0 from the first form: ρ_0 n is that form. What is left of it along u is (ρ − ρ_0)u.
        y = product.sub_(u, alpha=self.values[0] / self.n)
        length_squared = dot(y, y)
        square = max(length_squared - (form - self.values[0]) ** 2 / self.n, 0.0)
        sketched, number = len(y) >= LARGE, len(self.values)  # of the next probe
        last = sketch(y) if sketched and self._images else y
        for i, (image, length, other) in enumerate(zip(self._images, self._lengths, self.squares, strict=True)):
            if sketched:
                a, b = self._scale * self._dots[i].pop(0), dot(last, image)
            else:
                a, b = coefficients([u, y], image)
            self.pairs.append((length * a, length * b, square * other))
        self.squares.append(square)
        if self.wants_products:
            # What pairs tell is known to some ten percent: half of the digits do for it, and take half of the memory.
            length = math.sqrt(length_squared) or 1.0
            self._lengths.append(length)
            y.div_(length)
            self._images.append(sketch(y) if sketched else y.to(_HALF[y.dtype]))
            if sketched:
                self._dots.append([dot(drawn(j), y) for j in range(number, PRODUCTS)])
        else:
            self._images, self._lengths, self._dots = [], [], []

    @property
    def measured(self) -> int:
        """The number of probes that tell the variance."""
        return len(self.squares)

    @property
    def mean(self) -> float:
        """The estimate of tr(B)."""
        return math.fsum(self.values) / len(self.values)

    def moments(self) -> tuple[float, float, float]:
        """Estimates of Var uᵀBu, of c and of h."""
        variance = 2 * math.fsum(self.squares) / len(self.squares)
        forms = math.fsum(a**2 for a, _, _ in self.pairs)
        products = math.fsum(b**2 for _, b, _ in self.pairs)
        squares = math.fsum(both for _, _, both in self.pairs)
        # One product alone has no pairs: no skewness, and the fewest degrees of freedom.
        if not (products > 0 and squares > 0):
            return variance, 0.0, 1.0
        skew = math.fsum(a * b for a, b, _ in self.pairs) / math.sqrt(forms * products) if forms else 0.0
        return variance, skew, min(CAUTION * products / squares, 1.0)

    @property
    def stderr(self) -> float:
        """Standard error of the mean."""
        return math.sqrt(self.moments()[0] / len(self.values))

    def _law(self) -> tuple[float, float, float]:
        """σ̂/√N, the a of a(q² + 2), and ν."""
        variance, skew, share = self.moments()
        N = len(self.values)
        # ν = m/h. An h near 0 means many eigenvalues alike, and then t is as good as normal.
        freedom = self.measured / max(share, 1e-9)
        stderr = math.sqrt(variance / N)
        return stderr, skew * math.sqrt(share / (2 * N)) * stderr / 3, freedom

    def quantile(self, probability: float) -> float:
        """The value that tr(B) is below with this probability."""
        stderr, bend, freedom = self._law()
        q = float(stdtrit(freedom, probability))
        return self.mean + bend * (q**2 + 2) + q * stderr

    def below(self, values: ArrayLike) -> Array:
        """The probability that tr(B) is below each of these: the inverse of ``quantile``."""
        stderr, bend, freedom = self._law()
        shift = np.asarray(values, dtype=np.float64) - self.mean - 2 * bend
        if stderr == 0:
            return np.where(shift >= 0, 1.0, 0.0)
        # The root of bend q² + stderr q = shift that is shift/stderr for a small bend; beyond its turn there is none.
        with np.errstate(over="ignore", invalid="ignore"):
            root = np.sqrt(np.maximum(stderr**2 + 4 * bend * shift, 0.0))
            q = np.where(np.isinf(shift), shift, 2 * shift / (stderr + root))
        return np.asarray(stdtr(freedom, q))

    def interval(self, confidence: float) -> tuple[float, float]:
        """Ends of the two-sided interval for tr(B)."""
        return self.quantile(0.5 - confidence / 2), self.quantile(0.5 + confidence / 2)

    def state(self) -> tuple[dict[str, Tensor], SavedForms]:
        """Tensors and values that ``restore`` brings back."""
        tensors = {f"image.{i}": image for i, image in enumerate(self._images)}
        return tensors, SavedForms(self.n, self.values, self.squares, self.pairs, self._lengths, ahead=self._dots)

    def restore(self, tensors: dict[str, Tensor], values: SavedForms, device: torch.device) -> None:
        """Take up the values that ``state`` gave, to the bit."""
        self.n, self.values, self.squares = values.n, values.values, values.squares
        self.pairs, self._lengths, self._dots = values.pairs, values.lengths, values.ahead
        names = sorted(name for name in tensors if name.startswith("image."))  # fewer than ten: PRODUCTS of them
        self._images = [tensors[name].to(device) for name in names]
