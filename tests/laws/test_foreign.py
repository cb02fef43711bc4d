"""The contract is complete: an implementation that shares no part with the lab's passes all laws that it supports."""

import re
from random import random
from typing import Any

import pytest

from decomfl_lab import laws
from tests.laws.foreign import Client, Foreign

test_foreign = laws.pytest_suite(Foreign(), cases=8)
LACKED = {"keyed_client", "lean_client", "sync_client", "backends", "direction", "aggregate", "weighing_server"}


def test_it_is_tried_on_all_laws_but_those_of_parts_and_rules_that_it_lacks() -> None:
    outcomes = laws.verify(Foreign(), cases=1)
    others = [name for name, law in laws.LAWS.items() if LACKED & set(law.parts)]
    assert [outcome.law for outcome in outcomes if outcome.status == "not yours"] == others
    assert outcomes.broken == []


class _NeverBack(Client):
    def handle(self, plan: Any) -> Any:
        reply = super().handle(plan)
        self.replica.x = self.replica.x + 1
        return reply


class _Raises(Client):
    def handle(self, plan: Any) -> Any:
        return super().handle(plan) if not plan.records else {}["nothing"]


class _AtTimes(Client):
    """Measures something else every time."""

    def scalar(self, x: Any, z: Any) -> float:
        return super().scalar(x, z) + random()


REBUILT, BACK = "rebuilt-client-equals-server", "revert-leaves-every-bit"


@pytest.mark.parametrize(
    ("client", "law", "says"),
    [
        (_NeverBack, BACK, r"differs  in round 0, model of client 0 after local updates and revert: of x, 1 of 1"),
        (_Raises, REBUILT, r"raised   KeyError: 'nothing' \(test_foreign.py line \d+\)\ncase "),
        (_AtTimes, "runs-repeat-from-one-seed", r"records of the second run"),
    ],
)
def test_a_faulty_client_is_caught_by_a_case_that_tells(client: Any, law: str, says: str) -> None:
    outcomes = laws.verify(Foreign(client), cases=60, laws=[law])
    assert outcomes.broken == [law]
    assert re.search(says, outcomes[0].counterexample), outcomes[0].counterexample


def test_a_faulty_server_is_caught() -> None:
    class Unbounded(Foreign):
        def server(self, case: Any, *, with_model: bool = True) -> Any:
            made = super().server(case, with_model=with_model)
            made.keep = 0
            return made

    assert laws.verify(Unbounded(), cases=40, laws=["a-bounded-history-is-enough"]).broken


class _Unfinished(Client):
    def handle(self, plan: Any) -> Any:
        raise NotImplementedError


def test_what_a_client_does_not_offer_while_it_runs_is_skipped_with_the_place() -> None:
    (outcome,) = laws.verify(Foreign(_Unfinished), cases=5, laws=["replies-are-measurements"])
    assert outcome.status == "skipped"
    assert re.fullmatch(r"NotImplementedError \(test_foreign.py line \d+\)", outcome.counterexample)


def test_the_suite_fails_where_a_law_is_broken_and_skips_where_there_is_nothing_to_try() -> None:
    suite = laws.pytest_suite(laws.FAULTS["never-pruned"], cases=20)
    with pytest.raises(pytest.fail.Exception, match="BROKEN .* pruning-keeps-what-is-needed: .*\n.*oldest round kept"):
        suite("pruning-keeps-what-is-needed")
    with pytest.raises(pytest.skip.Exception, match="not about your code but about sample"):
        suite("sampling-is-without-replacement")
