"""Live runs begin recorded ones, and a number that is not as recorded is told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from decomfl_lab.processes import Processes
from decomfl_lab.runs.configuration import TrainConfig
from paper_repro.live_runs import SHARE, Agreement, agreement, overlay
from paper_repro.report_folder import DrawnPart
from paper_repro.workflow.recordings import Rows
from paper_repro.workflow.runs import Job, run_all
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome
from tests.cases import rows_of

FACTS = {"data_digest": "digits", "data": "digits"}


def job(**changes: Any) -> Job:
    settings: dict[str, Any] = {"clients": 4, "sampled": 2, "rounds": 8, "eval_every": 1, "batch_size": 8, "lr": 0.001}
    return Job(TrainConfig(**(settings | changes)), {"series": "DeComFL"}, "a run")


def rows(**changes: Any) -> pd.DataFrame:
    frame = pd.DataFrame({"round": [0, 1, 2], "test_accuracy": [0.1, 0.2, 0.3], "train_loss": [2.3, 2.2, 2.1]})
    return frame.assign(series="DeComFL", seed=0, planned=8, finished=False, seconds=[0.0, 1.0, 2.0], **changes)


def kept(frame: pd.DataFrame, **facts: str) -> Rows:
    return Rows("default", frame, [FACTS | facts], "2026-01-01", "abc", (1, 1))


def compared(recorded: Rows | None, here: pd.DataFrame | None = None) -> Agreement:
    work = job().beginning(0.25)
    here = rows() if here is None else here
    return agreement([work], {work.key(): (here, FACTS)}, here, recorded)


def test_a_beginning_has_the_rows_of_the_whole_run_and_is_not_called_finished(tmp_path: Path) -> None:
    whole = job()
    with Processes(1) as here:
        found = run_all([whole, whole.beginning(SHARE)], tmp_path, here)
    (long, _), (short, _) = (result for result in found if result)
    assert short["round"].max() == 2
    assert not short.finished.any()
    assert set(short.planned) == {8}
    numbers = ["test_accuracy", "test_loss", "train_loss", "wire_bytes"]
    pd.testing.assert_frame_equal(short[numbers], long[long["round"] <= 2][numbers], check_exact=True)
    assert job(rounds=100, eval_every=20).beginning(0.25).config.rounds == 40  # its second evaluation
    assert job(rounds=3, eval_every=2).beginning(0.25) == job(rounds=3, eval_every=2)


EVERY = "3 of 3 rows equal the recorded ones in every digit and word."
TEXT = {"why": ["", "as it is", None]}
COMPARED: list[tuple[dict[str, Any], dict[str, Any], bool, int, str]] = [
    *(({name: value}, {}, alike, 2, f"numbers is in {name}") for name, value, alike in rows_of(__file__)["numbers"]),
    ({"why": [None, "as it is", ""]}, TEXT, True, 3, EVERY),
    ({"why": [None, "as it was", ""]}, TEXT, False, 2, f"{EVERY.replace('3', '2', 1)} Texts differ in why."),
    # Measured memory may differ by more.
    ({"peak_bytes": 100}, {"peak_bytes": 130}, True, 0, "numbers is in peak_bytes"),
    ({"peak_bytes": 100}, {"peak_bytes": 300}, False, 0, "numbers is in peak_bytes"),
]
"""Columns of recorded rows and of those here, whether they are alike, how many are equal, and what is said."""


@pytest.mark.parametrize(("there", "here", "alike", "equal", "told"), COMPARED)
def test_what_differs_is_told_with_its_column_and_seconds_are_not_compared(
    there: dict[str, Any], here: dict[str, Any], alike: bool, equal: int, told: str
) -> None:
    found = compared(kept(rows(**there).assign(seconds=9.0)), rows(**here))
    assert (found.alike, found.equal) == (alike, equal)
    assert told in str(found)


def test_runs_on_other_data_or_without_a_record_are_not_compared() -> None:
    other = compared(kept(rows(), data_digest="another"))
    assert (other.alike, other.compared) == (None, 0)
    assert "of other data" in str(other)
    assert compared(None).alike is None
    assert compared(kept(rows().assign(planned=9))).compared == 0


def test_the_badge_says_what_differs() -> None:
    made = DrawnPart({}, [ClaimOutcome("fig2.saving", "holds")])
    same = [ClaimOutcome("fig2.saving", "holds")]
    work, found = [job().beginning(0.25)], compared(kept(rows()))
    assert overlay(work, found, made, same, "").tone == "yes"
    turned = overlay(work, found, made, [ClaimOutcome("fig2.saving", "does not hold")], "digits")
    assert turned.tone == "depends"
    assert "fig2.saving reads “holds” here, “does not hold” there" in turned.words[1]
    assert overlay(work, replace(found, largest={"train_loss": 0.5}), made, same, "").tone == "no"
    assert overlay(work, Agreement(3), made, same, "").tone == "untested"
