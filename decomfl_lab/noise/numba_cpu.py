"""The stream in numba: the bits of ``reference`` at the speed of vector instructions, one core a call.

The arithmetic of a tile is written in explicit vectors (``lanes``): a Philox pass that leaves 128 words in the
first-level cache, then a Box-Muller pass that adds 128 products. Splitting them beats one long pass, since the
processor looks only some hundred instructions ahead and each pass has twice the independent work in sight.
"""

# Kernels are numba's and LLVM's language in Python's syntax: their arguments have types that no type checker knows.
# mypy: disable-error-code="no-untyped-call,misc,untyped-decorator,no-untyped-def"
from collections.abc import Callable, Sequence
from functools import partial
from inspect import Signature, signature
from typing import Any

import numba
import numba.extending
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from decomfl_lab.noise import spec
from decomfl_lab.noise.kernel_cache import njit
from decomfl_lab.noise.lanes import F32, F64, I32, I64, Lanes, align_spills
from decomfl_lab.noise.program import DISTRIBUTIONS, FORMATS, Code, Format, Op, directions_by
from decomfl_lab.noise.spec import TAGS, TILE, Distribution

Floats = NDArray[np.float32] | NDArray[np.float64]

# Decorators without types of their own. Kernels count no references (_nrt): they make no arrays, and an atomic
# increment for every argument of every call would cost as much as the call.
intrinsic: Any = numba.extending.intrinsic

_LOW = 0xFFFFFFFF
_WIDTH = spec.LANES
_RADEMACHER_AT_ONCE = 8
_BYTES = {F32: 4, F64: 8}

_TAG_GAUSSIAN = np.uint64(TAGS[Distribution.GAUSSIAN])
_TAG_RADEMACHER = np.uint64(TAGS[Distribution.RADEMACHER])
_TAG_ROUNDING = np.uint64(spec.TAG_ROUNDING)
_GAUSSIAN, _SPHERE, _RADEMACHER = (DISTRIBUTIONS.index(d) for d in Distribution)
_FLOAT16 = FORMATS.index(Format.FLOAT16)


# Lane arithmetic: what the specification says, 32 lanes at a time ------------------------------------------


def philox(x: Sequence[Lanes], k0: Lanes, k1: Lanes) -> Sequence[Lanes]:
    """Ten rounds on 64-bit lanes whose low halves are the words; high halves are left dirty until used."""
    x0, x1, x2, x3 = x
    for _ in range(spec.ROUNDS):
        a = (x0 & _LOW) * spec.PHILOX_M0  # LLVM sees that one instruction multiplies the low halves
        b = (x2 & _LOW) * spec.PHILOX_M1
        x0, x1, x2, x3 = (b >> 32) ^ (x1 ^ k0), b, (a >> 32) ^ (x3 ^ k1), a
        k0, k1 = (k0 + spec.PHILOX_W0) & _LOW, (k1 + spec.PHILOX_W1) & _LOW
    return x0, x1, x2, x3


