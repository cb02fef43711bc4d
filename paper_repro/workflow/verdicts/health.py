"""Whether the runs that a verdict rests on have trained: where one has not, nothing is decided by it.

A run is ill if it diverged, if it learnt nothing, if its training loss ends above its least, or if the norm of its
parameters grows much, or without slowing down. A series is ill if a run of it is, or if it has too few evaluations to
tell. Runs that diverged beside others of their series may be left out of a mean only where the claim's rule says what
becomes of them.
"""

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

import numpy as np
import pandas as pd

from paper_repro.workflow.verdicts.claim_table import CLAIMS, UNHEALTHY, VERDICTS, ClaimOutcome, claim, limits
from paper_repro.workflow.verdicts.measures import left_out, lines_of, settled

COMMON: Final[int] = limits().common
"""The least number of evaluations of a run, and of each of two series that are compared."""
CHANCE: Final = 0.1  # the accuracy of guessing in the image sets, of ten equal classes; the loss is −ln of it
LEARNT: Final = 0.1
"""The share of the loss of guessing that a run has to lose at least, or the accuracy that it has to gain."""
FELL: Final = 0.02
"""The share of its own test loss before the first round that a run has to lose, where that was evaluated."""
RISE: Final = 0.1  # the share of its least value by which a training loss may end above it ..
SURE: Final = 10.0
"""... unless that rise is within this many standard errors of the difference of two means of independent noise.

The least is that of many means, and noise may be correlated, so that 3 would raise false alarms. A flat loss is called
ill in at most one of a hundred runs of 30, 100 or 500 evaluations with independent noise of up to 30 %, and in at most
five of a hundred where neighbours correlate by 0.7 (``tests/paper_repro/workflow/test_health.py``).
"""
LEAST: Final = 5  # the least number of evaluations that a mean is taken over ..
LAST: Final = 3
"""... but for the last, which are looked at by themselves, so that a run that breaks at its very end is found too."""
GROWN: Final = 2.0  # the growth of the norm of the parameters up to which it does not matter whether it slows down ..
SLOWING: Final = 0.75
"""... and the share of what the first half of a run adds to it below which the second half counts as slower."""
MOST: Final = 10.0  # the growth of the norm above which it does not matter that it slows down
_FEW: Final = f"fewer than {COMMON}"
_CURVE: Final = ("reading", "panel", "row", "task", "series", "model")
"""Columns that name a series, of which a part has some."""


def ill_runs(rows: pd.DataFrame) -> dict[str, list[str]]:
    """What ails the runs that means are made of, of all series that are drawn as lines: {series: complaints}."""
    by_series: dict[str, list[str]] = {}
    if "train_loss" not in rows:
        return by_series
    for name, series in series_named(settled(_lines(rows), _keys(rows))).items():
        for seed, run in series.groupby("seed"):
            if (what := complaint(run)) is not None:
                by_series.setdefault(name, []).append(f"{name}, seed {seed}: {what}")
    return by_series


def ill_words(part: str, rows: pd.DataFrame) -> list[str]:
    """A sentence for each ill run that a claim of the part rests on, and what could not be judged."""
    patterns = [pattern for asked in CLAIMS.values() if asked.part == part for pattern in asked.rests]
    if not patterns or "train_loss" not in rows:
        return []
    complaints: list[str] = []
    for name, of_series in ill_runs(rows).items():
        complaints += of_series if _fits(name, patterns) else []
    short = [each for each in complaints if each.endswith(_FEW)]
    remarks = [f"Did not train: {each}." for each in complaints if each not in short]
    if short:
        remarks.append(f"Not judged: {len(short)} of the runs that claims rest on, of {_FEW} evaluations each.")
    lacking: list[bool] = []  # of each run, whether the norm is missing at an evaluation
    for name, series in series_named(_lines(rows).assign(norm=rows.get("norm", np.nan))).items():
        lacking += [bool(run.norm.isna().any()) for _, run in series.groupby("seed")] if _fits(name, patterns) else []
    if any(lacking):
        runs = f"{'any' if all(lacking) else sum(lacking)} of the {len(lacking)} runs that claims rest on"
        remarks.append(f"The norm of the parameters was not recorded for {runs}: nobody checked that it stays bounded.")
    return remarks


