"""What an engine is, for ``protocol.client`` that calls one, and the two plain ones: one point after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab import noise
from decomfl_lab.errors import InputError
from decomfl_lab.estimators.differences import Point, Values
from decomfl_lab.noise import SCRATCH, Distribution, Program
from decomfl_lab.objectives.objective import ModuleObjective, Objective, mean_losses
from decomfl_lab.objectives.trees import mapped, row_count
from decomfl_lab.records.seeds import StepSeed, stream_of
from decomfl_lab.replicas.rebuild import rebuild_
from decomfl_lab.replicas.replica import Replica

SampleLoss = tuple[Objective, int]
"""f_i(· ; ξ): a client's loss and the local step that picks its data sample ξ."""


@dataclass(frozen=True)
class Line:
    """The points x + c z_p of a local step, for all p, formed beside x: x is not touched, so nothing can drift.

    Where the rule scales directions they are x + c s ⊙ z_p.
    """

    replica: Replica
    seed: StepSeed  # of the stream
    distribution: Distribution

    @property
    def x(self) -> Tensor:
        """(d,)."""
        return self.replica.x

    @property
    def scale(self) -> Tensor | None:
        """The vector s (d,) that directions are multiplied with, or None."""
        slot = self.replica.rule.scaling
        return None if slot is None else self.replica.state[slot]

    def form_(self, points: Sequence[Tensor], p: int, c: float, *, first: int = 0, workers: int | None = None) -> None:
        """Write x + c z_p, and to a second point x - c z_p, to ``points`` (d,); z_p is made once.

        Args:
            points: One or two; on the CPU they may be shorter, for a part of the elements.
            p: Direction.
            c: Coefficient; not 0 for two points.
            first: The place in x of their first element.
            workers: Threads; None for the replica's own number.
        """
        elements = slice(first, first + points[0].numel())
        points[0].copy_(self.x[elements])
        if not c:
            return
        seed, direction = stream_of(self.seed, p)
        vectors = dict(zip(("up", "down"), points, strict=False))
        if self.scale is not None:
            vectors["scale"] = self.scale[elements]
        program = Program(list(vectors))
        if len(vectors) == 1:
            program.noise("up", seed, [c], self.distribution, first=direction)
        else:  # x - fl(c z) is x + fl(-c z)
            program.fill(SCRATCH, -0.0)  # -0 + z is z, to the bit
            program.noise(SCRATCH, seed, [c], self.distribution, first=direction)
            if "scale" in vectors:  # which is read, and stored with the same bits
                program.multiply(SCRATCH, "scale")
            if "down" in vectors:
                program.copy("down", "up")
                program.add("down", SCRATCH, -1.0)
            program.add("up", SCRATCH)
        if points[0].is_cuda:
            rebuild_(program, [vectors], backend=self.replica.backend)
        else:
            memory = {name: vector.numpy() for name, vector in vectors.items()}
            workers = workers or self.replica.workers or torch.get_num_threads()
            noise.run(program, memory, d=self.x.numel(), first=first, backend=self.replica.backend, workers=workers)


class Engine(Protocol):
    """Evaluates losses."""

    def losses(self, line: Line, points: Sequence[Point], samples: Sequence[SampleLoss]) -> Values:
        """f_i(x + c z_p; ξ) for every sample and every point (p, c), shape (samples, points).

        They are an array, or a tensor where x is, which nobody has waited for yet. The values depend on their sample
        and the line alone, not on what else is asked for.
        """

    def gradients(self, points: Sequence[Tensor], samples: Sequence[SampleLoss]) -> tuple[Values, Tensor]:
        """f_i(x_i; ξ), shape (samples,), and ∇f_i(x_i; ξ), float32 or float64 (samples, d), each at an x_i of its own.

        The gradients are where the points are, and so may the losses be. The values depend on their sample and its
        point alone (of ``Batched``, to rounding). InputError for an objective without a gradient.
        """

    def release(self) -> None:
        """Let go of memory of the size of a model that need not outlive a round."""


class Serial:
    """One point after another, formed beside x; every objective evaluates as it likes."""

    def __init__(self) -> None:
        self._point: Tensor | None = None

    def losses(self, line: Line, points: Sequence[Point], samples: Sequence[SampleLoss]) -> NDArray[np.float64]:
        """See ``Engine``."""
        if self._point is None or not fits(self._point, line.x):
            self._point = point_for(line.x)
        values = np.empty((len(samples), len(points)))
        for n, (p, c) in enumerate(points):  # a point is formed once and serves all samples
            line.form_([self._point], p, c)
            for i, (objective, step) in enumerate(samples):
                values[i, n] = self._loss(objective, self._point, step)
        return values

    def gradients(self, points: Sequence[Tensor], samples: Sequence[SampleLoss]) -> tuple[NDArray[np.float64], Tensor]:
        """See ``Engine``; by torch's autograd."""
        losses = np.empty(len(samples))
        gradients = torch.empty(len(samples), points[0].numel(), dtype=wide_dtype(points[0]), device=points[0].device)
        for i, (x, (objective, step)) in enumerate(zip(points, samples, strict=True)):
            if not hasattr(objective, "value_and_gradient"):
                raise InputError(f"gradient projection needs an objective with a gradient, got {objective!r}")
            losses[i], gradient = objective.value_and_gradient(x.to(wide_dtype(x)), step)
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
        inputs = mapped(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), inputs)
        return mean_losses(objective.module, [objective.measure], inputs, targets, row_count(inputs))[0]


def point_for(x: Tensor) -> Tensor:
    """Memory for a point beside x."""
    return torch.empty_like(x, dtype=wide_dtype(x))


def wide_dtype(x: Tensor) -> torch.dtype:
    """What x + c z is formed in: the grid of a 16-bit x is too coarse for a step of μ."""
    return x.dtype if x.dtype == torch.float64 else torch.float32


def fits(point: Tensor, x: Tensor) -> bool:
    """Whether a vector can be memory for a point beside x."""
    return (
        point.shape == x.shape
        and point.device == x.device
        and (point.dtype == torch.float64) == (x.dtype == torch.float64)
    )
