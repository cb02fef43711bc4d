"""``decomfl bench tuning``."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest

from benchmarks.tuning import PROBLEMS, TuningOptions, tuning
from decomfl_lab.cli.main import main


@pytest.mark.thorough
def test_on_equal_eigenvalues_auto_needs_no_more_rounds_than_a_tenth_above_the_best_of_the_grid() -> None:
    rows = {row.step: row for row in tuning.rows(TuningOptions(problem="flat", momentum=0.0, seeds=1))}
    grid = [row.rounds for step, row in rows.items() if step != "auto" and row.rounds is not None]
    assert len(rows) == 10
    assert len(grid) in range(3, 9)  # too small and too large steps do not get there
    assert rows["auto"].rounds is not None
    assert rows["auto"].rounds <= 1.1 * min(grid)


def test_a_goal_that_no_seed_reaches_is_no_number_of_rounds() -> None:
    with patch.object(type(PROBLEMS["flat"]), "rounds", lambda *_, **__: (None, None)):
        row = next(tuning.rows(TuningOptions(problem="flat", momentum=0.0, seeds=2)))
    assert (row.rounds, row.there, row.lr) == (None, 0, None)


def test_the_command_refuses_a_problem_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tuning", "--problem", "steep"]) == 2
    assert "problem must be one of" in capsys.readouterr().err


def test_the_command_prints_its_rows_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with patch.object(type(PROBLEMS["flat"]), "rounds", lambda *_, **__: (7, None)):
        assert main(["bench", "tuning", "--problem", "flat", "--seeds", "2", "--json"]) == 0
    assert {row["rounds"] for row in json.loads(capsys.readouterr().out)["tables"][0]["rows"]} == {7.0}
