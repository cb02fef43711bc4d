"""Recorded files are those that their list names: a change of one is an error that names it, wherever it is read."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.page import PageOptions, page
from decomfl_lab.errors import InputError
from paper_repro.workflow import manifest, recordings
from paper_repro.workflow.verdicts import claim_table

RESULTS = recordings.RESULTS


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what is recorded, which the code takes for the record."""
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    monkeypatch.setattr(recordings, "RESULTS", copy)
    monkeypatch.setattr(claim_table, "RECORDED", copy / "claims.json")
    return copy


def test_every_recorded_file_is_listed_for_sha256sum_too_and_as_it_was_recorded() -> None:
    assert manifest.wrong(RESULTS) == []
    subprocess.run(["sha256sum", "-c", "--quiet", manifest.FILE], cwd=RESULTS, check=True)


def test_a_changed_table_is_an_error_that_names_it(results: Path) -> None:
    shutil.copy(results / "fig3-default.csv.gz", results / "fig3-full.csv.gz")
    with pytest.raises(InputError, match=r"fig3-full\.csv\.gz must be the file that .*SHA256SUMS lists"):
        recordings.load("fig3", "full")
    assert manifest.wrong(results) == ["fig3-full.csv.gz"]


@pytest.mark.parametrize(
    ("file", "old", "new", "read"),
    [
        ("fig3-full.json", "2026", "2025", lambda: recordings.load("fig3", "full")),
        ("claims.json", "does not hold", "holds", claim_table.rows),
        ("benchmarks/round.json", "1", "2", lambda: page.run(PageOptions(records=recordings.RESULTS / "benchmarks"))),
    ],
)
def test_a_changed_file_is_an_error_wherever_it_is_read(
    file: str, old: str, new: str, read: Callable[[], object], results: Path
) -> None:
    path = results / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=f"{re.escape(file)} must be the file"):
        read()


@pytest.mark.parametrize("name", ["engines.json", "runs/smollm2/run.dcl"])
def test_a_file_that_is_gone_or_not_listed_is_noticed(name: str, results: Path) -> None:
    (results / name).rename(results / "another.json")
    assert manifest.wrong(results) == sorted(["another.json", name])


def test_what_is_recorded_is_listed_by_the_command_that_records_it(results: Path) -> None:
    kept = recordings.load("fig3", "default")
    assert kept is not None
    recordings.save("fig3", "smoke", kept.rows, kept.provenance, results)
    recordings.save("fig3", "default", kept.rows[:9], kept.provenance, results)
    recordings.save_outcomes({}, {}, results)
    assert manifest.wrong(results) == []


def test_a_folder_without_a_list_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("b")
    manifest.check(tmp_path / "a")
    manifest.seal(tmp_path)
    (tmp_path / "a").write_text("c")
    with pytest.raises(InputError, match=r"a must be the file"):
        manifest.check(tmp_path / "a")
