"""Every outcome in ``claims.json`` is computed a second time by other code, and is that of its part, word by word."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from paper_repro.report_folder import finished
from paper_repro.workflow import recordings
from paper_repro.workflow.options import READINGS
from paper_repro.workflow.part import Options
from paper_repro.workflow.scales import SCALES
from paper_repro.workflow.verdicts.claim_table import outcomes_json
from tests.paper_repro.recomputed import images, others  # noqa: F401 (they register)
from tests.paper_repro.recomputed.common import RESULTS, differing, otherwise, outcomes, rows, scale_of
from theory.findings.registry import ENTRIES

OUTCOMES = {outcome["id"]: outcome for outcome in outcomes()}
_BY_LOGS = ("settings", "band", "band-of-the-text")


def _marks(name: str) -> list[pytest.MarkDecorator]:
    needs = (name.endswith("-in-the-logs") or name.partition(".")[2] in _BY_LOGS) and not os.environ.get(
        "DECOMFL_REFERENCE"
    )
    return [pytest.mark.skip("needs the authors' curves (DECOMFL_REFERENCE)")] if needs else []


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in OUTCOMES])
def test_every_number_and_verdict_follows_from_the_recorded_rows(name: str) -> None:
    assert otherwise(OUTCOMES[name]) == []


# --- the audit --------------------------------------------------------------------------------------------------------

WORDS = ["label", "place", "line", "kind", "quote", "says", "tests", "status", "carries", "restates", "why", "instead"]


def test_the_recorded_audit_has_the_words_of_the_registry() -> None:
    audit = rows("audit", "default")[WORDS].fillna("").astype(str)
    own = pd.DataFrame([{name: getattr(entry, name) for name in WORDS} for entry in ENTRIES]).fillna("").astype(str)
    pd.testing.assert_frame_equal(audit, own)


# --- whole ------------------------------------------------------------------------------------------------------------


def made(part: str) -> list[dict[str, Any]]:
    """The outcomes of a part that is made of its recorded rows, as ``decomfl paper`` does."""
    kept = recordings.largest(part)
    assert kept is not None
    logs = os.environ.get("DECOMFL_REFERENCE")
    authors = Path(logs) if logs else None
    asked = Options(scale=SCALES[kept.scale], readings=READINGS, count="wire", authors=authors)
    other = recordings.load(part, "default" if kept.scale == "full" else "full")
    asked = asked if kept.scale == "full" else replace(asked, longer=other)
    return json.loads(outcomes_json(finished(part, kept, asked, other).claims))


@pytest.mark.parametrize("part", dict.fromkeys(name.partition(".")[0] for name in OUTCOMES))
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
