"""The mould of a benchmark: a function of its options that yields rows. A row's class says how it is shown.

    @dataclass(frozen=True, kw_only=True)
    class StepRow(BenchmarkRow):
        title = "A step, P = 1: {model}"
        model: str
        way: str = column("way")
        seconds: float = column("s a step", ".4f", "Seconds of the fastest step.")

    @benchmark()
    def step(options: StepOptions) -> Iterator[StepRow]:
        \"\"\"Time a step.\"\"\"

The mould makes a command of it, with a bar while it measures, one table a title, and --json. A benchmark that the
README quotes has a function that tells the README's line by its rows, and ends with this line.
"""

import dataclasses
import inspect
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar, NamedTuple, get_args, get_type_hints

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from decomfl_lab.cli.command import beside, flags_of, integer
from decomfl_lab.cli.screen import ARGUMENTS, Screened
from decomfl_lab.errors import InputError, require_choice
from decomfl_lab.options import option
from decomfl_lab.storage.json_values import print_json
from decomfl_lab.storage.tables import table_beside

HELPS = table_beside(__name__, "helps.toml")  # what is longer than a line of the code
_WIDTH = 160  # characters of a line where stdout is no terminal


# What a row is ---------------------------------------------------------------------------------------------------


def column(head: str, cell: str = "", meaning: str = "") -> Any:
    """A field of a row that is a column of its table.

    Args:
        head: The head of the column.
        cell: The format of its cells, such as ".2f"; with braces it is a format of all fields, by their names.
        meaning: What it is, in a sentence, where the head does not tell.
    """
    return field(metadata={"column": (head, cell, meaning)})


class BenchmarkRow:
    """What was measured: the base of dataclasses whose fields are columns, or stand in the record alone."""

    # the line above the table, a format of the options and of the row. Rows of one title are one table.
    title: ClassVar[str]
    # whether time was measured, which others on the machine change; what is only counted they do not
    timed: ClassVar[bool] = True

    @classmethod
    def columns(cls) -> dict[str, str]:
        """The head of each column, and the format of its cells."""
        formats = {}
        for name, (head, cell, _) in cls._declared().items():
            plain = f"{{{name}:{cell}}}" if cell else f"{{{name}}}"
            formats[head] = cell if "{" in cell else plain
        return formats

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """What the columns are whose head does not tell it."""
        return {head: meaning for head, _, meaning in cls._declared().values() if meaning}

    @classmethod
    def words(cls) -> int:
        """How many of the first columns are words."""
        types = get_type_hints(cls)
        return next(n for n, name in enumerate(cls._declared()) if types[name] is not str)

    @classmethod
    def _declared(cls) -> dict[str, tuple[str, str, str]]:
        """Head, format and meaning of every field that is a column."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # of every subclass
        return {each.name: each.metadata["column"] for each in fields if each.metadata}


class _Cells(Formatter):
    """Python's formats, with a dash for what was not measured."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return "–" if value is None else super().format_field(value, format_spec)


@dataclass(frozen=True)
class Tabulated:
    """A table of what was measured, as it stands in a record."""

    title: str  # the line above the table
    rows: Sequence[Mapping[str, Any]]  # what was measured
    columns: Mapping[str, str]  # the head of each column, and the format of its cells, with the keys of a row in braces
    words: int = 1  # how many of the first columns are words, which stand on the left; the others are numbers

    @classmethod
    def of(cls, rows: Iterable[BenchmarkRow], options: Any) -> "list[Tabulated]":
        """The tables of these rows."""
        by_table: dict[tuple[str, type[BenchmarkRow]], list[dict[str, Any]]] = {}
        for row in rows:
            values = asdict(row)  # type: ignore[call-overload]
            title = row.title.format_map({**asdict(options), **values})
            by_table.setdefault((title, type(row)), []).append(values)
        return [cls(title, same, kind.columns(), kind.words()) for (title, kind), same in by_table.items()]

    def cells(self) -> list[list[str]]:
        """The text of every cell, row by row; a dash for what was not measured."""
        return [[_Cells().vformat(cell, (), row) for cell in self.columns.values()] for row in self.rows]

    def show(self) -> None:
        """Print the table on stdout."""
        table = Table(title=self.title, title_justify="left")
        for n, head in enumerate(self.columns):
            table.add_column(head, justify="left" if n < self.words else "right")
        for row in self.cells():
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


# What a benchmark is ---------------------------------------------------------------------------------------------


Quoted = Callable[[Sequence[Any], Any], tuple[str, str] | None]  # see ``BenchmarkCommand.quoted``


@dataclass(frozen=True, kw_only=True)
class _Output:
    as_json: bool = option(False, "Print the record of it as JSON.", flag="--json")


