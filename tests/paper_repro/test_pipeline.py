"""``decomfl paper`` shows what is recorded before anything is run, and then what this machine says of it."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from decomfl_lab.cli.main import main
from paper_repro import pipeline, request
from paper_repro.parts import projection
from paper_repro.report_folder import DrawnPart
from paper_repro.request import requested
from paper_repro.sources import recorded_parts, works_of
from paper_repro.workflow.options import PaperOptions
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome, verdicts
from tests.cases import refused, rows_of
from tests.paper_repro.parts.test_parts import options


def test_the_page_names_every_device_and_version_that_ran_what_it_shows(tmp_path: Path) -> None:
    assert main(["paper", "--from-recorded", "--only", "table1", "--out", str(tmp_path)]) == 0
    _, _, last = (tmp_path / "report.html").read_text().rpartition("This page")
    for each in ("cpu (x86_64), 1 thread", "cuda (NVIDIA H200)", "torch 2.13.0+cpu", "torch 2.11.0+cu130"):
        assert each in last, each


def test_a_report_of_something_else_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.html").write_text("<title>pytest</title>")
    assert main(["paper", "--from-recorded", "--only", "table1", "--out", str(tmp_path)]) == 2
    assert "out must be a folder without a report.html that is something else's, got" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "<title>pytest</title>"


def test_verdicts_are_not_recorded_without_the_curves_that_some_are_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(
        capsys, "paper", "--from-recorded", "--out", str(tmp_path / "out"), "--record", str(tmp_path / "kept")
    )
    assert "--reference must be given where verdicts are recorded" in said
    assert not list(tmp_path.rglob("*"))


def test_the_page_is_whole_before_the_first_run_and_then_says_what_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The live runs are the first rounds of two small runs.
    small = {"batch_size": 4, "eval_every": 1, "test_examples": 100, "perturbations": 1, "rounds": 20}
    own = [replace(job, config=job.config.but(**small)) for job in projection.jobs(options("default"))[:2]]
    monkeypatch.setattr(projection, "jobs", lambda options: own)
    before: list[str] = []
    run_all = pipeline.run_all

    def spied(*given: Any, **named: Any) -> Any:
        before.append((tmp_path / "report.html").read_text())
        return run_all(*given, **named)

    monkeypatch.setattr(pipeline, "run_all", spied)
    assert main(["paper", "--only", "projection", "--jobs", "1", "--out", str(tmp_path)]) == 0
    after = (tmp_path / "report.html").read_text()
    assert before[0].count("<svg") > 5
    assert before[0].endswith("</html>")  # so that is what an interrupted command leaves
    assert "Checked live" not in before[0]
    assert "Checked live on this machine: 1 of 1 parts: Figure 4." in after
    assert 'id="live-projection"' in after
    assert after.endswith("</html>")
    # The verdicts are those of the recorded runs, before and after.
    verdicts = [
        re.findall(r'id="claim-(\S+)">\s*<summary><span class="verdict (\w+)', page) for page in (*before, after)
    ]
    assert verdicts[0] == verdicts[1] != []
    assert 'id="live-figure-projection"' in after  # on other data than the recorded ones
    assert (tmp_path / "live" / "tables" / "projection.csv").exists()
    assert "shows what is recorded" in capsys.readouterr().err


def test_a_verdict_that_needs_the_authors_curves_is_shown_as_it_was_recorded(tmp_path: Path) -> None:
    drawn = [DrawnPart({"id": "fig2"}, [ClaimOutcome("fig2.saving", "holds")])]
    parts = recorded_parts(requested(PaperOptions(scale="full", only="fig2", from_recorded=True, out=tmp_path))).parts
    (made,) = pipeline.with_recorded_verdicts(drawn, parts, None)
    told = {each.id: each for each in made.claims}
    assert told["fig2.saving"].scale == ""  # as it was drawn, and not replaced
    assert told["fig2.band"].verdict == verdicts()["fig2.band"]
    assert told["fig2.band"].scale.startswith("recorded on ")
    assert all(name.startswith("fig2.") for name in told)


@pytest.mark.parametrize("asked", rows_of(__file__)["asked"])
def test_what_only_whole_runs_can_have_is_not_laid_over_recorded_ones(asked: dict[str, Any]) -> None:
    assert PaperOptions().recorded_first
    assert not PaperOptions(**asked).recorded_first


def test_a_run_has_one_key_on_all_devices() -> None:
    here, there = (works_of("fig3", options("smoke", device=device))[0] for device in ("cpu", "cuda"))
    assert (here.device, there.device) == ("cpu", "cuda")
    assert here.key() == there.key()


def test_checking_the_bits_is_a_part_of_the_minutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(request, "find_device", lambda name: torch.device(name))
    monkeypatch.setattr(request, "require_bits", lambda device: time.sleep(0.6))
    for device in ("cuda", "cuda:1"):
        asked = requested(PaperOptions(device=device, minutes=1, out=tmp_path))
        assert asked.options.device == device
        assert 0 < asked.until - time.monotonic() < 59.5
