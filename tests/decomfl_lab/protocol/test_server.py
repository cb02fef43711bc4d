"""The server: rate and directions of each round, records neither kept nor gone too long, reports, a policy's model."""

from typing import Any

import pytest
import torch

from decomfl_lab.errors import InputError
from decomfl_lab.protocol.aggregation import Krum
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.messages import Held, Plan
from decomfl_lab.protocol.server import PullPolicy, Server, Terms, Tracking
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import LowPrecision, Momentum, Sgd, UpdateRule
from tests.refusals import refuses

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


# What a delivery tells its policy of the model ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "dtype", "told"),
    [
        (Sgd(), torch.float32, {"d": 3, "vectors": 1, "bytes_per_element": 4}),
        (Momentum(0.9), torch.float64, {"d": 3, "vectors": 2, "bytes_per_element": 8}),
        (LowPrecision(Momentum(0.9)), torch.bfloat16, {"d": 3, "vectors": 2, "bytes_per_element": 4}),
    ],
)
def test_a_policy_is_told_what_a_pull_would_send(rule: UpdateRule, dtype: torch.dtype, told: dict[str, int]) -> None:
    seen: list[dict[str, int]] = []

    class Spy(PullPolicy):
        def pulls(self, records: Any, **model: int) -> bool:
            seen.append(model)
            return super().pulls(records, **model)

    replica = Replica(torch.zeros(3, dtype=dtype), rule)
    server = Server(M=1, m=1, K=1, P=Schedule(1), eta=Schedule(0.1), seed=0, replica=replica)
    list(Delivery(server, policy=Spy()).open([0]))
    assert seen == [told]
