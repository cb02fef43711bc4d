"""The algorithms run to the letter, and the interpreter that runs them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from theory.audit.algorithms import PROGRAMS, SAMPLED, Line, Program, Symbols, UndefinedError, entry, outcome, play
from theory.audit.entry import gather

LINES = [(program, line) for program in PROGRAMS for line in program.lines]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_mended_algorithms_work(program: Program) -> None:
    assert outcome(program) == ""


@pytest.mark.parametrize(("program", "line"), LINES, ids=[line.label for _, line in LINES])
def test_a_line_is_either_mended_or_has_a_fault_to_plant(program: Program, line: Line) -> None:
    assert bool(line.printed) != bool(line.plant)
    assert not line.printed or (line.why and line.fix)
    assert gather(entry(program, line)).confirmed


@pytest.mark.parametrize(("program", "line"), LINES[::5], ids=[line.label for _, line in LINES[::5]])
def test_a_wrong_finding_on_a_line_is_caught(program: Program, line: Line) -> None:
    harmless = f"{line.code}  # the same"
    wrong = replace(line, printed=harmless) if line.printed else replace(line, plant=harmless)
    assert not gather(entry(program, wrong)).confirmed
    if line.plant:
        called_a_typo = replace(line, printed=line.code, plant="", why="?")
        assert not gather(entry(program, called_a_typo)).confirmed


def test_a_misprint_elsewhere_stops_a_line_from_being_called_correct() -> None:
    program = PROGRAMS[0]
    broken = replace(program, client=tuple(replace(line, code=line.printed or line.code) for line in program.client))
    assert not gather(entry(broken, program.server[2])).confirmed


def test_clients_lag_in_the_history_that_is_played() -> None:
    assert 3 not in SAMPLED[0] + SAMPLED[1]
    assert 1 not in SAMPLED[2]
    assert play(PROGRAMS[0])["t"] == {1: 3, 2: 2, 3: 3}


def test_symbols_are_not_read_before_they_are_written_nor_written_where_nothing_is_allocated() -> None:
    x = Symbols("x", {(1, 2): 3}, [(1, 2)])
    assert x[1, 2] == 3
    with pytest.raises(UndefinedError, match=r"x\[1, 3\] is read before it has a value"):
        x[1, 3]
    with pytest.raises(UndefinedError, match=r"x\[4\] was not allocated"):
        x[4] = 0
