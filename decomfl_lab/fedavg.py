"""FedAvg with true averaging: the server's next model is the mean of independently trained copies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError, require_finite_positive, require_int
from decomfl_lab.objective import ModuleObjective
from decomfl_lab.server import sample_clients

__all__ = ["FedAvgClient", "FedAvgServer"]


class FedAvgClient:
    """K local SGD steps from the server's model, on a copy of its own.

    With momentum β the step is torch's: v ← βv + (∇f_i(x; ξ) + λx), x ← x − ηv; v starts at 0 each round, so
    clients keep no state between rounds.
    """

    def __init__(
        self, client_id: int, objective: ModuleObjective, *, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        self.id = client_id
        self.objective = objective
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.steps_taken = 0

    def train(self, x: Tensor, eta: float, K: int) -> tuple[Tensor, float]:
        """X after K local steps from ``x`` (d,), which is not changed, and the mean training loss."""
        own = x.clone()
        objective = self.objective
        objective.layout.bind(objective.module, own)
        named = dict(objective.module.named_parameters())
        parameters = [named[name] for name in objective.layout.names]
        optimizer = torch.optim.SGD(
            parameters, lr=eta, momentum=self.momentum, weight_decay=self.weight_decay, foreach=False
        )
        losses = []
        for _ in range(K):
            inputs, targets = objective.batch(self.steps_taken)
            optimizer.zero_grad()
            loss = objective.loss(objective.module(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            self.steps_taken += 1
        for p in parameters:
            p.grad = None
        return own, float(np.mean(losses))


class FedAvgServer:
    """x_{r+1} = (1/m) Σ_{i ∈ C_r} x_{i,r}^{K+1}, added in float64 in the order of the clients' numbers.

    Source: McMahan et al. 2017, Algorithm 1, with equal client sizes.
    """

    def __init__(self, x: Tensor, *, M: int, m: int, K: int, eta: float, seed: int) -> None:
        require_int("clients M", M, 1)
        require_int(f"sampled clients m (of M={M})", m, 1, M)
        require_int("local steps K", K, 1)
        require_finite_positive("learning rate eta", eta)
        self.x = x.detach().clone()
        self.M, self.m, self.K, self.eta, self.seed = M, m, K, eta, seed
        self.round = 0

    def plan_round(self) -> tuple[int, ...]:
        """C_r."""
        return sample_clients(self.seed, self.round, self.M, self.m)

    def aggregate(self, models: Mapping[int, NDArray[np.generic]]) -> None:
        """Replace x by the mean of the models; InputError if one of them is not finite or of another size."""
        total = np.zeros(self.x.numel())
        for client in sorted(models):
            model = models[client]
            if model.shape != total.shape or not np.isfinite(model.astype(np.float64)).all():
                raise InputError(
                    f"model of client {client} in round {self.round} must be {total.size} finite numbers "
                    "(a smaller learning rate may help)"
                )
            total += model.astype(np.float64)
        self.x = torch.from_numpy(total / len(models)).to(self.x.dtype)
        self.round += 1
