"""Products in vector registers: the few intrinsics of which every fused pass, forward and backward, is made.

A *tile* adds up ``PIXELS`` rows × one block of columns in registers and writes once. A product and its sum are one
fused multiply-add, and each element's terms come in a stated order, so the bits of a result depend neither on the
width of the machine's vectors nor on how rows and columns are grouped. Arrays come flat, float32, with the place of a
first number each (``to``, ``to_at``); steps between rows and columns, and offsets (int64), are in numbers.
"""

# mypy: disable-error-code="no-untyped-call,misc,untyped-decorator,no-any-return,no-untyped-def"
from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils
from numba.core.registry import cpu_target

from decomfl_lab.noise.kernel_cache import njit
from decomfl_lab.noise.lanes import F32, Lanes
from decomfl_lab.noise.numba_cpu import on_rows

LANES: Final = 16 if "+avx512f" in cpu_target.target_context.codegen()._customize_tm_features() else 8
"""Float32 numbers in the widest register that the compiled code may use."""
BLOCK: Final = 16
"""Columns of a tile, and what channels are filled up to a multiple of."""
WIDE: Final = 2 * LANES
"""Columns of the widest tile: two registers."""
PIXELS: Final = 12 if LANES == 16 else 6
"""Rows of a tile: sums, columns and one row's number fill the 32 (16) registers without spilling."""
_DOT = 8
"""Partial sums of a dot product; a part of its definition, whatever the machine."""
DOTS: Final = (4, 3)
"""Left and right vectors of ``dots_block``."""


def _sums(builder: Any, count: int, lanes: int) -> list[Any]:
    """Places for ``count`` vectors that begin at 0; LLVM keeps them in registers."""
    kind = ir.VectorType(F32, lanes)
    places = [cgutils.alloca_once(builder, kind) for _ in range(count)]
    for place in places:
        builder.store(ir.Constant(kind, [0.0] * lanes), place)
    return places


def _add_product(builder: Any, place: Any, a: Lanes, b: Lanes) -> None:
    builder.store(a.multiply_add(b, Lanes(builder, builder.load(place))).value, place)


def _vectors(builder: Any, pointer: Any, count: int) -> list[Lanes]:
    return [Lanes.load(builder, pointer, F32, LANES * v, LANES) for v in range(count)]


def _products(
    builder: Any,
    rows: Sequence[Any],
    row_steps: tuple[Any, Any],
    columns: Any,
    column_steps: tuple[Any, Any],
    counts: tuple[Any, Any],
    vectors: int,
) -> list[Lanes]:
    """Σ_{y < counts[0]} Σ_{x < counts[1]} rows[n][y, x] · columns[y, x, :], the terms in this order.

    rows[n][y, x] is the number at pointer rows[n] + y·row_steps[0] + x·row_steps[1]; columns[y, x, :] are ``vectors``
    registers at pointer columns + y·column_steps[0] + x·column_steps[1]. Row n's sums are n·vectors and on.
    """
    # A sum of outer products: the registers of columns are loaded once a term and serve all rows, and each row has one
    # number a term, spread over a register. All sums stay in registers until the last term.
    sums = _sums(builder, len(rows) * vectors, LANES)
    with cgutils.for_range(builder, counts[0]) as y:
        rows_y = [builder.gep(pointer, [builder.mul(y.index, row_steps[0])]) for pointer in rows]
        columns_y = builder.gep(columns, [builder.mul(y.index, column_steps[0])])
        with cgutils.for_range(builder, counts[1]) as x:
            registers = _vectors(builder, builder.gep(columns_y, [builder.mul(x.index, column_steps[1])]), vectors)
            offset = builder.mul(x.index, row_steps[1])
            for i, pointer in enumerate(rows_y):
                number = registers[0].spread(builder.load(builder.gep(pointer, [offset])))
                for v in range(vectors):
                    _add_product(builder, sums[i * vectors + v], number, registers[v])
    return [Lanes(builder, builder.load(place)) for place in sums]


def _places(builder: Any, array: Any, first: Any, offsets: Any, n: Any, count: int) -> list[Any]:
    """Pointers to array[first + offsets[n + i]] for i < count."""
    numbers = [builder.add(n, n.type(i)) for i in range(count)]
    return [builder.gep(array, [builder.add(first, builder.load(builder.gep(offsets, [i])))]) for i in numbers]


def _rows(builder: Any, array: Any, first: Any, step: Any, count: int) -> list[Any]:
    """Pointers to array[first + i·step] for i < count."""
    return [builder.gep(array, [builder.add(first, builder.mul(step, step.type(i)))]) for i in range(count)]


