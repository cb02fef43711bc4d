"""The RoundRecord: the whole truth of a round. Replaying the same records gives the same bits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import InputError, require, require_finite_positive, require_int
from decomfl_lab.noise import Distribution
from decomfl_lab.records.seeds import Seeding, StepSeed, seeding_of

ScalarArray = NDArray[np.float32] | NDArray[np.int8]
"""(K, P) scalars of a step: float32 numbers, or int8 signs, −1 or 1, which travel as bits."""


def unsound(scalars: ScalarArray) -> ScalarArray:
    """Those that cannot be sent: of float32 numbers what is not finite, of int8 ones what is no sign."""
    return scalars[np.abs(scalars) != 1 if scalars.dtype == np.int8 else ~np.isfinite(scalars)]


def require_sound(name: str, scalars: ScalarArray, hint: str = "") -> None:
    """InputError, with the first of them, if there are unsound ones."""
    wrong = unsound(scalars)
    if wrong.size:
        raise InputError(f"{name} must be {'-1 or 1' if wrong.dtype == np.int8 else 'finite'}, got {wrong[0]}{hint}")


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """What every replica applies for round r."""

    round: int  # the round r, 0-based
    eta: float  # the learning rate η in force in round r
    distribution: Distribution  # the distribution of the directions z
    # the seeds s_r^k, K of them, in one of the forms of ``draw_seeds``: a 64-bit seed that all P directions of a step
    # share, or one for each
    seeds: Sequence[StepSeed]
    scalars: ScalarArray  # the aggregated g_{r,p}^k, shape (K, P): float32, all finite, or int8 signs, −1 or 1

    def __post_init__(self) -> None:
        require_int("round", self.round, 0)
        require_finite_positive("eta", self.eta)
        form = self.scalars.dtype, self.scalars.shape
        sound = self.scalars.ndim == 2 and form[0] in (np.float32, np.int8) and self.scalars.size > 0
        require(sound, "scalars", "be a non-empty float32 array of shape (K, P), or one of int8 signs", form)
        require(len(self.seeds) == self.K, "seeds", f"hold one seed for each of K={self.K} steps", self.seeds)
        _ = self.seeding
        require_sound(f"scalars of round {self.round}", self.scalars)

    @classmethod
    def of_checked(
        cls, r: int, eta: float, distribution: Distribution, seeds: Sequence[StepSeed], scalars: ScalarArray
    ) -> Self:
        """The same record, of fields that are known to keep the rules: for whoever reads records by the thousand."""
        record = object.__new__(cls)
        record.__dict__.update(round=r, eta=eta, distribution=distribution, seeds=seeds, scalars=scalars)
        return record

    @property
    def K(self) -> int:
        """Local steps."""
        return int(self.scalars.shape[0])

    @property
    def P(self) -> int:
        """Directions a local step."""
        return int(self.scalars.shape[1])

    @property
    def seeding(self) -> Seeding:
        """How many seeds the record carries."""
        return seeding_of(self.seeds, self.P)

    def __eq__(self, other: Any) -> bool:
        return (
            isinstance(other, RoundRecord)
            and (self.round, self.eta, self.distribution, self.seeds)
            == (other.round, other.eta, other.distribution, other.seeds)
            and self.scalars.shape == other.scalars.shape
            and self.scalars.tobytes() == other.scalars.tobytes()
        )

    __hash__ = None  # type: ignore[assignment]


class History:
    """Consecutive RoundRecords from ``start`` on; the past before it may be forgotten."""

    def __init__(self, records: Iterable[RoundRecord] = (), start: int = 0) -> None:
        self.start = start
        self._records: list[RoundRecord] = []
        for record in records:
            self.append(record)

    @property
    def end(self) -> int:
        """The round that the next record must have."""
        return self.start + len(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def append(self, record: RoundRecord) -> None:
        """Add the record of round ``end``; InputError for any other round."""
        require(record.round == self.end, "round of the appended record", f"be {self.end}", record.round)
        self._records.append(record)

    def since(self, r: int) -> tuple[RoundRecord, ...]:
        """The records of rounds r, r+1, ..., end-1; InputError if some were pruned or lie ahead."""
        if r < self.start:
            raise InputError(f"records since round {r} are gone: the history was pruned to round {self.start}")
        require(r <= self.end, "first round wanted", f"be at most {self.end}", r)
        return tuple(self._records[r - self.start :])

    def prune(self, r: int) -> None:
        """Forget the records before round r (the first round that the slowest client still needs)."""
        drop = min(max(r - self.start, 0), len(self._records))
        del self._records[:drop]
        self.start += drop
