"""How many seeds travel: one for every direction, local step or round, or one for the whole run.

Seeds are nested by the keyed hash,

    s_r = H(run seed, r),   s_r^k = H(s_r, k),   s_{r,p}^k = H(s_r^k, p),

so whoever has a seed has all those below it. Per step, per round and per run make the *same* directions,
z_{r,p}^k = z(s_r^k, p), and hence the same models to the bit; only what is sent differs. Per direction, the paper's
count, z_{r,p}^k = z(s_{r,p}^k, 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from decomfl_lab.errors import InputError, require
from decomfl_lab.noise import derive_seed

__all__ = ["DerivedSeeds", "Seeding", "StepSeed", "draw_seeds", "seeding_of", "stream_of"]

StepSeed = int | tuple[int, ...]
"""The seed that the P directions of a local step share, or a seed for each of them."""


class Seeding(StrEnum):
    """How many seeds a plan or a record carries."""

    PER_DIRECTION = "per-direction"
    """K·P seeds."""
    PER_STEP = "per-step"
    """K seeds."""
    PER_ROUND = "per-round"
    """One seed."""
    PER_RUN = "per-run"
    """No seed: each client is told the run's seed once."""

    def sent(self, K: int, P: int) -> int:
        """Seeds that a plan or a record of K steps along P directions carries."""
        return {self.PER_DIRECTION: K * P, self.PER_STEP: K, self.PER_ROUND: 1, self.PER_RUN: 0}[self]


@dataclass(frozen=True)
class DerivedSeeds(Sequence[int]):
    """The seeds s_r^k, k = 0..K-1, of a round from which only s_r is sent, or not even that.

    Attributes:
        root: The round's seed s_r.
        K: The number of local steps.
        seeding: PER_ROUND or PER_RUN.
    """

    root: int
    K: int
    seeding: Seeding = Seeding.PER_ROUND

    def __post_init__(self) -> None:
        known = (Seeding.PER_ROUND, Seeding.PER_RUN)
        require(self.seeding in known, "seeding of derived seeds", "be per-round or per-run", self.seeding)

    @cached_property
    def _steps(self) -> tuple[int, ...]:
        return tuple(derive_seed(self.root, k) for k in range(self.K))

    def __len__(self) -> int:
        return self.K

    def __getitem__(self, k: Any) -> Any:
        return self._steps[k]


def draw_seeds(seeding: Seeding, run_seed: int, r: int, K: int, P: int) -> Sequence[StepSeed]:
    """The seeds of round r, one entry a local step, in the form that ``seeding`` sends.

    Args:
        seeding: It says which seeds travel.
        run_seed: The run's seed, 0..2**64-1.
        r: The round.
        K: The number of local steps.
        P: The number of directions a step.
    """
    root = derive_seed(run_seed, r)
    if seeding in (Seeding.PER_ROUND, Seeding.PER_RUN):
        return DerivedSeeds(root, K, seeding)
    steps = tuple(derive_seed(root, k) for k in range(K))
    if seeding is Seeding.PER_STEP:
        return steps
    return tuple(tuple(derive_seed(step, p) for p in range(P)) for step in steps)


def seeding_of(seeds: Sequence[StepSeed], P: int) -> Seeding:
    """How the seeds of a round are sent; InputError if some steps have a seed for each direction and others not P."""
    if isinstance(seeds, DerivedSeeds):
        return seeds.seeding
    if all(isinstance(seed, int) for seed in seeds):
        return Seeding.PER_STEP
    if all(isinstance(seed, tuple) and len(seed) == P for seed in seeds):
        return Seeding.PER_DIRECTION
    raise InputError(f"seeds must be one for each step, or P={P} for each step, got {tuple(seeds)}")


def stream_of(seed: StepSeed, p: int) -> tuple[int, int]:
    """(s, q) with z_{r,p}^k = z(s, q): direction p of the step's seed, or direction 0 of its own."""
    return (seed, p) if isinstance(seed, int) else (seed[p], 0)
