"""Recorded rows are rows that runs can have: what must be equal is, and what must be whole is, whoever lists them.

What nothing here ties: a loss that is changed by a few per cent, and seconds that are changed by one factor, in all
parts that have the run.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from decomfl_lab.errors import InputError
from paper_repro.workflow import manifest
from paper_repro.workflow.recordings import load
from tests.cases import rows_of, sampled
from tests.paper_repro.recomputed.common import RESULTS, having, rows

RECORDS = [path.name.removesuffix(".csv.gz").rpartition("-")[::2] for path in sorted(RESULTS.glob("*.csv.gz"))]
TRAINED = [record for record in RECORDS if "wire_bytes" in rows(*record)]
D = {"fig2": 28_938, "table1": 28_938, "projection": 28_938, "fig3": 1_206_590, "topk": 1_206_590}
"""Parameters of the models of the figures on images."""
LEAST = 2.4
"""The least cross entropy of ten classes over the share of wrong answers: guessing has ln(10)/0.9 = 2.56, and every
recorded run more than this at each of its evaluations, be it sure of itself or not."""
Plant = Callable[[pd.DataFrame], pd.DataFrame]
RUN = ["reading", "panel", "series", "estimator", "check", "row", "task", "problem", "line", "model", "eta", "seed"]


def impossible(frame: pd.DataFrame) -> list[str]:
    """What no run can have: a share of no whole number of images, bytes that come back, scalars that are no bytes."""
    told = []
    if "examples" in frame:
        right = frame.test_accuracy * frame.examples
        apart = (right - right.round()).abs() > 1e-2  # a GPU's accuracies have float32's seven digits
        told += ["accuracies are no shares of the held-out images"] * bool(apart.any())
    known = [name for name in RUN if name in frame]
    for name, run in frame.groupby(known, dropna=False) if known else [("all", frame)]:
        own = run.dropna(subset=["wire_bytes"]).sort_values("round", kind="stable")
        counts = [each for each in ("wire_bytes", "up_bytes", "gradient_scalars", "wire_scalars") if each in own]
        counts += [each for each in ("seconds", "model_pulls") if each in own and not own[each].isna().any()]
        told += [f"{name}: {each} fall" for each in counts if (own.groupby("round")[each].max().diff() < 0).any()]
        told += [f"{name}: more goes up than goes"] * bool((own.up_bytes > own.wire_bytes).any())
        if "wire_scalars" in own and own.wire_scalars.max() > 0:
            clients = (own.wire_bytes / (4 * own.wire_scalars)).dropna()
            told += [f"{name}: scalars are not the bytes of its clients"] * (not np.allclose(clients, clients.iloc[0]))
    return told


def implausible(frame: pd.DataFrame, d: int) -> list[str]:
    """What runs on ten classes of images do not have: losses far too low for their accuracy, models for nothing."""
    own = frame[~frame.diverged]
    wrong = own[own.test_loss < LEAST * (1 - own.test_accuracy)]
    told = [f"{series}: test losses too low for the accuracies" for series in wrong.series.unique()]
    # Steps of zeroth order hardly learn single examples: their two losses are alike.
    slow = own[own.series.str.match("DeComFL|projection|zeroth") & (own.test_loss < 10)]
    ratios = (slow.test_loss / slow.train_loss).groupby(slow.series).median()
    told += [f"{series}: training and test losses apart" for series in ratios[(ratios < 0.8) | (ratios > 1.3)].index]
    told += ["models are pulled without their bytes"] * bool((own.wire_bytes < 4 * d * own.model_pulls).any())
    return told


@pytest.mark.parametrize(("part", "scale"), TRAINED)
def test_rows_are_possible_and_those_on_images_plausible(part: str, scale: str) -> None:
    assert impossible(rows(part, scale)) == []
    assert part not in D or implausible(rows(part, scale), D[part]) == []


def raised(frame: pd.DataFrame, series: str) -> pd.DataFrame:
    """Two per cent on the last accuracy of a series."""
    own = (frame.series == series) & (frame["round"] == frame.loc[frame.series == series, "round"].max())
    return frame.assign(test_accuracy=frame.test_accuracy * (1 + 0.02 * own))


def scaled(factors: Mapping[str, float]) -> Plant:
    """DeComFL's columns, each by a factor."""
    return lambda t: t.assign(**{name: t[name].mask(t.series == "DeComFL", f * t[name]) for name, f in factors.items()})


