"""The algorithms run to the letter, and the interpreter that runs them."""

from dataclasses import replace

import pytest

from decomfl_lab.errors import InputError
from tests.theory.findings.entries import confirmed, entry
from theory.findings import data
from theory.findings.data import LINES
from theory.findings.evidence import algorithms
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


@pytest.mark.parametrize("words", ["b", "a"])
def test_words_that_do_not_stand_once_in_the_code_of_a_line_cannot_be_changed(words: str) -> None:
    with pytest.raises(InputError, match=f"what line-9 changes in its code must stand there once, got '{words}'"):
        data._changed("line-9", "    x = a + a", [words, "c"])


def test_an_entry_can_only_be_judged_as_one_that_is_there() -> None:
    with pytest.raises(InputError, match="as of line-9 must be the label of an entry, got 'line-0'"):
        data._entry({"line-1": {}}, "line-0", "as of line-9")


@pytest.mark.parametrize("label", list(LINES)[::5])
def test_a_line_that_is_run_as_it_should_be_where_a_fault_belongs_is_caught(
    label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, line = algorithms._of(label)
    harmless = f"{line.code}  # the same"
    wrong = replace(line, printed=harmless, plant=harmless)
    monkeypatch.setattr(algorithms, "_of", lambda label: (program, wrong))
    assert not confirmed(label)


def test_a_misprint_elsewhere_stops_a_line_from_being_called_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    program, line = algorithms._of("line-303")
    printed = tuple(replace(each, code=each.printed or each.code) for each in program.client)
    monkeypatch.setattr(algorithms, "_of", lambda label: (replace(program, client=printed), line))
    assert not algorithms.runs("line-303").holds


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
