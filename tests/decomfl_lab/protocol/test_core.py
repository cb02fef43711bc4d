"""Estimators, rules, records, layouts and the server, each against something that cannot share the bug."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decomfl_lab.errors import InputError
from decomfl_lab.estimators.differences import ESTIMATORS, central, forward
from decomfl_lab.noise import Distribution, direction
from decomfl_lab.objectives.objective import EpochBatches
from decomfl_lab.protocol.aggregation import Krum
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Held, Plan
from decomfl_lab.protocol.server import Server, Terms, Tracking, sample_clients
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Sgd
from tests.cases import refuses


@given(st.lists(st.floats(-1e3, 1e3, width=32, allow_subnormal=False), min_size=1, max_size=9))
def test_a_sign_is_that_of_the_difference_and_of_none_that_is_no_number(slopes: list[float]) -> None:
    lost = [np.inf, -np.inf, np.nan, 1e300]
    for name, of in (("forward-sign", forward), ("central-sign", central)):
        points = ESTIMATORS[name].points(len(slopes) + 4, 0.5)
        assert points == of.points(len(slopes) + 4, 0.5)
        values = np.array([c * [*slopes, *lost][p] if c else 0.0 for p, c in points])
        found = ESTIMATORS[name].combine(values, np.empty(0), 0.5).g
        assert found.dtype == np.int8
        assert found.tolist() == [1 if slope >= 0 else -1 for slope in slopes] + [0] * 4


@refuses(
    ({"eta": -0.1}, "eta must be a finite number above 0, got -0.1"),
    ({"eta": float("nan")}, "eta must be a finite number above 0, got nan"),
    ({"seeds": (1,)}, "seeds must hold one seed for each of K=2 steps"),
    ({"scalars": np.full((2, 3), np.nan, np.float32)}, "scalars of round 0 must be finite"),
    ({"scalars": np.full((2, 3), 100, np.int8)}, "scalars of round 0 must be -1 or 1, got 100"),
    ({"scalars": np.ones((2, 3), np.int64)}, "scalars must be a non-empty float32 array of shape .*, or one of int8"),
    ({"scalars": np.zeros(3, np.float32)}, "scalars must be a non-empty float32 array"),
)
def test_records_refuse_what_cannot_be_replayed(changes: dict[str, object]) -> None:
    right = RoundRecord(0, 0.1, Distribution.GAUSSIAN, (3, 4), np.ones((2, 3), np.float32))
    replace(right, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("mu", [0.1, 1e-3, 0.7])
def test_the_divisor_is_the_step_even_where_mu_is_no_float32(mu: float) -> None:
    """f(x) = x: g = z exactly if the step along z and the divisor are one number; 0.1 rounded twice would show."""

    def total(x: torch.Tensor, step: int) -> float:
        return float(x.sum()) * 2.0**30

    client = Client(0, Replica(torch.zeros(1, dtype=torch.float64), Sgd()), total, forward, mu)
    plan = Plan(0, 0.1, 50, Distribution.GAUSSIAN, (5,))
    z = np.array([direction(5, p, 1)[0] for p in range(50)])
    assert (client.handle(plan).scalars[0] == z * np.float32(2.0**30)).all()
    with pytest.raises(InputError, match="mu rounded to float32 must be a finite number above 0, got 0.0"):
        Client(0, Replica(torch.zeros(1), Sgd()), total, forward, 1e-60)


@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 4))
def test_batches_of_an_epoch_are_a_partition_of_the_data(n: int, batch_size: int, epoch: int) -> None:
    batches = EpochBatches(n, batch_size, (3, 1))
    per_epoch = -(-n // batch_size)
    seen = np.concatenate([batches(epoch * per_epoch + place) for place in range(per_epoch)])
    assert sorted(seen) == list(range(n))
    assert max(len(batches(t)) for t in range(per_epoch)) == min(n, batch_size)


def test_clients_are_sampled_uniformly() -> None:
    M, m, R = 10, 3, 4000
    counts = np.zeros(M)
    pairs = 0
    for r in range(R):
        chosen = sample_clients(9, r, M, m)
        counts[list(chosen)] += 1
        pairs += 0 in chosen and 1 in chosen
    q = m / M
    assert np.abs(counts / R - q).max() < 5 * np.sqrt(q * (1 - q) / R)
    both = m * (m - 1) / (M * (M - 1))
    assert abs(pairs / R - both) < 5 * np.sqrt(both / R)


def test_the_reported_loss_is_the_mean_over_all_local_steps() -> None:
    client = Client(3, Replica(torch.zeros(4), Sgd()), lambda x, step: float(10**step), forward, 0.5)
    reply = client.handle(Plan(0, 0.1, 2, Distribution.GAUSSIAN, (1, 2, 3)))
    assert reply.loss == pytest.approx((1 + 10 + 100) / 3)
    assert (client.steps_taken, client.report()) == (3, Held(3, 0))
    assert not reply.scalars.any()


def test_a_client_that_fails_half_way_is_back_where_it_was() -> None:
    def loss(x: torch.Tensor, step: int) -> float:
        if step == 1:
            raise RuntimeError("out of data")
        return float(x.sum())

    client = Client(0, Replica(torch.ones(4), Sgd()), loss, forward, 0.5)
    with pytest.raises(RuntimeError, match="out of data"):
        client.handle(Plan(0, 0.1, 2, Distribution.GAUSSIAN, (1, 2)))
    assert np.array_equal(client.replica.x, np.ones(4))


# The server -----------------------------------------------------------------------------------------------------------


ETA, P = Schedule(0.5, {2: 0.25, 3: 0.125, 6: 0.0625}), Schedule(3, {1: 1, 4: 2})
ROUNDS = [(0.5, 3), (0.5, 1), (0.25, 1), (0.125, 1), (0.125, 2), (0.125, 2), (0.0625, 2), (0.0625, 2)]
"""η and P of each round, by hand."""


def server(**options: Any) -> Server:
    settings: dict[str, Any] = {"M": 4, "m": 2, "K": 2, "P": P, "eta": ETA, "seed": 1}
    return Server(**settings | options)


@pytest.mark.parametrize("r", range(len(ROUNDS)))
def test_terms_refuse_the_rate_and_the_directions_of_the_round_before_and_after(r: int) -> None:
    terms, (eta, directions) = Terms.of(server()), ROUNDS[r]
    for other_eta, other in ROUNDS[max(r - 1, 0) : r + 2]:
        plan = Plan(r, other_eta, other, terms.distribution, terms.seeds(r))
        if (other_eta, other) == (eta, directions):
            terms.check(plan)
            continue
        with pytest.raises(InputError, match="K and P of the plan" if other != directions else "eta of the plan"):
            terms.check(plan)


def test_a_client_that_joins_later_is_sampled_from_then_on_and_all_of_fewer_are() -> None:
    own, all_there = server(M=5, m=3, present=Schedule(2, {4: 5})), server(M=5, m=3)
    assert [own.sampled(r) for r in range(4)] == [(0, 1)] * 4
    assert [own.sampled(r) for r in range(4, 60)] == [all_there.sampled(r) for r in range(4, 60)]
    assert own.sample() == own.sampled(0)


@refuses(
    ((1, 1), [], r"participants must be distinct, got \(1, 1\)"),
    ((), [], r"participants must be distinct, got \(\)"),
    *(((0, i), [], rf"participant must be an integer in 0\.\.3, got {i}") for i in (4, 5, -1)),
    ((0, 2), [Held(0, 0)], r"reports must come from every participant.* got 'none of \[2\]'"),
    ((2,), [Held(2, 5)], r"round that client 2 reports must be an integer in 0\.\.0, got 5"),
    ((1,), [Held(1, 0), Held(1, 3)], "client of a report must say one round"),
    *(((1,), [Held(1, 0), Held(i, 0)], rf"client of a report must be one of \(1,\), got {i}") for i in (0, 99)),
)
def test_participants_are_different_clients_that_exist_and_each_reports_one_round(
    participants: tuple[int, ...], reports: list[Held]
) -> None:
    own = server(tracking=Tracking.CLIENTS)
    assert own.held == []
    try:
        own.plan_round(participants, reports)
    finally:
        assert not own.planned


@refuses(
    ({"present": Schedule(0)}, "clients in round 0, for .* must be an integer in .*, got 0"),
    ({"present": Schedule(2, {3: 1})}, "clients in a later round must be an integer in .*, got 1"),
    ({"present": Schedule(2, {3: 6})}, "clients in a later round must be an integer in .*, got 6"),
    ({"aggregation": Krum(2)}, r"sampled clients m must be at least 7 for Krum\(tolerated=2\), got 2"),
)
def test_nobody_leaves_and_not_more_join_than_there_are_and_a_rule_gets_its_replies(options: dict[str, Any]) -> None:
    server(M=5, **options)


def test_a_server_that_tracks_its_clients_takes_no_reports() -> None:
    assert server().held == [0, 0, 0, 0]
    with pytest.raises(InputError, match="reports must be left out where the server tracks the clients"):
        server().plan_round((0,), [Held(0, 0)])
