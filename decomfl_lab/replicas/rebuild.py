"""The noise stream on torch tensors, on the CPU or a GPU: programs in place, points beside x, projections.

``rebuild_`` applies a program to tensors of any shape, stride and floating-point type, ``form_points_`` makes many
points x + c z at once, ``project`` multiplies vectors with directions.

A contiguous float32 or float64 tensor is updated where it lies. Everything else (16-bit types, strided views)
goes through a block of float32 or float64 at a time, so a rebuild needs the model and one block a worker.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decomfl_lab import noise
from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.noise import SCRATCH, Backend, Distribution, Program

BLOCK = 1 << 16
"""Elements that go through the cache at a time where a tensor cannot be updated in its place."""

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_HALF = (torch.bfloat16, torch.float16)


def backend_for(tensor: Tensor) -> str:
    """The backend for tensors on this device: triton on a GPU, else the fastest on the CPU."""
    return "triton" if tensor.is_cuda else noise.cpu_backend()


def _triton() -> Any:
    """The backend on tensors where they lie; InputError, with the reason, where it cannot run."""
    return noise.load_backend("triton")


def _blocks(first: int, tensors: Sequence[Tensor]) -> Iterator[tuple[int, list[Tensor]]]:
    """Cut tensors of one shape into (position, parts of at most ``BLOCK`` elements) in row-major order."""
    size = tensors[0].numel()
    if size <= BLOCK:
        yield first, list(tensors)
    elif all(tensor.is_contiguous() for tensor in tensors):
        for a in range(0, size, BLOCK):
            yield first + a, [tensor.view(-1)[a : a + BLOCK] for tensor in tensors]
    else:
        row = size // tensors[0].shape[0]
        rows = max(BLOCK // row, 1)
        for a in range(0, tensors[0].shape[0], rows):
            part = [tensor[a] if rows == 1 else tensor[a : a + rows] for tensor in tensors]
            yield from _blocks(first + a * row, part)


def blocks_of(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The numbers of consecutive tensors that one pass can take as one vector, as it would take longer to begin many.

    They are contiguous, float32 or float64, alike in type and device, and of at most ``BLOCK`` elements together; any
    other tensor stands alone.
    """
    blocks: list[list[int]] = []
    size, last = 0, None
    for n, tensor in enumerate(tensors):
        whole = tensor.is_contiguous() and tensor.dtype in (torch.float32, torch.float64)
        kind = (tensor.dtype, tensor.device) if whole else None
        size += tensor.numel()
        if kind is None or kind != last or size > BLOCK:
            blocks.append([])
            size = tensor.numel()
        blocks[-1].append(n)
        last = kind
    return blocks


def _run(
    program: Program, tensors: Sequence[Tensor], d: int, first: int, backend: str | Backend, workers: int, store: bool
) -> int:
    """Run the program on tensors of one shape, elements first.. of R^d; returns the number of broken limits."""
    if tensors[0].numel() == 0:
        return 0
    if tensors[0].is_cuda:
        return int(_triton().run_on_device(program, tensors, d=d, first=first, store=store))
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) == 1 and not dtypes & set(_HALF) and all(tensor.is_contiguous() for tensor in tensors):
        memory = {name: tensor.view(-1).numpy() for name, tensor in zip(program.names, tensors, strict=True)}
        return noise.run(program, memory, d=d, first=first, backend=backend, workers=workers, store=store)
    require(not (torch.float64 in dtypes and dtypes & set(_HALF)), "dtypes", "not mix 64 and 16 bits", dtypes)
    wide = torch.float64 if torch.float64 in dtypes else torch.float32

    def through_a_copy(block: tuple[int, list[Tensor]]) -> int:
        first_of_block, parts = block
        # Row-major whatever the strides: position j is the element's place in reshape(-1).
        copies = [part.to(wide, copy=True, memory_format=torch.contiguous_format).view(-1) for part in parts]
        memory = {name: copy.numpy() for name, copy in zip(program.names, copies, strict=True)}
        broken = noise.run(program, memory, d=d, first=first_of_block, backend=backend, store=store)
        if store:
            for part, copy in zip(parts, copies, strict=True):
                part.copy_(copy.view(part.shape))
        return broken

    blocks = _blocks(first, tensors)
    if workers == 1 or tensors[0].numel() <= BLOCK:
        return sum(map(through_a_copy, blocks))
    with ThreadPoolExecutor(workers) as pool:
        return sum(pool.map(through_a_copy, blocks))


