"""Whether the runs that a verdict rests on have trained: where one has not, nothing is decided by it.

A run is ill if it diverged, if it learnt nothing, if its training loss ends above its least, or if the norm of its
parameters grows much, or without slowing down. A series is ill if a run of it is, or if it has too few evaluations to
tell. Runs that diverged beside others of their series may be left out of a mean only where the claim's rule says what
becomes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

import numpy as np
import pandas as pd

from decomfl_lab.errors import require
from paper_repro.workflow.claims import CLAIMS, UNHEALTHY, VERDICTS, ClaimOutcome, claim, limits
from paper_repro.workflow.measures import left_out, lines_of, settled

__all__ = [
    "COMMON",
    "EXEMPT",
    "RESTS",
    "Rests",
    "complaint",
    "decided_by_health",
    "ill_runs",
    "ill_words",
    "require_placed",
    "rise",
]

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


@dataclass(frozen=True, kw_only=True)
class Rests:
    """The series that a claim rests on."""

    # patterns of their names: reading, panel, row, task, series and model, as far as the part has them, joined by ", "
    series: tuple[str, ...]
    # whether they are compared at equal rounds, so that only evaluations up to the last common one count
    together: bool = False


_LEFT, _RIGHT = "as-plotted, local-updates, ", "as-plotted, perturbations, "
_BY_K: Final = (f"{_LEFT}DeComFL K=*",)
_BY_P: Final = (f"{_RIGHT}DeComFL K=4 P=*",)
_FIG3: Final = ("DeComFL", "FedAvg", "FedCom *", "FedAvg+Top-k 10 %")
"""The methods of Figure 3; Top-k by signed value is there to reproduce a log, and no claim rests on it."""
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
    "topk.still-higher": Rests(series=("DeComFL", "FedAvg+Top-k * %")),
    "topk.degrades": Rests(series=("FedAvg", "FedAvg+Top-k * %")),
    "table1.least": Rests(series=("*DeComFL K=10 P=20", "*FedAvg K=10", "*FedCom *", "*Top-k *")),
    "llm.mezo": Rests(series=("OPT-125M, *, MeZO, *", "OPT-125M, *, DeComFL P=10, *")),
    "llm.fedzo": Rests(series=("*, FedZO, *", "*, DeComFL *")),
    "llm.directions": Rests(series=("*, DeComFL *",)),
    "llm.lora": Rests(series=("OPT-125M*, *, DeComFL P=10, *", "OPT-125M, *, MeZO, *")),
    "llm.first-order": Rests(series=("OPT-125M, *, FedAvg, *", "OPT-125M, *, DeComFL P=10, *")),
    "sizes.larger-better": Rests(series=("*",)),
}
"""The claims about how well runs train, with the series that they rest on."""
EXEMPT: Final[Mapping[str, str]] = {
    "fig2.estimators": "it compares two measurements of one run at equal rounds, whatever becomes of the run",
    "fig2.projection-dearer": "it compares times",
    "fig2.saving-in-the-logs": "it is about the authors' logs",
    "fig3.settings": "it compares training losses with those of the logs, whatever becomes of the runs",
    "fig3.estimators": "it compares two measurements of one run at equal rounds, whatever becomes of the run",
    "fig3.twenty-times-in-the-logs": "it is about the authors' logs",
    "fig3.saving-in-the-logs": "it is about the authors' logs",
    "fig3.slower-in-the-logs": "it is about the authors' logs",
    "topk.degrades-in-the-logs": "it is about the authors' logs",
    "projection.better": "a run that diverged counts, as chance",
    "projection.insensitive": "a run that diverged counts, as chance",
    "projection.same-cost": "it compares bytes",
    "topk.cheaper": "it compares bytes",
    "table1.per-round": "it compares bytes",
    "edge.more-stable": "whether a run diverges is what is measured",
    "edge.covered": "it is about curvature up to the smallest test loss, whatever becomes of the run after it",
    "edge.directions": "whether a run diverges is what is measured",
    "edge.turn": "it is about the runs that diverge",
    "edge.limit": "whether a run diverges is what is measured",
    "llm.gain": "whether training helps is what is asked: a run that learns nothing gains nothing",
    "llm.five-points": "whether training helps is what is asked: a run that learns nothing gains nothing",
    "llm.saving": "it compares bytes",
    "llm.dimension-free": "it compares bytes",
    "llm.peft": "it compares bytes",
    "llm.one-megabyte": "it compares bytes",
    "llm.ten-gigabytes": "it compares bytes",
    "llm.rounds": "it is about numbers in print",
    "llm.printed-accuracies": "it is about numbers in print",
    "llm.printed-costs": "it is about numbers in print",
    "llm.lora-costs": "it is about numbers in print",
    "board.hiso": "a problem counts only where every seed of both reached its target",
    "board.fzoo": "a problem counts only where every seed of both reached its target",
    "board.feedsign": "it compares bits",
    "board.fedkseed": "it compares bytes",
    "hessian.majority-zero": "its training has four points and no curve; that its loss falls is tested of the rows",
    "hessian.low-rank": "its training has four points and no curve; that its loss falls is tested of the rows",
    "hessian.stays-low": "its training has four points and no curve; that its loss falls is tested of the rows",
    "sizes.same-round": "its own rule asks for a fall of the loss that ends before the run, of every run",
    "sizes.larger-later": "its own rule asks for a fall of the loss that ends before the run, of every run",
    "sizes.not-by-d": "its own rule asks for a fall of the loss that ends before the run, of every run",
    "sizes.low-rank": "it is about κ, before training too",
    "theory.trained-*": "the bound is asked of every run, however it trains",
}
"""The claims about training runs of which no health is asked, each with the reason."""
WITHOUT_RUNS: Final = ("memory", "theory", "audit")
"""Parts that compute, and train nothing but where ``EXEMPT`` names a claim of theirs."""


def require_placed(claims: Iterable[str], rests: Iterable[str], exempt: Iterable[str]) -> None:
    """Raise InputError unless every claim about training runs is in just one of ``RESTS`` and ``EXEMPT``."""
    about = {name for name in claims if name.partition(".")[0] not in WITHOUT_RUNS}
    one, other = set(rests), set(exempt)
    wrong = sorted((about - one - other) | (one & other) | ((one | other) - set(claims)))
    require(not wrong, "claims about training runs", "be registered, and in just one of RESTS and EXEMPT", wrong)


require_placed(CLAIMS, RESTS, EXEMPT)


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
    """A sentence for each ill run that a claim of the part rests on, and what could not be judged."""
    patterns = [each for name, rests in RESTS.items() if claim(name).part == part for each in rests.series]
    if not patterns or "train_loss" not in rows:
        return []
    found = [each for name, told in ill_runs(rows).items() if _fits(name, patterns) for each in told]
    short = [each for each in found if each.endswith(_FEW)]
    told = [f"Did not train: {each}." for each in found if each not in short]
    if short:
        told.append(f"Not judged: {len(short)} of the runs that claims rest on, of {_FEW} evaluations each.")
    runs = _series(_lines(rows).assign(norm=rows.get("norm", np.nan)))
    without = [
        run.norm.isna().any() for name, own in runs.items() if _fits(name, patterns) for _, run in own.groupby("seed")
    ]
    if any(without):
        share = f"{'any' if all(without) else sum(without)} of the {len(without)} runs that claims rest on"
        told.append(f"The norm of the parameters was not recorded for {share}: nobody checked that it stays bounded.")
    return told


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
    if (told := _nothing_learnt(ordered[ordered["round"] <= 0], trained)) is not None:
        return told
    if "norm" in ordered and (grown := _growth(ordered.norm.dropna().to_numpy(dtype=float))) is not None:
        return f"the norm of its parameters is {grown:.3g} times the first at round {last:,}, and grows on"
    return None


def _nothing_learnt(before: pd.DataFrame, trained: pd.DataFrame) -> str | None:
    """What a run has to show for its rounds, if that is nothing; by the mean of its last tenth, at least five.

    It has learnt if its loss ends clearly below, or its accuracy clearly above, that of guessing: before the first
    round where this was evaluated, else that of ten equal classes.
    """
    end = trained.tail(_tenth(len(trained)))
    # The training loss of the first round is of trained parameters already: only the test loss has a beginning.
    own = len(before) > 0 and bool(np.isfinite(before["test_loss"].iloc[-1]))
    loss = float(end["test_loss" if own else "train_loss"].mean())
    bound = (1 - FELL) * float(before["test_loss"].iloc[-1]) if own else -(1 - LEARNT) * np.log(CHANCE)
    if loss < bound:
        return None
    accuracy = float(end["test_accuracy"].mean()) if "test_accuracy" in end else 0.0
    guessed = float(before["test_accuracy"].iloc[-1]) if own else CHANCE
    if "majority" in end:
        guessed = max(guessed, float(end["majority"].iloc[-1]))
    if accuracy > guessed + LEARNT:
        return None
    return f"it has hardly learnt: loss {loss:.3g} and accuracy {accuracy:.3g} at its end"


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


def _growth(norms: np.ndarray) -> float | None:
    """The last norm over the first, if it is above ``MOST``, or above ``GROWN`` and does not slow down; else None.

    A random walk adds √2 − 1 = 0.41 times as much in its second half as in its first; weights that settle add less.
    """
    if not np.isfinite(norms).all():
        return float("inf")
    if len(norms) < 2 or norms[-1] <= GROWN * norms[0]:
        return None
    middle = norms[len(norms) // 2]
    slows = norms[-1] - middle < SLOWING * (middle - norms[0]) and norms[-1] <= MOST * norms[0]
    return None if slows else float(norms[-1] / norms[0])


def decided_by_health(rows: pd.DataFrame, outcomes: Iterable[ClaimOutcome]) -> list[ClaimOutcome]:
    """The outcomes of a part; those that rest on ill series are not decided, and say at their scale why."""
    found = list(outcomes)
    if "train_loss" not in rows or not any(outcome.id in RESTS for outcome in found):
        return found
    sick = ill_runs(rows)
    own = _lines(rows)
    keys = _keys(rows)
    drawn = _series(settled(own, keys))
    for i, outcome in enumerate(found):
        if outcome.id not in RESTS or outcome.verdict not in VERDICTS[:3]:
            continue
        rests = RESTS[outcome.id]
        names = [name for name in _series(own) if _fits(name, rests.series)]
        told = [each for name in names for each in sick.get(name, ())]
        if len(names) > 1:
            # Those with too few evaluations, up to the last round that all have where that counts.
            last = min(int(drawn[name]["round"].max()) for name in names) if rests.together else np.inf
            counts = {name: drawn[name].loc[drawn[name]["round"] <= last, "round"].nunique() for name in names}
            told += [f"{name}: {n} evaluations, {_FEW}" for name, n in counts.items() if n < COMMON]
        if "diverged" not in claim(outcome.id).rule:
            for of_run, seed, _ in left_out(own, keys):
                name = ", ".join(map(str, of_run))
                if name in names:
                    told.append(f"{name}, seed {seed}: left out, which the rule does not say")
        if told:
            why = f"{outcome.scale}; not decided, because {'; '.join(told)}"
            found[i] = replace(outcome, verdict=UNHEALTHY, scale=why)
    return found


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)


def _lines(rows: pd.DataFrame) -> pd.DataFrame:
    """The evaluations of runs that are no mere checks of others."""
    return lines_of(rows[rows["round"].notna()])


def _keys(rows: pd.DataFrame) -> list[str]:
    return [name for name in _CURVE if name in rows]


def _series(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """{name: rows} of every series."""
    groups = rows.groupby(_keys(rows), sort=False, dropna=False)
    return {", ".join(map(str, name)): own for name, own in groups}
