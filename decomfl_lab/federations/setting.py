"""What a method trains: model, objectives, clients, seed and engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from decomfl_lab.records.schedules import Schedule, growing

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.engines.base import Engine
    from decomfl_lab.objectives.objective import Objective


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
