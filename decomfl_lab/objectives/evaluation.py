"""What is measured on held-out examples: loss, accuracy, and measures of the user's own."""

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.errors import THEIRS, InputError, brief, printable, require
from decomfl_lab.objectives.batch_loss import IGNORED, BatchLoss, LossFunction, logits_of
from decomfl_lab.objectives.objective import mean_losses
from decomfl_lab.objectives.trees import feed, joined, mapped, row_count, tensors
from decomfl_lab.objectives.trials.watch import Classes

Metric = Callable[[Any, Any], Any]
"""metric(outputs, targets), a number, of all held-out examples at once, on the CPU: F1 is no mean over batches."""


def right_share(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of targets that are the number of the largest output."""
    return (outputs.argmax(1) == targets).float().mean()


def _right(loss: BatchLoss, outputs: Any, targets: Any) -> tuple[Tensor | float, Tensor | float]:
    """The shares of a batch's labels that count and are predicted, and that count; NaN where nothing is a class.

    Cross-entropy itself is known to be a loss of classes. Others are looked at while they compute (``trials.watch``).
    """
    if loss.loss is cross_entropy:
        return right_share(outputs, targets), (targets != IGNORED).float().mean()
    if not isinstance(logits := logits_of(outputs), Tensor):
        return math.nan, 1.0
    with Classes(logits, targets) as watch:
        loss.of_outputs(outputs, targets)
    if (seen := watch.seen()) is None:
        return math.nan, 1.0
    right, counted = seen
    share: float = counted.numel() / targets.numel()  # less than 1 where a loss takes labels out
    return (right.float().mean() * share, counted.float().mean() * share) if share else (0.0, 0.0)


def evaluate(
    module: nn.Module,
    loss: BatchLoss,
    inputs: Any,
    targets: Any,
    batch_size: int,
    metrics: Mapping[str, Metric] | None = None,
    *,
    content_free: Tensor | None = None,
) -> dict[str, float]:
    """Means over the examples: test_accuracy (of classes), test_loss and of a task calibrated_accuracy.

    Beside them is each of the user's ``metrics``, {column: metric}, of all examples at once. They are NaN where there
    are no examples (see ``Run``), and the accuracy where the loss is none of classes, or no label counts. A loss that
    is no mean over examples is the mean over batches of ``batch_size``.
    """
    metrics = metrics or {}
    if not row_count(inputs):
        return dict.fromkeys(["test_accuracy", "test_loss", *metrics], math.nan)
    measures: dict[str, LossFunction | BatchLoss] = {}
    # Only targets that are classes may be compared with the largest of the outputs.
    if isinstance(targets, Tensor) and not targets.is_floating_point() and loss.is_of_outputs:
        last: list[Tensor] = []  # the share that counts, of the batch whose accuracy was asked last

        def accuracy(outputs: Any, wanted: Any) -> Tensor:
            right, counted = map(torch.as_tensor, _right(loss, outputs, wanted))
            last[:] = [counted]
            return right

        measures = {"test_accuracy": accuracy, "counted": lambda *_: last[0]}
    measures["test_loss"] = loss
    if content_free is not None:
        with torch.inference_mode():
            prior = module(content_free)
        measures["calibrated_accuracy"] = lambda outputs, wanted: right_share(outputs - prior, wanted)
    kept: list[Any] = []
    copied = partial(mapped, lambda tensor: tensor.detach().to("cpu", copy=True))

    def keep(outputs: Any, wanted: Any) -> Tensor:  # noqa: ARG001
        kept.append(copied(outputs))
        return torch.zeros(())

    if metrics:
        measures["kept"] = keep  # the last, so that no batch is kept twice where one before it is computed anew
    chunk = None if loss.additive else batch_size
    values = dict(zip(measures, mean_losses(module, list(measures.values()), inputs, targets, chunk), strict=True))
    if "counted" in values:
        counted = values.pop("counted")
        values["test_accuracy"] = values["test_accuracy"] / counted if counted else math.nan
    if metrics:
        del values["kept"]
        try:
            outputs, wanted = joined(kept), copied(targets)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            rule = "have outputs of one form for all held-out examples, as metrics are of all at once"
            raise InputError(f"model must {rule}, got {brief(str(error), 100)}") from error
        values |= {column: _measured(column, metric, outputs, wanted) for column, metric in metrics.items()}
    return values


def _measured(column: str, metric: Metric, outputs: Any, targets: Any) -> float:
    """A measure of all held-out outputs and targets; InputError if it fails, writes to these, or is no number."""

    def digest() -> bytes:
        h = hashlib.blake2b(digest_size=16)
        for tensor in tensors((outputs, targets)):
            feed(h, tensor)
        return h.digest()

    what, before = f"metric {column.removeprefix('test_')!r}", digest()
    try:
        with torch.no_grad():
            value = metric(outputs, targets)
    except THEIRS as error:
        got = f"{type(error).__name__}: {brief(printable(str(error)), 200)}"
        rule = "take (outputs, targets), all held-out ones at once, without an error"
        raise InputError(f"{what} must {rule}, got {got}") from error
    rule = "leave outputs and targets as they are (outputs.clone())"
    require(digest() == before, what, rule, "one that writes to them")
    one = isinstance(value, Tensor | np.ndarray | np.generic) and math.prod(value.shape) == 1
    value = value.item() if one else value
    fine = isinstance(value, int | float) and not math.isinf(value)
    require(fine, what, "be a finite number, or NaN where it has no value", value)
    return float(value)
