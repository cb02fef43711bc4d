"""Models that are sums of directions of a pool: whatever was missed, the sums are exact and x is built from them once.

    x_r = x_0 + Σ_j fl32(2^e A_j) z_j,   j = 0..S−1 in this order, without those whose A_j is 0

Records change integers alone (``records.pool``), S of them; x is a function of the sums, so it has the same bits
whether records came one by one, all at once, or not at all but in the form of their sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.errors import require, require_int
from decomfl_lab.noise import Distribution, Program
from decomfl_lab.records.pool import FINEST, PoolSums
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import LARGEST_POOL, POOL, pooled
from decomfl_lab.replicas.replica import Replica, Snapshot
from decomfl_lab.replicas.rules import Sgd, Step, UpdateRule


@dataclass(frozen=True)
class PooledSgd(UpdateRule):
    """ZO-SGD whose directions come from a pool: A_j ← A_j + rint(−(η/P) g_p 2^(−e)) for each z_p = z_j, x of the sums.

    A local step that a client takes between two measurements, and takes back, is one of plain SGD.

    Source: Qin et al., "Federated full-parameter tuning of billion-sized language models with communication cost under
    18 kilobytes" (FedKSeed), ICML 2024, eq. (5), with exact sums.
    """

    size: int = POOL  # the directions S of the pool, at most 65536
    exponent: int = -30  # the exponent e of the grid that the sums are on; −30 admits |2^e A_j| < 2 and resolves 1e-9

    def __post_init__(self) -> None:
        require_int("pool S", self.size, 1, LARGEST_POOL)
        require_int("pool_exponent", self.exponent, FINEST, 0)

    slots = ("start", "sums")  # the model x_0, which stays, and the sums A, int32 of shape (S,)

    @property
    def pool(self) -> int:  # type: ignore[override]
        """See ``UpdateRule.pool``."""
        return self.size

    def emit(self, program: Program, step: Step) -> None:
        """See ``UpdateRule.emit``: a local step."""
        Sgd().emit(program, step)


class PooledReplica(Replica):
    """A replica whose x is built from the sums when it is asked for.

    Records only add integers, however many they are. A replica whose x has no memory (``Tensor.to("meta")``) follows
    them all the same: that is what a server needs to send the sums instead of records.
    """

    rule: PooledSgd
    _x: Tensor  # the model, or where it is ``_late`` what it was before sums came
    _late: bool  # whether x is still to be built from the sums

    def __init__(self, x: Tensor, rule: PooledSgd, **options: Any) -> None:
        super().__init__(x, rule, **options)
        self.state = {"start": self._x.clone(), "sums": torch.zeros(rule.size, dtype=torch.int32)}
        self._pool: tuple[int, Distribution] | None = None  # the pool's seed, and the distribution of its directions

    @property
    def x(self) -> Tensor:
        """See ``Replica``."""
        if not self._late:
            return self._x
        assert self._pool is not None
        if self._shared:
            self._x = torch.empty_like(self._x)
        x = self._x.copy_(self.state["start"])
        pool, distribution = self._pool
        seed = cast("int", self.stream_seed(pool))
        sums = self.state["sums"].numpy()
        touched = np.flatnonzero(sums)  # a product with 0 could still make 0 of −0
        coefficients = sums * 2.0**self.rule.exponent
        program = self._program()
        # An instruction for each stretch of places that follow one another.
        for run in np.split(touched, np.flatnonzero(np.diff(touched) > 1) + 1):
            if run.size:
                first, last = int(run[0]), int(run[-1])
                program.noise("x", seed, coefficients[first : last + 1], distribution, first)
        self._run_on(program, {"x": x})
        self._late = False
        return self._x

    @x.setter
    def x(self, x: Tensor) -> None:
        self._x, self._late = x, False

    @property
    def d(self) -> int:
        return self._x.numel()

    @property
    def forgotten(self) -> bool:
        return self._x.is_meta

    @property
    def sums(self) -> PoolSums:
        return PoolSums(self.round, self.rule.exponent, self.state["sums"].numpy())

    def take(self, sums: PoolSums, seed: int, distribution: Distribution) -> None:
        """Have these sums in place of the replica's own; x is built from them when it is asked for (``_late``)."""
        pool, wanted = (seed, distribution), (self.rule.size, self.rule.exponent)
        require(sums.round >= self.round, "round of a pool's sums", f"be at least {self.round}", sums.round)
        require((sums.S, sums.exponent) == wanted, "pool", f"be of (S, e) = {wanted}", (sums.S, sums.exponent))
        require(self._pool in (None, pool), "seed and distribution of the pool", f"be {self._pool}", pool)
        self.state = {**self.state, "sums": torch.from_numpy(sums.values)}
        self.round, self._pool = sums.round, pool
        self._late = not self._x.is_meta

    def _apply_all(self, records: Sequence[RoundRecord]) -> None:
        """See ``Replica``: sums of integers, whatever the lag."""
        sums = self.sums.after(records)
        pools = {(pooled(record.seeds).pool, record.distribution) for record in records}
        require(len(pools) == 1, "seed and distribution of the pool", "be those of all records", pools)
        self.take(sums, *pools.pop())

    def _program(self) -> Program:
        return Program(["x"])

    def _run(self, program: Program | Sequence[Program]) -> None:
        self.own()
        self._run_on(program, {"x": self.x})

    def own(self) -> None:
        """See ``Replica``: nobody writes to the state, which is exchanged as a whole."""
        if self._shared:
            self.x, self._shared = self.x.clone(), False

    def restore(self, snapshot: Snapshot) -> None:
        """See ``Replica``; the sums stay in the host's memory, whatever the device."""
        super().restore(snapshot)
        self.state["sums"] = snapshot.state["sums"]

    def _vectors(self) -> dict[str, Tensor]:
        """See ``Replica``; x is compared where both have built it, and is a function of the rest."""
        return self.state if self._late else {"x": self._x, **self.state}
