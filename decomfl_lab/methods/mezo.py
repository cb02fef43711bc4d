"""MeZO: one agent with all the data, and nothing to communicate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decomfl_lab.federations.averaging import FedAvgFederation
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.methods.expected_traffic import Cohort, ExpectedTraffic
from decomfl_lab.methods.fedzo import Walking
from decomfl_lab.methods.scalars import Differences
from decomfl_lab.storage.outside import Saved, SavedFederation


@dataclass(frozen=True, kw_only=True)
class MeZO(Walking, Differences):
    """One agent with all the data, no communication.

        x_{t+1} = rule(x_t, g_t, z_t),   g_{t,p} = (f(x_t + μ z_{t,p}) − f(x_t − μ z_{t,p})) / 2μ

    Source: Malladi et al., "Fine-tuning language models with just forward passes", NeurIPS 2023, Algorithm 1 (the
    perturbed points are formed beside x instead of in place, so x does not drift).
    """

    name: ClassVar[str] = "mezo"
    alone: ClassVar[bool] = True
    weighting: ClassVar[str] = "clients"  # type: ignore[misc]  # there is one

    def federation(self, setting: TrainingSetting) -> MezoFederation:
        return MezoFederation(setting, [self.client(setting, 0)], K=self.local_steps, eta=self.eta)

    def traffic(self, cohort: Cohort, d: int) -> ExpectedTraffic:  # noqa: ARG002
        """See ``Method.traffic``: none."""
        return ExpectedTraffic()


class MezoFederation(FedAvgFederation):
    """One agent with all the data, K steps a round."""

    def advance(self) -> float:
        """See ``Federation``."""
        self.x, loss = self.clients[0].train(self.x, self.eta(self.round), self.K)
        self.round += 1
        return loss

    def save(self) -> Saved:
        """See ``Federation``."""
        return {"x": self.x}, SavedFederation(round=self.round, steps_taken=self.clients[0].steps_taken)

    def load(self, saved: Saved) -> None:
        tensors, values = saved
        self.x.copy_(tensors["x"])
        self.round, (self.clients[0].steps_taken,) = values.round, values.steps
