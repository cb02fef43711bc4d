"""Delivery: who reads what, in which order; and what a client makes of it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from decomfl_lab import InputError, Momentum
from decomfl_lab.laws.contract import Case, Implementation
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.delivery import receive
from decomfl_lab.protocol.policy import PullPolicy
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.wire import Kind
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding

LAB = Implementation()
CASE = Case(
    M=3, K=2, P=Schedule(2), eta=Schedule(0.1), rule=Momentum(0.9), estimator="central", mu=2.0**-8,
    distribution=Distribution.GAUSSIAN, shapes=((5,),), dtype=torch.float32, seed=1, rounds=(),
)  # fmt: skip


def _kinds(messages: list[bytes]) -> list[Kind]:
    return [Kind(message[3]) for message in messages]


def test_the_runs_seed_comes_once_and_before_the_plan_that_needs_it() -> None:
    delivery = LAB.delivery(dataclasses.replace(CASE, seeding=Seeding.PER_RUN))
    client = LAB.client(CASE, 0)
    for wanted in ([Kind.SEED, Kind.PLAN], [Kind.PLAN]):
        ((_, messages),) = delivery.open([0])
        assert _kinds(messages) == wanted
        delivery.close([delivery.ledger.reply(client.handle(receive(client, messages)))])
    assert client.run_seed == delivery.server.run_seed


def test_a_model_comes_with_its_state_and_takes_the_place_of_the_clients() -> None:
    delivery = LAB.delivery(CASE, PullPolicy(bandwidth=1e12, replay_ns=1e6))
    clients = [LAB.client(CASE, i) for i in range(3)]
    for chosen in ([1], [1], [2]):
        ((i, messages),) = delivery.open(chosen)
        client = clients[i]
        delivery.close([delivery.ledger.reply(client.handle(receive(client, messages)))])
    assert _kinds(messages) == [Kind.VECTOR, Kind.VECTOR, Kind.PLAN]  # momentum, x
    assert delivery.pulls == 2  # client 1 lacked a record when it came again, client 2 two
    assert clients[2].replica.round == 2
    ((_, messages),) = delivery.open([2])
    receive(clients[2], messages)
    assert delivery.server.replica is not None
    assert clients[2].replica.digest() == delivery.server.replica.digest()


def test_reports_are_asked_for_where_clients_track_their_rounds() -> None:
    assert not LAB.delivery(CASE).wants_reports
    delivery = LAB.delivery(dataclasses.replace(CASE, tracking=Tracking.CLIENTS))
    assert delivery.wants_reports
    with pytest.raises(InputError, match="reports must come from every participant"):
        list(delivery.open([0]))