def _tile(width: int) -> Any:
    """An intrinsic: work[dst + dst_offsets[n]..] = max(bias + Σ_tap work[src + src_offsets[n] + tap] · weight, floor).

    For the ``PIXELS`` pixels n = first.. and one block of ``width`` channels; taps are ``rows`` runs of ``run``.
    """
    vectors = width // LANES

    def write(
        builder, work, src, src_offsets, first, rows, stride, run, packed, weights, bias, dst, dst_offsets, floor
    ):
        inputs = _places(builder, work, src, src_offsets, first, PIXELS)
        # A row of taps is ``run`` numbers that lie next to one another in the image. Packed weights of a tap are
        # ``width`` numbers, and those of the next tap follow.
        size = ir.Constant(run.type, width)
        taps = builder.gep(packed, [weights])
        steps = (builder.mul(run, size), size)
        sums = _products(builder, inputs, (stride, run.type(1)), taps, steps, (rows, run), vectors)
        biases = _vectors(builder, builder.gep(packed, [bias]), vectors)
        for i, out in enumerate(_places(builder, work, dst, dst_offsets, first, PIXELS)):
            for v in range(vectors):
                (sums[i * vectors + v] + biases[v]).at_least(floor).store(out, LANES * v)

    return on_rows(write)


tile, wide_tile = _tile(BLOCK), _tile(WIDE)


def _adding(rows: int, width: int) -> Any:
    """An intrinsic: to[dst + dst_offsets[n]] += Σ_yx left[src + src_offsets[n] + y·a + x·b] · right[of + y·c + x·d..].

    For the ``rows`` rows n = first.. and ``width`` columns; y < ny, x < nx.
    """
    vectors = width // LANES

    def write(builder, to, dst, dst_offsets, first, left, src, src_offsets, a, b, right, of, c, d, ny, nx):
        inputs = _places(builder, left, src, src_offsets, first, rows)
        columns = builder.gep(right, [of])
        sums = _products(builder, inputs, (a, b), columns, (c, d), (ny, nx), vectors)
        for i, out in enumerate(_places(builder, to, dst, dst_offsets, first, rows)):
            for v, old in enumerate(_vectors(builder, out, vectors)):
                (old + sums[i * vectors + v]).store(out, LANES * v)

    return on_rows(write)


_FEW: Final = PIXELS * 2 // 3
"""Rows of a smaller tile; a divisor of ``BLOCK``."""
_wide_most, _most, _wide_few, _few, _wide_row, _row = (_adding(n, w) for n in (PIXELS, _FEW, 1) for w in (WIDE, BLOCK))


@njit(cache=True, nogil=True)
def add_products(to, dst, dst_offsets, left, src, src_offsets, row_steps, right, of, column_steps, counts, wide):
    """See ``_adding``: all rows of the tables of offsets, ``WIDE`` columns or ``BLOCK``; pairs are (of y, of x)."""
    (a, b), (c, d), (ny, nx) = row_steps, column_steps, counts
    # The largest tiles first, then smaller ones for the rows left over, then one row at a time. An element has the same
    # terms in the same order in all of them.
    whole = dst_offsets.size - dst_offsets.size % PIXELS
    for n in range(0, whole, PIXELS):
        if wide:
            _wide_most(to, dst, dst_offsets, n, left, src, src_offsets, a, b, right, of, c, d, ny, nx)
        else:
            _most(to, dst, dst_offsets, n, left, src, src_offsets, a, b, right, of, c, d, ny, nx)
    rest = whole + (dst_offsets.size - whole) // _FEW * _FEW
    for n in range(whole, rest, _FEW):
        if wide:
            _wide_few(to, dst, dst_offsets, n, left, src, src_offsets, a, b, right, of, c, d, ny, nx)
        else:
            _few(to, dst, dst_offsets, n, left, src, src_offsets, a, b, right, of, c, d, ny, nx)
    for n in range(rest, dst_offsets.size):
        if wide:
            _wide_row(to, dst, dst_offsets, n, left, src, src_offsets, a, b, right, of, c, d, ny, nx)
        else:
            _row(to, dst, dst_offsets, n, left, src, src_offsets, a, b, right, of, c, d, ny, nx)


