"""Which settings explain the authors' first-order logs."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest

from paper_repro.parts import fig3
from paper_repro.parts.fig3 import DISTANCE, losses_beside, settings_told
from paper_repro.workflow.claims import CLAIMS, ClaimOutcome, rows
from paper_repro.workflow.expression import evaluated

ONE = {"FedAvg": "FedAvg"}
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


def judged(own: pd.DataFrame, theirs: pd.DataFrame, of: Mapping[str, str] = ONE) -> ClaimOutcome:
    """The outcome for as many series as the claim is about, copies of those that there are."""
    logs_of = {f"{name}{n}": log for name, log in of.items() for n in range(4 // len(of))}
    copies = pd.concat([own[own.series == name.rstrip("0123")].assign(series=name) for name in logs_of])
    return evaluated(
        CLAIMS["fig3.settings"], {"settings": settings_told(copies, theirs, logs_of).assign(testable=True)}
    )


def test_losses_are_compared_as_means_over_the_same_rounds() -> None:
    found = losses_beside(ours(1.0), logs())
    np.testing.assert_allclose(found.ours, found.theirs)
    assert found["round"].tolist()[:3] == [1, 11, 21]


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (1.09, True), (0.91, True), (1.11, False)])
def test_a_setting_explains_a_log_within_a_tenth(factor: float, holds: bool) -> None:
    found = judged(ours(factor), logs())
    assert found.verdict == ("holds" if holds else "does not hold")
    assert found.measured[f"FedAvg0: {DISTANCE}"] == pytest.approx(abs(factor - 1))
    assert found.measured["FedAvg0: last accuracy, ours"] == pytest.approx(1 - 1 / 1001)
    assert found.measured["FedAvg0: best accuracy, authors'"] == 0.9


def test_one_evaluation_outside_is_enough() -> None:
    own = ours(1.0)
    own.loc[own["round"] == 151, "train_loss"] *= 1.2
    assert judged(own, logs()).verdict == "does not hold"


def test_some_series_may_be_explained_and_others_not_or_be_missing() -> None:
    both = {"FedAvg": "FedAvg", "FedCom": "FedCom"}
    two = pd.concat([logs(), logs("FedCom")])
    found = judged(pd.concat([ours(1.0), ours(1.5, "FedCom")]), two, both)
    assert found.verdict == "depends on how it is counted"
    assert judged(ours(1.0), two, both).verdict == "not tested at this scale"
    assert judged(ours(1.0)[lambda own: own["round"] < 300], logs()).measured == {}


def test_no_claim_on_the_logs_rests_on_one_whose_setting_is_unknown() -> None:
    found = next(row for row in rows(["fig3"]) if row["id"] == "fig3.settings")["measured"]
    near = {name.partition(":")[0] for name, value in found.items() if name.endswith(DISTANCE) and value <= 0.1}
    explained = CLAIMS["fig3.saving-in-the-logs"].line["rows"]["series"]
    assert set(explained) - {"DeComFL"} == near & set(fig3.LOGS_OF)
