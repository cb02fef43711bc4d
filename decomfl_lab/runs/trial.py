"""A user's model, loss and data, tried before a run rests on them: whether they are one function of x, and how.

Tried are the batches of every client's first epoch and the held-out ones, in the sizes, the dtype and the mode of the
run, for four evaluations of all of them (``objectives.checks``); for a method that needs gradients, also for a gradient
and two evaluations in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.errors import InputError, require
from decomfl_lab.layout import Layout
from decomfl_lab.models.registry import initialising
from decomfl_lab.objectives.batch_loss import BatchLoss, called, logits_of, require_mean
from decomfl_lab.objectives.checks import (
    FAR,
    RARE,
    Watch,
    generators,
    is_additive,
    is_gradient,
    moved,
    parts_agree,
    unwritten,
)
from decomfl_lab.objectives.culprit import Order, culprit
from decomfl_lab.objectives.normalisation import calibrated
from decomfl_lab.objectives.objective import CHUNK, require_still
from decomfl_lab.objectives.trees import Batch, mapped, row_count, rows, tensors
from decomfl_lab.plugins import require_same, taking
from decomfl_lab.runs.evaluation import fast_layout
from decomfl_lab.runs.prepared import Prepared

__all__ = ["tried"]

ODD = CHUNK - 1
"""Examples of a part in which batches are tried: nearly those of a run, and odd, so that a loss of pairs shows."""


def tried(start: Prepared) -> Prepared:
    """The same with a loss that says whether its batches may be cut; all of the lab's own may.

    Raises:
        InputError: If the user's model and loss do not take the data, or are no function of x and a batch alone, or
            torch's derivative is not that function's and the method needs it.
    """
    if not start.own:
        return start
    trial = _Trial.of(start)
    with torch.inference_mode(False), initialising(0):
        trial.check_classes(start.dataset)
        losses, moved_losses = trial.values()
        additive = trial.is_additive(moved_losses, start.calibration)
        if not additive:
            trial.check_wholes(losses, moved_losses)
        if start.method.gradients:
            trial.check_slopes(start.method.name, varies=losses != moved_losses)
    return replace(start, loss=replace(start.loss, additive=additive, tried=True), own=False)


class _Batches(Sequence[tuple[str, Batch]]):
    """Batches, each with what it is called in an error; they are gathered when they are asked for, and not kept."""

    def __init__(self, parts: Sequence[tuple[str, Batch, Any]]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, n: Any) -> Any:
        name, data, chosen = self._parts[n]
        return name, rows(data, chosen)


@dataclass
class _Trial:
    """A copy of the user's module, and the batches that are tried with it.

    Attributes:
        original: The user's own module; None where the run makes it.
        batches: Each with what it is called in an error.
        whole: How many examples each client has.
        x: x_0.
        fresh: Another copy of the module, which has not been called.
    """

    original: nn.Module | None
    module: nn.Module
    layout: Layout
    measure: BatchLoss
    batches: _Batches
    whole: dict[str, int]
    x: Tensor
    fresh: nn.Module

    @classmethod
    def of(cls, start: Prepared) -> _Trial:
        """The trial of a run."""
        copied = copy.deepcopy(start.module)
        require_still(copied)
        data, batch_size = start.numbers, start.config.batch_size
        trained = fast_layout(data.train_images), data.train_labels
        parts: list[tuple[str, Batch, Any]] = []
        for i, (index, own) in enumerate(zip(start.chosen, start.batches(), strict=True)):
            for step in range(-(-own.n // own.batch_size)):
                parts.append((f"client {i}", trained, index[torch.from_numpy(own(step)).to(index.device)]))
        held, n = (fast_layout(data.test_images), data.test_labels), data.held_out
        for a in range(0, n, batch_size):
            parts.append(("test", held, slice(a, min(a + batch_size, n))))
        whole = {f"client {i}": len(index) for i, index in enumerate(start.chosen)}
        fresh = copy.deepcopy(copied)
        return cls(start.given, copied, start.layout, start.loss, _Batches(parts), whole, start.x, fresh)

    def check_classes(self, dataset: Dataset) -> None:
        """InputError where a target is not the number of one of the model's outputs; it names the client who has it."""
        if self.measure.loss is not cross_entropy:
            return
        name, (inputs, _) = self.batches[0]
        with taking(name, tensors(self.batches[0][1])), torch.no_grad():
            outputs = logits_of(self.measure.needs.met(partial(called, self.module, inputs)))
        named = [(f"client {i}", rows(dataset.train_labels, part)) for i, part in enumerate(dataset.parts or ())]
        for who, targets in [*named, ("clients", dataset.train_labels), ("test", dataset.test_labels)]:
            whole = isinstance(targets, Tensor) and targets.ndim == 1 and not targets.is_floating_point()
            if not (whole and isinstance(outputs, Tensor) and outputs.ndim > 1):
                continue
            classes = outputs.shape[1]
            wrong = ((targets < 0) | (targets >= classes)) & (targets != -100)  # which cross_entropy ignores
            if wrong.any():
                at = int(wrong.nonzero()[0])
                rule = f"be a class in 0..{classes - 1}, as the model has {classes} outputs"
                raise InputError(f"target {at} of {who} must {rule}, got {int(targets[at])}")

    def values(self) -> tuple[list[float], list[float]]:
        """The loss of every batch, at x_0 and near it; InputError where it is no scalar, or reads more than x."""
        found: list[float] = []
        x, fresh = self.x, self.fresh
        parameters = {} if self.original is None else dict(self.original.named_parameters())
        versions = [buffer._version for buffer in self.module.buffers()]
        draws = generators()
        for name, batch in self.batches:
            with taking(name, tensors(batch)), torch.no_grad(), unwritten([batch]):
                loss = self.measure(self.module, *batch)
                require_mean(loss)
            found.append(float(loss))
            require(math.isfinite(found[-1]), f"loss of {name} at x_0", "be finite", found[-1])
        for _ in range(RARE if draws != generators() else 0):  # noise, perhaps, that is seldom seen
            self._require_same(found)
        # A kernel, as batch_norm's, may write to a buffer that torch counts no change of.
        uncalled = dict(fresh.named_buffers())
        exactly = partial(torch.allclose, rtol=0, atol=0, equal_nan=True)
        wrote = [name for name, buffer in self.module.named_buffers() if not exactly(buffer, uncalled[name])]
        for step in FAR:
            self.layout.bind(fresh, moved(x, step))
            near = [self._closed(fresh, name, batch, parameters) for name, batch in self.batches]
            if all(map(math.isfinite, near)):
                break
        # The module that was called at x_0 gives the same here as one that was not: it keeps nothing of x_0.
        self.layout.bind(self.module, moved(x, step))
        first = self._value(self.batches[0][1])
        require_same(near[0], first, tolerance=64 * torch.finfo(torch.float32).eps)
        for (name, buffer), version in zip(self.module.named_buffers(), versions, strict=True):
            if buffer._version != version or name in wrote:
                raise InputError(
                    f"buffer {name!r} of the model must stay what it is in a forward pass, so that the loss depends on "
                    "x and the data alone: call model.eval(), or use torch's BatchNorm, got one that is written to"
                )
        return found, near

    def _closed(self, module: nn.Module, name: str, batch: Batch, parameters: dict[str, nn.Parameter]) -> float:
        """The loss of a batch; InputError where it depends on more than the module's parameters and the batch."""
        # With parameters that need no gradient, whatever has one is nothing of x.
        with taking(name, tensors(batch)), _constant(module), torch.enable_grad(), Watch(parameters) as watch:
            loss = self.measure(module, *batch)
            watch.require_closed(loss)
        return float(loss.detach())

    def is_additive(self, losses: list[float], calibration: Any) -> bool:
        """Whether the loss of a batch is the mean of its parts' where the module is now, with these losses of wholes.

        A BatchNorm has statistics that are fixed.
        """

        @cache
        def doubled() -> nn.Module:  # made once, if it is needed
            return copy.deepcopy(self.module).double()

        def wide(batch: Batch) -> float:
            with torch.no_grad():
                return float(self.measure.wide()(doubled(), *mapped(_doubled, batch)))

        with calibrated(self.module, calibration) as fixed:
            wholes = [self._value(batch) for _, batch in self.batches] if fixed else losses
            eps = torch.finfo(self.layout.dtype).eps
            return is_additive(
                self._value,
                (batch for _, batch in self.batches),
                wholes,
                weight=lambda batch: float(row_count(batch) or 1),
                eps=eps,
                wide=wide,
                chunk=ODD,
            )

    def check_wholes(self, losses: list[float], near: list[float]) -> None:
        """InputError where a loss that is no mean over examples is noise or state, or hangs on an order that is drawn.

        Args:
            losses: Those of the batches at x_0.
            near: The same where the module is now, by one that had not been called before: so it shows, too, where the
                module that was called at x_0 keeps something of x_0.
        """
        sizes = [(self.whole.get(name), row_count(batch)) for name, batch in self.batches]
        drawn = [n for n, (all_, own) in enumerate(sizes) if all_ not in (None, own)]
        self._require_same(near)
        self.layout.bind(self.module, self.x)
        if not drawn:
            self._require_same(losses)
        for n in drawn:  # the others are all of a client's examples, in its own order
            batch, value = self.batches[n][1], losses[n]
            turned = self._value(rows(batch, torch.arange((row_count(batch) or 1) - 1, -1, -1)))
            agrees = parts_agree(turned, [(None, 1.0, value)], math.sqrt(torch.finfo(self.layout.dtype).eps))
            rule = "not depend on the order of a batch's examples, which are drawn anew (or batch_size be all examples)"
            require(agrees, "loss", rule, (value, turned))

    def _require_same(self, losses: list[float]) -> None:
        for (_, batch), value in zip(self.batches, losses, strict=True):
            require_same(value, self._value(batch), tolerance=64 * torch.finfo(torch.float32).eps)

    def _value(self, batch: Batch) -> float:
        with torch.no_grad():
            return float(self.measure(self.module, *batch))

    def check_slopes(self, method: str, *, varies: bool) -> None:
        """InputError where ∇fᵀv of a batch is no difference of values along v = ∇f/‖∇f‖ + z/(2‖z‖), z random.

        Both are computed in float64 where module and loss take it; a kink moves a difference of values by as much as
        the step. A loss that ``varies`` from x_0 to a point near it must have a slope somewhere.
        """
        self.layout.bind(self.module, self.x)
        z = torch.randn(self.x.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        z = (z / z.norm()).to(self.x.device)
        flat = varies
        for name, batch in self.batches:
            with taking(name, tensors(batch)):
                gradient = self._gradient(method, self.module, self.measure, batch)
            flat = flat and not gradient.any()
            try:
                wide = copy.deepcopy(self.module).double(), self.measure.wide(), mapped(_doubled, batch)
                agrees, told = self._agrees(*wide, gradient, z)
                if not agrees:  # rounding of a loss that is nearly zero, perhaps
                    agrees, told = self._agrees(*wide, self._gradient(method, *wide), z)
            except Exception:  # a module, or a loss, that takes no float64
                agrees, told = self._agrees(self.module, self.measure, batch, gradient, z)
            if not agrees:
                found = culprit(self.module, self.measure, [batch], [Order.FIRST])
                raise InputError(
                    f"loss must have the derivative that torch gives, for {method}, got "
                    f"{told.format(name)}: is there a backward of your own, a hook, or detach in between? A method of "
                    f"differences (decomfl) needs none{found}"
                )
        if not flat:
            return
        self.layout.bind(self.module, moved(self.x, FAR[0]))
        if not any(self._gradient(method, self.module, self.measure, batch).any() for _, batch in self.batches):
            raise InputError(
                f"loss must have slopes for {method}, got a gradient that is 0 in every parameter, at x_0 and near it, "
                "though the loss changes there: round, sign, argmax and comparisons have none. A method of differences "
                "(decomfl) needs none"
            )

    def _gradient(self, method: str, module: nn.Module, measure: BatchLoss, batch: Batch) -> Tensor:
        """∇f of a batch, (d,) in float64."""
        parameters = [module.get_parameter(name) for name in self.layout.names]
        with torch.enable_grad():
            loss = measure(module, *batch)
            if not loss.requires_grad:
                raise InputError(
                    f"loss must depend on the parameters by operations of torch for {method}, which "
                    "needs gradients (is there detach, no_grad, item or numpy in between?), got one without"
                )
            slopes = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([slope.reshape(-1) for slope in slopes]).double()

    def _agrees(
        self, module: nn.Module, measure: BatchLoss, batch: Batch, gradient: Tensor, z: Tensor
    ) -> tuple[bool, str]:
        """Whether ∇fᵀv is a difference of values, computed by this module; and both, in words."""
        layout, x = Layout.of(module), self.x.double()

        def value(at: Tensor) -> float:
            layout.bind(module, at.to(layout.dtype))
            with torch.no_grad():
                return float(measure(module, *batch))

        agrees, slope, found = is_gradient(x, gradient, z, value)
        layout.bind(module, x.to(layout.dtype))
        return agrees, f"{slope:.3g} along a direction where values of {{}} change by {found:.3g}"


def _doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


@contextmanager
def _constant(module: nn.Module) -> Iterator[None]:
    """Inside, no parameter of the module needs a gradient."""
    trained = [p for p in module.parameters() if p.requires_grad]
    try:
        for p in trained:
            p.requires_grad_(False)
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)
