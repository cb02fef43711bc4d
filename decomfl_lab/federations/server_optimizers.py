"""What a server does with the mean of its clients' models: take it, or take a step of its own along the update."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SERVER_OPTIMIZERS = ("sgd", "adagrad", "adam", "yogi")

_F64 = NDArray[np.float64]


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

    def step(self, x: _F64, mean: _F64, kept: dict[str, _F64]) -> _F64:
        """x_{r+1}, shape (d,).

        Args:
            x: x_r, shape (d,).
            mean: x̄_r, shape (d,).
            kept: m and v, which become those of this round.
        """
        update = mean - x
        if self.name == "sgd":
            return x + self.lr * update
        square, v = update * update, kept["v"]
        kept["m"] = self.beta1 * kept["m"] + (1 - self.beta1) * update
        if self.name == "adagrad":
            kept["v"] = v + square
        elif self.name == "adam":
            kept["v"] = self.beta2 * v + (1 - self.beta2) * square
        else:
            kept["v"] = v - (1 - self.beta2) * square * np.sign(v - square)
        return x + self.lr * kept["m"] / (np.sqrt(kept["v"]) + self.tau)
