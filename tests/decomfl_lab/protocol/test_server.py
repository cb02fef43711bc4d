"""The server: rate and directions of each round, records neither kept nor gone too long, reports, a policy's model."""

from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab.errors import InputError
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.messages import Held, Plan, Reply
from decomfl_lab.protocol.policy import PullPolicy
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.protocol.terms import Terms
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import LowPrecision, Momentum, Sgd, UpdateRule

ETA, P = Schedule(0.5, {2: 0.25, 3: 0.125, 6: 0.0625}), Schedule(3, {1: 1, 4: 2})
ROUNDS = [(0.5, 3), (0.5, 1), (0.25, 1), (0.125, 1), (0.125, 2), (0.125, 2), (0.0625, 2), (0.0625, 2)]
"""η and P of each round, by hand."""


def server(**options: Any) -> Server:
    settings: dict[str, Any] = {"M": 4, "m": 2, "K": 2, "P": P, "eta": ETA, "seed": 1}
    return Server(**settings | options)


def played(own: Server, *chosen: int) -> tuple[dict[int, Plan], RoundRecord]:
    """A round's plans and its record."""
    held = [Held(i, own.history.end) for i in chosen] if own.tracking is Tracking.CLIENTS else None
    plans = own.plan_round(chosen or None, held)
    replies = [Reply(i, plan.round, np.ones((plan.K, plan.P), np.float32)) for i, plan in plans.items()]
    return plans, own.aggregate(replies)


@pytest.mark.parametrize("seeding", Seeding)
def test_plans_and_records_have_the_rate_and_the_directions_of_their_own_round(seeding: Seeding) -> None:
    own = server(seeding=seeding)
    for r, (eta, directions) in enumerate(ROUNDS):
        plans, record = played(own)
        heads: list[Plan | RoundRecord] = [*plans.values(), record]
        for head in heads:
            assert (head.round, head.eta, head.K, head.P) == (r, eta, 2, directions)
            Terms.of(own).check(head)


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


@pytest.mark.parametrize("keep", [1, 2, 5])
@pytest.mark.parametrize("tracking", Tracking)
def test_a_bounded_history_has_the_newest_records_and_serves_who_is_no_older(keep: int, tracking: Tracking) -> None:
    own = server(keep=keep, tracking=tracking)
    for r in range(8):
        assert [record.round for record in own.history.since(own.history.start)] == list(range(max(r - keep, 0), r))
        played(own, 0, 1)
    if tracking is Tracking.SERVER:
        own.held[2:] = 8 - keep, 7 - keep
    held = [[Held(2, 8 - keep)], [Held(3, 7 - keep)]] if tracking is Tracking.CLIENTS else [None, None]
    assert len(own.plan_round([2], held[0])[2].records) == keep
    with pytest.raises(InputError, match=f"client 3 holds round {7 - keep}, but the oldest .* of round {8 - keep} "):
        own.plan_round([3], held[1])


@pytest.mark.parametrize(
    ("participants", "says"),
    [((1, 1), r"participants must be distinct, got \(1, 1\)"), ((), "participants must be distinct, got \\(\\)")]
    + [((0, i), rf"participant must be an integer .*0\.\.3.*got {i}") for i in (4, 5, -1)],
)
def test_participants_are_different_clients_that_exist(participants: tuple[int, ...], says: str) -> None:
    own = server()
    with pytest.raises(InputError, match=says):
        own.plan_round(participants)
    assert not own.planned
    assert list(own.plan_round((0, 3))) == [0, 3]


def test_a_client_that_joins_later_is_sampled_from_then_on_and_all_of_fewer_are() -> None:
    own, all_there = server(M=5, m=3, present=Schedule(2, {4: 5})), server(M=5, m=3)
    assert [own.sampled(r) for r in range(4)] == [(0, 1)] * 4
    assert [own.sampled(r) for r in range(4, 60)] == [all_there.sampled(r) for r in range(4, 60)]
    assert own.sample() == own.sampled(0)


@pytest.mark.parametrize(("present", "got"), [(Schedule(0), 0), (Schedule(2, {3: 1}), 1), (Schedule(2, {3: 6}), 6)])
def test_nobody_leaves_and_not_more_join_than_there_are(present: Schedule[int], got: int) -> None:
    with pytest.raises(InputError, match=f"clients in .* must be an integer in .*, got {got}"):
        server(M=5, present=present)


# What clients report of the rounds that they hold ---------------------------------------------------------------------


def of_clients() -> Server:
    return Server(M=3, m=1, K=1, P=Schedule(1), eta=Schedule(0.1), seed=0, tracking=Tracking.CLIENTS)


def test_a_client_that_reports_two_rounds_is_refused() -> None:
    own = of_clients()
    own.history.start = 4
    with pytest.raises(InputError, match="client of a report must say one round"):
        own.plan_round([1], [Held(1, 4), Held(1, 3)])
    assert own.plan_round([1], [Held(1, 4), Held(1, 4)]).keys() == {1}


@pytest.mark.parametrize("other", [0, 99])
def test_a_report_of_a_client_that_does_not_take_part_is_refused(other: int) -> None:
    with pytest.raises(InputError, match=rf"client of a report must be one of \[1\], got {other}"):
        of_clients().plan_round([1], [Held(1, 0), Held(other, 0)])


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
