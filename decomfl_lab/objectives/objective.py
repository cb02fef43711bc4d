"""A client's loss f_i on its own data, as a function of the flat parameter vector."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decomfl_lab.errors import require, require_int
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution
from decomfl_lab.noise.draws import STREAM, draws_of
from decomfl_lab.objectives.batch_loss import BatchLoss, Form, LossFunction, called
from decomfl_lab.objectives.function import Function, Piece, enabled
from decomfl_lab.objectives.normalisation import drifting, uses_batch_statistics
from decomfl_lab.objectives.perturbation import moved
from decomfl_lab.objectives.trees import row_count, rows, tensors
from decomfl_lab.objectives.trials.needs import Needs


class Objective(Protocol):
    """f_i(x; ξ): ``step`` picks the data sample ξ, so the same step always sees the same data."""

    def __call__(self, x: Tensor, step: int) -> float:
        """The loss at the flat vector x (d,) on the data of local step ``step``."""


class Perturbable(Objective, Protocol):
    """An objective that can be evaluated at x + c z_p without a second vector of d elements."""

    def along(self, x: Tensor, step: int, seed: int, p: int, c: float, distribution: Distribution) -> float | Tensor:
        """f_i(x + c z_p; ξ); x is not written, and at most one layer of x + c z_p exists at a time.

        It is a number, or a tensor on a GPU that nobody has waited for yet.
        """


def examples_of(objective: Objective) -> int:
    """n_i, the number of a client's examples, which its ``examples`` is; InputError where it does not say it."""
    n = getattr(objective, "examples", None)
    require(n is not None, "objective", "have examples, their number, where clients are weighed by it", objective)
    return int(n)  # type: ignore[arg-type]


