"""Convolutions through the values of polynomials: 2.8 to 4 times fewer products than their definition has.

An output of m × m pixels of a convolution with k × k weights g is read off m + k − 1 = 6 points a side:

    Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ D B)] A,    D the 6 × 6 pixels below,

where Bᵀ and G take pixels and weights to values at the points 0, ±2/3, ±3/2 and ∞, and Aᵀ takes products of values to
pixels. Sums over input channels are products of matrices (tiles × inputs)·(inputs × outputs), one for each of the 36
values, with 36 / m² products an output pixel instead of k²: 2.25 instead of 9, 9 instead of 25. The way
back is the adjoint of the way there, through the same values:

    ∂/∂g = Gᵀ [Σ_tiles (Bᵀ D B) ⊙ (A S Aᵀ)] G,    ∂/∂D = B [(G g Gᵀ) ⊙ (A S Aᵀ)] Bᵀ,    S = ∂/∂Y.

With these points rounding is five times that of the definition, in float32 (with 0, ±1, ±2 it is ten times); tests
compare it with that of torch. The order of all sums is fixed, so that bits do not depend on threads or machine.

Source: S. Winograd, "Arithmetic complexity of computations", 1980; A. Lavin and S. Gray, "Fast algorithms for
convolutional neural networks", 2016, section 4.
"""

# mypy: disable-error-code="no-untyped-call,misc,untyped-decorator,no-any-return,no-untyped-def"
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.engines.kernels.tiles import BLOCK, add_product, multiply, panel
from decomfl_lab.noise.kernel_cache import njit
from decomfl_lab.noise.lanes import F32, Lanes
from decomfl_lab.noise.numba_cpu import on_rows

POINTS: Final = (Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2))
"""Where values are taken; the sixth point is ∞."""
_SIDE: Final = len(POINTS) + 1
VALUES: Final = _SIDE**2
"""The number of values of a tile."""
LEAST_TILES: Final = 9
"""The fewest tiles of an image for which this pays; a multiplication takes as many at once."""
_KERNELS: Final = (3, 5)
_MOST: Final = max(_KERNELS) ** 2
Matrix = NDArray[np.float32]


def matrices(kernel: int) -> tuple[Matrix, Matrix, Matrix]:
    """Aᵀ (m × 6), G (6 × k) and Bᵀ (6 × 6) for k = ``kernel`` weights a side, rounded once to float32.

    A row of Bᵀ has the coefficients of the monic polynomial that vanishes at all other points, one of G the powers of
    its own point over what that polynomial is there.
    """

    def powers(count: int) -> list[list[Fraction]]:
        # The value of a polynomial at ∞ is its leading coefficient.
        last = [Fraction(int(n == count - 1)) for n in range(count)]
        return [*([p**n for n in range(count)] for p in POINTS), last]

    spread, weights = [], powers(kernel)
    # Lagrange's interpolation: the polynomial of point p is Π (x − q) / Π (p − q) over the other points q. Its
    # numerator goes to Bᵀ and is of degree 4, so x⁵ has the coefficient 0. Its denominator goes to G.
    for i, p in enumerate(POINTS):
        others = [q for q in POINTS if q != p]
        spread.append([*_product(others), Fraction(0)])
        scale = math.prod(p - q for q in others)
        weights[i] = [w / scale for w in weights[i]]
    # The polynomial of ∞ vanishes at all five points, and its leading coefficient is 1.
    spread.append(_product(POINTS))
    a, g, b = (np.array(rows, dtype=np.float32) for rows in (powers(_SIDE + 1 - kernel), weights, spread))
    return a.T, g, b


