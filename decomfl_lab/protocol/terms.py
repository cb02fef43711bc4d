"""The terms of a run: what its rounds may be, which server and clients know before it starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from decomfl_lab.errors import require
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.messages import Plan
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import POOL, Seeding, StepSeed, draw_seeds


@dataclass(frozen=True)
class Terms:
    """All of a plan or a record but its scalars, as a function of the round."""

    K: int  # the number of local steps
    P: Schedule[int]  # the number of directions a step, a schedule over rounds
    eta: Schedule[float] | None  # the learning rate η, a schedule over rounds; None where only the records have it
    distribution: Distribution  # the distribution of the directions z
    seeding: Seeding  # how many seeds travel
    run_seed: int  # the seed that every round's derive from
    dtype: type[np.float32] | type[np.int8]  # the type of a record's scalars, float32 or int8 for signs
    pool: int = POOL  # the directions S of the pool, where they come from one
    weighs: bool = False  # whether clients say how many examples they have, which is what they weigh

    @classmethod
    def of(cls, server: Server) -> Self:
        """The terms that a server made of the same configuration would keep."""
        own = server.run_seed, server.aggregation.dtype, server.pool, server.weights.wanted
        return cls(server.K, server.P, server.eta, server.distribution, server.seeding, *own)

    def seeds(self, r: int) -> Sequence[StepSeed]:
        """The seeds of round r."""
        return draw_seeds(self.seeding, self.run_seed, r, self.K, self.P(r), self.pool)

    def check(self, head: Plan | RoundRecord) -> None:
        """InputError that names what of a plan or a record is not as agreed."""
        r, whose = head.round, f"of the {'plan' if isinstance(head, Plan) else 'record'} of round {head.round}"
        agreed: dict[str, tuple[Any, Any]] = {
            "K and P": ((head.K, head.P), (self.K, self.P(r))),
            "eta": (head.eta, head.eta if self.eta is None else self.eta(r)),
            "distribution": (head.distribution, self.distribution),
            "seeding": (head.seeding, self.seeding),
        }
        if isinstance(head, RoundRecord):
            agreed["type of the scalars"] = head.scalars.dtype, np.dtype(self.dtype)
        for name, (found, wanted) in agreed.items():
            require(found == wanted, f"{name} {whose}", f"be {wanted}, as in the run's configuration", found)
        same = head.seeds == self.seeds(r)
        require(same, f"seeds {whose}", "be those that derive from the run's seed", "others")
