"""Every panel of the report shows the recorded rows: read back from its axes, by the columns that their labels name."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from docs.pictures import hero
from paper_repro import contents
from paper_repro.workflow import recordings
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.scales import SCALES
from tests.paper_repro.recomputed import images
from tests.paper_repro.recomputed.axes import COLUMNS, named, wrong_in
from tests.paper_repro.recomputed.common import kept, lines, rows
from tests.paper_repro.workflow.test_reference import LOGS

Plant = Callable[[pd.DataFrame], pd.DataFrame]
PANELS_2 = {"local updates K (P = 20)": "local-updates", "perturbations P (K = 4)": "perturbations"}


def made(part: str, scale: str = "full", plant: Plant = lambda frame: frame, **changes: Any) -> Made:
    """What is made of a part's recorded rows, or of what is planted in them."""
    found = recordings.load(part, scale)
    assert found is not None
    given: dict[str, Any] = {"scale": SCALES[scale], "readings": ("as-plotted", "as-written"), "count": "wire"}
    return contents.PARTS[part].make(plant(found.rows), found.provenance, Options(**(given | changes)))


@cache
def drawn(part: str, scale: str = "full") -> Made:
    return made(part, scale)


# --- curves against rounds and communication --------------------------------------------------------------------------


def kinds_of(part: str, title: str, reading: str, thin: bool) -> dict[str, pd.DataFrame]:
    """The rows behind a panel: in Figure 2 FedAvg's are those of the other panel where it has none of its own."""
    frame = rows(part, "full")
    if part == "fig2":
        panel, by = PANELS_2[title], ("panel", "series")
        frame = frame[(frame.reading == reading) & ((frame.panel == panel) | (frame.method == "FedAvg"))]
        counted, theirs = images.counted_2, images.logs_2(panel, thin)
    else:
        counted, by = images.counted_3, ("series",)
        losses = images.authors_3("train_loss", thin).assign(test_accuracy=np.nan)
        theirs = pd.concat([images.logs_3(thin), losses[losses["round"] <= frame["round"].max()]])
    own, checks = (counted(kept(frame[frame.check == check], *by)) for check in (False, True))
    return {"curves": own, "checks": checks, "reference": theirs[theirs.series.isin(own.series)]}


def wrong_curves(figure: Figure, part: str, reading: str = "as-plotted", *, thin: bool = True) -> list[str]:
    found = []
    for title, ax in named(figure).items():
        found += [f"{title}: {told}" for told in wrong_in(ax, kinds_of(part, title, reading, thin))]
    return found


@pytest.mark.parametrize(
    ("part", "stem"),
    [
        *(("fig2", f"fig2{count}") for count in ("", "-table1", "-plotted", "-as-written")),
        *(("fig3", f"fig3{count}") for count in ("", "-table1", "-plotted")),
        ("topk", "topk"),
    ],
)
def test_curves_show_their_rows_beside_the_thinned_logs(part: str, stem: str) -> None:
    reading = "as-written" if stem.endswith("-as-written") else "as-plotted"
    assert wrong_curves(drawn(part).figures[stem](), part, reading) == []


@LOGS
@pytest.mark.parametrize(("part", "count"), [("fig2", "wire"), ("fig3", "table1")])
def test_curves_show_the_whole_logs_of_a_folder(part: str, count: str) -> None:
    found = made(part, authors=Path(os.environ["DECOMFL_REFERENCE"]), count=count)
    assert wrong_curves(found.figures[part](), part, thin=False) == []


def test_the_picture_of_the_readme_shows_the_same_by_both_countings() -> None:
    kinds = kinds_of("fig2", "local updates K (P = 20)", "as-plotted", thin=True)
    by_count = named(hero())
    assert {title: (wrong_in(ax, kinds), COLUMNS[ax.get_xlabel()]) for title, ax in by_count.items()} == {
        "by the paper's axis": ([], "plotted_scalars"),
        "by bytes": ([], "wire_scalars"),
    }


def test_thin_lines_are_the_rows_of_the_larger_scale() -> None:
    figure = made("topk", "default", longer=recordings.load("topk", "full")).figures["topk"]()
    longer = images.counted_3(kept(lines(rows("topk", "full")), "series"))
    frame = rows("topk", "default")
    kinds = {name: kept(frame[frame.check == check], "series") for name, check in (("curves", False), ("checks", True))}
    theirs = images.logs_3(thin=True)
    kinds |= {"longer": longer, "reference": theirs[theirs.series.isin(frame.series)]}
    assert [wrong_in(ax, kinds) for ax in figure.axes] == [[], []]


def test_the_projection_figure_shows_its_rows() -> None:
    left, right = drawn("projection").figures["projection"]().axes
    frame = rows("projection", "full")
    finite = frame[np.isfinite(frame.test_loss)]
    assert wrong_in(left, {"curves": kept(finite, "series")}) == []
    finals = images.finals(frame).rename(columns={"estimator": "series", "accuracy": "test_accuracy"}).assign(seed=0)
    columns = {"learning rate η": "eta", "final test accuracy": "test_accuracy"}
    assert wrong_in(right, {"curves": finals}, by="eta", columns=columns) == []


@pytest.mark.parametrize("part", ["fig2", "fig3"])
def test_the_numbers_of_a_caption_are_those_of_the_rows(part: str) -> None:
    frame = rows(part, "full")
    keys = [name for name in ("reading", "panel", "series", "seed", "round") if name in frame]
    both = frame[frame.check].merge(frame[~frame.check], on=keys)
    gap = 100 * (both.test_accuracy_x - both.test_accuracy_y).abs().max()
    subfigures = drawn(part).figures[part]().subfigs
    text = " ".join(" ".join(text.get_text() for each in subfigures for text in each.texts).split())
    assert f"dots and lines differ by at most {gap:.2f} points of accuracy" in text
    lost = lines(frame)[lambda t: t.diverged].groupby(["series", "seed"])["round"].max()
    assert [key for key, r in lost.items() if f"seed {key[1]}, after round {r:,}" not in text] == []
