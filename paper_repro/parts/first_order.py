"""The first-order runs of Figure 3 beside the authors' logs: which settings explain these logs, by a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pandas as pd

from paper_repro.workflow.claims import UNTESTED, ClaimOutcome, Verdict, limits
from paper_repro.workflow.measures import numbers

__all__ = ["AT", "BEGIN", "DISTANCE", "END", "losses_beside", "outcome"]

BEGIN, END = 30, 301  # evaluations from the first of these rounds to the last are compared
AT: Final = (101, 301, 991)  # rounds whose training losses are told
DISTANCE: Final = "largest distance of training losses"


def outcome(rows: pd.DataFrame, authors: pd.DataFrame, logs: Mapping[str, str]) -> ClaimOutcome:
    """The claim that the settings of all series explain the logs, and the numbers of both sides.

    Args:
        rows: Ours, with series, seed, round, train_loss (mean since the row before) and test_accuracy.
        authors: The logs, with series, round, and train_loss (of that round) or test_accuracy.
        logs: {our series: the log that it is compared with}.
    """
    told: dict[str, float | None] = {}
    explained = []
    for series, log in logs.items():
        own, theirs = rows[rows.series == series], authors[authors.series == log]
        losses, accuracies = losses_beside(own, theirs), theirs.dropna(subset="test_accuracy").sort_values("round")
        judged = losses[losses["round"].between(BEGIN, END)]
        if judged.empty or accuracies.empty or losses["round"].max() < END:
            continue
        farthest = float((judged.ours / judged.theirs - 1).abs().max())
        explained.append(farthest <= limits("fig3").near)
        means = own.groupby("round").test_accuracy.mean()
        sides = {"ours": means, "authors'": accuracies.set_index("round").test_accuracy}
        told[f"{series}: {DISTANCE}"] = farthest
        for side, accuracy in sides.items():
            told[f"{series}: last accuracy, {side}"] = float(accuracy.iloc[-1])
            told[f"{series}: best accuracy, {side}"] = float(accuracy.max())
        for r in AT:
            at = losses[losses["round"] == r]
            for side, column in (("ours", "ours"), ("authors'", "theirs")):
                told[f"{series}: training loss at {r}, {side}"] = float(at[column].mean())
    verdict: Verdict = UNTESTED
    if explained and len(explained) == len(logs):
        verdict = "holds" if all(explained) else "depends on how it is counted" if any(explained) else "does not hold"
    return ClaimOutcome("fig3.settings", verdict, numbers(told))


def losses_beside(own: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Columns round, ours (mean over seeds) and theirs: the mean training loss since the evaluation before."""
    ours = own.groupby("round").train_loss.mean()
    log = theirs.dropna(subset="train_loss").groupby("round").train_loss.mean()
    found, before = [], 0
    for r, loss in zip(map(int, ours.index), ours, strict=True):
        window = log[(log.index > before) & (log.index <= r)]
        if len(window):
            found.append({"round": r, "ours": loss, "theirs": float(window.mean())})
        before = r
    return pd.DataFrame(found, columns=["round", "ours", "theirs"])
