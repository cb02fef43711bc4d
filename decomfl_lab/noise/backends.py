"""The backends that make directions, the choice of one, and what any of them does: the functions of the package."""

import importlib
import math
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import InputError, require, require_choice, require_int
from decomfl_lab.noise.program import Code, Op, Program, is_sphere
from decomfl_lab.noise.spec import TILE, Distribution

_T = TypeVar("_T")
Floats = NDArray[np.float32] | NDArray[np.float64]

BACKENDS = {"numpy": "reference", "numba": "numba_cpu", "triton": "triton_gpu"}
"""Name and module of every backend; see ``available_backends`` for those that run here."""


class Backend(Hashable, Protocol):
    """The contract of a backend: the bits of ``reference``. A module with these functions fulfils it."""

    def directions(
        self, key: int, direction: int, first: int, count: int, distribution: Distribution, scale: float
    ) -> NDArray[np.float32]:
        """See ``reference.directions``."""

    def tile_square_sums(self, key: int, direction: int, first_tile: int, tiles: int, d: int) -> NDArray[np.float64]:
        """See ``reference.tile_square_sums``."""

    def run(
        self, code: Code, memory: Sequence[Floats], first: int, scales: NDArray[np.float32], *, store: bool = True
    ) -> int:
        """See ``reference.run``."""


_SUBNORMAL = np.float32(1e-40)


@cache
def _load(name: str) -> Any:
    """The backend's module; ImportError with the reason if it cannot run here."""
    return importlib.import_module(f"{__package__}.{BACKENDS[name]}")


def load_backend(name: str | Backend | None) -> Backend:
    """The backend of this name, or the given one, or for None the fastest on this CPU.

    InputError if the name is unknown, or the backend cannot run here, with the reason; or the processor was told to
    take the smallest numbers for 0, so that no backend would have the stream's bits.
    """
    flushed = _SUBNORMAL * np.float32(1) == 0
    rule = "be off (torch.set_flush_denormal(False)): numbers below 1.2e-38 would be lost, and so bits differ"
    require(not flushed, "the processor's flushing of small numbers to 0", rule, "on")
    if name is not None and not isinstance(name, str):
        return name
    name = cpu_backend() if name is None else require_choice("backend", name, BACKENDS)
    try:
        module: Backend = _load(name)
    except ImportError as error:
        raise InputError(f"backend {name!r} cannot run here: {error}") from None
    return module


@cache
def available_backends() -> tuple[str, ...]:
    """Names of the backends that run on this machine."""
    names = []
    for name in BACKENDS:
        with suppress(ImportError):
            _load(name)
            names.append(name)
    return tuple(names)


@cache
def cpu_backend() -> str:
    """The fastest backend for vectors in the CPU's memory: numba where it is installed, else numpy."""
    return "numba" if "numba" in available_backends() else "numpy"


@cache
def _threads(workers: int) -> ThreadPoolExecutor:
    """Threads that wait for work: starting them anew for every rebuild would cost more than a small rebuild."""
    return ThreadPoolExecutor(workers, thread_name_prefix="decomfl-noise")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # a forked process has the pool but not its threads


def _map(workers: int, work: Callable[[int], _T], items: Sequence[int]) -> Iterable[_T]:
    """``work`` of each item, in order, by so many threads."""
    return map(work, items) if workers == 1 or len(items) == 1 else _threads(workers).map(work, items)


_NORM_TILES = 1 << 11
"""Tiles whose square sums are held at a time."""


