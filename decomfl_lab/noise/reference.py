"""The stream in numpy: slow, short and meant to be read. Every other backend must have these bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.noise import spec
from decomfl_lab.noise.spec import TAGS, TILE, Distribution

__all__ = ["axpy", "directions", "gaussian_square_sums", "philox4x32"]

F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]


def philox4x32(counter: U32, key: tuple[int, int]) -> U32:
    """Philox4x32-10 of counters (4, n) under ``key``; returns words (4, n).

    A round maps (c0, c1, c2, c3) to (hi(M1·c2) ^ c1 ^ k0, lo(M1·c2), hi(M0·c0) ^ c3 ^ k1, lo(M0·c0)); the
    key grows by the Weyl constants between rounds.

    Source: Salmon et al., SC 2011, §3.3.
    """
    c0, c1, c2, c3 = counter.astype(np.uint64)
    k0, k1 = key
    low = np.uint64(0xFFFFFFFF)
    for _ in range(spec.ROUNDS):
        a = np.uint64(spec.PHILOX_M0) * c0
        b = np.uint64(spec.PHILOX_M1) * c2
        c0, c1, c2, c3 = (
            (b >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            b & low,
            (a >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            a & low,
        )
        k0 = (k0 + spec.PHILOX_W0) & 0xFFFFFFFF
        k1 = (k1 + spec.PHILOX_W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def _tile_words(key: int, direction: int, tag: int, first_tile: int, tiles: int) -> U32:
    """The words of whole tiles, shape (tiles, 4, 32): [tile, word, lane] is element 128·tile + 32·word + lane."""
    block = np.arange(first_tile * spec.LANES, (first_tile + tiles) * spec.LANES, dtype=np.uint64)
    counter = np.empty((4, block.size), dtype=np.uint32)
    counter[0] = block & np.uint64(0xFFFFFFFF)
    counter[1] = block >> np.uint64(32)
    counter[2] = direction
    counter[3] = tag
    words = philox4x32(counter, (key & 0xFFFFFFFF, key >> 32))
    return words.reshape(spec.WORDS, tiles, spec.LANES).transpose(1, 0, 2)


def _horner(x: F32, coefficients: tuple[float, ...]) -> F32:
    """Horner's rule in float32, every product and sum rounded on its own."""
    value = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value = value * x + np.float32(c)
    return value


def box_muller(w0: U32, w1: U32) -> tuple[F32, F32]:
    """Two independent N(0, 1) from two 32-bit words, by integer and separately rounded float32 operations.

    ρ = √(−2 ln u) with u = ((w0 >> 8) | 1) / 2²⁴ split into exponent and mantissa; the angle is a quarter
    turn t·π/2 with t = ((w1 >> 8) | 1, as a signed number) / 2²³, and one more bit gives the cosine's sign.
    """
    uniform = ((w0 >> np.uint32(8)) | np.uint32(1)).astype(np.float32)  # below 2**24: exact
    bits = uniform.view(np.int32)
    exponent = (bits - np.int32(spec.SQRT_HALF_BITS)) >> np.int32(23)
    x = (bits - (exponent << np.int32(23))).view(np.float32) - np.float32(1)
    log_term = (np.int32(24) - exponent).astype(np.float32) * np.float32(spec.LOG_2_TWICE)
    radius = np.sqrt(log_term + x * _horner(x, spec.LOG_Q))

    signed = w1.view(np.int32) >> np.int32(8)
    t = (signed | np.int32(1)).astype(np.float32) * np.float32(2.0**-23)
    t2 = t * t
    sine = t * _horner(t2, spec.SIN_T)
    cosine = _horner(t2, spec.COS_T)
    cosine = (cosine.view(np.uint32) ^ (w1 << np.uint32(31))).view(np.float32)
    return radius * cosine, radius * sine


def _gaussian_tiles(key: int, direction: int, first_tile: int, tiles: int) -> F32:
    words = _tile_words(key, direction, TAGS[Distribution.GAUSSIAN], first_tile, tiles)
    z = np.empty(words.shape, dtype=np.float32)
    z[:, 0], z[:, 1] = box_muller(words[:, 0], words[:, 1])
    z[:, 2], z[:, 3] = box_muller(words[:, 2], words[:, 3])
    return z.reshape(tiles, TILE)


def _rademacher_tiles(key: int, direction: int, first_tile: int, tiles: int) -> F32:
    words = _tile_words(key, direction >> 5, TAGS[Distribution.RADEMACHER], first_tile, tiles)
    sign = (words << np.uint32(direction & 31)) & np.uint32(0x80000000)
    return (sign | np.uint32(0x3F800000)).view(np.float32).reshape(tiles, TILE)


def gaussian_square_sums(key: int, direction: int, d: int) -> float:
    """‖g‖² of the first d elements of a gaussian direction, in the order that the sphere's scale fixes.

    Squares of float32 are exact in float64. Inside a tile of 128 they are added by halves (0..63 + 64..127,
    and so on; missing elements of the last tile count as 0), tiles one after another from the first.
    """
    tiles = -(-d // TILE)
    z = _gaussian_tiles(key, direction, 0, tiles).astype(np.float64)
    z.reshape(-1)[d:] = 0.0
    squares = z * z
    width = TILE
    while width > 1:
        width //= 2
        squares = squares[:, :width] + squares[:, width:]
    return float(np.add.accumulate(squares[:, 0])[-1])


def directions(key: int, direction: int, first: int, count: int, distribution: Distribution, scale: float) -> F32:
    """Elements first..first+count-1 of direction p = ``direction``; ``scale`` is the sphere's (else unused)."""
    first_tile = first // TILE
    tiles = -(-(first + count) // TILE) - first_tile
    make = _rademacher_tiles if distribution is Distribution.RADEMACHER else _gaussian_tiles
    start = first - first_tile * TILE
    z = make(key, direction, first_tile, tiles).reshape(-1)[start : start + count]
    return z * np.float32(scale) if distribution is Distribution.SPHERE else z


def axpy(
    y: NDArray[np.float32] | NDArray[np.float64],
    first: int,
    key: int,
    coefficients: F32,
    first_p: int,
    distribution: Distribution,
    scales: NDArray[np.float64],
) -> None:
    """y_j ← fl(y_j + fl(c_p·z_p[first + j])) for p = first_p, first_p + 1, ..., rounded in y's precision."""
    for n, c in enumerate(coefficients):
        z = directions(key, first_p + n, first, y.size, distribution, scales[n])
        y += np.asarray(c, dtype=y.dtype) * z.astype(y.dtype)
