"""Models down, models up, and their mean.

What trains a client's copy (``Trainer``) and how it is sent back (``Uplink``) is the method's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import DivergedError, InputError, require_int
from decomfl_lab.estimators.second_differences import CurvatureLog
from decomfl_lab.protocol.messages import Dense
from decomfl_lab.protocol.server import sample_clients
from decomfl_lab.protocol.wire import Ledger, read
from decomfl_lab.records.schedules import Schedule

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.federations.federation import Saved

__all__ = ["DenseUplink", "FedAvgFederation", "FedAvgServer", "Floats", "Trainer", "Uplink"]

Floats = Any
"""A float32 or float64 vector (d,)."""


class Trainer(Protocol):
    """A client that trains a copy of the server's model on its own data."""

    steps_taken: int

    def train(self, x: Tensor, eta: float, K: int) -> tuple[Tensor, float]:
        """The model after K local steps from ``x`` (d,), which is not changed, and the mean training loss."""
        ...


class Uplink(Protocol):
    """How a trained copy comes back to the server."""

    def send(self, ledger: Ledger, client: int, r: int, down: Floats, own: Floats) -> Floats:
        """Encode what ``client`` sends in round r, count it, decode it: the model (d,) that the server sees."""
        ...


class DenseUplink:
    """The model itself, every element."""

    def send(self, ledger: Ledger, client: int, r: int, down: Floats, own: Floats) -> Floats:  # noqa: ARG002
        """See ``Uplink``."""
        return read(Dense, ledger.vector(client, r, own, upwards=True)).x


class FedAvgServer:
    """x_{r+1} = (1/m) Σ_{i ∈ C_r} x_{i,r}^{K+1}, added in float64 in the order of the clients' numbers.

    Source: McMahan et al. 2017, Algorithm 1, with equal client sizes.
    """

    def __init__(self, x: Tensor, *, M: int, m: int, K: int, eta: Schedule[float], seed: int) -> None:
        require_int("clients M", M, 1)
        require_int(f"sampled clients m (of M={M})", m, 1, M)
        require_int("local steps K", K, 1)
        self.x = x.detach().clone()
        self.M, self.m, self.K, self.eta, self.seed = M, m, K, eta, seed
        self.round = 0

    def sample(self) -> tuple[int, ...]:
        """C_r."""
        return sample_clients(self.seed, self.round, self.M, self.m)

    def aggregate(self, models: Mapping[int, NDArray[np.generic]]) -> None:
        """Replace x by the mean of the models; InputError if one of them is not finite or of another size."""
        import torch

        total = np.zeros(self.x.numel())
        for client in sorted(models):
            model = models[client]
            if model.shape != total.shape or not np.isfinite(model.astype(np.float64)).all():
                raise InputError(
                    f"model of client {client} in round {self.round} must be {total.size} finite numbers "
                    "(a smaller learning rate may help)"
                )
            total += model.astype(np.float64)
        self.x = torch.from_numpy(total / len(models)).to(self.x)
        self.round += 1


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
        import torch

        models, losses = {}, []
        for i in self.server.sample():
            message = self.ledger.vector(i, self.round, self.server.x.cpu().numpy(), upwards=False)
            down = read(Dense, message).x
            start = torch.from_numpy(down.copy()).to(self.server.x.device)
            own, loss = self.clients[i].train(start, self.server.eta(self.round), self.server.K)
            if not torch.isfinite(own).all():
                raise DivergedError(f"model of client {i}")
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
