"""Each outcome in ``claims.json`` is that of its part made again from the recorded rows, word by word."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from paper_repro.contents import PARTS
from paper_repro.report_folder import finished
from paper_repro.workflow import recordings
from paper_repro.workflow.claims import outcomes_json
from paper_repro.workflow.options import READINGS
from paper_repro.workflow.part import Options
from paper_repro.workflow.scales import SCALES
from tests.paper_repro.recomputed.common import RESULTS, rows, scale_of
from tests.paper_repro.test_recomputed import OUTCOMES, _marks, differing
from theory.findings.registry import ENTRIES

# --- the audit --------------------------------------------------------------------------------------------------------

WORDS = ["label", "place", "line", "kind", "quote", "says", "tests", "status", "carries", "restates", "why", "instead"]


def otherwise(audit: pd.DataFrame) -> list[tuple[str, str]]:
    """(label, column) where a recorded row of the audit does not have the words of its entry in the registry."""
    own = pd.DataFrame([{name: getattr(entry, name) for name in WORDS} for entry in ENTRIES]).fillna("").astype(str)
    there = audit[WORDS].fillna("").astype(str)
    assert there.label.tolist() == own.label.tolist()
    changed = (own != there).stack()
    return [(own.label[i], str(name)) for i, name in changed[changed].index]


def test_the_recorded_audit_has_the_words_of_the_registry() -> None:
    assert otherwise(rows("audit", "default")) == []


def test_a_word_that_was_changed_after_the_recording_is_noticed() -> None:
    audit = rows("audit", "default")
    audit.loc[audit.label == "line-964", "why"] += " So it is."
    assert otherwise(audit) == [("line-964", "why")]


# --- whole ------------------------------------------------------------------------------------------------------------


def made(part: str) -> list[dict[str, Any]]:
    """The outcomes of a part that is made of its recorded rows, as ``decomfl paper`` does."""
    kept = recordings.largest(part)
    if kept is None:
        return []
    logs = os.environ.get("DECOMFL_REFERENCE")
    authors = Path(logs) if logs else None
    asked = Options(scale=SCALES[kept.scale], readings=READINGS, count="wire", authors=authors)
    other = recordings.load(part, "default" if kept.scale == "full" else "full")
    asked = asked if kept.scale == "full" else replace(asked, longer=other)
    return json.loads(outcomes_json(finished(part, kept, asked, other).claims))


@pytest.mark.parametrize("part", PARTS)
def test_every_outcome_is_that_of_the_part_made_again(part: str) -> None:
    """But for those that need the authors' whole curves, where these are not at hand."""
    again = {each["id"]: each for each in made(part)}
    own = {name: outcome for name, outcome in OUTCOMES.items() if name.startswith(f"{part}.") and not _marks(name)}
    assert again.keys() >= own.keys()
    for name, found in again.items():
        same = (OUTCOMES[name]["recorded"], OUTCOMES[name]["verdict"], [])
        assert (found["scale"], found["verdict"], differing(OUTCOMES[name], found["measured"])) == same, name


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_data_of_an_outcome_are_those_of_its_runs_each_once(name: str) -> None:
    beside = RESULTS / f"{name.partition('.')[0]}-{scale_of(OUTCOMES[name])}.json"
    facts = json.loads(beside.read_text(encoding="utf-8"))["provenance"]
    assert OUTCOMES[name]["data"] == "; ".join(dict.fromkeys(own["data"] for own in facts if "data" in own))
