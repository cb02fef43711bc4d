"""``decomfl audit``."""

import json
from dataclasses import replace
from typing import Any
from unittest import mock

import click
import pytest

from tests.cases import refuses, rows_of
from theory.commands.audit import AuditOptions, audit
from theory.findings import registry
from theory.findings.finding import AS_MEANT, FALSE, Evidence, EvidenceCheck
from theory.findings.registry import CAUSES, ENTRIES

Capture = pytest.CaptureFixture[str]


def _rows(capsys: Capture, **options: Any) -> list[dict[str, Any]]:
    audit.run(AuditOptions(as_json=True, **options))
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


@pytest.mark.thorough
def test_the_findings_that_matter_fit_one_screen(capsys: Capture) -> None:
    audit.run(AuditOptions())
    told = capsys.readouterr().out
    assert len(told.splitlines()) <= 60
    assert max(map(len, told.splitlines()[:-1])) <= 120
    assert all(f" {cause.name}: " in told for cause in CAUSES.values() if cause.headline)
    assert "0.0879078 > 0.013304" in told  # the witness of the first


def test_rows_have_what_readers_of_json_need(capsys: Capture) -> None:
    rows = _rows(capsys, status=[AS_MEANT], kind=["algorithm line"])
    assert rows
    for row in rows:
        assert {"label", "place", "line", "kind", "status", "cause", "instead", "evidence"} <= set(row)
        assert (row["status"], row["confirmed"]) == (AS_MEANT, True)
        assert row["cause"]


def test_entries_are_chosen_by_status_kind_label_line_and_cause(capsys: Capture) -> None:
    assert {row["kind"] for row in _rows(capsys, kind=["table"])} == {"table"}
    assert [row["label"] for row in _rows(capsys, statement=["algorithm-1"])] == ["alg.cezo-fl"]
    assert [row["label"] for row in _rows(capsys, statement=["line-326"])] == ["line-326", "line-326.2"]
    assert {row["status"] for row in _rows(capsys, status=[*FALSE, AS_MEANT], kind=["table"])} == {
        *FALSE,
        AS_MEANT,
    }
    assert {row["label"] for row in _rows(capsys, cause=["lora-costs"])} == {"line-920.2"}


def test_one_statement_is_told_in_full(capsys: Capture) -> None:
    audit.run(AuditOptions(statement=("line-299",)))
    told = capsys.readouterr().out
    for words in ("line-299 (Algorithm 1", f"algorithm line): {AS_MEANT}", "N is nowhere defined", "instead"):
        assert words in told
    assert "name 'N' is not defined" in told


def test_evidence_that_fails_is_told_and_the_command_fails(capsys: Capture) -> None:
    wrong = EvidenceCheck("wrong", lambda: Evidence("search", False, "but it is [not] so"))
    failing = replace(ENTRIES[0], evidence={"supports": (wrong,)})
    with mock.patch.object(registry, "ENTRIES", [failing]), pytest.raises(click.exceptions.Exit):
        audit.run(AuditOptions(statement=(failing.label,)))
    told = capsys.readouterr().out
    assert "FAILS     search: but it is [not] so" in told
    assert f"evidence fails for {failing.label}" in told


@refuses(*rows_of(__file__)["refused"])
def test_what_is_not_known_is_refused(options: dict[str, Any]) -> None:
    audit.run(AuditOptions(**options))
