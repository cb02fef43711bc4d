"""Directions z from counters: any slice of any direction, the same bits from every backend.

    z(seed, p)[j]   is a pure function; nothing is stored and no global generator is touched.

``directions`` returns a slice, ``axpy`` adds many directions to a vector in place. The specification is in
``spec``, the implementation to read in ``reference``, the fast one in ``numba_cpu``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import require, require_choice, require_int
from decomfl_lab.noise import numba_cpu, reference
from decomfl_lab.noise.spec import STREAM_VERSION, Distribution, derive_seed

__all__ = [
    "BACKENDS",
    "DEFAULT_BACKEND",
    "STREAM_VERSION",
    "Distribution",
    "axpy",
    "derive_seed",
    "direction",
]

BACKENDS: dict[str, ModuleType] = {"numpy": reference, "numba": numba_cpu}
DEFAULT_BACKEND = "numba"


def _backend(name: str) -> ModuleType:
    return BACKENDS[require_choice("backend", name, BACKENDS)]


@lru_cache(maxsize=4096)
def _sphere_scale(seed: int, p: int, d: int, backend: str) -> float:
    """√d / ‖g‖ of direction p: the factor that puts a gaussian direction on the sphere of radius √d."""
    return math.sqrt(d / _backend(backend).gaussian_square_sums(seed, p, d))


def _check(seed: int, first: int, count: int, d: int) -> None:
    require_int("seed", seed, 0, 2**64 - 1)
    require_int("d", d, 1)
    require_int("first", first, 0)
    require(first + count <= d, "first + count", f"be at most d={d}", first + count)


def direction(
    seed: int,
    p: int,
    d: int,
    *,
    first: int = 0,
    count: int | None = None,
    distribution: Distribution = Distribution.GAUSSIAN,
    backend: str = DEFAULT_BACKEND,
) -> NDArray[np.float32]:
    """Elements first..first+count-1 of z(seed, p) in R^d.

    Args:
        seed: The local step's 64-bit seed s_r^k.
        p: Direction, 0-based.
        d: Dimension of the whole direction.
        first: First element wanted.
        count: How many; None for all from ``first`` on.
        distribution: Law of z.
        backend: "numpy" (reference) or "numba"; the bits are the same.

    Returns:
        float32 array of shape (count,).

    Raises:
        InputError: If a number is out of range or the backend is unknown.

    Source: stream version 1 (``spec``).
    """
    count = d - first if count is None else count
    _check(seed, first, count, d)
    require_int("p", p, 0, 2**32 - 1)
    require_int("count", count, 0)
    scale = _sphere_scale(seed, p, d, backend) if distribution is Distribution.SPHERE else 1.0
    z: NDArray[np.float32] = _backend(backend).directions(seed, p, first, count, distribution, scale)
    return z


def axpy(
    y: NDArray[np.float32] | NDArray[np.float64],
    seed: int,
    coefficients: Sequence[float] | NDArray[np.float32] | NDArray[np.float64],
    *,
    d: int,
    first: int = 0,
    first_p: int = 0,
    distribution: Distribution = Distribution.GAUSSIAN,
    backend: str = DEFAULT_BACKEND,
) -> None:
    """In place, for p = first_p, first_p + 1, ... in turn: y_j ← fl(y_j + fl(c_p · z(seed, p)[first + j])).

    Args:
        y: Contiguous float32 or float64 slice of a vector of d elements; sums are rounded in its precision.
        seed: The local step's 64-bit seed.
        coefficients: c_p, shape (P,), rounded to float32.
        d: Dimension of the whole vector.
        first: Position of y[0] in it.
        first_p: Direction of the first coefficient.
        distribution: Law of z.
        backend: "numpy" or "numba"; the bits are the same.

    Raises:
        InputError: If y is not a contiguous float vector, or a number is out of range.
    """
    _check(seed, first, y.size, d)
    require(
        y.ndim == 1 and y.flags.c_contiguous and y.dtype in (np.float32, np.float64),
        "y",
        "be a contiguous float32 or float64 vector",
        (y.dtype, y.shape),
    )
    c = np.ascontiguousarray(coefficients, dtype=np.float32)
    scales = np.ones(c.size)
    if distribution is Distribution.SPHERE:
        scales[:] = [_sphere_scale(seed, first_p + p, d, backend) for p in range(c.size)]
    _backend(backend).axpy(y, first, seed, c, first_p, distribution, scales)