def _product_block(rows: int, width: int, *, add: bool) -> Any:
    """An intrinsic: to[to_at + n·to_row...] = Σ_j left[left_at + n·left_row + j·left_step] · right[of + j·of_step...].

    Or += it; for ``rows`` rows n and ``width`` columns; j < count.
    """
    vectors = width // LANES

    def write(builder, to, to_at, to_row, left, left_at, left_row, left_step, right, of, of_step, count):
        # A product of matrices is a sum over one axis: the other axis of ``_products`` has a single step.
        none, one = count.type(0), count.type(1)
        columns = builder.gep(right, [of])
        inputs = _rows(builder, left, left_at, left_row, rows)
        sums = _products(builder, inputs, (none, left_step), columns, (none, of_step), (one, count), vectors)
        for i, out in enumerate(_rows(builder, to, to_at, to_row, rows)):
            old = _vectors(builder, out, vectors) if add else []
            for v in range(vectors):
                product = sums[i * vectors + v]
                (old[v] + product if add else product).store(out, LANES * v)

    return on_rows(write)


_MORE, _LESS = (9, 7) if LANES == 16 else (6, 5)
"""Rows of a block of ``multiply``, of which those are taken that leave fewer over; with more rows it gets slower."""
_more_wide, _less_wide, _more, _less = (_product_block(n, w, add=False) for w in (WIDE, BLOCK) for n in (_MORE, _LESS))
_add_wide, _add = (_product_block(_FEW, w, add=True) for w in (WIDE, BLOCK))


@njit(cache=True, nogil=True)
def panel(columns):
    """Columns of a block of packed ones: what the widest tile takes that divides them."""
    return WIDE if columns % WIDE == 0 else BLOCK


@njit(cache=True, nogil=True)
def multiply(to, to_at, rows, columns, left, left_at, right, right_at, count):
    """to[n, c] = Σ_j left[n, j] · right[j, c] for at least 9 rows.

    to[n, c] is at to_at + n·columns + c and left[n, j] at left_at + n·count + j; right is packed: (block, j, ``panel``
    columns), from right_at on.
    """
    # −rows mod n is the number of rows that blocks of n would compute twice: the size with fewer of them is taken.
    block_rows = _MORE if -rows % _MORE <= -rows % _LESS else _LESS
    width = panel(columns)
    for c in range(0, columns, width):
        for first in range(0, rows, block_rows):
            # The last block begins early enough to be whole, and writes some rows again with the same bits.
            start = min(first, rows - block_rows)
            out, row, column = to_at + start * columns + c, left_at + start * count, right_at + c * count
            if width == WIDE and block_rows == _MORE:
                _more_wide(to, out, columns, left, row, count, 1, right, column, width, count)
            elif width == WIDE:
                _less_wide(to, out, columns, left, row, count, 1, right, column, width, count)
            elif block_rows == _MORE:
                _more(to, out, columns, left, row, count, 1, right, column, width, count)
            else:
                _less(to, out, columns, left, row, count, 1, right, column, width, count)


@njit(cache=True, nogil=True)
def add_product(to, to_at, rows, columns, left, left_at, right, right_at, count):
    """to[n, c] += Σ_j left[j, n] · right[j, c] for a number of rows that is a multiple of ``BLOCK``.

    to is packed: (block, n, ``panel`` columns), from to_at on; left[j, n] is at left_at + j·rows + n, right[j, c] at
    right_at + j·columns + c.
    """
    width = panel(columns)
    for c in range(0, columns, width):
        for n in range(0, rows, _FEW):
            # left is read column by column (step 1, by ``rows``): it is the transpose that is multiplied.
            out, row, column = to_at + c * rows + n * width, left_at + n, right_at + c
            if width == WIDE:
                _add_wide(to, out, width, left, row, 1, rows, right, column, columns, count)
            else:
                _add(to, out, width, left, row, 1, rows, right, column, columns, count)


def _dots(left_count: int, right_count: int) -> Any:
    """An intrinsic: work[out + i·step + o] += Σ_j work[a + i·a_step + j] · point[w + o·w_step + j]; j < 8·vectors."""

    def write(builder, work, a, a_step, point, w, w_step, vectors, out, step):
        # Each of the dot products has 8 partial sums, and number j goes to the one of j mod 8, whatever the machine.
        sums = _sums(builder, left_count * right_count, _DOT)
        left, right = _rows(builder, work, a, a_step, left_count), _rows(builder, point, w, w_step, right_count)
        with cgutils.for_range(builder, vectors) as vector:
            j = builder.mul(vector.index, vector.index.type(_DOT))
            weights = [Lanes.load(builder, builder.gep(row, [j]), F32, 0, _DOT) for row in right]
            for i, row in enumerate(left):
                features = Lanes.load(builder, builder.gep(row, [j]), F32, 0, _DOT)
                for o in range(right_count):
                    _add_product(builder, sums[i * right_count + o], features, weights[o])
        # The 8 are added, halves to halves, and their total to what the output holds from earlier features.
        for i, row in enumerate(_rows(builder, work, out, step, left_count)):
            for o in range(right_count):
                total = Lanes(builder, builder.load(sums[i * right_count + o])).total()
                place = builder.gep(row, [step.type(o)])
                builder.store(builder.fadd(builder.load(place), total), place)

    return on_rows(write)


