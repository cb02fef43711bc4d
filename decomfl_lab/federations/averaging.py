"""Models down, models up, and their mean.

What trains a client's copy (``Trainer``) and how it is sent back (``Uplink``) is the method's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import DivergedError, require
from decomfl_lab.estimators.second_differences import CurvatureLog
from decomfl_lab.protocol.aggregation import Weighting, Weights
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.messages import Dense, Examples, Quantized, Sparse
from decomfl_lab.protocol.server import sample_clients
from decomfl_lab.protocol.wire import read, vector_of
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.storage.outside import Saved, SavedFederation

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.estimators.resolution import Resolution
    from decomfl_lab.federations.setting import TrainingSetting

SERVER_OPTIMIZERS = ("sgd", "adagrad", "adam", "yogi")

_F64 = NDArray[np.float64]

Floats = Any
"""A float32 or float64 vector (d,)."""


class Trainer(Protocol):
    """A client that trains a copy of the server's model on its own data."""

    steps_taken: int

    def train(self, x: Tensor, eta: float, K: int) -> tuple[Tensor, float]:
        """The model after K local steps from ``x`` (d,), which is not changed, and the mean training loss."""


Uplink = Callable[[int, int, Floats, Floats], Dense | Quantized | Sparse]
"""What a client sends back, as a function of it, the round, the model that went down and the client's own: the model
itself, or its difference to what went down, compressed."""


def whole_model(client: int, r: int, down: Floats, x: Floats) -> Dense:  # noqa: ARG001
    """The ``Uplink`` of the model itself, every element."""
    return Dense(r, x)


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """A step of the server along the mean update Δ_r = x̄_r − x_r, in float64, coordinate by coordinate.

        sgd:      x_{r+1} = x_r + η_s Δ_r
        others:   m_r = β₁ m_{r−1} + (1 − β₁) Δ_r,   x_{r+1} = x_r + η_s m_r / (√v_r + τ),   m_{−1} = 0,  v_{−1} = τ²
        adagrad:  v_r = v_{r−1} + Δ_r²
        adam:     v_r = β₂ v_{r−1} + (1 − β₂) Δ_r²
        yogi:     v_r = v_{r−1} − (1 − β₂) Δ_r² sign(v_{r−1} − Δ_r²)

    Source: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, "Adaptive federated optimization", ICLR
    2021, Algorithm 2 (FedAdagrad, FedYogi, FedAdam), where v_{−1} ≥ τ².
    """

    name: str = "sgd"  # one of ``SERVER_OPTIMIZERS``
    lr: float = 1.0  # the server's learning rate η_s. A step of the others is about η_s long in every coordinate
    beta1: float = 0.9  # β₁ in [0, 1)
    beta2: float = 0.99  # β₂ in [0, 1)
    tau: float = 1e-3  # the adaptivity τ, in the unit of x: updates far below it are taken in proportion

    def start(self, d: int) -> dict[str, _F64]:
        """M and v before the first round, shape (d,) each; empty where nothing is kept from round to round."""
        return {} if self.name == "sgd" else {"m": np.zeros(d), "v": np.full(d, self.tau * self.tau)}

    def step(self, x: _F64, mean: _F64, moments: dict[str, _F64]) -> _F64:
        """x_{r+1} of x_r and x̄_r, (d,) each; the moments m and v become those of this round."""
        update = mean - x
        if self.name == "sgd":
            return x + self.lr * update
        square, v = update * update, moments["v"]
        moments["m"] = self.beta1 * moments["m"] + (1 - self.beta1) * update
        if self.name == "adagrad":
            moments["v"] = v + square
        elif self.name == "adam":
            moments["v"] = self.beta2 * v + (1 - self.beta2) * square
        else:
            moments["v"] = v - (1 - self.beta2) * square * np.sign(v - square)
        return x + self.lr * moments["m"] / (np.sqrt(moments["v"]) + self.tau)


