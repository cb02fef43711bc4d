"""The audit against itself: faults planted by rule, and in what its evidence is made of, and who notices them."""

import math
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock

import pytest

from tests.cases import cases
from tests.theory.findings.entries import confirmed
from tests.theory.findings.mutation import mutations, noticed
from theory import TABLE_1, Statement
from theory.bounds import statement
from theory.communication import Numbers, expected_numbers
from theory.findings.evidence import claims, displays, gaussian, tables
from theory.findings.evidence.one_round import OneRound
from theory.notation import symbols as s
from theory.notation.printed import LORA, RESULTS, ROUNDS, Cell

MUTATIONS = tuple(mutations())


@cases(2, len(MUTATIONS))
@pytest.mark.parametrize("kind", ["status", "role", "cause", "line"])
def test_faults_in_statuses_and_evidence_are_noticed(kind: str, cases: int) -> None:
    """Of so many faults of a kind, drawn; of all where there are no more."""
    own = [each for each in MUTATIONS if each.kind == kind]
    drawn = Random(kind).sample(own, min(cases, len(own)))
    missed = [each.name for each in drawn if not noticed(each)]
    assert len(missed) <= 0.05 * len(drawn), missed


def without_plans(R: int, **case: int) -> Numbers:
    """As if seeds were not sent again."""
    sent = expected_numbers(R, **case)
    return replace(sent, seeds=sent.seeds - sent.up)


def smaller(name: str) -> Statement:
    """As if a hundredth of a bound did."""
    whole = statement(name)
    return replace(whole, terms={each: term / 100 for each, term in whole.terms.items()})


FEDZO = replace(TABLE_1["FedZO"], uplink_complexity=s.d / (s.P * s.K * s.epsilon**2))
MORE = {name: lambda n: 1 / math.sqrt(n) for name in claims.AVERAGES}
SHORT = {**ROUNDS, "OPT-125M": {**ROUNDS["OPT-125M"], "WIC": 2900}}
MENDED = {**RESULTS["OPT-1.3B"], "RTE": (*RESULTS["OPT-1.3B"]["RTE"][:3], Cell(60.89, 0.18))}
CHEAP = {name: (cells[0], Cell(50.0, 0.0018), *cells[2:]) for name, cells in LORA.items()}


@pytest.mark.parametrize(
    ("owner", "name", "fault", "labels"),
    [
        (claims, "AVERAGES", MORE, "line-135, line-181, line-182, line-477.4, line-477.5"),
        (claims, "expected_numbers", without_plans, "line-477.2"),
        (tables, "expected_numbers", lambda R, **case: expected_numbers(R, **{**case, "m": case["M"]}), "line-582.5"),
        (tables, "ROUNDS", SHORT, "table.llm-125m-1.3b, line-582.4, table.Experiment setting"),
        (tables, "RESULTS", {**RESULTS, "OPT-1.3B": MENDED}, "table.llm-125m-1.3b, line-582.2"),
        (tables, "LORA", {**LORA, "CB": (*LORA["CB"][:3], Cell(71.43, 0.13))}, "table.llm-125m-lora"),
        (tables, "LORA", CHEAP, "line-920.2"),
        (claims, "statement", lambda name: statement("theorem-1-single"), "line-184"),
        (claims, "statement", smaller, "line-181, line-183"),
        (claims, "TABLE_1", {**TABLE_1, "FedZO": FEDZO}, "tab-comm-comparison"),
        (displays, "product", lambda *values, repeat: [(1,) * repeat], "line-742"),
        (gaussian, "EXPONENTS", {**gaussian.EXPONENTS, "line-1474.3": 0.16}, "line-1446, line-1474.3"),
        (OneRound, "smooth", property(lambda r: r.plain), "line-1029, line-1080, line-1147, eq.ybc, line-1152"),
        (OneRound, "subsets", ((0, 1),), "eq.ybc, line-1177, line-1191.2"),
        (OneRound, "drift", 0.0, "line-1101, line-1056, line-1191"),
    ],
)
def test_a_fault_in_what_evidence_is_made_of_is_noticed(owner: Any, name: str, fault: Any, labels: str) -> None:
    spoken = labels.split(", ")
    assert all(map(confirmed, spoken))
    with mock.patch.object(owner, name, fault):
        assert not any(map(confirmed, spoken))
