"""The appendix's figure of Hessian eigenvalues: a small ResNet while it is trained, and its effective rank."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from decomfl_lab.devices import find_device, use_tf32_
from decomfl_lab.layout import Layout
from decomfl_lab.objectives.descent import Descent
from decomfl_lab.objectives.normalisation import use_batch_statistics_
from decomfl_lab.progress import Progress
from decomfl_lab.storage.checkpoint_file import read_checkpoint, write_checkpoint
from decomfl_lab.storage.files import write_atomically
from decomfl_lab.storage.provenance import provenance
from figures.spectra import KAPPAS, training_spectra
from hessian.kappa.effective_rank import effective_rank
from hessian.operators.curvature import GaussNewtonOperator, HessianOperator
from hessian.operators.options import CurvatureOptions
from hessian.spectrum.density import density_frame, spectral_density
from hessian.trained_models import TrainedModel, trained_here, untrained
from paper_repro.workflow.data import data_set, digest_named
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import caption, notes
from paper_repro.workflow.runs import Report, Result, Work
from paper_repro.workflow.scales import Sizes
from paper_repro.workflow.verdicts.claim_table import limits
from paper_repro.workflow.verdicts.claim_verdicts import judged

LIMITS = limits("hessian")
NEAR: float = LIMITS.near  # the share of λ_max below which an eigenvalue's magnitude counts as 0
CONFIDENCE = 0.95
SEED = 0

MODELS_FILE = "models.safetensors"


def jobs(options: Options) -> list[Work]:
    """Train and take the spectrum at every step asked for; and check the density where the truth is known."""
    size, data = options.scale.hessian, data_set("cifar10")
    # A product is worth about twelve passes, each half as dear as the MNIST CNN's.
    products_in_all = size.products + size.gauss_newton + 2 * size.parts
    cost = 2 * size.steps[-1] * size.batch_size + 6 * len(size.steps) * products_in_all * size.examples
    spectra = Work(
        title=f"Hessian of a ResNet, {data}",
        function=measured_spectra,
        arguments={"size": size, "data": data},
        data=partial(digest_named, data),
        layers=("hessian",),
        cost=cost,
        device="cpu",
    )
    density = Work(
        title="density against a dense spectrum",
        function=measured_density,
        data=partial(digest_named, "digits"),
        layers=("hessian",),
        cost=4e4,
    )
    return [spectra, density]


def measured_spectra(folder: Path, report: Report, size: Sizes, data: str, device: str) -> Result:
    """A model trained by first-order steps, with what ``_spectrum`` says after some of them; what is there is kept."""
    start, place = untrained(size.model, data, seed=SEED), find_device(device)
    use_tf32_(False)
    start.module.to(place)

    def reached(done: int, loss: float) -> None:
        report(Progress(done, size.steps[-1] + len(size.steps), loss))

    models, loss = moments(folder, start, size, reached)
    layout, dataset = Layout.of(start.module), start.dataset
    tables = []
    for step in size.steps:
        path = folder / f"step-{step}.csv"
        if not path.exists():
            layout.bind(start.module, models[str(step)].clone().to(place))
            use_batch_statistics_(start.module)
            write_atomically(path, _spectrum(size, start).assign(step=step).to_csv(index=False))
        tables.append(pd.read_csv(path))
        reached(size.steps[-1] + 1 + size.steps.index(step), loss)
    return pd.concat(tables, ignore_index=True), provenance(dataset.to(place))


def moments(
    folder: Path, start: TrainedModel, size: Sizes, reached: Callable[[int, float], None]
) -> tuple[dict[str, Tensor], float]:
    """The parameters after each number of steps, and the last training loss; from the folder if they are there."""
    kept, layout = folder / MODELS_FILE, Layout.of(start.module)
    if kept.exists():
        models, values = read_checkpoint(kept)
        return models, values["loss"]
    use_batch_statistics_(start.module)
    descent = Descent(optimizer="adam", lr=size.lr, batch_size=size.batch_size, seed=SEED)
    models = {"0": layout.flatten(start.module)}
    loss = math.nan
    for step, loss in enumerate(descent(start.module, start.loss, *start.examples, max(size.steps)), 1):
        if step in size.steps:
            models[str(step)] = layout.flatten(start.module)
        reached(step, loss)
    models = {str(step): models[str(step)] for step in size.steps}
    write_checkpoint(kept, models, {"loss": loss})
    return models, loss


def _spectrum(size: Sizes, trained: TrainedModel) -> pd.DataFrame:
    """Everything known at one x, as rows of three kinds.

    - estimate: ``name`` is ``value``, in low..high;
    - single: an eigenvalue known by itself is ``value``;
    - curve: the density at λ = ``value`` is ``density``, in low..high.
    """
    on_gpu = next(trained.module.parameters()).is_cuda
    (objective,) = trained.mean_loss(CurvatureOptions(chunk=500 if on_gpu else 32), examples=size.examples)
    H = HessianOperator(objective)
    density = spectral_density(H, products=size.products, probes=size.probes, seed=SEED)
    parts = {part: effective_rank(H, products=size.parts, part=part, seed=SEED) for part in ("positive", "absolute")}
    outer = effective_rank(GaussNewtonOperator(objective), products=size.gauss_newton, seed=SEED)
    # (value, low, high) of everything that is a mean over the eigenvalues, or one of the outer ones.
    nodes, residuals = density.nodes, density.residuals
    norm = max(density.lambda_max, -density.lambda_min)
    near = density.expectation(lambda x: (np.abs(x) < NEAR * norm).astype(float))
    numbers = {
        "signed": density.kappas(CONFIDENCE)["signed"],
        **{name: (part.kappa, *part.interval) for name, part in parts.items()},
        "near zero": (near.value, *near.interval(CONFIDENCE)),
        "d": (density.d,) * 3,
        "bandwidth": (density.bandwidth,) * 3,
        "lambda_max": (nodes[-1], nodes[-1], nodes[-1] + residuals[-1]),
        "lambda_min": (nodes[0], nodes[0] - residuals[0], nodes[0]),
        "products": (density.products,) * 3,
        "loss": (objective.value,) * 3,
        "gauss-newton": (outer.kappa, *outer.interval),
    }
    rows = [
        {"kind": "estimate", "name": name, "value": value, "low": low, "high": high}
        for name, (value, low, high) in numbers.items()
    ]
    curve = density_frame(density, CONFIDENCE).assign(kind="curve")
    single = pd.DataFrame({"kind": "single", "value": density.nodes[density.exact]})
    return pd.concat([pd.DataFrame(rows), single, curve], ignore_index=True)


def measured_density(
    folder: Path,  # noqa: ARG001 (of the protocol)
    report: Report,
    model: str = "mlp",
    steps: int = 300,
    examples: int = 300,
    products: int = 50,
    probes: int = 3,
) -> Result:
    """The distance of the density from all eigenvalues of a network small enough to have them, on digits."""
    trained = trained_here(model, "digits", steps=steps, descent=Descent(seed=SEED), seed=SEED)
    (objective,) = trained.mean_loss(CurvatureOptions(dtype="float64"), examples=examples)
    operator = HessianOperator(objective)
    eigenvalues = np.linalg.eigvalsh((operator @ torch.eye(operator.d, dtype=torch.float64)).numpy())
    report(Progress(operator.d, operator.d, objective.value))
    density = spectral_density(operator, products=products, probes=probes, seed=SEED)
    scale = float(np.abs(eigenvalues).mean())
    numbers = {
        "d": operator.d,
        "products": density.products,
        "distance": density.wasserstein(eigenvalues) / scale,
        "true kappa": eigenvalues.sum() / np.abs(eigenvalues).max(),
        "kappa": density.kappas(CONFIDENCE)["signed"][0],
    }
    rows = pd.DataFrame({"kind": "check", "name": list(numbers), "value": list(numbers.values())})
    return rows, provenance(trained.dataset)


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The figure, its table and its verdicts."""
    size = options.scale.hessian
    check = rows["kind"] == "check"
    found = rows[check].set_index("name")["value"]
    rows = rows[~check].astype({"step": int})  # a file has them as fractions beside rows without
    numbers = rows[rows["kind"] == "estimate"]
    table = numbers.pivot(index="step", columns="name", values="value").reset_index()
    d = int(table["d"].iloc[0])
    words = options.scale.words("hessian", named=False, d=d)
    curves = rows[rows["kind"] == "curve"]
    widths = table.set_index("step")["bandwidth"]
    figure = partial(
        training_spectra,
        curves.assign(bandwidth=curves["step"].map(widths)),
        rows[rows["kind"] == "single"],
        numbers[numbers["name"].isin(KAPPAS)].rename(columns={"name": "kappa"}),
        table,
        d=d,
        near=NEAR,
        title="Hessian eigenvalue distribution of a ResNet while it is trained",
        caption=caption("hessian", scale=words, data=provenance[0]["data"]),
    )
    shown = ["step", "loss", "lambda_max", "lambda_min", "near zero", *KAPPAS, "products"]
    on_cifar = str(provenance[0]["data"]).startswith("CIFAR-10")
    data = "CIFAR-10" if on_cifar else "MNIST digits (CIFAR-10 was not available here)"
    return made(
        "hessian",
        judged("hessian", f"{words}; {data}", {"": numbers[numbers["step"] > 0]}),  # not the untrained model
        {"hessian": figure},
        {"hessian": table, "hessian-numbers": numbers, "hessian-curves": curves},
        notes=notes("hessian", **vars(size), near=NEAR, confidence=CONFIDENCE, check=found),
        table=table[shown],
    )
