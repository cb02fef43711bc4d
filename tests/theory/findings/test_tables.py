"""The tables: transcribed as printed, and checks that catch a wrong number."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from decomfl_lab.language.tasks import SOURCES, TASKS, load_task
from tests.theory.findings.entries import confirmed, result
from theory.communication import Numbers, expected_numbers
from theory.findings.evidence import tables
from theory.findings.evidence.tables import least_runs
from theory.findings.source import TexSource
from theory.findings.transcription import mistranscribed
from theory.notation.printed import EXAMPLES, LORA, MOST_FREQUENT, RESULTS, ROUNDS, Cell

DATA = os.environ.get("DECOMFL_DATA", "")  # hidden from tests


def test_the_tables_are_transcribed(paper: TexSource) -> None:
    assert mistranscribed(paper) == []


@pytest.mark.parametrize(("line", "old", "new"), [(585, "87.32", "87.33"), (928, "0.36", "0.37"), (894, "3k", "2k")])
def test_another_number_in_the_source_is_seen(paper: TexSource, line: int, old: str, new: str) -> None:
    lines = [each.replace(old, new, 1) if abs(n - line) < 8 else each for n, each in enumerate(paper.lines, 1)]
    assert len(mistranscribed(replace(paper, lines=tuple(lines)))) == 1


def test_the_most_frequent_answers_are_those_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    if not DATA:
        pytest.skip("needs the tasks (DECOMFL_DATA)")
    monkeypatch.setenv("DECOMFL_DATA", DATA)
    for task, name in zip(TASKS, EXAMPLES, strict=True):
        if not SOURCES[task].borrowed:  # else a part of the validation set is trained on
            classes = [label for _, label in load_task(task).test]
            assert (len(classes), max(map(classes.count, classes))) == (EXAMPLES[name], MOST_FREQUENT[name]), name


@pytest.mark.parametrize("label", ["table.llm-125m-1.3b", "line-582.4", "table.Experiment setting"])
def test_another_number_of_rounds_is_caught(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert confirmed(label)
    wrong = {**ROUNDS, "OPT-125M": {**ROUNDS["OPT-125M"], "WIC": 2900}}
    monkeypatch.setattr(tables, "ROUNDS", wrong)
    assert not confirmed(label)


def test_a_mended_cell_that_was_wrong_is_no_typo_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = RESULTS["OPT-1.3B"]
    right = (*rows["RTE"][:3], Cell(60.89, 0.18))
    monkeypatch.setattr(tables, "RESULTS", {**RESULTS, "OPT-1.3B": {**rows, "RTE": right}})
    for label in ("table.llm-125m-1.3b", "line-582.2"):
        assert not confirmed(label)


def test_a_wrong_cost_with_lora_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = (*LORA["CB"][:3], Cell(71.43, 0.13))
    monkeypatch.setattr(tables, "LORA", {**LORA, "CB": wrong})
    assert not confirmed("table.llm-125m-lora")


def test_costs_of_lora_would_not_be_called_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tables, "LORA", {name: (cells[0], Cell(50.0, 0.0018), *cells[2:]) for name, cells in LORA.items()}
    )
    assert not confirmed("line-920.2")


@pytest.mark.parametrize(
    ("accuracy", "n", "runs"), [(75.00, 56, 1), (82.14, 56, 1), (83.33, 3, 2), (12.34, 1, None), (50.0, 7, 2)]
)
def test_the_least_number_of_runs(accuracy: float, n: int, runs: int | None) -> None:
    assert least_runs(accuracy, n, most=20) == runs


def test_a_symbol_with_other_indices_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    world = tables.play(tables.PROGRAMS["Algorithm 1"])
    world["x"][9] = world["x"][0]
    monkeypatch.setattr(tables, "play", lambda program: world)
    found = result("line-627").evidence[0][1]
    assert not found.holds
    assert "not: ['x_r']" in found.says


def test_clients_that_always_take_part_would_move_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_clients(R: int, *, M: int, m: int, K: int, P: int) -> Numbers:
        return expected_numbers(R, M=M, m=M, K=K, P=P)

    monkeypatch.setattr(tables, "expected_numbers", all_clients)
    assert not confirmed("line-582.5")
