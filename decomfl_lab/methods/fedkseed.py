"""FedKSeed: directions from a pool, so that a model is a sum a direction, whatever was missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decomfl_lab.methods.decomfl import Lagging
from decomfl_lab.methods.expected_traffic import Cohort, ExpectedTraffic
from decomfl_lab.methods.scalars import LoggingDifferences
from decomfl_lab.options import option
from decomfl_lab.protocol.messages import Kind
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.wire import record_bytes
from decomfl_lab.records.pool import FINEST
from decomfl_lab.records.seeds import LARGEST_POOL, POOL, Seeding

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.replicas.pool_sums import PooledSgd
    from decomfl_lab.replicas.replica import Replica


@dataclass(frozen=True, kw_only=True)
class FedKSeed(LoggingDifferences, Lagging):
    """DeComFL along a pool of S directions: after many missed rounds S sums replace records.

        client:  g_{i,r,p}^k as in DeComFL,   x ← x − (η/P) Σ_p g_p z_p,   k = 1..K,   along z_{r,p}^k of z_1, ..., z_S
        all:     A_j ← A_j + Σ_{k,p: z_{r,p}^k = z_j} rint(−(η/P) g_{r,p}^k 2^(−e)),   x_{r+1} = x_0 + Σ_j 2^e A_j z_j

    The sums are of 32-bit integers, hence exact in any order, and x is built from them anew: a client holds the same
    bits whether it took part in every round or in none. Every rebuild makes up to S directions, whatever the lag, and
    the server keeps the sums, no model, and no more records than are shorter than these. In the paper each client draws
    its own directions and sends them with its scalars, and sums are floating-point numbers; here all clients of a round
    share the directions, as everywhere in the lab, so that their scalars can be averaged.

    Source: Qin, Chen, Qian, Ding, Li and Deng, "Federated full-parameter tuning of billion-sized language models with
    communication cost under 18 kilobytes" (FedKSeed), ICML 2024.
    """

    name: ClassVar[str] = "fedkseed"
    seeds: ClassVar[str] = Seeding.POOL.value

    pool: int = option(
        POOL, "The number S of directions in the pool, at most 65536.", symbol="S", ge=1, le=LARGEST_POOL
    )
    pool_exponent: int = option(
        -30,
        "The exponent e of the grid 2^e that the sums are on: sums stay below 2^(31+e), steps resolve 2^e.",
        ge=FINEST,
        le=0,
    )

    @property
    def rule(self) -> PooledSgd:
        """See ``Scalars``: sums over the pool."""
        from decomfl_lab.replicas.pool_sums import PooledSgd

        return PooledSgd(self.pool, self.pool_exponent)

    def _record_bytes(self, r: int) -> int:
        return record_bytes(Seeding.POOL, self.K, self.P(r), self.dtype)

    @property
    def kept(self) -> int:
        """See ``Lagging``: the most records that may take no more bytes than the sums."""
        shortest = min(map(self._record_bytes, (0, *self.perturbation_schedule)))
        return max(Kind.POOL.bytes(self.pool) // shortest, 1)

    def _followed(self, x: Tensor) -> Replica:
        """The sums, and no model."""
        from decomfl_lab.replicas.registry import make_replica

        return make_replica(x.to("meta"), self.rule)

    def traffic(self, cohort: Cohort, d: int) -> ExpectedTraffic:  # noqa: ARG002
        """See ``Method.traffic``; lag is included, d is not.

        R·q times a plan down and scalars up (and what the client holds, if it tracks that itself), and the run's seed
        once, with probability 1 − (1 − q)^R. In round r a client takes part with probability q; it was last there in
        round t ≥ 1, and lacks the records t..r−1, with probability q(1 − q)^{r−1−t}, and lacks all with probability
        (1 − q)^{r−1}. With B_j the bytes of record j, it is sent

            min(B_t + ... + B_{r−1}, B),   B = 25 + 4S the bytes of the sums: never more, however large d and the lag.

        Source: [DeComFL, Algorithms 3 and 4]; FedKSeed, section 4.
        """
        measured = self.measured_traffic(cohort, reports=self.tracking == Tracking.CLIENTS)
        R, q, most = cohort.R, cohort.q, Kind.POOL.bytes(self.pool)
        sizes = np.cumsum([0, *map(self._record_bytes, range(R))])
        counts = np.cumsum([0, *(self.K * self.P(j) for j in range(R))])
        down = scalars = 0.0
        for r in range(1, R):
            chance = q * (1 - q) ** np.arange(r - 1, -1.0, -1.0)  # of having been there last in round t = 0..r-1
            chance[0] = (1 - q) ** (r - 1)  # or never
            missed = sizes[r] - sizes[:r]
            down += q * float(chance @ np.minimum(missed, most))
            scalars += q * float(chance @ np.where(missed > most, self.pool, counts[r] - counts[:r]))
        return ExpectedTraffic(measured.up_bytes, measured.up_scalars, measured.down_bytes + down, scalars)
