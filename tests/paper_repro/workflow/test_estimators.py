"""Projection beside finite differences: gaps are of equal seeds and rounds, and the verdict follows its rule."""

import pandas as pd
import pytest

from paper_repro.workflow import estimators
from paper_repro.workflow.claims import CLAIMS
from paper_repro.workflow.expression import evaluated
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


def test_the_verdict_follows_the_rule_and_needs_both_estimators() -> None:
    def verdict(check: list[float]) -> str:
        rows = pd.concat([curve(LINE, check=False), curve(LINE, check=False, series="b"), curve(check, check=True)])
        return evaluated(CLAIMS["fig2.estimators"], estimators.frames(rows, BY)).verdict

    assert verdict([value + 0.001 for value in LINE]) == "holds"
    assert verdict([0.9, *LINE[1:]]) == "holds"  # 11 of 12
    assert verdict([0.9, 0.9, *LINE[2:]]) == "does not hold"
    assert verdict([]) == "not tested at this scale"


def test_the_dearer_estimator_is_the_one_whose_rounds_take_longer_in_every_curve() -> None:
    def verdict(*seconds: float) -> str:
        line, dots = (curve(LINE, check=check).assign(seconds=lambda f: 2.0 * f["round"]) for check in (False, True))
        curves = [
            dots.assign(seconds=each * dots["round"], series=name) for name, each in zip("ab", seconds, strict=False)
        ]
        rows = pd.concat([line, line.assign(series="b"), *curves])
        return evaluated(CLAIMS["fig2.projection-dearer"], estimators.frames(rows, BY)).verdict

    assert verdict(1.0, 1.5) == "holds"
    assert verdict(3.0, 4.0) == "does not hold"
    assert verdict(1.0, 4.0) == "depends on how it is counted"
    assert verdict() == "not tested at this scale"
