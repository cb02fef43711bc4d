"""Where each outcome in ``claims.json`` says it is from, and of which data, follows from the rows and their facts.

Once by code of its own, from the file beside the rows and from the rows; once whole, from the parts made again, which
have to give the recorded numbers and verdicts, too.
"""

import json
import os
import re
from collections.abc import Mapping
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
from tests.paper_repro.recomputed.common import RESULTS, lines, outcomes, rows, scale_of, trained
from tests.paper_repro.test_recomputed import differing
from tests.tables import rows_of
from theory.findings.registry import ENTRIES

OUTCOMES = {outcome["id"]: outcome for outcome in outcomes()}
LOGS = pytest.mark.skipif(not os.environ.get("DECOMFL_REFERENCE"), reason="needs DECOMFL_REFERENCE")
APART = re.compile(r"diverged, and not in the means: (.*?)(?=; not decided|\.; |\.$|\. [A-Z]|$)", re.IGNORECASE)


def beside(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The file beside the rows of an outcome."""
    name = f"{outcome['id'].partition('.')[0]}-{scale_of(outcome)}.json"
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def head(outcome: Mapping[str, Any]) -> str:
    """Date, scale, code, and how many runs are finished where some are not."""
    facts = beside(outcome)
    some = "" if facts["finished"] == facts["of"] else f", so far {facts['finished']} of {facts['of']} runs finished"
    return f"recorded on {facts['date']} at {scale_of(outcome)} scale by code {facts['code']}{some}; "


def data(outcome: Mapping[str, Any]) -> str:
    """The data of all runs, each once."""
    return "; ".join(dict.fromkeys(own["data"] for own in beside(outcome)["provenance"] if "data" in own))


def apart(outcome: Mapping[str, Any]) -> set[tuple[str, int, int]]:
    """(series, seed, last round) of the runs of Figures 2 and 3 that diverged beside others which did not."""
    frame = lines(rows(outcome["id"].partition(".")[0], scale_of(outcome)))
    found = set()
    for name, own in frame.groupby([key for key in ("reading", "panel", "series") if key in frame]):
        ends = own.groupby("seed").agg(diverged=("diverged", "any"), last=("round", "max"))
        if not ends.diverged.all():
            found |= {(name[-1], int(seed), int(end["last"])) for seed, end in ends[ends.diverged].iterrows()}
    return found


def wrong(outcome: Mapping[str, Any]) -> list[str]:
    """What an outcome says of its rows that these do not, or leaves out."""
    told = [] if outcome["recorded"].startswith(head(outcome)) else ["date, scale, code or runs"]
    told += [] if outcome["data"] == data(outcome) else ["data"]
    if outcome["id"] in DIVERGED:
        words = APART.search(outcome["recorded"])
        named = re.findall(r"([^,;:]+), \w+, seed (\d+), after round ([\d,]+)", words[1] if words else "")
        said = {(name.strip(), int(seed), int(r.replace(",", ""))) for name, seed, r in named}
        told += [] if said == apart(outcome) else ["seeds that diverged"]
    for name, seed in re.findall(r"(?:because|;) ([^;,]+), seed (\d+): its training loss", outcome["recorded"]):
        frame = lines(rows(outcome["id"].partition(".")[0], scale_of(outcome)))
        own = frame[(frame.series == name) & (frame.seed == int(seed))]
        told += ["a run that did not train, though it did"] * bool(own.empty or trained(own))
    return told


DIVERGED = {name for name in OUTCOMES if re.fullmatch(r"fig[23]\.(?!band).*(?<!-in-the-logs)", name)}
"""Outcomes that name the seeds which diverged."""


@pytest.mark.parametrize("name", OUTCOMES)
def test_what_is_said_of_the_rows_is_in_them_or_beside_them(name: str) -> None:
    assert wrong(OUTCOMES[name]) == []


@pytest.mark.parametrize(("name", "field", "pattern", "new", "found"), rows_of(__file__)["planted"])
def test_planted_words_are_noticed(name: str, field: str, pattern: str, new: str, found: str) -> None:
    planted = {**OUTCOMES[name], field: re.sub(pattern, new, OUTCOMES[name][field])}
    assert planted != OUTCOMES[name]
    assert any(found in told for told in wrong(planted))


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
    asked = Options(
        scale=SCALES[kept.scale],
        readings=READINGS,
        count="wire",
        authors=Path(os.environ["DECOMFL_REFERENCE"]),
    )
    other = recordings.load(part, "default" if kept.scale == "full" else "full")
    asked = asked if kept.scale == "full" else replace(asked, longer=other)
    return json.loads(outcomes_json(finished(part, kept, asked, other).claims))


@LOGS
@pytest.mark.parametrize("part", PARTS)
def test_every_outcome_is_that_of_the_part_made_again(part: str) -> None:
    again = {each["id"]: each for each in made(part)}
    own = {name: outcome for name, outcome in OUTCOMES.items() if name.startswith(f"{part}.")}
    assert again.keys() == own.keys()
    for name, outcome in own.items():
        found = again[name]
        same = (outcome["recorded"], outcome["verdict"], [])
        assert (found["scale"], found["verdict"], differing(outcome, found["measured"])) == same, name
