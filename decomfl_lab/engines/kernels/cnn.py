"""Forward and backward pass of small sequential nets as one numba kernel: no framework, no temporaries, one core.

Images go through the convolutions one at a time in channels-last order, so that everything between two layers
stays in the second-level cache. All products are made in tiles of vector registers (``tiles``), fused with their sums,
so losses and gradients differ from torch's by float32 rounding, but not with the number of threads: an image's loss is
a function of x and the image alone, losses are summed in float64 in the order of the batch, and gradients are sums of
parts of ``PART`` images, each in the order of its images.

The gradient of a convolution by its input is a convolution of the slopes by its output with the weights turned
around, and goes through the same code; the gradient by its weights is a product of the two maps.

``engine.Fused`` calls ``Network``. In a kernel ``point`` is x, float32 (d,), a ``stage`` is a record ``STAGE``, and
other arrays are flat float32: ``src`` and ``dst`` are places in one, steps are in numbers.
"""

# mypy: disable-error-code="no-untyped-call,misc,untyped-decorator,no-any-return,no-untyped-def"
import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decomfl_lab.engines.kernels.tiles import (
    BLOCK,
    DOTS,
    PIXELS,
    WIDE,
    add_products,
    dots_block,
    dots_column,
    dots_one,
    largest,
    mask,
    panel,
    route,
    tile,
    wide_tile,
)
from decomfl_lab.engines.kernels.winograd import (
    VALUES,
    convolve,
    gather_weights,
    scratch,
    slopes_back,
    spread_turned,
    spread_weights,
    tile_size,
)
from decomfl_lab.errors import InputError, require
from decomfl_lab.layout import Layout
from decomfl_lab.noise.kernel_cache import njit

CHUNK = 32
"""Images whose features are kept at once for the linear layers."""

PART = 128
"""Images whose gradient is summed in float32, by one thread; the parts of a batch are added in float64."""

_IMAGES, _OUTPUTS = DOTS
_DOT = 8
_DEPTH = 512
"""Features of a linear layer taken at once, so that the weights of 3 outputs stay in the first-level cache."""


# The kinds of stages.
_CONV, _POOL, _FLATTEN, _LINEAR, _ROUTE, _MASK, _WEIGHTS, _SCATTER, _VALUES, _VALUES_BACK = range(10)
_NUMBERS = [
    "kind",
    # What is read, what is written, and the slopes that are read on the way back: the place of the first number, and
    # the steps from one row, and from one pixel or image, to the next.
    *("src", "src_row", "src_step", "dst", "dst_row", "dst_step", "slopes", "slopes_row", "slopes_step"),
    # Counts: pixels of a map, its channels, inputs and outputs of a layer; and whether a ReLU follows or precedes.
    *("height", "width", "channels", "inputs", "outputs", "relu"),
    # The places of weights and biases: in x for a linear layer, else among the packed numbers.
    *("weights", "biases"),
    # Pools: pixels a side, and the map of what they gave.
    *("size", "top", "top_row"),
    # Tiles of a convolution: rows of its kernel, numbers in each, blocks of ``lanes`` outputs, and where the pairs of
    # places begin, with their number.
    *("rows", "run", "blocks", "lanes", "first", "count"),
    # Convolutions through values: pixels a side of a tile, tiles down and across; for slopes the place of the turned
    # weights (−1: nobody wants slopes by the inputs) and the border.
    *("m", "down", "across", "turned", "pad"),
]
STAGE = np.dtype([(name, np.int64) for name in _NUMBERS])
"""A stage of the kernel: its kind, and the numbers that this kind reads; the others are 0."""
# Where the weights are in x, a side of a kernel, its outputs and inputs, where its 36 values go among the packed and
# the turned numbers (−1: to none), and the outputs and inputs with whole blocks.
_KERNEL_NUMBERS = ["start", "side", "outputs", "inputs", "packed", "turned", "wide", "deep"]
KERNELS = np.dtype([(name, np.int64) for name in _KERNEL_NUMBERS])
"""The weights of a convolution through values (``winograd``)."""
_ANY = np.float32(-np.inf)
"""Floor of a tile that has none."""
# A bias is the weight of an input that is always 1: this one, at offset 0.
_ONE = np.ones(1, dtype=np.float32)
_HERE = np.zeros(1, dtype=np.int64)
inner = njit(cache=True, nogil=True, inline="always")
"""For steps of a pass: they are compiled inside of it alone, in two thirds of the time, and the bits are the same."""


# Forward ---------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _pool(maps, stage):
    channels = stage.channels  # with those that fill up whole blocks
    for y in range(stage.height):
        for x in range(stage.width):
            corner = stage.src + y * stage.size * stage.src_row + x * stage.size * channels
            out = stage.dst + y * stage.dst_row + x * channels
            for c in range(0, channels, BLOCK):
                largest(maps, corner + c, stage.size, stage.src_row, channels, out + c)


