"""What the recomputations share: rows as pandas reads them, means over seeds, and the verdicts that rules word.

Nothing here calls the code that wrote ``claims.json``: the same numbers are computed a second time, from the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paper_repro.workflow.claims import SCALE_NAMES, claim, limits

RESULTS = Path(__file__).parents[3] / "paper_repro" / "results"
HOLDS, FAILS, DEPENDS, UNTESTED = "holds", "does not hold", "depends on how it is counted", "not tested at this scale"
ILL = "not decided: our baseline did not train"
UNKNOWN = "not decided: the authors' setting is not known"
LEVELS = (0.97, 0.95, 0.90, 0.85, 0.80, 0.75, 0.70, 0.65, 0.60, 0.55, 0.50, 0.40, 0.30, 0.20)
COUNTS = ("wire", "table1", "plotted")
M, m = 100, 10
"""Clients, and those sampled a round, of every recorded run of the image figures at full scale."""
ALL = limits()

Numbers = dict[str, Any]
Found = tuple[Numbers, str]
_KNOWN: dict[str, Callable[[pd.DataFrame, str], Found]] = {}


def recomputes(*ids: str) -> Callable[[Any], Any]:
    """Register a function (rows, id) -> (numbers, verdict) for claims; an id may end in ``*``."""

    def register(function: Any) -> Any:
        _KNOWN.update(dict.fromkeys(ids, function))
        return function

    return register


def known(name: str) -> Callable[[pd.DataFrame, str], Found] | None:
    """The function for a claim, None if there is none."""
    star = f"{name.partition('.')[0]}.*"
    trained = "theory.trained-*" if name.startswith("theory.trained-") else star
    return _KNOWN.get(name) or _KNOWN.get(trained)


@cache
def rows(part: str, scale: str) -> pd.DataFrame:
    """The recorded rows of a part at a scale."""
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


def recomputed(outcome: Mapping[str, Any], frame: pd.DataFrame | None = None) -> Found:
    """(numbers, verdict) of an outcome, from its rows or from those given."""
    name, scale = outcome["id"], scale_of(outcome)
    function = known(name)
    assert function is not None, f"{name} is recomputed by nothing"
    own = rows(name.partition(".")[0], scale) if frame is None else frame
    numbers, verdict = _found(name, scale) if frame is None else function(own, name)
    if SCALE_NAMES.index(scale) < SCALE_NAMES.index(claim(name).scale):
        verdict = UNTESTED
    if verdict in (FAILS, DEPENDS) and claim(name).unknown:
        verdict = UNKNOWN
    if verdict in (HOLDS, FAILS, DEPENDS) and seeds_are_missing(own, name):
        verdict = ILL
    return numbers, verdict


@cache
def _found(name: str, scale: str) -> Found:
    function = known(name)
    assert function is not None
    return function(rows(name.partition(".")[0], scale), name)


def seeds_are_missing(frame: pd.DataFrame, name: str) -> bool:
    """Whether a series that a claim rests on has seeds that diverged beside others, of which its rule says nothing."""
    if not claim(name).rests or "diverged" in claim(name).rule:
        return False
    own = lines(frame)
    keys = [key for key in ("reading", "panel", "series") if key in own]
    apart = own.groupby([*keys, "seed"], dropna=False).diverged.any().groupby(level=keys, dropna=False)
    mixed = apart.any() & ~apart.all()
    names = [", ".join(map(str, key)) if len(keys) > 1 else str(key) for key in mixed.index[mixed]]
    return any(fnmatchcase(each, pattern) for each in names for pattern in claim(name).rests)


# --- means and errors -------------------------------------------------------------------------------------------------


def lines(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that do not merely check others."""
    return frame[frame.check.astype(str) != "True"] if "check" in frame else frame


def kept(frame: pd.DataFrame, *by: str) -> pd.DataFrame:
    """The finished seeds of each series that did not diverge; all rows of a series that has none."""
    whole = frame[frame.finished.astype(bool) & ~frame.diverged.astype(bool)]
    names = whole[list(by)].drop_duplicates()
    others = frame.merge(names, on=list(by), how="left", indicator=True)
    return pd.concat([whole, others[others._merge == "left_only"].drop(columns="_merge")])


def series(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    return frame[frame.series == name]


def binomial(accuracy: float, n: float) -> float:
    """The standard error of an accuracy on n examples, by the rule of one success and one failure more."""
    a = (n * accuracy + 1) / (n + 2)
    return float((a * (1 - a) / n) ** 0.5)


def mean_and_error(values: Sequence[float], examples: float) -> tuple[float, float]:
    """Mean and standard error over seeds; of one seed that of the test images."""
    if len(values) == 1:
        return float(values[0]), binomial(float(values[0]), examples)
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)


def accuracy_at(frame: pd.DataFrame, r: float) -> tuple[float, float]:
    """Mean and error of the accuracy at a round, by straight lines between evaluations."""
    runs = [run.sort_values("round") for _, run in frame.groupby("seed")]
    return mean_and_error([float(np.interp(r, run["round"], run.test_accuracy)) for run in runs], frame.examples.min())


def final_accuracy(frame: pd.DataFrame) -> tuple[float, float]:
    """The same of the mean of the last tenth of the evaluations."""
    runs = [run.sort_values("round").test_accuracy.to_numpy() for _, run in frame.groupby("seed")]
    ends = [float(run[-max(1, len(run) // 10) :].mean()) for run in runs]
    return mean_and_error(ends, frame.examples.min() if "examples" in frame else 1000)


def mean_accuracy(frame: pd.DataFrame) -> pd.Series:
    """The accuracy over seeds, by round."""
    return frame.pivot_table(index="round", values="test_accuracy", aggfunc="mean").test_accuracy


def to_reach(frame: pd.DataFrame, level: float, column: str) -> float | None:
    """What has been spent when the mean accuracy first reaches a level."""
    reached = mean_accuracy(frame)
    reached = reached[reached >= level]
    if reached.empty:
        return None
    r = reached.index[0]
    return float(r) if column == "round" else float(frame.loc[frame["round"] == r, column].mean())


def reached_by_all(frames: Sequence[pd.DataFrame]) -> float | None:
    """The highest of the levels that every mean accuracy reaches."""
    best = min(mean_accuracy(frame).max() for frame in frames)
    return next((level for level in LEVELS if level <= best), None)


def last_common(frames: Sequence[pd.DataFrame]) -> int:
    return min(int(frame["round"].max()) for frame in frames)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def decided(holds: bool, tested: bool = True) -> str:
    return (HOLDS if holds else FAILS) if tested else UNTESTED


def by_countings(holds: Sequence[bool]) -> str:
    return HOLDS if all(holds) else DEPENDS if any(holds) else FAILS


def rising(values: Sequence[tuple[float, float]]) -> str:
    """Whether each is above the one before by more than two standard errors, or one is so far below."""
    steps = [(high - low, ALL.errors * float(np.hypot(one, other))) for (low, one), (high, other) in pairwise(values)]
    if any(step < -margin for step, margin in steps):
        return FAILS
    return HOLDS if all(step > margin for step, margin in steps) else UNTESTED


# --- health -----------------------------------------------------------------------------------------------------------


def trained(run: pd.DataFrame) -> bool:
    """Whether a run learnt something, and its training loss does not end surely above its least, on a log scale."""
    losses = run.sort_values("round").train_loss.reset_index(drop=True)
    if run.diverged.any() or not np.isfinite(losses).all() or len(losses) < ALL.common:
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


def all_trained(frame: pd.DataFrame) -> bool:
    return all(trained(run) for _, run in frame.groupby(["series", "seed"]))
