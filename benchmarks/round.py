"""How fast are the passes of a round? Every engine against the usual way, in one run."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from decomfl_lab.devices import describe, find_device, on_host, use_tf32_
from decomfl_lab.engines.base import Engine, Line, Plain, SampleLoss
from decomfl_lab.engines.registry import ENGINES, make_engine
from decomfl_lab.errors import require_int, require_possible
from decomfl_lab.estimators.differences import central, projection
from decomfl_lab.layout import Layout
from decomfl_lab.models.registry import build_model
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.records.seeds import stream_of
from decomfl_lab.replicas.rebuild import project
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Sgd

__all__ = ["BASELINE", "EngineRow", "WideLine", "engine_rows", "flops", "in_place_scalars", "in_turns", "move_"]
__all__ += ["scalar_error"]

Name = TypeVar("Name", bound=Hashable)

BASELINE = "in place"
"""The way of MeZO and of the authors' code: see ``in_place_scalars``."""
MU = 1e-3
CHECKED = 2
"""Directions whose scalars are compared with those of float64."""
PROJECTING = ("fused", "batched", "serial")
"""Engines that are measured by gradient projection too: the kernel, the batched pass, and torch's autograd."""
_IN_SHAPE = (1, 28, 28)
_CLASSES = 10
_MATRIX = 1024
"""Rows of the square matrices whose product measures the machine's peak."""
_MATRIX_ON_GPU = 8192
"""Side of the matrices of a GPU's product, which smaller ones leave idle."""
_SEED = 1
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class EngineRow:
    """What was measured: one local step of all sampled clients.

    Attributes:
        model: Name of the model.
        engine: Name of the engine, or ``BASELINE``.
        estimator: "central" (differences) or "projection".
        batch: Examples in a client's batch.
        clients: Number m of sampled clients.
        directions: Number P of directions.
        threads: torch's number of threads.
        device: Where it was measured, in words.
        seconds: Seconds of the fastest of the repeated runs.
        us_per_image: Microseconds an image and forward pass, or forward and backward pass, noise and loss included.
        ratio: Seconds of the baseline / seconds.
        gflops: The model's floating-point operations a second, in 10⁹: as its layers are defined, two a multiplication
            and sum, though an engine may need fewer.
        peak_gflops: The best rate of a float32 matrix product in this run, on all threads.
        peak_share: gflops / peak_gflops.
        scalar_error: What the function ``scalar_error`` gives for at most ``CHECKED`` directions.
    """

    model: str
    engine: str
    estimator: str
    batch: int
    clients: int
    directions: int
    threads: int
    device: str
    seconds: float
    us_per_image: float
    ratio: float
    gflops: float
    peak_gflops: float
    peak_share: float
    scalar_error: float


def flops(module: torch.nn.Module, in_shape: Sequence[int], *, backward: bool = False) -> int:
    """Floating-point operations of one example's forward pass: two for each multiplication and sum.

    With ``backward`` also those of the gradient by the parameters.
    """
    with torch.set_grad_enabled(backward), FlopCounterMode(display=False) as counter:
        total = module(torch.zeros(1, *in_shape)).sum()
        if backward:
            torch.autograd.grad(total, list(module.parameters()))
    return int(counter.get_total_flops())


class WideLine(Line):
    """The same points, to the bit, in float64."""

    @property
    def x(self) -> Tensor:
        """(d,), float64."""
        return super().x.double()

    def form_(self, points: Sequence[Tensor], p: int, c: float, *, first: int = 0, workers: int | None = None) -> None:
        """See ``Line``."""
        narrow = [torch.empty_like(point, dtype=torch.float32) for point in points]
        Line(self.replica, self.seed, self.distribution).form_(narrow, p, c, first=first, workers=workers)
        for point, formed in zip(points, narrow, strict=True):
            point.copy_(formed)