class BenchmarkCommand(Screened):
    """The command of a benchmark; its help ends with what the columns are."""

    def __init__(self, rows: Callable[[Any], Iterator[Any]], quoted: Quoted | None) -> None:
        kinds = get_type_hints(rows)
        (yielded,) = get_args(kinds.pop("return"))
        (options,) = kinds.values()
        super().__init__(
            rows.__name__.strip("_").replace("_", "-"),
            params=flags_of(options) + flags_of(_Output),
            callback=beside(self._measure, options),
            help=inspect.getdoc(rows),
        )
        self.rows = rows  # the benchmark: the rows of its options
        # of rows and options, what was measured and how much, as the README's table says them; None of rows that it
        # says nothing of
        self.quoted = quoted
        self.meanings: dict[str, str] = {}  # what its columns are
        for row in get_args(yielded) or (yielded,):  # one class of rows, or several
            self.meanings |= row.meanings()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the columns are."""
        super().format_epilog(ctx, formatter)
        if self.meanings:
            with formatter.section("Columns"):
                formatter.write_dl(list(self.meanings.items()))

    def readme(self, rows: Sequence[Any], options: Any) -> str | None:
        """The line of the README's table that these rows give, but for its command; None if there is none."""
        cells = None if self.quoted is None else self.quoted(rows, options)
        return None if cells is None else f"| {' | '.join(cells)} |"

    def _measure(self, options: Any, given: dict[str, Any]) -> None:
        """Measure, and print tables or JSON; ``options`` is the benchmark's dataclass, ``given`` the other flags."""
        # On a terminal's stderr a line tells how many rows there are, and the words in the first cells of the last one.
        rows: list[BenchmarkRow] = []
        shown = SpinnerColumn(), TextColumn("{task.completed} rows, {task.description}"), TimeElapsedColumn()
        with Progress(*shown, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
            task = bars.add_task("measuring", total=None)
            for row in self.rows(options):
                rows.append(row)
                (cells,) = Tabulated("", [asdict(row)], row.columns()).cells()
                bars.update(task, advance=1, description=f"the last: {', '.join(cells[: row.words()])}")
        tables = Tabulated.of(rows, options)
        line = self.readme(rows, options)
        if given["as_json"]:
            record = {**circumstances(self.meanings), "timed": any(row.timed for row in rows)}
            print_json(record | {"tables": list(map(asdict, tables)), "readme": line})
        else:
            for each in tables:
                each.show()
            if line is not None:
                print(f"README: {line}")


def benchmark(quoted: Quoted | None = None) -> Callable[[Callable[[Any], Iterator[Any]]], BenchmarkCommand]:
    """A decorator that makes a command of a benchmark; its docstring is the help. See ``BenchmarkCommand.quoted``."""
    return lambda rows: BenchmarkCommand(rows, quoted)


# Lists in options ------------------------------------------------------------------------------------------------


def numbers(option: str, text: str, kind: Callable[[str], Any] = integer) -> tuple[Any, ...]:
    """The integers, or numbers of another kind, of ``text``, which commas separate; InputError names ``option``."""
    try:
        return tuple(map(kind, text.split(",")))
    except ValueError:
        what = "integers" if kind is integer else "numbers"
        raise InputError(f"{option} must be {what} separated by commas, got {text!r}") from None


def names(option: str, text: str | None, known: Iterable[str]) -> tuple[str, ...]:
    """The names of ``text``, which commas separate, or all that are known; InputError lists those."""
    choices = tuple(known)
    return choices if text is None else tuple(require_choice(option, part, choices) for part in text.split(","))


_BEGIN = "benchmarks.begin"


def begin() -> None:
    """Note how much the processor has worked so far; called before a benchmark is loaded."""
    click.get_current_context().meta[_BEGIN] = _clocks()


def circumstances(meanings: Mapping[str, str]) -> dict[str, Any]:
    """Of the benchmark that runs: what it is, its command line, the date, the machine, its load, and versions.

    The load is the share of all processors' time that other processes took since ``begin``; where the system has no
    /proc/stat, the load average of the last minute for each processor, this process included. ``meanings`` are those of
    the columns of its tables, by their heads.
    """
    context = click.get_current_context()
    meta = context.meta
    columns = [f'"{head}": {meaning}' for head, meaning in meanings.items()]
    then, now = meta[_BEGIN], _clocks()
    processors = os.cpu_count() or 1
    if now.busy is None or then.busy is None:
        load = os.getloadavg()[0] / processors
    else:
        others = (now.busy - then.busy) - (now.own - then.own)
        load = others / ((now.time - then.time) * processors)
        load = min(max(0.0, load), 1.0)  # the system counts by hundredths of a second, and a moment has few of them
    return {
        "about": f"{inspect.cleandoc(context.command.help or '')}\n\n{' '.join(columns)}".strip(),
        "command": shlex.join(["decomfl", *meta[ARGUMENTS]]),
        **provenance(),
        "load": round(load, 3),
    }


def provenance() -> dict[str, Any]:
    """The date, the machine, and versions."""
    from decomfl_lab.storage.provenance import code_version

    # The processor's name, as far as the system tells.
    info = Path("/proc/cpuinfo")
    named = (line for line in info.read_text().splitlines() if line.startswith("model name")) if info.exists() else ()
    processor = next(iter(named), f":{platform.processor() or platform.machine()}").partition(":")[2].strip()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{processor}, {os.cpu_count()} processors, {platform.system()}",
        "code": code_version(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "torch", "numba")},
    }


class _Clocks(NamedTuple):
    """Seconds, of which differences count."""

    time: float  # now
    busy: float | None  # how long all processors together have worked; None where the system does not say
    own: float  # how long this process and its ended children have


def _clocks() -> _Clocks:
    times = os.times()
    busy = None
    stat = Path("/proc/stat")
    if stat.exists():
        user, nice, system, _idle, _wait, irq, softirq = map(int, stat.read_text().split()[1:8])
        busy = float((user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"))
    return _Clocks(time.monotonic(), busy, times.user + times.system + times.children_user + times.children_system)
