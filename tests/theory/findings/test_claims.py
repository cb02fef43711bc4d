"""What the checks of claims, displays and tables are made of, and that they catch a wrong number."""

import os
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import sympy as sp

from decomfl_lab.language.tasks import TASKS, load_task
from tests.cases import rows_of
from tests.theory.findings.coverage import mistranscribed
from tests.theory.findings.source import TexSource
from theory.findings.evidence import formulas
from theory.findings.evidence.claims import best_average
from theory.findings.evidence.tables import least_runs
from theory.notation.printed import EXAMPLES, MOST_FREQUENT


@pytest.mark.parametrize(("name", "given", "holds"), rows_of(__file__)["given"])
def test_evidence_holds_at_its_own_numbers_alone(name: str, given: list[Any], holds: bool) -> None:
    module, find = name.split(".")
    assert getattr(import_module(f"theory.findings.evidence.{module}"), find)(*given).holds is holds


def test_the_least_average_is_below_that_of_any_step_size() -> None:
    sigma, R = 1.0, 10_000
    for P in (1, 100):
        rho = 1 + 2 / P
        for eta in (1e-3, 1e-2, 0.1 / rho):
            # E x² after a step is (1 − 2η + η²ρ) E x² + η²ρσ², from x_0² = 2
            shrink, fixed = 1 - 2 * eta + eta**2 * rho, eta**2 * rho * sigma**2
            level = fixed / (1 - shrink)
            average = level + (2 - level) * (1 - shrink**R) / (1 - shrink) / R
            assert best_average(P=P, sigma=sigma) <= average * (1 + 1e-3)


# Displays of the main text --------------------------------------------------------------------------------------------


def test_means_of_polynomials_of_a_normal_variable() -> None:
    z, a = sp.symbols("z a")
    assert formulas.normal_mean(a * z**6 + z**3 + 2 * z**2 + 5, z) == 15 * a + 7


# Tables ---------------------------------------------------------------------------------------------------------------


DATA = os.environ.get("DECOMFL_DATA", "")  # hidden from tests


CHANGED = [(0, "", "", 0), (585, "87.32", "87.33", 1), (928, "0.36", "0.37", 1), (894, "3k", "2k", 1)]


@pytest.mark.parametrize(("line", "old", "new", "wrong"), CHANGED)
def test_the_tables_are_transcribed(paper: TexSource, line: int, old: str, new: str, wrong: int) -> None:
    """Another number in the source is seen."""
    lines = [each.replace(old, new, 1) if abs(n - line) < 8 else each for n, each in enumerate(paper.lines, 1)]
    assert len(mistranscribed(replace(paper, lines=tuple(lines)))) == wrong


@pytest.mark.skipif(not DATA, reason="needs the tasks (DECOMFL_DATA)")
def test_the_most_frequent_answers_are_those_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECOMFL_DATA", DATA)
    for task, name in zip(TASKS, EXAMPLES, strict=True):
        if not TASKS[task].files.borrowed:  # else a part of the validation set is trained on
            classes = [label for _, label in load_task(task).test]
            assert (len(classes), max(map(classes.count, classes))) == (EXAMPLES[name], MOST_FREQUENT[name]), name


@pytest.mark.parametrize(
    ("accuracy", "n", "runs"), [(75.00, 56, 1), (82.14, 56, 1), (83.33, 3, 2), (12.34, 1, None), (50.0, 7, 2)]
)
def test_the_least_number_of_runs(accuracy: float, n: int, runs: int | None) -> None:
    assert least_runs(accuracy, n, most=20) == runs
