"""Is the stream what it should be? Moments, tails and correlations of many draws, each with its standard error."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decomfl_lab import noise
from decomfl_lab.noise.spec import Distribution, derive_seed

LENGTH = 1_000_000  # elements of a direction
SIDE = 16  # of the matrix that should be the identity
NEIGHBOURS = {1: "lane", 32: "word", 128: "tile"}  # elements that share ever less of what made them, by their distance


@dataclass
class Average:
    """An average over independent draws, and what it should be; its variance is that of one draw."""

    name: str
    expected: float
    variance: float
    total: float = 0.0
    draws: int = 0

    def add(self, values: NDArray[Any]) -> None:
        self.total += float(values.sum(dtype=np.float64))
        self.draws += values.size

    @property
    def deviation(self) -> float:
        """In standard errors; without any, which is the average of a constant, 0 or infinite."""
        difference = self.total / self.draws - self.expected
        error = math.sqrt(self.variance / self.draws)
        return difference / error if error > 0 else math.inf * difference if difference else 0.0


def averages(distribution: Distribution, draws: int, *, seed: int = 0) -> list[Average]:
    """Averages over at least so many draws of a million elements; each deviation should be about standard normal.

    Moments 1 to 6, tail weights P(|z| > 1..5) (not of signs), products with the next lane, word and tile, of the same
    element in neighbouring directions p and p + 1 and in neighbouring seeds s and s + 1, and the mean square of the
    entries of mean(z zᵀ) − I for vectors of 16 consecutive elements. The sphere has the Gaussian's moments to 1/d.
    """
    signs, found = distribution is Distribution.RADEMACHER, dict[str, Average]()
    matrix, vectors = np.zeros((SIDE, SIDE)), 0
    for key in range(-(-draws // (4 * LENGTH))):
        base = derive_seed(seed, key)
        z = np.stack([noise.direction(base, p, LENGTH, distribution=distribution) for p in range(4)])
        shifted = noise.direction((base + 1) % 2**64, 0, LENGTH, distribution=distribution)
        for name, expected, variance, values in _looked_at(z.astype(np.float64), shifted, signs):
            found.setdefault(name, Average(name, expected, variance)).add(values)
        block = z.astype(np.float64)[:, : LENGTH // SIDE * SIDE].reshape(-1, SIDE)
        matrix += block.T @ block
        vectors += len(block)
    # The upper triangle of mean(z zᵀ) − I, in standard errors and squared: each has expectation 1, variance 2.
    i, j = np.triu_indices(SIDE, k=1 if signs else 0)
    errors = np.where(i == j, 2.0, 1.0) / vectors
    identity = Average("(E zzᵀ − I)² / s.e.²", 1.0, 2.0)
    identity.add((matrix / vectors - np.eye(SIDE))[i, j] ** 2 / errors)
    return [*found.values(), identity]


def _looked_at(
    z: NDArray[np.float64], shifted: NDArray[np.float32], signs: bool
) -> Iterator[tuple[str, float, float, NDArray[Any]]]:
    """Name, expectation, variance and values, of z (4, LENGTH) and of direction 0 under the next seed."""
    # E z^2k is (2k − 1)!! of N(0, 1), and 1 of signs; odd moments are 0. Var z^k = E z^2k − (E z^k)².
    moment = {k: 0.0 if k % 2 else 1.0 if signs else float(math.prod(range(1, k, 2))) for k in range(1, 13)}
    power = np.ones_like(z)
    for k in range(1, 7):
        power = power * z
        yield f"E z^{k}", moment[k], moment[2 * k] - moment[k] ** 2, power
    for t in () if signs else (1, 2, 3, 4, 5):
        weight = math.erfc(t / math.sqrt(2.0))
        yield f"P(|z| > {t})", weight, weight * (1 - weight), np.abs(z) > t
    for lag, name in NEIGHBOURS.items():
        yield f"E z_j z_j+{lag} (next {name})", 0.0, 1.0, z[:, :-lag] * z[:, lag:]
    yield "E z(p)_j z(p+1)_j", 0.0, 1.0, z[:-1] * z[1:]
    yield "E z(s)_j z(s+1)_j", 0.0, 1.0, z[0] * shifted
    if not signs:  # of z² too: independence is more than no correlation
        yield "E (z(p)_j² − 1)(z(p+1)_j² − 1)", 0.0, 4.0, (z[:-1] ** 2 - 1) * (z[1:] ** 2 - 1)
