"""Displays of the main text: what the checks are made of."""

from __future__ import annotations

from typing import Any

import pytest
import sympy as sp

from theory.audit import main_text
from theory.audit.algorithms import Line, Program, outcome
from theory.audit.entry import gather

PROGRAMS = (main_text._FEDZO, main_text._INTERMEDIATE, main_text._REBUILT, main_text._SYNCHRONISED)
LINES = [(program, line) for program in PROGRAMS for line in program.server if line.label]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_mended_recursions_work(program: Program) -> None:
    assert outcome(program) == ""


@pytest.mark.parametrize(("program", "line"), LINES)
def test_a_fault_in_any_line_is_caught(program: Program, line: Line) -> None:
    assert outcome(program, {line.label: line.printed or line.plant})


@pytest.mark.parametrize("entry", main_text.ENTRIES, ids=[entry.label for entry in main_text.ENTRIES])
def test_evidence_is_one_line(entry: main_text.Entry, known: dict[Any, Any]) -> None:
    assert all("\n" not in found.says for found in gather(entry, known).evidence)


def test_a_wrong_order_of_taylor_is_caught() -> None:
    assert main_text._expansion(2).holds
    assert not main_text._expansion(3).holds


def test_means_of_polynomials_of_a_normal_variable() -> None:
    z, a = sp.symbols("z a")
    assert main_text._normal_mean(a * z**6 + z**3 + 2 * z**2 + 5, z) == 15 * a + 7


def test_another_momentum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def torchs(steps: int) -> tuple[sp.Expr, sp.Expr]:
        beta, m, moved = sp.Symbol("beta", positive=True), sp.Integer(0), sp.Integer(0)
        for k in range(1, steps + 1):
            m = beta * m + sp.Symbol(f"g{k}", positive=True)
            moved += m
        return m, moved

    monkeypatch.setattr(main_text, "_unrolled", torchs)
    assert not main_text._momentum_mended().holds
    assert not main_text._momentum_step().holds
    assert main_text._linear_in_scalars().holds
