"""The first-order runs of Figure 3 beside the authors' logs: which settings explain these logs, by a rule."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from paper_repro.workflow.measures import ended

__all__ = ["BEGIN", "END", "FOUND", "NEAR", "UNKNOWN", "beside_the_logs", "losses_beside"]

NEAR: Final = 0.1
"""A setting explains a log if its training loss is within this share of the log's ..."""
BEGIN, END = 30, 301
"""... at every evaluation from the first of these rounds to the last, each as the mean since the evaluation before."""
FOUND, UNKNOWN = "found", "setting unknown"


def beside_the_logs(rows: pd.DataFrame, authors: pd.DataFrame, logs: dict[str, str]) -> pd.DataFrame:
    """A row for each series of ours: accuracies, training losses, and whether its setting explains the log.

    Args:
        rows: Ours, with series, seed, round, train_loss (mean since the row before) and test_accuracy.
        authors: The logs, with series, round, and train_loss (of that round) or test_accuracy.
        logs: {our series: the log that it is compared with}.
    """
    table = []
    for series, log in logs.items():
        own, theirs = rows[rows.series == series], authors[authors.series == log]
        if own.empty or theirs[["train_loss", "test_accuracy"]].isna().all().any():
            continue  # losses and accuracies are logged apart
        losses, accuracies = losses_beside(own, theirs), theirs.dropna(subset="test_accuracy").sort_values("round")
        means = own.groupby("round").test_accuracy.mean()
        judged = losses[losses["round"].between(BEGIN, END)]
        farthest = (judged.ours / judged.theirs - 1).abs().max() if len(judged) else float("nan")
        entry: dict[str, Any] = {
            "series": series,
            "log": log,
            "seeds": own.seed.nunique(),
            "rounds": int(own["round"].max()),
            "finished": not ended(own).empty,
            "last accuracy, ours": float(means.iloc[-1]),
            "last accuracy, authors'": float(accuracies.test_accuracy.iloc[-1]),
            "best accuracy, ours": float(means.max()),
            "best accuracy, authors'": float(accuracies.test_accuracy.max()),
            **_at(losses, 101),
            **_at(losses, 301),
            **_at(losses, 991),
            f"largest distance of training losses, rounds {BEGIN} to {END}": float(farthest),
            "setting": FOUND if farthest <= NEAR else UNKNOWN,
        }
        table.append(entry)
    return pd.DataFrame(table)


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


def _at(losses: pd.DataFrame, r: int) -> dict[str, float]:
    there = losses[losses["round"] == r]
    whose = {"ours": "ours", "theirs": "authors'"}
    return {f"training loss at {r}, {whose[side]}": float(there[side].mean()) for side in whose}