def _horner(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    value = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        value = value * x + c
    return value


def box_muller(w0: Lanes, w1: Lanes) -> tuple[Lanes, Lanes]:
    """Two normals of two words; see ``reference.box_muller``."""
    # 2²⁴ u = m 2ᵉ with m in [√½, √2), by the bits of the float. Then −2 ln u = (24 − e) 2 ln 2 − 2 ln(1 + x).
    bits = ((w0 >> 8) | 1).to_float().as_int()
    exponent = (bits - spec.SQRT_HALF_BITS).shift_signed(23)
    x = (bits - (exponent << 23)).as_float() - 1.0
    log_term = (exponent * -1 + 24).to_float() * spec.LOG_2_TWICE
    radius = (log_term + x * _horner(x, spec.LOG_Q)).square_root()
    # The angle t π/2 is within a quarter turn of 0, either way. The cosine gets its sign from the lowest bit of w1.
    t = (w1.shift_signed(8) | 1).to_float() * 2.0**-23
    t2 = t * t
    sine = t * _horner(t2, spec.SIN_T)
    cosine = (_horner(t2, spec.COS_T).as_int() ^ (w1 << 31)).as_float()
    return radius * cosine, radius * sine


# The same as numba intrinsics on the rows of small arrays --------------------------------------------------


def on_rows(write: Callable[..., None]) -> Any:
    """The numba intrinsic that ``write(builder, *arguments)`` writes: arrays come as pointers, numbers as values.

    Its arguments are those of ``write`` without a default.
    """

    def typing(typingctx, *kinds):  # noqa: ARG001
        def codegen(context, builder, signature, values):
            align_spills(builder.function)
            arguments = [
                context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
                for kind, value in zip(signature.args, values, strict=True)
            ]
            write(builder, *arguments)
            return context.get_dummy_value()

        return types.void(*kinds), codegen

    parameters = [argument for argument in signature(write).parameters.values() if argument.default is argument.empty]
    typing.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # numba counts arguments by it
    return intrinsic(typing)


@on_rows
def _words(builder, words, block, c2, tag, k0, k1):
    """words[j] ← word of element j of the tile whose first block is ``block``."""
    lanes = Lanes.counting(builder, I64, _WIDTH)
    blocks = lanes + block
    counter = (blocks, blocks >> 32, lanes.spread(c2), lanes.spread(tag))
    for n, word in enumerate(philox(counter, lanes.spread(k0), lanes.spread(k1))):
        word.low_word().store(words, _WIDTH * n)


def _write_add_gaussian(builder, rows, place, words, c, scale=None):
    """rows[place + j] += c z_j, or c (scale z_j)."""
    wide = c.type == F64
    # Words 0 and 1 of a block make elements of the first half of a tile, words 2 and 3 of the second: 32 lanes each.
    total = builder.gep(rows, [place])
    for half in (0, TILE // 2):
        pair = [Lanes.load(builder, words, I32, half + n, _WIDTH) for n in (0, _WIDTH)]
        for n, z in zip((half, half + _WIDTH), box_muller(pair[0], pair[1]), strict=True):
            z = z if scale is None else z * scale
            old = Lanes.load(builder, total, c.type, n, _WIDTH)
            (old + (z.widen() if wide else z) * c).store(total, n)


def _write_add_signs(builder, rows, place, words, c, c_at, shift, count):
    """Add ±c[c_at + i] for i < count to the row; the sign is the bit of the words that shift + i moves to the top."""
    element = rows.type.pointee
    total = builder.gep(rows, [place])
    # Coefficients are loaded once for the tile, and a row is read and written once for all ``count`` directions.
    pointers = [builder.gep(c, [builder.add(c_at, ir.Constant(I64, i))]) for i in range(count)]
    coefficients = [builder.load(pointer, align=4) for pointer in pointers]
    for n in range(0, TILE, _WIDTH):
        bits = Lanes.load(builder, words, I32, n, _WIDTH)
        value = Lanes.load(builder, total, element, n, _WIDTH)
        for i, coefficient in enumerate(coefficients):
            # Direction p is bit 31 − p of a word (p below 32): shifted to the top it is the sign.
            above = bits << builder.add(shift, ir.Constant(I32, i))
            term = above.where_negative(builder.fneg(coefficient), coefficient)
            value = value + (term.widen() if element == F64 else term)
        value.store(total, n)


@on_rows
def _square_sum(builder, sums, place, words):
    """sums[place] ← Σ z_j² of a whole tile, by halves."""
    squares = []
    for half in (0, TILE // 2):
        pair = [Lanes.load(builder, words, I32, half + n, _WIDTH) for n in (0, _WIDTH)]
        squares += [z.widen() * z.widen() for z in box_muller(pair[0], pair[1])]
    _by_halves(squares).store(builder.gep(sums, [place]), 0)


def _by_halves(terms: Sequence[Lanes]) -> Lanes:
    """The sum of 128 terms, halves added to halves, as one lane."""
    total = (terms[0] + terms[2]) + (terms[1] + terms[3])
    while total.count > 1:
        low, high = total.halves()
        total = low + high
    return total


@on_rows
def _add_dot(builder, sums, place, z, rows, row):
    """sums[place] += Σ_j z[j] · rows[row + j] over a tile, by halves."""
    right, to = builder.gep(rows, [row]), builder.gep(sums, [place])
    groups = range(0, TILE, _WIDTH)
    total = _by_halves(
        [Lanes.load(builder, z, F64, n, _WIDTH) * Lanes.load(builder, right, F64, n, _WIDTH) for n in groups]
    )
    (Lanes.load(builder, to, F64, 0, 1) + total).store(to, 0)


@on_rows
def _add_sphere(builder, rows, place, words, c, scale):
    """rows[place + j] += c (scale z_j)."""
    _write_add_gaussian(builder, rows, place, words, c, scale)


_add_gaussian = on_rows(_write_add_gaussian)
_add_sign, _add_signs = (on_rows(partial(_write_add_signs, count=n)) for n in (1, _RADEMACHER_AT_ONCE))


def _elementwise(formula: Callable[[Lanes, Lanes, Any], Lanes]) -> Any:
    """An intrinsic (rows, r, s, a): rows[r + j] ← formula(rows[r + j], rows[s + j], a) for the 128 j of a tile."""

    def write(builder, rows, r, s, a):
        to, of = builder.gep(rows, [r]), builder.gep(rows, [s])
        for n in range(0, TILE, _WIDTH):
            old, other = (Lanes.load(builder, row, a.type, n, _WIDTH) for row in (to, of))
            formula(old, other, a).store(to, n)

    return on_rows(write)


_fill = _elementwise(lambda r, s, a: r.spread(a))  # noqa: ARG005
_copy = _elementwise(lambda r, s, a: s)  # noqa: ARG005
_scale = _elementwise(lambda r, s, a: r * a)  # noqa: ARG005
_add = _elementwise(lambda r, s, a: r + s * a)
_offset = _elementwise(lambda r, s, a: r + a)  # noqa: ARG005
_multiply = _elementwise(lambda r, s, a: r * s)  # noqa: ARG005
_divide_into = _elementwise(lambda r, s, a: s / r)  # noqa: ARG005
_square_root = _elementwise(lambda r, s, a: r.square_root())  # noqa: ARG005
_maximum = _elementwise(lambda r, s, a: r.above(s, r, s))  # noqa: ARG005
_sign = _elementwise(lambda r, s, a: r.above(0.0, 1.0, (r * -1.0).above(0.0, -1.0, r - r)))  # noqa: ARG005
_shift_and_back = _elementwise(lambda r, s, a: (r + a) - a)  # noqa: ARG005


def _transfer(builder, rows, place, address, first, count, read):
    """Rows[place : place + count] from or to memory[first : first + count], of rows' type, at ``address``."""
    row = builder.gep(rows, [place])
    memory = builder.gep(builder.inttoptr(address, row.type), [first])
    target, source = (row, memory) if read else (memory, row)
    cgutils.raw_memcpy(builder, target, source, count, _BYTES[row.type.pointee])


_read_memory, _write_memory = (on_rows(partial(_transfer, read=read)) for read in (True, False))


@intrinsic
def _as_u32(typingctx, value):  # noqa: ARG001
    return types.uint32(types.float32), lambda _c, builder, _s, args: builder.bitcast(args[0], I32)


@intrinsic
def _as_f32(typingctx, value):  # noqa: ARG001
    return types.float32(types.uint32), lambda _c, builder, _s, args: builder.bitcast(args[0], F32)


# Tiles -----------------------------------------------------------------------------------------------------


@njit(cache=True, _nrt=False)
def _tile_words(words, tile, c2, tag, key):
    """See ``reference.tile_words``; ``words`` is uint32 (128,), c2 word 2 of the counter."""
    block, low = np.uint64(tile) * np.uint64(_WIDTH), key & np.uint64(_LOW)
    _words(words, block, np.uint64(c2), tag, low, key >> np.uint64(32))


@njit(cache=True, _nrt=False)
def _add_directions(rows, place, words, tile, key, first, begin, end, kind, c, wide, scales):
    """The 128 rows[place + j] += Σ c_p z_p of one tile, in turn.

    c and ``scales`` are float32 (q,), of all directions of the program; here are begin..end-1, whose p count from
    ``first``. ``wide`` is c in the rows' precision, ``kind`` a place in ``DISTRIBUTIONS``.
    """
    if kind == _RADEMACHER:
        n = begin
        while n < end:
            p = first + n - begin
            # 32 directions share the words of a tile: the words change where p passes a multiple of 32.
            if n == begin or p & 31 == 0:
                _tile_words(words, tile, p >> 5, _TAG_RADEMACHER, key)
            # Eight at a time where eight are left of both the words and the directions.
            if p & 31 <= 32 - _RADEMACHER_AT_ONCE and n + _RADEMACHER_AT_ONCE <= end:
                _add_signs(rows, place, words, c, n, np.uint32(p & 31))
                n += _RADEMACHER_AT_ONCE
            else:
                _add_sign(rows, place, words, c, n, np.uint32(p & 31))
                n += 1
    elif kind == _SPHERE:
        for n in range(begin, end):
            _tile_words(words, tile, first + n - begin, _TAG_GAUSSIAN, key)
            _add_sphere(rows, place, words, wide[n], scales[n])
    else:
        for n in range(begin, end):
            _tile_words(words, tile, first + n - begin, _TAG_GAUSSIAN, key)
            _add_gaussian(rows, place, words, wide[n])


@njit(cache=True, _nrt=False)
def _narrow(rows, r, kind, words, randomly):
    """See ``reference.narrow``: the 128 rows[r + j], float32; ``kind`` is a place in ``FORMATS``."""
    dropped = np.uint32(13) if kind == _FLOAT16 else np.uint32(16)
    half = np.uint32((np.uint32(1) << (dropped - np.uint32(1))) - np.uint32(1))
    for j in range(TILE):
        x = np.float32(rows[r + j])
        bits = _as_u32(x)
        # To nearest is noise of just under half a unit, and 1 more where the last bit kept is set: ties go to even.
        if randomly:
            noise = np.uint32(words[j] >> (np.uint32(32) - dropped))
        else:
            noise = np.uint32(((bits >> dropped) & np.uint32(1)) + half)
        y = _as_f32(np.uint32(((bits + noise) >> dropped) << dropped))
        if kind == _FLOAT16:
            if abs(y) > np.float32(65504.0):
                y = np.copysign(np.float32(np.inf), x)
            # Below 2⁻¹⁴ float16 is a grid of 2⁻²⁴. Adding ½ rounds to it, as float32 in [½, 1) have that grid.
            size = abs(x)
            if size < np.float32(2.0**-14):
                if randomly:
                    units = np.uint32(np.int32(size * np.float32(2.0**37)))
                    steps = np.float32(np.int32((units + noise) >> dropped)) * np.float32(2.0**-24)
                else:
                    steps = np.float32((size + np.float32(0.5)) - np.float32(0.5))
                y = np.copysign(steps, x)
        if np.isinf(x):
            y = x
        if np.isnan(x):
            y = _as_f32(np.uint32(0x7FC00000))
        rows[r + j] = y


@njit(cache=True, nogil=True, _nrt=False)
def _run(rows, words, memory, size, first, table, keys, values, c, wide, scales, magic, store):
    """``reference.run``, tile by tile: ``memory`` are the addresses of vectors of ``size`` elements.

    ``rows`` are the registers, 128 elements for each of them and the scratch, zeros of their type;
    ``words`` is room for 128 words; ``first`` is the place of element 0 of the vectors.
    """
    broken = 0
    tile = first // TILE
    done = 0
    while done < size:
        start = first + done - tile * TILE
        n = min(TILE - start, size - done)
        # All registers of a tile are read, the whole program runs on them, and they are written: memory is passed once.
        for i in range(memory.size):
            _read_memory(rows, TILE * i + start, memory[i], done, n)
        for i in range(table.shape[0]):
            op = table[i, 0]
            r = TILE * table[i, 1]
            s = TILE * table[i, 2]
            a = values[i]
            if op == Op.NOISE:
                p, low, high, kind = table[i, 3], table[i, 4], table[i, 5], table[i, 6]
                _add_directions(rows, r, words, tile, keys[i], p, low, high, kind, c, wide, scales)
            elif op == Op.ADD:
                _add(rows, r, s, a)
            elif op == Op.SCALE:
                _scale(rows, r, s, a)
            elif op == Op.FILL:
                _fill(rows, r, s, a)
            elif op == Op.COPY:
                _copy(rows, r, s, a)
            elif op == Op.OFFSET:
                _offset(rows, r, s, a)
            elif op == Op.MULTIPLY:
                _multiply(rows, r, s, a)
            elif op == Op.DIVIDE_INTO:
                _divide_into(rows, r, s, a)
            elif op == Op.SQUARE_ROOT:
                _square_root(rows, r, s, a)
            elif op == Op.MAXIMUM:
                _maximum(rows, r, s, a)
            elif op == Op.SIGN:
                _sign(rows, r, s, a)
            elif op == Op.SNAP:
                _shift_and_back(rows, r, s, magic * a)
            elif op == Op.LIMIT:
                for j in range(start, start + n):
                    if not abs(rows[r + j]) <= a:
                        broken += 1
            else:
                randomly = op == Op.NARROW_RANDOMLY
                if randomly:
                    _tile_words(words, tile, table[i, 3], _TAG_ROUNDING, keys[i])
                _narrow(rows, r, table[i, 6], words, randomly)
        if store:
            for i in range(memory.size):
                _write_memory(rows, TILE * i + start, memory[i], done, n)
        done += n
        tile += 1
    return broken


@njit(cache=True, nogil=True, _nrt=False)
def _square_sums(sums, words, z, squares, key, p, first_tile, d):
    """See ``tile_square_sums``; words, z and squares are scratch for a tile."""
    for n in range(sums.size):
        tile = first_tile + n
        _tile_words(words, tile, p, _TAG_GAUSSIAN, key)
        if (tile + 1) * TILE <= d:
            _square_sum(sums, n, words)
            continue
        # A tile that reaches beyond d is squared number by number, with zeros beyond, and added by the same halves.
        for j in range(TILE):
            z[j] = np.float32(-0.0)  # -0 + z is z, to the bit
        _add_gaussian(z, 0, words, np.float32(1))
        left = d - tile * TILE
        for j in range(TILE):
            value = np.float64(z[j])
            squares[j] = value * value if j < left else 0.0
        width = TILE // 2
        while width > 0:
            for j in range(width):
                squares[j] += squares[j + width]
            width //= 2
        sums[n] = squares[0]


def tile_square_sums(key: int, direction: int, first_tile: int, tiles: int, d: int) -> NDArray[np.float64]:
    """See ``reference.tile_square_sums``."""
    sums = np.empty(tiles, dtype=np.float64)
    workspace = (_aligned(TILE, kind) for kind in (np.uint32, np.float32, np.float64))
    _square_sums(sums, *workspace, np.uint64(key), np.int64(direction), np.int64(first_tile), np.int64(d))
    return sums


@njit(cache=True, nogil=True, _nrt=False)
def _project(sums, vectors, first, keys, directions, kind, scales, one, words, z, rows):
    """See ``project``; sums are (m · P,), ``one`` is 1 in float32 and in float64, the last three are scratch."""
    m, size = vectors.shape
    for a in range(0, size, TILE):
        # A tile of every vector in float64, zeros beyond the end. Each direction is then made once for all of them.
        for i in range(m):
            for j in range(TILE):
                rows[i * TILE + j] = vectors[i, a + j] if a + j < size else 0.0
        for p in range(keys.size):
            for j in range(TILE):
                z[j] = -0.0  # -0 + z is z, to the bit
            tile, scale = (first + a) // TILE, scales[p : p + 1]
            _add_directions(z, 0, words, tile, keys[p], directions[p], 0, 1, kind, one[0], one[1], scale)
            for i in range(m):
                _add_dot(sums, i * keys.size + p, z, rows, i * TILE)


def project(
    vectors: Floats,
    first: int,
    keys: NDArray[np.uint64],
    directions: NDArray[np.int64],
    distribution: Distribution,
    scales: NDArray[np.float32],
) -> NDArray[np.float64]:
    """See ``reference.project``."""
    m = len(vectors)
    sums = np.full(m * keys.size, -0.0)  # -0 + a is a, to the bit
    one = np.ones(1, dtype=np.float32), np.ones(1)
    scratch = _aligned(TILE, np.uint32), _aligned(TILE, np.float64), _aligned(m * TILE, np.float64)
    kind = np.int64(DISTRIBUTIONS.index(distribution))
    _project(sums, vectors, np.int64(first), keys, directions, kind, scales, one, *scratch)
    return sums.reshape(m, keys.size)


def _aligned(count: int, dtype: type) -> NDArray[Any]:
    """Zeros that begin where a cache line begins: vectors that cross lines cost twice."""
    size = count * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype)


def run(code: Code, memory: Sequence[Floats], first: int, scales: NDArray[np.float32], *, store: bool = True) -> int:
    """See ``reference.run``."""
    number = memory[0].dtype.type
    broken = _run(
        _aligned((len(memory) + 1) * TILE, number),
        _aligned(TILE, np.uint32),
        np.array([vector.ctypes.data for vector in memory], dtype=np.uintp),
        np.int64(memory[0].size),
        np.int64(first),
        code.table,
        code.keys,
        code.values.astype(number),
        code.coefficients,
        code.coefficients.astype(number),
        scales,
        number(1.5 * 2.0 ** np.finfo(number).nmant),
        store,
    )
    return int(broken)


directions = partial(directions_by, run)
"""See ``reference.directions``."""
