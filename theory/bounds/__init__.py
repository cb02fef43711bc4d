"""Every bound, as printed and as proved: see ``docs/theory.md`` and ``docs/theory-more.md`` for the proofs."""

from collections.abc import Mapping
from typing import Final

from decomfl_lab.errors import InputError, require_choice
from theory.bounds.default_run import DEFAULT_RUN
from theory.bounds.paper import PAPER
from theory.bounds.sharp_constants import SHARPER
from theory.statements.statement import Statement, Variant

__all__ = ["STATEMENTS", "names", "statement"]

STATEMENTS: Final[Mapping[tuple[str, Variant | None], Statement]] = {
    (each.name, each.variant): each for each in (*PAPER, *SHARPER, *DEFAULT_RUN)
}
"""The bounds by name and variant."""


def names() -> tuple[str, ...]:
    """The names of all statements, each once."""
    return tuple(dict.fromkeys(name for name, _ in STATEMENTS))


def statement(name: str, variant: Variant = "corrected") -> Statement:
    """The statement of that name in one of its variants; InputError if there is none."""
    require_choice("statement", name, names())
    chosen = STATEMENTS.get((name, variant))
    if chosen is None:
        known = ", ".join(str(each) for of, each in STATEMENTS if of == name)
        raise InputError(f"variant must be one of {known} for {name}, got {variant!r}")
    return chosen
