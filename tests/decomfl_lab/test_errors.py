"""Errors name the argument, the rule and the value, in a line that fits on a screen."""

import numpy as np
import pytest

from decomfl_lab.errors import HookError, InputError, require, require_int, shown

LONG = ["x" * 10**6, list(range(10**6)), np.ones((99, 99)), [["é" * 300] * 9] * 9, b"\0" * 999]


@pytest.mark.parametrize("value", LONG, ids=range(len(LONG)))
def test_a_long_value_is_shown_in_one_short_line(value: object) -> None:
    assert shown(value[:0]) == repr(value[:0])  # a short one is shown as Python writes it
    assert 20 < len(shown(value)) <= 160
    assert "\n" not in shown(value)
    assert "..." in shown(value)


def test_an_error_has_the_argument_the_rule_and_the_value_in_short() -> None:
    with pytest.raises(InputError, match=r"^K must be small, got \[0, 1, 2, .*, \.\.\.\]$"):
        require(False, "K", "be small", list(range(10**6)))
    with pytest.raises(InputError, match="^K must be an integer of at least 1, got 'xxx.*xx'$") as refused:
        require_int("K", "x" * 1000, 1)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("kind", [InputError, HookError])
def test_whatever_stands_in_an_error_it_can_be_read(kind: type[InputError]) -> None:
    told = str(kind(f"data must be short, got {'x' * 5000} of {'many words ' * 5000}, which is long"))
    assert "data must be short, got xxx" in told
    assert len(told) <= 2000
    assert max(map(len, told.split())) <= 160