def _product(roots: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients of Π (x − root), the constant first."""
    found: Any = [Fraction(1)]
    for root in roots:
        found = np.convolve(found, [-root, Fraction(1)])
    return list(found)


def tile_size(kernel: tuple[int, ...], stride: tuple[int, ...], height: int, width: int) -> int:
    """Output pixels of a tile, a side; 0 where the convolution has to be done by its definition."""
    k = kernel[0]
    if kernel != (k, k) or k not in _KERNELS or stride != (1, 1):
        return 0
    m = _SIDE + 1 - k
    return 0 if height % m or width % m or height * width // m**2 < LEAST_TILES else m


def scratch(tiles: int, inputs: int, outputs: int, pixels: int) -> int:
    """The numbers that a convolution and its way back need for a while: values of tiles, and slopes by its inputs."""
    return VALUES * tiles * (inputs + outputs) + pixels * inputs


# Transforms of 16 channels ---------------------------------------------------------------------------------------

_Grid = Callable[[int, int], Any]
"""The pointer to what is y down and x across."""


def _combination(coefficients: Iterable[np.float32], vectors: Iterable[Lanes]) -> Lanes:
    """Σ coefficient · vector, in this order, but that one of coefficient 1 comes first."""
    terms = [(c, vector) for c, vector in zip(coefficients, vectors, strict=True) if c]
    rest = sorted(terms, key=lambda term: term[0] != 1)
    coefficient, vector = rest.pop(0)
    total = vector if coefficient == 1 else vector * coefficient
    for coefficient, vector in rest:
        if abs(coefficient) == 1:
            total = total + vector if coefficient > 0 else total - vector
        else:
            total = vector.multiply_add(coefficient, total)
    return total


def _image_of(matrix: Matrix, vectors: Sequence[Lanes]) -> list[Lanes]:
    """``matrix`` times the vectors.

    Points come as pairs ±p. So either two rows have equal coefficients of even vectors and opposite ones of odd ones,
    or two columns likewise: what a pair shares is added up once.
    """
    # The rows are those of the points 0, ±2/3, ±3/2, ∞: pairs begin at 1 and at 3.
    if _has_pairs(matrix):
        found = [_combination(matrix[0], vectors)]
        for r in (1, 3):
            even_part, odd_part = (_combination(matrix[r, n::2], vectors[n::2]) for n in (0, 1))
            found += [even_part + odd_part, even_part - odd_part]
        return [*found, _combination(matrix[5], vectors)]
    assert _has_pairs(matrix.T)
    # Row r belongs to the power r: its coefficients of ±p are equal where r is even, and opposite where it is odd.
    sums = [vectors[n] + vectors[n + 1] for n in (1, 3)]
    differences = [vectors[n] - vectors[n + 1] for n in (1, 3)]
    even, odd = [vectors[0], *sums, vectors[5]], [vectors[0], *differences, vectors[5]]
    return [_combination(matrix[r, [0, 1, 3, 5]], odd if r % 2 else even) for r in range(len(matrix))]


def _has_pairs(matrix: Matrix) -> bool:
    signs = (-1.0) ** np.arange(matrix.shape[1])
    return len(matrix) == _SIDE and all(np.array_equal(matrix[r + 1], matrix[r] * signs) for r in (1, 3))


def _transformed(builder: Any, matrix: Matrix, of: _Grid) -> list[list[Lanes]]:
    """M X Mᵀ for the vectors X_yx of a grid."""
    side = range(matrix.shape[1])
    # First M times each column of X, then the rows of that times Mᵀ.
    halves = [_image_of(matrix, [Lanes.load(builder, of(y, x), F32, 0, BLOCK) for y in side]) for x in side]
    return [_image_of(matrix, [half[i] for half in halves]) for i in range(matrix.shape[0])]


def _grid(builder: Any, base: Any, first: Any, down: Any, across: Any) -> _Grid:
    def at(y: int, x: int) -> Any:
        offset = builder.add(builder.mul(down, down.type(y)), builder.mul(across, across.type(x)))
        return builder.gep(base, [builder.add(first, offset)])

    return at


def _writing(matrix: Matrix, *, add: bool = False) -> Any:
    """An intrinsic: to[place + i·to_row + j·to_step...] = (or +=) (M X Mᵀ)_ij, X_yx being of[at + y·row + x·step...].

    For 16 channels, which are next to one another.
    """

    def write(builder, to, place, to_row, to_step, of, at, row, step):
        target = _grid(builder, to, place, to_row, to_step)
        for i, values in enumerate(_transformed(builder, matrix, _grid(builder, of, at, row, step))):
            for j, value in enumerate(values):
                out = target(i, j)
                (Lanes.load(builder, out, F32, 0, BLOCK) + value if add else value).store(out, 0)

    return on_rows(write)


def _finishing(matrix: Matrix) -> Any:
    """The same, but that max(biases[bias...] + (M X Mᵀ)_ij, floor) is written."""

    def write(builder, to, place, to_row, to_step, of, at, row, step, biases, bias, floor):
        target = _grid(builder, to, place, to_row, to_step)
        own = Lanes.load(builder, builder.gep(biases, [bias]), F32, 0, BLOCK)
        for i, values in enumerate(_transformed(builder, matrix, _grid(builder, of, at, row, step))):
            for j, value in enumerate(values):
                (value + own).at_least(floor).store(target(i, j), 0)

    return on_rows(write)


(_BACK_3, _G_3, _B), (_BACK_5, _G_5, _) = (matrices(kernel) for kernel in _KERNELS)
_to_values, _from_values = _writing(_B), _writing(_B.T, add=True)
_to_pixels_3, _to_pixels_5 = _finishing(_BACK_3), _finishing(_BACK_5)
_to_slopes_3, _to_slopes_5 = _writing(_BACK_3.T), _writing(_BACK_5.T)
_to_weights_3, _to_weights_5, _from_weights_3, _from_weights_5 = map(_writing, (_G_3, _G_5, _G_3.T, _G_5.T))


# Weights ---------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _spread(to, place, plane, point, at, kernel, lanes, apart, block):
    """to[place + v·plane...] = (G g Gᵀ)_v of ``lanes`` kernels ``apart`` in x, and 0 in the lanes that are left."""
    # Weight n of 16 kernels side by side: one transform then takes all 16.
    for n in range(kernel * kernel):
        for lane in range(BLOCK):
            block[n * BLOCK + lane] = point[at + lane * apart + n] if lane < lanes else np.float32(0)
    if kernel == 3:
        _to_weights_3(to, place, _SIDE * plane, plane, block, 0, kernel * BLOCK, BLOCK)
    else:
        _to_weights_5(to, place, _SIDE * plane, plane, block, 0, kernel * BLOCK, BLOCK)


@njit(cache=True, nogil=True)
def _in_panel(place, rows, row, columns, column):
    """The place of (row, column) among (block, row, ``panel`` columns)."""
    width = panel(columns)
    return place + (column // width * rows + row) * width + column % width


@njit(cache=True, nogil=True)
def spread_weights(packed, point, weights):
    """packed[v, input, output] = (G g Gᵀ)_v of every kernel g of a table's convolutions, in panels of outputs."""
    block = np.empty(_MOST * BLOCK, dtype=np.float32)
    for n in range(weights.shape[0]):
        of = weights[n]
        wide, deep, own = of.wide, of.deep, of.side * of.side
        for c in range(of.inputs):
            for o in range(0, of.outputs, BLOCK):
                # Lanes are outputs here: their kernels are inputs · k² apart in x. A plane has the values v of all
                # kernels.
                to = _in_panel(of.packed, deep, c, wide, o)
                at, lanes = of.start + (o * of.inputs + c) * own, min(BLOCK, of.outputs - o)
                _spread(packed, to, deep * wide, point, at, of.side, lanes, of.inputs * own, block)


@njit(cache=True, nogil=True)
def spread_turned(turned, point, weights):
    """turned[v, output, input], likewise in panels of inputs, where slopes by the inputs are wanted."""
    block = np.empty(_MOST * BLOCK, dtype=np.float32)
    for n in range(weights.shape[0]):
        of = weights[n]
        wide, deep, own = of.wide, of.deep, of.side * of.side
        if of.turned < 0:
            continue
        for o in range(of.outputs):
            for c in range(0, of.inputs, BLOCK):
                # Lanes are inputs here: their kernels follow one another in x.
                to = _in_panel(of.turned, wide, o, deep, c)
                at, lanes = of.start + (o * of.inputs + c) * own, min(BLOCK, of.inputs - c)
                _spread(turned, to, deep * wide, point, at, of.side, lanes, own, block)


@njit(cache=True, nogil=True)
def gather_weights(gradient, sums, weights):
    """Adds to the gradient by every kernel Gᵀ S G of the sums S over tiles that ``slopes_back`` has made."""
    block = np.empty(_MOST * BLOCK, dtype=np.float32)
    for n in range(weights.shape[0]):
        of = weights[n]
        kernel, plane = of.side, of.deep * of.wide
        own = kernel * kernel
        for c in range(of.inputs):
            for o in range(0, of.outputs, BLOCK):
                sum_ = _in_panel(of.packed, of.deep, c, of.wide, o)
                if kernel == 3:
                    _from_weights_3(block, 0, kernel * BLOCK, BLOCK, sums, sum_, _SIDE * plane, plane)
                else:
                    _from_weights_5(block, 0, kernel * BLOCK, BLOCK, sums, sum_, _SIDE * plane, plane)
                # The block has each weight of 16 kernels side by side, and x has one kernel after another.
                for lane in range(min(BLOCK, of.outputs - o)):
                    at = of.start + ((o + lane) * of.inputs + c) * own
                    for i in range(own):
                        gradient[at + i] += block[i * BLOCK + lane]


# Images ----------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _spread_image(values, maps, src, row, inputs, m, down, across):
    """values[v, tile, input] = (Bᵀ D B)_v of every tile."""
    plane = down * across * inputs
    for a in range(down):
        for b in range(across):
            # Tiles of pixels are 6 a side and begin m apart, so neighbours share k − 1 rows or columns.
            at, place = src + a * m * row + b * m * inputs, (a * across + b) * inputs
            for c in range(0, inputs, BLOCK):
                _to_values(values, place + c, _SIDE * plane, plane, maps, at + c, row, inputs)


@njit(cache=True, nogil=True)
def convolve(maps, stage, values, packed):
    """The convolution of one image, with biases and, where the stage says so, zero as the least."""
    m, down, across, inputs, outputs = stage.m, stage.down, stage.across, stage.inputs, stage.outputs
    floor = np.float32(0) if stage.relu else np.float32(-np.inf)
    # ``values`` holds 36 planes (tile, input) of Bᵀ D B and then, from ``found`` on, 36 planes (tile, output) of their
    # products with the weights' values: for each v one product of matrices sums over the inputs.
    tiles = down * across
    spread, found, plane = tiles * inputs, VALUES * tiles * inputs, tiles * outputs
    _spread_image(values, maps, stage.src, stage.src_row, inputs, m, down, across)
    for v in range(VALUES):
        left, right = v * spread, stage.weights + v * inputs * outputs
        multiply(values, found + v * plane, tiles, outputs, values, left, packed, right, inputs)
    for a in range(down):
        for b in range(across):
            # Aᵀ [...] A of a tile: the 36 values are a plane apart, and give m × m pixels with bias and ReLU.
            at = found + (a * across + b) * outputs
            place = stage.dst + a * m * stage.dst_row + b * m * outputs
            for c in range(0, outputs, BLOCK):
                to, of, bias = place + c, at + c, stage.biases + c
                if m == 4:
                    _to_pixels_3(
                        maps, to, stage.dst_row, outputs, values, of, _SIDE * plane, plane, packed, bias, floor
                    )
                else:
                    _to_pixels_5(
                        maps, to, stage.dst_row, outputs, values, of, _SIDE * plane, plane, packed, bias, floor
                    )


@njit(cache=True, nogil=True)
def slopes_back(sums, maps, slopes, stage, values, turned):
    """Adds to the sums over tiles of one image, and writes slopes by the convolution's inputs if they are wanted."""
    m, down, across, inputs, outputs = stage.m, stage.down, stage.across, stage.inputs, stage.outputs
    # The values Bᵀ D B are made again, since only the images are kept. Behind them come those of the slopes, A S Aᵀ.
    tiles = down * across
    spread, found, plane = tiles * inputs, VALUES * tiles * inputs, tiles * outputs
    _spread_image(values, maps, stage.src, stage.src_row, inputs, m, down, across)
    for a in range(down):
        for b in range(across):
            at = stage.of + a * m * stage.of_row + b * m * outputs
            place = found + (a * across + b) * outputs
            for c in range(0, outputs, BLOCK):
                if m == 4:
                    _to_slopes_3(values, place + c, _SIDE * plane, plane, slopes, at + c, stage.of_row, outputs)
                else:
                    _to_slopes_5(values, place + c, _SIDE * plane, plane, slopes, at + c, stage.of_row, outputs)
    for v in range(VALUES):
        # sums[v, input, output] += Σ_tiles (Bᵀ D B)_v (A S Aᵀ)_v; ``gather_weights`` makes slopes of them after the
        # last image.
        own, left = stage.weights + v * inputs * outputs, v * spread
        add_product(sums, own, inputs, outputs, values, left, values, found + v * plane, tiles)
    if stage.turned < 0:
        return
    for v in range(VALUES):
        # (G g Gᵀ) ⊙ (A S Aᵀ), summed over outputs, takes the memory of Bᵀ D B, which is done with.
        left, right = found + v * plane, stage.turned + v * inputs * outputs
        multiply(values, v * spread, tiles, inputs, values, left, turned, right, outputs)
    # Tiles overlap, and a pixel's slope is the sum over the tiles that see it. They are added up in an image of its
    # own, with the border that the convolution saw.
    seen = found + VALUES * plane
    high, wide = m * (down - 1) + _SIDE, (m * (across - 1) + _SIDE) * inputs
    values[seen : seen + high * wide] = np.float32(0)
    for a in range(down):
        for b in range(across):
            place, at = seen + a * m * wide + b * m * inputs, (a * across + b) * inputs
            for c in range(0, inputs, BLOCK):
                _from_values(values, place + c, wide, inputs, values, at + c, _SIDE * spread, spread)
    # Without the border they go to where the layer before expects them.
    pad = stage.pad
    for y in range(high - 2 * pad):
        for x in range(wide // inputs - 2 * pad):
            place = stage.dst + y * stage.dst_row + x * stage.dst_step
            at = seen + (y + pad) * wide + (x + pad) * inputs
            for c in range(inputs):
                slopes[place + c] = values[at + c]
