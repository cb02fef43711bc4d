"""Ten lines that answer whether the paper is right: each has numbers, a verdict of the registry and a link."""

import re
from pathlib import Path
from typing import Any

import pytest

from decomfl_lab.errors import InputError
from paper_repro.workflow import answer as module
from paper_repro.workflow.answer import answer
from paper_repro.workflow.claims import PARTS
from tests.cases import rows_of
from tests.theory.findings.wording import typed
from theory.findings.registry import ENTRIES

DOCS = Path(__file__).parents[3] / "docs"
MADE = ("findings",)
"""Pages that make docs makes."""


def line(**changes: Any) -> dict[str, Any]:
    given = {"topic": "t", "entries": ["the.1"], "says": "1", "part": "theory", "link": "theory"}
    return given | {"again": "decomfl audit"} | changes


def test_there_are_ten_lines_of_a_sentence_each_with_a_number_and_a_link() -> None:
    lines = answer()
    assert len(lines) == 10
    for each in lines:
        assert re.search(r"\d", each.says), each.topic
        assert each.says.endswith(".")
        assert "⟦" not in each.says
        assert len(each.says) <= 270, each.topic
        assert each.part in PARTS, each.topic
        assert each.link in MADE or (DOCS / f"{each.link}.md").exists(), each.link


def test_the_verdict_is_that_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    status = {entry.label: entry.status for entry in ENTRIES}
    for raw, each in zip(module._LINES, answer(), strict=True):
        assert set(each.verdict.split("; ")) == {status[label] for label in raw["entries"]}
    monkeypatch.setattr(module, "_LINES", [line(entries=["line-134", "the.1"])])
    assert answer()[0].verdict == "false by proof; imprecise"


@pytest.mark.parametrize(("changes", "message"), rows_of(__file__)["marks"])
def test_a_mark_that_names_nothing_is_refused(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LINES", [line(**changes)])
    with pytest.raises(InputError, match=re.escape(message)):
        answer()


def test_no_number_is_typed() -> None:
    assert {raw["topic"]: typed(raw["says"]) for raw in module._LINES if typed(raw["says"])} == {}
    assert typed("⟦laws⟧ laws, of 16 clients, for K=4") == ["16", "=4"]


def test_numbers_of_runs_say_when_they_were_recorded() -> None:
    by_topic = {each.topic: each for each in answer()}
    assert by_topic["Communication"].recorded.startswith("recorded on ")
    assert not by_topic["Theorem 1"].recorded
