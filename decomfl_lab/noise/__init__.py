"""Directions z from counters: any slice of any direction, the same bits from every backend.

    z(seed, p)[j]   is a pure function; nothing is stored and no global generator is touched.

``direction`` returns a slice, ``axpy`` adds the directions of a step to a vector in place, ``run`` applies a
whole ``Program`` (many steps, with the optimizer's state) in one pass over the model. The specification is in
``spec``, the implementation to read in ``reference``; ``numba_cpu`` and ``triton_gpu`` are the fast ones.
"""

from decomfl_lab.noise.backends import (
    BACKENDS,
    SLICE,
    Backend,
    available_backends,
    axpy,
    cpu_backend,
    direction,
    load_backend,
    project,
    run,
    sphere_scale,
    sphere_scales,
    stream_arrays,
)
from decomfl_lab.noise.program import SCRATCH, Format, Op, Program, is_sphere
from decomfl_lab.noise.spec import STREAM_VERSION, Distribution, derive_seed, require_distribution

__all__ = [
    "BACKENDS",
    "SCRATCH",
    "SLICE",
    "STREAM_VERSION",
    "Backend",
    "Distribution",
    "Format",
    "Op",
    "Program",
    "available_backends",
    "axpy",
    "cpu_backend",
    "derive_seed",
    "direction",
    "is_sphere",
    "load_backend",
    "project",
    "require_distribution",
    "run",
    "sphere_scale",
    "sphere_scales",
    "stream_arrays",
]
