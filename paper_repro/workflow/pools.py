"""The processes that compute runs."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import joblib

from decomfl_lab.children import safely

__all__ = ["pool_of"]


@contextmanager
def pool_of(n_jobs: int) -> Iterator[joblib.Parallel]:
    """Processes that were started such that a terminal's Ctrl-C, which goes to all, is left to this one.

    Their number is ``n_jobs``, -1 for one a CPU; where it is 1 it is this one.
    """
    # joblib renews processes that have grown large. Where warnings are errors, the thread that does it would end there,
    # and nobody would ever bring the results.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
    with ExitStack() as stack:
        stack.enter_context(safely())
        with _deaf():
            pool = stack.enter_context(joblib.Parallel(n_jobs, backend="loky", return_as="generator_unordered"))
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
