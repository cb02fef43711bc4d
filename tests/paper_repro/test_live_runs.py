"""Live runs begin recorded ones, and a number that is not as recorded is told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from decomfl_lab.processes import Processes
from decomfl_lab.runs.configuration import TrainConfig
from paper_repro.live_runs import Agreement, agreement, beginning, overlay
from paper_repro.report_folder import DrawnPart
from paper_repro.workflow.claims import ClaimOutcome
from paper_repro.workflow.recordings import Rows
from paper_repro.workflow.runs import Job, run_all
from tests.tables import rows_of

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
        found = run_all([whole, beginning(whole)], tmp_path, here)
    (long, _), (short, _) = (result for result in found if result)
    assert short["round"].max() == 2
    assert not short.finished.any()
    assert set(short.planned) == {8}
    numbers = ["test_accuracy", "test_loss", "train_loss", "wire_bytes"]
    pd.testing.assert_frame_equal(short[numbers], long[long["round"] <= 2][numbers], check_exact=True)


def test_a_run_is_begun_up_to_its_second_evaluation_at_least() -> None:
    assert job(rounds=100, eval_every=20).beginning(0.25).config.rounds == 40
    assert job(rounds=3, eval_every=2).beginning(0.25) == job(rounds=3, eval_every=2)


def test_equal_rows_are_told_as_equal_and_seconds_are_not_compared() -> None:
    found = compared(kept(rows().assign(seconds=9.0)))
    assert found.alike
    assert str(found) == "3 of 3 rows equal the recorded ones in every digit and word."


@pytest.mark.parametrize(("column", "value", "alike"), rows_of(__file__)["numbers"])
def test_a_changed_number_is_told_with_its_column(column: str, value: list[float], alike: bool) -> None:
    found = compared(kept(rows(**{column: value})))
    assert found.alike is alike
    assert found.equal == 2
    assert f"The largest difference of numbers is in {column}" in str(found)


def test_a_changed_text_is_told_with_its_column() -> None:
    here = rows(why=["", "as it is", None])
    assert compared(kept(rows(why=[None, "as it is", ""])), here).equal == 3
    found = compared(kept(rows(why=[None, "as it was", ""])), here)
    assert (found.alike, found.equal, found.texts) == (False, 2, ("why",))
    assert str(found) == "2 of 3 rows equal the recorded ones in every digit and word. Texts differ in why."


def test_measured_memory_may_differ_by_more() -> None:
    assert compared(kept(rows(peak_bytes=100)), rows(peak_bytes=130)).alike
    assert not compared(kept(rows(peak_bytes=100)), rows(peak_bytes=300)).alike


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
