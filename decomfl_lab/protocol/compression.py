"""What a dense update can be shrunk to before it is sent: 8-bit quantisation and the k largest elements."""

import math

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import DivergedError, require
from decomfl_lab.protocol.messages import Quantized, Sparse

MAGNITUDE, VALUE = "magnitude", "value"

Floats = NDArray[np.float32] | NDArray[np.float64]


def _check(v: Floats) -> None:
    require(v.ndim == 1 and v.size > 0, "vector", "be non-empty and flat", v.shape)
    if not np.isfinite(v).all():
        raise DivergedError("vector")


def quantize(r: int, v: Floats, bits: int, seed: tuple[int, ...]) -> Quantized:
    """Round v/max|v|·L to integers at random, so that E[dense()] = v.

        |dense()_j − v_j| ≤ max|v| / L,    L = 2^(bits−1) − 1     (and one rounding to float32)

    Args:
        r: The round.
        v: Vector (d,).
        bits: 2 to 8.
        seed: Entropy and path of the random bits: every message has its own.

    Raises:
        InputError: If v is not finite.

    Source: Haddadpour et al., "Federated learning with compression" (FedCOM), AISTATS 2021: any unbiased
    quantiser; this is the uniform one.
    """
    _check(v)
    largest = 2 ** (bits - 1) - 1
    scale = float(np.float32(np.abs(v).max()))
    if scale == 0:
        return Quantized(r, bits, 0.0, np.zeros(v.size, dtype=np.int8))
    exact = v.astype(np.float64) * (largest / scale)
    uniform = np.random.default_rng(np.random.SeedSequence(seed[0], spawn_key=seed[1:])).random(v.size)
    # float32 rounding of the scale may leave |exact| a little above L.
    levels = np.clip(np.floor(exact + uniform), -largest, largest).astype(np.int8)
    return Quantized(r, bits, scale, levels)


def top_k(r: int, v: Floats, fraction: float, by: str = MAGNITUDE) -> Sparse:
    """The k = ⌈fraction·d⌉ elements of largest |v_j| of round r's update; of equal ones those with the smallest j.

    No other k-sparse vector is nearer to v in the Euclidean norm. By value it is those of largest v_j, which loses
    what falls most: no sensible compression, but what ``torch.topk`` gives who forgets the absolute value.

    Raises:
        InputError: If v is not finite.
    """
    _check(v)
    k = math.ceil(fraction * v.size)
    size = np.abs(v) if by == MAGNITUDE else v
    least = np.partition(size, v.size - k)[v.size - k]
    kept = size > least
    kept[np.flatnonzero(size == least)[: k - np.count_nonzero(kept)]] = True
    indices = np.flatnonzero(kept)
    return Sparse(r, v.size, indices, v[indices].astype(np.float32))