@njit(cache=True, nogil=True)
def _linear(work, point, stage, images):
    """The outputs of a linear layer for so many images, whose inputs lie in ``work`` too."""
    src, step, features = stage.src, stage.src_step, stage.inputs
    dst, to_step, outputs = stage.dst, stage.dst_step, stage.outputs
    w, bias = stage.weights, stage.biases
    # The sums grow where the outputs lie, part after part of the features. So they begin at the biases.
    for i in range(images):
        for o in range(outputs):
            work[dst + i * to_step + o] = point[bias + o] if bias >= 0 else np.float32(0)
    # The sums of 4 images × 3 outputs are kept in registers. What is left over goes one output, or one image, at a
    # time. All three kinds of block add the terms of a sum in one order, so its bits do not depend on the other images.
    whole_images, whole_outputs = images - images % _IMAGES, outputs - outputs % _OUTPUTS
    for first in range(0, features, _DEPTH):
        vectors = min(_DEPTH, features - first) // _DOT
        a, b = src + first, w + first
        for o in range(0, whole_outputs, _OUTPUTS):
            for i in range(0, whole_images, _IMAGES):
                out = dst + i * to_step + o
                dots_block(work, a + i * step, step, point, b + o * features, features, vectors, out, to_step)
        for o in range(whole_outputs, outputs):
            for i in range(0, whole_images, _IMAGES):
                out = dst + i * to_step + o
                dots_column(work, a + i * step, step, point, b + o * features, features, vectors, out, to_step)
        for i in range(whole_images, images):
            for o in range(outputs):
                out = dst + i * to_step + o
                dots_one(work, a + i * step, step, point, b + o * features, features, vectors, out, to_step)
    # The last features, fewer than 8, one by one; then the ReLU. A NaN is not below 0 and stays.
    rest = features - features % _DOT
    for i in range(images):
        for o in range(outputs):
            total = work[dst + i * to_step + o]
            for j in range(rest, features):
                total += work[src + i * step + j] * point[w + o * features + j]
            work[dst + i * to_step + o] = np.float32(0) if stage.relu and total < 0 else total


@njit(cache=True, nogil=True)
def _pack(packed, point, order):
    """packed[n] = point[order[n]], or 0 where order[n], int64, is −1."""
    for n in range(order.size):
        packed[n] = point[order[n]] if order[n] >= 0 else np.float32(0)


@njit(cache=True, nogil=True)
def _convolve(maps, stage, src_offsets, dst_offsets, packed):
    """A convolution; pixel n is read from src + src_offsets[n] on, and written at dst + dst_offsets[n]."""
    src, row, rows, run = stage.src, stage.src_row, stage.rows, stage.run
    floor = np.float32(0) if stage.relu else _ANY
    for block in range(stage.blocks):
        # Packed weights are (block, row of the kernel, number in that row, output of the block).
        w = stage.weights + block * rows * run * stage.lanes
        b = stage.biases + block * stage.lanes
        dst = stage.dst + block * stage.lanes
        for n in range(0, stage.count, PIXELS):
            # The last tile begins early enough to be whole: it writes some pixels again, with the same bits.
            first = stage.first + min(n, stage.count - PIXELS)
            if stage.lanes == WIDE:
                wide_tile(maps, src, src_offsets, first, rows, row, run, packed, w, b, dst, dst_offsets, floor)
            else:
                tile(maps, src, src_offsets, first, rows, row, run, packed, w, b, dst, dst_offsets, floor)


@inner
def _image(maps, features, stages, src_offsets, dst_offsets, packed, values, n):
    """The stages of one image, up to its features, which are those of image n."""
    for s in range(stages.shape[0]):
        stage = stages[s]
        if stage.kind == _CONV:
            _convolve(maps, stage, src_offsets, dst_offsets, packed)
        elif stage.kind == _VALUES:
            convolve(maps, stage, values, packed)
        elif stage.kind == _POOL:
            _pool(maps, stage)
        elif stage.kind == _FLATTEN:
            # torch flattens an image channel by channel, and here channels are innermost.
            out = stage.dst + n * stage.dst_step
            for c in range(stage.channels):
                for y in range(stage.height):
                    for x in range(stage.width):
                        pixel = stage.src + y * stage.src_row + x * stage.src_step
                        features[out + (c * stage.height + y) * stage.width + x] = maps[pixel + c]


@njit(cache=True, nogil=True)
def _exponentials(work, first, classes):
    """The largest t of the logits that begin at work[first], and Σ_c exp(logit c − t)."""
    top = np.float64(work[first])
    for c in range(classes):
        top = max(top, np.float64(work[first + c]))
    total = 0.0
    for c in range(classes):
        total += math.exp(np.float64(work[first + c]) - top)
    return top, total


@njit(cache=True, nogil=True)
def cross_entropy_of(work, first, classes, target):
    """−log softmax of the logits that begin at work[first], at the target."""
    top, total = _exponentials(work, first, classes)
    return math.log(total) + top - np.float64(work[first + target])


@inner
def _chunk(out, point, images, targets, map_size, shape, tables, memory):
    """out[i] = cross entropy of image i, of at most ``CHUNK``; ``map_size`` numbers of ``maps`` are an image's own.

    ``images`` is float32 (n, numbers of an image), ``targets`` int64 (n,), ``out`` float64 (n,); the tuples are
    ``Network``'s.
    """
    # ``width`` counts numbers, not pixels: an image comes as (row, pixel × channel).
    height, width, row, first, logits, classes = shape
    stages, linear, src_offsets, dst_offsets, _ = tables
    maps, features, packed, values = memory
    for i in range(images.shape[0]):
        # Where no gradient follows, ``map_size`` is 0: all images use the same memory in turn, which stays in the
        # cache. The border of zeros around an image is never written, so only its inside is copied.
        image = maps[i * map_size :]
        for y in range(height):
            for x in range(width):
                image[first + y * row + x] = images[i, y * width + x]
        _image(image, features, stages, src_offsets, dst_offsets, packed, values, i)
    for s in range(linear.shape[0]):
        _linear(features, point, linear[s], images.shape[0])
    for i in range(images.shape[0]):
        out[i] = cross_entropy_of(features, logits + i * classes, classes, targets[i])


