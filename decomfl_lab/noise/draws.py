"""Random choices from the stream, one after another: permutations, whole numbers, Dirichlet shares.

    w_0, w_1, ...   64-bit words: two neighbouring elements' words of the stream, the lower one first, with tag 5
    permutation     the order that sorts as many words
    whole number    ⌊w n / 2⁶⁴⌋ in 0, ..., n − 1, each with a chance within 2⁻⁶⁴ of 1/n
    Dirichlet       shares of Gamma variates (Marsaglia and Tsang), in float64, with correctly rounded logarithms

All of it is integer arithmetic, or float64 operations that IEEE 754 fixes to the bit, in a stated order. So it is the
same on every machine and with every version of numpy, whose own permutations and Gamma variates may change.
"""

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import require_choice
from decomfl_lab.noise.reference import box_muller, tile_words
from decomfl_lab.noise.spec import TAG_DRAWS, TILE, derive_seed

STREAM: Final = "stream"
LIBRARIES: Final = "libraries"
DRAWS: Final = (STREAM, LIBRARIES)
"""The names that ``draws_of`` resolves."""

_TILES: Final = 64
"""Tiles of words that are made at a time, at least."""
_DIGITS: Final = Context(prec=30, rounding=ROUND_HALF_EVEN)
"""Logarithms and exponentials are right to 30 digits before they are rounded to float64."""

_LEAST: Final = -1e300
"""A logarithm at which a variate is as good as 0."""


class Draws:
    """Random choices, each of which depends on those before it: here numpy's, by which earlier versions drew."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def permutation(self, of: Any) -> NDArray[np.int64]:
        """The numbers 0, ..., of − 1, or the elements of an array, in random order."""
        return self._generator.permutation(of).astype(np.int64)

    def integers(self, n: int) -> int:
        """One of 0, ..., n − 1."""
        return int(self._generator.integers(n))

    def dirichlet(self, parameters: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        """Shares (size, C), each row of Dir(parameters)."""
        return self._generator.dirichlet(parameters, size=size)

    def dot(self, matrix: NDArray[np.float64], vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """The product of a matrix (n, C) and a vector (C,)."""
        return np.asarray(matrix @ vector)


def draws_of(by: str, seed: int, *path: int) -> Draws:
    """The choices of a seed for one purpose, which ``path`` names.

    Args:
        by: "stream", or "libraries": numpy, as runs of earlier versions drew.
        seed: 0..2**64-1.
        path: Whole numbers that tell apart what is drawn.
    """
    if require_choice("draws", by, DRAWS) == STREAM:
        return _OfStream(derive_seed(seed, *path))
    return Draws(np.random.default_rng(np.random.SeedSequence(seed, spawn_key=path)))


class _OfStream(Draws):
    """See the module."""

    def __init__(self, key: int) -> None:
        self._key, self._tile = key, 0
        self._left = np.empty(0, dtype=np.uint64)

    def _words(self, count: int) -> NDArray[np.uint64]:
        """The next ``count`` words of 64 bits."""
        if count > self._left.size:
            tiles = max(_TILES, -(-2 * (count - self._left.size) // TILE))
            made = tile_words(self._key, 0, TAG_DRAWS, np.arange(self._tile, self._tile + tiles))
            low, high = made.reshape(-1, 2).astype(np.uint64).T
            self._left = np.concatenate([self._left, low | high << np.uint64(32)])
            self._tile += tiles
        words, self._left = self._left[:count], self._left[count:]
        return words

    def permutation(self, of: Any) -> NDArray[np.int64]:
        n = of if isinstance(of, int) else len(of)
        order = np.argsort(self._words(n), kind="stable").astype(np.int64)
        return order if isinstance(of, int) else np.asarray(of)[order]

    def integers(self, n: int) -> int:
        return int(self._words(1)[0]) * n >> 64

    def dirichlet(self, parameters: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        shares = np.empty((size, len(parameters)))
        for row in shares:
            logarithms = [self._log_gamma(float(a)) for a in parameters]
            # The largest is 1 then, so that no row is all zeros where parameters are small.
            top = max(logarithms)
            row[:] = [float(_DIGITS.exp(Decimal(logarithm - top))) for logarithm in logarithms]
            row /= math.fsum(row)
        return shares

    def _log_gamma(self, a: float) -> float:
        """The logarithm of a Gamma(a) variate."""
        # Source: Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000), 363-372.
        d = (a if a >= 1 else a + 1) - 1 / 3
        c = 1 / math.sqrt(9 * d)
        while True:
            # z is a standard normal number.
            word = self._words(1)
            low, high = word & np.uint64(0xFFFFFFFF), word >> np.uint64(32)
            z = float(box_muller(low.astype(np.uint32), high.astype(np.uint32))[0][0])
            v = (1 + c * z) * (1 + c * z) * (1 + c * z)
            if v > 0:
                log_v = _log(v)
                if _log(self._uniform()) < z * z / 2 + d - d * v + d * log_v:
                    break
        # Gamma(a) is Gamma(a + 1) times the a-th root of a uniform number, which may be too small for a float64.
        root = max(_log(self._uniform()) / a, _LEAST) if a < 1 else 0.0
        return _log(d) + log_v + root

    def _uniform(self) -> float:
        """An odd multiple of 2⁻⁵³ in (0, 1)."""
        return (int(self._words(1)[0]) >> 11 | 1) * 2.0**-53

    def dot(self, matrix: NDArray[np.float64], vector: NDArray[np.float64]) -> NDArray[np.float64]:
        # One after another from the first: a library of linear algebra adds in an order of its own.
        return np.asarray(np.add.accumulate(matrix * vector, axis=1)[:, -1])


def _log(x: float) -> float:
    return float(_DIGITS.ln(Decimal(x)))
