"""Engines: who evaluates the losses f_i(x + c z_p), or the gradients ∇f_i(x), of a local step, and how.

A round is almost only forward passes, or by gradient projection one forward and one backward pass a client. An engine
is told all of a step's points, and all the clients that measure at them, at once; it chooses order, grouping and
threads. Values of different engines agree to float32 rounding. What follows from the scalars (records, replay, digests)
is exact with any of them.

    plain     a point at a time, the batch in one pass, torch's own threads: how one would write it
    serial    a point at a time, each objective in its own chunks, torch's own threads; any objective
    threads   a point a thread, each with one-threaded torch, a copy of the module and points of its own
    fused     the same with the whole forward pass as one kernel, for nets (``fused``) and language models (``opt``)
              that it covers
    batched   many points in one batched pass, on the device where x is (``batched``)
    auto      on the CPU fused where it can, else threads, else serial; of language models those that fused does not
              cover, or of more than ``LARGE`` parameters, get serial. On a GPU batched where it can, else serial
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab import noise
from decomfl_lab.engine.batched import Batches, Passes, fetched
from decomfl_lab.engine.fused import PART, Network, Slopes, Workspace, pixels
from decomfl_lab.engine.opt import Memory, OptNetwork
from decomfl_lab.errors import InputError, require, require_choice, require_int
from decomfl_lab.llm.causal import Verbalized
from decomfl_lab.noise import SCRATCH, Distribution, Program
from decomfl_lab.objective import ModuleObjective, Objective, mean_losses
from decomfl_lab.rebuild import form_points_, rebuild_
from decomfl_lab.replica import Replica
from decomfl_lab.seeds import StepSeed, stream_of
from decomfl_lab.zo import Point

__all__ = ["ENGINES", "Engine", "Line", "Task", "make_engine"]

Task = tuple[Objective, int]
"""A client's loss and the local step that picks its data."""


@dataclass(frozen=True)
class Line:
    """The points x + c z_p of a local step, for all p, formed beside x: x is not touched, so nothing can drift."""

    replica: Replica
    seed: StepSeed  # of the stream
    distribution: Distribution

    @property
    def x(self) -> Tensor:
        """(d,)."""
        return self.replica.x

    def form_(self, points: Sequence[Tensor], p: int, c: float, *, workers: int | None = None) -> None:
        """Write x + c z_p, and to a second point x - c z_p, to ``points`` (d,); z_p is made once.

        Args:
            points: One or two.
            p: Direction.
            c: Coefficient; not 0 for two points.
            workers: Threads; None for the replica's own number.
        """
        points[0].copy_(self.x)
        if not c:
            return
        seed, first = stream_of(self.seed, p)
        program = Program(("up", "down")[: len(points)])
        if len(points) == 1:
            program.noise("up", seed, [c], self.distribution, first=first)
        else:  # x - fl(c z) is x + fl(-c z)
            program.fill(SCRATCH, -0.0)  # -0 + z is z, to the bit
            program.noise(SCRATCH, seed, [c], self.distribution, first=first)
            program.copy("down", "up")
            program.add("up", SCRATCH)
            program.add("down", SCRATCH, -1.0)
        if points[0].is_cuda:
            rebuild_(program, [dict(zip(program.names, points, strict=True))], backend=self.replica.backend)
        else:
            memory = {name: point.numpy() for name, point in zip(program.names, points, strict=True)}
            workers = workers or self.replica.workers or torch.get_num_threads()
            noise.run(program, memory, d=self.x.numel(), backend=self.replica.backend, workers=workers)


class Engine(Protocol):
    """Evaluates losses."""

    def losses(self, line: Line, points: Sequence[Point], tasks: Sequence[Task]) -> NDArray[np.float64]:
        """f_i(x + c z_p; ξ) for every task and every point (p, c), shape (tasks, points).

        A task's values depend on the task and the line alone, not on what else is asked for.
        """
        ...

    def gradients(self, points: Sequence[Tensor], tasks: Sequence[Task]) -> tuple[NDArray[np.float64], Tensor]:
        """f_i(x_i; ξ), shape (tasks,), and ∇f_i(x_i; ξ), float32 or float64 (tasks, d), for each task and its own x_i.

        The gradients are where the points are. A task's values depend on the task and its point alone (of ``Batched``,
        to rounding). InputError for an objective without a gradient.
        """
        ...

    def release(self) -> None:
        """Let go of memory of the size of a model that need not outlive a round."""
        ...


