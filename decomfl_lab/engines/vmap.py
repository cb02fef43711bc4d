"""Many points at once by ``torch.func.vmap``: the engine for devices, where one small net would leave most idle.

    losses      for each sample one batched forward pass over the points x + c z_p of all directions and both signs
    gradients   one batched forward and backward pass over the clients

The matrix of points, the activations, the gradients and the losses stay where x is, and nobody waits for them here. It
is ordinary torch code, so that it is tested on the CPU. On a GPU passes are recorded as CUDA graphs and replayed, so
that the processor launches one graph a pass instead of hundreds of kernels.

Grouped kernels may add in another order than single ones: a value agrees to float32 rounding with that of another
engine, and a gradient also with that of another set of clients.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from decomfl_lab.devices import free_memory
from decomfl_lab.engines.base import Line, SampleLoss, Serial, fits, wide_dtype
from decomfl_lab.errors import InputError
from decomfl_lab.estimators.differences import Point, Values
from decomfl_lab.language.causal_model import Verbalized
from decomfl_lab.layout import Layout
from decomfl_lab.objectives.batch_loss import BatchLoss
from decomfl_lab.objectives.objective import ModuleObjective, RoundedObjective
from decomfl_lab.objectives.trees import row_count, rows, tensors
from decomfl_lab.records.seeds import stream_of
from decomfl_lab.replicas.rebuild import form_points_

ON_CPU = 1 << 28
"""Bytes that a batched pass may take on the CPU; on a GPU it may take half of what is free."""
KEPT = 8
"""CUDA graphs that are kept: each holds the memory of its pass."""
SMALL = 1 << 26
"""Most elements that go into a pass that is recorded: larger ones keep the GPU busy, and copying them would cost."""

Pass = Callable[..., Any]


@dataclass(frozen=True)
class Batches:
    """A module and loss as functions of rows of a matrix of points."""

    module: nn.Module  # the net; its own parameters are not read where ``layout`` has them
    layout: Layout  # places of the parameters in a point
    loss: BatchLoss  # the loss of a batch

    @classmethod
    def of(cls, objective: object) -> "tuple[Batches, ModuleObjective]":
        """The functions of a client's objective, and the objective with its data; InputError for an unknown kind."""
        inner = objective.narrow if isinstance(objective, RoundedObjective) else objective
        if not isinstance(inner, ModuleObjective):
            raise InputError(f"objective must be a ModuleObjective for the batched engine, got {objective!r}")
        return cls(inner.module, inner.layout, inner.measure), inner

    def value(self, x: Tensor, inputs: Any, targets: Any) -> Tensor:
        """f(x) on a batch; outputs in 16 bits are widened to float32 before the loss."""
        return self.loss.at(self.module, self.layout.named(x.to(self.layout.dtype)), inputs, targets)

    def losses(self, points: Tensor, inputs: Any, targets: Any) -> Tensor:
        """f(x_n), shape (n,), at each row of ``points`` (n, d), all on the same batch."""
        # Fused attention takes a point at a time under vmap, and a GPU's refuses a mask that the points share (torch
        # 2.13, pytorch/pytorch#161310): here it is plain products.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            values: Tensor = vmap(self.value, (0, None, None))(points, inputs, targets)
        return values

    def gradients(self, points: Tensor, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """∇f(x_n) (n, d) and f(x_n) (n,), each on a batch of its own."""
        with sdpa_kernel(SDPBackend.MATH):  # of fused attention vmap differentiates a point at a time
            return vmap(grad_and_value(self.value))(points, inputs, targets)

    def floats(self, x: Tensor, inputs: Any, targets: Any) -> int:
        """Elements of all layers' outputs at x for a batch."""
        count = 0

        def add(_module: nn.Module, _inputs: Any, output: Any) -> None:
            nonlocal count
            count += output.numel() if isinstance(output, Tensor) else 0

        # The outputs of the layers that hold no others are counted, in a pass of one example where a loss may be cut.
        handles = [part.register_forward_hook(add) for part in self.module.modules() if not list(part.children())]
        try:
            n = row_count(inputs) or 1
            last = n - 1 if self.loss.additive else 0  # of prompts in order of length the longest
            with torch.no_grad():
                self.value(x, rows(inputs, slice(last, n)), rows(targets, slice(last, n)))
        finally:
            for handle in handles:
                handle.remove()
        return count * (n if self.loss.additive else 1)


class Passes:
    """Batched passes of nets, on a GPU as CUDA graphs."""

    def __init__(self) -> None:
        self._floats: dict[tuple[nn.Module, tuple[torch.Size, ...]], int] = {}
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], Any]] = {}
        self._passes = 0
        self._last: dict[Any, int] = {}  # the number of the last pass of each shape

    def at_once(self, tasks: Sequence[tuple[Batches, tuple[Any, Any]]], x: Tensor, vectors: int) -> int:
        """How many points fit in memory together, each with ``vectors`` of its size and of its activations.

        It is the least of all tasks, a net and its data, one after another.
        """
        largest = 1  # bytes of a point
        for batches, data in tasks:
            key = (batches.module, _shapes(data))
            if key not in self._floats:
                self._floats[key] = batches.floats(x, *data)
            largest = max(largest, 4 * vectors * (batches.layout.d + self._floats[key]))
        room = (free_memory(x.device) or 2 * ON_CPU) // 2
        return max(1, room // largest)

    def run(self, batches: Batches, work: Pass, *tensors: Any) -> Any:
        """``work(*tensors)``; on a GPU by a graph of its kernels, for ``KEPT`` of the shapes that come again.

        Language models, which look at their prompts to cut them, large passes and trees of tensors are not recorded.
        """
        plain = all(isinstance(tensor, Tensor) for tensor in tensors) and tensors[0].is_cuda
        large = not plain or sum(tensor.numel() for tensor in tensors) > SMALL
        if large or isinstance(batches.module, Verbalized):
            return work(*tensors)
        key = (batches, work.__name__, tensors[0].device, *((tensor.shape, tensor.dtype) for tensor in tensors))
        with torch.cuda.device(tensors[0].device):
            return self._by_graph(key, work, tensors)

    def _by_graph(self, key: Any, work: Pass, tensors: Sequence[Tensor]) -> Any:
        """``work(*tensors)`` by the graph of these shapes, where there is one or it is worth recording."""
        self._passes += 1
        before, self._last[key] = self._last.get(key), self._passes
        if key not in self._graphs:
            # A recording takes as long as some passes, and some shapes come but once. Where it needs another's place,
            # that is the one that was idle longest, and idle since these shapes came before: of more shapes in turn
            # than there are places the first stay.
            if before is None:
                return work(*tensors)
            if len(self._graphs) == KEPT:
                idle = min(self._graphs, key=self._last.__getitem__)
                if self._last[idle] > before:
                    return work(*tensors)
                del self._graphs[idle]
            self._graphs[key] = self._recorded(work, tensors)
        # A graph reads and writes fixed places: what goes in is copied there, what comes out before the next replay.
        graph, places, out = self._graphs[key]
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor)
        graph.replay()
        return tree_map(Tensor.clone, out)

    @staticmethod
    def _recorded(work: Pass, tensors: Sequence[Tensor]) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Any]:
        places = [tensor.clone() for tensor in tensors]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries choose their kernels and take their memory before the recording
            for _ in range(3):
                work(*places)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = work(*places)
        return graph, places, out


