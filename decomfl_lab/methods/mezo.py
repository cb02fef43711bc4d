"""MeZO: one agent with all the data, and nothing to communicate."""

from __future__ import annotations

from torch import Tensor

from decomfl_lab.estimators.second_differences import CurvatureLog
from decomfl_lab.methods.federation import Saved
from decomfl_lab.methods.fedzo import FedZOClient
from decomfl_lab.protocol.wire import Ledger
from decomfl_lab.records.schedules import Schedule

__all__ = ["MezoFederation"]


class MezoFederation:
    """MeZO: one agent with all the data, K steps a round, and nothing to communicate.

    Source: Malladi et al., "Fine-tuning language models with just forward passes", NeurIPS 2023, Algorithm 1 (the
    perturbed points are formed beside x instead of in place, so x does not drift).
    """

    def __init__(self, agent: FedZOClient, x: Tensor, *, K: int, eta: Schedule[float]) -> None:
        self.agent = agent
        self._x = x.detach().clone()
        self.K, self.eta = K, eta
        self._round = 0
        self.pulls = 0
        self.drift: float | None = None
        self.curvature: CurvatureLog | None = None
        self.ledger = Ledger(1)

    @property
    def round(self) -> int:
        """See ``Federation``."""
        return self._round

    @property
    def x(self) -> Tensor:
        """See ``Federation``."""
        return self._x

    def advance(self) -> float:
        """See ``Federation``."""
        self._x, loss = self.agent.train(self._x, self.eta(self._round), self.K)
        self._round += 1
        return loss

    def save(self) -> Saved:
        """See ``Federation``."""
        return {"x": self._x}, {"round": self._round, "steps_taken": self.agent.steps_taken}

    def load(self, saved: Saved) -> None:
        """See ``Federation``."""
        tensors, values = saved
        self._x.copy_(tensors["x"])
        self._round = values["round"]
        self.agent.steps_taken = values["steps_taken"]
