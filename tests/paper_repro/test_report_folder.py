"""A part in the folder of a report: figures and tables as files, of which pictures say what they show."""

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from paper_repro.report_folder import label, rendered, written
from paper_repro.workflow.part import Made
from tests.paper_repro.workflow.test_report import claim, section


def test_the_figures_and_tables_of_a_part_are_files(tmp_path: Path) -> None:
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1])
    table = pd.DataFrame({"n": [1, 2], "accuracy": [0.5, float("nan")], "text": ["a", None]})
    made = Made(section=section(), claims=[claim()], figures={"f": lambda: figure}, tables={"t": table})
    found = written(tmp_path, made)
    assert (found.section["id"], found.claims) == ("fig2", [claim()])
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")) == [
        "figures/f.pdf", "figures/f.png", "tables/t.csv"
    ]  # fmt: skip
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "tables" / "t.csv"), table)


@pytest.mark.parametrize(("kind", "word"), [("png", b"Source"), ("pdf", b"Subject")])
def test_a_picture_says_what_it_shows_and_of_which_rows(kind: str, word: bytes) -> None:
    content = rendered(Figure(), kind, metadata=label("fig9", "fig9-full.csv.gz, sha256 1", kind))
    assert word in content
    assert b"fig9-full.csv.gz, sha256 1" in content
