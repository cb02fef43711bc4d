"""Models down, models up, and their mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.errors import DivergedError
from decomfl_lab.estimators.second_differences import CurvatureLog
from decomfl_lab.methods.fedavg import DenseUplink, FedAvgServer, Trainer, Uplink
from decomfl_lab.methods.federation import Saved
from decomfl_lab.protocol.wire import Ledger, decode_vector

__all__ = ["FedAvgFederation"]


class FedAvgFederation:
    """Models down, models up: FedAvg, FedCom, FedAvg + Top-k, FedZO, by what trains and how it is sent."""

    def __init__(self, server: FedAvgServer, clients: Sequence[Trainer], uplink: Uplink | None = None) -> None:
        self.server = server
        self.clients = list(clients)
        self.uplink = DenseUplink() if uplink is None else uplink
        self.pulls = 0
        self.drift: float | None = None
        self.curvature: CurvatureLog | None = None
        self.ledger = Ledger(server.M)

    @property
    def round(self) -> int:
        """See ``Federation``."""
        return self.server.round

    @property
    def x(self) -> Tensor:
        """See ``Federation``."""
        return self.server.x

    def advance(self) -> float:
        """See ``Federation``."""
        models, losses = {}, []
        for i in self.server.plan_round():
            message = self.ledger.vector(i, self.round, self.server.x.cpu().numpy(), upwards=False)
            down = decode_vector(message)[1]
            start = torch.from_numpy(down.copy()).to(self.server.x.device)
            own, loss = self.clients[i].train(start, self.server.eta(self.round), self.server.K)
            if not torch.isfinite(own).all():
                raise DivergedError(f"model of client {i} in round {self.round}")
            models[i] = self.uplink.send(self.ledger, i, self.round, down, own.cpu().numpy())
            losses.append(loss)
        self.server.aggregate(models)
        return float(np.mean(losses))

    def save(self) -> Saved:
        """See ``Federation``."""
        values = {
            "round": self.round,
            "steps_taken": [client.steps_taken for client in self.clients],
            "ledger": self.ledger.to_json(),
        }
        return {"x": self.server.x}, values

    def load(self, saved: Saved) -> None:
        """See ``Federation``."""
        tensors, values = saved
        self.server.x.copy_(tensors["x"])
        self.server.round = values["round"]
        for steps, client in zip(values["steps_taken"], self.clients, strict=True):
            client.steps_taken = steps
        self.ledger = Ledger.from_json(self.server.M, values["ledger"])
