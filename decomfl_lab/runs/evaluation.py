"""The evaluation of a run: its examples, and what is measured on them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.objectives.objective import LossFunction, mean_losses
from decomfl_lab.runs.config import TrainConfig

__all__ = ["by_length", "calibration_images", "evaluate", "fast_layout", "fixed_choice", "held_out"]


def fast_layout(images: torch.Tensor) -> torch.Tensor:
    """Channels-last images: the same numbers, in the memory order in which CPU convolutions are fastest."""
    return images.to(memory_format=torch.channels_last) if images.ndim == 4 else images


def by_length(ids: torch.Tensor, pad: int) -> torch.Tensor:
    """The order of prompts (N, T) by length: those that pass together cost what the longest of them does."""
    return (ids != pad).sum(1).argsort(stable=True).cpu()


def held_out(config: TrainConfig, dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """The held-out images and labels that a run is evaluated on: all, or a fixed random choice of them."""
    n = len(dataset.test_labels)
    images, labels = dataset.test_images, dataset.test_labels
    if 0 < config.test_examples < n:
        chosen = fixed_choice(n, config.test_examples, 5)
        images, labels = images[chosen], labels[chosen]
    if dataset.pad is not None:
        order = by_length(images, dataset.pad)
        images, labels = images[order], labels[order]
    return fast_layout(images), labels


def calibration_images(config: TrainConfig, dataset: Dataset) -> torch.Tensor:
    """Training images, the same for every seed, on which BatchNorm's statistics are made; labels play no part.

    Those of clients that join later are not among them: the losses of the others stay what they were.
    """
    there = np.arange(len(dataset.train_labels))
    if config.joined and dataset.parts is not None:
        there = np.concatenate(dataset.parts[: config.present.initial])
    chosen = torch.from_numpy(there)[fixed_choice(len(there), config.calibration_examples, 6)]
    return fast_layout(dataset.train_images[chosen])


def fixed_choice(n: int, count: int, purpose: int) -> torch.Tensor:
    """At most ``count`` of 0..n-1, chosen at random but by no run's seed."""
    order = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(purpose,))).permutation(n)
    return torch.from_numpy(order[:count])


def _accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == targets).float().mean()


def evaluate(
    module: nn.Module, loss: LossFunction, dataset: Dataset, inputs: torch.Tensor, targets: torch.Tensor
) -> dict[str, float]:
    """Means over the examples: test_accuracy (of classes), test_loss and of a task calibrated_accuracy.

    They are NaN where there are no examples (see ``Run``).
    """
    measures: dict[str, LossFunction] = {"test_accuracy": _accuracy, "test_loss": loss}
    if len(targets) == 0:
        return dict.fromkeys(measures, float("nan"))
    if targets.is_floating_point():
        del measures["test_accuracy"]
    if dataset.content_free is not None:
        with torch.inference_mode():
            prior = module(dataset.content_free)
        measures["calibrated_accuracy"] = lambda outputs, wanted: _accuracy(outputs - prior, wanted)
    return dict(zip(measures, mean_losses(module, list(measures.values()), inputs, targets), strict=True))