class Serial:
    """One point after another, formed beside x; every objective evaluates as it likes."""

    def __init__(self) -> None:
        self._point: Tensor | None = None

    def losses(self, line: Line, points: Sequence[Point], tasks: Sequence[Task]) -> NDArray[np.float64]:
        """See ``Engine``."""
        if self._point is None or not _fits(self._point, line.x):
            self._point = _point_for(line.x)
        values = np.empty((len(tasks), len(points)))
        for n, (p, c) in enumerate(points):
            line.form_([self._point], p, c)
            for i, (objective, step) in enumerate(tasks):
                values[i, n] = self._loss(objective, self._point, step)
        return values

    def gradients(self, points: Sequence[Tensor], tasks: Sequence[Task]) -> tuple[NDArray[np.float64], Tensor]:
        """See ``Engine``; by torch's autograd."""
        losses = np.empty(len(tasks))
        gradients = torch.empty(len(tasks), points[0].numel(), dtype=_wide(points[0]), device=points[0].device)
        for i, (x, (objective, step)) in enumerate(zip(points, tasks, strict=True)):
            if not hasattr(objective, "value_and_gradient"):
                raise InputError(f"gradient projection needs an objective with a gradient, got {objective!r}")
            losses[i], gradient = objective.value_and_gradient(x.to(_wide(x)), step)
            gradients[i] = gradient
        return losses, gradients

    def _loss(self, objective: Objective, point: Tensor, step: int) -> float:
        return objective(point, step)

    def release(self) -> None:
        """See ``Engine``."""
        self._point = None


class Plain(Serial):
    """What one would write: the whole batch in one forward pass, in torch's default memory order."""

    def _loss(self, objective: Objective, point: Tensor, step: int) -> float:
        if not isinstance(objective, ModuleObjective):
            return objective(point, step)
        objective.layout.bind(objective.module, point)
        inputs, targets = objective.batch(step)
        inputs = inputs.clone(memory_format=torch.contiguous_format)
        return mean_losses(objective.module, [objective.loss], inputs, targets, len(targets))[0]


class _Seat:
    """What a thread works with: points and, by module, copies to run and nets with their memory."""

    def __init__(self) -> None:
        self._points: list[Tensor] = []
        self._modules: dict[nn.Module, nn.Module] = {}
        self._workspaces: dict[Network | OptNetwork, Workspace | Memory] = {}
        self._slopes: dict[Network, tuple[Workspace, Slopes]] = {}

    def points(self, x: Tensor, count: int) -> list[Tensor]:
        """Vectors like x, or wider if x has 16 bits."""
        self._points = [point for point in self._points if _fits(point, x)]
        self._points += [_point_for(x) for _ in range(count - len(self._points))]
        return self._points[:count]

    def module(self, original: nn.Module) -> nn.Module:
        """This seat's copy."""
        if original not in self._modules:
            self._modules[original] = copy.deepcopy(original)
        return self._modules[original]

    def workspace(self, network: Network | OptNetwork) -> Any:
        """This seat's memory for the net."""
        if network not in self._workspaces:
            self._workspaces[network] = network.workspace()
        return self._workspaces[network]

    def slopes(self, network: Network) -> tuple[Workspace, Slopes]:
        """This seat's memory for the net's gradients."""
        if network not in self._slopes:
            self._slopes[network] = network.slopes_workspace()
        return self._slopes[network]


Job = Callable[[_Seat, Tensor], float]
"""A task with its data at hand: the loss at a point."""