def rebuild_(
    program: Program | Sequence[Program],
    pieces: Sequence[Mapping[str, Tensor]],
    *,
    backend: str | Backend | None = None,
    workers: int | None = None,
) -> None:
    """Apply ``program`` in place to a model given as consecutive pieces, each in one pass.

    Args:
        program: The instructions, for all pieces or for each its own.
        pieces: The pieces of the model (tensors, layers, or the whole), each a tensor for every name of the
            program, all of one shape and device, of float32, float64, bfloat16 or float16, and of any strides
            that hold each element once. A piece's elements take their places in row-major order.
        backend: See ``noise.run``; None chooses by device.
        workers: CPU threads; None for torch's number of threads.

    Raises:
        InputError: If tensors do not fit together, or a limit of the program would be broken: then nothing is
            written.
    """
    require(bool(pieces), "pieces", "hold at least one piece", pieces)
    workers = torch.get_num_threads() if workers is None else require_int("workers", workers, 1)
    programs = [program] * len(pieces) if isinstance(program, Program) else program
    require(len(programs) == len(pieces), "programs", f"be as many as the pieces, {len(pieces)}", len(programs))
    parts = []
    known = f"be one of {', '.join(map(str, _DTYPES))}"
    for of_piece, piece in zip(programs, pieces, strict=True):
        require(set(piece) == set(of_piece.names), "piece", f"hold {of_piece.names}", tuple(piece))
        tensors = [piece[name].detach() for name in of_piece.names]
        like = tensors[0]
        for name, tensor in zip(of_piece.names, tensors, strict=True):
            require(tensor.dtype in _DTYPES, f"dtype of {name}", known, tensor.dtype)
            require(tensor.shape == like.shape, f"shape of {name}", f"be {tuple(like.shape)}", tuple(tensor.shape))
            require(tensor.device == like.device, f"device of {name}", f"be {like.device}", tensor.device)
            reached = tensor.device.type in ("cpu", "cuda")
            require(reached, f"device of {name}", "be a CPU or CUDA device", tensor.device)
            reach = 0  # elements that the dimensions of smaller stride reach over
            for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
                rule = "hold each element once (no expanded or overlapping view)"
                require(size == 1 or stride > reach, name, rule, (tuple(tensor.shape), tensor.stride()))
                reach += (size - 1) * stride
        parts.append((of_piece, tensors))
    backend = backend_for(parts[0][1][0]) if backend is None else backend
    d = sum(tensors[0].numel() for _, tensors in parts)
    require(d > 0, "pieces", "hold at least one element", d)

    # Where there are limits, nothing is stored before it is known that all elements stay within them.
    for store in (False, True) if any(of_piece.limited for of_piece in programs) else (True,):
        broken = first = 0
        for of_piece, tensors in parts:
            broken += _run(of_piece, tensors, d, first, backend, workers, store)
            first += tensors[0].numel()
        if broken and not store:
            lines = [line for of_piece in programs for line in of_piece.instructions]
            limits = {line.value for line in lines if line.op is noise.Op.LIMIT}
            raise InputError(
                f"updates must stay within their limits {sorted(limits)}, but do not at {broken} elements "
                "(counted once a step): nothing was changed; a coarser grid or a smaller step would fit"
            )


def axpy_(
    y: Tensor,
    seed: int,
    coefficients: Sequence[float],
    *,
    d: int,
    first: int,
    first_p: int,
    distribution: Distribution,
) -> None:
    """``noise.axpy`` on contiguous y of 32 or 64 bits, (n,), on CPU or GPU: elements first to first + n of R^d."""
    program = Program(["y"])
    program.noise("y", seed, coefficients, distribution, first_p)
    _run(program, [y], d, first, backend_for(y), workers=1, store=True)


