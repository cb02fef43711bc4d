"""Engines: who evaluates the losses f_i(x + c z_p), or the gradients ∇f_i(x), of a local step, and how.

A round is almost only forward passes, or by gradient projection one forward and one backward pass a client. An engine
is told all of a step's points, and all the clients that measure at them, at once; it chooses order, grouping and
threads. Values of different engines agree to float32 rounding. What follows from the scalars (records, replay, digests)
is exact with any of them.

    plain     a point at a time, the batch in one pass, torch's own threads: how one would write it
    serial    a point at a time, each objective in its own chunks, torch's own threads; any objective
    threads   a point a thread, each with one-threaded torch, a copy of the module and points of its own
    fused     the same with the whole forward pass as one kernel, for nets (``kernels.cnn``) and language models
              (``kernels.language``) that it covers
    batched   many points in one batched pass, on the device where x is (``vmap``)
    auto      on the CPU fused where it can, else threads, else serial; language models that fused does not cover get
              serial. On a GPU batched where it can, else serial
"""

from __future__ import annotations

from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from decomfl_lab.errors import require_choice
from decomfl_lab.estimators.differences import Point, Values

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.engines.base import Engine, Line, SampleLoss


class Automatic:
    """``Fused`` for points on the CPU and ``Batched`` for points on a GPU, with what those fall back to."""

    def __init__(self) -> None:
        # Imported here, so that engines can be listed without torch and numba.
        from decomfl_lab.engines.kernels.engine import Fused
        from decomfl_lab.engines.vmap import Batched

        # Without ``strict`` an engine hands what it lacks to a slower one.
        self._on_cpu: Engine = Fused(strict=False)
        self._on_gpu: Engine = Batched(strict=False)

    def losses(self, line: Line, points: Sequence[Point], samples: Sequence[SampleLoss]) -> Values:
        """See ``Engine``."""
        return self._at(line.x).losses(line, points, samples)

    def gradients(self, points: Sequence[Tensor], samples: Sequence[SampleLoss]) -> tuple[Values, Tensor]:
        """See ``Engine``."""
        return self._at(points[0]).gradients(points, samples)

    def _at(self, x: Tensor) -> Engine:
        return self._on_gpu if x.is_cuda else self._on_cpu

    def release(self) -> None:
        """See ``Engine``."""
        for engine in (self._on_cpu, self._on_gpu):
            engine.release()


ENGINES = {
    "auto": "registry:Automatic",
    "fused": "kernels.engine:Fused",
    "threads": "threads:Threads",
    "batched": "vmap:Batched",
    "serial": "base:Serial",
    "plain": "base:Plain",
}
"""The module and class of every engine, which is imported when it is made."""


def make_engine(name: str) -> Engine:
    """The engine ``name``, a key of ``ENGINES``; InputError if there is none."""
    made: Engine = resolve_name(f"{__package__}.{ENGINES[require_choice('engine', name, ENGINES)]}")()
    return made
