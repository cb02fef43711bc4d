"""Errors that name the argument, the rule and the value."""

import difflib
import inspect
import math
import numbers
import os
import re
from collections.abc import Callable, Iterable
from functools import wraps
from reprlib import Repr
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

MANY_NAMES = 16
"""A list of more names than these comes last in a message, behind the value and the nearest name."""

P = ParamSpec("P")
T = TypeVar("T")


class InputError(ValueError):
    """A value given by the user, a file or a peer breaks a rule; the message is one line and stands on its own.

    Whatever stands in it, as a peer's text, its characters are printable, as others are escaped, and it can be read: a
    word as long as no name is, and a message as long as no list of names is, lack their middle.
    """

    def __str__(self) -> str:
        return _readable(super().__str__())


class DivergedError(InputError):
    """Losses or models stopped being finite numbers."""

    run: Any = None  # the run at its last whole round, with model and metrics; None where no run was trained

    def __init__(self, what: str, hint: str = "(a smaller learning rate may help)") -> None:
        super().__init__(what, hint)

    def __str__(self) -> str:
        return _readable("{} must be finite: training diverged {}".format(*self.args))


class HookError(InputError):
    """A hook of the user's has failed, or changed the run; ``__cause__`` is what it raised."""

    run: Any = None  # the run after its last whole round, with model and metrics


class LabWarning(UserWarning):
    """What is computed may not be what was meant; the message is one line, and says what would be better."""


class RoundingWarning(LabWarning):
    """What is computed is mostly rounding."""


THEIRS = (Exception, SystemExit)
"""What a user's own code may raise where it is run; an interrupt is for the whole process."""
_SHORT = Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxdict = 20
_SHORT.maxstring = _SHORT.maxother = _MOST = 160
_MOST_OF_ALL = 2000


def brief(text: str, most: int = _MOST) -> str:
    """The text as one line of at most so many characters, those in the middle left out."""
    line = re.sub(r"\s*\n\s*", " ", text)
    return line if len(line) <= most else f"{line[: most - 43]} ... {line[-38:]}"


class Told:
    """A result whose ``repr`` is the first line of its text, as a prompt or a notebook shows it."""

    def __repr__(self) -> str:
        first = str(self).split("\n")[0]
        return f"<{type(self).__name__}: {' '.join(first.split())}>"


def printable(text: str) -> str:
    """The text with every character escaped that moves a terminal's cursor, ends a line or turns its direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _readable(text: str) -> str:
    words = re.sub(rf"\S{{{_MOST + 1},}}", lambda word: brief(word[0]), printable(text))
    return brief(words, _MOST_OF_ALL)


def quoted(text: str) -> str:
    """A peer's text as an error or a line of a log shows it: in quotes, printable, of at most 300 characters."""
    return brief(repr(text), 300)


def shown(value: Any) -> str:
    """The value as an error shows it: one line of at most 160 characters, however large the value is."""
    try:
        return brief(_SHORT.repr(value))
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return f"{type(value).__name__} with an integer of thousands of digits"


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
        got, every = f"got {shown(value)}{meant}", ", ".join(names)
        if len(names) > MANY_NAMES:  # the list would hide the rest
            raise InputError(f"{argument} must be one of {len(names)} names, {got}: {every}")
        raise InputError(f"{argument} must be one of {every}, {got}")
    return value


def known_options(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which refuses an option that it does not have by an InputError that names the nearest one.

    Options that it takes as ``**options: Unpack[Those]`` are the keys of the ``TypedDict``.
    """
    parameters = inspect.signature(function).parameters
    known = [name for name in parameters if name != "self"]
    *owners, called = function.__qualname__.split(".")
    called = owners[-1] if called == "__init__" else called
    for name in [name for name, parameter in parameters.items() if parameter.kind == parameter.VAR_KEYWORD]:
        (keys,) = get_args(get_type_hints(function)[name])
        known.remove(name)
        known += keys.__annotations__

    @wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        for name in options:
            require_choice(f"option of {called}", name, known)
        return function(*args, **options)

    return checked


def plural(count: int, noun: str) -> str:
    """The count with its noun: 1 step, 2 steps."""
    return f"{count} {noun}{'s' * (count != 1)}"


_LARGEST = 2**63 - 1


def require_int(argument: str, value: Any, at_least: int, at_most: int | None = None) -> int:
    """Return ``value`` if it is an integer in ``at_least..at_most``, else raise InputError; 64 bits always hold it."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    most = _LARGEST if at_most is None else at_most
    if not (is_int and at_least <= value <= most):
        open_ended = at_most is None and not (is_int and value > most)
        limit = f"of at least {at_least}" if open_ended else f"in {at_least}..{most}"
        raise InputError(f"{argument} must be an integer {limit}, got {shown(value)}")
    return int(value)


MOST_OPERATIONS = 1e15
"""More arithmetic than this is refused before it begins: a core does about 10⁹ operations a second."""


def require_possible(argument: str, value: Any, *, operations: float = 0.0, memory: float = 0.0) -> None:
    """Raise InputError with the estimate where work is known beforehand to be more than this machine can do.

    Args:
        argument: What the size of the work is called.
        value: That size.
        operations: The least number of operations that the work takes, of which ``MOST_OPERATIONS`` are possible.
        memory: The least number of bytes that it needs at once, of which the machine's memory is possible.
    """
    rule = f"ask for at most {MOST_OPERATIONS:.0e} operations (this takes {operations:.0e} or more)"
    require(operations <= MOST_OPERATIONS, argument, rule, value)
    memory_here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf
    rule = f"fit into the {1e-9 * memory_here:.0f} GB of memory here (this takes {1e-9 * memory:.0f} GB or more)"
    require(memory <= memory_here, argument, rule, value)


def is_number(value: Any) -> bool:
    """Whether the value is a finite number, and not True or False."""
    try:
        return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def require_finite_positive(argument: str, value: Any) -> float:
    """Return ``float(value)`` if it is a finite number above 0, else raise InputError."""
    plain = isinstance(value, int | float) and is_number(value)
    require(plain and value > 0, argument, "be a finite number above 0", value)
    return float(value)