class _Step:
    """A local step of m clients on random images: the line, and each client's loss."""

    def __init__(self, model: str, batch: int, clients: int, P: int, device: torch.device = _CPU) -> None:
        module = build_model(model, seed=_SEED, in_shape=_IN_SHAPE, classes=_CLASSES)
        self.flops = {"central": flops(module, _IN_SHAPE), "projection": flops(module, _IN_SHAPE, backward=True)}
        self.P, self.device = P, device
        module.to(device)
        layout = Layout.of(module)
        self.line = Line(Replica(layout.flatten(module), Sgd()), _SEED, Distribution.GAUSSIAN)
        generator = torch.Generator().manual_seed(_SEED)
        self.samples: list[SampleLoss] = []
        self.wide_samples: list[SampleLoss] = []
        wide = copy.deepcopy(module).double()
        self.modules = {torch.float32: copy.deepcopy(module), torch.float64: copy.deepcopy(wide)}
        self.data: list[tuple[Tensor, Tensor]] = []
        for i in range(clients):
            images = torch.rand(batch, *_IN_SHAPE, generator=generator).to(memory_format=torch.channels_last)
            labels = torch.randint(_CLASSES, (batch,), generator=generator).to(device)
            images = images.to(device)
            self.data.append((images.clone(memory_format=torch.contiguous_format), labels))
            batches = EpochBatches(batch, batch, (_SEED, i))
            narrow = ModuleObjective(module, layout, cross_entropy, images, labels, batches)
            self.samples.append((narrow, 0))
            same = ModuleObjective(wide, Layout.of(wide), cross_entropy, images.double(), labels, batches)
            self.wide_samples.append((same, 0))

    def scalars(
        self, engine: Engine, line: Line | None = None, samples: Sequence[SampleLoss] | None = None
    ) -> NDArray[np.float32]:
        """The scalars g, (m, P); the plain way takes client after client, each with its own z."""
        line, samples = line or self.line, samples or self.samples
        points = central.points(self.P, MU)
        groups = [[sample] for sample in samples] if isinstance(engine, Plain) else [samples]
        values = np.concatenate([on_host(engine.losses(line, points, group)) for group in groups])
        return np.stack([central.combine(own, np.empty(0), MU).g for own in values])

    def slopes(self, engine: Engine, samples: Sequence[SampleLoss] | None = None) -> NDArray[np.float32]:
        """The scalars g, (m, P), by gradient projection."""
        samples = samples or self.samples
        x = self.line.x if samples is self.samples else self.line.x.double()
        losses, gradients = engine.gradients([x] * len(samples), samples)
        streams = [stream_of(self.line.seed, p) for p in range(self.P)]
        found = on_host(project(gradients, streams))
        both = zip(on_host(losses)[:, None], found, strict=True)
        return np.stack([projection.combine(loss, own, MU).g for loss, own in both])

    def in_place(self, dtype: torch.dtype = torch.float32) -> NDArray[np.float32]:
        """The scalars g, (m, P), by ``in_place_scalars``."""
        module = self.modules[dtype]

        def loss(images: Tensor, targets: Tensor) -> float:
            return float(cross_entropy(module(images), targets))

        data = [(inputs.to(dtype), targets) for inputs, targets in self.data]
        return np.stack([in_place_scalars(module, partial(loss, *own), range(self.P), MU) for own in data])

    def reference(self) -> NDArray[np.float32]:
        """The scalars with the losses in float64, at the same points to the bit."""
        line = WideLine(self.line.replica, self.line.seed, self.line.distribution)
        return self.scalars(Plain(), line, self.wide_samples)

    def wide_slopes(self) -> NDArray[np.float32]:
        """The scalars by projection with gradients in float64."""
        return self.slopes(Plain(), self.wide_samples)