def complaint(run: pd.DataFrame) -> str | None:
    """What ails a run, by its rows in any order: columns round, train_loss, and others as far as they are recorded.

    These are diverged, norm, test_accuracy, test_loss, and majority (the share of the most frequent answer).
    """
    ordered = run.sort_values("round")
    last = int(ordered["round"].iloc[-1])
    trained = ordered[ordered["round"] > 0]
    losses = trained["train_loss"].to_numpy(dtype=float)
    if bool(ordered.get("diverged", pd.Series([False])).any()) or not np.isfinite(losses).all():
        return f"it diverged after round {last:,}"
    if len(losses) < COMMON:
        return f"{len(losses)} evaluations, {_FEW}"
    if (risen := rise(losses)) is not None:
        return f"its training loss fell to {risen[0]:.3g} and rises to {risen[1]:.3g} at round {last:,}"
    # It has learnt if its loss ends clearly below, or its accuracy clearly above, that of guessing: before the first
    # round where this was evaluated, else that of ten equal classes. The training loss of the first round is of trained
    # parameters already: only the test loss has a beginning.
    before, at_end = ordered[ordered["round"] <= 0], trained.tail(_tenth(len(trained)))
    has_beginning = len(before) > 0 and bool(np.isfinite(before["test_loss"].iloc[-1]))
    loss = float(at_end["test_loss" if has_beginning else "train_loss"].mean())
    accuracy = float(at_end["test_accuracy"].mean()) if "test_accuracy" in at_end else 0.0
    bound = (1 - FELL) * float(before["test_loss"].iloc[-1]) if has_beginning else -(1 - LEARNT) * np.log(CHANCE)
    guessed = float(before["test_accuracy"].iloc[-1]) if has_beginning else CHANCE
    if "majority" in at_end:
        guessed = max(guessed, float(at_end["majority"].iloc[-1]))
    if not loss < bound and not accuracy > guessed + LEARNT:
        return f"it has hardly learnt: loss {loss:.3g} and accuracy {accuracy:.3g} at its end"
    norms = ordered.norm.dropna().to_numpy(dtype=float) if "norm" in ordered else np.ones(1)
    if not np.isfinite(norms).all():
        return f"the norm of its parameters is inf times the first at round {last:,}, and grows on"
    # The norm may grow much as long as it slows down. A random walk adds √2 − 1 = 0.41 times as much in its second half
    # as in its first; weights that settle add less.
    first, middle, end = norms[[0, len(norms) // 2, -1]] if len(norms) else np.ones(3)
    slows = end - middle < SLOWING * (middle - first) and end <= MOST * first
    if end > GROWN * first and not slows:
        return f"the norm of its parameters is {end / first:.3g} times the first at round {last:,}, and grows on"
    return None


def _tenth(n: int) -> int:
    """A tenth of the evaluations, at least ``LEAST``."""
    return max(LEAST, n // 10)


def rise(losses: np.ndarray) -> tuple[float, float] | None:
    """(least, last) mean of a tenth of the losses, at least five, if their end is surely above the least; else None.

    The end is the last tenth, or the last three. With y = ln(loss), ȳ the mean over k at the end less the least mean
    over w, and s² the median of the variance of y in windows of w, the end is surely above if

        exp(ȳ) > 1 + RISE    and    ȳ > SURE · s √(1/k + 1/w)

    Logarithms, because the noise of a loss goes with its level. The median, so that neither the descent nor a break
    counts as noise.
    """
    w = _tenth(len(losses))
    logs = np.log(np.maximum(losses, np.finfo(float).tiny))
    windows = np.lib.stride_tricks.sliding_window_view(logs, w)
    means = windows.mean(axis=1)
    least = int(np.argmin(means))
    scatter = float(np.sqrt(np.median(windows.var(axis=1, ddof=1))))
    for k in (w, LAST):
        gap = logs[-k:].mean() - means[least]
        if gap > max(np.log1p(RISE), SURE * scatter * np.sqrt(1 / k + 1 / w)):
            return float(losses[least : least + w].mean()), float(losses[-k:].mean())
    return None


def decided_by_health(rows: pd.DataFrame, outcomes: Iterable[ClaimOutcome]) -> list[ClaimOutcome]:
    """The outcomes of a part; those that rest on ill series are not decided, and say at their scale why."""
    decided = list(outcomes)
    if "train_loss" not in rows or not any(claim(outcome.id).rests for outcome in decided):
        return decided
    ill = ill_runs(rows)
    lines = _lines(rows)
    keys = _keys(rows)
    drawn = series_named(settled(lines, keys))
    for i, outcome in enumerate(decided):
        registered = claim(outcome.id)
        if not registered.rests or outcome.verdict not in VERDICTS[:3]:
            continue
        names = [name for name in series_named(lines) if _fits(name, registered.rests)]
        reasons = [each for name in names for each in ill.get(name, ())]
        if len(names) > 1:
            # Those with too few evaluations, up to the last round that all have where that counts.
            last = min(int(drawn[name]["round"].max()) for name in names) if registered.together else np.inf
            counts = {name: drawn[name].loc[drawn[name]["round"] <= last, "round"].nunique() for name in names}
            reasons += [f"{name}: {n} evaluations, {_FEW}" for name, n in counts.items() if n < COMMON]
        if "diverged" not in registered.rule:
            for run in left_out(lines, keys):
                name = ", ".join(map(str, run.series))
                if name in names:
                    reasons.append(f"{name}, seed {run.seed}: left out, which the rule does not say")
        if reasons:
            why = f"{outcome.scale}; not decided, because {'; '.join(reasons)}"
            decided[i] = replace(outcome, verdict=UNHEALTHY, scale=why)
    return decided


def _fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether the name of a series fits one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _lines(rows: pd.DataFrame) -> pd.DataFrame:
    """The evaluations of runs that are no mere checks of others."""
    return lines_of(rows[rows["round"].notna()])


def _keys(rows: pd.DataFrame) -> list[str]:
    """Those columns of ``_CURVE`` that the rows have."""
    return [name for name in _CURVE if name in rows]


def series_named(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """{name: rows} of every series."""
    groups = rows.groupby(_keys(rows), sort=False, dropna=False)
    return {", ".join(map(str, name)): series_rows for name, series_rows in groups}
