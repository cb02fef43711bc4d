"""MeZO: one agent with all the data, and nothing to communicate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decomfl_lab.estimators.second_differences import CurvatureLog
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.methods.fedzo import FedZOClient, WalkingByDifferences
from decomfl_lab.methods.traffic import Cohort, ExpectedTraffic
from decomfl_lab.outside import SavedFederation
from decomfl_lab.protocol.wire import Ledger
from decomfl_lab.records.schedules import Schedule

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.estimators.resolution import Resolution
    from decomfl_lab.outside import Saved


@dataclass(frozen=True, kw_only=True)
class MeZO(WalkingByDifferences):
    """One agent with all the data, no communication.

        x_{t+1} = rule(x_t, g_t, z_t),   g_{t,p} = (f(x_t + μ z_{t,p}) − f(x_t − μ z_{t,p})) / 2μ

    Source: Malladi et al., "Fine-tuning language models with just forward passes", NeurIPS 2023, Algorithm 1 (the
    perturbed points are formed beside x instead of in place, so x does not drift).
    """

    name: ClassVar[str] = "mezo"
    alone: ClassVar[bool] = True

    def federation(self, setting: TrainingSetting) -> MezoFederation:
        """See ``Method.federation``."""
        return MezoFederation(self.client(setting, 0), setting.x, K=self.local_steps, eta=self.eta)

    def traffic(self, cohort: Cohort, d: int) -> ExpectedTraffic:  # noqa: ARG002
        """See ``Method.traffic``: none."""
        return ExpectedTraffic()


class MezoFederation:
    """One agent with all the data, K steps a round."""

    by_records = None

    def __init__(self, agent: FedZOClient, x: Tensor, *, K: int, eta: Schedule[float]) -> None:
        self.agent = agent
        self.x = x.detach().clone()
        self.K, self.eta = K, eta
        self.round = 0
        self.pulls = 0
        self.drift: float | None = None
        self.curvature: CurvatureLog | None = None
        self.ledger = Ledger(1)

    def watch(self, resolution: Resolution) -> None:
        """See ``Federation``."""
        self.agent.resolution = resolution

    def advance(self) -> float:
        """See ``Federation``."""
        self.x, loss = self.agent.train(self.x, self.eta(self.round), self.K)
        self.round += 1
        return loss

    def save(self) -> Saved:
        """See ``Federation``."""
        return {"x": self.x}, SavedFederation(round=self.round, steps_taken=self.agent.steps_taken)

    def load(self, saved: Saved) -> None:
        """See ``Federation``."""
        tensors, values = saved
        self.x.copy_(tensors["x"])
        self.round, (self.agent.steps_taken,) = values.round, values.steps
