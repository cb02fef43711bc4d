"""The page of findings is current, and shows what the audit and the recorded runs say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paper_repro.commands.findings import page
from paper_repro.workflow import claims
from theory.findings.registry import CAUSES

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def made() -> str:
    return page()


def test_every_headline_and_every_claim_is_on_it(made: str) -> None:
    assert all(cause.title in made for cause in CAUSES.values() if cause.headline)
    told = [row["says"].strip("“”") for row in claims.rows() if row["part"] != "audit"]
    assert [each for each in told if each.replace("_", "\\_") not in made and each not in made] == []


def test_pictures_that_it_names_are_there(made: str) -> None:
    pictures = re.findall(r"\]\(([\w-]+\.png)\)", made)
    assert len(pictures) >= 4
    assert all((DOCS / name).is_file() for name in pictures)
