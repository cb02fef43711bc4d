"""The stream on a GPU: the bits of ``reference`` by one Triton kernel a program; see ``triton_kernels``.

With TRITON_INTERPRET=1 in the environment (before Triton is first imported) the same kernels run in numpy on the CPU:
slow, but a check of every formula on a machine without a GPU. Importing this module fails where neither is possible.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import require
from decomfl_lab.installation import command_for
from decomfl_lab.noise import backends
from decomfl_lab.noise.program import DISTRIBUTIONS, MOST_NAMES, Code, Op, Program, directions_by
from decomfl_lab.noise.spec import LANES, TILE, Distribution

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels run in Triton's interpreter, on the CPU."""

OLDEST = (3, 6)
"""Triton before 3.6 flushes subnormal numbers in float32 quotients and roots, so its bits are others."""

if importlib.util.find_spec("triton") is None:
    raise ImportError(f"Triton is not installed (on Linux: {command_for('gpu')})")
_version = importlib.metadata.version("triton")
if tuple(map(int, _version.split(".")[:2])) < OLDEST:
    raise ImportError(f"Triton {_version} rounds otherwise; {'.'.join(map(str, OLDEST))} or newer is needed")
if not (INTERPRETED or torch.cuda.is_available()):
    raise ImportError("torch sees no CUDA device (TRITON_INTERPRET=1 would interpret the kernels on the CPU)")

from decomfl_lab.noise import triton_kernels as kernels  # noqa: E402

Floats = NDArray[np.float32] | NDArray[np.float64]

SUMS_AT_ONCE = 1 << 23
"""Sums of tiles that a projection holds at a time, 64 MiB, or those of one slice if they are more."""

COPIED_AT_ONCE = 1 << 24
"""Elements of a strided tensor that are copied at a time: what a run needs beside the model."""


def _device() -> torch.device:
    return torch.device("cpu") if INTERPRETED else torch.device("cuda", torch.cuda.current_device())


_ONE_AT_A_TIME = RLock()


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Launch on ``device``. The interpreter is one for all threads, and divergence is no warning of numpy's."""
    if INTERPRETED:
        with _ONE_AT_A_TIME, np.errstate(all="ignore"):
            yield
    else:
        with torch.cuda.device(device):
            yield


