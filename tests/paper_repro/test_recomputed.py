"""Every outcome in ``claims.json`` is computed a second time by other code, and is that of its part, word by word."""

import json
import os
from collections.abc import Callable, Mapping
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
from tests.paper_repro.recomputed import images, others  # noqa: F401 (they register)
from tests.paper_repro.recomputed.common import RESULTS, Part, having, known, outcomes, recomputed, rows, scale_of
from theory.findings.registry import ENTRIES

OUTCOMES = {outcome["id"]: outcome for outcome in outcomes()}
_BY_LOGS = ("settings", "band", "band-of-the-text")


def _marks(name: str) -> list[pytest.MarkDecorator]:
    needs = (name.endswith("-in-the-logs") or name.partition(".")[2] in _BY_LOGS) and not os.environ.get(
        "DECOMFL_REFERENCE"
    )
    return [pytest.mark.skip("needs the authors' curves (DECOMFL_REFERENCE)")] if needs else []


def differing(outcome: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The names of the numbers that are not the same; a count of none may be left out."""
    there = {name: value for name, value in found.items() if value is not None and value == value}
    told = {name: value for name, value in outcome["measured"].items() if value is not None}
    wrong = {name for name in there.keys() ^ told.keys() if {**there, **told}[name] != 0}
    return sorted(
        wrong | {name for name in there.keys() & told.keys() if there[name] != pytest.approx(told[name], 1e-9)}
    )


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in OUTCOMES])
def test_every_number_and_verdict_follows_from_the_recorded_rows(name: str) -> None:
    numbers, verdict = recomputed(OUTCOMES[name])
    assert differing(OUTCOMES[name], numbers) == []
    assert verdict == OUTCOMES[name]["verdict"]


def test_nothing_that_is_recorded_is_left_out() -> None:
    assert [name for name in OUTCOMES if not known(name)] == []


# --- planted ----------------------------------------------------------------------------------------------------------


def caught(part: str, plant: Callable[[pd.DataFrame], pd.DataFrame]) -> set[str]:
    """The recorded outcomes of a part that no longer follow from its rows after a fault is planted in these."""
    found = set()
    spoilt = Part(part, plant(rows(part, "full")))
    for name, outcome in OUTCOMES.items():
        if name.startswith(f"{part}.") and not _marks(name) and scale_of(outcome) == "full":
            numbers, verdict = recomputed(outcome, spoilt)
            if differing(outcome, numbers) or verdict != outcome["verdict"]:
                found.add(name)
    return found


def raised(frame: pd.DataFrame, series: str) -> pd.DataFrame:
    """Two per cent on the last accuracy of a series."""
    own = (frame.series == series) & (frame["round"] == frame.loc[frame.series == series, "round"].max())
    return frame.assign(test_accuracy=frame.test_accuracy * (1 + 0.02 * own))


def swapped(frame: pd.DataFrame, series: str) -> pd.DataFrame:
    """The labels of FedAvg and of a series, one for the other."""
    return frame.assign(series=frame.series.replace({"FedAvg": series, series: "FedAvg"}))


PLANTED: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame], set[str]]] = {
    "FedAvg better in Figure 2": ("fig2", lambda t: raised(t, "FedAvg K=10"), set()),
    "FedAvg better in Figure 3": ("fig3", lambda t: raised(t, "FedAvg"), set()),
    "FedAvg better beside top-k": ("topk", lambda t: raised(t, "FedAvg"), set()),
    "FedCom as FedAvg": ("fig3", lambda t: swapped(t, "FedCom 8 bit"), set()),
    "top-k as FedAvg": ("topk", lambda t: swapped(t, "FedAvg+Top-k 1 %"), set()),
    "a seed that is dropped": (
        "fig2",
        lambda t: t[(t.series != "DeComFL K=10 P=20") | (t.seed != 2)],
        {"fig2.saving", "fig2.local-updates", "fig2.p-over-k"},
    ),
    "rows of another scale": (
        "fig3",
        lambda t: pd.concat([t[t.series != "FedAvg"], having(rows("fig3", "default"), {"series": "FedAvg"})]),
        {f"fig3.{each}" for each in ("twenty-times", "saving", "slower", "not-by-d")},
    ),
    "half of the bytes": (
        "fig2",
        lambda t: t.assign(wire_scalars=t.wire_scalars / 2),
        {"fig2.saving", "fig2.slow-start"},
    ),
    "nothing diverged": ("fig2", lambda t: t.assign(diverged=False), {"fig2.local-updates"}),
}
"""A part, what is done to its rows, and outcomes that do not follow from them then, at least one."""


@pytest.mark.parametrize("name", PLANTED)
def test_rows_that_were_changed_are_noticed(name: str) -> None:
    part, plant, expected = PLANTED[name]
    found = caught(part, plant)
    assert found
    assert expected <= found


@pytest.mark.parametrize("name", [name for name in OUTCOMES if not _marks(name) and OUTCOMES[name]["measured"]])
def test_a_number_that_is_changed_is_noticed(name: str) -> None:
    found = recomputed(OUTCOMES[name])[0]
    for key, value in OUTCOMES[name]["measured"].items():
        planted = {**OUTCOMES[name], "measured": {**OUTCOMES[name]["measured"], key: 1.02 * (value or 0) + 1e-3}}
        assert differing(planted, found) == [key]


# --- the audit --------------------------------------------------------------------------------------------------------

WORDS = ["label", "place", "line", "kind", "quote", "says", "tests", "status", "carries", "restates", "why", "instead"]


def otherwise(audit: pd.DataFrame) -> list[tuple[str, str]]:
    """(label, column) where a recorded row of the audit does not have the words of its entry in the registry."""
    own = pd.DataFrame([{name: getattr(entry, name) for name in WORDS} for entry in ENTRIES]).fillna("").astype(str)
    there = audit[WORDS].fillna("").astype(str)
    assert there.label.tolist() == own.label.tolist()
    changed = (own != there).stack()
    return [(own.label[i], str(name)) for i, name in changed[changed].index]


def test_the_recorded_audit_has_the_words_of_the_registry_and_one_that_was_changed_is_noticed() -> None:
    audit = rows("audit", "default")
    assert otherwise(audit) == []
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
