"""Parts of other classes than the lab's: what they hand over may be of any class with the same fields."""

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
from tests.laws.foreign import Client, Foreign

CASE = case_of(SmallFederation(clients=2, rounds=2))


def test_behind_the_edge_named_tuples_of_arrays_are_values_of_the_labs() -> None:
    played = play(fitted(Foreign()), CASE, [laws.Participation((0, 1))])
    (record,) = played.records
    assert (type(record), record.distribution) == (laws.RoundRecord, Distribution.GAUSSIAN)
    held = played.clients[0].replica.snapshot()
    assert (type(held), type(held.x), list(held.state)) == (laws.Snapshot, torch.Tensor, ["momentum"])


class _NoNumbers(Foreign):
    """Its server accepts whatever it gets, and records what is no number."""

    def server(self, case: Any, *, with_model: bool = True) -> Any:
        made = super().server(case, with_model=with_model)
        right = made.aggregate

        def aggregate(replies: Any) -> Any:
            sound = [replace(reply, scalars=np.ones_like(reply.scalars)) for reply in replies]
            return right(sound)._replace(scalars=np.full((1, 1), np.nan, np.float32))

        made.aggregate = aggregate
        return made


class _Refuses(Client):
    def handle(self, plan: Any) -> Any:
        raise ValueError("not today")


def test_a_record_that_is_none_is_no_refusal_but_a_broken_law() -> None:
    (outcome,) = laws.verify(_NoNumbers(), cases=5, laws=["bad-replies-are-refused"])
    assert outcome.counterexample.startswith("differs  record of round 0: scalars of round 0 must be finite, got nan")


def test_a_refusal_keeps_its_name_and_place() -> None:
    (outcome,) = laws.verify(Foreign(_Refuses), cases=5, laws=["revert-leaves-every-bit"])
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
