"""A client's loss f_i on its own data, as a function of the flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decomfl_lab.errors import require, require_int
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.normalisation import drifting, uses_batch_statistics
from decomfl_lab.objectives.perturbed import virtual

__all__ = [
    "Differentiable",
    "EpochBatches",
    "ModuleObjective",
    "Objective",
    "Perturbable",
    "RoundedObjective",
    "mean_losses",
]

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""loss(outputs, targets), the mean over the batch."""


class Objective(Protocol):
    """f_i(x; ξ): ``step`` picks the data sample ξ, so the same step always sees the same data."""

    def __call__(self, x: Tensor, step: int) -> float:
        """The loss at the flat vector x (d,) on the data of local step ``step``."""
        ...


class Perturbable(Objective, Protocol):
    """An objective that can be evaluated at x + c z_p without a second vector of d elements."""

    def along(self, x: Tensor, step: int, seed: int, p: int, c: float, distribution: Distribution) -> float:
        """f_i(x + c z_p; ξ); x is not written, and at most one layer of x + c z_p exists at a time."""
        ...


class Differentiable(Objective, Protocol):
    """An objective that can be differentiated, as gradient projection and first-order methods need."""

    def value_and_gradient(self, x: Tensor, step: int) -> tuple[float, Tensor]:
        """f_i(x; ξ) and ∇f_i(x; ξ), shape (d,)."""
        ...


