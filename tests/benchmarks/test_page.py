"""Benchmarks' rows and records, the page that is made of them, and the rows of ``make device``."""

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from benchmarks import card
from benchmarks.mould import BenchmarkCommand, BenchmarkRow, Tabulated, begin, benchmark, column
from decomfl_lab.cli.main import application, main
from decomfl_lab.cli.screen import ARGUMENTS
from decomfl_lab.options import option

coverage, kappa, llm_round, rebuild, round_ = (
    import_module(f"benchmarks.{name}") for name in ("coverage", "kappa", "llm_round", "rebuild", "round")
)
ROOT = Path(__file__).parents[2]
SMALL = ["bench", "coverage", "--seeds", "2", "--spectra", "d = 3"]


@pytest.fixture(scope="module")
def record() -> dict[str, object]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*SMALL, "--json"]) == 0
    return json.loads(out.getvalue())


def test_a_record_says_what_was_run_when_and_on_what(record: dict[str, object]) -> None:
    assert record["command"] == "decomfl bench coverage --seeds 2 --spectra 'd = 3' --json"
    assert str(record["date"]).endswith("UTC")
    assert "processors" in str(record["machine"])
    assert 0 <= float(str(record["load"])) <= 1


def test_the_page_has_every_row_and_the_command_that_repeats_it(record: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "coverage.json").write_text(json.dumps(record | {"load": 0.9}))  # it counts, and measures no time
    assert main(["bench", "page", str(tmp_path), "--write", str(tmp_path)]) == 0
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "decomfl bench coverage --seeds 2 --spectra 'd = 3' --json" in page
    assert "| d = 3 | 3 | 2 | 100.0% ± 0.0% |" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"load": 0.3}, "the load of coverage.json must be at most 0.05 to be published, got 0.3"),
        ({"machine": None}, "must be a record of `decomfl bench ... --json`, got a file without machine"),
    ],
)
def test_a_record_of_a_busy_machine_or_without_its_machine_is_refused(
    record: dict[str, object],
    change: dict[str, object],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not record["timed"]
    timed = record | {"load": 0.0, "timed": True} | change
    told = {name: value for name, value in timed.items() if value is not None}
    (tmp_path / "coverage.json").write_text(json.dumps(told))
    assert main(["bench", "page", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_the_page_of_the_docs_can_be_made_of_the_records_that_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    kept = ROOT / "paper_repro" / "results" / "benchmarks"
    assert main(["bench", "page", str(kept)]) == 0
    assert capsys.readouterr().out.count("\n## ") == len(list(kept.glob("*.json")))


def recorded_rows(name: str, table: int) -> list[SimpleNamespace]:
    record = json.loads((ROOT / "paper_repro/results/benchmarks" / f"{name}.json").read_text())
    return [SimpleNamespace(**row) for row in record["tables"][table]["rows"]]


QUOTED: dict[str, tuple[BenchmarkCommand, Any]] = {
    "rebuild": (rebuild.rebuild, rebuild.RebuildOptions()),
    "round": (round_.round_, round_.RoundOptions()),
    "llm-round": (llm_round.llm_round, llm_round.LlmRoundOptions()),
    "coverage": (coverage.coverage, coverage.CoverageOptions()),
    "kappa": (kappa.kappa, kappa.ComparisonOptions()),
}


@pytest.mark.parametrize("name", QUOTED)
def test_the_readme_has_the_line_that_a_benchmark_ends_with(name: str) -> None:
    command, options = QUOTED[name]
    line = command.readme(recorded_rows(name, -1), options)
    assert line is not None
    assert f"{line} `decomfl bench {name}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_line_stands_below_the_tables_and_in_the_record(record: dict[str, object], capsys: Any) -> None:
    assert main(SMALL) == 0
    line = "| 95 % intervals of κ on 2 cases of known κ | 100.0 ± 0.0 % hold the truth, after 4 products |"
    assert capsys.readouterr().out.endswith(f"\nREADME: {line}\n")
    assert record["readme"] == line


# The mould of a benchmark ---------------------------------------------------------------------------------------------


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


# make device ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_part_that_fails_or_takes_too_long_has_a_row_and_others_go_on() -> None:
    def python(code: str) -> list[str]:
        return ["-c", f"import sys; {code}"]

    parts = {
        "right": python("import json; print(json.dumps(sys.argv[1:]))"),
        "wrong": python("print('half a row'); sys.exit('a rule was broken')"),
        "slow": python("import time; time.sleep(60)"),
        "late": python("1"),
    }
    right, wrong, slow, late = card.measured(parts, "cuda:1", 5.0)
    assert (right["exit"], right["found"]) == (0, ["--device", "cuda:1"])
    assert (wrong["exit"], wrong["found"]) == (1, None)
    assert "half a row" in wrong["said"]
    assert "a rule was broken" in wrong["said"]
    assert slow["exit"] is late["exit"] is None
    assert "the time was over after" in slow["said"]
    assert late["said"] == "the time was over after 0 s"


def test_rows_are_written_with_their_provenance_as_parts_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "device.json"
    own = {"one": ["-c", "print(1)"], "two": ["-c", "import nowhere"]}
    assert card.main(["--device", "cpu", "--out", str(out)], {"cpu": own}) == 1
    record = json.loads(out.read_text())
    assert [(row["part"], row["exit"], row["found"]) for row in record["parts"]] == [("one", 0, 1), ("two", 1, None)]
    assert {"device", "date", "machine", "code", "torch"} <= record.keys()
    assert "FAILED: " in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        card.main(["--device", "cpu", "--minutes", "0"])
    assert refused.value.code == 2
    assert "minutes must be a finite number above 0, got 0.0" in capsys.readouterr().err


@pytest.mark.parametrize("kind", card.PARTS)
def test_every_part_is_a_command_with_options_that_there_are(kind: str) -> None:
    for words in card.PARTS[kind].values():
        assert words[0] == "-m"
        command: click.Command | None = application()
        rest = [*words[2:], "--device", "cpu"]
        if words[1] == "decomfl_lab":
            while isinstance(command, click.Group):
                _, command, rest = command.resolve_command(click.Context(command), rest)
            assert command is not None
            command.make_context("part", rest)
