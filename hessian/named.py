"""Trained models by name: a run of ``decomfl train``, a file of weights, or a model trained here for some steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import Dataset, load_dataset
from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.models.registry import build_model
from decomfl_lab.objectives.normalisation import freeze_, use_batch_statistics_, uses_batch_statistics
from decomfl_lab.runs.config import TrainConfig
from decomfl_lab.runs.descent import Descent
from decomfl_lab.runs.evaluation import calibration_images, fixed_choice
from decomfl_lab.runs.run import load_run
from hessian.mean_loss import MeanLoss

__all__ = ["TrainedModel", "from_run", "from_weights", "trained_here", "untrained"]

_EXAMPLES = 8
"""Purpose of the random choice of examples (see ``fixed_choice``)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A model at the x where its curvature is wanted, and its data.

    Attributes:
        module: With these parameters.
        dataset: What it was trained on.
        calibration: Training images on which BatchNorm's statistics are made where the module has none of its own.
        name: Of the architecture.
        history: How its parameters came about, in words.
    """

    module: nn.Module
    dataset: Dataset
    calibration: Tensor
    name: str
    history: str

    def mean_loss(
        self,
        *,
        examples: int = 0,
        parts: int = 1,
        parameters: Sequence[str] | None = None,
        normalisation: str = "eval",
        dtype: torch.dtype | None = None,
        chunk: int | None = None,
    ) -> tuple[MeanLoss, ...]:
        """Cross-entropy on fixed training examples, where the module is, as a function of the parameters.

        Args:
            examples: How many, chosen at random but the same for every call and seed; 0 for all.
            parts: Into how many disjoint parts of equal size they are cut: one function each (for split samples).
            parameters: Names or prefixes of those that count as x; None for all.
            normalisation: Of BatchNorm: eval (statistics of the calibration images) or batch (of the examples).
            dtype: Of the computation; None for the parameters' own.
            chunk: Examples that go through the module at once; None for all.

        Raises:
            InputError: If there are no examples, a part would be empty, or MeanLoss refuses something.
        """
        n = len(self.dataset.train_labels)
        chosen = fixed_choice(n, require_int("examples", examples, 0, n) or n, _EXAMPLES)
        require(len(chosen) >= parts, "examples", f"be at least {parts}", len(chosen))
        device = next(self.module.parameters()).device
        if normalisation == "eval" and uses_batch_statistics(self.module):
            freeze_(self.module, self.calibration.to(device))
        size = len(chosen) // parts
        return tuple(
            MeanLoss(
                self.module,
                cross_entropy,
                [(self.dataset.train_images[index].to(device), self.dataset.train_labels[index].to(device))],
                parameters=parameters,
                normalisation=normalisation,
                dtype=dtype,
                chunk=chunk,
            )
            for index in chosen[: parts * size].split(size)
        )


def from_run(folder: Path) -> TrainedModel:
    """The model that ``decomfl train --out folder`` left; InputError if there is none."""
    run = load_run(folder)
    config = run.config
    return TrainedModel(
        module=run.model,
        dataset=run.dataset,
        calibration=calibration_images(config, run.dataset),
        name=config.model,
        history=f"{config.method.name}, {config.rounds} rounds, seed {config.seed} (run {folder.name})",
    )


def from_weights(path: Path, *, model: str, data: str) -> TrainedModel:
    """The model ``model`` with the weights of a safetensors file (a state dict), on the data set ``data``.

    Statistics of BatchNorm are the file's where it has them, else those of the calibration images.

    Raises:
        InputError: If the file cannot be read, or does not fit the model.
    """
    start = untrained(model, data, seed=0)
    try:
        found = start.module.load_state_dict(load_file(path), strict=False)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"weights must be a safetensors file that fits model {model}, got {path} ({reason})") from None
    parameters = {name for name, _ in start.module.named_parameters()}
    misfits = sorted(parameters & set(found.missing_keys)) + sorted(found.unexpected_keys)
    require(not misfits, f"weights in {path}", f"be exactly those of model {model}", misfits[:3])
    if any(name.endswith("running_mean") for name in found.missing_keys):
        use_batch_statistics_(start.module)
    start.module.eval()
    return replace(start, history=f"weights of {path.name}")


def trained_here(
    model: str,
    data: str,
    *,
    steps: int,
    descent: Descent,
    seed: int = 0,
    device: str | torch.device = "cpu",
    on_step: Callable[[int, float], None] | None = None,
) -> TrainedModel:
    """The model ``model``, initialised from ``seed`` and trained for ``steps`` first-order steps on ``data``.

    Args:
        model: A name in ``decomfl_lab.models.registry.MODELS``.
        data: A name in ``decomfl_lab.datasets.images.DATA_SETS``.
        steps: 0 for the model at its start, whose curvature is not that of a trained one.
        descent: How.
        seed: Of the initial parameters, the same on every device.
        device: Where it is trained, and stays.
        on_step: Called with the number of steps taken and the loss of the last one's batch.

    Raises:
        InputError: If a name is unknown, model and data do not fit, or training diverges.
    """
    start = untrained(model, data, seed=seed)
    use_batch_statistics_(start.module.to(device))
    dataset = start.dataset
    losses = descent(start.module, cross_entropy, dataset.train_images, dataset.train_labels, steps)
    for step, loss in enumerate(losses, 1):
        if on_step is not None:
            on_step(step, loss)
    words = f"{steps} steps of {descent.optimizer}, lr {descent.lr:g}, batch {descent.batch_size}, seed {seed}"
    return replace(start, history=words)


def untrained(model: str, data: str, *, seed: int) -> TrainedModel:
    """The model ``model`` as initialised from ``seed``, on ``data``; InputError if they do not fit."""
    dataset = load_dataset(data)
    config = TrainConfig(model=model, data=data)
    in_shape = tuple(dataset.train_images.shape[1:])
    module = build_model(model, seed=seed, in_shape=in_shape, classes=dataset.classes)
    return TrainedModel(
        module=module,
        dataset=dataset,
        calibration=calibration_images(config, dataset),
        name=model,
        history="at its start",
    )
