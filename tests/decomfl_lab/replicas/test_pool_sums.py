"""Sums of a pool: exact however they are cut, refused where 32 bits are too few, and x a function of them alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab import InputError, LowPrecision
from decomfl_lab.noise import Distribution
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import PooledSeeds, Seeding, draw_seeds, step_seed, stream_of
from decomfl_lab.replicas.pool_sums import PooledReplica, PooledSgd

S, D = 6, 40
RULE = PooledSgd(S, -24)
Z = Distribution.RADEMACHER


def record(r: int, g: Any = 1.0, eta: float = 0.5, run_seed: int = 7) -> RoundRecord:
    scalars = np.full((2, 3), g, np.float32)
    return RoundRecord(r, eta, Z, draw_seeds(Seeding.POOL, run_seed, r, 2, 3, S), scalars)


def replica(x: torch.Tensor | None = None, rule: PooledSgd = RULE) -> PooledReplica:
    return PooledReplica(torch.linspace(-1, 1, D) if x is None else x, rule)


RECORDS = [record(r, g=0.1 * (r + 1)) for r in range(20)]


def of_places(*places: int, g: float) -> RoundRecord:
    return RoundRecord(0, 1.0, Z, PooledSeeds(7, 0, (places,)), np.full((1, len(places)), g, np.float32))


def test_places_are_the_seeds_of_directions_modulo_the_pool() -> None:
    own, places = (draw_seeds(seeding, 7, 3, 2, 4, 10) for seeding in (Seeding.PER_DIRECTION, Seeding.POOL))
    wanted = [[seed % 10 for seed in step] for step in own]
    assert [[stream_of(step, p)[1] for p in range(4)] for step in places] == wanted
    assert len({stream_of(step, p)[0] for step in places for p in range(4)}) == 1


def test_what_else_is_drawn_in_a_step_is_drawn_anew_where_directions_come_again() -> None:
    seeds = [step_seed(step) for r in range(50) for step in draw_seeds(Seeding.POOL, 7, r, 2, 1, 1)]
    assert len(set(seeds)) == 100


def test_a_step_is_rounded_to_the_grid_and_halves_to_even() -> None:
    for g, wanted in ((0.5, 0), (1.5, -2), (2.5, -2), (-3.5, 4)):
        assert PoolSums(0, 0, np.zeros(1, np.int32)).after([of_places(0, g=g)]).values.tolist() == [wanted]


@pytest.mark.parametrize("scalars", [(1.9, 1.9), (3e38, 1.0)])
def test_a_sum_that_leaves_32_bits_is_refused_before_anything_changes(scalars: tuple[float, float]) -> None:
    own = replica(rule=PooledSgd(1, -30))
    first, second = (of_places(0, g=g) for g in scalars)
    message = r"largest sum of the pool must be at most 2147483647 · 2\^-30 = 2, got .*: .*\(pool_exponent\)"
    with pytest.raises(InputError, match=message):
        own.catch_up([first, RoundRecord(1, 1.0, Z, second.seeds, second.scalars)])
    assert own.round == 0
    assert not own.sums.values.any()


PLAIN = RoundRecord(0, 0.1, Z, (1,), np.ones((1, 1), np.float32))
OTHER = PoolSums(0, -20, np.zeros(S, np.int32))
BAD: dict[str, Callable[[], Any]] = {
    "sums at round 0 cannot take the record of round 1": lambda: replica().catch_up([record(1)]),
    "places of round 0 must be below S=6, got 6": lambda: replica().catch_up([of_places(6, g=1.0)]),
    "seeds must be places in the run's pool": lambda: replica().catch_up([PLAIN]),
    "seed and distribution of the pool must be those": lambda: replica().catch_up([record(0), record(1, run_seed=8)]),
    "round of a pool's sums must be at least 20, got 0": lambda: followed().take(replica().sums, 1, Z),
    r"pool must be of \(S, e\) = \(6, -24\), got \(6, -20\)": lambda: replica().take(OTHER, 1, Z),
    r"seed and distribution of the pool must be \(": lambda: followed().take(followed().sums, 1, Z),
    "pool S must be an integer in 1..65536, got 0": lambda: PooledSgd(0),
    "pool S must be an integer in 1..65536, got 65537": lambda: draw_seeds(Seeding.POOL, 7, 0, 1, 1, 65537),
    "pool_exponent must be an integer in -100..0, got 1": lambda: PooledSgd(4, 1),
    "rule must be one of directions that are neither scaled nor of a pool": lambda: LowPrecision(RULE),
    "exponent of a pool must be": lambda: PoolSums(0, 3, np.zeros(1, np.int32)),
    "sums of a pool must be int32": lambda: PoolSums(0, 0, np.zeros(1)),  # type: ignore[arg-type]
}  # fmt: skip


def followed() -> PooledReplica:
    own = replica()
    own.catch_up(RECORDS)
    return own


@pytest.mark.parametrize("message", BAD)
def test_bad_pools_are_refused_by_name(message: str) -> None:
    with pytest.raises(InputError, match=message):
        BAD[message]()
