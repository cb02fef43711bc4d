"""Methods that send models: FedAvg and FedZO, with dense, quantised or sparse updates on the way up.

A method is a way to train a client's copy (``Trainer``) and a way to send it back (``Uplink``); the server's next
model is the mean of what arrives. FedAvg is first-order and dense, FedCom first-order and quantised, FedAvg + Top-k
first-order and sparse, FedZO zeroth-order and dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.engines.base import Engine, Serial
from decomfl_lab.errors import InputError, require, require_choice, require_int
from decomfl_lab.objectives.objective import Differentiable
from decomfl_lab.protocol.compression import quantize, top_k
from decomfl_lab.protocol.server import sample_clients
from decomfl_lab.protocol.wire import Ledger, decode_quantized, decode_sparse, decode_vector
from decomfl_lab.records.schedules import Schedule

__all__ = [
    "LOCAL_OPTIMIZERS",
    "DenseUplink",
    "FedAvgClient",
    "FedAvgServer",
    "QuantizedUplink",
    "TopKUplink",
    "Trainer",
    "Uplink",
]

LOCAL_OPTIMIZERS = ("sgd", "adam")

_ROUNDING = 8

Floats = Any
"""A float32 or float64 vector (d,)."""


class Trainer(Protocol):
    """A client that trains a copy of the server's model on its own data."""

    steps_taken: int

    def train(self, x: Tensor, eta: float, K: int) -> tuple[Tensor, float]:
        """The model after K local steps from ``x`` (d,), which is not changed, and the mean training loss."""
        ...


class FedAvgClient:
    """K local first-order steps from the server's model, on a copy of its own.

    "sgd" with momentum β is torch's: v ← βv + (∇f_i(x; ξ) + λx), x ← x − ηv; "adam" is torch's Adam with its
    default β₁, β₂ and ε. Both begin anew each round, so clients keep no state between rounds.
    """

    def __init__(
        self,
        client_id: int,
        objective: Differentiable,
        *,
        optimizer: str = "sgd",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        engine: Engine | None = None,
    ) -> None:
        self.engine = Serial() if engine is None else engine
        self.id = client_id
        self.objective = objective
        self.optimizer = require_choice("optimizer", optimizer, LOCAL_OPTIMIZERS)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.steps_taken = 0

    def _optimizer(self, own: Tensor, eta: float) -> torch.optim.Optimizer:
        if self.optimizer == "adam":
            return torch.optim.Adam([own], lr=eta, weight_decay=self.weight_decay, foreach=False)
        return torch.optim.SGD([own], lr=eta, momentum=self.momentum, weight_decay=self.weight_decay, foreach=False)

    def train(self, x: Tensor, eta: float, K: int) -> tuple[Tensor, float]:
        """See ``Trainer``."""
        own = x.clone()
        optimizer = self._optimizer(own, eta)
        losses = []
        for _ in range(K):
            loss, gradient = self.engine.gradients([own], [(self.objective, self.steps_taken)])
            own.grad = gradient[0].to(own.dtype)
            optimizer.step()
            losses.append(loss[0])
            self.steps_taken += 1
        own.grad = None
        if hasattr(self.objective, "release"):
            self.objective.release()
        return own, float(np.mean([float(loss) for loss in losses]))


class Uplink(Protocol):
    """How a trained copy comes back to the server."""

    def send(self, ledger: Ledger, client: int, r: int, down: Floats, own: Floats) -> Floats:
        """Encode what ``client`` sends in round r, count it, decode it: the model (d,) that the server sees."""
        ...


class DenseUplink:
    """The model itself, every element."""

    def send(self, ledger: Ledger, client: int, r: int, down: Floats, own: Floats) -> Floats:  # noqa: ARG002
        """See ``Uplink``."""
        return decode_vector(ledger.vector(client, r, own, upwards=True))[1]


@dataclass(frozen=True)
class QuantizedUplink:
    """FedCom: the update own − down, quantised without bias to ``bits`` bits an element.

    Attributes:
        bits: 2 to 8; 4 and less are sent two to a byte.
        seed: Of the random rounding.

    Source: Haddadpour et al., AISTATS 2021, FedCOM.
    """

    bits: int
    seed: int

    def __post_init__(self) -> None:
        require_int("quantize_bits", self.bits, 2, 8)

    def send(self, ledger: Ledger, client: int, r: int, down: Floats, own: Floats) -> Floats:
        """See ``Uplink``."""
        update = quantize(own - down, self.bits, (self.seed, _ROUNDING, client, r))
        return down + decode_quantized(ledger.quantized(client, r, update))[1].dense()


@dataclass(frozen=True)
class TopKUplink:
    """FedAvg + Top-k: of the update own − down the share ``fraction`` that is largest, with its positions.

    Attributes:
        fraction: In (0, 1]. What is left out is forgotten (no error feedback).
    """

    fraction: float

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "top_k", "be in (0, 1]", self.fraction)

    def send(self, ledger: Ledger, client: int, r: int, down: Floats, own: Floats) -> Floats:
        """See ``Uplink``."""
        return down + decode_sparse(ledger.sparse(client, r, top_k(own - down, self.fraction)))[1].dense()


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
        self.x = torch.from_numpy(total / len(models)).to(self.x)
        self.round += 1