@njit(cache=True, nogil=True)
def _losses(out, point, images, targets, order, shape, tables, memory):
    """out[i] = cross entropy of image i; see ``Network``."""
    # The weights are the same for all images: they are put in the order of the tiles once.
    packed = memory[2]
    _pack(packed, point, order)
    spread_weights(packed, point, tables[4])
    for a in range(0, images.shape[0], CHUNK):
        b = min(a + CHUNK, images.shape[0])
        _chunk(out[a:b], point, images[a:b], targets[a:b], 0, shape, tables, memory)


# Backward --------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _softmax_slopes(slopes, logits, first, classes, target):
    """slopes[first + c] = ∂(−log softmax at the target)/∂logit c = softmax_c − [c is the target]."""
    top, total = _exponentials(logits, first, classes)
    for c in range(classes):
        slopes[first + c] = math.exp(np.float64(logits[first + c]) - top) / total
    slopes[first + target] -= np.float32(1)


@njit(cache=True, nogil=True)
def _add_rows(to, a, a_first, a_rows, a_step, b, b_first, b_step, terms, whole):
    """to[r, j] += Σ_n a[r, n] b[n, j] for j below ``whole``, tile by tile; ``to`` is (array, first, row offsets).

    a[r, n] is a[a_first + a_rows[r] + n·a_step], b[n, j] is b[b_first + n·b_step + j]; n < terms.
    Rows of b may be a power of two apart, and then have few places in a cache: some columns at a time are copied.
    """
    array, first, rows = to
    # Rows of the copy are 528 numbers apart, which is no power of two.
    columns = np.empty((terms, _DEPTH + BLOCK), dtype=np.float32)
    for start in range(0, whole, _DEPTH):
        count, j = min(_DEPTH, whole - start), 0
        for n in range(terms):
            row = b_first + n * b_step + start
            for c in range(count):  # not a slice, whose check of shapes takes seconds to compile
                columns[n, c] = b[row + c]
        copied = columns.reshape(-1)
        while j < count:
            wide = count - j >= WIDE
            out, steps = first + start + j, (0, columns.shape[1])
            add_products(array, out, rows, a, a_first, a_rows, (0, a_step), copied, j, steps, (1, terms), wide)
            j += WIDE if wide else BLOCK


@inner
def _linear_slopes(gradient, slopes, features, point, stage, images, inputs_too):
    """Adds to the gradient by weights and bias; writes the slopes by the inputs, if they are wanted."""
    src, step, count = stage.src, stage.src_step, stage.inputs
    dst, to_step, outputs = stage.dst, stage.dst_step, stage.outputs
    w, bias = stage.weights, stage.biases
    # Where the ReLU gave 0, nothing comes back. What is left is also the slope by the bias.
    for i in range(images):
        for o in range(outputs):
            out = dst + i * to_step + o
            if stage.relu and not features[out] > 0:
                slopes[out] = np.float32(0)
            if bias >= 0:
                gradient[bias + o] += slopes[out]
    image, output = np.arange(images), np.arange(outputs)
    whole = count - count % BLOCK
    by_weights = gradient, w, output * count
    by_inputs = slopes, src, image * step
    # ∂/∂W[o, j] = Σ_i slope[i, o] · input[i, j]: whole blocks of j in tiles, the last j one by one.
    _add_rows(by_weights, slopes, dst, output, to_step, features, src, step, images, whole)
    for o in range(outputs):
        for j in range(whole, count):
            total = np.float32(0)
            for i in range(images):
                total += slopes[dst + i * to_step + o] * features[src + i * step + j]
            gradient[w + o * count + j] += total
    if not inputs_too:
        return
    # ∂/∂input[i, j] = Σ_o slope[i, o] · W[o, j], likewise.
    slopes[src : src + images * step] = np.float32(0)
    _add_rows(by_inputs, slopes, dst, image * to_step, 1, point, w, count, outputs, whole)
    for i in range(images):
        for j in range(whole, count):
            for o in range(outputs):
                slopes[src + i * step + j] += slopes[dst + i * to_step + o] * point[w + o * count + j]


@inner
def _weight_slopes(sums, maps, slopes, stage, src_offsets, dst_offsets):
    """Adds to the gradient of one image by a convolution's packed weights and biases."""
    # ∂/∂weight[tap, output] = Σ_pixels input[pixel + tap] · slope[pixel, output]. This is a product: its rows are taps,
    # its columns a block of outputs, and its terms the pixels.
    taps, lanes = stage.count, stage.lanes
    src, dst = src_offsets[stage.first : stage.first + taps], dst_offsets[stage.first : stage.first + taps]
    map_steps, steps = (stage.src_row, stage.src_step), (stage.slopes_row, stage.slopes_step)
    terms = (stage.height, stage.width)
    for block in range(stage.blocks):
        slope, wide = stage.slopes + block * lanes, lanes == WIDE
        weights = stage.weights + block * taps * lanes
        add_products(sums, weights, dst, maps, stage.src, src, map_steps, slopes, slope, steps, terms, wide)
        bias = stage.biases + block * lanes
        add_products(sums, bias, _HERE, _ONE, 0, _HERE, (0, 0), slopes, slope, steps, terms, wide)


