"""Which settings explain the authors' first-order logs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from paper_repro.parts.first_order import FOUND, UNKNOWN, beside_the_logs, losses_beside

ROUNDS = np.arange(1, 1001)
LOG = 0.2 + 2 / np.sqrt(ROUNDS)


def ours(factor: float, seeds: int = 2) -> pd.DataFrame:
    """Rows after rounds 1, 11, 21, ... with the mean loss since the one before, times a factor."""
    rows, before = [], 0
    for r in [*range(1, 1001, 10), 1000]:
        rows.append({"round": r, "train_loss": factor * LOG[before:r].mean(), "test_accuracy": 1 - 1 / (r + 1)})
        before = r
    frame = pd.DataFrame(rows).assign(series="FedAvg", finished=True, planned=1000)
    return pd.concat([frame.assign(seed=seed) for seed in range(seeds)])


def logs() -> pd.DataFrame:
    """As the authors': losses and accuracies in rows of their own."""
    losses = pd.DataFrame({"round": ROUNDS, "train_loss": LOG, "test_accuracy": np.nan})
    accuracies = pd.DataFrame({"round": [1, 1000], "train_loss": np.nan, "test_accuracy": [0.4, 0.9]})
    return pd.concat([losses, accuracies]).assign(series="FedAvg", seed=42)


def test_losses_are_compared_as_means_over_the_same_rounds() -> None:
    found = losses_beside(ours(1.0), logs())
    np.testing.assert_allclose(found.ours, found.theirs)
    assert found["round"].tolist()[:3] == [1, 11, 21]


@pytest.mark.parametrize(("factor", "setting"), [(1.0, FOUND), (1.09, FOUND), (0.91, FOUND), (1.11, UNKNOWN)])
def test_a_setting_is_found_within_a_tenth_of_the_log(factor: float, setting: str) -> None:
    row = beside_the_logs(ours(factor), logs(), {"FedAvg": "FedAvg", "FedCom": "FedCom"}).iloc[0]
    assert row.setting == setting
    assert row["seeds"] == 2
    assert row["largest distance of training losses, rounds 30 to 301"] == pytest.approx(abs(factor - 1))
    assert (row["last accuracy, ours"], row["last accuracy, authors'"]) == (pytest.approx(1 - 1 / 1001), 0.9)


def test_one_evaluation_outside_makes_it_unknown() -> None:
    rows = ours(1.0)
    rows.loc[rows["round"] == 151, "train_loss"] *= 1.2
    assert beside_the_logs(rows, logs(), {"FedAvg": "FedAvg"}).setting.tolist() == [UNKNOWN]
