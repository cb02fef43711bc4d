"""The stream in numba: one core, the bits of ``reference``, at the speed of vector instructions.

The inner loops run over the 32 lanes of a tile so that LLVM turns them into vector code. There is no
fastmath: every float32 product and sum is rounded on its own, and LLVM may not contract them.
"""

# mypy: disable-error-code="no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from decomfl_lab.noise import spec
from decomfl_lab.noise.spec import TAGS, TILE, Distribution

__all__ = ["axpy", "directions", "gaussian_square_sums"]

_LANES = spec.LANES
_M0, _M1 = np.uint64(spec.PHILOX_M0), np.uint64(spec.PHILOX_M1)
_W0, _W1 = np.uint32(spec.PHILOX_W0), np.uint32(spec.PHILOX_W1)
_Q0, _Q1, _Q2, _Q3, _Q4, _Q5, _Q6 = (np.float32(c) for c in spec.LOG_Q)
_S0, _S1, _S2, _S3 = (np.float32(c) for c in spec.SIN_T)
_C0, _C1, _C2, _C3, _C4 = (np.float32(c) for c in spec.COS_T)
_LN4 = np.float32(spec.LOG_2_TWICE)
_HALF = np.int32(spec.SQRT_HALF_BITS)
_ONE = np.float32(1)
_T_UNIT = np.float32(2.0**-23)
_TAG_GAUSSIAN = np.uint32(TAGS[Distribution.GAUSSIAN])
_TAG_RADEMACHER = np.uint32(TAGS[Distribution.RADEMACHER])
_S32 = np.uint64(32)
_KINDS = {Distribution.GAUSSIAN: 0, Distribution.SPHERE: 1, Distribution.RADEMACHER: 2}


def _bitcast(target: Any) -> Any:
    @intrinsic
    def cast(typingctx: Any, value: Any) -> Any:  # noqa: ARG001
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            return builder.bitcast(args[0], context.get_value_type(target))

        return target(value), codegen

    return cast


_as_f32 = _bitcast(types.float32)
_as_i32 = _bitcast(types.int32)
_as_u32 = _bitcast(types.uint32)