def move_(module: torch.nn.Module, seed: int, c: float) -> None:
    """Add c z to the parameters in place, a tensor at a time, z by torch's ``randn`` in float32."""
    device = next(module.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    for w in module.parameters():
        w.add_(torch.randn(w.shape, generator=generator, device=device).to(w.dtype), alpha=c)


@torch.inference_mode()
def in_place_scalars(
    module: torch.nn.Module, loss: Callable[[], float], seeds: Sequence[int], mu: float
) -> NDArray[np.float32]:
    """The scalars g, (P,), as MeZO and the authors' code measure them: z by ``randn``, and x moved in place.

    z is made three times: for x + μz, from there to x − μz, and back to x.

    Args:
        module: The net, whose parameters are moved.
        loss: Its loss.
        seeds: The seed of each direction, P of them.
        mu: The smoothing radius μ.
    """
    g = np.empty(len(seeds), dtype=np.float32)
    for p, seed in enumerate(seeds):
        move_(module, seed, mu)
        above = loss()
        move_(module, seed, -2 * mu)
        g[p] = (above - loss()) / (2 * mu)
        move_(module, seed, mu)
    return g


def in_turns(
    ways: Mapping[Name, Callable[[], object]], repeats: int, *, between: Callable[[], object] = int
) -> dict[Name, float]:
    """Seconds of the fastest of so many runs of each; they take turns, so that what slows the machine slows all.

    Args:
        ways: What is timed.
        repeats: How often.
        between: What is done after every run, and not timed.
    """
    seconds = dict.fromkeys(ways, np.inf)
    for _ in range(repeats):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - started)
            between()
    return seconds


def scalar_error(g: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """The largest error of a scalar, in units of a typical one: max |g − g_ref| / √mean(g_ref²)."""
    wide = reference.astype(np.float64)
    return float(np.abs(g - wide).max() / np.sqrt(np.mean(wide * wide)))


def engine_rows(
    model: str,
    *,
    batch: int = 256,
    clients: int = 10,
    P: int = 20,
    repeats: int = 2,
    engines: Sequence[str] = tuple(ENGINES),
    device: str = "cpu",
) -> Iterator[EngineRow]:
    """A row for the baseline, for every engine, and by projection for those of ``PROJECTING``.

    Their runs take turns, so that what slows the machine slows all.

    Raises:
        InputError: If a name is unknown, a number out of range, or the device not there.
    """
    for name, number in (("batch", batch), ("clients", clients), ("directions P", P), ("repeats", repeats)):
        require_int(name, number, 1)
    sizes = batch, clients, P, repeats
    require_possible("batch, clients, P and repeats", sizes, operations=1e5 * math.prod(sizes))
    require_possible("batch and clients", (batch, clients), memory=4.0 * batch * clients * math.prod(_IN_SHAPE))
    place = find_device(device)
    use_tf32_(False)
    step, few = (_Step(model, batch, clients, directions, place) for directions in (P, min(P, CHECKED)))
    ways: dict[tuple[str, str], Callable[[_Step], NDArray[np.float32]]] = {(BASELINE, "central"): _Step.in_place}
    for name in engines:
        ways[name, "central"] = partial(_Step.scalars, engine=make_engine(name))
    for name in engines:
        if name in PROJECTING:
            ways[name, "projection"] = partial(_Step.slopes, engine=make_engine(name))
    right = {"central": few.reference(), "projection": few.wide_slopes()}
    errors = {way: scalar_error(measure(few), right[way[1]]) for way, measure in ways.items()}  # and warm
    errors[BASELINE, "central"] = scalar_error(few.in_place(), few.in_place(torch.float64))
    rates: list[float] = []
    runs = {way: partial(measure, step) for way, measure in ways.items()}
    seconds = in_turns(runs, repeats, between=lambda: rates.append(_matrix_rate(place)))
    peak = max(rates)
    for way in ways:
        images = clients * batch * (2 * P if way[1] == "central" else 1)
        rate = images * step.flops[way[1]] / seconds[way]
        yield EngineRow(
            model,
            *way,
            batch,
            clients,
            P,
            torch.get_num_threads(),
            describe(place),
            seconds[way],
            1e6 * seconds[way] / images,
            seconds[BASELINE, "central"] / seconds[way],
            rate / 1e9,
            peak / 1e9,
            rate / peak,
            errors[way],
        )


def _matrix_rate(device: torch.device) -> float:
    """Operations a second of a float32 matrix product, on all threads or a GPU."""
    n = _MATRIX if device.type == "cpu" else _MATRIX_ON_GPU
    a = torch.ones(n, n, device=device)
    a[0, 0].item()  # is there
    started = time.perf_counter()
    torch.mm(a, a)[0, 0].item()
    return 2 * n**3 / (time.perf_counter() - started)
