"""Forward pass and loss of small sequential nets as one numba kernel: no framework, no temporaries, one core a call.

Images go through the convolutions one at a time in channels-last order, so that everything between two layers
stays in the second-level cache. A convolution computes 6 pixels × 16 channels at once in 12 vector registers
(explicit vectors, ``noise.lanes``); a linear layer 4 images × 3 outputs. Products are fused with their sums, so
losses differ from torch's by float32 rounding, but not with the number of threads: an image's loss is a function
of x and the image alone, and losses are summed in float64 in the order of the batch.
"""

# mypy: disable-error-code="no-untyped-call,misc,untyped-decorator,no-any-return"
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numba
import numba.extending
import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils
from numpy.typing import NDArray
from torch import Tensor, nn

from decomfl_lab.errors import InputError, require
from decomfl_lab.noise.lanes import F32, Lanes
from decomfl_lab.noise.numba_cpu import on_rows
from decomfl_lab.replica import Layout

__all__ = ["BLOCK", "CHUNK", "PIXELS", "Network", "Workspace", "cross_entropy_of", "pixels", "tile"]

njit: Any = numba.njit
intrinsic: Any = numba.extending.intrinsic

CHUNK = 32
"""Images whose features are kept at once for the linear layers."""

_LANES = 8
PIXELS, _VECTORS = 6, 2
BLOCK = _LANES * _VECTORS
_IMAGES, _OUTPUTS = 4, 3
_DEPTH = 512
"""Features of a linear layer taken at once, so that the weights of 3 outputs stay in the first-level cache."""


class _Kind(IntEnum):
    CONV = 0
    POOL = 1
    FLATTEN = 2
    LINEAR = 3


_CONV, _POOL, _FLATTEN, _LINEAR = (int(kind) for kind in _Kind)
_COLUMNS = 12


# Kernels ---------------------------------------------------------------------------------------------------------


def _sums(builder: Any, count: int) -> list[Any]:
    """Places for ``count`` vectors; LLVM keeps them in registers."""
    kind = ir.VectorType(F32, _LANES)
    places = [cgutils.alloca_once(builder, kind) for _ in range(count)]
    for place in places:
        builder.store(ir.Constant(kind, [0.0] * _LANES), place)
    return places


def _add_product(builder: Any, place: Any, a: Lanes, b: Lanes) -> None:
    builder.store(a.multiply_add(b, Lanes(builder, builder.load(place))).value, place)


def _write_tile(
    builder: Any,
    work: Any,
    src: Any,
    src_offsets: Any,
    first: Any,
    rows: Any,
    stride: Any,
    run: Any,
    packed: Any,
    weights: Any,
    bias: Any,
    dst: Any,
    dst_offsets: Any,
    floor: Any,
) -> None:
    """work[dst + dst_offsets[n]...] = max(bias + Σ_taps work[src + src_offsets[n] + tap] · weights[tap], floor).

    For the 6 pixels n = first.. and one block of 16 channels. Taps are ``rows`` runs of ``run`` numbers.
    """
    sums = _sums(builder, PIXELS * _VECTORS)
    numbers = [builder.add(first, first.type(i)) for i in range(PIXELS)]
    inputs = [builder.gep(work, [builder.add(src, builder.load(builder.gep(src_offsets, [n])))]) for n in numbers]
    taps = builder.gep(packed, [weights])
    size = ir.Constant(run.type, BLOCK)
    with cgutils.for_range(builder, rows) as row:
        offset = builder.mul(row.index, stride)
        row_inputs = [builder.gep(pointer, [offset]) for pointer in inputs]
        row_taps = builder.gep(taps, [builder.mul(builder.mul(row.index, run), size)])
        with cgutils.for_range(builder, run) as at:
            tap = builder.gep(row_taps, [builder.mul(at.index, size)])
            w = [Lanes.load(builder, tap, F32, _LANES * v, _LANES) for v in range(_VECTORS)]
            for i, pointer in enumerate(row_inputs):
                pixel = w[0].spread(builder.load(builder.gep(pointer, [at.index])))
                for v in range(_VECTORS):
                    _add_product(builder, sums[i * _VECTORS + v], pixel, w[v])
    biases = builder.gep(packed, [bias])
    b = [Lanes.load(builder, biases, F32, _LANES * v, _LANES) for v in range(_VECTORS)]
    for i, n in enumerate(numbers):
        out = builder.gep(work, [builder.add(dst, builder.load(builder.gep(dst_offsets, [n])))])
        for v in range(_VECTORS):
            total = Lanes(builder, builder.load(sums[i * _VECTORS + v])) + b[v]
            total.at_least(floor).store(out, _LANES * v)


