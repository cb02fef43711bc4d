"""Spectra of Hessians as eigenvalues with multiplicities, so that d = 10⁹ costs no more than d = 10."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import require, require_finite_positive, require_int


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a Hessian H ⪰ 0, in groups of equals.

    Raises:
        InputError: That names the attribute, the rule and the value.
    """

    values: tuple[float, ...]  # the eigenvalue of each group, ≥ 0 and not all 0. [F/X²]
    counts: tuple[int, ...]  # number of times that each occurs, ≥ 1

    def __post_init__(self) -> None:
        require(len(self.values) == len(self.counts) > 0, "counts", "be one for each value", self.counts)
        for value in self.values:
            require(math.isfinite(value) and value >= 0, "values", "be finite numbers of at least 0", value)
        require(max(self.values) > 0, "values", "not all be 0", self.values)
        for count in self.counts:
            require_int("counts", count, 1)

    @classmethod
    def flat(cls, d: int, L: float = 1.0) -> Self:
        """H = L·I: κ = d."""
        return cls((require_finite_positive("L", L),), (d,))

    @classmethod
    def two_level(cls, d: int, kappa: float, L: float = 1.0) -> Self:
        """L once, the other d − 1 eigenvalues share (κ − 1)L: effective rank κ in any dimension d ≥ κ."""
        require_int("d", d, 1)
        require(1 <= kappa <= d, "kappa", f"be in 1..d = {d}", kappa)
        require_finite_positive("L", L)
        return cls((L,), (1,)) if d == 1 else cls((L, L * min(1.0, (kappa - 1) / (d - 1))), (1, d - 1))

    @classmethod
    def confined(cls, d: int, rank: int, L: float = 1.0) -> Self:
        """L ``rank`` times, else 0: the loss depends on ``rank`` of d coordinates; κ = rank."""
        require_int("rank", rank, 1, d)
        return cls.flat(d, L) if rank == d else cls((require_finite_positive("L", L), 0.0), (rank, d - rank))

    @classmethod
    def power(cls, d: int, exponent: float, L: float = 1.0, groups: int = 40) -> Self:
        """λ_j = L j^(−exponent), j = 1..d; where d is above ``groups``, neighbours far down share their mean.

        Means are taken over ranges whose ends grow geometrically, by ∫ j^(−exponent) dj from midpoint to midpoint.
        InputError if exponent is negative or groups below 2.
        """
        require_int("d", d, 1)
        require_int("groups", groups, 2)
        require(math.isfinite(exponent) and exponent >= 0, "exponent", "be a finite number of at least 0", exponent)
        require_finite_positive("L", L)
        ends = sorted({min(d, max(1, round(end))) for end in np.geomspace(1, d, groups)})
        values, counts, begin = [], [], 0
        for end in ends:
            count = end - begin
            low, high = begin + 0.5, end + 0.5
            area = (
                math.log(high / low)
                if exponent == 1
                else (high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent)
            )
            values.append(L * (end**-exponent if count == 1 else area / count))
            counts.append(count)
            begin = end
        return cls(tuple(values), tuple(counts))

    @property
    def d(self) -> int:
        """How many eigenvalues."""
        return sum(self.counts)

    @property
    def L(self) -> float:
        """‖H‖₂."""
        return max(self.values)

    @property
    def lambda_min(self) -> float:
        """The smallest eigenvalue."""
        return min(self.values)

    @property
    def trace(self) -> float:
        """Tr H."""
        return self.power_sum(1)

    @property
    def kappa(self) -> float:
        """Effective rank tr(H)/‖H‖₂, in 1..d."""
        return min(float(self.d), max(1.0, self.trace / self.L))

    def power_sum(self, n: int) -> float:
        """tr(Hⁿ)."""
        return math.fsum(count * value**n for value, count in zip(self.values, self.counts, strict=True))

    @property
    def eigenvalues(self) -> NDArray[np.float64]:
        """The groups' values, shape (groups,)."""
        return np.array(self.values, dtype=np.float64)

    @property
    def multiplicities(self) -> NDArray[np.float64]:
        """The groups' counts, shape (groups,)."""
        return np.array(self.counts, dtype=np.float64)
