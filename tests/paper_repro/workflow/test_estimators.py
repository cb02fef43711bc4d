"""Projection beside finite differences: gaps are of equal seeds and rounds."""

import pandas as pd
import pytest

from paper_repro.workflow import estimators
from tests.paper_repro.workflow import test_bands
from tests.paper_repro.workflow.test_bands import BY


def curve(accuracies: list[float], *, check: bool, seed: int = 0, series: str = "a") -> pd.DataFrame:
    return test_bands.curve(accuracies, seed=seed, series=series).assign(check=check, seconds=1.0)


LINE = [0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.86, 0.87, 0.88, 0.9, 0.91, 0.92]


def test_gaps_are_of_equal_seeds_and_rounds() -> None:
    rows = pd.concat(
        [curve(LINE, check=False), curve(LINE[::-1], check=False, seed=1), curve([0.31, 0.5, 0.62], check=True)]
    )
    found = estimators.gaps(rows, BY)
    assert found.gap.tolist() == pytest.approx([0.01, 0.0, 0.02])
    table = estimators.gaps_table(found, BY).iloc[0]
    assert (table.series, table["rounds compared"], table["at round"]) == ("left, a", 60, 60)
    assert table["largest difference in accuracy"] == pytest.approx(0.02)
    error = (2 * 0.61 * 0.39 / 10_000) ** 0.5  # two of them are 0.0138
    assert 2 * error < 0.02 < 3 * error
    assert found.within.tolist() == [True, True, False]
