"""What the checks of claims, displays and tables are made of, and that they catch a wrong number."""

import os
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from decomfl_lab.language.tasks import TASKS, load_task
from tests.cases import rows_of
from tests.theory.findings.coverage import mistranscribed
from tests.theory.findings.source import TexSource
from theory.findings.evidence.tables import least_runs
from theory.notation.printed import EXAMPLES, MOST_FREQUENT


@pytest.mark.parametrize(("name", "given", "holds"), rows_of(__file__)["given"])
def test_evidence_holds_at_its_own_numbers_alone(name: str, given: list[Any], holds: bool) -> None:
    module, find = name.split(".")
    assert getattr(import_module(f"theory.findings.evidence.{module}"), find)(*given).holds is holds


# Displays of the main text --------------------------------------------------------------------------------------------


# Tables ---------------------------------------------------------------------------------------------------------------


DATA = os.environ.get("DECOMFL_DATA", "")  # hidden from tests


CHANGED = [(0, "", "", 0), (585, "87.32", "87.33", 1), (928, "0.36", "0.37", 1), (894, "3k", "2k", 1)]


@pytest.mark.parametrize(("line", "old", "new", "wrong"), CHANGED)
def test_the_tables_are_transcribed(paper: TexSource, line: int, old: str, new: str, wrong: int) -> None:
    """Another number in the source is seen."""
    lines = [each.replace(old, new, 1) if abs(n - line) < 8 else each for n, each in enumerate(paper.lines, 1)]
    assert len(mistranscribed(replace(paper, lines=tuple(lines)))) == wrong


@pytest.mark.skipif(not DATA, reason="needs the tasks (DECOMFL_DATA)")
def test_the_most_frequent_answers_are_those_of_the_data(data_in: Any) -> None:
    data_in(DATA)
    for task, name in zip(TASKS, EXAMPLES, strict=True):
        if not TASKS[task].files.borrowed:  # else a part of the validation set is trained on
            classes = [label for _, label in load_task(task).test]
            assert (len(classes), max(map(classes.count, classes))) == (EXAMPLES[name], MOST_FREQUENT[name]), name


@pytest.mark.parametrize(
    ("accuracy", "n", "runs"), [(75.00, 56, 1), (82.14, 56, 1), (83.33, 3, 2), (12.34, 1, None), (50.0, 7, 2)]
)
def test_the_least_number_of_runs(accuracy: float, n: int, runs: int | None) -> None:
    assert least_runs(accuracy, n, most=20) == runs
