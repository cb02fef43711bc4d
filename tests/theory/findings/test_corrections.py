"""Mended displays: a term that is half or twice what it should be fails a check, and texts type no formula."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sympy import Rational

from tests.cases import rows_of, sampled
from tests.theory.findings.entries import BY_LABEL
from tests.theory.findings.mutation import anew
from tests.theory.findings.wording import typed, typed_in
from theory.findings.corrections import MENDED

# Displays beside which another of their statement is evaluated, so that the two are not changed together.
APART = [key for key in MENDED if key not in BY_LABEL or key in ("line-452",)]


def unnoticed(nth: int, factor: Rational, *, apart: bool) -> list[str]:
    """The displays of which no check fails when their n-th term is changed, all in one import of the findings."""
    with anew() as get:
        changed = {}
        for key, display in get("corrections").MENDED.items():
            if (key in APART) is apart and nth < len(display.terms):
                name = [*display.terms][nth]
                changed[key] = replace(display, terms={**display.terms, name: factor * display.terms[name].doit()})
        get("corrections").MENDED.update(changed)
        get("registry")
        placed = get("decorators").placed()
        own = {key: [each.check for each in placed if each.label in (key, key.rpartition(".")[0])] for key in changed}
        return [key for key, checks in own.items() if all(map(_holds, checks))]


def _holds(check: Any) -> bool:
    with suppress(OverflowError):  # of a bound that falls too fast
        return bool(check.gather().holds)
    return False


@pytest.mark.parametrize("factor", [Rational(1, 2), pytest.param(Rational(2), marks=pytest.mark.thorough)])
@pytest.mark.parametrize("apart", sampled([False, True], 1))
def test_half_and_twice_a_term_of_a_mended_display_is_noticed(factor: Rational, apart: bool) -> None:
    for nth in range(3):
        assert unnoticed(nth, factor, apart=apart) == [], nth


def test_figures_and_signs_stand_in_marks() -> None:
    assert list(typed_in()) == []


@pytest.mark.parametrize(("text", "found"), rows_of(__file__)["typed"])
def test_what_is_typed_is_seen(text: str, found: list[str]) -> None:
    assert typed(text) == found
    assert typed(text, "P = 5, K = 4") == [each for each in found if each not in "= 4"]
