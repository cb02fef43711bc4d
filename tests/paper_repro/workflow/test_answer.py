"""Ten lines that answer whether the paper is right: each has numbers, a verdict of the registry and a link."""

import re
from pathlib import Path

from paper_repro.workflow.verdicts.answer import LINES, answer
from paper_repro.workflow.verdicts.claim_table import PARTS
from tests.theory.findings.wording import typed
from theory.findings.registry import ENTRIES

DOCS = Path(__file__).parents[3] / "docs"
MADE = ("findings",)
"""Pages that make docs makes."""


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


def test_the_verdict_is_that_of_the_registry() -> None:
    status = {entry.label: entry.status for entry in ENTRIES}
    for raw, each in zip(LINES, answer(), strict=True):
        assert set(each.verdict.split("; ")) == {status[label] for label in raw["entries"]}


def test_no_number_is_typed() -> None:
    assert {raw["topic"]: typed(raw["says"]) for raw in LINES if typed(raw["says"])} == {}
    assert typed("⟦laws⟧ laws, of 16 clients, for K=4") == ["16", "=4"]


def test_numbers_of_runs_say_when_they_were_recorded() -> None:
    by_topic = {each.topic: each for each in answer()}
    assert by_topic["Communication"].recorded.startswith("recorded on ")
    assert not by_topic["Theorem 1"].recorded
