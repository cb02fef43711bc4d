"""The stream in Triton: kernels that make directions in registers and never store them.

``run_program`` interprets a whole program, ``form_points`` makes many points x + c z beside x, ``tile_products`` and
``add_in_order`` make ⟨v, z⟩, ``square_sums`` ‖z‖².

A program instance takes ``BLOCK`` Philox blocks, 4 words each: 4·BLOCK elements. A register is a tensor
[BLOCK, 2, 2] whose entry [b, i, j] is the element of word 2i + j of block b. ``tl.join`` stacks words in this
shape inside a thread, so neither Philox nor Box-Muller moves anything between threads, and consecutive threads
hold consecutive lanes of a tile: one warp reads 128 bytes in a row. All instructions are done on these elements
before they are written, so the model is read and written once, however long the lag.

Exactness. Every product and every sum is rounded on its own: launch with ``OPTIONS``, which switches contraction
to fused multiply-adds off both in LLVM and in ptxas. Roots and quotients are the correctly rounded ones (Triton's
``tl.sqrt`` and ``/`` are not, in float32; in float64 they are). Subnormal numbers are kept. Only the bits of a
NaN that arithmetic makes may differ between processors; NaN in 16 bits has the bits of ``reference.narrow``.

This module needs Triton but no GPU. ``triton_gpu`` launches.
"""

# Kernels are Triton's language in Python's syntax: not for a type checker, and not to be rewritten by idiom.
# mypy: disable-error-code="no-untyped-call,misc,untyped-decorator,no-untyped-def,assignment"
# ruff: noqa: RUF005, SIM108, SIM300
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl

from decomfl_lab.noise import spec
from decomfl_lab.noise.program import DISTRIBUTIONS, FORMATS, Format, Op
from decomfl_lab.noise.spec import TAGS, Distribution

BLOCK: Final = 128
"""Philox blocks that one program instance takes: 4 elements a thread."""

SUMMED_TILES: Final = 16
"""Tiles whose square sums one program instance takes."""

COLUMNS: Final = 8
"""Columns of the instruction table on the device: those of ``Code.table``, then the key."""

STREAM_COLUMNS: Final = 5
"""Columns of a table of directions on the device: seed, p, bits of the sphere's factor, its points' begin and end."""

DIRECTIONS: Final = 4
"""Directions that an instance of ``tile_products`` keeps, so that a vector is read once for all of them."""

ADDED_SUMS: Final = 128
"""Sums that one program instance adds up in order: a thread a sum."""

OPTIONS: Final = {"enable_fp_fusion": False, "num_warps": 4, "num_stages": 1}
"""How every kernel is launched; without the first the bits would differ."""

WARP: Final = {**OPTIONS, "num_warps": 1}
"""How ``tile_products`` is launched: a warp has a tile, so its threads need not wait for those of another."""