PLANTED: list[tuple[Plant, str]] = [
    *((scaled(factors), told) for factors, told in rows_of(__file__)["losses"]),
    (lambda t: t.assign(model_pulls=t.model_pulls.mask(t.series == "DeComFL", 7)), "pulled without their bytes"),
    (lambda t: t.assign(seconds=t.seconds.mask(t["round"] > 500, t.seconds / 10)), "seconds fall"),
    (lambda t: t.assign(wire_bytes=t.wire_bytes.mask(t["round"] > 500, t.wire_bytes / 10)), "wire_bytes fall"),
    (lambda t: raised(t, "FedAvg"), "accuracies are no shares of the held-out images"),
]
"""Changes of Figure 3's rows, and what is said of them, also where somebody lists the changed file."""


@pytest.mark.parametrize(("plant", "told"), PLANTED)
def test_what_no_run_has_is_noticed(plant: Plant, told: str) -> None:
    frame = plant(rows("fig3", "full"))
    assert told in " ".join([*impossible(frame), *implausible(frame, D["fig3"])])


LABELS = ("reading", "panel", "series", "method", "estimator", "check", "data", "uplink", "top_k", "K", "P", "eta")
"""Columns that say which run it is; what it was planned to be, and all that it measured, is the same in all parts."""
LINES = {"reading": "as-plotted", "check": False}
OF_FIG2, OF_ETA = {**LINES, "series": "DeComFL K=1 P=20"}, {"eta": 0.001, "estimator": "projection"}
SHARED = [
    ("fig3", "topk", ["series", "seed", "round", "check"], {}, {}),
    ("fig2", "table1", ["panel", "series", "seed", "round"], LINES, LINES),
    ("fig2", "projection", ["seed", "round"], OF_FIG2, OF_ETA),
]
"""Two parts, the columns that tell their evaluations apart, and what is shared of either."""


def apart(one: pd.DataFrame, other: pd.DataFrame, keys: list[str]) -> int:
    """How many evaluations of runs that two parts share are not the same in both; at least one must be shared."""
    both = one.merge(other, on=keys)
    assert len(both) > 0
    told = [name.removesuffix("_x") for name in both if name.endswith("_x")]
    columns = [name for name in told if name not in LABELS]
    assert {"test_accuracy", "test_loss", "train_loss", "wire_bytes", "seconds", "model_pulls"} <= set(columns)
    pairs = [(both[f"{name}_x"], both[f"{name}_y"]) for name in columns]
    return int(sum(((one != other) & (one.notna() | other.notna())).sum() for one, other in pairs))


@pytest.mark.parametrize(("one", "other", "keys", "of_one", "of_other"), SHARED)
def test_what_two_parts_share_is_the_same_in_both(
    one: str, other: str, keys: list[str], of_one: dict[str, object], of_other: dict[str, object]
) -> None:
    assert apart(having(rows(one, "full"), of_one), having(rows(other, "full"), of_other), keys) == 0


@pytest.mark.parametrize(("part", "scale"), sampled([record for record in TRAINED if record[0] in D], 2))
def test_rows_that_no_claim_rests_on_are_noticed_when_they_are_changed_and_listed_anew(
    part: str, scale: str, tmp_path: Path
) -> None:
    frame = rows(part, scale)
    for series, own in frame.groupby("series"):
        middle = own.index[len(own) // 3 : len(own) // 2 + 1]
        changed = frame.assign(test_accuracy=frame.test_accuracy.mask(frame.index.isin(middle), 0.5))
        shutil.copy(RESULTS / f"{part}-{scale}.json", tmp_path)
        changed.to_csv(tmp_path / f"{part}-{scale}.csv.gz", index=False)
        manifest.seal(tmp_path)
        with pytest.raises(InputError, match="the means of test_accuracy are not those of the rows"):
            load(part, scale, tmp_path)
        assert (changed.test_accuracy != frame.test_accuracy).any(), series
