"""What a dense update can be shrunk to before it is sent: 8-bit quantisation and the k largest elements."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import DivergedError, require, require_choice, require_int

MAGNITUDE, VALUE = "magnitude", "value"

Floats = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class QuantizedVector:
    """v_j ≈ scale · levels_j / L with L = 2^(bits−1) − 1."""

    bits: int  # 2 to 8
    scale: float  # max |v_j|, float32
    levels: NDArray[np.int8]  # int8 (d,), in −L..L

    @property
    def size(self) -> int:
        """The dimension d."""
        return self.levels.size

    def dense(self) -> NDArray[np.float32]:
        """The vector, float32 (d,)."""
        largest = 2 ** (self.bits - 1) - 1
        v: NDArray[np.float32] = (self.levels.astype(np.float64) * (self.scale / largest)).astype(np.float32)
        return v


def _check(v: Floats) -> None:
    require(v.ndim == 1 and v.size > 0, "vector", "be non-empty and flat", v.shape)
    if not np.isfinite(v).all():
        raise DivergedError("vector")


def quantize(v: Floats, bits: int, seed: tuple[int, ...]) -> QuantizedVector:
    """Round v/max|v|·L to integers at random, so that E[dense()] = v.

        |dense()_j − v_j| ≤ max|v| / L,    L = 2^(bits−1) − 1     (and one rounding to float32)

    Args:
        v: Vector (d,).
        bits: 2 to 8.
        seed: Entropy and path of the random bits: every message has its own.

    Raises:
        InputError: If v is not finite or ``bits`` is out of range.

    Source: Haddadpour et al., "Federated learning with compression" (FedCOM), AISTATS 2021: any unbiased
    quantiser; this is the uniform one.
    """
    _check(v)
    require_int("bits", bits, 2, 8)
    largest = 2 ** (bits - 1) - 1
    scale = float(np.float32(np.abs(v).max()))
    if scale == 0:
        return QuantizedVector(bits, 0.0, np.zeros(v.size, dtype=np.int8))
    exact = v.astype(np.float64) * (largest / scale)
    uniform = np.random.default_rng(np.random.SeedSequence(seed[0], spawn_key=seed[1:])).random(v.size)
    # float32 rounding of the scale may leave |exact| a little above L.
    levels = np.clip(np.floor(exact + uniform), -largest, largest).astype(np.int8)
    return QuantizedVector(bits, scale, levels)


@dataclass(frozen=True, eq=False)
class SparseVector:
    """A vector of R^d with few elements that are not 0."""

    d: int  # dimension
    indices: NDArray[np.int64]  # rising positions, int64 (k,)
    values: NDArray[np.float32]  # float32 (k,)

    def __post_init__(self) -> None:
        require(self.indices.shape == self.values.shape, "indices and values", "be equally many", self.indices.shape)
        rising = bool((np.diff(self.indices) > 0).all()) if self.indices.size > 1 else True
        inside = not self.indices.size or (self.indices[0] >= 0 and self.indices[-1] < self.d)
        require(rising and bool(inside), "indices", f"rise within 0..{self.d - 1}", self.indices[:5].tolist())

    @property
    def size(self) -> int:
        """The dimension d."""
        return self.d

    def dense(self) -> NDArray[np.float32]:
        """The vector, float32 (d,)."""
        out = np.zeros(self.d, dtype=np.float32)
        out[self.indices] = self.values
        return out


def top_k(v: Floats, fraction: float, by: str = MAGNITUDE) -> SparseVector:
    """The k = ⌈fraction·d⌉ elements of largest |v_j|; of equal ones those with the smallest j.

    No other k-sparse vector is nearer to v in the Euclidean norm. By value it is those of largest v_j, which loses
    what falls most: no sensible compression, but what ``torch.topk`` gives who forgets the absolute value.

    Raises:
        InputError: If v is not finite, ``fraction`` is not in (0, 1], or ``by`` is neither magnitude nor value.
    """
    _check(v)
    require_choice("top-k by", by, (MAGNITUDE, VALUE))
    require(0 < fraction <= 1, "top-k fraction", "be in (0, 1]", fraction)
    k = math.ceil(fraction * v.size)
    size = np.abs(v) if by == MAGNITUDE else v
    least = np.partition(size, v.size - k)[v.size - k]
    kept = size > least
    kept[np.flatnonzero(size == least)[: k - np.count_nonzero(kept)]] = True
    indices = np.flatnonzero(kept)
    return SparseVector(v.size, indices, v[indices].astype(np.float32))
