"""Records of benchmarks, and the page that is made of them."""

import contextlib
import io
import json
from pathlib import Path

import pytest

from decomfl_lab.cli.main import main

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


def test_the_readmes_numbers_are_those_of_the_records() -> None:
    def rows(name: str, table: int, **wanted: object) -> list[dict[str, float]]:
        record = json.loads((ROOT / "paper_repro/results/benchmarks" / f"{name}.json").read_text())
        return [row for row in record["tables"][table]["rows"] if row.items() >= wanted.items()]

    directions = [max(row["ratio"] for row in rows("rebuild", 0, distribution=z)) for z in ("gaussian", "rademacher")]
    (cnn,), (llm,) = rows("round", 0, engine="auto", estimator="central"), rows("llm-round", 0, way="auto")
    (kappa,), (sealed, _) = rows("coverage", 2), rows("stream", 0, pause=0.0)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for told in (
        f"| {directions[0]:.1f} times the speed of `randn` and `add_` (signs: {directions[1]:.0f} times) |",
        f"| {cnn['ratio']:.1f} times the speed of the authors' way |",
        f"| a round of a language model of {llm['d']:,} parameters | {llm['ratio']:.1f} times the speed",
        f"| {kappa['coverage']:.1%} ± {kappa['stderr']:.1%}".replace("% ±", " ±").replace("%", " %"),
    ):
        assert told in readme
    assert f"{sealed['bytes']:.0f} bytes on the wire" in (ROOT / "docs/is-it-for-me.md").read_text(encoding="utf-8")
