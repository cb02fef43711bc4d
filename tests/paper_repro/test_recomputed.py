"""Every number and verdict in ``claims.json`` is computed a second time, from the recorded rows, by other code."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import pytest

from tests.paper_repro.recomputed import images, others  # noqa: F401 (they register)
from tests.paper_repro.recomputed.common import Part, known, outcomes, recomputed, rows, scale_of

OUTCOMES = {outcome["id"]: outcome for outcome in outcomes()}
_BY_LOGS = ("settings", "band", "band-of-the-text")


def _marks(name: str) -> list[pytest.MarkDecorator]:
    needs = (name.endswith("-in-the-logs") or name.partition(".")[2] in _BY_LOGS) and not os.environ.get(
        "DECOMFL_REFERENCE"
    )
    return [pytest.mark.skip("needs the authors' curves (DECOMFL_REFERENCE)")] if needs else []


def differing(outcome: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The names of the numbers that are not the same; a count of none may be left out."""
    there = {name: value for name, value in found.items() if value is not None and value == value}
    told = {name: value for name, value in outcome["measured"].items() if value is not None}
    wrong = {name for name in there.keys() ^ told.keys() if {**there, **told}[name] != 0}
    return sorted(
        wrong | {name for name in there.keys() & told.keys() if there[name] != pytest.approx(told[name], 1e-9)}
    )


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in OUTCOMES])
def test_every_number_and_verdict_follows_from_the_recorded_rows(name: str) -> None:
    numbers, verdict = recomputed(OUTCOMES[name])
    assert differing(OUTCOMES[name], numbers) == []
    assert verdict == OUTCOMES[name]["verdict"]


def test_nothing_that_is_recorded_is_left_out() -> None:
    assert [name for name in OUTCOMES if not known(name)] == []


# --- planted ----------------------------------------------------------------------------------------------------------


def caught(part: str, plant: Callable[[pd.DataFrame], pd.DataFrame]) -> set[str]:
    """The recorded outcomes of a part that no longer follow from its rows after a fault is planted in these."""
    found = set()
    spoilt = Part(part, plant(rows(part, "full")))
    for name, outcome in OUTCOMES.items():
        if name.startswith(f"{part}.") and not _marks(name) and scale_of(outcome) == "full":
            numbers, verdict = recomputed(outcome, spoilt)
            if differing(outcome, numbers) or verdict != outcome["verdict"]:
                found.add(name)
    return found


def raised(frame: pd.DataFrame, series: str) -> pd.DataFrame:
    """Two per cent on the last accuracy of a series."""
    own = (frame.series == series) & (frame["round"] == frame.loc[frame.series == series, "round"].max())
    return frame.assign(test_accuracy=frame.test_accuracy * (1 + 0.02 * own))


def swapped(frame: pd.DataFrame, series: str) -> pd.DataFrame:
    """The labels of FedAvg and of a series, one for the other."""
    return frame.assign(series=frame.series.replace({"FedAvg": series, series: "FedAvg"}))


def shorter(frame: pd.DataFrame) -> pd.DataFrame:
    """FedAvg's rows of a smaller scale."""
    small = rows("fig3", "default")
    return pd.concat([frame[frame.series != "FedAvg"], small[small.series == "FedAvg"]], ignore_index=True)


PLANTED: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame], set[str]]] = {
    "FedAvg better in Figure 2": ("fig2", lambda t: raised(t, "FedAvg K=10"), set()),
    "FedAvg better in Figure 3": ("fig3", lambda t: raised(t, "FedAvg"), set()),
    "FedAvg better beside top-k": ("topk", lambda t: raised(t, "FedAvg"), set()),
    "FedCom as FedAvg": ("fig3", lambda t: swapped(t, "FedCom 8 bit"), set()),
    "top-k as FedAvg": ("topk", lambda t: swapped(t, "FedAvg+Top-k 1 %"), set()),
    "a seed that is dropped": (
        "fig2",
        lambda t: t[(t.series != "DeComFL K=10 P=20") | (t.seed != 2)],
        {"fig2.saving", "fig2.local-updates", "fig2.p-over-k"},
    ),
    "rows of another scale": (
        "fig3",
        shorter,
        {f"fig3.{each}" for each in ("twenty-times", "saving", "slower", "not-by-d")},
    ),
    "half of the bytes": (
        "fig2",
        lambda t: t.assign(wire_scalars=t.wire_scalars / 2),
        {"fig2.saving", "fig2.slow-start"},
    ),
    "nothing diverged": ("fig2", lambda t: t.assign(diverged=False), {"fig2.local-updates"}),
}
"""A part, what is done to its rows, and outcomes that do not follow from them then, at least one."""


@pytest.mark.parametrize("name", PLANTED)
def test_rows_that_were_changed_are_noticed(name: str) -> None:
    part, plant, expected = PLANTED[name]
    found = caught(part, plant)
    assert found
    assert expected <= found


@pytest.mark.parametrize("name", [name for name in OUTCOMES if not _marks(name) and OUTCOMES[name]["measured"]])
def test_a_number_that_is_changed_is_noticed(name: str) -> None:
    found = recomputed(OUTCOMES[name])[0]
    for key, value in OUTCOMES[name]["measured"].items():
        planted = {**OUTCOMES[name], "measured": {**OUTCOMES[name]["measured"], key: 1.02 * (value or 0) + 1e-3}}
        assert differing(planted, found) == [key]
