"""Sentences of the paper and the measurements that speak on them: one status, which both kinds of evidence bear out."""

from dataclasses import replace
from typing import Any

import pytest

from decomfl_lab.errors import InputError
from paper_repro.workflow.verdicts import claim_table
from paper_repro.workflow.verdicts.claim_table import CLAIMS, ClaimOutcome, sentences
from tests.cases import rows_of
from tests.theory.findings.borne_out import disagreements
from tests.theory.findings.entries import entry
from theory.findings.data import RAW
from theory.findings.finding import Entry, Evidence, EvidenceCheck, Role, Status
from theory.findings.registry import ENTRIES

TABLES = rows_of(__file__)

HOLDS = EvidenceCheck("holds", lambda: Evidence("algebra", True, "yes"))


def _sentence(status: Status, runs: dict[str, Role], **more: Any) -> Entry:
    return Entry(
        label="s", line=1, place="Section 1", kind="claim", says="", status=status, why="so", runs=runs, **more
    )


def _said(own: Entry, *verdicts: str) -> str:
    return " ".join(disagreements([own], dict(zip("abc", verdicts, strict=False))))


def test_the_recorded_verdicts_bear_every_entry_out_and_another_would_not() -> None:
    assert list(disagreements(ENTRIES, claim_table.verdicts())) == []
    told = " ".join(disagreements(ENTRIES, {**claim_table.verdicts(), "projection.better": "holds"}))
    assert "line-850.2: projection.better 'holds', so it supports, not refutes" in told


def test_every_measurement_is_asked_by_a_sentence_or_a_question() -> None:
    assert all(bool(own.question) or sentences(own.id) for own in CLAIMS.values())
    assert {run for raw in RAW for run in raw.get("runs", ())} <= set(CLAIMS)


def test_a_measurement_says_the_sentence_that_it_tests() -> None:
    assert CLAIMS["fig2.p-over-k"].says == "“which is more influential than local update”"
    assert CLAIMS["fig3.slower"].place == "Section 5"
    assert ClaimOutcome("fig2.p-over-k").row()["status"] == entry("line-557.3").status == "not decided"


@pytest.mark.parametrize(("status", "role", "tests", "verdict", "told"), TABLES["roles"])
def test_a_status_or_role_that_the_verdict_does_not_give_is_said(
    status: Status, role: Role, tests: str, verdict: str, told: str
) -> None:
    said = _said(_sentence(status, {"a": role}, tests=tests), verdict)
    assert told in said if told else said == ""


def test_what_a_run_of_more_refutes_is_at_best_not_decided_whatever_is_proved() -> None:
    own = _sentence("true by proof", {"a": "context"}, tests="stronger: on MNIST", evidence={"supports": (HOLDS,)})
    assert "not decided, not true by proof" in _said(own, "does not hold")


@pytest.mark.parametrize("label", ["line-850.2", "line-544.2", "line-574"])
def test_a_refuting_run_cannot_be_moved_to_the_context(label: str) -> None:
    runs: dict[str, Role] = dict.fromkeys(entry(label).runs, "context")
    moved = replace(entry(label), runs=runs, evidence={}, causes=(), status="not decided")
    assert "so it refutes, not context" in " ".join(disagreements([moved], claim_table.verdicts()))


def test_runs_of_which_one_is_undecided_make_nothing_true() -> None:
    with pytest.raises(InputError, match="status of s must be one of not decided, got 'true in our runs'"):
        _sentence("true in our runs", {"a": "supports", "b": "context"})


def test_a_live_verdict_other_than_the_recorded_one_is_said() -> None:
    assert claim_table.otherwise(ClaimOutcome("projection.better", "holds")) == "the recorded runs say: does not hold"
    assert claim_table.otherwise(ClaimOutcome("projection.better", "does not hold")) == ""
    assert claim_table.otherwise(ClaimOutcome("projection.better")) == ""