class Batched:
    """Many points in one batched pass, where x is; see ``vmap``."""

    def __init__(self, *, strict: bool = True) -> None:
        """An engine; without ``strict`` it falls back to ``Serial`` for objectives that it lacks."""
        self.strict = strict
        self._passes = Passes()
        self._points: Tensor | None = None
        self._serial = Serial()

    def losses(self, line: Line, points: Sequence[Point], samples: Sequence[SampleLoss]) -> Values:
        """See ``Engine``."""
        tasks = self._tasks(samples)
        if tasks is None:
            return self._serial.losses(line, points, samples)
        # Beside each point and its activations a forward pass needs room for some of their kind: 4 in all are reckoned,
        # and 8 with the backward pass.
        count = min(len(points), self._passes.at_once(tasks, line.x, 4))
        if self._points is None or len(self._points) < count or not fits(self._points[0], line.x):
            self._points = None  # before there is another
            self._points = torch.empty(count, line.x.numel(), dtype=wide_dtype(line.x), device=line.x.device)
        values: list[list[Tensor]] = [[] for _ in samples]
        for a in range(0, len(points), count):
            # The points of one pass are formed into the rows of a matrix that is kept, then every sample's net is
            # asked.
            part = points[a : a + count]
            matrix = self._points[: len(part)]
            # The kernel that forms many points at once knows no scaled directions.
            if line.scale is not None:
                for point, (p, c) in zip(matrix, part, strict=True):
                    line.form_([point], p, c)
            else:
                streams, coefficients = [stream_of(line.seed, p) for p, _ in part], [c for _, c in part]
                options: Any = {"backend": line.replica.backend, "workers": line.replica.workers}
                form_points_(matrix, line.x, streams, coefficients, line.distribution, **options)
            for of_sample, (batches, data) in zip(values, tasks, strict=True):
                of_sample.append(self._passes.run(batches, batches.losses, matrix, *data))
        return torch.stack([torch.cat(of_sample) for of_sample in values]).double()

    def gradients(self, points: Sequence[Tensor], samples: Sequence[SampleLoss]) -> tuple[Values, Tensor]:
        """See ``Engine``."""
        tasks = self._tasks(samples)
        if tasks is None or any(isinstance(batches.module, Verbalized) for batches, _ in tasks):  # it cuts its prompts
            return self._serial.gradients(points, samples)
        # Clients whose nets and batches have the same shapes go through together, each at its own x and batch.
        alike = len({(batches, _shapes(data)) for batches, data in tasks}) == 1
        count = self._passes.at_once(tasks[:1], points[0], 8) if alike else 1
        losses, gradients = [], []
        for a in range(0, len(samples), count):
            batches = tasks[a][0]
            x = torch.stack([point.to(wide_dtype(point)) for point in points[a : a + count]])
            data = tree_map(lambda *rows: torch.stack(rows), *(data for _, data in tasks[a : a + count]))
            slopes, values = self._passes.run(batches, batches.gradients, x, *data)
            losses.append(values)
            gradients.append(slopes)
        return torch.cat(losses).double(), torch.cat(gradients)

    def _tasks(self, samples: Sequence[SampleLoss]) -> list[tuple[Batches, tuple[Any, Any]]] | None:
        """Each sample's net and its (inputs, targets); None where one is not covered and ``Serial`` may take over."""
        try:
            covered = [(*Batches.of(objective), step) for objective, step in samples]
        except InputError:
            if self.strict:
                raise
            return None
        return [(batches, objective.batch(step)) for batches, objective, step in covered]

    def release(self) -> None:
        """See ``Engine``."""
        self._points = None
        self._serial.release()


def _shapes(tree: Any) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in tensors(tree))
