"""Drawn parts: the same page without drawing again, and drawn again whenever anything differs or is damaged."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from paper_repro import report_folder
from paper_repro.report_folder import drawn, ingredients, rendered
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.recordings import Rows
from paper_repro.workflow.report import render_report
from paper_repro.workflow.scales import SCALES
from tests.paper_repro.workflow.test_report import claim, section

ROWS = pd.DataFrame({"round": [1, 2], "test_accuracy": [0.1, 0.2]})
OPTIONS = Options(scale=SCALES["smoke"], readings=("as-plotted",), count="wire")


@pytest.fixture(autouse=True)
def _quick_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("figures", "tables"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(
        report_folder, "rendered", lambda figure, kind, metadata: f"a picture of {id(figure)} as {kind}".encode()
    )


def maker(calls: list[int]) -> Callable[[], Made]:
    def make() -> Made:
        calls.append(1)
        figure = Figure(figsize=(1, 1))
        figure.subplots().plot([0, 1])
        table = pd.DataFrame({"n": [1, 2], "accuracy": [0.5, float("nan")], "text": ["a", None]})
        own = section(table=table, facts={"runs": "2"})
        return Made(
            section=own, claims=[claim(measured={"x": None})], figures={"f": lambda: figure}, tables={"t": table}
        )

    return make


def test_the_page_is_the_same_without_drawing_again(tmp_path: Path) -> None:
    calls: list[int] = []
    first, again = (drawn(tmp_path, "part", "key", maker(calls)) for _ in range(2))
    assert len(calls) == 1
    pages = [
        render_report([each.section], facts={"scale": "smoke"}, claims=list(each.claims)) for each in (first, again)
    ]
    assert pages[0] == pages[1]
    assert pages[0] == render_report(
        [maker([])().section], facts={"scale": "smoke"}, claims=[claim(measured={"x": None})]
    )


@pytest.mark.parametrize("name", ["figures/f.png", "figures/f.pdf", "tables/t.csv", "drawn/part.json"])
@pytest.mark.parametrize("damage", ["changed", "deleted"])
def test_what_is_damaged_or_deleted_is_drawn_again(name: str, damage: str, tmp_path: Path) -> None:
    calls: list[int] = []
    drawn(tmp_path, "part", "key", maker(calls))
    whole = (tmp_path / name).read_bytes()
    if damage == "deleted":
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    drawn(tmp_path, "part", "key", maker(calls))
    assert len(calls) == 2
    assert (tmp_path / name).stat().st_size > 20
    drawn(tmp_path, "part", "key", maker(calls))
    assert len(calls) == 2
    drawn(tmp_path, "part", "another key", maker(calls))
    assert len(calls) == 3


def test_the_fingerprint_sees_all_that_a_part_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "authors_curves.csv").write_text("a\n")
    facts = [{"code": "1", "data": "digits"}]
    rows = Rows("smoke", ROWS, facts)
    kept = Rows("full", ROWS, facts, "2026-01-01", "1", (1, 1))
    found = [
        ingredients("fig2", rows, OPTIONS),
        ingredients("fig3", rows, OPTIONS),
        ingredients("fig2", replace(rows, rows=ROWS.assign(test_accuracy=[0.1, 0.2 + 1e-16 * 2])), OPTIONS),
        ingredients("fig2", replace(rows, provenance=[{"code": "2", "data": "digits"}]), OPTIONS),
        ingredients("fig2", rows, replace(OPTIONS, count="table1")),
        ingredients("fig2", rows, replace(OPTIONS, scale=SCALES["default"])),
        ingredients("fig2", rows, replace(OPTIONS, authors=tmp_path)),
        ingredients("fig2", rows, replace(OPTIONS, longer=kept)),
        ingredients("fig2", rows, replace(OPTIONS, longer=replace(kept, rows=ROWS[:1]))),
        ingredients("fig2", replace(rows, date="2026-01-01"), OPTIONS),
    ]
    (tmp_path / "authors_curves.csv").write_text("b\n")
    found.append(ingredients("fig2", rows, replace(OPTIONS, authors=tmp_path)))
    monkeypatch.setattr(report_folder, "code_version", lambda _: "other")
    found.append(ingredients("fig2", rows, OPTIONS))
    monkeypatch.undo()
    (tmp_path / "claims.toml").write_text("times = 21")
    monkeypatch.setattr(report_folder, "TABLES", tmp_path)
    found.append(ingredients("fig2", rows, OPTIONS))
    assert len(set(found)) == len(found)
    monkeypatch.undo()
    assert ingredients("fig2", replace(rows, rows=ROWS.copy()), OPTIONS) == found[0]


@pytest.mark.parametrize(("kind", "word"), [("png", b"Source"), ("pdf", b"Subject")])
def test_a_picture_says_what_it_shows_and_of_which_rows(kind: str, word: bytes) -> None:
    content = rendered(Figure(), kind, metadata=report_folder.label("fig9", "fig9-full.csv.gz, sha256 1", kind))
    assert word in content
    assert b"fig9-full.csv.gz, sha256 1" in content
