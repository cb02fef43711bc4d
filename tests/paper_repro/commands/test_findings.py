"""The page of findings is current, and shows what the registry and the recorded runs say."""

import re
from pathlib import Path

import pytest

from paper_repro.commands.findings import deciding, page
from paper_repro.workflow.verdicts import claim_table
from paper_repro.workflow.verdicts.answer import answer
from theory.findings.registry import CAUSES, ENTRIES

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def made() -> str:
    return page()


def test_it_begins_with_the_answer_and_has_3000_words_at_most(made: str) -> None:
    first = made.index("## The theory")
    assert all(0 < made.find(each.says) < first for each in answer())
    assert len(made.split()) <= 3000


def test_every_headline_is_on_it(made: str) -> None:
    assert all(cause.title in made for cause in CAUSES.values() if cause.headline)


def test_every_sentence_that_runs_decide_is_on_it_with_its_status(made: str) -> None:
    for entry in ENTRIES:
        if entry.runs and not entry.restates:
            start = " ".join(entry.quote.split()[:6]).rstrip(",;…")
            rows = [line for line in made.splitlines() if f"“{start}" in line]
            assert len(rows) == 1, entry.label
            assert f"**{entry.status}**" in rows[0], entry.label


def test_every_number_that_decides_is_told_and_every_pattern_names_one() -> None:
    for row in claim_table.rows():
        assert all(deciding({**row, "tells": [pattern]}) for pattern in row["tells"]), row["id"]
        assert deciding(row) or not row["measured"]


def test_every_footnote_is_there_once_and_so_are_its_pictures(made: str) -> None:
    marks, notes = set(re.findall(r"\[\^([\w-]+)\](?!:)", made)), re.findall(r"^\[\^([\w-]+)\]:", made, re.MULTILINE)
    assert marks == set(notes)
    assert len(notes) == len(set(notes))
    pictures = re.findall(r"\]\(([\w-]+\.png)\)", made)
    assert len(pictures) >= 4
    assert all((DOCS / name).is_file() for name in pictures)
