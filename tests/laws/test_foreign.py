"""The contract is complete: an implementation that shares no part with the lab's passes all laws that it supports."""

from __future__ import annotations

from typing import Any

import pytest

from decomfl_lab import laws
from tests.laws.foreign import Client, Foreign, Server

test_foreign = laws.pytest_suite(Foreign(), cases=25)
LACKED = {"keyed_client": "private-keys-hide-the-directions", "lean_client": "lean-clients-are-like-others"}
LACKED["sync_client"] = "synchronised-clients-drift-within-their-roundings"


def test_it_is_tried_on_all_laws_but_those_of_the_noise_of_aggregation_and_of_what_it_lacks() -> None:
    outcomes = laws.verify(Foreign(), cases=1)
    skipped = {outcome.law for outcome in outcomes if outcome.status == "not tried"}
    others = {name for name, law in laws.LAWS.items() if {"backends", "direction", "aggregate"} & set(law.parts)}
    assert skipped == others | set(LACKED.values()) | {"scalars-are-slopes-along-the-scaled-directions"}  # rules
    assert outcomes.broken == []


def test_cases_that_it_does_not_support_are_simplified_not_thrown_away() -> None:
    (outcome,) = laws.verify(Foreign(), cases=30, laws=["rebuilt-client-equals-server"])
    assert (outcome.status, outcome.cases) == ("holds", 30)


class _NeverBack(Client):
    def handle(self, plan: Any) -> Any:
        reply = super().handle(plan)
        self.replica.x = self.replica.x + 1
        return reply


class _Unbounded(Server):
    def _forget(self) -> None:
        self.history.prune(min(self.held, default=0))


@pytest.mark.parametrize(
    ("name", "part", "law"),
    [("client", _NeverBack, "revert-leaves-every-bit"), ("server", _Unbounded, "a-bounded-history-is-enough")],
)
def test_a_fault_in_a_foreign_implementation_is_caught(name: str, part: Any, law: str) -> None:
    class Faulty(Foreign):
        def client(self, case: Any, i: int, objective: Any = None) -> Any:
            client = super().client(case, i, objective)
            return part(case, i, client.loss) if name == "client" else client

        def server(self, case: Any, *, with_model: bool = True) -> Any:
            return (part if name == "server" else Server)(case, with_model=with_model)

    assert laws.verify(Faulty(), cases=40, laws=[law]).broken == [law]


def test_the_suite_fails_where_a_law_is_broken_and_skips_where_there_is_nothing_to_try() -> None:
    suite = laws.pytest_suite(laws.FAULTS["never-pruned"], cases=20)
    with pytest.raises(pytest.fail.Exception, match="BROKEN .* pruning-keeps-what-is-needed: .*\n.*oldest round kept"):
        suite("pruning-keeps-what-is-needed")
    with pytest.raises(pytest.skip.Exception, match="never-pruned has no sample"):
        suite("sampling-is-without-replacement")