class Threads:
    """A point a thread: each thread forms its own with one-threaded torch and evaluates all tasks there.

    As many threads as torch has where ``losses`` is called, so that processes that share a machine and set
    ``torch.set_num_threads`` stay within it. x + c z and x - c z are formed together, from one z. Each thread needs
    two points, and a copy of what the module holds beside its parameters.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = None if workers is None else require_int("workers", workers, 1)
        self._serial = Serial()
        self._pool: ThreadPoolExecutor | None = None
        self._free: SimpleQueue[_Seat] = SimpleQueue()
        self.size = 0

    def losses(self, line: Line, points: Sequence[Point], tasks: Sequence[Task]) -> NDArray[np.float64]:
        """See ``Engine``. Tasks that are no ``ModuleObjective`` of tensors on the CPU are left to ``Serial``."""
        jobs = [job for job in (self._job(objective, line.x, step) for objective, step in tasks) if job is not None]
        if len(jobs) < len(tasks):
            return self._serial.losses(line, points, tasks)
        values = np.empty((len(jobs), len(points)))
        self._threads()
        units = _units(points)
        if len(units) < self.size:
            units = [[n] for n in range(len(points))]
        groups = min(len(jobs), -(-self.size // len(units)))  # of tasks, where there are more threads than units

        def evaluate(seat: _Seat, unit: list[int], first: int) -> None:
            formed = seat.points(line.x, len(unit))
            line.form_(formed, *points[unit[0]], workers=1)
            for n, point in zip(unit, formed, strict=True):
                for i in range(first, len(jobs), groups):
                    values[i, n] = jobs[i](seat, point)

        self._share(evaluate, product(units, range(groups)))
        return values

    def gradients(self, points: Sequence[Tensor], tasks: Sequence[Task]) -> tuple[NDArray[np.float64], Tensor]:
        """See ``Engine``; by torch's autograd and its own threads."""
        return self._serial.gradients(points, tasks)

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

    def _job(self, objective: Objective, x: Tensor, step: int) -> Job | None:
        if not isinstance(objective, ModuleObjective) or x.is_cuda:
            return None
        inputs, targets = objective.batch(step)

        def loss(seat: _Seat, point: Tensor) -> float:
            module = seat.module(objective.module)
            objective.layout.bind(module, point)
            return mean_losses(module, [objective.loss], inputs, targets, objective.chunk)[0]

        return loss

    def _threads(self) -> ThreadPoolExecutor:
        count = torch.get_num_threads() if self.workers is None else self.workers
        if self._pool is None or self.size != count:
            if self._pool is not None:
                self._pool.shutdown()
            own = torch.get_num_threads()
            started = threading.Barrier(count)
            self._pool, self.size, self._free = ThreadPoolExecutor(count), count, SimpleQueue()
            for _ in self._pool.map(lambda _: _alone(started), range(count)):  # each thread once
                self._free.put(_Seat())
            torch.set_num_threads(own)  # OpenMP counts by thread, but threads yet to start ask torch
        return self._pool

    def release(self) -> None:
        """See ``Engine``. The threads' points stay: all clients of a simulation share them."""
        self._serial.release()


def _units(points: Sequence[Point]) -> list[list[int]]:
    """Places of points that are formed together: neighbours x + c z_p and x - c z_p, or one alone."""
    units: list[list[int]] = []
    for n, (p, c) in enumerate(points):
        if units and len(units[-1]) == 1 and c and points[units[-1][0]] == (p, -c):
            units[-1].append(n)
        else:
            units.append([n])
    return units


def _alone(started: threading.Barrier) -> None:
    torch.set_num_threads(1)
    started.wait()  # so that no thread takes two of these


LARGE = 1 << 24
"""Most parameters of a language model that auto takes ``Fused`` for: a thread's own points would need much memory, and
torch is as fast where every product is large."""


