"""The algorithms run to the letter, and the interpreter that runs them."""

from dataclasses import replace

import pytest

from tests.theory.findings.entries import confirmed, entry
from theory.findings.data import LINES
from theory.findings.evidence.algorithms import PROGRAMS, SAMPLED, Symbols, UndefinedError, outcome, play


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_mended_algorithms_work(name: str) -> None:
    assert outcome(PROGRAMS[name]) == ""


@pytest.mark.parametrize("label", LINES)
def test_a_line_is_either_mended_or_has_a_fault_to_plant(label: str) -> None:
    line, own = LINES[label], entry(label)
    assert ("printed" in line) != ("plant" in line)
    assert "plant" in line or (own.why and own.instead)
    assert confirmed(label)


@pytest.mark.parametrize("name", ["Algorithm 1", "Algorithm 4"])
def test_an_algorithm_as_printed_does_not_work(name: str) -> None:
    program = PROGRAMS[name]
    printed = {
        part: tuple(replace(each, code=each.printed or each.code) for each in getattr(program, part))
        for part in ("server", "client")
    }
    assert outcome(replace(program, **printed))


def test_clients_lag_in_the_history_that_is_played() -> None:
    assert 3 not in SAMPLED[0] + SAMPLED[1]
    assert 1 not in SAMPLED[2]
    assert play(PROGRAMS["Algorithm 1"])["t"] == {1: 3, 2: 2, 3: 3}


def test_symbols_are_not_read_before_they_are_written_nor_written_where_nothing_is_allocated() -> None:
    x = Symbols("x", {(1, 2): 3}, [(1, 2)])
    assert x[1, 2] == 3
    with pytest.raises(UndefinedError, match=r"x\[1, 3\] is read before it has a value"):
        x[1, 3]
    with pytest.raises(UndefinedError, match=r"x\[4\] was not allocated"):
        x[4] = 0
