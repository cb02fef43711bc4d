"""Whether the runs that a verdict rests on have trained: where one has not, nothing is decided by it.

A run is ill if it diverged, if its training loss ends above its least, or if the norm of its parameters grows without
slowing down. A series is ill if a run of it is, or if it has too few evaluations for a comparison. Runs that diverged
beside others of their series may be left out of a mean only where the claim's rule says what becomes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

import numpy as np
import pandas as pd

from paper_repro.workflow.claims import UNHEALTHY, VERDICTS, ClaimOutcome, claim, limits
from paper_repro.workflow.measures import CHECKED, left_out, settled

__all__ = ["COMMON", "EXEMPT", "RESTS", "Rests", "complaint", "decided_by_health", "ill_runs", "ill_words", "rise"]

COMMON: Final[int] = limits().common
"""The least number of evaluations of each of two series that are compared."""
RISE: Final = 0.1
"""The share of its least value by which a training loss may end above it ..."""
SURE: Final = 3.0
"""... unless that rise is within this many standard errors, of the scatter of the losses around the two means."""
GROWN: Final = 2.0
"""The growth of the norm of the parameters up to which it does not matter whether it slows down ..."""
SLOWING: Final = 0.75
"""... and the share of what the first half of a run adds to it below which the second half counts as slower."""
_CURVE: Final = ("reading", "panel", "series")
"""Columns that name a series, of which a part has some."""


@dataclass(frozen=True, kw_only=True)
class Rests:
    """The series that a claim rests on.

    Attributes:
        series: Patterns of their names: reading, panel and series, as far as the part has them, joined by ", ".
        together: Whether they are compared at equal rounds, so that only evaluations up to the last common one count.
    """

    series: tuple[str, ...]
    together: bool = False


_LEFT, _RIGHT = "as-plotted, local-updates, ", "as-plotted, perturbations, "
_BY_K: Final = (f"{_LEFT}DeComFL K=*",)
_BY_P: Final = (f"{_RIGHT}DeComFL K=4 P=*",)
_FIG3: Final = ("DeComFL", "FedAvg", "FedCom *", "FedAvg+Top-k 10 %")
_METHODS: Final = ("DeComFL", "FedAvg", "FedCom *", "FedAvg+Top-k * %")
"""Those of Figure 3; Top-k by signed value is there to reproduce a log, and no claim rests on it."""
RESTS: Final[Mapping[str, Rests]] = {
    "fig2.saving": Rests(series=(f"{_LEFT}DeComFL K=10 P=20", f"{_LEFT}FedAvg K=10")),
    "fig2.local-updates": Rests(series=_BY_K, together=True),
    "fig2.perturbations": Rests(series=_BY_P, together=True),
    "fig2.slow-start": Rests(series=_BY_P),
    "fig2.p-over-k": Rests(series=(f"{_LEFT}DeComFL K=1 P=20", f"{_LEFT}DeComFL K=10 P=20", *_BY_P)),
    "fig2.fedavg-not-converged": Rests(series=(f"{_LEFT}FedAvg K=10",)),
    "fig2.band": Rests(series=("as-plotted, *, DeComFL *",)),
    "fig2.band-of-the-text": Rests(series=("as-written, *, DeComFL *",)),
    "fig3.twenty-times": Rests(series=("DeComFL", "FedAvg")),
    "fig3.saving": Rests(series=_FIG3),
    "fig3.slower": Rests(series=_FIG3, together=True),
    "fig3.not-by-d": Rests(series=("DeComFL", "FedAvg")),
    "fig3.band": Rests(series=("DeComFL",)),
    "topk.still-higher": Rests(series=("DeComFL", "FedAvg+Top-k *")),
    "topk.degrades": Rests(series=("FedAvg", "FedAvg+Top-k *")),
    "table1.least": Rests(series=("*DeComFL K=10 P=20", "*FedAvg K=10", "*FedCom *", "*Top-k *")),
}
"""The claims about how well runs train, with the series that they rest on."""
EXEMPT: Final[Mapping[str, str]] = {
    "fig2.estimators": "it compares two measurements of one run at equal rounds, whatever becomes of the run",
    "fig2.projection-dearer": "it compares times",
    "fig2.saving-in-the-logs": "it is about the authors' logs",
    "fig3.estimators": "it compares two measurements of one run at equal rounds, whatever becomes of the run",
    "fig3.twenty-times-in-the-logs": "it is about the authors' logs",
    "fig3.saving-in-the-logs": "it is about the authors' logs",
    "projection.better": "a run that diverged counts, as chance",
    "projection.insensitive": "a run that diverged counts, as chance",
    "projection.same-cost": "it compares bytes",
    "topk.cheaper": "it compares bytes",
    "table1.per-round": "it compares bytes",
}
"""The claims of the same parts of which no health is asked, each with the reason."""


def ill_runs(rows: pd.DataFrame) -> dict[str, list[str]]:
    """What ails the runs that means are made of, of all series that are drawn as lines: {series: complaints}."""
    found: dict[str, list[str]] = {}
    if "train_loss" not in rows:
        return found
    for name, own in _series(settled(_lines(rows), _keys(rows))).items():
        complaints = [
            f"{name}, seed {seed}: {what}" for seed, run in own.groupby("seed") if (what := complaint(run)) is not None
        ]
        if complaints:
            found[name] = complaints
    return found


def ill_words(part: str, rows: pd.DataFrame) -> list[str]:
    """A sentence for each ill run of a part whose claims rest on runs."""
    found = ill_runs(rows) if any(claim(name).part == part for name in RESTS) else {}
    return [f"Did not train: {each}." for told in found.values() for each in told]


def complaint(run: pd.DataFrame) -> str | None:
    """What ails a run, by its rows in any order: columns round, train_loss, and diverged and norm where recorded."""
    ordered = run.sort_values("round")
    last = int(ordered["round"].iloc[-1])
    losses = ordered.loc[ordered["round"] > 0, "train_loss"].to_numpy(dtype=float)
    if bool(ordered.get("diverged", pd.Series([False])).any()) or not np.isfinite(losses).all():
        return f"it diverged after round {last:,}"
    if (risen := rise(losses)) is not None:
        return f"its training loss fell to {risen[0]:.3g} and rises to {risen[1]:.3g} at round {last:,}"
    if "norm" in ordered and (grown := _growth(ordered.norm.dropna().to_numpy(dtype=float))) is not None:
        return f"the norm of its parameters is {grown:.3g} times the first at round {last:,}, and grows on"
    return None


def rise(losses: np.ndarray) -> tuple[float, float] | None:
    """(least, last) mean of a tenth of the losses, at least three, if the last is surely above the least; else None.

    It is surely above if it is more than ``RISE`` of the least above it, and more than ``SURE`` standard errors:

        s² = (var(window of the least) + var(last window))/w
    """
    w = max(3, len(losses) // 10)
    if len(losses) < COMMON:
        return None  # too few to tell an end from a beginning
    windows = np.lib.stride_tricks.sliding_window_view(losses, w)
    means = windows.mean(axis=1)
    least = int(np.argmin(means))
    error = float(np.sqrt((windows[least].var(ddof=1) + windows[-1].var(ddof=1)) / w))
    gap = means[-1] - means[least]
    return (float(means[least]), float(means[-1])) if gap > max(RISE * means[least], SURE * error) else None


def _growth(norms: np.ndarray) -> float | None:
    """The last norm over the first, if that is above ``GROWN`` and does not slow down; else None.

    A random walk adds √2 − 1 = 0.41 times as much in its second half as in its first; weights that settle add less.
    """
    if not np.isfinite(norms).all():
        return float("inf")
    if len(norms) < COMMON or norms[-1] <= GROWN * norms[0]:
        return None
    middle = norms[len(norms) // 2]
    return float(norms[-1] / norms[0]) if norms[-1] - middle >= SLOWING * (middle - norms[0]) else None


def decided_by_health(rows: pd.DataFrame, outcomes: Iterable[ClaimOutcome]) -> list[ClaimOutcome]:
    """The outcomes of a part; those that rest on ill series are not decided, and say at their scale why."""
    found = list(outcomes)
    if "train_loss" not in rows or not any(outcome.id in RESTS for outcome in found):
        return found
    sick = ill_runs(rows)
    return [_held(outcome, rows, sick) if outcome.id in RESTS else outcome for outcome in found]


def _held(outcome: ClaimOutcome, rows: pd.DataFrame, sick: Mapping[str, Sequence[str]]) -> ClaimOutcome:
    if outcome.verdict not in VERDICTS[:3]:
        return outcome
    rests = RESTS[outcome.id]
    names = [name for name in _series(_lines(rows)) if any(fnmatchcase(name, each) for each in rests.series)]
    own = _lines(rows)
    told = [each for name in names for each in sick.get(name, ())]
    told += _too_few({name: _series(settled(own, _keys(rows)))[name] for name in names}, together=rests.together)
    if "diverged" not in claim(outcome.id).rule:
        away = [(", ".join(map(str, name)), seed) for name, seed, _ in left_out(own, _keys(rows))]
        told += [f"{name}, seed {seed}: left out, which the rule does not say" for name, seed in away if name in names]
    why = f"{outcome.scale}; not decided, because {'; '.join(told)}"
    return replace(outcome, verdict=UNHEALTHY, scale=why) if told else outcome


def _too_few(series: Mapping[str, pd.DataFrame], *, together: bool) -> list[str]:
    """The series with fewer than ``COMMON`` evaluations, up to the last round that all have where that counts."""
    if len(series) < 2:
        return []
    last = min(int(own["round"].max()) for own in series.values()) if together else np.inf
    counts = {name: own.loc[own["round"] <= last, "round"].nunique() for name, own in series.items()}
    return [f"{name}: {n} evaluations, fewer than {COMMON}" for name, n in counts.items() if n < COMMON]


def _lines(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that are no mere checks of others."""
    return rows[~rows[CHECKED].eq(True)] if CHECKED in rows else rows


def _keys(rows: pd.DataFrame) -> list[str]:
    return [name for name in _CURVE if name in rows]


def _series(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """{name: rows} of every series."""
    groups = rows.groupby(_keys(rows), sort=False, dropna=False)
    return {", ".join(map(str, name)): own for name, own in groups}
