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


def _transformed(builder: Any, matrix: Matrix, grid: _Grid) -> list[list[Lanes]]:
    """M X Mᵀ for the vectors X_yx of a grid."""
    side = range(matrix.shape[1])
    # First M times each column of X, then the rows of that times Mᵀ.
    halves = [_image_of(matrix, [Lanes.load(builder, grid(y, x), F32, 0, BLOCK) for y in side]) for x in side]
    return [_image_of(matrix, [half[i] for half in halves]) for i in range(matrix.shape[0])]


def _grid(builder: Any, array: Any, corner: Any, down: Any, across: Any) -> _Grid:
    def pointer(y: int, x: int) -> Any:
        offset = builder.add(builder.mul(down, down.type(y)), builder.mul(across, across.type(x)))
        return builder.gep(array, [builder.add(corner, offset)])

    return pointer


def _writing(matrix: Matrix, *, add: bool = False) -> Any:
    """An intrinsic: to[to_at + i·to_row + j·to_step] = (or +=) (M X Mᵀ)_ij for 16 channels at each of these places.

    X_yx is src[src_at + y·src_row + x·src_step]; ``to`` and ``src`` are flat float32, channels next to one another.
    """

    def write(builder, to, to_at, to_row, to_step, src, src_at, src_row, src_step):
        target = _grid(builder, to, to_at, to_row, to_step)
        for i, values in enumerate(_transformed(builder, matrix, _grid(builder, src, src_at, src_row, src_step))):
            for j, value in enumerate(values):
                out = target(i, j)
                (Lanes.load(builder, out, F32, 0, BLOCK) + value if add else value).store(out, 0)

    return on_rows(write)


def _finishing(matrix: Matrix) -> Any:
    """The same, but that max(biases[biases_at] + (M X Mᵀ)_ij, floor) is written."""

    def write(builder, to, to_at, to_row, to_step, src, src_at, src_row, src_step, biases, biases_at, floor):
        target = _grid(builder, to, to_at, to_row, to_step)
        bias_lanes = Lanes.load(builder, builder.gep(biases, [biases_at]), F32, 0, BLOCK)
        for i, values in enumerate(_transformed(builder, matrix, _grid(builder, src, src_at, src_row, src_step))):
            for j, value in enumerate(values):
                (value + bias_lanes).at_least(floor).store(target(i, j), 0)

    return on_rows(write)


(_BACK_3, _G_3, _B), (_BACK_5, _G_5, _) = (matrices(kernel) for kernel in _KERNELS)
_to_values, _from_values = _writing(_B), _writing(_B.T, add=True)
_to_pixels_3, _to_pixels_5 = _finishing(_BACK_3), _finishing(_BACK_5)
_to_slopes_3, _to_slopes_5 = _writing(_BACK_3.T), _writing(_BACK_5.T)
_to_weights_3, _to_weights_5, _from_weights_3, _from_weights_5 = map(_writing, (_G_3, _G_5, _G_3.T, _G_5.T))


# Weights ---------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _spread(values, values_at, plane, point, kernels_at, k, lanes, kernels_step, block):
    """values[values_at + v·plane + lane] = (G g Gᵀ)_v of ``lanes`` kernels g (k × k); 0 in the other lanes of 16.

    Kernel ``lane`` is in x, the ``point`` (d,), at kernels_at + lane·kernels_step; ``block`` is scratch.
    """
    # Weight n of 16 kernels side by side: one transform then takes all 16.
    for n in range(k * k):
        for lane in range(BLOCK):
            block[n * BLOCK + lane] = point[kernels_at + lane * kernels_step + n] if lane < lanes else np.float32(0)
    if k == 3:
        _to_weights_3(values, values_at, _SIDE * plane, plane, block, 0, k * BLOCK, BLOCK)
    else:
        _to_weights_5(values, values_at, _SIDE * plane, plane, block, 0, k * BLOCK, BLOCK)


