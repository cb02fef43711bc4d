"""What is recorded, and how an outcome is computed a second time from its rows.

Nothing here calls the code that wrote ``claims.json``: ``images`` and ``others`` make the frames of each part and judge
the claims that are no lines; ``lines`` evaluates the lines of ``claims.toml`` over the frames.
"""

import json
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paper_repro.workflow.claims import PARTS, SCALE_NAMES, Claim, claim, limits
from tests.paper_repro.recomputed.lines import DEPENDS, FAILS, HOLDS, NAMED_BY, UNTESTED, Line

RESULTS = Path(__file__).parents[3] / "paper_repro" / "results"
ILL = "not decided: our baseline did not train"
UNKNOWN = "not decided: the authors' setting is not known"
COUNTS = ("wire", "table1", "plotted")
M, m = 100, 10
"""Clients, and those sampled a round, of every recorded run of the image figures at full scale."""
ALL = limits()

Numbers = dict[str, Any]
Found = tuple[Numbers, str]
Frames = Mapping[str, pd.DataFrame]
_FRAMES: dict[str, Callable[[pd.DataFrame], Frames]] = {}
_FUNCTIONS: dict[str, Callable[[pd.DataFrame, str], Found]] = {}


def frames_of(part: str) -> Callable[[Any], Any]:
    """Register a function that makes the frames of a part from its recorded rows; "" has the curves or runs."""

    def register(function: Any) -> Any:
        _FRAMES[part] = function
        return function

    return register


def recomputes(*ids: str) -> Callable[[Any], Any]:
    """Register a function (rows, id) -> (numbers, verdict) for claims that are no lines; an id may end in ``*``."""

    def register(function: Any) -> Any:
        _FUNCTIONS.update(dict.fromkeys(ids, function))
        return function

    return register


def known(name: str) -> bool:
    """Whether a claim is a line, or there is a function for it."""
    return bool(claim(name).line) or claim(name).id in _FUNCTIONS


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
        self.tables = {name: own.to_dict("records") for name, own in self.frames.items()}

    def found(self, name: str, of: Claim | None = None) -> Found:
        """(numbers, verdict) of a claim, or of another one in its place, by whatever scale its rows are."""
        own = of or claim(name)
        if own.line:
            tables = self.tables
            if own.id.endswith("*"):  # of a claim about several models the rows of one
                model = name.removeprefix(own.id[:-1])
                tables = {key: [row for row in of if row.get("model") == model] for key, of in tables.items()}
            line = Line(own.line, tables, thresholds(own.part), ALL.errors)
            numbers, verdict = line.told, line.verdict
        else:
            numbers, verdict = _FUNCTIONS[own.id](self.frame, name)
        if verdict in (FAILS, DEPENDS) and own.unknown:
            verdict = UNKNOWN
        return numbers, ILL if verdict in (HOLDS, FAILS, DEPENDS) and own.rests and self.is_ill(own) else verdict

    def is_ill(self, of: Claim) -> bool:
        """Whether a series that a claim rests on did not train, has too few evaluations, or lost a seed."""
        own = lines(self.frame).dropna(subset="round")
        named = own.assign(name=[", ".join(map(str, key)) for key in own[[k for k in NAMED_BY if k in own]].to_numpy()])
        rests = {name: run for name, run in named.groupby("name") if any(fnmatchcase(name, each) for each in of.rests)}
        series = {name: kept(run, "name") for name, run in rests.items()}
        last = min(run["round"].max() for run in series.values()) if of.together else np.inf
        few = any(run[run["round"] <= last]["round"].nunique() < ALL.common for run in series.values())
        lost = "diverged" not in of.rule and any(set(rests[name].seed) - set(run.seed) for name, run in series.items())
        learnt = all(trained(own) for run in series.values() for _, own in run.groupby("seed"))
        return lost or (few and len(series) > 1) or not learnt


def thresholds(part: str) -> dict[str, Any]:
    """Those of a part and of all parts by name, and those of every part by part.name."""
    dotted = {f"{each}.{name}": value for each in PARTS for name, value in vars(limits(each)).items()}
    return {**vars(ALL), **vars(limits(part)), **dotted}


@cache
def _part(part: str, scale: str) -> Part:
    return Part(part, rows(part, scale))


def recomputed(outcome: Mapping[str, Any], part: Part | None = None, of: Claim | None = None) -> Found:
    """(numbers, verdict) of an outcome, from its rows or from others, as its claim or as another one."""
    name, scale = outcome["id"], scale_of(outcome)
    numbers, verdict = (part or _part(name.partition(".")[0], scale)).found(name, of)
    if SCALE_NAMES.index(scale) < SCALE_NAMES.index(claim(name).scale):
        verdict = UNTESTED
    return numbers, verdict


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


def trained(run: pd.DataFrame) -> bool:
    """Whether a run learnt something, and its training loss does not end surely above its least, on a log scale."""
    losses = run.sort_values("round").train_loss.reset_index(drop=True)
    if run.get("diverged", pd.Series([False])).any() or not np.isfinite(losses).all() or len(losses) < ALL.common:
        return False
    w = max(5, len(losses) // 10)
    windows = np.log(losses).rolling(w)
    least, scatter = windows.mean().min(), float(windows.var().median()) ** 0.5
    for k in (3, w):
        gap = np.log(losses[-k:]).mean() - least
        if np.expm1(gap) > 0.1 and gap > 10 * scatter * (1 / k + 1 / w) ** 0.5:
            return False
    accuracy = run.sort_values("round").test_accuracy[-w:].mean()
    return bool(losses[-w:].mean() < 0.9 * np.log(10) or accuracy > 0.2)
