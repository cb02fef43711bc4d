"""Sentences of the paper and the measurements that speak on them: one status, which both kinds of evidence bear out."""

from __future__ import annotations

from typing import Any

import pytest

from decomfl_lab.errors import InputError
from paper_repro.workflow import claims
from paper_repro.workflow.claims import CLAIMS, ClaimOutcome
from paper_repro.workflow.sentences import NAMED, disagreements, sentences
from tests.theory.findings.entries import entry
from theory.findings.finding import Entry, Role, Status
from theory.findings.registry import ENTRIES


def _sentence(status: Status, runs: dict[str, Role], **more: Any) -> Entry:
    return Entry(
        label="s", line=1, place="Section 1", kind="claim", says="", status=status, why="so", runs=runs, **more
    )


def _said(own: Entry, *verdicts: str) -> str:
    return " ".join(disagreements([own], dict(zip("abc", verdicts, strict=False))))


def test_the_recorded_verdicts_bear_every_entry_out() -> None:
    assert list(disagreements(ENTRIES, claims.verdicts())) == []


def test_every_measurement_is_asked_by_a_sentence_or_a_question() -> None:
    assert all(bool(own.question) or sentences(own.id) for own in CLAIMS.values())
    assert set(NAMED) <= set(CLAIMS)


def test_a_measurement_says_the_sentence_that_it_tests() -> None:
    assert CLAIMS["fig2.p-over-k"].says == "“which is more influential than local update”"
    assert CLAIMS["fig3.slower"].place == "Section 5"
    assert ClaimOutcome("fig2.p-over-k").row()["status"] == entry("line-557.3").status == "refuted"


@pytest.mark.parametrize(
    ("role", "verdict", "gives"),
    [
        ("supports", "does not hold", "refutes"),
        ("refutes", "holds", "supports"),
        ("supports", claims.UNHEALTHY, "context"),
        ("supports", claims.UNTESTED, "context"),
        ("context", "holds", "supports"),
        ("refutes", "", "context"),
    ],
)
def test_a_verdict_that_gives_another_role_is_said(role: Role, verdict: str, gives: str) -> None:
    status: Any = {"supports": "correct", "refutes": "refuted", "context": "not decided"}[role]
    assert f"so it {gives}, not {role}" in _said(_sentence(status, {"a": role}), verdict)


def test_what_is_decided_is_in_the_context_only_of_a_sentence_that_says_what_is_tested_instead() -> None:
    own = _sentence("not decided", {"a": "context"}, tests="weaker: on quadratics")
    assert _said(own, "holds") == _said(own, claims.UNTESTED) == ""


@pytest.mark.parametrize(
    ("status", "runs", "verdicts", "should"),
    [
        ("imprecise", {"a": "refutes"}, ["does not hold"], "refuted, not imprecise"),
        ("refuted", {"a": "refutes"}, ["depends on how it is counted"], "imprecise, not refuted"),
        ("correct", {"a": "supports", "b": "context"}, ["holds", claims.UNHEALTHY], "not decided, not correct"),
    ],
)
def test_a_status_that_the_verdicts_do_not_give_is_said(status: Status, runs: Any, verdicts: Any, should: str) -> None:
    assert should in _said(_sentence(status, runs), *verdicts)


def test_a_record_that_the_registry_does_not_bear_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = {**claims.verdicts(), "fig2.p-over-k": "holds"}
    monkeypatch.setattr(claims, "verdicts", lambda: turned)
    with pytest.raises(InputError, match=r"line-557.3: fig2.p-over-k 'holds', so it supports, not refutes"):
        claims.rows()


def test_a_run_that_is_not_registered_is_refused() -> None:
    with pytest.raises(InputError, match=r"runs of line-1 .* must be registered in claims.toml, got 'fig2.nothing'"):
        claims._require_registered({"fig2.nothing": "line-1"})


def test_a_live_verdict_other_than_the_recorded_one_is_said() -> None:
    assert claims.otherwise(ClaimOutcome("fig2.p-over-k", "holds")) == "the recorded runs say: does not hold"
    assert claims.otherwise(ClaimOutcome("fig2.p-over-k", "does not hold")) == ""
    assert claims.otherwise(ClaimOutcome("fig2.p-over-k")) == ""