dots_block, dots_column, dots_one = _dots(*DOTS), _dots(DOTS[0], 1), _dots(1, 1)


@on_rows
def turned(builder, to, to_at, to_row, source, source_at, source_row):
    """to[to_at + i·to_row + o] = source[source_at + o·source_row + i], ``BLOCK`` × ``BLOCK`` numbers."""
    # A transpose by interleaving: 16 registers are loaded, mixed in pairs four times, and stored. No number is loaded
    # or stored alone.
    rows = [Lanes.load(builder, row, F32, 0, BLOCK) for row in _rows(builder, source, source_at, source_row, BLOCK)]
    half = BLOCK // 2
    for _ in range(half.bit_length()):  # each time the top bit of a number's row and column become the other's lowest
        rows = [part for upper, lower in zip(rows[:half], rows[half:], strict=True) for part in upper.between(lower)]
    for row, out in zip(rows, _rows(builder, to, to_at, to_row, BLOCK), strict=True):
        row.store(out, 0)


@on_rows
def largest(builder, work, corner, size, row_step, pixel_step, out_at):
    """work[out_at...] = the largest of size × size pixels of 16 channels from work[corner] on, NaN if there is one."""
    source = builder.gep(work, [corner])
    top = cgutils.alloca_once(builder, ir.VectorType(F32, BLOCK))
    builder.store(Lanes.load(builder, source, F32, 0, BLOCK).value, top)

    with cgutils.for_range(builder, size) as y, cgutils.for_range(builder, size) as x:
        place = builder.add(builder.mul(y.index, row_step), builder.mul(x.index, pixel_step))
        pixel = Lanes.load(builder, builder.gep(source, [place]), F32, 0, BLOCK)
        builder.store(Lanes(builder, builder.load(top)).larger(pixel).value, top)
    Lanes(builder, builder.load(top)).store(builder.gep(work, [out_at]), 0)


@on_rows
def mask(builder, slopes, slopes_at, maps, maps_at):
    """slopes[slopes_at...] stay where maps[maps_at...] is above 0; the others of the 16 channels become 0."""
    slope = Lanes.load(builder, builder.gep(slopes, [slopes_at]), F32, 0, BLOCK)
    activation = Lanes.load(builder, builder.gep(maps, [maps_at]), F32, 0, BLOCK)
    activation.above(0.0, slope, 0.0).store(builder.gep(slopes, [slopes_at]), 0)


@on_rows
def route(builder, work, corner, size, row, step, top, floor, slopes, of, to, to_row, to_step):
    """The first of the window's pixels equal to its largest, above ``floor``, gets slopes[of...]; the others get 0."""
    # Lane by lane, ``left`` holds the slope until a pixel has taken it, and 0 from then on. A largest value that is
    # not above the floor has none to give. NaN equals nothing, so a window with NaN passes nothing on.
    kind = ir.VectorType(F32, BLOCK)
    zero = Lanes(builder, ir.Constant(kind, [0.0] * BLOCK))
    most = Lanes.load(builder, builder.gep(work, [top]), F32, 0, BLOCK)
    left = cgutils.alloca_once(builder, kind)
    slope = Lanes.load(builder, builder.gep(slopes, [of]), F32, 0, BLOCK)
    builder.store(most.above(floor, slope, zero).value, left)
    source, target = builder.gep(work, [corner]), builder.gep(slopes, [to])
    with cgutils.for_range(builder, size) as y, cgutils.for_range(builder, size) as x:

        def place(row: Any, step: Any) -> Any:
            return builder.add(builder.mul(y.index, row), builder.mul(x.index, step))

        pixel = Lanes.load(builder, builder.gep(source, [place(row, step)]), F32, 0, BLOCK)
        rest = Lanes(builder, builder.load(left))
        hit = builder.fcmp_ordered("==", pixel.value, most.value)
        out = Lanes(builder, builder.select(hit, rest.value, zero.value))
        out.store(builder.gep(target, [place(to_row, to_step)]), 0)
        builder.store(builder.select(hit, zero.value, rest.value), left)