@inner
def _image_slopes(sums, maps, slopes, feature_slopes, back, src_offsets, dst_offsets, turned, values, n):
    """The stages of image n, from its features' slopes back."""
    for s in range(back.shape[0]):
        stage = back[s]
        if stage.kind == _CONV:
            _convolve(slopes, stage, src_offsets, dst_offsets, turned)
        elif stage.kind == _WEIGHTS:
            _weight_slopes(sums, maps, slopes, stage, src_offsets, dst_offsets)
        elif stage.kind == _VALUES_BACK:
            slopes_back(sums, maps, slopes, stage, values, turned)
        elif stage.kind == _ROUTE:
            channels, size, row = stage.channels, stage.size, stage.src_row
            down, across = stage.dst_row, stage.dst_step
            # Behind a ReLU a largest value of 0 passes nothing on: this is the mask of that ReLU too.
            floor = np.float32(0) if stage.relu else _ANY
            for y in range(stage.height):
                for x in range(stage.width):
                    corner = stage.src + y * size * row + x * size * channels
                    top = stage.top + y * stage.top_row + x * channels
                    slope = stage.slopes + y * stage.slopes_row + x * channels
                    dst = stage.dst + y * size * down + x * size * across
                    for c in range(0, channels, BLOCK):
                        src, most, of, to = corner + c, top + c, slope + c, dst + c
                        route(maps, src, size, row, channels, most, floor, slopes, of, to, down, across)
        elif stage.kind == _MASK:
            for y in range(stage.height):
                for x in range(stage.width):
                    src = stage.src + y * stage.src_row + x * stage.src_step
                    dst = stage.dst + y * stage.dst_row + x * stage.dst_step
                    for c in range(0, stage.src_step, BLOCK):
                        mask(slopes, dst + c, maps, src + c)
        elif stage.kind == _SCATTER:
            src = stage.src + n * stage.src_step
            for c in range(stage.channels):
                for y in range(stage.height):
                    for x in range(stage.width):
                        dst = stage.dst + y * stage.dst_row + x * stage.dst_step
                        slopes[dst + c] = feature_slopes[src + (c * stage.height + y) * stage.width + x]


@njit(cache=True, nogil=True)
def _gradient(out, gradient, point, images, targets, orders, map_size, shape, tables, back, memory, slopes_memory):
    """out[i] = cross entropy of image i, and gradient (d,) = the sum of its gradients; arguments as of ``_chunk``."""
    logits, classes = shape[4:]
    linear, src_offsets, dst_offsets, weights = tables[1:]
    maps, features, packed, values = memory
    slopes, feature_slopes, turned, sums = slopes_memory
    order, turned_order = orders
    _pack(packed, point, order)
    # ``turned`` has the weights of convolutions turned around, with which slopes go back.
    _pack(turned, point, turned_order)
    spread_weights(packed, point, weights)
    spread_turned(turned, point, weights)
    gradient[:] = np.float32(0)
    sums[:] = np.float32(0)
    for a in range(0, images.shape[0], CHUNK):
        b = min(a + CHUNK, images.shape[0])
        _chunk(out[a:b], point, images[a:b], targets[a:b], map_size, shape, tables, memory)
        for i in range(b - a):
            _softmax_slopes(feature_slopes, features, logits + i * classes, classes, targets[a + i])
        for s in range(linear.shape[0] - 1, -1, -1):
            # Below the first linear layer only convolutions want slopes, if there are any.
            inputs_too = s > 0 or back.shape[0] > 0
            _linear_slopes(gradient, feature_slopes, features, point, linear[s], b - a, inputs_too)
        for i in range(b - a):
            image = maps[i * map_size :]
            _image_slopes(sums, image, slopes, feature_slopes, back, src_offsets, dst_offsets, turned, values, i)
    # The sums lie in the order of the packed weights: each goes to its place in x. Those of a convolution through
    # values have none (−1): they are 36 a kernel, and ``gather_weights`` makes 9 or 25 slopes of them.
    for n in range(order.size):
        if order[n] >= 0:
            gradient[order[n]] += sums[n]
    gather_weights(gradient, sums, weights)


@njit(cache=True, nogil=True)
def mean_of_parts(mean, sums, n):
    """Writes into mean (d,) the sum of the rows of ``sums`` over n: one row in float32, several added up in float64."""
    if sums.shape[0] == 1:
        for j in range(mean.size):
            mean[j] = sums[0, j] / np.float32(n)
        return
    for j in range(mean.size):
        total = np.float64(sums[0, j])
        for i in range(1, sums.shape[0]):
            total += np.float64(sums[i, j])
        mean[j] = total / np.float64(n)


# Nets ------------------------------------------------------------------------------------------------------------


class Workspace(NamedTuple):
    """Memory of one thread."""

    maps: NDArray[np.float32]  # activations of an image (for gradients: of ``CHUNK`` images), borders zero
    features: NDArray[np.float32]  # the last layer's inputs for ``CHUNK`` images
    packed: NDArray[np.float32]  # weights in the order of the tiles
    values: NDArray[np.float32]  # what a convolution needs for a while (``winograd.scratch``)