@njit(cache=True, inline="always")
def _words(block: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    x0, x1, x2, x3 = np.uint32(block), np.uint32(block >> _S32), np.uint32(c2), np.uint32(c3)
    for _ in range(10):
        a = np.uint64(x0) * _M0
        b = np.uint64(x2) * _M1
        x0 = np.uint32(np.uint32(b >> _S32) ^ x1 ^ k0)
        x1 = np.uint32(b)
        x2 = np.uint32(np.uint32(a >> _S32) ^ x3 ^ k1)
        x3 = np.uint32(a)
        k0 = np.uint32(k0 + _W0)
        k1 = np.uint32(k1 + _W1)
    return x0, x1, x2, x3


@njit(cache=True, inline="always")
def _box_muller(w0: Any, w1: Any) -> Any:
    bits = _as_i32(np.float32(np.int32((w0 >> np.uint32(8)) | np.uint32(1))))
    e = np.int32((bits - _HALF) >> np.int32(23))
    x = _as_f32(np.int32(bits - np.int32(e << np.int32(23)))) - _ONE
    q = ((((((_Q0 * x) + _Q1) * x + _Q2) * x + _Q3) * x + _Q4) * x + _Q5) * x + _Q6
    radius = np.sqrt(np.float32(np.int32(24) - e) * _LN4 + x * q)
    t = np.float32(np.int32((_as_i32(w1) >> np.int32(8)) | np.int32(1))) * _T_UNIT
    t2 = t * t
    sine = t * (((_S0 * t2 + _S1) * t2 + _S2) * t2 + _S3)
    cosine = (((_C0 * t2 + _C1) * t2 + _C2) * t2 + _C3) * t2 + _C4
    cosine = _as_f32(np.uint32(_as_u32(cosine) ^ np.uint32(w1 << np.uint32(31))))
    return radius * cosine, radius * sine


@njit(cache=True, inline="always")
def _gaussian_tile(z: Any, tile: Any, p: Any, k0: Any, k1: Any) -> None:
    base = np.uint64(tile) * np.uint64(_LANES)
    for lane in range(_LANES):
        w0, w1, w2, w3 = _words(base + np.uint64(lane), p, _TAG_GAUSSIAN, k0, k1)
        z0, z1 = _box_muller(w0, w1)
        z2, z3 = _box_muller(w2, w3)
        z[lane] = z0
        z[32 + lane] = z1
        z[64 + lane] = z2
        z[96 + lane] = z3


@njit(cache=True, inline="always")
def _rademacher_words(bits: Any, tile: Any, group: Any, k0: Any, k1: Any) -> None:
    base = np.uint64(tile) * np.uint64(_LANES)
    for lane in range(_LANES):
        w0, w1, w2, w3 = _words(base + np.uint64(lane), group, _TAG_RADEMACHER, k0, k1)
        bits[lane] = w0
        bits[32 + lane] = w1
        bits[64 + lane] = w2
        bits[96 + lane] = w3


@njit(cache=True, inline="always")
def _add_tile(acc: Any, tile: Any, k0: Any, k1: Any, coefficients: Any, first_p: Any, kind: Any, scales: Any) -> None:
    """acc[j] += c_p z_p[128·tile + j] for j = 0..127 and all p in turn; loops of fixed length, for LLVM."""
    z = np.empty(TILE, dtype=np.float32)
    bits = np.empty(TILE, dtype=np.uint32)
    for i in range(coefficients.size):
        c = coefficients[i]
        p = first_p + i
        if kind == 2:
            if i == 0 or p & 31 == 0:
                _rademacher_words(bits, tile, p >> 5, k0, k1)
            shift = np.uint32(p & 31)
            for j in range(TILE):
                sign = np.uint32(np.uint32(bits[j] << shift) & np.uint32(0x80000000))
                acc[j] += c * _as_f32(np.uint32(sign | np.uint32(0x3F800000)))
        else:
            _gaussian_tile(z, tile, p, k0, k1)
            if kind == 1:
                scale = scales[i]
                for j in range(TILE):
                    z[j] = z[j] * scale
            for j in range(TILE):
                acc[j] += c * z[j]


@njit(cache=True, nogil=True)
def _axpy(y: Any, first: Any, k0: Any, k1: Any, coefficients: Any, first_p: Any, kind: Any, scales: Any) -> None:
    padded = np.zeros(TILE, dtype=y.dtype)
    tile = first // TILE
    done = 0
    while done < y.size:
        start = first + done - tile * TILE
        n = min(TILE - start, y.size - done)
        if n == TILE:
            _add_tile(y[done : done + TILE], tile, k0, k1, coefficients, first_p, kind, scales)
        else:
            padded[start : start + n] = y[done : done + n]
            _add_tile(padded, tile, k0, k1, coefficients, first_p, kind, scales)
            y[done : done + n] = padded[start : start + n]
        done += n
        tile += 1


@njit(cache=True, nogil=True)
def _directions(out: Any, first: Any, k0: Any, k1: Any, p: Any, kind: Any, scale: Any) -> None:
    one = np.ones(1, dtype=np.float32)
    scales = np.full(1, scale, dtype=np.float32)
    out[:] = np.float32(-0.0)  # -0 + z is z, to the bit
    _axpy(out, first, k0, k1, one, p, kind, scales)


@njit(cache=True, nogil=True)
def _square_sums(k0: Any, k1: Any, p: Any, d: Any) -> Any:
    z = np.empty(TILE, dtype=np.float32)
    squares = np.empty(TILE, dtype=np.float64)
    total = 0.0
    for tile in range((d + TILE - 1) // TILE):
        _gaussian_tile(z, tile, p, k0, k1)
        left = d - tile * TILE
        for j in range(TILE):
            value = np.float64(z[j])
            squares[j] = value * value if j < left else 0.0
        width = TILE // 2
        while width > 0:
            for j in range(width):
                squares[j] += squares[j + width]
            width //= 2
        total += squares[0]
    return total


def _key_words(key: int) -> tuple[np.uint32, np.uint32]:
    return np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)


def gaussian_square_sums(key: int, direction: int, d: int) -> float:
    """See ``reference.gaussian_square_sums``."""
    k0, k1 = _key_words(key)
    return float(_square_sums(k0, k1, np.int64(direction), np.int64(d)))


def directions(
    key: int, direction: int, first: int, count: int, distribution: Distribution, scale: float
) -> NDArray[np.float32]:
    """See ``reference.directions``."""
    out = np.empty(count, dtype=np.float32)
    k0, k1 = _key_words(key)
    _directions(out, np.int64(first), k0, k1, np.int64(direction), _KINDS[distribution], np.float32(scale))
    return out


def axpy(
    y: NDArray[np.float32] | NDArray[np.float64],
    first: int,
    key: int,
    coefficients: NDArray[np.float32],
    first_p: int,
    distribution: Distribution,
    scales: NDArray[np.float64],
) -> None:
    """See ``reference.axpy``."""
    k0, k1 = _key_words(key)
    # Coefficients in y's precision make the kernel's product the one of that precision.
    wide = coefficients.astype(y.dtype)
    _axpy(y, np.int64(first), k0, k1, wide, np.int64(first_p), _KINDS[distribution], scales.astype(np.float32))
