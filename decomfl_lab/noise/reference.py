"""The stream in numpy: slow, short and meant to be read. Every other backend must have these bits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.noise import spec
from decomfl_lab.noise.program import DISTRIBUTIONS, FORMATS, Code, Format, Op
from decomfl_lab.noise.spec import TAGS, TILE, Distribution

F32 = NDArray[np.float32]
Floats = NDArray[np.float32] | NDArray[np.float64]
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


def tile_words(key: int, direction: int, tag: int, tiles: Sequence[int] | NDArray[np.int64]) -> U32:
    """The words of whole tiles, shape (tiles, 4, 32): [tile, word, lane] is element 128·tile + 32·word + lane."""
    lanes = np.arange(spec.LANES, dtype=np.uint64)
    block = np.add.outer(np.asarray(tiles, dtype=np.uint64) * np.uint64(spec.LANES), lanes).reshape(-1)
    counter = np.empty((4, block.size), dtype=np.uint32)
    counter[0] = block & np.uint64(0xFFFFFFFF)
    counter[1] = block >> np.uint64(32)
    counter[2] = direction
    counter[3] = tag
    words = philox4x32(counter, (key & 0xFFFFFFFF, key >> 32))
    return words.reshape(spec.WORDS, len(tiles), spec.LANES).transpose(1, 0, 2)


def _horner(x: F32, coefficients: tuple[float, ...]) -> F32:
    """A polynomial, highest power first, by Horner's rule in float32, every product and sum rounded on its own."""
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


def gaussian_tiles(
    key: int, direction: int, tiles: Sequence[int] | NDArray[np.int64], tag: int = TAGS[Distribution.GAUSSIAN]
) -> F32:
    """Whole tiles of standard normal numbers, shape (tiles, 128)."""
    words = tile_words(key, direction, tag, tiles)
    z = np.empty(words.shape, dtype=np.float32)
    z[:, 0], z[:, 1] = box_muller(words[:, 0], words[:, 1])
    z[:, 2], z[:, 3] = box_muller(words[:, 2], words[:, 3])
    return z.reshape(len(tiles), TILE)


def _rademacher_tiles(key: int, direction: int, tiles: Sequence[int]) -> F32:
    """Whole tiles of ±1, (tiles, 128): direction p is bit 31 − p mod 32 of the words of p // 32."""
    words = tile_words(key, direction >> 5, TAGS[Distribution.RADEMACHER], tiles)
    sign = (words << np.uint32(direction & 31)) & np.uint32(0x80000000)
    return (sign | np.uint32(0x3F800000)).view(np.float32).reshape(len(tiles), TILE)


def tile_square_sums(key: int, direction: int, first_tile: int, tiles: int, d: int) -> NDArray[np.float64]:
    """Σ g_j² of each of ``tiles`` tiles of a gaussian direction in R^d, float64, in the specified order.

    Squares of float32 are exact in float64. Inside a tile of 128 they are added by halves (0..63 + 64..127,
    and so on; missing elements of the last tile count as 0). The whole norm adds the tiles one after another.
    """
    z = gaussian_tiles(key, direction, range(first_tile, first_tile + tiles)).astype(np.float64)
    z.reshape(-1)[max(d - first_tile * TILE, 0) :] = 0.0
    squares = z * z
    width = TILE
    while width > 1:
        width //= 2
        squares = squares[:, :width] + squares[:, width:]
    return squares[:, 0]


