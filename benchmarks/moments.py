"""Is the stream what it should be? Moments, tails and correlations of many draws, each with its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decomfl_lab import noise
from decomfl_lab.errors import require, require_int, require_possible
from decomfl_lab.noise.spec import Distribution, derive_seed

__all__ = ["Statistic", "stream_statistics"]

_LENGTH = 1_000_000
"""Elements of a direction that is looked at."""
_MATRIX = 16
"""Side of the matrix that should be the identity."""
_TAILS = (1.0, 2.0, 3.0, 4.0, 5.0)


@dataclass(frozen=True)
class Statistic:
    """An average over independent draws, what it should be, and the standard error of such an average."""

    name: str
    draws: int
    value: float
    expected: float
    standard_error: float

    @property
    def deviation(self) -> float:
        """(value − expected) / standard error; 0 where both agree exactly."""
        difference = self.value - self.expected
        if self.standard_error == 0:
            return 0.0 if difference == 0 else math.inf
        return difference / self.standard_error


class _Mean:
    """The running mean of a function of the draws with known mean and variance per draw."""

    def __init__(self, name: str, expected: float, variance: float) -> None:
        self.name, self.expected, self.variance = name, expected, variance
        self.total, self.count = 0.0, 0

    def add(self, values: NDArray[Any]) -> None:
        self.total += float(values.sum(dtype=np.float64))
        self.count += values.size

    def statistic(self) -> Statistic:
        error = math.sqrt(self.variance / self.count)
        return Statistic(self.name, self.count, self.total / self.count, self.expected, error)


def _normal_tail(threshold: float) -> float:
    return math.erfc(threshold / math.sqrt(2.0))


def stream_statistics(
    distribution: Distribution,
    draws: int,
    *,
    seed: int = 0,
    on_draws: Callable[[int], None] | None = None,
) -> list[Statistic]:
    """Averages over at least ``draws`` draws, to be compared with their expectations.

    Directions of a million elements are made under as many keys as needed, four directions a key. Averages are:
    moments 1 to 6, tail weights P(|z| > 1..5) (not of signs), products with the next lane, word and tile, of the
    same element in neighbouring directions p and p + 1 and in neighbouring seeds s and s + 1, and
    the mean square of the entries of mean(z zᵀ) − I for vectors of 16 consecutive elements, in standard errors.

    Args:
        distribution: Distribution of z. For the sphere with d = 10⁶ the gaussian's moments hold to 1/d.
        draws: How many numbers to draw, at least one million.
        seed: Run key that the directions' seeds derive from.
        on_draws: Called with the number of draws so far.

    Returns:
        Statistics; each deviation is about standard normal if the stream is what it should be.

    Raises:
        InputError: If ``draws`` is below one million, or the elements of directions are not independent.
    """
    require_possible("draws", require_int("draws", draws, _LENGTH), operations=10 * draws)
    independent = distribution is not Distribution.LOW_RANK
    require(independent, "distribution", "be gaussian, sphere or rademacher to be averaged over elements", distribution)
    signs = distribution is Distribution.RADEMACHER
    # E z^k and Var z^k = E z^2k − (E z^k)²: of N(0, 1) with E z^2k = (2k − 1)!!, and of ±1.
    even = {k: 1.0 if signs else float(math.prod(range(1, k, 2))) for k in range(2, 13, 2)}
    means = [
        _Mean(f"E z^{k}", even[k] if k % 2 == 0 else 0.0, even[2 * k] - (even[k] ** 2 if k % 2 == 0 else 0.0))
        for k in range(1, 7)
    ]
    tails = [] if signs else list(_TAILS)
    tail_means = [_Mean(f"P(|z| > {t:g})", _normal_tail(t), _normal_tail(t) * (1 - _normal_tail(t))) for t in tails]
    neighbours = {1: "lane", 32: "word", 128: "tile"}
    products = {lag: _Mean(f"E z_j z_j+{lag} (next {name})", 0.0, 1.0) for lag, name in neighbours.items()}
    next_p = _Mean("E z(p)_j z(p+1)_j", 0.0, 1.0)
    next_seed = _Mean("E z(s)_j z(s+1)_j", 0.0, 1.0)
    # z² of different directions too: independence is more than no correlation.
    squares = None if signs else _Mean("E (z(p)_j² − 1)(z(p+1)_j² − 1)", 0.0, 4.0)
    matrix = np.zeros((_MATRIX, _MATRIX))
    rows = done = 0
    key = 0
    while done < draws:
        base = derive_seed(seed, key)
        key += 1
        z = np.stack([noise.direction(base, p, _LENGTH, distribution=distribution) for p in range(4)])
        shifted = noise.direction((base + 1) % 2**64, 0, _LENGTH, distribution=distribution)
        wide = z.astype(np.float64)
        power = np.ones_like(wide)
        for mean in means:
            power *= wide
            mean.add(power)
        for t, mean in zip(tails, tail_means, strict=True):
            mean.add(np.abs(z) > t)
        for lag, mean in products.items():
            mean.add(wide[:, :-lag] * wide[:, lag:])
        next_p.add(wide[:-1] * wide[1:])
        next_seed.add(wide[0] * shifted)
        if squares is not None:
            squares.add((wide[:-1] ** 2 - 1) * (wide[1:] ** 2 - 1))
        block = wide[:, : _LENGTH // _MATRIX * _MATRIX].reshape(-1, _MATRIX)
        matrix += block.T @ block
        rows += len(block)
        done += z.size
        if on_draws is not None:
            on_draws(min(done, draws))
    # Upper triangle of mean(z zᵀ) − I in standard errors, squared: each entry has expectation 1, variance 2.
    i, j = np.triu_indices(_MATRIX, k=1 if signs else 0)
    error = np.where(i == j, even[4] - 1, 1.0) / rows
    ratios = (matrix / rows - np.eye(_MATRIX))[i, j] ** 2 / error
    identity = Statistic("(E zzᵀ − I)² / s.e.²", rows * _MATRIX, float(ratios.mean()), 1.0, math.sqrt(2 / i.size))
    extra = [] if squares is None else [squares.statistic()]
    lists = (means, tail_means, products.values(), (next_p, next_seed))
    return [*(mean.statistic() for group in lists for mean in group), *extra, identity]
