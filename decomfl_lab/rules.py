"""Update rules that replay: (record) → z → update, in separately rounded operations of a fixed order.

A rule turns the scalars g_p of one local step into a change of x (and of its own state). Every rule is an
elementwise recursion, so it may be applied to a whole vector or to any slice of it with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from decomfl_lab import noise
from decomfl_lab.errors import require
from decomfl_lab.noise import Distribution

__all__ = ["Momentum", "Sgd", "Step", "UpdateRule"]

Floats = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """One local step: its seed s_r^k, scalars g_p (P,) float32, learning rate η and law of z."""

    seed: int
    scalars: NDArray[np.float32]
    eta: float
    distribution: Distribution


class UpdateRule(Protocol):
    """How a local step moves x; ``slots`` names the state vectors, all of x's shape and 0 at the start."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the optimizer's state vectors."""
        ...

    def apply_(self, x: Floats, state: Mapping[str, Floats], step: Step, *, first: int, d: int) -> None:
        """Apply ``step`` in place to elements first..first+x.size-1 of a vector of d elements."""
        ...


def _check_weight_decay(weight_decay: float) -> None:
    require(
        np.isfinite(weight_decay) and weight_decay >= 0,
        "weight_decay",
        "be finite and at least 0",
        weight_decay,
    )


@dataclass(frozen=True)
class Sgd:
    """ZO-SGD with decoupled order: x ← (1 − ηλ)x, then x ← x − (η/P) g_p z_p for p = 0..P-1.

    In real arithmetic this is torch's SGD, x ← x − η((1/P) Σ_p g_p z_p + λx).

    Attributes:
        weight_decay: λ ≥ 0.

    Source: [DeComFL, eq. (multiple_perturbation), Algorithm 4].
    """

    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_weight_decay(self.weight_decay)

    @property
    def slots(self) -> tuple[str, ...]:
        """No state."""
        return ()

    def apply_(self, x: Floats, state: Mapping[str, Floats], step: Step, *, first: int, d: int) -> None:  # noqa: ARG002
        """See ``UpdateRule.apply_``."""
        if self.weight_decay:
            x *= x.dtype.type(1.0 - step.eta * self.weight_decay)
        coefficients = (-step.eta / step.scalars.size) * step.scalars.astype(np.float64)
        noise.axpy(x, step.seed, coefficients, d=d, first=first, distribution=step.distribution)


@dataclass(frozen=True)
class Momentum:
    """ZO-SGD with momentum: m ← βm + w(λx + (1/P) Σ_p g_p z_p), x ← x − ηm.

    ``convention`` fixes w: "torch" has w = 1 (torch.optim.SGD, which the authors' code uses), "paper" has
    w = 1 − β (the paper's appendix). Order: m is scaled, then gets the decay term, then p = 0..P-1, then x
    moves; each product and sum is rounded on its own.

    Attributes:
        beta: β in [0, 1).
        convention: "torch" or "paper".
        weight_decay: λ ≥ 0.

    Source: [DeComFL, appendix "Advanced Optimizers"].
    """

    beta: float
    convention: Literal["torch", "paper"] = "torch"
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_weight_decay(self.weight_decay)
        require(0.0 <= self.beta < 1.0, "momentum", "be in [0, 1)", self.beta)
        require(self.convention in ("torch", "paper"), "convention", "be torch or paper", self.convention)

    @property
    def slots(self) -> tuple[str, ...]:
        """The momentum m."""
        return ("momentum",)

    def apply_(self, x: Floats, state: Mapping[str, Floats], step: Step, *, first: int, d: int) -> None:
        """See ``UpdateRule.apply_``."""
        m = state["momentum"]
        weight = 1.0 - self.beta if self.convention == "paper" else 1.0
        m *= m.dtype.type(self.beta)
        if self.weight_decay:
            m += x.dtype.type(weight * self.weight_decay) * x
        coefficients = (weight / step.scalars.size) * step.scalars.astype(np.float64)
        noise.axpy(m, step.seed, coefficients, d=d, first=first, distribution=step.distribution)
        x += x.dtype.type(-step.eta) * m
