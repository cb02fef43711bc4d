"""A federation in this process: what every method is driven by."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from decomfl_lab.estimators.second_differences import CurvatureLog
from decomfl_lab.protocol.ledger import Ledger

__all__ = ["Federation", "Saved"]


Saved = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and JSON-able values: what a checkpoint holds."""


class Federation(Protocol):
    """A federation in this process: advance it by rounds, read its model, save it, bring it back."""

    drift: float | None
    """The largest ‖x_i − x‖∞ / ‖x‖∞ of a client's rebuilt model so far, where replicas drift; else None."""
    curvature: CurvatureLog | None
    """What second differences of the loss say, where clients measure them; whoever reads it empties it."""

    @property
    def ledger(self) -> Ledger:
        """What was sent, and how much it was."""

    @property
    def pulls(self) -> int:
        """Rebuilds that were replaced by sending the model (a policy's choice, or the records were gone)."""

    @property
    def round(self) -> int:
        """Rounds completed."""

    @property
    def x(self) -> Tensor:
        """The global model x_r, shape (d,)."""

    def advance(self) -> float:
        """Run one round; returns the training loss, averaged over the sampled clients' local steps."""

    def save(self) -> Saved:
        """Everything that the next rounds depend on."""

    def load(self, saved: Saved) -> None:
        """Inverse of ``save``, bit for bit."""