@lru_cache(maxsize=1 << 16)
def sphere_scale(seed: int, p: int, d: int, backend: str | Backend | None = None, workers: int = 1) -> float:
    """√d / ‖g‖ of the gaussian direction g = g(seed, p) in R^d: the factor that puts it on the sphere.

    ‖g‖² is a float64 sum over tiles, one after another from the first, of ``reference.tile_square_sums``.
    """
    source = load_backend(backend)
    tiles = -(-d // TILE)
    chunks = range(0, tiles, _NORM_TILES)  # the first tile of each

    def square_sums(first: int) -> NDArray[np.float64]:
        return source.tile_square_sums(seed, p, first, min(_NORM_TILES, tiles - first), d)

    total = 0.0
    for a in range(0, len(chunks), workers):  # as many chunks at a time as can be worked on
        for sums in _map(workers, square_sums, chunks[a : a + workers]):
            total = float(np.add.accumulate(np.concatenate([[total], sums]))[-1])
    return math.sqrt(d / total)


def sphere_scales(
    program: Program, d: int, backend: str | Backend | None = None, workers: int = 1
) -> NDArray[np.float32]:
    """The ``sphere_scale`` of each coefficient of a program; 1 for directions of other distributions."""
    scales = np.ones(program.pairs, dtype=np.float32)
    for instruction in program.instructions:
        if is_sphere(instruction):
            for n in range(instruction.begin, instruction.end):
                p = instruction.first + n - instruction.begin
                scales[n] = sphere_scale(instruction.key, p, d, backend, workers)
    return scales


def _require_inside(first: int, count: int, d: int) -> None:
    require_int("d", d, 1)
    require_int("first", first, 0)
    require(first + count <= d, "first + count", f"be at most d={d}", first + count)


LEAST_WORK = 1 << 20
"""Elements times instructions below which a second thread costs more than it brings."""


def run(
    program: Program,
    memory: Mapping[str, Floats],
    *,
    d: int,
    first: int = 0,
    backend: str | Backend | None = None,
    workers: int = 1,
    store: bool = True,
) -> int:
    """Apply ``program`` in place to elements first.. of vectors in R^d, tile by tile.

    Args:
        program: Instructions of the update.
        memory: A contiguous float32 or float64 vector for each of ``program.names``, all of one size and dtype,
            without common elements; sums are rounded in their precision.
        d: Dimension of the whole vectors.
        first: Position of the vectors' element 0 in them.
        backend: "numpy", "numba", "triton" or your own; None for the fastest on this CPU. The bits are the same.
        workers: Number of threads, each on a slice of its own. The bits are the same.
        store: False only tries the program: nothing is written.

    Returns:
        How many elements broke a LIMIT of the program.

    Raises:
        InputError: If a vector is missing, of another size or dtype, or not contiguous, or does not fit in R^d.
    """
    require(set(memory) == set(program.names), "memory", f"hold {program.names}", tuple(memory))
    vectors = [memory[name] for name in program.names]
    for name, vector in zip(program.names, vectors, strict=True):
        fits = vector.ndim == 1 and vector.flags.c_contiguous and vector.dtype in (np.float32, np.float64)
        require(fits, name, "be a contiguous float32 or float64 vector", (vector.dtype, vector.shape))
        alike = vector.size == vectors[0].size and vector.dtype == vectors[0].dtype
        require(alike, name, f"be like {program.names[0]}", (vector.dtype, vector.size))
    size = vectors[0].size
    _require_inside(first, size, d)
    require_int("workers", workers, 1)
    narrow = any(instruction.op in (Op.NARROW, Op.NARROW_RANDOMLY) for instruction in program.instructions)
    require(not narrow or vectors[0].dtype == np.float32, "dtype", "be float32 where 16 bits are wanted", "float64")
    if not size:
        return 0
    source = load_backend(backend)
    code = program.encode()
    scales = sphere_scales(program, d, backend, workers)
    if size * (len(program.instructions) + program.pairs) < LEAST_WORK:
        workers = 1
    # Slices begin where a tile begins, so that no tile is made twice.
    tiles = (first + size - 1) // TILE - first // TILE + 1
    slice_size = -(-tiles // workers) * TILE
    begins = [0, *range(slice_size - first % TILE, size, slice_size)]

    def run_slice(a: int) -> int:
        b = min([begin for begin in begins if begin > a], default=size)
        return source.run(code, [vector[a:b] for vector in vectors], first + a, scales, store=store)

    return sum(_map(workers, run_slice, begins))


def direction(
    seed: int,
    p: int,
    d: int,
    *,
    first: int = 0,
    count: int | None = None,
    distribution: Distribution = Distribution.GAUSSIAN,
    backend: str | Backend | None = None,
) -> NDArray[np.float32]:
    """Elements first..first+count-1 of z(seed, p) in R^d.

    Args:
        seed: The local step's 64-bit seed s_r^k.
        p: Direction, 0-based.
        d: Dimension of the whole direction.
        first: First element wanted.
        count: How many elements; None for all from ``first`` on.
        distribution: Distribution of z.
        backend: "numpy" (reference), "numba" or "triton"; None for the fastest. The bits are the same.

    Returns:
        float32 array of shape (count,).

    Raises:
        InputError: If a number is out of range or the backend is unknown.

    Source: stream version 1 (``spec``).
    """
    require_int("seed", seed, 0, 2**64 - 1)
    require_int("p", p, 0, 2**32 - 1)
    require_int("d", d, 1)
    require_int("first", first, 0, d)
    count = d - first if count is None else require_int("count", count, 0)
    _require_inside(first, count, d)
    source = load_backend(backend)
    if not count:
        return np.empty(0, dtype=np.float32)
    scale = sphere_scale(seed, p, d, backend) if distribution is Distribution.SPHERE else 1.0
    return source.directions(seed, p, first, count, distribution, scale)


SLICE = 1 << 13
"""Elements whose products with all directions are one sum; a part of the definition of ``project``."""


def stream_arrays(
    streams: Sequence[tuple[int, int]],
    distribution: Distribution,
    d: int,
    backend: str | Backend | None = None,
    workers: int = 1,
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.float32]]:
    """Of P directions (seed, p) in R^d the seeds, the numbers p and the sphere's factors (else 1), (P,) each.

    InputError for a direction that there is not.
    """
    for seed, p in streams:
        require_int("seed", seed, 0, 2**64 - 1)
        require_int("p", p, 0, 2**32 - 1)
    scales = [1.0] * len(streams)
    if distribution is Distribution.SPHERE:
        scales = [sphere_scale(seed, p, d, backend, workers) for seed, p in streams]
    seeds, numbers = [seed for seed, _ in streams], [p for _, p in streams]
    return np.array(seeds, dtype=np.uint64), np.array(numbers, dtype=np.int64), np.array(scales, dtype=np.float32)


def project(
    vectors: Floats,
    streams: Sequence[tuple[int, int]],
    *,
    distribution: Distribution = Distribution.GAUSSIAN,
    backend: str | None = None,
    workers: int = 1,
) -> NDArray[np.float64]:
    """⟨v_i, z(seed_p, p)⟩ for all vectors and directions, in one pass over the vectors; no direction is stored.

    Sums are float64 and taken in a stated order, so the bits depend neither on the backend nor on threads: within a
    tile of 128 by halves, tiles one after another within a slice of 8,192 elements, slices one after another.

    Args:
        vectors: v_i, contiguous float32 or float64 (m, d).
        streams: (seed, p) of each direction, as ``seeds.stream_of`` gives them.
        distribution: Distribution of z.
        backend: "numpy", "numba" or "triton"; None for the fastest on this CPU. The bits are the same.
        workers: Number of threads.

    Returns:
        float64 (m, P).

    Raises:
        InputError: If the vectors are not such a matrix, or a seed or p is out of range.
    """
    fits = vectors.ndim == 2 and vectors.flags.c_contiguous and vectors.dtype in (np.float32, np.float64)
    require(fits and vectors.size > 0, "vectors", "be float32 or float64 (m, d)", (vectors.dtype, vectors.shape))
    source: Any = load_backend(require_choice("backend", backend or cpu_backend(), BACKENDS))
    d = vectors.shape[1]
    seeds, numbers, scales = stream_arrays(streams, distribution, d, None, workers)

    def project_slice(a: int) -> NDArray[np.float64]:
        part = np.ascontiguousarray(vectors[:, a : a + SLICE])
        products: NDArray[np.float64] = source.project(part, a, seeds, numbers, distribution, scales)
        return products

    by_slice = list(_map(workers, project_slice, range(0, d, SLICE)))
    with np.errstate(all="ignore"):  # divergence shows in the scalars, which are checked
        return np.asarray(np.add.accumulate(by_slice, axis=0)[-1])


def axpy(
    y: Floats,
    seed: int,
    coefficients: Sequence[float] | Floats,
    *,
    d: int,
    first: int = 0,
    first_p: int = 0,
    distribution: Distribution = Distribution.GAUSSIAN,
    backend: str | Backend | None = None,
    workers: int = 1,
) -> None:
    """In place, for p = first_p, first_p + 1, ... in turn: y_j ← fl(y_j + fl(c_p · z(seed, p)[first + j])).

    Args:
        y: Contiguous float32 or float64 slice of a vector of d elements; sums are rounded in its precision.
        seed: The local step's 64-bit seed.
        coefficients: c_p, shape (P,), rounded to float32.
        d: Dimension of the whole vector.
        first: Position of y[0] in it.
        first_p: Direction of the first coefficient.
        distribution: Distribution of z.
        backend: See ``run``, as for ``workers`` and the errors.
        workers: Number of threads.
    """
    program = Program(["y"])
    program.noise("y", seed, coefficients, distribution, first_p)
    run(program, {"y": y}, d=d, first=first, backend=backend, workers=workers)
