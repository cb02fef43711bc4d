"""What the benchmarks' commands share: lists in options, a bar while they measure, a table of what they found."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from string import Formatter
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.commands.circumstances import circumstances
from decomfl_lab.cli.numbers import integer
from decomfl_lab.errors import InputError, require_choice

__all__ = ["DISTRIBUTIONS", "Rows", "measured", "measuring", "names", "numbers", "print_tables"]

T = TypeVar("T")

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


def measured(rows: Iterable[T], total: int | None = None) -> list[T]:
    """The rows, while a bar tells how many of ``total`` there are."""
    with measuring() as bars:
        return list(bars.track(rows, total=total, description="measuring"))


class _Cells(Formatter):
    """Python's formats, with a dash for what was not measured."""

    def format_field(self, value: Any, format_spec: str) -> str:
        shown: str = "–" if value is None else super().format_field(value, format_spec)
        return shown


@dataclass(frozen=True)
class Rows:
    """A table of what was measured.

    Attributes:
        title: The line above the table.
        rows: What was measured.
        columns: The head of each column, and the format of its cells, with the keys of a row in braces.
        words: How many of the first columns are words, which stand on the left; the others are numbers.
    """

    title: str
    rows: Sequence[Mapping[Any, Any]]
    columns: Mapping[str, str]
    words: int = 1

    def cells(self) -> list[list[str]]:
        """The text of every cell, row by row; a dash for what was not measured."""
        return [[_Cells().vformat(cell, (), row) for cell in self.columns.values()] for row in self.rows]


def print_tables(*tables: Rows, width: int, as_json: bool = False) -> None:
    """Print tables on stdout, or as JSON the record of them and of what they were measured on.

    Args:
        tables: What was measured.
        width: Characters of a line where stdout is no terminal.
        as_json: Whether JSON is printed.
    """
    if as_json:
        print(json.dumps({**circumstances(), "tables": list(map(asdict, tables))}, ensure_ascii=False))
        return
    for own in tables:
        table = Table(title=own.title, title_justify="left")
        for n, head in enumerate(own.columns):
            table.add_column(head, justify="left" if n < own.words else "right")
        for row in own.cells():
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else width).print(table)
