"""A federation in this process: what every method is driven by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from decomfl_lab.checkpoint import Saved
from decomfl_lab.estimators.resolution import Resolution
from decomfl_lab.estimators.second_differences import CurvatureLog
from decomfl_lab.protocol.ledger import Ledger

if TYPE_CHECKING:
    from decomfl_lab.federations.simulation import DeComFLFederation


class Federation(Protocol):
    """A federation in this process: advance it by rounds, read its model, save it, bring it back."""

    drift: float | None
    """The largest ‖x_i − x‖∞ / ‖x‖∞ of a client's rebuilt model so far, where replicas drift; else None."""
    curvature: CurvatureLog | None
    """What second differences of the loss say, where clients measure them; whoever reads it empties it."""

    @property
    def by_records(self) -> DeComFLFederation | None:
        """This federation, where clients send scalars and records say all of its model; None where models travel."""

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

    def watch(self, resolution: Resolution) -> None:
        """Show it the scalars that clients measure, where they measure some."""

    def advance(self) -> float:
        """Run one round; returns the training loss, averaged over the sampled clients' local steps."""

    def save(self) -> Saved:
        """Everything that the next rounds depend on."""

    def load(self, saved: Saved) -> None:
        """Inverse of ``save``, bit for bit."""
