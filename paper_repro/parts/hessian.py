"""The appendix's figure of Hessian eigenvalues: a small ResNet while it is trained, and its effective rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import cross_entropy

import hessian
from decomfl_lab.checkpoint import read_checkpoint, write_checkpoint
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.devices import find_device, use_tf32_
from decomfl_lab.files import write_atomically
from decomfl_lab.layout import Layout
from decomfl_lab.objectives.normalisation import use_batch_statistics_
from decomfl_lab.runs.descent import Descent
from decomfl_lab.runs.provenance import read_provenance, write_provenance
from decomfl_lab.runs.told import Progress
from figures.spectra import KAPPAS, training_spectra
from hessian.kappa.effective_rank import effective_rank
from hessian.named import TrainedModel, trained_here, untrained
from hessian.operators.curvature import GaussNewtonOperator, HessianOperator
from hessian.operators.options import CurvatureOptions
from hessian.spectrum.density import density_frame, spectral_density
from paper_repro.workflow.claims import limits
from paper_repro.workflow.expression import judged
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.report import Section, notes
from paper_repro.workflow.runs import ROWS_FILE, TableWork, Work, data_set, fingerprint
from paper_repro.workflow.scales import HessianScale

__all__ = ["DensityCheck", "SpectrumWork", "jobs", "make"]

LIMITS = limits("hessian")
NEAR: float = LIMITS.near  # the share of λ_max below which an eigenvalue's magnitude counts as 0
CONFIDENCE = 0.95
SEED = 0

_MODELS = "models.safetensors"


def jobs(options: Options) -> list[Work]:
    """Train and take the spectrum at every step asked for; and check the density where the truth is known."""
    data = data_set("cifar10")
    return [SpectrumWork(options.scale.hessian, data, f"Hessian of a ResNet, {data}"), DensityCheck()]


@dataclass(frozen=True)
class SpectrumWork:
    """A model trained by first-order steps, with the spectrum of its Hessian at some of them."""

    size: HessianScale  # the sizes of the work
    data: str  # the name of the data set
    title: str  # the title of its progress bar
    urgency: int = 0  # a number; where time is limited, work of a smaller one goes first
    device: str = "cpu"  # the device on which it computes

    def key(self) -> str:
        """See ``Work``: sizes, data and the code of both layers."""
        return fingerprint(__file__, asdict(self.size), load_dataset(self.data).digest, layers=[hessian])

    def cost(self) -> float:
        """See ``Work``: a product is worth about twelve passes, each half as dear as the MNIST CNN's."""
        size = self.size
        products = size.products + size.gauss_newton
        return 2 * size.steps[-1] * size.batch_size + 6 * len(size.steps) * products * size.examples

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        """See ``Work``: the models first, then a table a step; what is there is kept."""
        start, device = untrained(self.size.model, self.data, seed=SEED), find_device(self.device)
        use_tf32_(False)
        start.module.to(device)
        models, losses = self._models(start, folder / _MODELS, report)
        layout = Layout.of(start.module)
        for step, x in models.items():
            path = folder / f"step-{step}.csv"
            if not path.exists():
                layout.bind(start.module, x.clone().to(device))
                use_batch_statistics_(start.module)
                write_atomically(path, self._spectrum(start).assign(step=step).to_csv(index=False))
            report(self._at(self.size.steps[-1] + 1 + self.size.steps.index(step), losses))
        write_provenance(folder, start.dataset.to(device))
        return f"{len(models)} spectra"

    def result(self, folder: Path, ended: str) -> tuple[pd.DataFrame, dict[str, Any]]:  # noqa: ARG002 (of the protocol)
        """See ``Work``: the tables of all steps (``_spectrum`` says of what)."""
        rows = pd.concat([pd.read_csv(folder / f"step-{step}.csv") for step in self.size.steps], ignore_index=True)
        return rows, read_provenance(folder)

    def _models(
        self, start: TrainedModel, path: Path, report: Callable[[Progress], None]
    ) -> tuple[dict[int, torch.Tensor], float]:
        """The parameters after each number of steps, and the last training loss."""
        if path.exists():
            tensors, values = read_checkpoint(path)
            return {step: tensors[str(step)] for step in self.size.steps}, values["loss"]
        layout, dataset = Layout.of(start.module), start.dataset
        use_batch_statistics_(start.module)
        descent = Descent(optimizer="adam", lr=self.size.lr, batch_size=self.size.batch_size, seed=SEED)
        found = {0: layout.flatten(start.module)}
        loss = math.nan
        taken = descent(start.module, cross_entropy, dataset.train_images, dataset.train_labels, max(self.size.steps))
        for step, loss in enumerate(taken, 1):
            if step in self.size.steps:
                found[step] = layout.flatten(start.module)
            report(self._at(step, loss))
        models = {step: found[step] for step in self.size.steps}
        write_checkpoint(path, {str(step): x for step, x in models.items()}, {"loss": loss})
        return models, loss

    def _at(self, done: int, loss: float) -> Progress:
        return Progress(done, self.size.steps[-1] + len(self.size.steps), loss, math.nan, 0.0)

    def _spectrum(self, trained: TrainedModel) -> pd.DataFrame:
        """Everything known at one x, as rows of three kinds.

        - estimate: ``name`` is ``value``, in low..high;
        - single: an eigenvalue known by itself is ``value``;
        - curve: the density at λ = ``value`` is ``density``, in low..high.
        """
        size = self.size
        on_gpu = next(trained.module.parameters()).is_cuda
        (objective,) = trained.mean_loss(CurvatureOptions(chunk=500 if on_gpu else 32), examples=size.examples)
        density = spectral_density(
            HessianOperator(objective),
            products=size.products,
            probes=size.probes,
            seed=SEED,
        )
        outer = effective_rank(GaussNewtonOperator(objective), products=size.gauss_newton, seed=SEED)
        # (value, low, high) of everything that is a mean over the eigenvalues, or one of the outer ones.
        nodes, residuals = density.nodes, density.residuals
        norm = max(density.lambda_max, -density.lambda_min)
        near = density.expectation(lambda x: (np.abs(x) < NEAR * norm).astype(float))
        numbers = {
            **density.kappas(CONFIDENCE),
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


@dataclass(frozen=True)
class DensityCheck(TableWork):
    """The distance of the density from all eigenvalues of a network small enough to have them."""

    title: str = "density against a dense spectrum"  # the title of its progress bar
    model: str = "mlp"  # the network, on scikit-learn's digits
    steps: int = 300  # the number of steps of Adam
    examples: int = 300  # the number of examples whose mean loss has the Hessian
    products: int = 50  # the same as in ``HessianScale``
    probes: int = 3  # the same as in ``HessianScale``

    def key(self) -> str:
        """See ``Work``."""
        return fingerprint(__file__, asdict(self), load_dataset("digits").digest, layers=[hessian])

    def cost(self) -> float:
        """See ``Work``: a few seconds."""
        return 4e4

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        """See ``Work``."""
        trained = trained_here(self.model, "digits", steps=self.steps, descent=Descent(seed=SEED), seed=SEED)
        (objective,) = trained.mean_loss(CurvatureOptions(dtype="float64"), examples=self.examples)
        operator = HessianOperator(objective)
        columns = []
        for i in range(operator.d):
            unit = torch.zeros(operator.d, dtype=torch.float64)
            unit[i] = 1.0
            columns.append(operator.matvec(unit))
            report(Progress(i + 1, operator.d, objective.value, math.nan, 0.0))
        eigenvalues = np.linalg.eigvalsh(torch.stack(columns).numpy())
        density = spectral_density(operator, products=self.products, probes=self.probes, seed=SEED)
        scale = float(np.abs(eigenvalues).mean())
        numbers = {
            "d": operator.d,
            "products": density.products,
            "distance": density.wasserstein(eigenvalues) / scale,
            "true kappa": eigenvalues.sum() / np.abs(eigenvalues).max(),
            "kappa": density.kappas(CONFIDENCE)["signed"][0],
        }
        rows = pd.DataFrame({"kind": "check", "name": list(numbers), "value": list(numbers.values())})
        write_atomically(folder / ROWS_FILE, rows.to_csv(index=False))
        write_provenance(folder, trained.dataset)
        return f"{operator.d} eigenvalues"


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The figure, its table and its verdicts."""
    size = options.scale.hessian
    check = rows["kind"] == "check"
    found = rows[check].set_index("name")["value"]
    rows = rows[~check].astype({"step": int})  # a file has them as fractions beside rows without
    numbers = rows[rows["kind"] == "estimate"]
    table = numbers.pivot(index="step", columns="name", values="value").reset_index()
    d = int(table["d"].iloc[0])
    words = (
        f"{options.scale.words(named=False)}: {size.model}, d = {d:,}, Adam at {size.lr:g} on "
        f"batches of {size.batch_size}, Hessian of the mean loss of {size.examples} training images"
    )
    curves = rows[rows["kind"] == "curve"]
    widths = table.set_index("step")["bandwidth"]
    figure = training_spectra(
        curves.assign(bandwidth=curves["step"].map(widths)),
        rows[rows["kind"] == "single"],
        numbers[numbers["name"].isin(KAPPAS)].rename(columns={"name": "kappa"}),
        table,
        d=d,
        near=NEAR,
        title="Hessian eigenvalue distribution of a ResNet while it is trained",
        caption=f"Scale {words}. Data: {provenance[0]['data']}.",
    )
    shown = ["step", "loss", "lambda_max", "lambda_min", "near zero", *KAPPAS, "products"]
    on_cifar = str(provenance[0]["data"]).startswith("CIFAR-10")
    data = "CIFAR-10" if on_cifar else "MNIST digits (CIFAR-10 was not available here)"
    section = Section(
        id="hessian",
        figure=figure,
        notes=notes("hessian", **vars(size), near=NEAR, confidence=CONFIDENCE, check=found),
        table=table[shown],
    )
    return Made(
        section=section,
        claims=judged("hessian", f"{words}; {data}", {"": numbers[numbers["step"] > 0]}),  # not the untrained model
        figures={"hessian": figure},
        tables={"hessian": table, "hessian-numbers": numbers, "hessian-curves": curves},
    )
