"""The authors' curves that come with the project are the whole ones, as near as a figure shows."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paper_repro.workflow.verdicts import reference
from tests.cases import refuses, rows_of

KEYS = ["figure", "series", "metric", "seed"]
ENDS = {"fig2_left": 2000, "fig2_right": 1500}
"""The steps that Figure 2 plots."""
LOGS = pytest.mark.skipif(not os.environ.get("DECOMFL_REFERENCE"), reason="needs DECOMFL_REFERENCE")


def wrong(thin: pd.DataFrame) -> list[str]:
    """Points that are not of the whole curves, and curves of which a line through the points leaves the whole one."""
    whole = pd.read_csv(Path(os.environ["DECOMFL_REFERENCE"]) / "authors_curves.csv")
    whole = whole[whole.figure.map(ENDS).fillna(np.inf) > whole.step].drop_duplicates([*KEYS, "step"])
    whole = whole[whole.figure.isin(thin.figure) & (whole.metric == whole.figure.map(reference.SHOWN))]
    told = ["points of their own"] * (len(thin.merge(whole)) != len(thin))
    points = dict(iter(thin.groupby(KEYS)))
    for key, curve in whole.sort_values("step").groupby(KEYS):
        own = points.get(key, curve[:0]).sort_values("step")
        if len(own) < 2 or [*own.step.iloc[[0, -1]]] != [*curve.step.iloc[[0, -1]]]:
            told.append(f"{key}: ends")
            continue
        # Half a standard error of an accuracy on 10,000 images.
        near = 0.02 if key[2] == "train_loss" else 0.5 * np.sqrt(curve.value * (1 - curve.value) / 10_000)
        # Rounds, the logarithm of rounds (bytes) and that of rounds before (the paper's axis, on which round 1 is not).
        axes = {"rounds": lambda s: s, "bytes": lambda s: np.log(s + 1), "axis": lambda s: np.log(np.maximum(s, 0.5))}
        for name, axis in axes.items():
            line = np.interp(axis(curve.step), axis(own.step), own.value)
            told += [f"{key}, {name}: too far"] * bool((abs(line - curve.value) > near + 1e-12).any())
    return told


def shipped() -> pd.DataFrame:
    return pd.read_csv(reference.curves_file(None))


@LOGS
def test_lines_through_the_thinned_points_stay_by_the_whole_curves() -> None:
    assert wrong(shipped()) == []


@LOGS
@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lambda t: t.assign(value=t.value.mask(t.index == 200, t.value + 1e-4)), "points of their own"),
        (lambda t: t[~t.step.between(60, 120)], "too far"),
        (lambda t: t[t.step < 1000], "ends"),
        (lambda t: t[t.series != t.series[0]], "ends"),
    ],
    ids=["a point that was moved", "a piece that was cut out", "an end that was cut off", "a curve that is missing"],
)
def test_curves_that_are_thinned_too_much_are_noticed(
    plant: Callable[[pd.DataFrame], pd.DataFrame], found: str
) -> None:
    assert any(found in told for told in wrong(plant(shipped())))


def test_the_thinned_curves_are_small_and_say_where_they_are_from() -> None:
    path = reference.curves_file(None)
    assert path.stat().st_size < 100_000
    assert "ZidongLiu/DeComFL, commit `0c426e6`" in " ".join((path.parent / "README.md").read_text().split())
    assert len(reference.fig2_reference(None)) + len(reference.fig3_reference(None)) == len(shipped())


@refuses(*rows_of(__file__)["refused"])
def test_curves_that_are_not_the_authors_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "authors_curves.csv").write_text(text)
    reference.curves(tmp_path)