class Fused(Threads):
    """``Threads`` with the forward pass as one kernel."""

    def __init__(self, workers: int | None = None, *, strict: bool = True) -> None:
        """An engine; without ``strict`` it falls back to ``Threads`` or ``Serial`` where the kernel lacks something."""
        super().__init__(workers)
        self.strict = strict
        self._networks: dict[tuple[nn.Module, tuple[int, ...]], Network | OptNetwork] = {}

    def _job(self, objective: Objective, x: Tensor, step: int) -> Job | None:
        language = isinstance(objective, ModuleObjective) and isinstance(objective.module, Verbalized)
        if language and not self.strict and x.numel() > LARGE:
            return None
        try:
            network, inputs, labels = self._batch(objective, x, step)
        except InputError:
            if self.strict:
                raise
            return None if language else super()._job(objective, x, step)
        _check_classes(labels, network.classes)
        return lambda seat, point: float(network.losses(point, inputs, labels, seat.workspace(network)).mean())

    def gradients(self, points: Sequence[Tensor], tasks: Sequence[Task]) -> tuple[NDArray[np.float64], Tensor]:
        """See ``Engine``; a gradient is the mean of its batch's, parts of ``PART`` images added in float64."""
        try:
            batches = [self._batch(objective, x, step) for x, (objective, step) in zip(points, tasks, strict=True)]
            covered = all(isinstance(network, Network) for network, _, _ in batches)
            require(covered, "model", "be a net of images for the fused engine's gradients", "a language model")
        except InputError:
            if self.strict:
                raise
            return super().gradients(points, tasks)
        for network, _, labels in batches:
            _check_classes(labels, network.classes)
        sizes = [len(labels) for _, _, labels in batches]
        losses = [np.empty(n) for n in sizes]
        parts: list[list[Any]] = [[None] * -(-n // PART) for n in sizes]

        def part(seat: _Seat, i: int, n: int) -> None:
            network, images, labels = batches[i]
            own = slice(n * PART, (n + 1) * PART)
            out, parts[i][n] = network.gradient(points[i], images[own], labels[own], seat.slopes(network))
            losses[i][own] = out

        self._share(part, [(i, n) for i in range(len(tasks)) for n in range(len(parts[i]))])
        gradients = np.empty((len(tasks), points[0].numel()), dtype=np.float32)
        for i, n in enumerate(sizes):
            total = parts[i][0] if len(parts[i]) == 1 else np.zeros(gradients.shape[1])
            for each in parts[i] if len(parts[i]) > 1 else ():
                total += each
            np.divide(total, n, out=gradients[i], casting="same_kind")
        return np.array([own.mean() for own in losses]), torch.from_numpy(gradients)

    def _batch(self, objective: Objective, x: Tensor, step: int) -> tuple[Any, Any, NDArray[np.int64]]:
        """The objective's net for the kernel, with inputs and targets; InputError if the kernel lacks something."""
        network = self._network(objective, x)
        assert isinstance(objective, ModuleObjective)
        ids, targets = objective.batch(step)
        return network, network.prompts(ids) if isinstance(network, OptNetwork) else pixels(ids), targets.numpy()

    def _network(self, objective: Objective, x: Tensor) -> Network | OptNetwork:
        """The objective's net for the kernel; InputError if there is none, or if it does not compute this loss."""
        if not isinstance(objective, ModuleObjective):
            raise InputError(f"objective must be a ModuleObjective for the fused engine, got {objective!r}")
        module, layout, loss, targets = objective.module, objective.layout, objective.loss, objective.targets
        key = (module, objective.inputs.shape[1:])
        require(loss is cross_entropy, "loss", "be torch's cross_entropy for the fused engine", loss)
        classes = not targets.is_floating_point() and targets.ndim == 1
        require(classes, "targets", "be classes for the fused engine", (targets.dtype, tuple(targets.shape)))
        require(not x.is_cuda, "device", "be the CPU for the fused engine", x.device)
        if key not in self._networks:
            language = isinstance(module, Verbalized)
            self._networks[key] = OptNetwork(module, layout) if language else Network(module, layout, key[1])
        return self._networks[key]


def _check_classes(labels: NDArray[np.int64], classes: int) -> None:
    fits = labels.min() >= 0 and labels.max() < classes
    require(fits, "targets", f"be classes in 0..{classes - 1}", (labels.min(), labels.max()))


def _point_for(x: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=_wide(x))


def _wide(x: Tensor) -> torch.dtype:
    """What x + c z is formed in: the grid of a 16-bit x is too coarse for a step of μ."""
    return x.dtype if x.dtype == torch.float64 else torch.float32


def _fits(point: Tensor, x: Tensor) -> bool:
    return (
        point.shape == x.shape
        and point.device == x.device
        and (point.dtype == torch.float64) == (x.dtype == torch.float64)
    )


class Batched:
    """Many points in one batched pass, where x is; see ``batched``."""

    def __init__(self, *, strict: bool = True) -> None:
        """An engine; without ``strict`` it falls back to ``Serial`` for objectives that it lacks."""
        self.strict = strict
        self._passes = Passes()
        self._points: Tensor | None = None
        self._serial = Serial()

    def losses(self, line: Line, points: Sequence[Point], tasks: Sequence[Task]) -> NDArray[np.float64]:
        """See ``Engine``."""
        found = self._batches(tasks)
        if found is None:
            return self._serial.losses(line, points, tasks)
        count = min(len(points), *(self._passes.at_once(own, line.x, data[0], 4) for own, data in found))
        at = self._matrix(line.x, count)
        values: list[list[Tensor]] = [[] for _ in tasks]
        for a in range(0, len(points), count):
            part = points[a : a + count]
            streams = [stream_of(line.seed, p) for p, _ in part]
            backend, workers = line.replica.backend, line.replica.workers
            c = [c for _, c in part]
            form_points_(at[: len(part)], line.x, streams, c, line.distribution, backend=backend, workers=workers)
            for own, (batches, data) in zip(values, found, strict=True):
                own.append(self._passes.run(batches, batches.losses, at[: len(part)], *data))
        return fetched([torch.cat(own) for own in values])

    def gradients(self, points: Sequence[Tensor], tasks: Sequence[Task]) -> tuple[NDArray[np.float64], Tensor]:
        """See ``Engine``."""
        found = self._batches(tasks)
        if found is None or any(isinstance(own.module, Verbalized) for own, _ in found):  # which cuts its prompts
            return self._serial.gradients(points, tasks)
        alike = len({(batches, data[0].shape) for batches, data in found}) == 1
        count = self._passes.at_once(found[0][0], points[0], found[0][1][0], 8) if alike else 1
        losses, gradients = [], []
        for a in range(0, len(tasks), count):
            batches = found[a][0]
            x = torch.stack([point.to(_wide(point)) for point in points[a : a + count]])
            inputs, targets = (
                torch.stack(own) for own in zip(*(data for _, data in found[a : a + count]), strict=True)
            )
            slopes, values = self._passes.run(batches, batches.gradients, x, inputs, targets)
            losses.append(values)
            gradients.append(slopes)
        return fetched([torch.cat(losses)])[0], torch.cat(gradients)

    def _batches(self, tasks: Sequence[Task]) -> list[tuple[Batches, tuple[Tensor, Tensor]]] | None:
        """Each task's net and its data; None where one is not covered and ``Serial`` may take over."""
        try:
            own = [(*Batches.of(objective), step) for objective, step in tasks]
        except InputError:
            if self.strict:
                raise
            return None
        return [(batches, objective.batch(step)) for batches, objective, step in own]

    def _matrix(self, x: Tensor, rows: int) -> Tensor:
        kept = self._points
        if kept is None or len(kept) < rows or not _fits(kept[0], x):
            self._points = None  # before there is another
            self._points = kept = torch.empty(rows, x.numel(), dtype=_wide(x), device=x.device)
        return kept[:rows]

    def release(self) -> None:
        """See ``Engine``."""
        self._points = None
        self._serial.release()


class Automatic:
    """``Fused`` for points on the CPU and ``Batched`` for points on a GPU, with what those fall back to."""

    def __init__(self) -> None:
        self._engines: tuple[Engine, Engine] = Fused(strict=False), Batched(strict=False)

    def losses(self, line: Line, points: Sequence[Point], tasks: Sequence[Task]) -> NDArray[np.float64]:
        """See ``Engine``."""
        return self._engines[line.x.is_cuda].losses(line, points, tasks)

    def gradients(self, points: Sequence[Tensor], tasks: Sequence[Task]) -> tuple[NDArray[np.float64], Tensor]:
        """See ``Engine``."""
        return self._engines[points[0].is_cuda].gradients(points, tasks)

    def release(self) -> None:
        """See ``Engine``."""
        for engine in self._engines:
            engine.release()


ENGINES: dict[str, Callable[[], Engine]] = {
    "auto": Automatic,
    "fused": Fused,
    "threads": Threads,
    "batched": Batched,
    "serial": Serial,
    "plain": Plain,
}


def make_engine(name: str) -> Engine:
    """The engine ``name``, a key of ``ENGINES``; InputError if there is none."""
    return ENGINES[require_choice("engine", name, ENGINES)]()
