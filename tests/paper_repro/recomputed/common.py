"""What is recorded, and how an outcome is computed a second time from its rows.

``images`` and ``others`` make the frames of each part by code of their own, and judge the claims that are no lines. The
lines of ``claims.toml`` are evaluated over these frames, and what is recorded is the known answer.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from paper_repro.workflow.verdicts.claim_table import VERDICTS, claim, limits
from paper_repro.workflow.verdicts.claim_verdicts import evaluated

RESULTS = Path(__file__).parents[3] / "paper_repro" / "results"
HOLDS, FAILS, _, UNTESTED, ILL, UNKNOWN = VERDICTS
COUNTS = ("wire", "table1", "plotted")
M, m = 100, 10
"""Clients, and those sampled a round, of every recorded run of the image figures at full scale."""
ALL = limits()

Found = tuple[dict[str, Any], str]
Frames = Mapping[str, pd.DataFrame]
_FRAMES: dict[str, Callable[[pd.DataFrame], Frames]] = {}
JUDGES: dict[str, Callable[[pd.DataFrame, str], Found]] = {}
"""By the id of a claim that is no line, a function of rows and id that judges it."""


def frames_of(part: str) -> Callable[[Any], Any]:
    """Register a function that makes the frames of a part from its recorded rows; "" has the curves or runs."""

    def register(function: Any) -> Any:
        _FRAMES[part] = function
        return function

    return register


def rows(part: str, scale: str) -> pd.DataFrame:
    """The recorded rows of a part at a scale, which a test may change."""
    return _read(part, scale).copy()


@cache
def _read(part: str, scale: str) -> pd.DataFrame:
    frame = pd.read_csv(RESULTS / f"{part}-{scale}.csv.gz")
    nested = json.loads((RESULTS / f"{part}-{scale}.json").read_text(encoding="utf-8"))["json"]
    return frame.assign(**{name: frame[name].map(json.loads) for name in nested})


def outcomes() -> list[dict[str, Any]]:
    """What is recorded of every claim."""
    return json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))


def scale_of(outcome: Mapping[str, Any]) -> str:
    """The scale of the rows that an outcome is made of."""
    found = re.search(r"at (\w+) scale", outcome["recorded"])
    assert found is not None, outcome["recorded"]
    return found[1]


class Part:
    """The rows of a part, with their frames, and the outcomes of its claims."""

    def __init__(self, part: str, frame: pd.DataFrame) -> None:
        self.frame = frame
        self.frames = _FRAMES[part](frame) if part in _FRAMES else {}

    def found(self, name: str) -> Found:
        """(numbers, verdict) of a claim, by whatever scale and health its rows are."""
        own, frames = claim(name), self.frames
        if not own.line:
            return JUDGES[own.id](self.frame, name)
        if own.id.endswith("*"):  # of a claim about several models the rows of one
            of = own.line["of"]
            frames = {of: having(frames[of], {"model": name.removeprefix(own.id[:-1])})}
        outcome = evaluated(replace(own, id=name), frames)
        return dict(outcome.measured), outcome.verdict


@cache
def recorded(part: str, scale: str) -> Part:
    """The recorded rows of a part with their frames, which tests do not change."""
    return Part(part, rows(part, scale))


def part_of(outcome: Mapping[str, Any]) -> Part:
    """The part that an outcome is of, from its recorded rows."""
    return recorded(outcome["id"].partition(".")[0], scale_of(outcome))


def otherwise(outcome: Mapping[str, Any], part: Part | None = None) -> list[str]:
    """What of an outcome does not follow from its rows, or from others: names of numbers, and the verdict.

    Whether its runs are healthy, its setting known and its scale large enough, is judged with the part made again.
    """
    numbers, verdict = (part or part_of(outcome)).found(outcome["id"])
    known = verdict == outcome["verdict"] or outcome["verdict"] in (UNTESTED, ILL, UNKNOWN)
    return differing(outcome, numbers) + ["verdict"] * (not known)


def differing(outcome: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The names of the numbers that are not the same; a count of none may be left out."""
    there = {name: value for name, value in found.items() if value is not None and value == value}
    told = {name: value for name, value in outcome["measured"].items() if value is not None}
    wrong = {name for name in there.keys() ^ told.keys() if {**there, **told}[name] != 0}
    return sorted(
        wrong | {name for name in there.keys() & told.keys() if there[name] != pytest.approx(told[name], 1e-9)}
    )


def binomial(accuracy: float, n: float) -> float:
    """The standard error of an accuracy on n examples, by the rule of one success and one failure more."""
    a = (n * accuracy + 1) / (n + 2)
    return float((a * (1 - a) / n) ** 0.5)


def to_reach(frame: pd.DataFrame, level: float, column: str) -> float | None:
    """What has been spent when the mean accuracy first reaches a level."""
    reached = mean_accuracy(frame)
    reached = reached[reached >= level]
    return None if reached.empty else float(frame.loc[frame["round"] == reached.index[0], column].mean())


def mean_accuracy(frame: pd.DataFrame) -> pd.Series:
    """The accuracy over seeds, by round."""
    return frame.pivot_table(index="round", values="test_accuracy", aggfunc="mean").test_accuracy


# --- runs -------------------------------------------------------------------------------------------------------------


def having(frame: pd.DataFrame, values: Mapping[str, Any]) -> pd.DataFrame:
    """The rows with these values, by column."""
    for name, value in values.items():
        frame = frame[frame[name] == value]
    return frame


def lines(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that do not merely check others."""
    return frame[frame.check.astype(str) != "True"] if "check" in frame else frame


def kept(frame: pd.DataFrame, *by: str) -> pd.DataFrame:
    """The finished seeds of each series that did not diverge; all rows of a series that has none."""
    if "finished" not in frame:
        return frame
    whole = frame[frame.finished.astype(bool) & ~frame.diverged.astype(bool)]
    names = whole[list(by)].drop_duplicates()
    others = frame.merge(names, on=list(by), how="left", indicator=True)
    return pd.concat([whole, others[others._merge == "left_only"].drop(columns="_merge")])