def directions(key: int, direction: int, first: int, count: int, distribution: Distribution, scale: float) -> F32:
    """Elements first..first+count-1 of direction p = ``direction``; ``scale`` is the sphere's (else unused)."""
    first_tile = first // TILE
    tiles = -(-(first + count) // TILE) - first_tile
    make = _rademacher_tiles if distribution is Distribution.RADEMACHER else gaussian_tiles
    start = first - first_tile * TILE
    z = make(key, direction, range(first_tile, first_tile + tiles)).reshape(-1)[start : start + count]
    return z * np.float32(scale) if distribution is Distribution.SPHERE else z


def project(
    vectors: Floats,
    first: int,
    keys: NDArray[np.uint64],
    directions_: NDArray[np.int64],
    distribution: Distribution,
    scales: F32,
) -> NDArray[np.float64]:
    """⟨v_i, z_p⟩ over elements first.. of R^d, float64 (m, P), in the specified order.

    Products of float32 are exact in float64. Inside a tile of 128 they are added by halves, as in
    ``tile_square_sums``, and tiles one after another from the first.

    Args:
        vectors: v (m, n), float32 or float64.
        first: Position of v's element 0; a multiple of 128.
        keys: Seed of each direction, (P,).
        directions_: Number p of each direction under its seed, (P,).
        distribution: Distribution of z.
        scales: The sphere's factor of each direction, (P,).
    """
    m, n = vectors.shape
    tiles = -(-n // TILE)
    sums = np.zeros((m, keys.size))
    with np.errstate(all="ignore"):
        for p in range(keys.size):
            z = directions(int(keys[p]), int(directions_[p]), first, tiles * TILE, distribution, float(scales[p]))
            wide = np.zeros((m, tiles * TILE))
            wide[:, :n] = vectors
            terms = (z.astype(np.float64) * wide).reshape(m, tiles, TILE)
            while terms.shape[2] > 1:
                half = terms.shape[2] // 2
                terms = terms[:, :, :half] + terms[:, :, half:]
            sums[:, p] = np.add.accumulate(terms[:, :, 0], axis=1)[:, -1]
    return sums


def rounding_words(key: int, place: int, first: int, count: int) -> U32:
    """The words (count,) that round elements first.. of vector number ``place`` of the step with seed ``key``."""
    first_tile = first // TILE
    tiles = -(-(first + count) // TILE) - first_tile
    words = tile_words(key, place, spec.TAG_ROUNDING, range(first_tile, first_tile + tiles)).reshape(-1)
    return words[first - first_tile * TILE :][:count]


def narrow(r: F32, kind: Format, words: U32 | None = None) -> F32:
    """R rounded to a 16-bit format: to nearest, ties to even, or with ``words`` to a neighbour at random.

    A float32 lies between two neighbours of the format; what it has in excess of the lower one, as a share of
    their distance cut to n bits, is the chance of the upper one: n bits of noise are added below the format's
    last bit and the rest is cut. n = 16 for bfloat16, 13 for float16, the top bits of the word. Signs are kept,
    what exceeds the largest number becomes ∞, NaN becomes the one NaN 7fc00000.
    """
    bits = r.view(np.uint32)
    dropped = np.uint32(16 if kind is Format.BFLOAT16 else 13)
    noise = None if words is None else words >> (np.uint32(32) - dropped)
    tie = ((bits >> dropped) & np.uint32(1)) + np.uint32((1 << int(dropped) - 1) - 1)
    y = (((bits + (tie if noise is None else noise)) >> dropped) << dropped).view(np.float32)
    if kind is Format.FLOAT16:
        y = np.where(np.abs(y) > np.float32(65504.0), np.copysign(np.float32(np.inf), r), y)
        # Below the smallest normal number, 2^-14, neighbours are 2^-24 apart.
        small = np.abs(r) < np.float32(2.0**-14)
        size = np.where(small, np.abs(r), np.float32(0))
        if noise is None:
            steps = (size + np.float32(0.5)) - np.float32(0.5)  # the float32 in [1/2, 1) are 2^-24 apart too
        else:
            units = (size * np.float32(2.0**37)).astype(np.uint32)
            steps = ((units + noise) >> dropped).astype(np.float32) * np.float32(2.0**-24)
        y = np.where(small, np.copysign(steps, r), y)
    y = np.where(np.isinf(r), r, y)
    return np.where(np.isnan(r), np.uint32(0x7FC00000).view(np.float32), y)


def run(code: Code, memory: Sequence[Floats], first: int, scales: NDArray[np.float32], *, store: bool = True) -> int:
    """Run a program on elements first.. of the model, in place; returns how many LIMITs were broken.

    Args:
        code: The program.
        memory: One vector a named register, all of one size and dtype, in the program's order.
        first: Position of their element 0 in the model.
        scales: The sphere's factor √d/‖g‖ of each coefficient (1 for other distributions), (q,).
        store: False only tries the program: memory stays as it is.
    """
    registers = [vector if store else vector.copy() for vector in memory]
    registers.append(np.zeros_like(registers[0]))
    number: Any = registers[0].dtype.type
    size = registers[0].size
    magic = 1.5 * 2.0 ** np.finfo(number).nmant
    broken = 0
    with np.errstate(all="ignore"):  # divergence shows in the scalars, which are checked
        for row, key, value in zip(code.table, code.keys, code.values, strict=True):
            op, to, of, start, begin, end, kind = (int(entry) for entry in row)
            r: Any
            r, s, a = registers[to], registers[of], number(value)
            match op:
                case Op.NOISE:
                    for n in range(begin, end):
                        p, distribution = start + n - begin, DISTRIBUTIONS[kind]
                        z = directions(int(key), p, first, size, distribution, float(scales[n]))
                        r += number(code.coefficients[n]) * z.astype(number)
                case Op.FILL:
                    r[:] = a
                case Op.COPY:
                    r[:] = s
                case Op.SCALE:
                    r *= a
                case Op.ADD:
                    r += a * s
                case Op.OFFSET:
                    r += a
                case Op.MULTIPLY:
                    r *= s
                case Op.DIVIDE_INTO:
                    r[:] = s / r
                case Op.SQUARE_ROOT:
                    r[:] = np.sqrt(r)
                case Op.MAXIMUM:
                    r[:] = np.where(r > s, r, s)
                case Op.SIGN:
                    r[:] = np.where(r > 0, number(1), np.where(r < 0, number(-1), r - r))
                case Op.SNAP:
                    r[:] = (r + number(magic) * a) - number(magic) * a
                case Op.LIMIT:
                    broken += int(np.count_nonzero(~(np.abs(r) <= a)))
                case Op.NARROW:
                    r[:] = narrow(r, FORMATS[kind])
                case Op.NARROW_RANDOMLY:
                    r[:] = narrow(r, FORMATS[kind], rounding_words(int(key), start, first, size))
                case _:
                    raise AssertionError(op)
    return broken
