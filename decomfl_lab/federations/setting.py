"""What a method trains (model, objectives, clients, seed, engine), and the federation that it makes of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from decomfl_lab.errors import require_int
from decomfl_lab.records.schedules import Schedule, growing

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.engines.base import Engine
    from decomfl_lab.estimators.resolution import Resolution
    from decomfl_lab.estimators.second_differences import CurvatureLog
    from decomfl_lab.federations.simulation import DeComFLFederation
    from decomfl_lab.objectives.objective import Objective
    from decomfl_lab.protocol.ledger import Ledger
    from decomfl_lab.storage.outside import Saved


@dataclass(frozen=True)
class TrainingSetting:
    """What a method trains: all of a run that is not the method's own."""

    x: Tensor  # x_0, shape (d,), where the run computes
    objectives: Sequence[Objective]  # f_i of every client, M of them
    sampled: int  # m, clients sampled a round
    seed: int  # the seed of everything random
    engine: Engine  # it evaluates losses and gradients
    # how many of the clients, those of the highest numbers, join in which round
    joined: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_int("clients M", self.M, 1)
        require_int(f"sampled clients m (of M={self.M})", self.sampled, 1, self.M)
        require_int("seed", self.seed, 0, 2**64 - 1)

    @property
    def M(self) -> int:
        """M, clients."""
        return len(self.objectives)

    @property
    def examples(self) -> tuple[int, ...]:
        """n_i, the number of examples of every client; InputError where an objective does not say it."""
        from decomfl_lab.objectives.objective import examples_of

        return tuple(map(examples_of, self.objectives))

    @property
    def present(self) -> Schedule[int]:
        """M_r: how many clients there are in round r."""
        return growing(self.M, self.joined)


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