class Slopes(NamedTuple):
    """Memory for the way back: slopes by an image's maps and by features, turned weights, and sums by packed ones."""

    maps: NDArray[np.float32]
    features: NDArray[np.float32]
    turned: NDArray[np.float32]
    sums: NDArray[np.float32]


@dataclass
class _Map:
    """An image's numbers: height × width pixels of ``stride`` numbers, ``row`` from one row to the next."""

    first: int  # place of pixel (0, 0), inside a border of zeros
    row: int
    height: int
    width: int
    channels: int
    stride: int
    apart: tuple[int, int] = (1, 1)  # rows and columns from one pixel to the next, with zeros between them

    @property
    def steps(self) -> tuple[int, int]:
        """Numbers from one pixel to the next, down and across."""
        return self.apart[0] * self.row, self.apart[1] * self.stride

    def named(self, name: str) -> dict[str, int]:
        """Where it begins and its steps, as numbers of a stage."""
        return {name: self.first, f"{name}_row": self.steps[0], f"{name}_step": self.steps[1]}

    def places(self) -> NDArray[np.int64]:
        """The places of all pixels, row by row, counted from pixel (0, 0); the last again until they fill a tile."""
        y, x = (grid.reshape(-1) for grid in np.mgrid[: self.height, : self.width])
        places = y * self.steps[0] + x * self.steps[1]
        return np.pad(places, (0, max(PIXELS - places.size, 0)), "edge")


class _Room:
    """Numbers laid out one after another in a thread's memory."""

    def __init__(self) -> None:
        self.size = 0

    def map(
        self, height: int, width: int, channels: int, stride: int, border: int, apart: tuple[int, int] = (1, 1)
    ) -> _Map:
        """Room for a map of pixels, ``border`` zeros around it, and ``apart`` − 1 (down, across) between neighbours.

        Slopes of a strided convolution are spread out so: its adjoint is then a plain convolution.
        """
        wide = (width - 1) * apart[1] + 1
        high = (height - 1) * apart[0] + 1
        row = (wide + 2 * border) * stride
        first = self.size + border * (row + stride)
        self.size += (high + 2 * border) * row
        return _Map(first, row, height, width, channels, stride, apart)

    def features(self, count: int) -> _Map:
        """Inputs or outputs of a linear layer: so many numbers for each image, one image after another."""
        first = self.size
        self.size += CHUNK * count
        return _Map(first, 0, 1, 1, count, count)


class _Columns:
    """Columns of a table for the kernel, to which rows are added; at last one row more, so that no table is empty.

    In the table of packed weights it is the place in x of each; −1 stands for no place, and the number is 0. In that of
    offsets it is where a row of a tile is read, and where it is written.
    """

    def __init__(self, *last: int) -> None:
        self._columns: list[list[NDArray[np.int64]]] = [[np.full(1, number)] for number in last]
        self._size = 0

    def add(self, *rows: NDArray[np.int64]) -> int:
        """Place of the first."""
        first = self._size
        for column, row in zip(self._columns, rows, strict=True):
            column.insert(-1, row.reshape(-1))
        self._size += rows[0].size
        return first

    def tables(self) -> tuple[NDArray[np.int64], ...]:
        return tuple(np.concatenate(column).astype(np.int64) for column in self._columns)


@dataclass
class _Conv:
    """A convolution from one map to another, and where its weights are."""

    layer: nn.Conv2d
    inputs: _Map
    outputs: _Map
    start: int  # of the weights in x
    weights: int  # in the packed numbers
    biases: int
    relu: bool
    tile: int  # output pixels a side of a tile, or 0

    @property
    def width(self) -> int:
        """Outputs of a block of packed weights."""
        return panel(self.outputs.stride)


@dataclass
class _Pool:
    size: int
    inputs: _Map
    outputs: _Map


def _require_layer(name: str, layer: nn.Module, holds: bool, rule: str) -> None:
    """InputError where a layer is none that the kernel has."""
    require(holds, f"layer {name!r}", f"{rule} for the fused engine", layer)