def _dots(images: int, outputs: int) -> Callable[..., None]:
    """out[i, o] += Σ_j work[a + i·a_step + j] · point[w + o·w_step + j] over ``vectors``·8 numbers j."""

    def write(
        builder: Any, work: Any, a: Any, a_step: Any, point: Any, w: Any, w_step: Any, vectors: Any, out: Any, step: Any
    ) -> None:
        sums = _sums(builder, images * outputs)

        def rows(base: Any, first: Any, step: Any, count: int) -> list[Any]:
            return [builder.gep(base, [builder.add(first, builder.mul(step, step.type(i)))]) for i in range(count)]

        left, right = rows(work, a, a_step, images), rows(point, w, w_step, outputs)
        with cgutils.for_range(builder, vectors) as at:
            j = builder.mul(at.index, at.index.type(_LANES))
            weights = [Lanes.load(builder, builder.gep(row, [j]), F32, 0, _LANES) for row in right]
            for i, row in enumerate(left):
                features = Lanes.load(builder, builder.gep(row, [j]), F32, 0, _LANES)
                for o in range(outputs):
                    _add_product(builder, sums[i * outputs + o], features, weights[o])
        for i, row in enumerate(rows(work, out, step, images)):
            for o in range(outputs):
                total = Lanes(builder, builder.load(sums[i * outputs + o])).total()
                place = builder.gep(row, [step.type(o)])
                builder.store(builder.fadd(builder.load(place), total), place)

    return write


def _write_largest(builder: Any, work: Any, corner: Any, size: Any, row: Any, step: Any, out: Any) -> None:
    """work[out] = the largest of size × size pixels of 8 channels, NaN if there is one."""
    source = builder.gep(work, [corner])
    top = cgutils.alloca_once(builder, ir.VectorType(F32, _LANES))
    builder.store(Lanes.load(builder, source, F32, 0, _LANES).value, top)
    with cgutils.for_range(builder, size) as y, cgutils.for_range(builder, size) as x:
        place = builder.add(builder.mul(y.index, row), builder.mul(x.index, step))
        pixel = Lanes.load(builder, builder.gep(source, [place]), F32, 0, _LANES)
        builder.store(Lanes(builder, builder.load(top)).larger(pixel).value, top)
    Lanes(builder, builder.load(top)).store(builder.gep(work, [out]), 0)


@intrinsic
def _largest(typingctx, work, corner, size, row, step, out):  # type: ignore[no-untyped-def]
    return on_rows(_write_largest)(typingctx, work, corner, size, row, step, out)


@intrinsic
def tile(  # type: ignore[no-untyped-def]
    typingctx, work, src, src_offsets, first, rows, stride, run, packed, weights, bias, dst, dst_offsets, floor
):
    """See ``_write_tile``."""
    return on_rows(_write_tile)(
        typingctx, work, src, src_offsets, first, rows, stride, run, packed, weights, bias, dst, dst_offsets, floor
    )


@intrinsic
def _dots_block(typingctx, work, a, a_step, point, w, w_step, vectors, out, step):  # type: ignore[no-untyped-def]
    return on_rows(_dots(_IMAGES, _OUTPUTS))(typingctx, work, a, a_step, point, w, w_step, vectors, out, step)


@intrinsic
def _dots_column(typingctx, work, a, a_step, point, w, w_step, vectors, out, step):  # type: ignore[no-untyped-def]
    return on_rows(_dots(_IMAGES, 1))(typingctx, work, a, a_step, point, w, w_step, vectors, out, step)


@intrinsic
def _dots_one(typingctx, work, a, a_step, point, w, w_step, vectors, out, step):  # type: ignore[no-untyped-def]
    return on_rows(_dots(1, 1))(typingctx, work, a, a_step, point, w, w_step, vectors, out, step)


@njit(cache=True, nogil=True)
def _pool(work: Any, stage: Any) -> None:
    _, src, row, channels, size, height, width, dst, dst_row, _, _, _ = stage
    for y in range(height):
        for x in range(width):
            corner, out = src + y * size * row + x * size * channels, dst + y * dst_row + x * channels
            for c in range(0, channels, _LANES):
                _largest(work, corner + c, size, row, channels, out + c)


