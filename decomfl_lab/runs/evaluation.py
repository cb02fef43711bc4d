"""The evaluation of a run: its examples, and what is measured on them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.objectives.batch_loss import BatchLoss, LossFunction, called, logits_of
from decomfl_lab.objectives.objective import mean_losses
from decomfl_lab.objectives.trees import Batch, row_count, rows
from decomfl_lab.runs.config import TrainConfig

__all__ = ["by_length", "calibration_images", "evaluate", "fast_layout", "fixed_choice", "held_out"]


def fast_layout(images: Any) -> Any:
    """Channels-last images: the same numbers, in the memory order in which CPU convolutions are fastest.

    Trees of tensors, and what is no batch of images, stay as they are.
    """
    is_images = isinstance(images, torch.Tensor) and images.ndim == 4
    return images.to(memory_format=torch.channels_last) if is_images else images


def by_length(ids: torch.Tensor, pad: int) -> torch.Tensor:
    """The order of prompts (N, T) by length: those that pass together cost what the longest of them does."""
    return (ids != pad).sum(1).argsort(stable=True).cpu()


def held_out(config: TrainConfig, dataset: Dataset) -> Batch:
    """The held-out images and labels that a run is evaluated on: all, or a fixed random choice of them."""
    n = dataset.held_out
    images, labels = dataset.test_images, dataset.test_labels
    if 0 < config.test_examples < n:
        images, labels = rows((images, labels), fixed_choice(n, config.test_examples, 5))
    if dataset.pad is not None:
        order = by_length(images, dataset.pad)
        images, labels = images[order], labels[order]
    return fast_layout(images), labels


def calibration_images(config: TrainConfig, dataset: Dataset) -> Any:
    """Training images, the same for every seed, on which BatchNorm's statistics are made; labels play no part.

    Those of clients that join later are not among them: the losses of the others stay what they were.
    """
    there = np.arange(dataset.N)
    if config.joined and dataset.parts is not None:
        there = np.concatenate(dataset.parts[: config.present.initial])
    chosen = torch.from_numpy(there)[fixed_choice(len(there), config.calibration_examples, 6)]
    return fast_layout(rows(dataset.train_images, chosen))


def fixed_choice(n: int, count: int, purpose: int) -> torch.Tensor:
    """At most ``count`` of 0..n-1, chosen at random but by no run's seed."""
    order = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(purpose,))).permutation(n)
    return torch.from_numpy(order[:count])


def _accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == targets).float().mean()


def evaluate(
    module: nn.Module, loss: BatchLoss, dataset: Dataset, inputs: Any, targets: Any, batch_size: int
) -> dict[str, float]:
    """Means over the examples: test_accuracy (of classes), test_loss and of a task calibrated_accuracy.

    They are NaN where there are no examples (see ``Run``), and the accuracy where outputs and targets are no classes.
    A loss that is no mean over examples is the mean over batches of ``batch_size``.
    """
    measures: dict[str, LossFunction | BatchLoss] = {"test_accuracy": _accuracy, "test_loss": loss}
    if not row_count(inputs):
        return dict.fromkeys(measures, float("nan"))
    # Only where the targets are classes may they be compared with the largest of the outputs.
    has_classes = isinstance(targets, torch.Tensor) and not targets.is_floating_point() and loss.is_of_outputs
    if has_classes and loss.loss is not cross_entropy:
        with torch.no_grad():
            outputs = logits_of(loss.needs.met(partial(called, module, rows(inputs, slice(0, 1)))))
        has_classes = isinstance(outputs, torch.Tensor) and outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1
    if not has_classes:
        del measures["test_accuracy"]
    if dataset.content_free is not None:
        with torch.inference_mode():
            prior = module(dataset.content_free)
        measures["calibrated_accuracy"] = lambda outputs, wanted: _accuracy(outputs - prior, wanted)
    chunk = None if loss.additive else batch_size
    return dict(zip(measures, mean_losses(module, list(measures.values()), inputs, targets, chunk), strict=True))