@dataclass(frozen=True)
class EpochBatches:
    """Batches of epochs: each epoch is a new permutation of 0..n-1, cut in order, the last batch short.

    Step t belongs to epoch t // batches_per_epoch, so the batch is a pure function of (seed, t).

    Attributes:
        n: Examples.
        batch_size: B ≥ 1; a B above n gives the whole data every time.
        seed: Entropy and path for numpy's SeedSequence.
        ascending: Whether the indices of a batch are in ascending order, for data whose neighbours go well together.
    """

    n: int
    batch_size: int
    seed: tuple[int, ...]
    ascending: bool = False

    def __post_init__(self) -> None:
        require_int("n", self.n, 1)
        require_int("batch_size", self.batch_size, 1)

    def __call__(self, step: int) -> NDArray[np.int64]:
        """Indices of the batch of local step ``step``."""
        per_epoch = -(-self.n // self.batch_size)
        epoch, place = divmod(step, per_epoch)
        order = _permutation(self.n, self.seed, epoch)
        batch = order[place * self.batch_size : (place + 1) * self.batch_size]
        return np.sort(batch) if self.ascending else batch


@lru_cache(maxsize=512)
def _permutation(n: int, seed: tuple[int, ...], epoch: int) -> NDArray[np.int64]:
    sequence = np.random.SeedSequence(seed[0], spawn_key=(*seed[1:], epoch))
    return np.random.default_rng(sequence).permutation(n)


CHUNK = 16
"""Examples a forward pass takes at once: small convolutions slow down when larger batches leave the cache."""
CHUNK_ON_GPU = 1024
"""The same on a GPU, which small batches leave idle."""


def mean_losses(
    module: nn.Module, losses: Sequence[LossFunction], inputs: Tensor, targets: Tensor, chunk: int | None = None
) -> tuple[float, ...]:
    """(1/n) Σ loss over the batch for each loss, by forward passes of at most ``chunk`` examples, without a graph.

    None for ``chunk`` is ``CHUNK``, or ``CHUNK_ON_GPU``. The sums stay on the device until the last is there. Outputs
    in 16 bits are widened to float32 before the loss.
    """
    n = inputs.shape[0]
    chunk = chunk or (CHUNK_ON_GPU if inputs.is_cuda else CHUNK)
    totals = torch.zeros(len(losses), dtype=torch.float64, device=inputs.device)
    with torch.inference_mode():
        for a in range(0, n, chunk):
            part = slice(a, min(a + chunk, n))
            outputs, wanted = module(inputs[part]), targets[part]
            outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
            for i, loss in enumerate(losses):
                totals[i] += (part.stop - part.start) * loss(outputs, wanted).double()
    return tuple((totals / n).tolist())


class ModuleObjective:
    """f_i of any ``torch.nn.Module`` and mean loss on (inputs, targets).

    The module is a workspace: its parameters are made views of whatever x the loss is asked at, so one
    module serves all simulated clients and x is never copied or changed.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        loss: LossFunction,
        inputs: Tensor,
        targets: Tensor,
        batches: EpochBatches,
    ) -> None:
        for name, part in module.named_modules():
            random = isinstance(part, nn.modules.dropout._DropoutNd) and part.training
            require(
                not (random or drifting(part)),
                f"module {name!r} ({type(part).__name__})",
                "be in eval mode or without running statistics, so that the loss is a function of x and the data alone",
                "training mode",
            )
        self.module = module
        self.layout = layout
        self.loss = loss
        self.inputs = inputs
        self.targets = targets
        self.batches = batches
        self.chunk = batches.batch_size if uses_batch_statistics(module) or inputs.is_cuda else CHUNK
        self._current: tuple[int, Tensor, Tensor] | None = None

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The data ξ of local step ``step``."""
        if self._current is None or self._current[0] != step:
            index = torch.from_numpy(self.batches(step)).to(self.inputs.device, non_blocking=True)
            self._current = (step, self.inputs[index], self.targets[index])
        return self._current[1:]

    def __call__(self, x: Tensor, step: int) -> float:
        """See ``Objective``."""
        self.layout.bind(self.module, x)
        return mean_losses(self.module, [self.loss], *self.batch(step), self.chunk)[0]

    def release(self) -> None:
        """Let go of the vector that the module's parameters are views of, so that its memory can be freed.

        The parameters are empty until the next ``Layout.bind``.
        """
        for name in self.layout.names:
            self.module.get_parameter(name).data = torch.empty(0, dtype=self.layout.dtype, device=self.inputs.device)

    def along(self, x: Tensor, step: int, seed: int, p: int, c: float, distribution: Distribution) -> float:
        """See ``Perturbable``. The batch goes through in one pass, so that each weight is formed once.

        Weights of a 16-bit x are formed in float32, and so is everything that is computed with them.
        """
        layout = replace(self.layout, dtype=x.dtype)
        layout.bind(self.module, x)
        inputs, targets = self.batch(step)
        with virtual(self.module, layout, seed, p, c, distribution=distribution, wide=True):
            return mean_losses(self.module, [self.loss], inputs, targets, chunk=inputs.shape[0])[0]

    def value_and_gradient(self, x: Tensor, step: int) -> tuple[float, Tensor]:
        """See ``Differentiable``; by torch's autograd, a chunk at a time."""
        self.layout.bind(self.module, x)
        inputs, targets = self.batch(step)
        parameters = [self.module.get_parameter(name) for name in self.layout.names]
        n = inputs.shape[0]
        value, total = 0.0, torch.zeros_like(x)
        with torch.inference_mode(False), torch.enable_grad():
            for a in range(0, n, self.chunk):
                part = slice(a, min(a + self.chunk, n))
                loss = self.loss(self.module(inputs[part]), targets[part])
                parts = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
                share = (part.stop - part.start) / n
                value += share * float(loss.detach())
                total += share * torch.cat([g.reshape(-1) for g in parts])
        return value, total


class RoundedObjective:
    """f_i at the point rounded to bfloat16, x ↦ f_i(fl(x)), by a forward pass in bfloat16.

    fl is to the nearest, |fl(w) − w| ≤ 2⁻⁸ |w|. Replicas, and the points x + c z, stay in float32, so that updates
    below the coarse grid add up and a replay gives the same bits as ever. But two points differ only where they are
    rounded apart: the smaller μ is beside 2⁻⁸ of the weights, the more of a scalar is rounding. Logits are widened
    before the loss.
    """

    def __init__(self, narrow: ModuleObjective) -> None:
        """The objective ``narrow`` of a module in bfloat16, frozen parameters and all.

        Raises:
            InputError: If a parameter has another dtype.
        """
        dtypes = {p.dtype for p in narrow.module.parameters()} | {narrow.layout.dtype}
        require(dtypes == {torch.bfloat16}, "module and layout", "be in bfloat16", sorted(map(str, dtypes)))
        self.narrow = narrow

    def __call__(self, x: Tensor, step: int) -> float:
        """See ``Objective``."""
        self.narrow.release()  # of the last point, before there is another
        return self.narrow(x.bfloat16(), step)

    def release(self) -> None:
        """See ``ModuleObjective.release``."""
        self.narrow.release()
