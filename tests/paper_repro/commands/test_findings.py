"""The page of findings is current, and shows what the audit and the recorded runs say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paper_repro.commands.findings import page

DOCS = Path(__file__).parents[3] / "docs"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@pytest.fixture(scope="module")
def made() -> str:
    return page()


def test_the_page_is_current(made: str) -> None:
    """Its words to the letter, its numbers up to what another machine rounds."""
    kept = (DOCS / "findings.md").read_text(encoding="utf-8")
    assert NUMBER.sub("#", made) == NUMBER.sub("#", kept), "run decomfl findings --write docs"
    numbers = [[float(each) for each in NUMBER.findall(text)] for text in (made, kept)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-3)


def test_pictures_that_it_names_are_there(made: str) -> None:
    pictures = re.findall(r"\]\(([\w-]+\.png)\)", made)
    assert len(pictures) >= 4
    assert all((DOCS / name).is_file() for name in pictures)
