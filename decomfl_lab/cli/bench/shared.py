"""What the benchmarks' commands share: lists in options, a bar while they measure, a table of what they found."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from decomfl_lab.cli.numbers import integer
from decomfl_lab.errors import InputError, require_choice

__all__ = ["DEVICE", "DISTRIBUTIONS", "measuring", "names", "numbers", "print_table"]

DEVICE = Annotated[str, typer.Option(help="cpu, cuda or auto. [default: cpu]", show_default=False)]
"""The option --device."""
DISTRIBUTIONS = "gaussian,sphere,rademacher"
"""What --distribution is unless it is given: all of them."""


def numbers(option: str, text: str) -> tuple[int, ...]:
    """The integers of ``text``, which commas separate; InputError names ``option``."""
    try:
        return tuple(map(integer, text.split(",")))
    except ValueError:
        raise InputError(f"{option} must be integers separated by commas, got {text!r}") from None


def names(option: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names of ``text``, which commas separate; InputError lists those that are known."""
    choices = tuple(known)
    return tuple(require_choice(option, part, choices) for part in text.split(","))


def measuring() -> Progress:
    """Bars on a terminal's stderr, gone at the end."""
    return Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def print_table(title: str, rows: Sequence[Mapping[str, str]], *, words: int = 1, width: int) -> None:
    """Print a table on stdout.

    Args:
        title: A line above it.
        rows: At least one; each names its cells by their columns.
        words: How many of the first columns are words, which stand on the left; the others are numbers.
        width: Characters of a line where stdout is no terminal.
    """
    table = Table(title=title, title_justify="left")
    for n, head in enumerate(rows[0]):
        table.add_column(head, justify="left" if n < words else "right")
    for row in rows:
        table.add_row(*row.values())
    Console(width=None if sys.stdout.isatty() else width).print(table)
