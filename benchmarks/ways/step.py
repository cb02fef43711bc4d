"""One local step of all sampled clients on random images, by any engine, by the usual way and in float64."""

import copy
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.ways.mezo import WideLine, in_place_scalars
from decomfl_lab.devices import on_host
from decomfl_lab.engines.base import Engine, Line, Plain, SampleLoss
from decomfl_lab.estimators.differences import central, projection
from decomfl_lab.layout import Layout
from decomfl_lab.models.registry import build_model
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.records.seeds import stream_of
from decomfl_lab.replicas.rebuild import project
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Sgd

MU = 1e-3
_IN_SHAPE = (1, 28, 28)
_CLASSES = 10
_SEED = 1
_CPU = torch.device("cpu")


class EngineStep:
    """A local step of m clients on random images: the line, and each client's loss."""

    def __init__(self, model: str, batch: int, clients: int, P: int, device: torch.device = _CPU) -> None:
        module = build_model(model, seed=_SEED, in_shape=_IN_SHAPE, classes=_CLASSES)
        self.P, self.device = P, device
        module.to(device)
        layout = Layout.of(module)
        self.line = Line(Replica(layout.flatten(module), Sgd()), _SEED, Distribution.GAUSSIAN)
        generator = torch.Generator().manual_seed(_SEED)
        self.samples: list[SampleLoss] = []  # of each client its loss and the step, 0
        self.wide_samples: list[SampleLoss] = []  # the same in float64
        wide = copy.deepcopy(module).double()
        self.modules = {torch.float32: copy.deepcopy(module), torch.float64: copy.deepcopy(wide)}
        self.data: list[tuple[Tensor, Tensor]] = []  # images (batch, 1, 28, 28) and labels (batch,) of each client
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
        values = np.concatenate([on_host(engine.losses(line, points, group)) for group in groups])  # (m, points)
        return np.stack([central.combine(of_client, np.empty(0), MU).g for of_client in values])

    def slopes(self, engine: Engine, samples: Sequence[SampleLoss] | None = None) -> NDArray[np.float32]:
        """The scalars g, (m, P), by gradient projection."""
        samples = samples or self.samples
        x = self.line.x if samples is self.samples else self.line.x.double()
        losses, gradients = engine.gradients([x] * len(samples), samples)
        streams = [stream_of(self.line.seed, p) for p in range(self.P)]
        along = on_host(project(gradients, streams))  # ⟨∇f_i, z_p⟩, (m, P)
        of_clients = zip(on_host(losses)[:, None], along, strict=True)
        return np.stack([projection.combine(loss, slopes, MU).g for loss, slopes in of_clients])

    def in_place(self, dtype: torch.dtype = torch.float32) -> NDArray[np.float32]:
        """The scalars g, (m, P), by ``in_place_scalars``."""
        module = self.modules[dtype]

        def loss(images: Tensor, targets: Tensor) -> float:
            return float(cross_entropy(module(images), targets))

        data = [(inputs.to(dtype), targets) for inputs, targets in self.data]
        return np.stack([in_place_scalars(module, partial(loss, *batch), range(self.P), MU) for batch in data])

    def reference(self) -> NDArray[np.float32]:
        """The scalars with the losses in float64, at the same points to the bit."""
        line = WideLine(self.line.replica, self.line.seed, self.line.distribution)
        return self.scalars(Plain(), line, self.wide_samples)

    def wide_slopes(self) -> NDArray[np.float32]:
        """The scalars by projection with gradients in float64."""
        return self.slopes(Plain(), self.wide_samples)