class FedAvgFederation:
    """Models down, models up: FedAvg, FedCom, FedAvg + Top-k, FedZO, by what trains and how it is sent.

        x_{r+1} = Σ_{i ∈ C_r} w_i x_{i,r}^{K+1} / Σ_{i ∈ C_r} w_i, added in float64 in the order of the clients' numbers

    with w_i = 1, or the number n_i of the client's examples, which it says with its first model; or x_{r+1} is a step
    of the server along that mean minus x_r (``ServerOptimizer``).

    Source: McMahan et al. 2017, Algorithm 1, where w_i = n_i.
    """

    by_records = None

    def __init__(
        self,
        setting: TrainingSetting,
        clients: Sequence[Trainer],
        *,
        K: int,
        eta: Schedule[float],
        uplink: Uplink = whole_model,
        weighting: str = Weighting.CLIENTS,
        optimizer: ServerOptimizer | None = None,
    ) -> None:
        self.x = setting.x.detach().clone()
        self.optimizer = ServerOptimizer() if optimizer is None else optimizer
        self._moments = self.optimizer.start(self.x.numel())
        self.K, self.eta, self.m, self.seed = K, eta, setting.sampled, setting.seed
        self.present = setting.present
        self.clients = list(clients)
        self.uplink = uplink
        self.weights = Weights(Weighting(weighting))
        self._examples = setting.examples if self.weights.wanted else ()
        self.round = self.pulls = 0
        self.drift: float | None = None
        self.curvature: CurvatureLog | None = None
        self.ledger = Ledger(len(self.clients))

    def watch(self, resolution: Resolution) -> None:
        """See ``Federation``."""
        for client in self.clients:
            if hasattr(client, "resolution"):  # as that of a client that measures differences
                client.resolution = resolution

    def sample(self) -> tuple[int, ...]:
        """C_r."""
        return sample_clients(self.seed, self.round, self.present(self.round), self.m)

    def advance(self) -> float:
        """See ``Federation``."""
        import torch

        total, losses, chosen = np.zeros(self.x.numel()), [], self.sample()
        for i in chosen:
            x = self.x.cpu().numpy()
            message = self.ledger.sent(i, Dense(self.round, x), upwards=False)
            down = vector_of(read(Dense, message), self.round, x.size, x.dtype)
            start = torch.from_numpy(down.copy()).to(self.x.device)
            trained, loss = self.clients[i].train(start, self.eta(self.round), self.K)
            if not torch.isfinite(trained).all():
                raise DivergedError(f"model of client {i}")
            sent = self.uplink(i, self.round, down, trained.cpu().numpy())
            back = read(type(sent), self.ledger.sent(i, sent, upwards=True))
            received = vector_of(back, self.round, down.size, down.dtype)
            wide = (received if isinstance(back, Dense) else down + received).astype(np.float64)
            if self.weights.lacks(i):  # what client i weighs, which it says where the server does not know it yet
                examples = read(Examples, self.ledger.sent(i, Examples(i, self._examples[i]), upwards=True))
                self.weights.note(i, examples.n)
            wide *= self.weights.examples[i] if self.weights.wanted else 1
            total += wide
            losses.append(loss)
        if not np.isfinite(total).all():
            raise DivergedError("mean of the clients' models")
        weights = self.weights.of(chosen)
        mean = total / (len(chosen) if weights is None else sum(weights))
        if self.optimizer.name != "sgd" or self.optimizer.lr != 1:  # else x_{r+1} is the mean x̄_r itself, to the bit
            mean = self.optimizer.step(self.x.cpu().numpy().astype(np.float64), mean, self._moments)
        self.x = torch.from_numpy(mean).to(self.x)
        self.round += 1
        return float(np.average(losses, weights=weights))

    def save(self) -> Saved:
        """See ``Federation``."""
        import torch

        kept_by = {i: client.kept_tensors for i, client in self._keeping()}
        values = SavedFederation(
            round=self.round,
            steps_taken=[client.steps_taken for client in self.clients],
            examples=sorted(self.weights.examples.items()),
            ledger=self.ledger.save(),
            states={str(i): list(state) for i, state in kept_by.items()},
        )
        tensors = {f"client.{i}.{name}": tensor for i, state in kept_by.items() for name, tensor in state.items()}
        moments = {f"server.{name}": torch.from_numpy(tensor) for name, tensor in self._moments.items()}
        return {"x": self.x} | moments | tensors, values

    def load(self, saved: Saved) -> None:
        """See ``Federation``; InputError where what a client or the server keeps is not there, or cannot be that."""
        import torch

        tensors, values = saved[0], saved[1].padded(len(self.clients))
        self.x.copy_(tensors["x"])
        for slot in self._moments:
            name = f"server.{slot}"
            rule = f"have {name}, which the server keeps from round to round"
            require(name in tensors, "checkpoint", rule, "one without")
            moment, shape = tensors[name], tuple(self.x.shape)
            got = moment.dtype, tuple(moment.shape)
            rule = f"be {torch.float64} of shape {shape}"
            require(got == (torch.float64, shape), f"{name} of the checkpoint", rule, got)
            sound = bool(moment.isfinite().all()) and (slot != "v" or bool((moment >= 0).all()))
            require(sound, f"{name} of the checkpoint", "be finite numbers, of v none below 0", "others")
            self._moments[slot] = moment.cpu().numpy().copy()
        self.round = values.round
        for steps, client in zip(values.steps, self.clients, strict=True):
            client.steps_taken = steps
        for i, keeping in self._keeping():
            has_it = str(i) in (states := values.states or {})
            require(has_it, "checkpoint", f"have what client {i} keeps from round to round", "one without")
            keeping.kept_tensors = {}
            for name in states[str(i)]:
                # Where the run computes; numbers stay where optimizers have them.
                tensor = tensors[f"client.{i}.{name}"]
                keeping.kept_tensors[name] = tensor.to(self.x.device) if tensor.dim() else tensor
        self.weights.examples = dict(values.examples)
        self.ledger = Ledger.load(values.counts)

    def _keeping(self) -> list[tuple[int, Any]]:
        """The clients that keep tensors from round to round, by name in ``kept_tensors``, and have taken a step."""
        clients = [(i, client) for i, client in enumerate(self.clients) if client.steps_taken]
        return [(i, client) for i, client in clients if getattr(client, "kept_tensors", None) is not None]