@njit(cache=True, nogil=True)
def _linear(work: Any, point: Any, stage: Any, images: Any) -> None:
    _, src, step, features, w, bias, outputs, dst, to_step, relu, _, _ = stage
    for i in range(images):
        for o in range(outputs):
            work[dst + i * to_step + o] = point[bias + o] if bias >= 0 else np.float32(0)
    whole_images, whole_outputs = images - images % _IMAGES, outputs - outputs % _OUTPUTS
    for first in range(0, features, _DEPTH):
        vectors = min(_DEPTH, features - first) // _LANES
        a, at = src + first, w + first
        for o in range(0, whole_outputs, _OUTPUTS):
            for i in range(0, whole_images, _IMAGES):
                out = dst + i * to_step + o
                _dots_block(work, a + i * step, step, point, at + o * features, features, vectors, out, to_step)
        for o in range(whole_outputs, outputs):
            for i in range(0, whole_images, _IMAGES):
                out = dst + i * to_step + o
                _dots_column(work, a + i * step, step, point, at + o * features, features, vectors, out, to_step)
        for i in range(whole_images, images):
            for o in range(outputs):
                out = dst + i * to_step + o
                _dots_one(work, a + i * step, step, point, at + o * features, features, vectors, out, to_step)
    rest = features - features % _LANES
    for i in range(images):
        for o in range(outputs):
            total = work[dst + i * to_step + o]
            for j in range(rest, features):
                total += work[src + i * step + j] * point[w + o * features + j]
            work[dst + i * to_step + o] = np.float32(0) if relu and total < 0 else total


@njit(cache=True, nogil=True)
def _pack(packed: Any, point: Any, order: Any) -> None:
    for n in range(order.size):
        packed[n] = point[order[n]] if order[n] >= 0 else np.float32(0)


@njit(cache=True, nogil=True)
def _image(work: Any, stages: Any, src_offsets: Any, dst_offsets: Any, packed: Any, place: Any) -> None:
    """The stages of one image, up to its features."""
    for s in range(stages.shape[0]):
        stage = stages[s]
        if stage[0] == _CONV:
            _, src, row, rows, run, pixels, first, weights, biases, blocks, dst, relu = stage
            floor = np.float32(0) if relu else np.float32(-np.inf)
            for block in range(blocks):
                for n in range(0, pixels, PIXELS):
                    tile(
                        work,
                        src,
                        src_offsets,
                        first + min(n, pixels - PIXELS),
                        rows,
                        row,
                        run,
                        packed,
                        weights + block * rows * run * BLOCK,
                        biases + block * BLOCK,
                        dst + block * BLOCK,
                        dst_offsets,
                        floor,
                    )
        elif stage[0] == _POOL:
            _pool(work, stage)
        elif stage[0] == _FLATTEN:
            _, src, row, stride, channels, height, width, dst, step, _, _, _ = stage
            out = dst + place * step
            for c in range(channels):
                for y in range(height):
                    for x in range(width):
                        work[out + (c * height + y) * width + x] = work[src + y * row + x * stride + c]


@njit(cache=True, nogil=True)
def cross_entropy_of(work: Any, first: Any, classes: Any, target: Any) -> Any:
    """−log softmax of the logits that begin at work[first], at the target."""
    top = np.float64(work[first])
    for c in range(classes):
        top = max(top, np.float64(work[first + c]))
    total = 0.0
    for c in range(classes):
        total += math.exp(np.float64(work[first + c]) - top)
    return math.log(total) + top - np.float64(work[first + target])


@njit(cache=True, nogil=True)
def _losses(
    out: Any,
    point: Any,
    images: Any,
    targets: Any,
    work: Any,
    packed: Any,
    stages: Any,
    linear: Any,
    src_offsets: Any,
    dst_offsets: Any,
    shape: Any,
) -> None:
    """out[i] = cross entropy of image i; see ``Network``."""
    height, width, row, first, logits, step, classes = shape
    for a in range(0, images.shape[0], CHUNK):
        count = min(CHUNK, images.shape[0] - a)
        for i in range(count):
            for y in range(height):
                for x in range(width):
                    work[first + y * row + x] = images[a + i, y * width + x]
            _image(work, stages, src_offsets, dst_offsets, packed, i)
        for s in range(linear.shape[0]):
            _linear(work, point, linear[s], count)
        for i in range(count):
            out[a + i] = cross_entropy_of(work, logits + i * step, classes, targets[a + i])


# Nets ------------------------------------------------------------------------------------------------------------


Workspace = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Activations (borders zero) and packed weights of one thread."""


@dataclass
class _Map:
    """An image's activations in ``work``: height × width pixels of ``stride`` numbers inside a border of zeros."""

    first: int  # place of pixel (0, 0), inside the border
    row: int  # numbers from one row to the next
    height: int
    width: int
    channels: int
    stride: int


