"""BatchNorm where records carry scalars only: running statistics cannot be replayed, so nothing may depend on them.

A BatchNorm that keeps running averages writes to them in every forward pass, perturbed ones included. What it computes
then depends on every batch that this copy ever saw, which no record tells. Two treatments leave f_i a function of x
and the batch alone; both keep the buffers out of the model that travels, which is x:

    batch     the loss of a batch normalises with that batch's own mean and variance, and there are no buffers. For an
              evaluation they are made anew from a fixed calibration set, by whoever evaluates, and forgotten after it:
              a function of x and that set.
    frozen    the statistics of x_0 on the calibration set for ever: constants that every participant computes, or is
              sent once with x_0. BatchNorm is then an affine function of each example.

They hold for first-order methods as well: FedAvg averages x and nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from decomfl_lab.errors import InputError, require
from decomfl_lab.objectives.batch_loss import called
from decomfl_lab.objectives.trees import row_count, tensors
from decomfl_lab.objectives.trials.needs import Needs

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def drifting(part: nn.Module) -> bool:
    """Whether forward passes of this one module (not of its children) would write to running statistics."""
    return part.training and bool(getattr(part, "track_running_stats", False))


def uses_batch_statistics(module: nn.Module) -> bool:
    """Whether the outputs for an example depend on the others of its batch, so that no batch may be cut."""
    return any(part.training or part.running_mean is None for part in _parts(module))


def use_batch_statistics_(module: nn.Module) -> None:
    """Drop all running statistics: every BatchNorm uses those of the current batch and writes nothing."""
    for part in _parts(module):
        part.running_mean = part.running_var = part.num_batches_tracked = None
        part.track_running_stats = False
        part.eval()


def refuse_evaluation_(module: nn.Module, way: str) -> None:
    """Have every BatchNorm without statistics compute in training mode, by its batch, and raise an error in eval mode.

    torch's own would take those of the batch in eval mode too, without a word. Statistics that change in each forward
    pass are those of another x, and are dropped. The error says in which ``way`` there would be some.
    """
    for part in _parts(module):
        if drifting(part):
            part.running_mean = part.running_var = part.num_batches_tracked = None
        if part.running_mean is None:
            part.train()
            part.register_forward_pre_hook(partial(_require_statistics, way))


def _require_statistics(way: str, part: nn.Module, inputs: Any) -> None:  # noqa: ARG001
    if not part.training and part.running_mean is None:
        raise InputError(f"BatchNorm must have statistics in eval mode: give lab.replay {way}, or call train()")


def freeze_(module: nn.Module, images: Any) -> None:
    """Keep the statistics of ``images`` (n, ...) under the module's present x, as constants.

        running_mean ← mean,    running_var ← n/(n - 1) variance        of what arrives at each BatchNorm

    where each layer's input has itself been normalised with the statistics of ``images``: all of them go through in
    one pass. InputError for fewer than two.
    """
    n, first = row_count(images) or 0, next(tensors(images))
    require(n >= 2, "calibration images", "be at least 2", n)
    parts = _parts(module)
    averaging = [part.momentum for part in parts]
    for part in parts:
        part.running_mean = first.new_zeros(part.num_features)
        part.running_var = first.new_ones(part.num_features)
        part.track_running_stats = True
        part.momentum = 1.0  # the new statistics alone
        part.train()
    try:
        if parts:
            with torch.no_grad():
                Needs().met(partial(called, module, images))
    finally:
        for part, momentum in zip(parts, averaging, strict=True):
            part.momentum = momentum
            part.eval()


@contextmanager
def calibrated(module: nn.Module, images: Any) -> Iterator[bool]:
    """Inside, a module that normalises with batch statistics has those of ``images`` under its present x instead.

    Nothing happens to a module without such parts; whether it has some is what the context gives. See ``freeze_`` for
    what the statistics are, and its errors.
    """
    if not uses_batch_statistics(module):
        yield False
        return
    try:
        freeze_(module, images)
        yield True
    finally:
        use_batch_statistics_(module)


def _parts(module: nn.Module) -> list[BatchNorm]:
    return [part for part in module.modules() if isinstance(part, BatchNorm)]
