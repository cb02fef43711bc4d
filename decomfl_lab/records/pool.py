"""The sums of a pool: all that records change of a model whose directions come from a pool."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import LARGEST_POOL, pooled

FINEST = -100
"""The smallest exponent of the grid."""
_LARGEST = 2**31 - 1


@dataclass(frozen=True, eq=False)
class PoolSums:
    """The coefficients of the directions z_j of a pool after the rounds 0..round-1, on the grid 2^exponent.

        A_j = Σ_r Σ_k Σ_p [z_{r,p}^k = z_j] · rint(−(η_r/P) g_{r,p}^k · 2^(−exponent)),   j = 0..S−1

    The product is taken in double precision and rounded to the nearest integer, ties to even; the sums are of integers,
    so they do not depend on the order or on where the records were cut.
    """

    round: int  # the number of rounds whose records are in the sums
    exponent: int  # the exponent of the grid's step
    values: NDArray[np.int32]  # A, int32, shape (S,)

    def __post_init__(self) -> None:
        require_int("round of a pool", self.round, 0)
        require_int("exponent of a pool", self.exponent, FINEST, 0)
        fits = self.values.ndim == 1 and self.values.dtype == np.int32 and 1 <= self.values.size <= LARGEST_POOL
        found = self.values.dtype, self.values.shape
        require(fits, "sums of a pool", f"be int32 of shape (S,), S in 1..{LARGEST_POOL}", found)

    @property
    def S(self) -> int:
        """Directions of the pool."""
        return int(self.values.size)

    def after(self, records: Sequence[RoundRecord]) -> "PoolSums":
        """The sums after these records too.

        InputError if they are not the next ones, their directions are not of the pool, or a sum leaves 32 bits.
        """
        sums = self.values.astype(np.int64)
        for r, record in enumerate(records, self.round):
            if record.round != r:
                raise InputError(f"sums at round {r} cannot take the record of round {record.round}")
            places = np.array(pooled(record.seeds).places).reshape(-1)
            require(int(places.max()) < self.S, f"places of round {r}", f"be below S={self.S}", int(places.max()))
            factor = -record.eta / record.P
            steps = np.rint(factor * record.scalars.astype(np.float64).reshape(-1) * 2.0**-self.exponent)
            largest = float(np.abs(steps).max())
            if largest <= _LARGEST:
                np.add.at(sums, places, steps.astype(np.int64))
                largest = int(np.abs(sums[places]).max())
            if largest > _LARGEST:
                raise InputError(
                    f"largest sum of the pool must be at most {_LARGEST} · 2^{self.exponent} = "
                    f"{_LARGEST * 2.0**self.exponent:.6g}, got {largest * 2.0**self.exponent:.6g} in round {r}: "
                    "nothing was changed; a coarser grid (pool_exponent) or a smaller learning rate (lr) would fit"
                )
        return PoolSums(self.round + len(records), self.exponent, sums.astype(np.int32))
