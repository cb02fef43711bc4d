"""The mould of a benchmark: what is shown of its rows, and kept of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import click
from click.testing import CliRunner, Result

from benchmarks.circumstances import begin
from benchmarks.mould import BenchmarkRow, Tabulated, benchmark, column
from decomfl_lab.cli.lazy import ARGUMENTS
from decomfl_lab.options import option


@dataclass(frozen=True, kw_only=True)
class HeapOptions:
    beans: int = option(3, "How many beans.")


@dataclass(frozen=True, kw_only=True)
class HeapRow(BenchmarkRow):
    title = "{beans} beans on {place}"
    place: str
    colour: str = column("colour")
    grams: float | None = column("weight", "{grams:.1f} g", "What a scale says.")


@benchmark()
def heap(options: HeapOptions) -> Iterator[HeapRow]:
    """Weigh beans."""
    yield HeapRow(place="a table", colour="white", grams=options.beans / 2)
    yield HeapRow(place="a plate", colour="red", grams=None)
    yield HeapRow(place="a table", colour="black", grams=1.0)


def run(*arguments: str) -> Result:
    def begun(context: click.Context) -> None:
        context.meta[ARGUMENTS] = ["bench", "heap", *arguments]
        begin()

    group = click.Group("bench", {"heap": heap}, callback=click.pass_context(begun))
    return CliRunner().invoke(group, ["heap", *arguments])


def test_rows_of_one_title_are_one_table() -> None:
    tables = Tabulated.of(heap.rows(HeapOptions()), HeapOptions())
    assert [(table.title, table.words) for table in tables] == [("3 beans on a table", 1), ("3 beans on a plate", 1)]
    assert [table.cells() for table in tables] == [[["white", "1.5 g"], ["black", "1.0 g"]], [["red", "– g"]]]


def test_a_record_has_every_field_and_what_the_columns_are() -> None:
    record = json.loads(run("--json").stdout)
    assert record["tables"][1]["rows"] == [{"place": "a plate", "colour": "red", "grams": None}]
    assert record["tables"][1]["columns"] == {"colour": "{colour}", "weight": "{grams:.1f} g"}
    assert record["about"] == 'Weigh beans.\n\n"weight": What a scale says.'


def test_the_help_ends_with_what_the_columns_are() -> None:
    assert run("--help").output.endswith("Columns:\n  weight  What a scale says.\n")