class Network:
    """A sequential net for images of one shape, as tables for the kernel.

    Conv2d, Linear, ReLU after either, MaxPool2d and Flatten, with mean cross-entropy as the loss.
    """

    def __init__(self, module: nn.Module, layout: Layout, in_shape: tuple[int, ...]) -> None:
        """Lay out the net.

        Raises:
            InputError: If the net has a layer that the kernel lacks; the message names it.
        """
        if type(module) is not nn.Sequential:
            raise InputError(f"module must be a Sequential for the fused engine, got {type(module).__name__}")
        layers = list(module.named_children())
        require(len(layers) == len(module), "module", "hold each layer once for the fused engine", module)
        frozen = {name for name, _ in module.named_parameters()} - set(layout.names)
        require(not frozen, "parameters", "all be trainable for the fused engine", sorted(frozen))
        require(layout.dtype == torch.float32, "dtype", "be float32 for the fused engine", layout.dtype)
        self.layout = layout
        starts = dict(zip(layout.names, np.cumsum([0, *layout.sizes]).tolist(), strict=False))
        self._size = 0  # of work
        self._order: list[NDArray[np.int64]] = []  # where each packed number is in x; -1: nowhere, it is 0
        self._packed = 0
        stages: list[list[int]] = []
        linear: list[list[int]] = []
        offsets: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        channels, height, width = in_shape if len(in_shape) == 3 else (1, 1, math.prod(in_shape))
        at = self._map(height, width, channels, channels, _border(layers, 0))
        self.in_shape, self._input = tuple(in_shape), at
        features: tuple[int, int, int] | None = None  # first, numbers an image, step
        for n, (name, layer) in enumerate(layers):
            following = layers[n + 1][1] if n + 1 < len(layers) else None
            relu = type(following) is nn.ReLU

            def needs(holds: bool, rule: str, name: str = name, layer: nn.Module = layer) -> None:
                require(holds, f"layer {name!r}", f"{rule} for the fused engine", layer)

            if type(layer) is nn.Conv2d:
                needs(features is None, "come before Flatten")
                plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
                needs(plain and not isinstance(layer.padding, str), "have one group, no dilation and zeros around")
                (kh, kw), (sy, sx), pad = layer.kernel_size, layer.stride, int(layer.padding[0])
                needs(layer.padding == (pad, pad), "have the same padding on all sides")
                h, w = (at.height + 2 * pad - kh) // sy + 1, (at.width + 2 * pad - kw) // sx + 1
                blocks = -(-layer.out_channels // BLOCK)
                to = self._map(h, w, layer.out_channels, blocks * BLOCK, _border(layers, n + 1))
                y, x = (grid.reshape(-1) for grid in np.mgrid[:h, :w])
                source = y * sy * at.row + x * sx * at.stride
                target = y * to.row + x * to.stride
                short = max(PIXELS - len(source), 0)  # the last pixel again, up to a whole tile
                pair = (np.pad(source, (0, short), "edge"), np.pad(target, (0, short), "edge"))
                weights = self._pack_conv(layer, starts[f"{name}.weight"], at.stride)
                biases = self._pack_bias(layer, starts.get(f"{name}.bias"), blocks * BLOCK)
                begin = sum(len(source) for source, _ in offsets)
                offsets.append(pair)
                src = at.first - pad * (at.row + at.stride)
                run = kw * at.stride
                stages.append(
                    [_CONV, src, at.row, kh, run, len(pair[0]), begin, weights, biases, blocks, to.first, relu]
                )
                at = to
            elif type(layer) is nn.MaxPool2d:
                size = layer.kernel_size
                needs(features is None and at.stride % _LANES == 0, "come after Conv2d and before Flatten")
                plain = isinstance(size, int) and layer.stride == size and not layer.padding and layer.dilation == 1
                needs(plain and not layer.ceil_mode, "have square windows side by side")
                assert isinstance(size, int)
                h, w = at.height // size, at.width // size
                to = self._map(h, w, at.channels, at.stride, _border(layers, n + 1))
                stages.append([_POOL, at.first, at.row, at.stride, size, h, w, to.first, to.row])
                at = to
            elif type(layer) is nn.Flatten:
                needs(features is None and (layer.start_dim, layer.end_dim) == (1, -1), "be the only one, of all")
                features = self._features(at.channels * at.height * at.width)
                first, _, step = features
                stages.append([_FLATTEN, at.first, at.row, at.stride, at.channels, at.height, at.width, first, step])
            elif type(layer) is nn.Linear:
                needs(features is not None, "come after Flatten")
                assert features is not None
                to_features = self._features(layer.out_features)
                begin = starts[f"{name}.weight"]
                bias = starts.get(f"{name}.bias", -1)
                (src, count, step), (dst, outputs, to_step) = features, to_features
                linear.append([_LINEAR, src, step, count, begin, bias, outputs, dst, to_step, relu])
                features = to_features
            else:
                after = n > 0 and type(layers[n - 1][1]) in (nn.Conv2d, nn.Linear)
                needs(type(layer) is nn.ReLU and after, "be Conv2d, MaxPool2d, Flatten, Linear or ReLU after one")
        require(bool(linear), "module", "end in a Linear layer for the fused engine", module)
        assert features is not None
        self.classes = features[1]
        self._stages, self._linear = _table(stages), _table(linear)
        nothing = np.zeros(1, dtype=np.int64)
        self._src = np.concatenate([source for source, _ in offsets] or [nothing]).astype(np.int64)
        self._dst = np.concatenate([target for _, target in offsets] or [nothing]).astype(np.int64)
        self._pack_order = np.concatenate(self._order or [nothing]).astype(np.int64)
        image = self._input
        self._shape = (
            image.height,
            image.width * image.stride,
            image.row,
            image.first,
            features[0],
            features[2],
            features[1],
        )

    def _map(self, height: int, width: int, channels: int, stride: int, border: int) -> _Map:
        row = (width + 2 * border) * stride
        first = self._size + border * (row + stride)
        self._size += (height + 2 * border) * row
        return _Map(first, row, height, width, channels, stride)

    def _features(self, count: int) -> tuple[int, int, int]:
        first = self._size
        self._size += CHUNK * count
        return first, count, count

    def _pack_conv(self, layer: nn.Conv2d, start: int, stride: int) -> int:
        """Order (block, row, column, input channel, 16 output channels) of weights (output, input, row, column)."""
        shape = c_out, c_in, kh, kw = layer.out_channels, layer.in_channels, *layer.kernel_size  # no weights needed
        blocks = -(-c_out // BLOCK)
        order = np.full((blocks * BLOCK, kh, kw, stride), -1, dtype=np.int64)
        own = start + np.arange(math.prod(shape)).reshape(shape)
        order[:c_out, ..., :c_in] = own.transpose(0, 2, 3, 1)
        return self._pack(order.reshape(blocks, BLOCK, kh, kw, stride).transpose(0, 2, 3, 4, 1))

    def _pack_bias(self, layer: nn.Conv2d, start: int | None, count: int) -> int:
        order = np.full(count, -1, dtype=np.int64)
        if start is not None:
            order[: layer.out_channels] = start + np.arange(layer.out_channels)
        return self._pack(order)

    def _pack(self, order: NDArray[np.int64]) -> int:
        first = self._packed
        self._order.append(order.reshape(-1))
        self._packed += order.size
        return first

    def workspace(self) -> Workspace:
        """Memory for one thread."""
        return np.zeros(self._size, dtype=np.float32), np.zeros(max(self._packed, 1), dtype=np.float32)

    def losses(
        self,
        point: Tensor,
        images: NDArray[np.float32],
        targets: NDArray[np.int64],
        workspace: Workspace,
    ) -> NDArray[np.float64]:
        """The loss of each image, (n,), at the parameters ``point`` (d,)."""
        out = np.empty(len(targets), dtype=np.float64)
        work, packed = workspace
        x = point.numpy()
        _pack(packed, x, self._pack_order)
        _losses(out, x, images, targets, work, packed, self._stages, self._linear, self._src, self._dst, self._shape)
        return out


def pixels(inputs: Tensor) -> NDArray[np.float32]:
    """(n, C, H, W) images, or (n, d) vectors, as n rows of channels-last numbers."""
    rows = inputs.permute(0, 2, 3, 1) if inputs.ndim == 4 else inputs
    return rows.reshape(len(inputs), -1).contiguous().numpy()


def _table(rows: list[list[int]]) -> NDArray[np.int64]:
    """Stages as rows of one length."""
    return np.array([row + [0] * (_COLUMNS - len(row)) for row in rows], dtype=np.int64).reshape(-1, _COLUMNS)


def _border(layers: list[tuple[str, nn.Module]], n: int) -> int:
    """Width of the border of zeros that the first layer at or after n that reads an image wants."""
    for _, layer in layers[n:]:
        if type(layer) is nn.Conv2d:
            return int(layer.padding[0]) if not isinstance(layer.padding, str) else 0
        if not isinstance(layer, nn.ReLU):
            break
    return 0
