"""How many seeds travel: one for every direction, local step or round, or one for the whole run.

Seeds are nested by the keyed hash,

    s_r = H(run seed, r),   s_r^k = H(s_r, k),   s_{r,p}^k = H(s_r^k, p),

so whoever has a seed has all those below it. Per step, per round and per run make the *same* directions,
z_{r,p}^k = z(s_r^k, p), and hence the same models to the bit; only what is sent differs. Per direction, the paper's
count, z_{r,p}^k = z(s_{r,p}^k, 0).

A run may also take all its directions from a pool of S of them, z_j = z(s, j), j < S, whose seed s derives from the
run's; then two bytes for each direction say which, z_{r,p}^k = z_j with j = s_{r,p}^k mod S.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any

from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.noise import derive_seed

POOL = 1024
"""The directions S of a pool, if nothing else is said."""
LARGEST_POOL = 1 << 16
"""Places in a pool take two bytes."""
_POOL_PATH = 0, 0  # a path of two numbers under the run's seed, where rounds have one


@dataclass(frozen=True)
class Picks:
    """Which directions of the run's pool the P directions of a local step are."""

    pool: int  # the pool's seed s
    places: tuple[int, ...]  # the places j of z_j = z(s, j), P of them, perhaps some of them twice
    step: int  # the step's own seed s_r^k, for what must be drawn anew in every step


StepSeed = int | tuple[int, ...] | Picks
"""The seed that the P directions of a local step share, or a seed for each of them, or their places in a pool."""


class Seeding(StrEnum):
    """How many seeds a plan or a record carries."""

    PER_DIRECTION = "per-direction"  # K·P seeds
    PER_STEP = "per-step"  # K seeds
    PER_ROUND = "per-round"  # one seed
    PER_RUN = "per-run"  # no seed: each client is told the run's seed once
    POOL = "pool"  # K·P places in the run's pool, of two bytes each: each client is told the run's seed once

    @property
    def needs_run_seed(self) -> bool:
        """Whether a plan or a record is read with the run's seed."""
        return self in (Seeding.PER_RUN, Seeding.POOL)

    def sent(self, K: int, P: int) -> int:
        """Seeds that a plan or a record of K steps along P directions carries."""
        return {self.PER_DIRECTION: K * P, self.PER_STEP: K, self.PER_ROUND: 1}.get(self, 0)

    def bytes(self, K: int, P: int) -> int:
        """The bytes of seeds, or places in the pool, that a plan or a record of K steps along P directions carries."""
        return 2 * K * P if self is Seeding.POOL else 8 * self.sent(K, P)


@dataclass(frozen=True)
class DerivedSeeds(Sequence[int]):
    """The seeds s_r^k, k = 0..K-1, of a round from which only s_r is sent, or not even that."""

    root: int  # the round's seed s_r
    K: int  # the number of local steps
    seeding: Seeding = Seeding.PER_ROUND  # PER_ROUND or PER_RUN

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


@dataclass(frozen=True)
class PooledSeeds(Sequence[Picks]):
    """The directions of round r, of which only the places in the run's pool are sent."""

    run_seed: int  # the run's seed, which the pool and the seeds of the steps derive from
    round: int  # the round r
    places: tuple[tuple[int, ...], ...]  # the places j of the P directions of each of the K steps, 0..65535

    @cached_property
    def pool(self) -> int:
        """The pool's seed s."""
        return derive_seed(self.run_seed, *_POOL_PATH)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, k: Any) -> Any:
        step = derive_seed(derive_seed(self.run_seed, self.round), range(len(self))[k])
        return Picks(self.pool, self.places[k], step)


@lru_cache(maxsize=64)
def draw_seeds(seeding: Seeding, run_seed: int, r: int, K: int, P: int, S: int = POOL) -> Sequence[StepSeed]:
    """The seeds of round r, one entry a local step, in the form that ``seeding`` sends.

    Args:
        seeding: It says which seeds travel.
        run_seed: The run's seed, 0..2**64-1.
        r: The round.
        K: The number of local steps.
        P: The number of directions a step.
        S: The directions of the pool, where they come from one, at most 65536.
    """
    root = derive_seed(run_seed, r)
    if seeding in (Seeding.PER_ROUND, Seeding.PER_RUN):
        return DerivedSeeds(root, K, seeding)
    steps = tuple(derive_seed(root, k) for k in range(K))
    if seeding is Seeding.PER_STEP:
        return steps
    own = tuple(tuple(derive_seed(step, p) for p in range(P)) for step in steps)
    if seeding is Seeding.PER_DIRECTION:
        return own
    require_int("pool S", S, 1, LARGEST_POOL)
    return PooledSeeds(run_seed, r, tuple(tuple(seed % S for seed in step) for step in own))


def seeding_of(seeds: Sequence[StepSeed], P: int) -> Seeding:
    """How the seeds of a round are sent; InputError if some steps have a seed for each direction and others not P."""
    if isinstance(seeds, DerivedSeeds):
        return seeds.seeding
    if isinstance(seeds, PooledSeeds) and all(len(places) == P for places in seeds.places):
        return Seeding.POOL
    if all(isinstance(seed, int) for seed in seeds):
        return Seeding.PER_STEP
    if all(isinstance(seed, tuple) and len(seed) == P for seed in seeds):
        return Seeding.PER_DIRECTION
    raise InputError(f"seeds must be one for each step, or P={P} for each step, got {tuple(seeds)}")


def pooled(seeds: Sequence[StepSeed]) -> PooledSeeds:
    """The same seeds, which are known to be places in a pool; InputError if they are not."""
    if isinstance(seeds, PooledSeeds):
        return seeds
    raise InputError(f"seeds must be places in the run's pool (seeds pool), got {tuple(seeds)}")


def stream_of(seed: StepSeed, p: int) -> tuple[int, int]:
    """(s, q) with z_{r,p}^k = z(s, q): direction p of the step's seed, direction 0 of its own, or one of the pool."""
    if isinstance(seed, Picks):
        return seed.pool, seed.places[p]
    return (seed, p) if isinstance(seed, int) else (seed[p], 0)


def keyed(seed: StepSeed, key: int | None) -> StepSeed:
    """The seed H(key, seed) that clients with a private key make their directions of; without a key ``seed`` itself."""
    if key is None:
        return seed
    if isinstance(seed, int):
        return derive_seed(key, seed)
    if isinstance(seed, Picks):
        return replace(seed, pool=derive_seed(key, seed.pool), step=derive_seed(key, seed.step))
    return tuple(derive_seed(key, own) for own in seed)


def step_seed(seed: StepSeed) -> int:
    """A seed that no other step has, for what else is drawn in the step."""
    return seed.step if isinstance(seed, Picks) else stream_of(seed, 0)[0]