@dataclass(frozen=True)
class EpochBatches:
    """Batches of epochs: each epoch is a new permutation of 0..n-1, cut in order, the last batch short.

    Where there are several draws of the n examples, one after the other, epoch e has those of draw e mod ``redraw``.

    Step t belongs to epoch t // batches_per_epoch, so the batch is a pure function of (seed, t).
    """

    n: int  # examples
    batch_size: int  # B ≥ 1; a B above n gives the whole data every time
    seed: tuple[int, ...]  # the seed, and the path to what is drawn here
    draws: str = STREAM  # where permutations come from (``noise.draws``)
    # whether the indices of a batch are in ascending order, for data whose neighbours go well together
    ascending: bool = False
    redraw: int = 1  # how many draws of the examples there are

    def __post_init__(self) -> None:
        require_int("n", self.n, 1)
        require_int("batch_size", self.batch_size, 1)

    def __call__(self, step: int) -> NDArray[np.int64]:
        """Indices of the batch of local step ``step``."""
        epoch, cut = self.place(step)
        batch = self.order(epoch)[cut]
        return np.sort(batch) if self.ascending else batch

    def place(self, step: int) -> tuple[int, slice]:
        """The epoch of local step ``step``, and where its batch is in the epoch's order."""
        epoch, place = divmod(step, -(-self.n // self.batch_size))
        return epoch, slice(place * self.batch_size, (place + 1) * self.batch_size)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The permutation of an epoch, to be read alone."""
        order = _permutation(self.draws, self.n, self.seed, epoch)
        return order if self.redraw == 1 else order + epoch % self.redraw * self.n


@lru_cache(maxsize=512)
def _permutation(draws: str, n: int, seed: tuple[int, ...], epoch: int) -> NDArray[np.int64]:
    return draws_of(draws, *seed, epoch).permutation(n)


CHUNK = 16
"""Examples a forward pass takes at once: small convolutions slow down when larger batches leave the cache."""
CHUNK_ON_GPU = 1024
"""The same on a GPU, which small batches leave idle."""


def mean_losses(
    module: nn.Module, losses: Sequence[LossFunction | BatchLoss], inputs: Any, targets: Any, chunk: int | None = None
) -> tuple[float, ...]:
    """``means`` as numbers: a GPU is waited for, once."""
    return tuple(means(module, losses, inputs, targets, chunk).tolist())


def means(
    module: nn.Module, losses: Sequence[LossFunction | BatchLoss], inputs: Any, targets: Any, chunk: int | None = None
) -> Tensor:
    """(1/n) Σ loss over the batch for each loss, by forward passes of at most ``chunk`` examples, without a graph.

    None for ``chunk`` is ``CHUNK``, or ``CHUNK_ON_GPU``. A function instead of a ``BatchLoss`` is one of (outputs,
    targets). Outputs in 16 bits are widened to float32 before the loss. The means are float64, where the inputs are.
    """
    n, device = row_count(inputs) or 0, next(tensors(inputs)).device
    chunk = chunk or (CHUNK_ON_GPU if device.type == "cuda" else CHUNK)
    totals = torch.zeros(len(losses), dtype=torch.float64, device=device)
    needs = next((loss.needs for loss in losses if isinstance(loss, BatchLoss)), Needs())
    measures = [loss if isinstance(loss, BatchLoss) else BatchLoss(loss, Form.OUTPUTS) for loss in losses]

    def losses_of(xs: Any, ys: Any) -> list[Tensor]:
        """Each loss of a batch; one forward pass serves all that are of its outputs."""
        outputs = called(module, xs) if any(loss.is_of_outputs for loss in measures) else None
        return [loss.of_outputs(outputs, ys) if loss.is_of_outputs else loss(module, xs, ys) for loss in measures]

    with torch.no_grad():  # and not inference_mode, in which a module that differentiates in its inputs could not
        for a in range(0, n, chunk):
            size = min(chunk, n - a)
            xs, ys = (rows(tree, slice(a, a + size)) for tree in (inputs, targets))
            for i, value in enumerate(needs.met(partial(losses_of, xs, ys))):
                totals[i] += size * value.double()
    return totals / n


def require_still(module: nn.Module) -> None:
    """InputError where a part of the module draws at random, or writes to running statistics, in each forward pass."""
    for name, part in module.named_modules():
        random = isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0
        still = "be in eval mode" + " or have p = 0" * random + " or keep no running statistics" * drifting(part)
        rule = f"{still}, so that the loss depends on x and the data alone"
        require(not (random or drifting(part)), f"module {name!r} ({type(part).__name__})", rule, "training mode")


class ModuleObjective(Function):
    """f_i of any ``torch.nn.Module`` and loss: the function whose pieces are cut from the batch of a local step.

    The module is a workspace (``Function.bound``), so one module serves all simulated clients and x is never copied or
    changed. Clients share the tensors of all examples likewise; each needs the numbers of its own.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        loss: LossFunction | BatchLoss | None,
        inputs: Any,
        targets: Any,
        batches: EpochBatches,
        index: Tensor | None = None,
    ) -> None:
        require_still(module)
        super().__init__(module, BatchLoss.of(loss), layout, next(tensors(inputs)).device, bound=True)
        self.loss = self.measure.loss  # the function that the user gave; None for the module's own loss
        self.data = inputs, targets  # trees of tensors of all examples, of this client and perhaps of others
        self.index = index  # the numbers of this client's examples in them, int64 and where they are; None for all
        self.batches = batches
        # The most examples of a piece. Where the loss is no mean over examples, no batch is ever cut.
        whole = uses_batch_statistics(module) or self.device.type == "cuda" or not self.measure.additive
        self.chunk = batches.batch_size if whole else CHUNK
        self._current: tuple[int, Any, Any] | None = None
        self._order: tuple[int, Tensor] | None = None

    def of(self, index: Tensor, batches: EpochBatches) -> Self:
        """The objective of a client with these examples, in the same workspace."""
        other = copy.copy(self)
        other.index, other.batches = index, batches
        other._current = other._order = None
        return other

    @property
    def examples(self) -> int:
        """n_i, the number of this client's examples."""
        return self.batches.n

    @property
    def inputs(self) -> Any:
        """The inputs of this client's examples."""
        return self.data[0] if self.index is None else rows(self.data[0], self.index)

    @property
    def targets(self) -> Any:
        """The targets of this client's examples."""
        return self.data[1] if self.index is None else rows(self.data[1], self.index)

    def batch(self, step: int) -> tuple[Any, Any]:
        """The data ξ of local step ``step``."""
        if self._current is None or self._current[0] != step:
            # The numbers of the batch's examples are cut from the order of its epoch where the data are.
            epoch, cut = self.batches.place(step)
            if self._order is None or self._order[0] != epoch:
                order = torch.from_numpy(self.batches.order(epoch))
                self._order = epoch, order.to(self.device, non_blocking=True)
            chosen = self._order[1][cut]
            chosen = chosen.sort().values if self.batches.ascending else chosen
            chosen = chosen if self.index is None else self.index[chosen]
            self._current = (step, rows(self.data[0], chosen), rows(self.data[1], chosen))
        return self._current[1:]

    def __call__(self, x: Tensor, step: int) -> float:
        """See ``Objective``."""
        self.layout.bind(self.module, x)
        return mean_losses(self.module, [self.measure], *self.batch(step), self.chunk)[0]

    def release(self) -> None:
        """Let go of the batch, and of the vector that the module's parameters are views of, so that memory is freed.

        The parameters are empty until the next ``Layout.bind``.
        """
        self._current = self._order = None
        self.unbind()

    def unbind(self) -> None:
        """Let go of the vector alone."""
        for name in self.layout.names:
            self.module.get_parameter(name).data = torch.empty(0, dtype=self.layout.dtype, device=self.device)

    def along(self, x: Tensor, step: int, seed: int, p: int, c: float, distribution: Distribution) -> float | Tensor:
        """See ``Perturbable``. The batch goes through in one pass, so that each weight is formed once.

        Weights of a 16-bit x are formed in float32, and so is everything that is computed with them.
        """
        layout = replace(self.layout, dtype=x.dtype)
        layout.bind(self.module, x)
        inputs, targets = self.batch(step)
        named = [(name, self.module.get_parameter(name)) for name in layout.names]
        with moved(named, seed, p, c, distribution=distribution, wide=True, in_blocks=False):
            loss = means(self.module, [self.measure], inputs, targets, chunk=row_count(inputs) or 0)[0]
        return loss if loss.is_cuda else float(loss)

    def value_and_gradient(self, x: Tensor, step: int) -> tuple[float, Tensor]:
        """f_i(x; ξ) and ∇f_i(x; ξ), shape (d,), by torch's autograd, a chunk at a time."""
        batch = self.batch(step)
        value, total = 0.0, torch.zeros_like(x)
        with enabled():
            leaves = self.leaves(x)
            for piece in Piece(*batch, row_count(batch[0]) or 0).cut(self.chunk):
                loss = self.loss_at(leaves, piece)
                # As one vector, then scaled, then added: in this order every machine has the same bits.
                parts = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
                value += piece.share * float(loss.detach())
                total += piece.share * torch.cat([g.reshape(-1) for g in parts])
        return value, total


class RoundedObjective:
    """f_i at the point rounded to bfloat16, x ↦ f_i(fl(x)), by a forward pass in bfloat16.

    fl is to the nearest, |fl(w) − w| ≤ 2⁻⁸ |w|. Replicas, and the points x + c z, stay in float32, so that updates
    below the coarse grid add up and a replay gives the same bits as ever. But two points differ only where they are
    rounded apart: the smaller μ is beside 2⁻⁸ of the weights, the more of a scalar is rounding. Logits are widened
    before the loss.
    """

    def __init__(self, narrow: ModuleObjective) -> None:
        """The objective ``narrow`` of a module in bfloat16, frozen parameters and all; InputError for other dtypes."""
        dtypes = {p.dtype for p in narrow.module.parameters()} | {narrow.layout.dtype}
        require(dtypes == {torch.bfloat16}, "module and layout", "be in bfloat16", sorted(map(str, dtypes)))
        self.narrow, self.examples = narrow, narrow.examples

    def __call__(self, x: Tensor, step: int) -> float:
        """See ``Objective``."""
        self.narrow.unbind()  # of the last point, before there is another
        return self.narrow(x.bfloat16(), step)

    def release(self) -> None:
        """See ``ModuleObjective.release``."""
        self.narrow.release()