@njit(cache=True, nogil=True)
def _in_panel(first, rows, row, columns, column):
    """The place of (row, column) among (block, row, ``panel`` columns)."""
    width = panel(columns)
    return first + (column // width * rows + row) * width + column % width


@njit(cache=True, nogil=True)
def spread_weights(packed, point, weights):
    """packed[v, input, output] = (G g Gᵀ)_v of every kernel g of a table's convolutions, in panels of outputs.

    ``packed`` and ``point`` (d,) are float32, ``weights`` the table: a record ``cnn.KERNELS`` for each convolution.
    """
    block = np.empty(_MOST * BLOCK, dtype=np.float32)
    for n in range(weights.shape[0]):
        conv = weights[n]
        wide, deep, k2 = conv.wide, conv.deep, conv.side * conv.side
        for c in range(conv.inputs):
            for o in range(0, conv.outputs, BLOCK):
                # Lanes are outputs here: their kernels are inputs · k² apart in x. A plane has the values v of all
                # kernels.
                values_at = _in_panel(conv.packed, deep, c, wide, o)
                kernels_at, lanes = conv.start + (o * conv.inputs + c) * k2, min(BLOCK, conv.outputs - o)
                _spread(packed, values_at, deep * wide, point, kernels_at, conv.side, lanes, conv.inputs * k2, block)


@njit(cache=True, nogil=True)
def spread_turned(turned, point, weights):
    """turned[v, output, input], likewise in panels of inputs, where slopes by the inputs are wanted."""
    block = np.empty(_MOST * BLOCK, dtype=np.float32)
    for n in range(weights.shape[0]):
        conv = weights[n]
        wide, deep, k2 = conv.wide, conv.deep, conv.side * conv.side
        if conv.turned < 0:
            continue
        for o in range(conv.outputs):
            for c in range(0, conv.inputs, BLOCK):
                # Lanes are inputs here: their kernels follow one another in x.
                values_at = _in_panel(conv.turned, wide, o, deep, c)
                kernels_at, lanes = conv.start + (o * conv.inputs + c) * k2, min(BLOCK, conv.inputs - c)
                _spread(turned, values_at, deep * wide, point, kernels_at, conv.side, lanes, k2, block)


@njit(cache=True, nogil=True)
def gather_weights(gradient, sums, weights):
    """Adds to the gradient (d,) by every kernel Gᵀ S G of the sums S[v, input, output] that ``slopes_back`` made."""
    block = np.empty(_MOST * BLOCK, dtype=np.float32)
    for n in range(weights.shape[0]):
        conv = weights[n]
        k, plane = conv.side, conv.deep * conv.wide
        for c in range(conv.inputs):
            for o in range(0, conv.outputs, BLOCK):
                sums_at = _in_panel(conv.packed, conv.deep, c, conv.wide, o)
                if k == 3:
                    _from_weights_3(block, 0, k * BLOCK, BLOCK, sums, sums_at, _SIDE * plane, plane)
                else:
                    _from_weights_5(block, 0, k * BLOCK, BLOCK, sums, sums_at, _SIDE * plane, plane)
                # The block has each weight of 16 kernels side by side, and x has one kernel after another.
                for lane in range(min(BLOCK, conv.outputs - o)):
                    weights_at = conv.start + ((o + lane) * conv.inputs + c) * k * k
                    for i in range(k * k):
                        gradient[weights_at + i] += block[i * BLOCK + lane]


# Images ----------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _spread_image(values, maps, image_at, row, inputs, m, down, across):
    """values[v, tile, input] = (Bᵀ D B)_v of the ``down`` × ``across`` tiles of the image at maps[image_at]."""
    plane = down * across * inputs
    for a in range(down):
        for b in range(across):
            # Tiles of pixels are 6 a side and begin m apart, so neighbours share k − 1 rows or columns.
            pixels_at, values_at = image_at + a * m * row + b * m * inputs, (a * across + b) * inputs
            for c in range(0, inputs, BLOCK):
                _to_values(values, values_at + c, _SIDE * plane, plane, maps, pixels_at + c, row, inputs)


@njit(cache=True, nogil=True)
def convolve(maps, stage, values, packed):
    """The convolution of one image in ``maps``, with biases and, where the stage says so, zero as the least.

    ``stage`` is a record ``cnn.STAGE``; ``maps``, ``values`` and ``packed`` are a thread's ``cnn.Workspace``.
    """
    m, down, across, inputs, outputs = stage.m, stage.down, stage.across, stage.inputs, stage.outputs
    floor = np.float32(0) if stage.relu else np.float32(-np.inf)
    # ``values`` holds 36 planes (tile, input) of Bᵀ D B and then, from ``products`` on, 36 planes (tile, output) of
    # their products with the weights' values: for each v one product of matrices sums over the inputs.
    tiles = down * across
    spread, products, plane = tiles * inputs, VALUES * tiles * inputs, tiles * outputs
    _spread_image(values, maps, stage.src, stage.src_row, inputs, m, down, across)
    for v in range(VALUES):
        left, right = v * spread, stage.weights + v * inputs * outputs
        multiply(values, products + v * plane, tiles, outputs, values, left, packed, right, inputs)
    for a in range(down):
        for b in range(across):
            # Aᵀ [...] A of a tile: the 36 values are a plane apart, and give m × m pixels with bias and ReLU.
            tile_at = products + (a * across + b) * outputs
            row = stage.dst_row
            corner = stage.dst + a * m * row + b * m * outputs
            for c in range(0, outputs, BLOCK):
                to, src, bias = corner + c, tile_at + c, stage.biases + c
                if m == 4:
                    _to_pixels_3(maps, to, row, outputs, values, src, _SIDE * plane, plane, packed, bias, floor)
                else:
                    _to_pixels_5(maps, to, row, outputs, values, src, _SIDE * plane, plane, packed, bias, floor)


@njit(cache=True, nogil=True)
def slopes_back(sums, maps, slopes, stage, values, turned):
    """Adds to the sums over tiles of one image, and writes slopes by the convolution's inputs if they are wanted."""
    m, down, across, inputs, outputs = stage.m, stage.down, stage.across, stage.inputs, stage.outputs
    # The values Bᵀ D B are made again, since only the images are kept. From ``products`` on there are those of the
    # slopes, A S Aᵀ.
    tiles = down * across
    spread, products, plane = tiles * inputs, VALUES * tiles * inputs, tiles * outputs
    _spread_image(values, maps, stage.src, stage.src_row, inputs, m, down, across)
    for a in range(down):
        for b in range(across):
            corner = stage.slopes + a * m * stage.slopes_row + b * m * outputs
            tile_at, row = products + (a * across + b) * outputs, stage.slopes_row
            for c in range(0, outputs, BLOCK):
                if m == 4:
                    _to_slopes_3(values, tile_at + c, _SIDE * plane, plane, slopes, corner + c, row, outputs)
                else:
                    _to_slopes_5(values, tile_at + c, _SIDE * plane, plane, slopes, corner + c, row, outputs)
    for v in range(VALUES):
        # sums[v, input, output] += Σ_tiles (Bᵀ D B)_v (A S Aᵀ)_v; ``gather_weights`` makes slopes of them after the
        # last image.
        sums_at, left = stage.weights + v * inputs * outputs, v * spread
        add_product(sums, sums_at, inputs, outputs, values, left, values, products + v * plane, tiles)
    if stage.turned < 0:
        return
    for v in range(VALUES):
        # (G g Gᵀ) ⊙ (A S Aᵀ), summed over outputs, takes the memory of Bᵀ D B, which is done with.
        left, right = products + v * plane, stage.turned + v * inputs * outputs
        multiply(values, v * spread, tiles, inputs, values, left, turned, right, outputs)
    # Tiles overlap, and a pixel's slope is the sum over the tiles that see it. They are added up in an image of its
    # own, with the border that the convolution saw.
    image = products + VALUES * plane
    high, wide = m * (down - 1) + _SIDE, (m * (across - 1) + _SIDE) * inputs
    values[image : image + high * wide] = np.float32(0)
    for a in range(down):
        for b in range(across):
            corner, tile_at = image + a * m * wide + b * m * inputs, (a * across + b) * inputs
            for c in range(0, inputs, BLOCK):
                _from_values(values, corner + c, wide, inputs, values, tile_at + c, _SIDE * spread, spread)
    # Without the border they go to where the layer before expects them.
    pad = stage.pad
    for y in range(high - 2 * pad):
        for x in range(wide // inputs - 2 * pad):
            to = stage.dst + y * stage.dst_row + x * stage.dst_step
            pixel = image + (y + pad) * wide + (x + pad) * inputs
            for c in range(inputs):
                slopes[to + c] = values[pixel + c]
