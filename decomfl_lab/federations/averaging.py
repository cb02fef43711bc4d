"""Models down, models up, and their mean.

What trains a client's copy (``Trainer``) and how it is sent back (``Uplink``) is the method's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from decomfl_lab.errors import DivergedError
from decomfl_lab.estimators.second_differences import CurvatureLog
from decomfl_lab.federations.newcomers import padded
from decomfl_lab.protocol.messages import Dense
from decomfl_lab.protocol.server import sample_clients
from decomfl_lab.protocol.wire import Ledger, read, vector_of
from decomfl_lab.records.schedules import Schedule

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.federations.federation import Saved
    from decomfl_lab.methods.method import Setting

__all__ = ["DenseUplink", "FedAvgFederation", "Floats", "Trainer", "Uplink"]

Floats = Any
"""A float32 or float64 vector (d,)."""


class Trainer(Protocol):
    """A client that trains a copy of the server's model on its own data."""

    steps_taken: int

    def train(self, x: Tensor, eta: float, K: int) -> tuple[Tensor, float]:
        """The model after K local steps from ``x`` (d,), which is not changed, and the mean training loss."""


class Uplink(Protocol):
    """How a trained copy comes back to the server."""

    def send(self, ledger: Ledger, client: int, r: int, down: Floats, own: Floats) -> Floats:
        """Encode what ``client`` sends in round r, count it, decode it: the model (d,) that the server sees."""


class DenseUplink:
    """The model itself, every element."""

    def send(self, ledger: Ledger, client: int, r: int, down: Floats, own: Floats) -> Floats:
        """See ``Uplink``."""
        return vector_of(read(Dense, ledger.vector(client, r, own, upwards=True)), r, down.size, down.dtype)


class FedAvgFederation:
    """Models down, models up: FedAvg, FedCom, FedAvg + Top-k, FedZO, by what trains and how it is sent.

        x_{r+1} = (1/m) Σ_{i ∈ C_r} x_{i,r}^{K+1}, added in float64 in the order of the clients' numbers

    Source: McMahan et al. 2017, Algorithm 1, with equal client sizes.
    """

    def __init__(
        self,
        setting: Setting,
        clients: Sequence[Trainer],
        *,
        K: int,
        eta: Schedule[float],
        uplink: Uplink | None = None,
    ) -> None:
        self.x = setting.x.detach().clone()
        self.K, self.eta, self.m, self.seed = K, eta, setting.sampled, setting.seed
        self.present = setting.present
        self.clients = list(clients)
        self.uplink = DenseUplink() if uplink is None else uplink
        self.round = self.pulls = 0
        self.drift: float | None = None
        self.curvature: CurvatureLog | None = None
        self.ledger = Ledger(len(self.clients))

    def sample(self) -> tuple[int, ...]:
        """C_r."""
        return sample_clients(self.seed, self.round, self.present(self.round), self.m)

    def advance(self) -> float:
        """See ``Federation``."""
        import torch

        total, losses = np.zeros(self.x.numel()), []
        for i in self.sample():
            here = self.x.cpu().numpy()
            message = self.ledger.vector(i, self.round, here, upwards=False)
            down = vector_of(read(Dense, message), self.round, here.size, here.dtype)
            start = torch.from_numpy(down.copy()).to(self.x.device)
            own, loss = self.clients[i].train(start, self.eta(self.round), self.K)
            if not torch.isfinite(own).all():
                raise DivergedError(f"model of client {i}")
            model = self.uplink.send(self.ledger, i, self.round, down, own.cpu().numpy())
            total += model.astype(np.float64)
            losses.append(loss)
        if not np.isfinite(total).all():
            raise DivergedError("mean of the clients' models")
        self.x = torch.from_numpy(total / len(losses)).to(self.x)
        self.round += 1
        return float(np.mean(losses))

    def save(self) -> Saved:
        """See ``Federation``."""
        values = {
            "round": self.round,
            "steps_taken": [client.steps_taken for client in self.clients],
            "ledger": self.ledger.to_json(),
        }
        return {"x": self.x}, values

    def load(self, saved: Saved) -> None:
        """See ``Federation``."""
        tensors, values = padded(saved, len(self.clients))
        self.x.copy_(tensors["x"])
        self.round = values["round"]
        for steps, client in zip(values["steps_taken"], self.clients, strict=True):
            client.steps_taken = steps
        self.ledger = Ledger.from_json(len(self.clients), values["ledger"])
