"""A point a thread."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.engines.base import Line, SampleLoss, Serial, fits, point_for
from decomfl_lab.errors import require_int
from decomfl_lab.estimators.differences import Point
from decomfl_lab.objectives.modules import copied
from decomfl_lab.objectives.objective import ModuleObjective, Objective, mean_losses


class Seat:
    """What a thread works with: points and, by module, copies to run and nets with their memory."""

    def __init__(self) -> None:
        self._points: list[Tensor] = []
        self._kept: dict[object, Any] = {}

    def points(self, x: Tensor, count: int) -> list[Tensor]:
        """Vectors like x, or wider if x has 16 bits."""
        self._points = [point for point in self._points if fits(point, x)]
        self._points += [point_for(x) for _ in range(count - len(self._points))]
        return self._points[:count]

    def once(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """What ``make(*arguments)`` gives; each is made once for this thread and kept."""
        if (make, *arguments) not in self._kept:
            self._kept[make, *arguments] = make(*arguments)
        return self._kept[make, *arguments]


class Threads:
    """A point a thread: each thread forms its own with one-threaded torch and evaluates all samples there.

    As many threads as torch has where ``losses`` is called, so that processes that share a machine and set
    ``torch.set_num_threads`` stay within it. x + c z and x - c z are formed together, from one z. Each thread needs
    two points, and a copy of what the module holds beside its parameters.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = None if workers is None else require_int("workers", workers, 1)
        self._serial = Serial()
        self._pool: ThreadPoolExecutor | None = None
        self._free: SimpleQueue[Seat] = SimpleQueue()
        self.size = 0

    def losses(self, line: Line, points: Sequence[Point], samples: Sequence[SampleLoss]) -> NDArray[np.float64]:
        """See ``Engine``. Samples of no ``ModuleObjective`` of tensors on the CPU are left to ``Serial``."""
        jobs = [self._job(objective, line.x, step) for objective, step in samples]
        if None in jobs:
            return self._serial.losses(line, points, samples)
        values = np.empty((len(jobs), len(points)))
        self._threads()
        # Points that are formed together: neighbours x + c z_p and x - c z_p, or one alone.
        units: list[list[int]] = []
        for n, (p, c) in enumerate(points):
            if units and len(units[-1]) == 1 and c and points[units[-1][0]] == (p, -c):
                units[-1].append(n)
            else:
                units.append([n])
        even = len(units) // self.size * self.size  # what is left over is taken apart, so that no thread waits long
        units = units[:even] + [[n] for unit in units[even:] for n in unit]
        groups = min(len(jobs), -(-self.size // len(units)))  # of samples, where there are more threads than units

        def evaluate(seat: Seat, unit: list[int], first: int) -> None:
            group = range(first, len(jobs), groups)
            values[np.ix_(group, unit)] = self._values(seat, line, [points[n] for n in unit], [jobs[i] for i in group])

        self._share(evaluate, product(units, range(groups)))
        return values

    def _values(self, seat: Seat, line: Line, points: Sequence[Point], jobs: Sequence[Any]) -> NDArray[np.float64]:
        """The jobs' losses at one point, or at x + c z and x - c z, (jobs, points)."""
        formed = seat.points(line.x, len(points))
        line.form_(formed, *points[0], workers=1)
        return np.array([[job(seat, point) for job in jobs] for point in formed]).T

    def gradients(self, points: Sequence[Tensor], samples: Sequence[SampleLoss]) -> tuple[NDArray[np.float64], Tensor]:
        """See ``Engine``; by torch's autograd and its own threads."""
        return self._serial.gradients(points, samples)

    def _share(self, work: Callable[..., None], items: Iterable[tuple[Any, ...]]) -> None:
        """``work(seat, *item)`` for every item, by all threads."""
        pool = self._threads()
        todo = deque(items)

        def until_none_is_left() -> None:  # handing over each item by itself would take as long as its noise
            seat = self._free.get()
            try:
                while todo:
                    try:
                        item = todo.popleft()
                    except IndexError:  # another thread was faster
                        break
                    work(seat, *item)
            finally:
                self._free.put(seat)

        for done in [pool.submit(until_none_is_left) for _ in range(self.size)]:
            done.result()

    def _job(self, objective: Objective, x: Tensor, step: int) -> Any:
        """A sample as ``_values`` takes it, or None for one that is left to ``Serial``."""
        if not isinstance(objective, ModuleObjective) or x.is_cuda:
            return None
        inputs, targets = objective.batch(step)

        def loss(seat: Seat, point: Tensor) -> float:
            module = seat.once(copied, objective.module)
            objective.layout.bind(module, point)
            return mean_losses(module, [objective.measure], inputs, targets, objective.chunk)[0]

        return loss

    def _threads(self) -> ThreadPoolExecutor:
        """The pool, with a free ``Seat`` for each of its threads; made anew where their number has changed."""
        of_torch = torch.get_num_threads()
        count = of_torch if self.workers is None else self.workers
        if self._pool is None or self.size != count:
            if self._pool is not None:
                self._pool.shutdown()
            started = threading.Barrier(count)

            def alone(_: int) -> None:
                torch.set_num_threads(1)
                started.wait()  # so that no thread takes two of these

            self._pool, self.size, self._free = ThreadPoolExecutor(count), count, SimpleQueue()
            for _ in self._pool.map(alone, range(count)):  # each thread once
                self._free.put(Seat())
            torch.set_num_threads(of_torch)  # OpenMP counts by thread, but threads yet to start ask torch
        return self._pool

    def release(self) -> None:
        """See ``Engine``. The threads' points stay: all clients of a simulation share them."""
        self._serial.release()
