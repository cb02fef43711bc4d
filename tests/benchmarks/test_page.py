"""Records of benchmarks, and the page that is made of them."""

import contextlib
import io
import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.mould import BenchmarkCommand
from decomfl_lab.cli.main import main

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


def test_the_load_is_what_others_take_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import circumstances

    monkeypatch.setattr(circumstances, "_clocks", lambda: (20.0, 115.0, 9.0))
    monkeypatch.setattr(circumstances.os, "cpu_count", lambda: 2)
    assert circumstances._load((10.0, 100.0, 4.0)) == 0.5  # 15 s of work, 5 of them our own, in 10 s of 2


def test_the_page_has_every_row_and_the_command_that_repeats_it(record: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "coverage.json").write_text(json.dumps(record | {"load": 0.01}))
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


def test_counts_from_a_busy_machine_are_published(record: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "coverage.json").write_text(json.dumps(record | {"load": 0.9, "timed": False}))
    assert main(["bench", "page", str(tmp_path)]) == 0


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


@pytest.mark.parametrize("name", ["rebuild", "round", "llm-round"])
def test_rows_that_the_readme_says_nothing_of_end_without_its_line(name: str) -> None:
    command, options = QUOTED[name]
    assert command.readme(recorded_rows(name, 0)[:1], options) is None


def test_the_line_stands_below_the_tables_and_in_the_record(record: dict[str, object], capsys: Any) -> None:
    assert main(SMALL) == 0
    line = "| 95 % intervals of κ on 2 cases of known κ | 100.0 ± 0.0 % hold the truth, after 4 products |"
    assert capsys.readouterr().out.endswith(f"\nREADME: {line}\n")
    assert record["readme"] == line
