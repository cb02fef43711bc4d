"""The networks of the census that are trained here: one run of first-order steps each, kept at several moments."""

from functools import partial
from pathlib import Path
from typing import Final

import pandas as pd
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from decomfl_lab.checkpoint_file import write_checkpoint
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.files import file_digest
from decomfl_lab.layout import Layout
from decomfl_lab.models.registry import build_model
from decomfl_lab.objectives.descent import Descent
from decomfl_lab.objectives.normalisation import use_batch_statistics_
from decomfl_lab.progress import Progress
from decomfl_lab.provenance import provenance
from paper_repro.workflow.data import digest_named
from paper_repro.workflow.runs import Report, Result, Work
from paper_repro.workflow.scales import Sizes

SEED: Final = 0
MOMENTS: Final = "moments.safetensors"
"""The file with the parameters after each number of steps, by that number."""


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over examples and classes of (z_c − [c is the target])²."""
    return mse_loss(outputs, one_hot(targets, outputs.shape[1]).to(outputs.dtype))


LOSSES: Final = {"cross-entropy": cross_entropy, "squared": squared}


def training(model: str, data: str, loss: str, size: Sizes) -> Work:
    """The run of a model of the lab on a data set; its folder has ``MOMENTS``."""
    return Work(
        title=f"census: training {model} on {data}, {loss}",
        function=_trained,
        arguments={
            "model": model,
            "data": data,
            "loss": loss,
            "steps": size.steps,
            "lr": size.lr,
            "batch_size": size.batch_size,
        },
        data=partial(digest_named, data),
        cost=30 * size.steps[-1] * size.batch_size,
    )


def _trained(
    folder: Path, report: Report, model: str, data: str, loss: str, steps: tuple[int, ...], lr: float, batch_size: int
) -> Result:
    """The loss of a batch at every moment, as rows; BatchNorm takes the statistics of each batch."""
    dataset, last = load_dataset(data), max(steps)
    module = build_model(model, seed=SEED, in_shape=tuple(dataset.train_images.shape[1:]), classes=dataset.classes)
    use_batch_statistics_(module)
    layout = Layout.of(module)
    moments: dict[str, Tensor] = {"0": layout.flatten(module)}
    descent = Descent(optimizer="adam", lr=lr, batch_size=batch_size, seed=SEED)
    losses = {}
    for step, value in enumerate(descent(module, LOSSES[loss], dataset.train_images, dataset.train_labels, last), 1):
        if step in steps:
            moments[str(step)], losses[step] = layout.flatten(module), value
        report(Progress(step, last, value))
    write_checkpoint(folder / MOMENTS, moments, {})
    rows = pd.DataFrame({"step": [*losses], "loss": [*losses.values()]})
    return rows, {**provenance(dataset), "files": {MOMENTS: file_digest(folder / MOMENTS)}}