def form_points_(
    points: Tensor,
    x: Tensor,
    streams: Sequence[tuple[int, int]],
    coefficients: Sequence[float],
    distribution: Distribution,
    *,
    backend: str | Backend | None = None,
    workers: int | None = None,
) -> None:
    """Write points[n] ← fl(x + fl(c_n · z(seed_n, p_n))) for all n: on a GPU in one launch, each direction made once.

    A coefficient that is 0 as a float32 copies x, NaN and -0 included.

    Args:
        points: Contiguous (n, d), of x's type, or float32 if x has 16 bits.
        x: Contiguous (d,), on the points' device.
        streams: (seed, p) of each point's direction, as ``seeds.stream_of`` gives them.
        coefficients: c_n, rounded to float32.
        distribution: The distribution of z.
        backend: See ``noise.run``; None chooses by device.
        workers: CPU threads; None for torch's number of threads.

    Raises:
        InputError: If tensors, streams and coefficients do not fit together, a seed or p is out of range, or the
            backend cannot run here.
    """
    points, x = points.detach(), x.detach()
    require(x.ndim == 1 and x.is_contiguous() and x.dtype in _DTYPES, "x", "be a contiguous vector", (x.dtype, x.shape))
    wide = torch.float32 if x.dtype in _HALF else x.dtype
    shape = (len(streams), x.numel())
    fits = tuple(points.shape) == shape and points.is_contiguous() and points.dtype == wide
    require(fits, "points", f"be contiguous {wide} {shape}", (points.dtype, tuple(points.shape)))
    require(points.device == x.device, "device of points", f"be {x.device}", points.device)
    require(len(coefficients) == len(streams), "coefficients", f"be {len(streams)}", len(coefficients))
    workers = torch.get_num_threads() if workers is None else require_int("workers", workers, 1)
    backend = "triton" if points.is_cuda else backend_for(points) if backend is None else backend
    c = np.asarray(coefficients, dtype=np.float64).astype(np.float32)
    if not points.numel():
        return
    moving = [stream for stream, c_n in zip(streams, c, strict=True) if c_n] or [*streams[:1]]
    rows: dict[tuple[int, int], list[int]] = {}  # of each direction the numbers of its points
    for n, stream in enumerate(streams):  # a copy of x needs no direction: it goes with one that is made anyway
        rows.setdefault(stream if c[n] else moving[0], []).append(n)
    if backend == "triton":
        _triton().form_points(points, x, rows, c, distribution, d=x.numel())
        return
    points.copy_(x)
    program = Program([str(n) for n in range(len(streams))])
    for (seed, p), numbers in rows.items():
        program.fill(SCRATCH, -0.0)  # -0 + z is z, to the bit
        program.noise(SCRATCH, seed, [1.0], distribution, p)
        for n in numbers:
            if c[n]:
                program.add(str(n), SCRATCH, float(c[n]))
    if c.any():
        memory = {name: point.numpy() for name, point in zip(program.names, points, strict=True)}
        noise.run(program, memory, d=x.numel(), backend=backend, workers=workers)


def project(
    vectors: Tensor,
    streams: Sequence[tuple[int, int]],
    *,
    distribution: Distribution = Distribution.GAUSSIAN,
    backend: str | None = None,
    workers: int | None = None,
) -> Tensor:
    """``noise.project`` of vectors v_i, contiguous (m, d): float64 (m, P), where the vectors are; errors as there.

    On a GPU the vectors stay where they lie, and the host does not wait for the products. None for the backend chooses
    by device, for the workers it is torch's number of threads.
    """
    vectors = vectors.detach()
    fits = vectors.ndim == 2 and vectors.is_contiguous() and vectors.dtype in (torch.float32, torch.float64)
    message = "be contiguous float32 or float64 (m, d)"
    require(fits and vectors.numel() > 0, "vectors", message, (vectors.dtype, tuple(vectors.shape)))
    workers = torch.get_num_threads() if workers is None else require_int("workers", workers, 1)
    if vectors.is_cuda or backend == "triton":
        on_device: Tensor = _triton().project_on_device(vectors, streams, distribution)
        return on_device
    products = noise.project(vectors.numpy(), streams, distribution=distribution, backend=backend, workers=workers)
    return torch.from_numpy(products)