def _signed(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The keys by their bits: Triton has no unsigned arguments."""
    return keys.view(np.int64)


def _launch(
    code: Code, memory: Sequence[Tensor], first: int, scales: NDArray[np.float32], *, store: bool, counter: Tensor
) -> None:
    """Run a program on contiguous vectors of one size on one device.

    ``first`` is the place of their element 0 in the model; ``counter``, int64 (1,), gets what broke a LIMIT added.
    """
    require(len(memory) <= MOST_NAMES, "names", f"be at most {MOST_NAMES} on a GPU", len(memory))
    dtypes = {vector.dtype for vector in memory}
    wide = kernels.register_dtype(tuple(dtypes))
    narrow = bool(np.isin(code.table[:, 0], (Op.NARROW, Op.NARROW_RANDOMLY)).any())
    require(not narrow or wide == torch.float32, "dtypes", "be float32 where 16 bits are wanted", dtypes)
    mixed = wide == torch.float64 and not dtypes <= {torch.float32, torch.float64}
    require(not mixed, "dtypes", "not mix 64 and 16 bits", dtypes)
    number: Any = np.float64 if wide == torch.float64 else np.float32
    values = code.values.astype(number)
    snaps = code.table[:, 0] == Op.SNAP
    # SNAP adds and subtracts C = 1.5 · 2^(mantissa bits) · a: C is made here, in the precision of the registers.
    values[snaps] *= number(1.5 * 2.0 ** np.finfo(number).nmant)
    table = np.concatenate([code.table, _signed(code.keys)[:, None]], axis=1)
    device = memory[0].device
    arrays = (table, values, code.coefficients, scales)
    rows, numbers, coefficients, factors = (_sent(array, device) for array in arrays)
    # The grid is in Philox blocks of four elements, over all tiles that the vectors touch, also the first and last in
    # part.
    size = memory[0].numel()
    tiles = (first + size - 1) // TILE - first // TILE + 1
    with _on(device):
        kernels.run_program[(-(-tiles * LANES // kernels.BLOCK),)](
            tuple(memory),
            size,
            first,
            rows,
            numbers,
            len(values),
            coefficients,
            factors,
            counter,
            int(store),
            **kernels.OPTIONS,
        )


def _parts(first: int, tensors: Sequence[Tensor]) -> Iterator[tuple[int, list[Tensor]]]:
    """Cut tensors of one shape into (position, parts) in row-major order; parts to be copied are bounded."""
    size = tensors[0].numel()
    if size <= COPIED_AT_ONCE or all(tensor.is_contiguous() for tensor in tensors):
        yield first, list(tensors)
        return
    # Whole rows of the first dimension at a time. A row that is too large itself is cut along the next dimension.
    row = size // tensors[0].shape[0]
    rows = max(COPIED_AT_ONCE // row, 1)
    for a in range(0, tensors[0].shape[0], rows):
        part = [tensor[a] if rows == 1 else tensor[a : a + rows] for tensor in tensors]
        yield from _parts(first + a * row, part)


def run_on_device(program: Program, tensors: Sequence[Tensor], *, d: int, first: int, store: bool) -> int:
    """``backends.run`` on tensors where they lie, row-major: one for each of ``program.names``, no two share elements.

    They are of one shape and device, float32, float64, bfloat16 or float16. Contiguous ones are read and written once,
    each in its own type; the program computes in float64 if one of them has it, else in float32. Strided tensors go
    through contiguous copies of bounded size.
    """
    with _on(tensors[0].device):
        scales = backends.sphere_scales(program, d, "triton")
    code = program.encode()
    # The count is read only where there can be one: reading waits for the GPU.
    counter = torch.zeros(1, dtype=torch.int64, device=tensors[0].device)
    for first_of_part, parts in _parts(first, tensors):
        if parts[0].numel() == 0:
            continue
        copies = [part.contiguous() for part in parts]
        _launch(code, [copy.view(-1) for copy in copies], first_of_part, scales, store=store, counter=counter)
        if store:
            for part, copy in zip(parts, copies, strict=True):
                if part.data_ptr() != copy.data_ptr():
                    part.copy_(copy)
    return int(counter.item()) if program.limited else 0


def run(code: Code, memory: Sequence[Floats], first: int, scales: NDArray[np.float32], *, store: bool = True) -> int:
    """See ``reference.run``; vectors travel to the GPU and back."""
    device = _device()
    counter = torch.zeros(1, dtype=torch.int64, device=device)
    sources = [torch.from_numpy(vector) for vector in memory]
    vectors = [source.to(device) for source in sources]
    _launch(code, vectors, first, scales, store=store, counter=counter)
    if store:
        for source, vector in zip(sources, vectors, strict=True):
            if source is not vector:
                source.copy_(vector)
    return int(counter.item())


directions = partial(directions_by, run)
"""See ``reference.directions``."""


def tile_square_sums(key: int, direction: int, first_tile: int, tiles: int, d: int) -> NDArray[np.float64]:
    """See ``reference.tile_square_sums``."""
    device = _device()
    sums = torch.empty(tiles, dtype=torch.float64, device=device)
    signed = int(_signed(np.array([key], dtype=np.uint64))[0])
    with _on(device):
        kernels.square_sums[(-(-tiles // kernels.SUMMED_TILES),)](
            sums, signed, direction, first_tile, tiles, d, **kernels.OPTIONS
        )
    return sums.cpu().numpy()


def _table(
    keys: NDArray[np.uint64], places: NDArray[np.int64], scales: NDArray[np.float32], ends: Sequence[int] | None = None
) -> NDArray[np.int64]:
    """Directions for the kernels, (P, STREAM_COLUMNS); the points of each end at its of ``ends``, if there are any."""
    rows = np.zeros((len(keys), kernels.STREAM_COLUMNS), dtype=np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2] = _signed(keys), places, scales.view(np.int32)
    if ends is not None:
        rows[1:, 3], rows[:, 4] = ends[:-1], ends
    return rows


def _there(tensor: Tensor) -> Tensor:
    """The tensor itself if kernels can reach it, else a copy on the GPU."""
    return tensor if tensor.is_cuda else tensor.to(_device())


def _sent(array: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """A copy on the device, without waiting for what the device still has to do."""
    return torch.as_tensor(array).to(device, non_blocking=True)


def _project(
    vectors: Tensor, first_tile: int, table: NDArray[np.int64], distribution: Distribution, slice_tiles: int
) -> Tensor:
    """Products of contiguous vectors (m, n) with P directions, (m, P), added tile by tile, then slice by slice.

    Sums of as many slices as ``SUMS_AT_ONCE`` allows are made at a time; the total is carried on from them to the next.
    """
    m, n = vectors.shape
    device, count, tiles = vectors.device, len(table), -(-n // TILE)
    if not count:
        return torch.empty(m, 0, dtype=torch.float64, device=device)
    columns = m * count
    slices = -(-tiles // slice_tiles)
    # Sums are added tile by tile in a slice, then slice by slice, as every backend does. As many whole slices go at a
    # time as the memory for their tiles allows.
    slices_at_once = min(max(SUMS_AT_ONCE // (columns * slice_tiles), 1), slices)
    tiles_at_once = min(slices_at_once * slice_tiles, tiles)
    blocks, groups = -(-columns // kernels.ADDED_SUMS), -(-count // kernels.DIRECTIONS)
    # Sums begin at -0: -0 + a is a, to the bit.
    total = torch.full((columns,), -0.0, dtype=torch.float64, device=device)
    by_slice = torch.empty(slices_at_once * columns, dtype=torch.float64, device=device)
    by_tile = torch.empty(tiles_at_once * columns, dtype=torch.float64, device=device)
    on_device = _sent(table, device)
    kind = DISTRIBUTIONS.index(distribution)
    with _on(device):
        for begin in range(0, tiles, tiles_at_once):
            now = min(tiles_at_once, tiles - begin)
            slices_now = -(-now // slice_tiles)
            kernels.tile_products[(now * groups,)](
                by_tile,
                vectors,
                m,
                n,
                begin,
                first_tile,
                on_device,
                count,
                kind,
                **kernels.WARP,
            )
            # A slice adds its tiles in order, and the total adds the slices in order.
            by_slice.fill_(-0.0)
            kernels.add_in_order[(slices_now * blocks,)](
                by_slice, by_tile, now, slice_tiles, columns, **kernels.OPTIONS
            )
            kernels.add_in_order[(blocks,)](total, by_slice, slices_now, slices_now, columns, **kernels.OPTIONS)
    return total.view(m, count)


def project(
    vectors: Floats,
    first: int,
    keys: NDArray[np.uint64],
    directions_: NDArray[np.int64],
    distribution: Distribution,
    scales: NDArray[np.float32],
) -> NDArray[np.float64]:
    """See ``reference.project``; vectors travel to the GPU."""
    if distribution is not Distribution.SPHERE:
        scales = np.ones_like(scales)
    table, tiles = _table(keys, directions_, scales), -(-vectors.shape[1] // TILE)
    return _project(_there(torch.from_numpy(vectors)), first // TILE, table, distribution, tiles).cpu().numpy()


def project_on_device(vectors: Tensor, streams: Sequence[tuple[int, int]], distribution: Distribution) -> Tensor:
    """⟨v_i, z(seed_p, p)⟩ of vectors where they lie, with the bits of ``noise.project``.

    The device is not waited for (but for the norms of sphere directions that are not yet known). Beside the vectors,
    contiguous (m, d), it holds ``SUMS_AT_ONCE`` sums; the products, float64 (m, P), stay on it.
    """
    vectors = _there(vectors)
    with _on(vectors.device):
        table = _table(*backends.stream_arrays(streams, distribution, vectors.shape[1], "triton"))
    return _project(vectors, 0, table, distribution, backends.SLICE // TILE)


def form_points(
    points: Tensor,
    x: Tensor,
    rows: Mapping[tuple[int, int], Sequence[int]],
    coefficients: NDArray[np.float32],
    distribution: Distribution,
    *,
    d: int,
    first: int = 0,
) -> None:
    """points[n] ← fl(x + fl(c_n · z(seed, p))) for every row n of every direction, in one launch; x where c_n = 0.

    Points are contiguous (rows, size), float32 or float64; x, (size,), is elements first.. of R^d, of the points' type,
    or of 16 bits for float32 points. ``rows`` are the rows n of each direction (seed, p), which share its z;
    ``coefficients`` c_n (rows,).
    """
    by_direction = np.concatenate([np.asarray(numbers, dtype=np.int64) for numbers in rows.values()])
    ends = list(accumulate(len(numbers) for numbers in rows.values()))
    out, x = _there(points), _there(x)
    with _on(x.device):
        table = _table(*backends.stream_arrays(list(rows), distribution, d, "triton"), ends)
    # Direction after direction, the rows of its points and the bits of their c_n. ``ends`` says where a direction's
    # end.
    pairs = np.stack([by_direction, coefficients[by_direction].view(np.int32).astype(np.int64)], axis=1)
    sent = _sent(np.concatenate([table.reshape(-1), pairs.reshape(-1)]), x.device)
    size = x.numel()
    tiles = (first + size - 1) // TILE - first // TILE + 1
    kind = DISTRIBUTIONS.index(distribution)
    with _on(x.device):
        kernels.form_points[(-(-tiles * LANES // kernels.BLOCK) * len(rows),)](
            out, x, size, first, sent, len(rows), kind, **kernels.OPTIONS
        )
    if out is not points:
        points.copy_(out)
