"""Recorded rows: the same bytes for the same rows, never more finished than the runs were, drawn without computing."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.errors import InputError
from decomfl_lab.storage.provenance import provenance
from paper_repro import contents, sources
from paper_repro.parts import fig2, fig3, table1, topk
from paper_repro.report_folder import finished
from paper_repro.request import requested
from paper_repro.workflow import manifest, recordings
from paper_repro.workflow.options import READINGS, PaperOptions
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.recordings import Rows
from paper_repro.workflow.runs import SO_FAR, so_far_words
from paper_repro.workflow.scales import SCALES
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome
from paper_repro.workflow.verdicts.measures import settled, unfinished, unready
from tests.paper_repro.parts.test_parts import table1_rows
from tests.paper_repro.recomputed.common import rows
from tests.paper_repro.workflow.test_report import claim, section

ROWS = pd.DataFrame({"series": ["a", "a"], "round": [20, 40], "test_accuracy": [0.1, 1 / 3], "notes": [{"x": 1}, [2]]})
ROWS["step"] = [None, 3.0]
FACTS = [{"code": "2", "data": "digits"}, {"code": "2", "data": "digits"}, {"code": "1", "codes": ["0", "1"]}, {}]


def test_rows_come_back_and_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        recordings.save("fig2", "full", ROWS.astype({"step": object}), FACTS, tmp_path / folder, (3, 4))
    one, two = ((tmp_path / folder / "fig2-full.csv.gz").read_bytes() for folder in ("one", "two"))
    assert one == two
    found = recordings.load("fig2", "full", tmp_path / "one")
    assert found is not None
    pd.testing.assert_frame_equal(found.rows, ROWS)
    assert (len(found.provenance), found.code, found.complete) == (2, "0, 1, 2", False)
    assert "at full scale by code 0, 1, 2, so far 3 of 4 runs finished" in found.words
    assert recordings.load("fig2", "default", tmp_path / "one") is None


@pytest.mark.parametrize("name", ["fig2-full.csv.gz", "fig2-full.json"])
def test_damaged_rows_are_refused(name: str, tmp_path: Path) -> None:
    recordings.save("fig2", "full", ROWS, FACTS, tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-9])
    (tmp_path / manifest.FILE).unlink()  # which would notice it first
    with pytest.raises(InputError, match=r"recorded rows must be whole files fig2-full\.csv\.gz and \.json"):
        recordings.load("fig2", "full", tmp_path)


def test_the_largest_scale_that_is_complete_is_drawn(tmp_path: Path) -> None:
    assert recordings.largest("fig2", tmp_path) is None
    # Complete or not, at each scale; and which of them is drawn.
    for scale, runs, wanted in (("full", 1, "full"), ("default", 2, "default"), ("full", 2, "full")):
        recordings.save("fig2", scale, ROWS, FACTS, tmp_path, (runs, 2))
        found = recordings.largest("fig2", tmp_path)
        assert found is not None
        assert found.scale == wanted


def test_what_is_kept_with_the_code_is_whole_and_says_what_it_is() -> None:
    kept = {path.name.removesuffix(".csv.gz") for path in recordings.RESULTS.glob("*.csv.gz")}
    assert {"llm-default", "sizes-default"} <= kept
    for name in kept:
        part, _, scale = name.rpartition("-")
        found = recordings.load(part, scale)
        assert found is not None
        assert found.date
        assert found.runs[1] > 0
        if "finished" in found.rows and not found.complete:
            assert unfinished(found.rows, ["series"]) or found.runs[0] < found.runs[1]


SHORT = pd.concat(
    pd.DataFrame({"round": range(1, last + 1)}).assign(series=name, seed=seed, planned=9, whole=last == 9)
    for name, seed, last in (("a", 0, 9), ("a", 1, 4), ("b", 0, 2), ("b", 1, 5))
)
"""Of four runs of nine rounds one is whole."""


def test_a_run_under_way_is_left_out_of_means_unless_there_is_no_other() -> None:
    rows = SHORT.assign(finished=SHORT.whole)
    kept = settled(rows, ["series"]).groupby("series")
    assert {name: set(own.seed) for name, own in kept} == {"a": {0}, "b": {1}}
    assert unfinished(rows, ["series"]) == [
        "a, seed 1: 4 of 9 rounds",
        "b, seed 0: 2 of 9 rounds",
        "b, seed 1: 5 of 9 rounds",
    ]
    assert unfinished(rows.assign(finished=True), ["series"]) == []
    assert unfinished(rows.assign(finished=False), ["series"]) == ["all 4 runs"]
    assert len(unfinished(rows[rows.series == "b"], ["series"])) == 2


def test_a_run_that_diverged_is_left_out_of_means_and_named_unless_all_of_its_series_did() -> None:
    rows = SHORT.assign(finished=True, diverged=~SHORT.whole)
    kept = settled(rows, ["series"]).groupby("series")
    assert {name: set(own.seed) for name, own in kept} == {"a": {0}, "b": {0, 1}}
    assert unready(rows, ["series"]) == "Diverged, and not in the means: a, seed 1, after round 4."
    assert unready(rows.assign(diverged=False), ["series"]) == ""
    under_way = rows.assign(finished=(rows.series != "a") | (rows.seed != 0))
    assert set(settled(under_way[under_way.series == "a"], ["series"]).seed) == {0}
    assert unready(under_way, ["series"]) == (
        "Not finished: a, seed 0: 9 of 9 rounds. Diverged, and not in the means: a, seed 1, after round 4."
    )


def test_a_report_from_records_computes_nothing_and_lists_what_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recordings, "RESULTS", tmp_path / "kept")
    facts = [{**provenance(load_dataset("digits")), "code": "7"}]
    recordings.save("table1", "smoke", table1_rows(), facts, tmp_path / "kept", (5, 5))
    recordings.save("audit", "full", ROWS, [], tmp_path / "kept", (0, 1))
    out = tmp_path / "out"
    assert main(["paper", "--from-recorded", "--only", "table1,memory,audit", "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.strip().endswith("not recorded: memory, audit")
    claims = json.loads(captured.out)
    assert {claim["id"].split(".")[0] for claim in claims} == {"table1"}
    assert all("at smoke scale by code 7" in claim["scale"] for claim in claims)
    page = (out / "report.html").read_text()
    assert '<span class="badge recorded">' in page
    assert "memory: decomfl paper --only memory --record paper_repro/results records it." in page
    assert "so far 0 of 1 runs finished" in page
    assert not (out / "runs").exists()


@pytest.mark.thorough
def test_every_record_of_the_project_can_be_drawn(tmp_path: Path) -> None:
    assert main(["paper", "--from-recorded", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "runs").exists()
    page = (tmp_path / "report.html").read_text()
    kept = {path.name.rsplit("-", 1)[0] for path in recordings.RESULTS.glob("*.csv.gz")}
    assert len(kept) > 6
    assert [part for part in kept if f"{part}: decomfl paper --only {part} --record" in page] == []


def test_what_runs_cannot_decide_recorded_ones_of_another_scale_do_and_the_claim_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ("topk.cheaper", "topk.still-higher", "topk.degrades")
    made: list[tuple[str, ...]] = []

    class Part:
        def jobs(self, options: Options) -> list[Any]:
            return []

        def make(self, rows: pd.DataFrame, provenance: Any, options: Options) -> Made:
            claims = [claim(id=name, scale=options.scale.name, verdict=rows[name].iloc[0]) for name in ids]
            beside = [] if options.longer is None else [options.longer.scale]
            made.append((options.scale.name, *beside))
            return Made(section=section(), claims=claims)

    monkeypatch.setitem(contents.PARTS, "topk", Part())
    facts = [{**provenance(load_dataset("digits")), "code": "7"}]

    def judged(scale: str, rows: pd.DataFrame, other: str) -> Sequence[ClaimOutcome]:
        kept = recordings.load("topk", other, tmp_path / "kept")
        options = Options(scale=SCALES[scale], readings=(), count="wire", longer=kept if other == "full" else None)
        return finished("topk", Rows(scale, rows, facts), options, kept).claims

    untested = "not tested at this scale"
    short = pd.DataFrame([["holds", untested, untested]], columns=ids)
    long = pd.DataFrame([["does not hold", "does not hold", untested]], columns=ids)
    recordings.save("topk", "full", long, facts, tmp_path / "kept", (1, 2))
    a, b, c = judged("default", short, "full")
    assert (a.verdict, a.scale) == ("holds", "default")
    assert b.verdict == "does not hold"
    assert b.scale.startswith("recorded on ")
    assert "at full scale by code 7, so far 1 of 2 runs finished; full" in b.scale
    assert (c.verdict, c.scale) == (untested, "default")
    recordings.save("topk", "default", short.assign(**{"topk.degrades": "holds"}), facts, tmp_path / "kept")
    a, b, c = judged("full", long.assign(**{"topk.cheaper": untested}), "default")
    assert [each.verdict for each in (a, b)] == ["holds", "does not hold"]
    assert a.scale.startswith("recorded on ")
    assert "at default scale by code 7; default" in a.scale
    assert (c.verdict, c.scale) == (untested, "full")  # which default scale is too small for
    assert made == [("default", "full"), ("full",), ("full",), ("default",)]


@pytest.mark.parametrize("part", [fig2, fig3, table1])
def test_every_recorded_row_is_of_one_run_of_its_part(part: Any) -> None:
    name = part.__name__.rpartition(".")[2]
    kept = rows(name, "full")
    jobs = part.jobs(Options(scale=SCALES["full"], readings=READINGS, count="measured"))
    full = {"data": "fashion-mnist"}  # which the run of the tests need not have
    jobs = [replace(job, labels={**job.labels, **(full if "data" in job.labels else {})}) for job in jobs]
    of = [len(job.among(kept)) for job in jobs]
    assert sum(of) == len(kept)
    labels = [name for name in ("reading", "panel", "series") if name in kept]
    assert sum(map(bool, of)) == kept.groupby([*labels, "check", "seed"], dropna=False).ngroups


def test_of_a_run_that_is_recorded_what_came_furthest_stays(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    request = requested(
        PaperOptions(scale="full", record=folder, out=tmp_path / "out", only="topk", reading="as-plotted")
    )
    first, other = topk.jobs(request.options)[:2]

    def rows_after(r: int, *, finished: bool) -> pd.DataFrame:
        rows = pd.DataFrame({"round": [r], "test_accuracy": [r / 1000], "finished": finished})
        return rows.assign(**first.labels, seed=first.config.seed, planned=first.config.rounds)

    for r, code, ended, kept in ((20, "a", False, 20), (900, "b", True, 900), (40, "c", False, 900)):
        so_far = {} if ended else {SO_FAR: so_far_words(rows_after(r, finished=False), first.config.rounds)}
        result = (rows_after(r, finished=ended), {"code": code, "data": "digits", **so_far})
        computed = sources.computed_parts(
            request, lambda works, own=result: [own if work.key() == first.key() else None for work in works]
        )
        found = recordings.load("topk", "full", folder)
        assert found is not None
        assert first.among(found.rows)["round"].tolist() == [kept], code
        assert other.among(found.rows).empty
        assert computed.words.startswith(f"{int(ended)} of ")
