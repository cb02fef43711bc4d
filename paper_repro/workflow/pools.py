"""Who computes runs: processes of this machine, or those of a Ray cluster that shares its folders."""

from __future__ import annotations

import contextlib
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from typing import Final

import joblib

from decomfl_lab.carriers.ray import connect
from decomfl_lab.children import safely
from decomfl_lab.errors import require, require_choice

__all__ = ["BACKENDS", "pool_of", "require_backend"]


@contextmanager
def _ray(n_jobs: int) -> Iterator[None]:
    from ray.util.joblib import register_ray

    connect(None if n_jobs == -1 else n_jobs)
    register_ray()
    yield


BACKENDS: Final[dict[str, Callable[[int], AbstractContextManager[object]]]] = {
    "loky": contextlib.nullcontext,
    "ray": _ray,
}


def require_backend(name: str) -> None:
    """InputError unless ``name`` is one of ``BACKENDS`` and its library is there."""
    require_choice("backend", name, BACKENDS)
    there = name == "loky" or find_spec(name) is not None
    require(there, "backend", f"be loky without the extra {name} (pip install 'decomfl-lab[{name}]')", name)


@contextmanager
def pool_of(backend: str, n_jobs: int) -> Iterator[joblib.Parallel]:
    """Processes that were started such that a terminal's Ctrl-C, which goes to all, is left to this one.

    Args:
        backend: One of ``BACKENDS``.
        n_jobs: The number of processes, -1 for one a CPU; where it is 1 it is this one.
    """
    # joblib renews processes that have grown large. Where warnings are errors, the thread that does it would end there,
    # and nobody would ever bring the results.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
    with ExitStack() as stack:
        stack.enter_context(safely())
        with _deaf():
            stack.enter_context(BACKENDS[backend](n_jobs))
            stack.enter_context(joblib.parallel_config(backend, n_jobs=n_jobs))
            # Clusters give all results at the end; processes of this machine give each as it comes.
            pool = stack.enter_context(
                joblib.Parallel(return_as="generator_unordered" if backend == "loky" else "list")
            )
            # Work for each process, so that all of them are started while SIGINT is ignored.
            list(pool(joblib.delayed(int)() for _ in range(joblib.effective_n_jobs(n_jobs))))
        yield pool


@contextmanager
def _deaf() -> Iterator[None]:
    """Ignore SIGINT, as processes that are started meanwhile go on doing."""
    # Only the main thread may set a handler, and only it gets the signal.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
