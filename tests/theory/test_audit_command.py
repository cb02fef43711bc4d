"""``decomfl audit``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from decomfl_lab.errors import InputError
from theory.audit.entry import Evidence
from theory.audit.registry import ENTRIES
from theory.commands import audit as module
from theory.commands.audit import audit

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only quick entries."""
    monkeypatch.setattr(module, "ENTRIES", [entry for entry in ENTRIES if entry.kind in ("algorithm line", "table")])


def _rows(capsys: Capture, **options: Any) -> list[dict[str, Any]]:
    audit(as_json=True, **options)
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


@pytest.mark.usefixtures("few")
def test_rows_have_what_readers_of_json_need(capsys: Capture) -> None:
    rows = _rows(capsys, finding=["typo"])
    assert rows
    for row in rows:
        assert {"label", "line", "kind", "finding", "instrument", "witness", "fix"} <= set(row)
        assert row["finding"] == "typo"
        assert row["confirmed"] is True
        assert row["witness"]


@pytest.mark.usefixtures("few")
def test_entries_are_chosen_by_finding_kind_label_and_line(capsys: Capture) -> None:
    assert {row["kind"] for row in _rows(capsys, kind=["table"])} == {"table"}
    assert [row["label"] for row in _rows(capsys, statement=["algorithm-1"])] == ["alg.cezo-fl"]
    assert [row["label"] for row in _rows(capsys, statement=["line-326"])] == ["line-326", "line-326.2"]
    both = _rows(capsys, finding=["false", "typo"], kind=["table"])
    assert {row["finding"] for row in both} == {"false", "typo"}


@pytest.mark.usefixtures("few")
def test_one_statement_is_told_in_full(capsys: Capture) -> None:
    audit(statement=["line-299"])
    told = capsys.readouterr().out
    for words in (
        "line-299 (line 299, algorithm line): typo",
        "N is nowhere defined",
        "name 'N' is not defined",
        "instead",
    ):
        assert words in told


@pytest.mark.usefixtures("few")
def test_the_table_counts_the_findings(capsys: Capture) -> None:
    audit(kind=["algorithm line"], finding=["typo"])
    told = capsys.readouterr().out
    typos = sum(entry.kind == "algorithm line" and entry.finding == "typo" for entry in ENTRIES)
    assert f"{typos} typo" in told
    assert f"{typos} of {typos} findings confirmed" in told


def test_a_finding_that_is_not_borne_out_fails(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    refuted = replace(ENTRIES[0], checks=(lambda: Evidence("search", False, "but it is [not] so"),))
    monkeypatch.setattr(module, "ENTRIES", [refuted])
    with pytest.raises(typer.Exit):
        audit()
    assert f"not confirmed: {refuted.label}" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(typer.Exit):
        audit(statement=[refuted.label])
    assert "AGAINST  search: but it is [not] so" in capsys.readouterr().out


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"statement": ["eq.none"]}, "--statement must be a label or line of the audit, got 'eq.none'"),
        ({"finding": ["wrong"]}, "--finding must be one of correct, "),
        ({"kind": ["proof"]}, "--kind must be one of equation, "),
        ({"paper": Path("none.tex")}, "paper must be a readable TeX file, got 'none.tex'"),
    ],
)
def test_what_is_not_known_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        audit(**options)


@pytest.mark.usefixtures("few")
def test_what_a_source_has_and_the_audit_lacks_is_told(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "other.tex"
    path.write_text("\\begin{document}\n$$ a $$\n\\end{document}\n")
    with pytest.raises(typer.Exit):
        audit(statement=["line-299"], paper=path)
    told = capsys.readouterr().err
    assert "is not the file that the entries were made for" in told
    assert "no entry for line 2: display" in told
    assert "stale entry line-299: line 299 has no algorithm line" in told


def test_the_command_can_be_built() -> None:
    app = typer.Typer()
    app.command()(audit)
    assert "--statement" in {name for option in typer.main.get_command(app).params for name in option.opts}
