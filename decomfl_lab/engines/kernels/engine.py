"""The engine "fused": a point a thread, with forward and backward pass as kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.engines.base import Line, SampleLoss
from decomfl_lab.engines.kernels.cnn import PART, Network, mean_of_parts, pixels
from decomfl_lab.engines.kernels.language import LanguageNetwork, Prompts
from decomfl_lab.engines.threads import Seat, Threads
from decomfl_lab.errors import InputError, require
from decomfl_lab.estimators.differences import Point
from decomfl_lab.language.causal_model import Verbalized
from decomfl_lab.objectives.objective import ModuleObjective, Objective


@dataclass(frozen=True)
class _Answers:
    """A sample of a language model, which is evaluated with the others of its net."""

    network: LanguageNetwork
    prompts: Prompts
    targets: NDArray[np.int64]


class Fused(Threads):
    """``Threads`` with the forward pass as one kernel; points of language models are formed a layer at a time."""

    def __init__(self, workers: int | None = None, *, strict: bool = True) -> None:
        """An engine; without ``strict`` it falls back to ``Threads`` or ``Serial`` where the kernel lacks something."""
        super().__init__(workers)
        self.strict = strict
        self._networks: dict[tuple[nn.Module, tuple[int, ...]], Network | LanguageNetwork] = {}

    def _job(self, objective: Objective, x: Tensor, step: int) -> Any:
        try:
            network, inputs, labels = self._batch(objective, x, step)
        except InputError:
            if self.strict:
                raise
            # None leaves the call to ``Serial``: language models are left to it, other models to ``Threads``.
            language = isinstance(objective, ModuleObjective) and isinstance(objective.module, Verbalized)
            return None if language else super()._job(objective, x, step)
        _check_classes(labels, network.classes)
        if isinstance(network, LanguageNetwork):
            return _Answers(network, inputs, labels)
        return lambda seat, point: float(network.losses(point, inputs, labels, seat.once(network.workspace)).mean())

    def _values(self, seat: Seat, line: Line, points: Sequence[Point], jobs: Sequence[Any]) -> NDArray[np.float64]:
        networks = {job.network if isinstance(job, _Answers) else None for job in jobs}
        # Samples of one language model share the forming of a point. Those of several nets are taken one by one.
        if len(networks) > 1:
            return np.concatenate([self._values(seat, line, points, [job]) for job in jobs])
        network = networks.pop()
        if network is None:
            return super()._values(seat, line, points, jobs)

        # The first point (p, c) says it all: a second one is its mirror image x − c z_p, which ``form_`` knows to make.
        def form(parts: Sequence[Tensor], first: int) -> None:
            line.form_(parts, *points[0], first=first, workers=1)

        # All prompts go through the net as one batch. Its losses (points, prompts) are then cut at the samples again.
        prompts = Prompts.together([job.prompts for job in jobs])
        targets = [job.targets for job in jobs]
        memory = seat.once(network.workspace)
        losses = network.losses(form, len(points), prompts, np.concatenate(targets), memory)
        ends = np.cumsum([len(classes) for classes in targets])[:-1]
        return np.array([[point.mean() for point in sample] for sample in np.split(losses, ends, axis=1)])

    def gradients(self, points: Sequence[Tensor], samples: Sequence[SampleLoss]) -> tuple[NDArray[np.float64], Tensor]:
        """See ``Engine``; a gradient is the mean of its batch's, parts of ``PART`` images added in float64."""
        try:
            batches = [self._batch(objective, x, step) for x, (objective, step) in zip(points, samples, strict=True)]
            covered = all(isinstance(network, Network) for network, _, _ in batches)
            require(covered, "model", "be a net of images for the fused engine's gradients", "a language model")
        except InputError:
            if self.strict:
                raise
            return super().gradients(points, samples)
        for network, _, labels in batches:
            _check_classes(labels, network.classes)
        sizes = [len(labels) for _, _, labels in batches]
        losses = [np.empty(n) for n in sizes]
        # One row a part, float32. A part is a job of its own, so that a large batch is shared by all threads.
        sums = [np.empty((-(-n // PART), points[0].numel()), dtype=np.float32) for n in sizes]

        def part(seat: Seat, i: int, n: int) -> None:
            network, images, labels = batches[i]
            rows = slice(n * PART, (n + 1) * PART)
            memory = seat.once(network.slopes_workspace)
            losses[i][rows], _ = network.gradient(points[i], images[rows], labels[rows], memory, sums[i][n])

        self._share(part, [(i, n) for i in range(len(samples)) for n in range(len(sums[i]))])
        gradients = np.empty((len(samples), points[0].numel()), dtype=np.float32)
        # Now that all parts are there: they are added in their own order, whichever thread made them.
        self._share(lambda _, i: mean_of_parts(gradients[i], sums[i], sizes[i]), [(i,) for i in range(len(samples))])
        return np.array([batch.mean() for batch in losses]), torch.from_numpy(gradients)

    def _batch(self, objective: Objective, x: Tensor, step: int) -> tuple[Any, Any, NDArray[np.int64]]:
        """The objective's net for the kernel, with its inputs (``pixels``, or ``Prompts``) and int64 targets (n,).

        InputError if the kernel lacks something, or does not compute this loss.
        """
        if not isinstance(objective, ModuleObjective):
            raise InputError(f"objective must be a ModuleObjective for the fused engine, got {objective!r}")
        module, layout, loss = objective.module, objective.layout, objective.loss
        inputs, targets = objective.data
        plain = isinstance(inputs, Tensor) and isinstance(targets, Tensor)
        require(plain, "data", "be tensors of inputs and of targets for the fused engine", type(inputs).__name__)
        # A net's tables depend on the size of its images.
        key = (module, inputs.shape[1:])
        require(loss is cross_entropy, "loss", "be torch's cross_entropy for the fused engine", loss)
        classes = not targets.is_floating_point() and targets.ndim == 1
        require(classes, "targets", "be classes for the fused engine", (targets.dtype, tuple(targets.shape)))
        require(not x.is_cuda, "device", "be the CPU for the fused engine", x.device)
        if key not in self._networks:
            if isinstance(module, Verbalized):
                self._networks[key] = LanguageNetwork(module, layout)
            else:
                self._networks[key] = Network(module, layout, key[1])
        network = self._networks[key]
        inputs, labels = objective.batch(step)
        prepare = network.prompts if isinstance(network, LanguageNetwork) else pixels
        return network, prepare(inputs), labels.numpy()


def _check_classes(labels: NDArray[np.int64], classes: int) -> None:
    fits = labels.min() >= 0 and labels.max() < classes
    require(fits, "targets", f"be classes in 0..{classes - 1}", (labels.min(), labels.max()))
