"""The constants that the theorems have, of a federation that is really trained: for the report's part theory."""

import copy
import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Final, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.objectives.objective import ModuleObjective
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.preparation import Prepared
from hessian.kappa.effective_rank import effective_rank
from hessian.operators.curvature import HessianOperator
from hessian.operators.mean_loss import MeanLoss
from hessian.spectrum.density import spectral_density
from theory.notation.setting import Setting

_SEED: Final = 0


class Landscape:
    """The losses of a federation's clients, and the constants that the theorems have, measured at points."""

    BATCHES: Final = 8

    def __init__(self, config: TrainConfig, dataset: Dataset) -> None:
        start = Prepared.of(config, dataset)
        federation, module = start.federation(), start.module
        self.config = config
        self.federation = cast(DeComFLFederation, federation)
        self.objectives = [cast(ModuleObjective, client.objective) for client in self.federation.clients]
        self._loss = partial(MeanLoss, copy.deepcopy(module), cross_entropy)  # clients take theirs apart
        data = [(objective.inputs, objective.targets) for objective in self.objectives]
        self.whole = self._loss(data, weights=[1.0] * len(data))  # f = (1/M) Σ f_i

    @cached_property
    def _batches(self) -> list[list[MeanLoss]]:
        """The losses of each client's first mini-batches."""
        return [[self._loss([objective.batch(step)]) for step in range(self.BATCHES)] for objective in self.objectives]

    def constants(self, points: Sequence[Tensor]) -> Setting:
        """The largest of every constant over the points. What lies between them is not seen.

        L: λ_max of the Hessians of mini-batches; κ: tr(∇²f)₊/L; σ²: mean squared distance of a mini-batch's gradient
        from its client's; σ_G: largest distance of a client's gradient from ∇f; D: f(x_0), as f ≥ 0.
        """
        rows = []
        for x in points:
            whole = spectral_density(HessianOperator(self.whole, x), products=40, seed=_SEED)
            positive = whole.expectation(lambda values: np.maximum(values, 0.0))
            gradients = [
                self.whole.piece_gradient(x.detach().clone().requires_grad_(), piece) for piece in self.whole.pieces
            ]
            mean = torch.stack(gradients).mean(0)
            smooth, noise = whole.lambda_max, 0.0
            for batches, gradient in zip(self._batches, gradients, strict=True):
                deviations = [float(((batch.gradient(x) - gradient) ** 2).sum()) for batch in batches]
                noise = max(noise, float(np.mean(deviations)))
                smooth = max(smooth, effective_rank(HessianOperator(batches[0], x), products=8, seed=_SEED).norm)
            rows.append(
                {
                    "L": smooth,
                    "trace": whole.d * positive.value,
                    "sigma": math.sqrt(noise),
                    "sigma_G": max(float((gradient - mean).norm()) for gradient in gradients),
                }
            )
        largest = pd.DataFrame(rows).max()
        L, config = float(largest["L"]), self.config
        return Setting(
            d=self.whole.d, L=L, kappa=max(1.0, float(largest["trace"]) / L), sigma=float(largest["sigma"]),
            sigma_G=float(largest["sigma_G"]), D=self.whole(points[0]), m=config.sampled, M=config.clients,
            P=config.perturbations, R=config.rounds, distribution=config.distribution,
        )  # fmt: skip
