"""Recorded rows are rows that runs can have: what must be equal is, and what must be whole is, whoever lists them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.paper_repro.recomputed.common import RESULTS, rows

RECORDS = [path.name.removesuffix(".csv.gz").rpartition("-")[::2] for path in sorted(RESULTS.glob("*.csv.gz"))]
TRAINED = [record for record in RECORDS if "wire_bytes" in rows(*record)]
RUN = ["reading", "panel", "series", "estimator", "check", "row", "task", "problem", "line", "model", "eta", "seed"]


def impossible(frame: pd.DataFrame) -> list[str]:
    """What no run can have: a share of no whole number of images, bytes that come back, scalars that are no bytes."""
    told = []
    if "examples" in frame:
        right = frame.test_accuracy * frame.examples
        told += ["accuracies are no shares of the held-out images"] * bool(((right - right.round()).abs() > 1e-6).any())
    known = [name for name in RUN if name in frame]
    for name, run in frame.groupby(known, dropna=False) if known else [("all", frame)]:
        own = run.dropna(subset=["wire_bytes"]).sort_values("round", kind="stable")
        counts = [each for each in ("wire_bytes", "up_bytes", "gradient_scalars", "wire_scalars") if each in own]
        told += [f"{name}: {each} fall" for each in counts if (own.groupby("round")[each].max().diff() < 0).any()]
        told += [f"{name}: more goes up than goes"] * bool((own.up_bytes > own.wire_bytes).any())
        if "wire_scalars" in own and own.wire_scalars.max() > 0:
            clients = (own.wire_bytes / (4 * own.wire_scalars)).dropna()
            told += [f"{name}: scalars are not the bytes of its clients"] * (not np.allclose(clients, clients.iloc[0]))
    return told


@pytest.mark.parametrize(("part", "scale"), TRAINED)
def test_rows_are_possible(part: str, scale: str) -> None:
    assert impossible(rows(part, scale)) == []


SHARED = [
    ("fig3", "topk", ["series", "seed", "round", "check"], {}),
    ("fig2", "table1", ["panel", "series", "seed", "round"], {"reading": "as-plotted", "check": False}),
]


def apart(one: pd.DataFrame, other: pd.DataFrame, keys: list[str], only: dict[str, object]) -> int:
    """How many evaluations of runs that two parts share are not the same in both; at least one must be shared."""
    for name, value in only.items():
        one, other = one[one[name] == value], other[other[name] == value]
    both = one.merge(other, on=keys)
    assert len(both) > 0
    columns = ["test_accuracy", "test_loss", "train_loss", "wire_bytes", "up_bytes"]
    return int(sum((both[f"{name}_x"] != both[f"{name}_y"]).sum() for name in columns))


@pytest.mark.parametrize(("one", "other", "keys", "only"), SHARED)
def test_what_two_parts_share_is_the_same_in_both(
    one: str, other: str, keys: list[str], only: dict[str, object]
) -> None:
    assert apart(rows(one, "full"), rows(other, "full"), keys, only) == 0


def test_the_projection_figure_has_the_runs_of_figure_2() -> None:
    two, one = rows("fig2", "full"), rows("projection", "full")
    own = two[(two.reading == "as-plotted") & (two.series == "DeComFL K=1 P=20") & ~two.check]
    assert apart(own, one[(one.eta == 0.001) & (one.estimator == "projection")], ["seed", "round"], {}) == 0


def raised(frame: pd.DataFrame, factor: float = 1.02) -> pd.DataFrame:
    """FedAvg's last accuracies, two per cent higher."""
    last = (frame.series.str.startswith("FedAvg")) & (frame["round"] == frame[frame.series == "FedAvg"]["round"].max())
    return frame.assign(test_accuracy=frame.test_accuracy.where(~last, frame.test_accuracy * factor))


def test_two_per_cent_more_of_fedavgs_last_accuracy_are_no_share_of_the_images() -> None:
    """Also where somebody lists the changed file and makes the claims of it."""
    assert impossible(raised(rows("fig3", "full"))) == ["accuracies are no shares of the held-out images"]


def test_whole_numbers_of_images_more_in_one_part_are_noticed_by_another_that_has_the_run() -> None:
    frame = raised(rows("fig3", "full"))
    rounded = frame.assign(test_accuracy=(frame.test_accuracy * frame.examples).round() / frame.examples)
    assert impossible(rounded) == []
    assert apart(rounded, rows("topk", "full"), ["series", "seed", "round", "check"], {}) > 0


def test_bytes_of_another_run_are_noticed() -> None:
    frame = rows("fig3", "full")
    half = frame.assign(wire_bytes=frame.wire_bytes.where(frame["round"] < 500, frame.wire_bytes / 10))
    assert any("wire_bytes fall" in told for told in impossible(half))
