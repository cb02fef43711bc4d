"""Parts of other classes than the lab's: what they hand over may be of any class with the same fields."""

from collections import namedtuple
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from decomfl_lab import Momentum, Sgd, laws
from decomfl_lab.laws.contract import play
from decomfl_lab.laws.edge import fitted
from decomfl_lab.laws.strategies import Support
from decomfl_lab.laws.world import SmallFederation, case_of
from decomfl_lab.noise import Distribution
from tests.laws.foreign import Client, Foreign, Replica, Server

CASE = case_of(SmallFederation(clients=2, rounds=2))
Reply = namedtuple("Reply", "client round scalars")
Record = namedtuple("Record", "round eta seeds scalars")
Snapshot = namedtuple("Snapshot", "round x momentum")


class _OfTuples(Client):
    """Its values are named tuples of arrays."""

    class model(Replica):  # noqa: N801
        def snapshot(self) -> Any:
            return Snapshot(self.round, self.x, self.m)

        def restore(self, snapshot: Any) -> None:
            self.round, self.x, self.m = snapshot

    def handle(self, plan: Any) -> Any:
        reply = super().handle(plan)
        return Reply(reply.client, reply.round, reply.scalars)


class _OfLists(Server):
    """Its records are in a list, and have no distribution."""

    def aggregate(self, replies: Any) -> Any:
        record = super().aggregate(replies)
        return Record(record.round, record.eta, list(record.seeds), record.scalars)


class _Other(Foreign):
    made: Any = _OfTuples
    serves: Any = _OfLists

    def client(self, case: Any, i: int, objective: Any = None) -> Any:
        return self.made(case, i, super().client(case, i, objective).loss)

    def server(self, case: Any, *, with_model: bool = True) -> Any:
        return self.serves(case, with_model=with_model)


def test_values_of_other_classes_keep_the_laws() -> None:
    names = ["rebuilt-client-equals-server", "any-order-of-events-keeps-the-bits"]
    assert [outcome.status for outcome in laws.verify(_Other(), cases=10, laws=names)] == ["holds"] * 2


def test_behind_the_edge_they_are_the_labs() -> None:
    played = play(fitted(_Other()), CASE, [laws.Participation((0, 1))])
    (record,) = played.records
    assert (type(record), record.distribution) == (laws.RoundRecord, Distribution.GAUSSIAN)
    held = played.clients[0].replica.snapshot()
    assert (type(held), type(held.x), list(held.state)) == (laws.Snapshot, torch.Tensor, ["momentum"])


class _NoNumbers(_OfLists):
    """Accepts whatever it gets, and records what is no number."""

    def aggregate(self, replies: Any) -> Any:
        sound = [replace(reply, scalars=np.ones_like(reply.scalars)) for reply in replies]
        return super().aggregate(sound)._replace(scalars=np.full((1, 1), np.nan, np.float32))


class _Refuses(_OfTuples):
    def handle(self, plan: Any) -> Any:
        raise ValueError("not today")


def test_a_record_that_is_none_is_no_refusal_but_a_broken_law() -> None:
    other = type("NoNumbers", (_Other,), {"serves": _NoNumbers})()
    (outcome,) = laws.verify(other, cases=5, laws=["bad-replies-are-refused"])
    assert outcome.counterexample.startswith("differs  record of round 0: scalars of round 0 must be finite, got nan")


def test_a_refusal_keeps_its_name_and_place() -> None:
    other = type("Refuses", (_Other,), {"made": _Refuses})()
    (outcome,) = laws.verify(other, cases=5, laws=["revert-leaves-every-bit"])
    assert outcome.counterexample.startswith("raised   ValueError: not today (test_edge.py line ")


def test_what_a_part_refuses_is_not_tried_with_the_labs() -> None:
    class Signs(laws.Implementation):
        def direction(self, seed: int, p: int, d: int, distribution: Any) -> Any:
            if distribution is not Distribution.RADEMACHER:
                raise NotImplementedError("signs alone")
            return -super().direction(seed, p, d, distribution)

        def backends(self) -> Any:
            return {"signs": lambda seed, p, first, count, of: self.direction(seed, p, first + count, of)[first:]}

    names = ["streams-are-functions-of-their-counters", "known-answers-are-given", "square-sums-agree"]
    outcomes = laws.verify(Signs(), cases=20, laws=names)
    assert [outcome.status for outcome in outcomes] == ["holds", "broken", "skipped"]
    assert outcomes[0].cases == 20


def test_a_rule_without_weight_decay_is_simpler_than_another_rule() -> None:
    class Plain(laws.Implementation):
        def supports(self, case: Any) -> bool:
            return case.rule == Sgd() or case.rule == Momentum(0.5)

    case = Support(Plain()).fitted(replace(CASE, rule=Momentum(0.5, weight_decay=0.1)))
    assert case is not None
    assert case.rule == Momentum(0.5)