def register_dtype(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """The type in which a program computes on tensors of these types."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


_Constant: Any = tl.constexpr
_jit: Any = triton.jit

_ROUNDS = _Constant(spec.ROUNDS)
_M0, _M1 = _Constant(spec.PHILOX_M0), _Constant(spec.PHILOX_M1)
_W0, _W1 = _Constant(spec.PHILOX_W0), _Constant(spec.PHILOX_W1)
_Q0, _Q1, _Q2, _Q3, _Q4, _Q5, _Q6 = (_Constant(c) for c in spec.LOG_Q)
_S0, _S1, _S2, _S3 = (_Constant(c) for c in spec.SIN_T)
_C0, _C1, _C2, _C3, _C4 = (_Constant(c) for c in spec.COS_T)
_LOG_2_TWICE = _Constant(spec.LOG_2_TWICE)
_SQRT_HALF_BITS = _Constant(spec.SQRT_HALF_BITS)
_LANES = _Constant(spec.LANES)
_TILE = _Constant(spec.TILE)
_TAG_GAUSSIAN = _Constant(TAGS[Distribution.GAUSSIAN])
_TAG_RADEMACHER = _Constant(TAGS[Distribution.RADEMACHER])
_TAG_ROUNDING = _Constant(spec.TAG_ROUNDING)
_RADEMACHER = _Constant(DISTRIBUTIONS.index(Distribution.RADEMACHER))
_FLOAT16 = _Constant(FORMATS.index(Format.FLOAT16))
_COLUMNS = _Constant(COLUMNS)
_STREAM_COLUMNS = _Constant(STREAM_COLUMNS)

_NOISE, _FILL, _COPY, _SCALE, _ADD, _OFFSET, _MULTIPLY, _DIVIDE_INTO = (_Constant(int(op)) for op in [*Op][:8])
_SQUARE_ROOT, _MAXIMUM, _SIGN, _SNAP, _LIMIT, _NARROW, _NARROW_RANDOMLY = (_Constant(int(op)) for op in [*Op][8:])


@_jit
def _philox(block, c2, tag: tl.constexpr, key):
    """Four words of each block (int64 tensor) for counter word 2 (int64 scalar); see ``reference.philox4x32``."""
    x0 = block.to(tl.uint32)
    x1 = (block >> 32).to(tl.uint32)
    x2 = tl.zeros_like(x0) + c2.to(tl.uint32)
    x3 = tl.zeros_like(x0) + tag
    k0 = key.to(tl.uint32)
    k1 = (key.to(tl.int64) >> 32).to(tl.uint32)
    for _ in tl.static_range(_ROUNDS):
        a = x0.to(tl.uint64) * _M0  # ptxas sees that one instruction multiplies the low halves
        b = x2.to(tl.uint64) * _M1
        x0 = (b >> 32).to(tl.uint32) ^ x1 ^ k0
        x1 = b.to(tl.uint32)
        x2 = (a >> 32).to(tl.uint32) ^ x3 ^ k1
        x3 = a.to(tl.uint32)
        k0 += _W0
        k1 += _W1
    return x0, x1, x2, x3


@_jit
def _places(block):
    """Where the elements of blocks lie in R^d, [b, i, j]."""
    word = 2 * tl.arange(0, 2)[None, :, None] + tl.arange(0, 2)[None, None, :]
    lane = (block // _LANES) * _TILE + block % _LANES
    return lane[:, None, None] + word * _LANES


@_jit
def _words(block, c2, tag: tl.constexpr, key):
    """The words as [b, i, j] = word 2i + j."""
    w0, w1, w2, w3 = _philox(block, c2, tag, key)
    return tl.join(tl.join(w0, w2), tl.join(w1, w3))


@_jit
def _box_muller(w0, w1):
    """Two normals of two words; see ``reference.box_muller``."""
    # 2²⁴ u = m 2ᵉ with m in [√½, √2), by the bits of the float. Then −2 ln u = (24 − e) 2 ln 2 − 2 ln(1 + x).
    bits = ((w0 >> 8) | 1).to(tl.int32).to(tl.float32).to(tl.int32, bitcast=True)
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    x = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    log_term = (24 - exponent).to(tl.float32) * _LOG_2_TWICE
    q = (((((_Q0 * x + _Q1) * x + _Q2) * x + _Q3) * x + _Q4) * x + _Q5) * x + _Q6
    radius = tl.sqrt_rn(log_term + x * q)
    # The angle t π/2 is within a quarter turn of 0, either way. The cosine gets its sign from the lowest bit of w1.
    t = ((w1.to(tl.int32, bitcast=True) >> 8) | 1).to(tl.float32) * (2.0**-23)
    t2 = t * t
    sine = t * (((_S0 * t2 + _S1) * t2 + _S2) * t2 + _S3)
    cosine = (((_C0 * t2 + _C1) * t2 + _C2) * t2 + _C3) * t2 + _C4
    cosine = cosine.to(tl.uint32, bitcast=True) ^ (w1 << 31)
    return radius * cosine.to(tl.float32, bitcast=True), radius * sine


@_jit
def _gaussian(block, p, key):
    w0, w1, w2, w3 = _philox(block, p, _TAG_GAUSSIAN, key)
    # Pairs are words (0, 1) and (2, 3) of a block: [b, i] pairs word 2i with word 2i + 1.
    z0, z1 = _box_muller(tl.join(w0, w2), tl.join(w1, w3))
    return tl.join(z0, z1)


@_jit
def _direction(block, row, kind):
    """The direction z of a row of a table of directions; float32."""
    key = tl.load(row)
    p = tl.load(row + 1)
    if kind == _RADEMACHER:
        sign = (_words(block, p >> 5, _TAG_RADEMACHER, key) << (p & 31).to(tl.uint32)) & 0x80000000
        z = (sign | 0x3F800000).to(tl.float32, bitcast=True)
    else:
        z = _gaussian(block, p, key) * _float(row + 2)  # 1 for gaussian directions: exact
    return z


@_jit
def _float(pointer):
    """The float32 whose bits an int64 holds."""
    return tl.load(pointer).to(tl.int32).to(tl.float32, bitcast=True)


@_jit
def _add_directions(r, block, key, first, begin, end, kind, coefficients, scales):
    """Add Σ c_p z_p to r, in turn."""
    if kind == _RADEMACHER:
        # c · ±1 is exact, so the sign goes into the top bit of c and no direction is made.
        words = tl.zeros(r.shape, tl.uint32)
        p = first
        for n in range(begin, end):
            if (n == begin) | ((p & 31) == 0):  # 32 directions share their words
                words = _words(block, p >> 5, _TAG_RADEMACHER, key)
            sign = (words << (p & 31).to(tl.uint32)) & 0x80000000
            term = tl.load(coefficients + n).to(tl.uint32, bitcast=True) ^ sign
            r += term.to(tl.float32, bitcast=True).to(r.dtype)
            p += 1
    else:
        p = first
        for n in range(begin, end):
            z = _gaussian(block, p, key) * tl.load(scales + n)  # 1 for gaussian directions: exact
            r += tl.load(coefficients + n).to(r.dtype) * z.to(r.dtype)
            p += 1
    return r


@_jit
def _narrow(r, kind, words, RANDOMLY: tl.constexpr):
    """See ``reference.narrow``; on bits, so that no float is compared that could be NaN."""
    bits = r.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    sign = bits & 0x80000000
    half = kind == _FLOAT16
    dropped = tl.where(half, 13, 16).to(tl.uint32)
    if RANDOMLY:
        noise = words >> (32 - dropped)
    else:
        noise = ((bits >> dropped) & 1) + tl.where(half, 0x0FFF, 0x7FFF).to(tl.uint32)
    y = ((bits + noise) >> dropped) << dropped
    # float16 only: above 65504 comes ∞; below the smallest normal number, 2^-14, neighbours are 2^-24 apart.
    above = (y & 0x7FFFFFFF) > 0x477FE000
    y = tl.where(half & above, sign | 0x7F800000, y)
    small = magnitude < 0x38800000
    size = tl.where(small, magnitude, 0).to(tl.float32, bitcast=True)
    if RANDOMLY:
        units = (size * (2.0**37)).to(tl.int32).to(tl.uint32)
        steps = ((units + noise) >> dropped).to(tl.int32).to(tl.float32) * (2.0**-24)
    else:
        steps = (size + 0.5) - 0.5  # the float32 in [1/2, 1) are 2^-24 apart too
    y = tl.where(half & small, steps.to(tl.uint32, bitcast=True) | sign, y)
    y = tl.where(magnitude == 0x7F800000, bits, y)
    return tl.where(magnitude > 0x7F800000, 0x7FC00000, y).to(tl.float32, bitcast=True)


@_jit
def _select(registers, which, COUNT: tl.constexpr):
    value = registers[0]
    for n in tl.static_range(1, COUNT):
        value = tl.where(which == n, registers[n], value)
    return value


@_jit
def _replace(registers, which, value, COUNT: tl.constexpr):
    replaced = (tl.where(which == 0, value, registers[0]),)
    for n in tl.static_range(1, COUNT):
        replaced = replaced + (tl.where(which == n, value, registers[n]),)
    return replaced


@_jit
def _load(pointers, mask, NUMBER: tl.constexpr):
    """Read from memory of any type; bfloat16 by its bits, which Triton's interpreter would not keep."""
    value = tl.load(pointers, mask=mask, other=0.0)
    if value.dtype == tl.bfloat16:
        value = (value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return value.to(NUMBER)


@_jit
def _store(pointers, value, mask):
    """Round to the memory's type, ties to even, and write; a NaN of 16 bits is the one of ``reference.narrow``."""
    TO: tl.constexpr = pointers.dtype.element_ty
    number = value == value
    if TO == tl.bfloat16:
        bits = value.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        value = tl.where(number, rounded, 0x7FC0).to(tl.uint16).to(TO, bitcast=True)
    elif TO == tl.float16:
        bits = value.to(TO).to(tl.uint16, bitcast=True)
        value = tl.where(number, bits, 0x7E00).to(tl.uint16).to(TO, bitcast=True)
    tl.store(pointers, value.to(TO), mask=mask)


# Numbers are not specialised by value (a launch with size 1 would else be compiled for it), nor pointers by
# alignment, so that ``assembly`` shows the code that runs. Triton does specialise the pointers of a tuple, but with a
# ``first`` of any value the code is the same. A warp reads 32 elements in a row: wider loads would save nothing.
@_jit(
    do_not_specialize=["size", "first", "instructions", "store"],
    do_not_specialize_on_alignment=["memory", "table", "values", "coefficients", "scales", "broken"],
)
def run_program(
    memory,
    size: tl.int64,
    first: tl.int64,
    table,
    values,
    instructions: tl.int32,
    coefficients,
    scales,
    broken,
    store: tl.int32,
    BLOCK: tl.constexpr = BLOCK,
):
    """Run a program on memory[r][0..size-1], which are elements first.. of the model.

    Args:
        memory: Tuple of pointers, one for each register of the program; of any of the four types.
        size: Elements.
        first: Position of element 0 in the model.
        table: int64 (instructions, COLUMNS).
        values: (instructions,) in the registers' type, which is this one.
        instructions: How many.
        coefficients: float32.
        scales: float32, 1 but for directions on the sphere.
        broken: int64, where broken limits are counted.
        store: 0 leaves memory as it is.
        BLOCK: Philox blocks an instance.
    """
    COUNT: tl.constexpr = len(memory) + 1
    NUMBER: tl.constexpr = values.dtype.element_ty
    block = (first // _TILE) * _LANES + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    at = _places(block) - first
    inside = (at >= 0) & (at < size)
    registers = (_load(memory[0] + at, inside, NUMBER),)
    for n in tl.static_range(1, COUNT - 1):
        registers = registers + (_load(memory[n] + at, inside, NUMBER),)
    registers = registers + (tl.zeros([BLOCK, 2, 2], NUMBER),)
    beyond = tl.zeros([BLOCK], tl.int32)

    for i in range(instructions):
        row = table + i * _COLUMNS
        op = tl.load(row)
        to = tl.load(row + 1)
        start = tl.load(row + 3)
        kind = tl.load(row + 6)
        key = tl.load(row + 7)
        a = tl.load(values + i)
        r = _select(registers, to, COUNT)
        s = _select(registers, tl.load(row + 2), COUNT)
        if op == _NOISE:
            begin = tl.load(row + 4).to(tl.int32)
            end = tl.load(row + 5).to(tl.int32)
            r = _add_directions(r, block, key, start, begin, end, kind, coefficients, scales)
        elif op == _ADD:
            r = r + a * s
        elif op == _SCALE:
            r = r * a
        elif op == _FILL:
            r = tl.zeros_like(r) + a
        elif op == _COPY:
            r = s
        elif op == _OFFSET:
            r = r + a
        elif op == _MULTIPLY:
            r = r * s
        elif op == _DIVIDE_INTO:
            if NUMBER == tl.float32:
                r = tl.div_rn(s, r)
            else:
                r = s / r
        elif op == _SQUARE_ROOT:
            if NUMBER == tl.float32:
                r = tl.sqrt_rn(r)
            else:
                r = tl.sqrt(r)
        elif op == _MAXIMUM:
            r = tl.where(r > s, r, s)
        elif op == _SIGN:
            r = tl.where(r > 0, 1.0, tl.where(r < 0, -1.0, r - r))
        elif op == _SNAP:
            r = (r + a) - a  # the host has put C in a's place
        elif op == _LIMIT:
            wrong = tl.where(inside & ~(tl.abs(r) <= a), 1, 0)
            beyond += tl.sum(tl.sum(wrong, axis=2), axis=1)
        elif NUMBER == tl.float32:
            if op == _NARROW:
                r = _narrow(r, kind, block, False)
            elif op == _NARROW_RANDOMLY:
                r = _narrow(r, kind, _words(block, start, _TAG_ROUNDING, key), True)
        registers = _replace(registers, to, r, COUNT)

    count = tl.sum(beyond.to(tl.int64))
    if count > 0:
        tl.atomic_add(broken, count)
    if store != 0:
        for n in tl.static_range(COUNT - 1):
            _store(memory[n] + at, registers[n], inside)


@_jit
def _by_halves(terms, TILES: tl.constexpr):
    """The sum of each of so many tiles: 0..63 + 64..127, and so on, as ``reference.tile_square_sums`` adds."""
    # A sum over an axis of two is one addition, so nothing is left to the order in which ``tl.sum`` adds. Each step
    # puts element n and element n + half together.
    halves = tl.sum(tl.sum(terms, axis=1), axis=1)  # words 0 + 2 and 1 + 3, then these; two terms a sum
    halves = tl.reshape(halves, [TILES, 2, 16])
    halves = tl.reshape(tl.sum(halves, axis=1), [TILES, 2, 8])
    halves = tl.reshape(tl.sum(halves, axis=1), [TILES, 2, 4])
    halves = tl.reshape(tl.sum(halves, axis=1), [TILES, 2, 2])
    return tl.sum(tl.sum(halves, axis=1), axis=1)


@_jit(
    do_not_specialize=["key", "direction", "first_tile", "tiles", "d"],
    do_not_specialize_on_alignment=["sums"],
)
def square_sums(
    sums,
    key: tl.int64,
    direction: tl.int64,
    first_tile: tl.int64,
    tiles: tl.int32,
    d: tl.int64,
    TILES: tl.constexpr = SUMMED_TILES,
):
    """sums[n] ← Σ z_j² of tile first_tile + n, float64, by halves; see ``reference.tile_square_sums``."""
    n = tl.program_id(0) * TILES
    block = (first_tile + n) * _LANES + tl.arange(0, TILES * _LANES).to(tl.int64)
    z = _gaussian(block, direction, key).to(tl.float64)
    squares = tl.where(_places(block) < d, z * z, 0.0)
    n += tl.arange(0, TILES)
    tl.store(sums + n, _by_halves(squares, TILES), mask=n < tiles)


@_jit(
    do_not_specialize=["vectors_of", "size", "begin", "first_tile", "count", "kind"],
    do_not_specialize_on_alignment=["sums", "vectors", "table"],
)
def tile_products(
    sums,
    vectors,
    vectors_of: tl.int32,
    size: tl.int64,
    begin: tl.int64,
    first_tile: tl.int64,
    table,
    count: tl.int32,
    kind: tl.int32,
    DIRECTIONS: tl.constexpr = DIRECTIONS,
):
    """sums[t, i, p] ← Σ_j v_i[j] z_p[j] over tile begin + t of the vectors, float64, by halves.

    An instance takes one tile, all vectors and some directions. Products of float32 are exact, those of float64 are
    rounded once; elements beyond the vectors' end count as 0.

    Args:
        sums: float64 (tiles, vectors_of, count).
        vectors: v, (vectors_of, size), float32 or float64.
        vectors_of: How many vectors.
        size: Elements of each.
        begin: First tile of the vectors that is wanted.
        first_tile: The tile of R^d where the vectors begin.
        table: int64 (count, STREAM_COLUMNS).
        count: Directions.
        kind: Place in ``DISTRIBUTIONS``.
        DIRECTIONS: Directions an instance.
    """
    groups = (count + DIRECTIONS - 1) // DIRECTIONS
    p = (tl.program_id(0) % groups) * DIRECTIONS  # neighbours share a tile, so it is read from the cache
    t = (tl.program_id(0) // groups).to(tl.int64)
    block = (begin + t) * _LANES + tl.arange(0, _LANES).to(tl.int64)
    at = _places(block)
    inside = at < size
    block += first_tile * _LANES
    z = (_direction(block, table + p * _STREAM_COLUMNS, kind).to(tl.float64),)
    for k in tl.static_range(1, DIRECTIONS):
        made = tl.zeros(at.shape, tl.float64)
        if p + k < count:
            row = table + (p + k) * _STREAM_COLUMNS
            made = _direction(block, row, kind).to(tl.float64)
        z = z + (made,)
    for i in range(vectors_of):
        v = _load(vectors + i * size + at, inside, tl.float64)
        to = sums + (t * vectors_of + i) * count + p + tl.arange(0, 1)
        for k in tl.static_range(DIRECTIONS):
            if p + k < count:
                tl.store(to + k, _by_halves(z[k] * v, 1))


@_jit(
    do_not_specialize=["terms_of", "each", "columns"],
    do_not_specialize_on_alignment=["totals", "terms"],
)
def add_in_order(
    totals,
    terms,
    terms_of: tl.int32,
    each: tl.int32,
    columns: tl.int64,
    BLOCK: tl.constexpr = ADDED_SUMS,
    AHEAD: tl.constexpr = 8,
):
    """totals[g] ← totals[g] + terms[g · each] + terms[g · each + 1] + ..., ``each`` terms, one after another.

    Args:
        totals: float64 (groups, columns).
        terms: float64 (terms_of, columns).
        terms_of: How many terms; the last group may have fewer than ``each``.
        each: Terms a group.
        columns: Sums that are made side by side.
        BLOCK: Columns an instance.
        AHEAD: Terms that are read before they are added.
    """
    blocks = (columns + BLOCK - 1) // BLOCK
    group = tl.program_id(0) // blocks
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.load(totals + group * columns + column, mask=inside)
    terms += column
    begin = group * each
    end = tl.minimum(begin + each, terms_of)
    # Loads of AHEAD terms do not depend on the sum, so they are under way together; the additions keep their order.
    rest = end - (end - begin) % AHEAD
    for t in range(begin, rest, AHEAD):
        for k in tl.static_range(AHEAD):
            total += tl.load(terms + (t + k) * columns, mask=inside)
    for t in range(rest, end):
        total += tl.load(terms + t * columns, mask=inside)
    tl.store(totals + group * columns + column, total, mask=inside)


@_jit(
    do_not_specialize=["size", "first", "directions", "kind"],
    do_not_specialize_on_alignment=["points", "x", "table"],
)
def form_points(
    points,
    x,
    size: tl.int64,
    first: tl.int64,
    table,
    directions: tl.int32,
    kind: tl.int32,
    BLOCK: tl.constexpr = BLOCK,
):
    """points[n] ← fl(x + fl(c_n z)), one direction z and all of its points n an instance; x itself where c_n = 0.

    Args:
        points: (rows, size), float32 or float64.
        x: (size,), of any of the four types: elements first.. of the model.
        size: Elements.
        first: Position of element 0 in the model.
        table: int64 (directions, STREAM_COLUMNS), then for every point its row n and the bits of its c_n, float32.
        directions: How many.
        kind: Place in ``DISTRIBUTIONS``.
        BLOCK: Philox blocks an instance.
    """
    NUMBER: tl.constexpr = points.dtype.element_ty
    which = tl.program_id(0) % directions  # neighbours share elements of x, so these are read from the cache
    own = (tl.program_id(0) // directions).to(tl.int64) * BLOCK
    block = (first // _TILE) * _LANES + own + tl.arange(0, BLOCK).to(tl.int64)
    at = _places(block) - first
    inside = (at >= 0) & (at < size)
    r = _load(x + at, inside, NUMBER)
    row = table + which * _STREAM_COLUMNS
    z = _direction(block, row, kind).to(NUMBER)
    listed = table + directions * _STREAM_COLUMNS
    for n in range(tl.load(row + 3).to(tl.int32), tl.load(row + 4).to(tl.int32)):
        c = _float(listed + 2 * n + 1).to(NUMBER)
        value = tl.where(c == 0, r, r + c * z)
        tl.store(points + tl.load(listed + 2 * n) * size + at, value, mask=inside)
