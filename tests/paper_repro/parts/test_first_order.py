"""Which settings explain the authors' first-order logs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from paper_repro.parts import fig3
from paper_repro.parts.fig3 import DISTANCE, losses_beside, settings_outcome
from paper_repro.workflow.claims import rows

ROUNDS = np.arange(1, 1001)
LOG = 0.2 + 2 / np.sqrt(ROUNDS)


def ours(factor: float, series: str = "FedAvg") -> pd.DataFrame:
    """Rows of two seeds after rounds 1, 11, 21, ... with the mean loss since the one before, times a factor."""
    table, before = [], 0
    for r in [*range(1, 1001, 10), 1000]:
        table.append({"round": r, "train_loss": factor * LOG[before:r].mean(), "test_accuracy": 1 - 1 / (r + 1)})
        before = r
    return pd.concat([pd.DataFrame(table).assign(series=series, seed=seed) for seed in range(2)])


def logs(series: str = "FedAvg") -> pd.DataFrame:
    """As the authors': losses and accuracies in rows of their own."""
    losses = pd.DataFrame({"round": ROUNDS, "train_loss": LOG, "test_accuracy": np.nan})
    accuracies = pd.DataFrame({"round": [1, 1000], "train_loss": np.nan, "test_accuracy": [0.4, 0.9]})
    return pd.concat([losses, accuracies]).assign(series=series, seed=42)


def test_losses_are_compared_as_means_over_the_same_rounds() -> None:
    found = losses_beside(ours(1.0), logs())
    np.testing.assert_allclose(found.ours, found.theirs)
    assert found["round"].tolist()[:3] == [1, 11, 21]


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (1.09, True), (0.91, True), (1.11, False)])
def test_a_setting_explains_a_log_within_a_tenth(factor: float, holds: bool) -> None:
    found = settings_outcome(ours(factor), logs(), {"FedAvg": "FedAvg"})
    assert found.verdict == ("holds" if holds else "does not hold")
    assert found.measured[f"FedAvg: {DISTANCE}"] == pytest.approx(abs(factor - 1))
    assert found.measured["FedAvg: last accuracy, ours"] == pytest.approx(1 - 1 / 1001)
    assert found.measured["FedAvg: best accuracy, authors'"] == 0.9


def test_one_evaluation_outside_is_enough() -> None:
    own = ours(1.0)
    own.loc[own["round"] == 151, "train_loss"] *= 1.2
    assert settings_outcome(own, logs(), {"FedAvg": "FedAvg"}).verdict == "does not hold"


def test_some_series_may_be_explained_and_others_not_or_be_missing() -> None:
    both = {"FedAvg": "FedAvg", "FedCom": "FedCom"}
    two = pd.concat([logs(), logs("FedCom")])
    found = settings_outcome(pd.concat([ours(1.0), ours(1.5, "FedCom")]), two, both)
    assert found.verdict == "depends on how it is counted"
    assert settings_outcome(ours(1.0), two, both).verdict == "not tested at this scale"
    assert settings_outcome(ours(1.0)[lambda own: own["round"] < 300], logs(), {"FedAvg": "FedAvg"}).measured == {}


def test_no_claim_on_the_logs_rests_on_one_whose_setting_is_unknown() -> None:
    found = next(row for row in rows(["fig3"]) if row["id"] == "fig3.settings")["measured"]
    near = {name.partition(":")[0] for name, value in found.items() if name.endswith(DISTANCE) and value <= 0.1}
    assert set(fig3.EXPLAINED) - {"DeComFL"} == near & set(fig3.LOGS_OF)
