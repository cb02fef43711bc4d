"""Errors that name the argument, the rule and the value."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterable
from functools import wraps
from reprlib import Repr
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "DivergedError",
    "InputError",
    "known_options",
    "plural",
    "require",
    "require_choice",
    "require_finite_positive",
    "require_int",
    "shown",
]

P = ParamSpec("P")
T = TypeVar("T")


class InputError(ValueError):
    """A value given by the user breaks a rule; the message is one line and stands on its own."""


class DivergedError(InputError):
    """Losses or models stopped being finite numbers.

    Attributes:
        run: The run at its last whole round, with model and metrics; None where no run was trained.
    """

    run: Any = None

    def __init__(self, what: str, hint: str = "(a smaller learning rate may help)") -> None:
        super().__init__(what, hint)

    def __str__(self) -> str:
        return "{} must be finite: training diverged {}".format(*self.args)


_SHORT = Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxdict = 20
_SHORT.maxstring = _SHORT.maxother = _MOST = 160


def shown(value: Any) -> str:
    """The value as an error shows it: one line of at most 160 characters, however large the value is."""
    text = re.sub(r"\s*\n\s*", " ", _SHORT.repr(value))
    return text if len(text) <= _MOST else f"{text[: _MOST - 43]} ... {text[-38:]}"


def require(holds: bool, argument: str, rule: str, value: Any) -> None:
    """Raise ``InputError("{argument} must {rule}, got {value}")`` unless ``holds``, with the value as ``shown``."""
    if not holds:
        raise InputError(f"{argument} must {rule}, got {shown(value)}")


def require_choice(argument: str, value: str, known: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``known``, else raise InputError that lists them and names the nearest."""
    names = list(known)
    if value not in names:
        near = difflib.get_close_matches(str(value), names, 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"{argument} must be one of {', '.join(names)}, got {shown(value)}{meant}")
    return value


def known_options(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which refuses an option that it does not have by an InputError that names the nearest one."""
    known = list(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        for name in options:
            require_choice(f"option of {function.__name__}", name, known)
        return function(*args, **options)

    return checked


def plural(count: int, noun: str) -> str:
    """The count with its noun: 1 step, 2 steps."""
    return f"{count} {noun}{'s' * (count != 1)}"


def require_int(argument: str, value: Any, at_least: int, at_most: int | None = None) -> int:
    """Return ``value`` if it is an integer in ``at_least..at_most``, else raise InputError."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not (is_int and value >= at_least and (at_most is None or value <= at_most)):
        limit = f"in {at_least}..{at_most}" if at_most is not None else f"of at least {at_least}"
        raise InputError(f"{argument} must be an integer {limit}, got {shown(value)}")
    return int(value)


def require_finite_positive(argument: str, value: Any) -> float:
    """Return ``float(value)`` if it is a finite number above 0, else raise InputError."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    require(
        is_number and math.isfinite(value) and value > 0,
        argument,
        "be a finite number above 0",
        value,
    )
    return float(value)
