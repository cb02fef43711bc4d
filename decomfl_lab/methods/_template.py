"""A method to copy: rename the file, the class and ``name``, and add it to ``registry.METHODS``.

It can be run as it is: ``decomfl train decomfl_lab.methods._template:FedSgd --data digits --model logistic``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from decomfl_lab.engines.base import Engine
from decomfl_lab.errors import require_finite_positive
from decomfl_lab.federations.averaging import FedAvgFederation
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.methods.expected_traffic import Cohort, ExpectedTraffic, models_both_ways
from decomfl_lab.methods.method import Method
from decomfl_lab.objectives.objective import Objective
from decomfl_lab.options import option


@dataclass(frozen=True, kw_only=True)
class FedSgd(Method):
    """One clipped gradient step a round; models both ways.

        client:  x_{i,r} = x_r − η clip(∇f_i(x_r; ξ), c),   clip(v, c) = v · min(1, c / ‖v‖)
        server:  x_{r+1} = (1/m) Σ_i x_{i,r}

    The first line is the help of ``decomfl train --help``; formula and source are shown by ``--help`` of the method.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
    FedSGD; with clipping.
    """

    name: ClassVar[str] = "fedsgd"
    gradients: ClassVar[bool] = True

    clip: float = option(1.0, "The norm c to which gradients are clipped.")  # a field is an option and a flag

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite_positive("clip c", self.clip)

    def federation(self, setting: TrainingSetting) -> FedAvgFederation:
        clients = [_Client(objective, setting.engine, self.clip) for objective in setting.objectives]
        return FedAvgFederation(setting, clients, K=1, eta=self.eta)

    def traffic(self, cohort: Cohort, d: int) -> ExpectedTraffic:
        """See ``Method.traffic``: R·q times a model each way."""
        return models_both_ways(cohort, d)


class _Client:
    """See ``federations.averaging.Trainer``; tensors in an attribute ``kept_tensors`` would be in the checkpoint."""

    def __init__(self, objective: Objective, engine: Engine, clip: float) -> None:
        self.objective, self.engine, self.clip = objective, engine, clip
        self.steps_taken = 0  # picks the batch; the run's checkpoint keeps it

    def train(self, x: Tensor, eta: float, K: int) -> tuple[Tensor, float]:
        """See ``Trainer.train``; K is 1."""
        losses, gradients = self.engine.gradients([x], [(self.objective, self.steps_taken)])
        self.steps_taken += K
        gradient = gradients[0].to(x.dtype)
        norm = torch.linalg.vector_norm(gradient)
        return x - eta * torch.clamp(self.clip / norm, max=1.0) * gradient, float(losses[0])
