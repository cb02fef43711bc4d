"""Where laws look is measured: a law that looks at the first of several is told from one that looks at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from decomfl_lab.laws import LAWS
from decomfl_lab.laws import strategies as draw_from
from decomfl_lab.laws.contract import Case, Implementation, Wavy, play
from decomfl_lab.laws.measurement import MeasurementWatch
from decomfl_lab.laws.register import Law
from tests.laws.places import FaultPlace, looked, table


class _First(MeasurementWatch):
    """Looks at round 0 and client 0 alone."""

    def replied(self, client: Any, plan: Any, reply: Any) -> None:
        if plan.round == client.id == 0:
            super().replied(client, plan, reply)


def _law(check: Any) -> Law:
    return Law("a-law", "", ("client",), st.tuples(draw_from.cases()), check)


def _looks_at_round_0(implementation: Implementation, case: Case) -> None:
    clients = [implementation.client(case, i, Wavy(case.d, i)) for i in range(case.M)]
    play(implementation, case, clients=clients, watch=_First(case))


def test_a_law_of_the_first_round_and_client_notices_nothing_later() -> None:
    found = looked(_law(_looks_at_round_0), "scalar", cases=60)
    assert {place for place, seen in found.places if seen and (place.round or place.client)} == set()
    first = [seen for place, seen in found.places if place.round == place.client == 0]
    assert len(first) > 5
    assert all(first)


def test_the_law_of_measurements_notices_a_wrong_scalar_wherever_it_is() -> None:
    found = looked(LAWS["replies-are-measurements"], "scalar", cases=60)
    assert found.noticed == len(found.places) >= 50
    for name in FaultPlace._fields:
        seen, of = map(int, found.at(name, first=False).split("/"))
        assert seen == of > 5, name


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("law", "kind", "noticed"),
    [
        ("bad-replies-are-refused", "refusal", 96),
        ("each-direction-can-have-its-seed", "seed", 100),
        ("a-gap-is-refused", "gap", 34),
    ],
)
def test_a_law_notices_every_wrong_value_of_its_kind(law: str, kind: str, noticed: int) -> None:
    (row,) = table([LAWS[law]], cases=100)
    assert (row.kind, row.noticed, len(row.places)) == (kind, noticed, noticed)