class Network:
    """A sequential net for images of one shape, as tables for the kernel.

    Conv2d, Linear, ReLU after either, MaxPool2d and Flatten, with mean cross-entropy as the loss.
    """

    def __init__(self, module: nn.Module, layout: Layout, in_shape: tuple[int, ...]) -> None:
        """Lay out the net; InputError if the net has a layer that the kernel lacks; the message names it."""
        if type(module) is not nn.Sequential:
            raise InputError(f"module must be a Sequential for the fused engine, got {type(module).__name__}")
        layers = list(module.named_children())
        require(len(layers) == len(module), "module", "hold each layer once for the fused engine", module)
        frozen = {name for name, _ in module.named_parameters()} - set(layout.names)
        require(not frozen, "parameters", "all be trainable for the fused engine", sorted(frozen))
        require(layout.dtype == torch.float32, "dtype", "be float32 for the fused engine", layout.dtype)
        # The place of each parameter in x. The last of the sums is d, to which no name belongs.
        starts = dict(zip(layout.names, np.cumsum([0, *layout.sizes]).tolist(), strict=False))
        self.d = layout.d
        self._maps = _Room()
        self._features = _Room()
        self._packing = _Columns(-1)
        self._offsets = _Columns(0, 0)
        self._in_order: list[_Conv | _Pool] = []
        stages: list[dict[str, int]] = []
        self._weights: list[dict[str, int]] = []  # of the convolutions through values: winograd.spread_weights
        self._scratch = 0
        linear: list[dict[str, int]] = []
        channels, height, width = in_shape if len(in_shape) == 3 else (1, 1, math.prod(in_shape))
        inputs = self._maps.map(height, width, channels, channels, _border(layers, 0))  # of the layer that is next
        shape = (inputs.height, inputs.width * inputs.stride, inputs.row, inputs.first)
        features: _Map | None = None
        flattened: _Map | None = None
        for n, (name, layer) in enumerate(layers):
            following = layers[n + 1][1] if n + 1 < len(layers) else None
            relu = type(following) is nn.ReLU
            needs = partial(_require_layer, name, layer)
            if type(layer) is nn.Conv2d:
                needs(features is None, "come before Flatten")
                border = _border(layers, n + 1)
                stage, inputs = self._convolution(name, layer, inputs, border, starts, relu=relu)
                stages.append(stage)
            elif type(layer) is nn.MaxPool2d:
                size = layer.kernel_size
                needs(features is None and bool(self._in_order), "come after Conv2d and before Flatten")
                plain = isinstance(size, int) and layer.stride == size and not layer.padding and layer.dilation == 1
                needs(plain and not layer.ceil_mode, "have square windows side by side")
                assert isinstance(size, int)
                h, w = inputs.height // size, inputs.width // size
                outputs = self._maps.map(h, w, inputs.channels, inputs.stride, _border(layers, n + 1))
                counts = {"channels": inputs.stride, "size": size, "height": h, "width": w}
                stages.append({"kind": _POOL, **inputs.named("src"), **outputs.named("dst"), **counts})
                self._in_order.append(_Pool(size, inputs, outputs))
                inputs = outputs
            elif type(layer) is nn.Flatten:
                needs(features is None and (layer.start_dim, layer.end_dim) == (1, -1), "be the only one, of all")
                features = self._features.features(inputs.channels * inputs.height * inputs.width)
                flattened = features
                counts = {"channels": inputs.channels, "height": inputs.height, "width": inputs.width}
                stages.append({"kind": _FLATTEN, **inputs.named("src"), **features.named("dst"), **counts})
            elif type(layer) is nn.Linear:
                needs(features is not None, "come after Flatten")
                assert features is not None
                to_features = self._features.features(layer.out_features)
                places = {"weights": starts[f"{name}.weight"], "biases": starts.get(f"{name}.bias", -1)}
                counts = {"inputs": features.channels, "outputs": to_features.channels, "relu": relu}
                linear.append(
                    {"kind": _LINEAR, **features.named("src"), **to_features.named("dst"), **places, **counts}
                )
                features = to_features
            else:
                after = n > 0 and type(layers[n - 1][1]) in (nn.Conv2d, nn.Linear)
                needs(type(layer) is nn.ReLU and after, "be Conv2d, MaxPool2d, Flatten, Linear or ReLU after one")
        require(bool(linear), "module", "end in a Linear layer for the fused engine", module)
        assert features is not None
        self.classes = features.channels
        self._slopes, self._turned = _Room(), _Columns(-1)
        self._back = _table(self._way_back(flattened))
        self._tables = (_table(stages), _table(linear), *self._offsets.tables(), _table(self._weights, KERNELS))
        self._orders = (*self._packing.tables(), *self._turned.tables())
        self._shape = (*shape, features.first, features.channels)

    def _convolution(
        self, name: str, layer: nn.Conv2d, inputs: _Map, border: int, starts: dict[str, int], *, relu: bool
    ) -> tuple[dict[str, int], _Map]:
        """The stage of a convolution of ``inputs``, and the map that it writes, with a border of zeros.

        ``starts`` is the place of each parameter in x.
        """
        needs = partial(_require_layer, name, layer)
        plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        needs(plain and not isinstance(layer.padding, str), "have one group, no dilation and zeros around")
        (kh, kw), (sy, sx), pad = layer.kernel_size, layer.stride, int(layer.padding[0])
        needs(layer.padding == (pad, pad), "have the same padding on all sides")
        h, w = (inputs.height + 2 * pad - kh) // sy + 1, (inputs.width + 2 * pad - kw) // sx + 1
        stride = -(-layer.out_channels // BLOCK) * BLOCK
        outputs = self._maps.map(h, w, layer.out_channels, stride, border)
        start, lanes, m = starts[f"{name}.weight"], panel(stride), 0
        # The transforms take 16 channels at a time, which the three colours of an image are not.
        if inputs.stride % BLOCK == 0:
            m = tile_size(layer.kernel_size, layer.stride, h, w)
        # Packed weights have a place in x, but for the 36 values of a kernel: for these room is kept, and
        # ``spread_weights`` computes them.
        order = np.full(VALUES * inputs.stride * stride, -1)
        if not m:
            order = _packed(_weights(layer, start), stride, inputs.stride, lanes)
        weights = self._packing.add(order)
        bias = np.full(stride, -1)
        if f"{name}.bias" in starts:
            bias[: layer.out_channels] = starts[f"{name}.bias"] + np.arange(layer.out_channels)
        conv = _Conv(layer, inputs, outputs, start, weights, self._packing.add(bias), relu, m)
        self._in_order.append(conv)
        # ``src`` is what the kernel's corner sees at pixel (0, 0). A row of the kernel sees kw pixels × channels that
        # lie next to one another: one run of numbers.
        src, run = inputs.first - pad * (inputs.row + inputs.stride), kw * inputs.stride
        stage = {"src": src, "src_row": inputs.row, **outputs.named("dst"), "relu": relu}
        stage |= {"weights": weights, "biases": conv.biases}
        if m:
            stage |= {"kind": _VALUES, "inputs": inputs.stride, "outputs": stride}
            stage |= {"m": m, "down": h // m, "across": w // m}
        else:
            # The pixels that the corner sees, one for each output pixel.
            corners = _Map(0, inputs.row, h, w, inputs.channels, inputs.stride, (sy, sx))
            written = outputs.places()
            begin, count = self._offsets.add(corners.places(), written), written.size
            stage |= {"kind": _CONV, "first": begin, "count": count, "rows": kh, "run": run}
            stage |= {"blocks": stride // lanes, "lanes": lanes}
        return stage, outputs

    def _way_back(self, flattened: _Map | None) -> list[dict[str, int]]:
        """The stages from the features' slopes to the gradient by the first convolution's weights."""
        # Slopes have no bias: convolutions of slopes are given zeros.
        zeros = self._turned.add(np.full(max((layer.inputs.stride for layer in self._in_order), default=0), -1))
        slopes = [self._slope_map(n) for n in range(len(self._in_order))]
        stages: list[dict[str, int]] = []
        for n, layer in reversed(list(enumerate(self._in_order))):
            inputs, outputs, out_slopes = layer.inputs, layer.outputs, slopes[n]
            size_of_output = {"height": outputs.height, "width": outputs.width}
            if not stages:
                assert flattened is not None  # behind images there is one
                counts = {"channels": outputs.channels, **size_of_output}
                stages.append({"kind": _SCATTER, **flattened.named("src"), **out_slopes.named("dst"), **counts})
            if isinstance(layer, _Pool):
                before = self._in_order[n - 1]
                counts = {"channels": inputs.stride, "size": layer.size, **size_of_output}
                stage = {"kind": _ROUTE, "relu": isinstance(before, _Conv) and before.relu, **counts}
                stage |= {**inputs.named("src"), "top": outputs.first, "top_row": outputs.row}
                stages.append({**stage, **out_slopes.named("slopes"), **slopes[n - 1].named("dst")})
                continue
            # If a pool follows, its route has masked the slopes already.
            pooled = n + 1 < len(self._in_order) and isinstance(self._in_order[n + 1], _Pool)
            if layer.relu and not pooled:
                stages.append({"kind": _MASK, **outputs.named("src"), **out_slopes.named("dst"), **size_of_output})
            (kh, kw), (sy, sx), pad = layer.layer.kernel_size, layer.layer.stride, int(layer.layer.padding[0])
            src, m = inputs.first - pad * (inputs.row + inputs.stride), layer.tile
            # Taps are where a kernel looks, from its corner: offsets into the image, and to a row of sums each. A
            # convolution through values finds its weights' slopes otherwise: it has no taps here.
            run = kw * inputs.stride
            taps = np.arange(0 if m else kh * run)
            first = self._offsets.add(taps // run * inputs.row + taps % run, taps * layer.width)
            stage = {"kind": _WEIGHTS, "src": src, "src_row": sy * inputs.row, "src_step": sx * inputs.stride}
            stage |= {**out_slopes.named("slopes"), **size_of_output, "first": first, "count": len(taps)}
            stage |= {"weights": layer.weights, "biases": layer.biases}
            stages.append({**stage, "blocks": outputs.stride // layer.width, "lanes": layer.width})
            if m:
                tiles = {"m": m, "down": outputs.height // m, "across": outputs.width // m}
                turned_at = self._turned.add(np.full(VALUES * inputs.stride * outputs.stride, -1)) if n else -1
                stage = {"kind": _VALUES_BACK, "src": src, "src_row": inputs.row, **tiles, "pad": pad}
                stage |= out_slopes.named("slopes") | (slopes[n - 1].named("dst") if n else {})
                stage |= {"inputs": inputs.stride, "outputs": outputs.stride}
                stages.append({**stage, "weights": layer.weights, "turned": turned_at})
                kernels = {"start": layer.start, "side": kh, "packed": layer.weights, "turned": turned_at}
                kernels |= {"outputs": layer.layer.out_channels, "inputs": layer.layer.in_channels}
                self._weights.append({**kernels, "wide": outputs.stride, "deep": inputs.stride})
                image = (inputs.height + 2 * pad) * (inputs.width + 2 * pad)
                needed = scratch(tiles["down"] * tiles["across"], inputs.stride, outputs.stride, image)
                self._scratch = max(self._scratch, needed)
                continue
            # Nobody wants slopes by the image's own pixels.
            if n == 0:
                continue
            # The slopes by the inputs are the convolution of the slopes with weights[input, output, −row, −column]. Its
            # corner sees k − 1 − pad pixels up and left of the slope that lies over an input.
            in_slopes, stride = slopes[n - 1], out_slopes.stride
            turned = _weights(layer.layer, layer.start).transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
            width = panel(inputs.stride)
            weights = self._turned.add(_packed(turned, inputs.stride, stride, width))
            corners = _Map(0, out_slopes.row, inputs.height, inputs.width, inputs.channels, stride)
            written = in_slopes.places()
            first, count = self._offsets.add(corners.places(), written), written.size
            corner = out_slopes.first + (pad + 1 - kh) * out_slopes.row + (pad + 1 - kw) * stride
            stage = {"kind": _CONV, "src": corner, "src_row": out_slopes.row, "rows": kh, "run": kw * stride}
            stage |= {**in_slopes.named("dst"), "first": first, "count": count}
            stage |= {"weights": weights, "biases": zeros, "blocks": inputs.stride // width, "lanes": width}
            stages.append(stage)
        return stages

    def _slope_map(self, n: int) -> _Map:
        """Slopes by what layer n gives: for its weights turned around to find them, with zeros between and around."""
        layer, outputs = self._in_order[n], self._in_order[n].outputs
        if isinstance(layer, _Pool) or n == 0 or layer.tile:
            return self._slopes.map(outputs.height, outputs.width, outputs.channels, outputs.stride, 0)
        # How far the turned kernel looks beyond the slopes: k − 1 − pad at the first input pixel, and at the last
        # size − 1 + pad − (out − 1) · step, since the last slope is at (out − 1) · step.
        pad, (sy, sx), inputs = int(layer.layer.padding[0]), layer.layer.stride, layer.inputs
        sizes, out_sizes = (inputs.height, inputs.width), (outputs.height, outputs.width)
        sides = zip(layer.layer.kernel_size, (sy, sx), sizes, out_sizes, strict=True)
        border = max(max(k - 1 - pad, size - 1 + pad - (out - 1) * step) for k, step, size, out in sides)
        return self._slopes.map(*out_sizes, outputs.channels, outputs.stride, max(border, 0), (sy, sx))

    def workspace(self, images: int = 1) -> Workspace:
        """Memory for the losses, of one thread, with the maps of so many images at once."""
        sizes = (images * self._maps.size, self._features.size, self._orders[0].size, self._scratch)
        return Workspace(*_zeros(*sizes))

    def slopes_workspace(self) -> tuple[Workspace, Slopes]:
        """Memory for losses and gradients, of one thread."""
        order, turned = self._orders
        return self.workspace(CHUNK), Slopes(*_zeros(self._slopes.size, self._features.size, turned.size, order.size))

    def losses(
        self,
        point: Tensor,
        images: NDArray[np.float32],
        targets: NDArray[np.int64],
        workspace: Workspace,
    ) -> NDArray[np.float64]:
        """The loss of each image, (n,), at the parameters ``point`` (d,)."""
        out = np.empty(len(targets), dtype=np.float64)
        _losses(out, point.numpy(), images, targets, self._orders[0], self._shape, self._tables, tuple(workspace))
        return out

    def gradient(
        self,
        point: Tensor,
        images: NDArray[np.float32],
        targets: NDArray[np.int64],
        workspace: tuple[Workspace, Slopes],
        into: NDArray[np.float32] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """The loss of each image, (n,), with the bits of ``losses``, and the sum of their gradients, ``into`` (d,)."""
        out = np.empty(len(targets), dtype=np.float64)
        gradient = np.empty(self.d, dtype=np.float32) if into is None else into
        tables, (memory, slopes) = (self._shape, self._tables, self._back), workspace
        x = point.numpy()
        _gradient(
            out, gradient, x, images, targets, self._orders, self._maps.size, *tables, tuple(memory), tuple(slopes)
        )
        return out, gradient


def pixels(inputs: Tensor) -> NDArray[np.float32]:
    """(n, C, H, W) images, or (n, d) vectors, as n rows of channels-last numbers."""
    rows = inputs.permute(0, 2, 3, 1) if inputs.ndim == 4 else inputs
    return rows.reshape(len(inputs), -1).contiguous().numpy()


def _zeros(*sizes: int) -> list[NDArray[np.float32]]:
    return [np.zeros(max(size, 1), dtype=np.float32) for size in sizes]


def _weights(layer: nn.Conv2d, start: int) -> NDArray[np.int64]:
    """The place in x of each weight (output, input, row, column)."""
    shape = (layer.out_channels, layer.in_channels, *layer.kernel_size)  # the layer's own numbers may be gone
    return start + np.arange(math.prod(shape)).reshape(shape)


def _packed(places: NDArray[np.int64], outputs: int, inputs: int, width: int) -> NDArray[np.int64]:
    """Places (output, input, row, column) as (block, row, column, input, ``width`` outputs); −1 for what fills up."""
    c_out, c_in, kh, kw = places.shape
    order = np.full((outputs, kh, kw, inputs), -1, dtype=np.int64)
    order[:c_out, ..., :c_in] = places.transpose(0, 2, 3, 1)
    return order.reshape(outputs // width, width, kh, kw, inputs).transpose(0, 2, 3, 4, 1)


def _table(rows: list[dict[str, int]], kind: np.dtype[np.void] = STAGE) -> NDArray[np.void]:
    """Records for the kernel, of the numbers by their names; what has no number is 0."""
    table = np.zeros(len(rows), dtype=kind)
    for n, row in enumerate(rows):
        for name, number in row.items():
            table[n][name] = number
    return table


def _border(layers: list[tuple[str, nn.Module]], n: int) -> int:
    """Width of the border of zeros that the first layer at or after n that reads an image wants."""
    for _, layer in layers[n:]:
        if type(layer) is nn.Conv2d:
            return int(layer.padding[0]) if not isinstance(layer.padding, str) else 0
        if not isinstance(layer, nn.ReLU):
            break
    return 0
