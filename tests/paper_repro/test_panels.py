"""Every panel of the report shows the recorded rows: read back from its axes, by the columns that their labels name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from figures import comparison, curves
from paper_repro import making
from paper_repro.commands.hero import hero
from paper_repro.parts import fig3
from paper_repro.workflow import estimators, recorded
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.scales import SCALES
from tests.paper_repro.recomputed import images
from tests.paper_repro.recomputed.axes import COLUMNS, named, wrong_in
from tests.paper_repro.recomputed.common import kept, lines, rows

LOGS = pytest.mark.skipif(
    not os.environ.get("DECOMFL_REFERENCE"), reason="needs the authors' curves (DECOMFL_REFERENCE)"
)
PANELS_2 = {"local updates K (P = 20)": "local-updates", "perturbations P (K = 4)": "perturbations"}


def made(part: str, scale: str = "full", *, mixed: bool = False, **changes: Any) -> Made:
    """What is made of a part's recorded rows, or of them in another order."""
    found = recorded.load(part, scale)
    assert found is not None
    given: dict[str, Any] = {"scale": SCALES[scale], "readings": ("as-plotted", "as-written"), "count": "wire"}
    frame = found.rows.sample(frac=1.0, random_state=0) if mixed else found.rows
    return making.PARTS[part].make(frame, found.provenance, Options(**(given | changes)))


@cache
def drawn(part: str, scale: str = "full") -> Made:
    return made(part, scale)


# --- Figure 2 ---------------------------------------------------------------------------------------------------------


def kinds_2(reading: str, panel: str, *, thin: bool = True) -> dict[str, pd.DataFrame]:
    """The rows behind a panel: FedAvg's are those of the other panel where it has none of its own."""
    frame = rows("fig2", "full")
    read = frame[(frame.reading == reading) & ((frame.panel == panel) | (frame.method == "FedAvg"))]
    curves, checks = (images.counted_2(kept(read[read.check == check], "panel", "series")) for check in (False, True))
    theirs = images.logs_2(panel, thin)
    return {"curves": curves, "checks": checks, "reference": theirs[theirs.series.isin(curves.series)]}


def wrong_2(figure: Figure, reading: str = "as-plotted", *, thin: bool = True) -> list[str]:
    found = []
    for title, ax in named(figure).items():
        kinds = kinds_2(reading, PANELS_2[title], thin=thin)
        found += [f"{title}: {told}" for told in wrong_in(ax, kinds)]
    return found


@pytest.mark.parametrize(
    ("stem", "reading"),
    [*((f"fig2{count}", "as-plotted") for count in ("", "-table1", "-plotted")), ("fig2-as-written", "as-written")],
)
def test_figure_2_shows_its_rows_beside_the_thinned_logs(stem: str, reading: str) -> None:
    assert wrong_2(drawn("fig2").figures[stem], reading) == []


@LOGS
def test_figure_2_shows_the_whole_logs_of_a_folder() -> None:
    assert wrong_2(made("fig2", authors=Path(os.environ["DECOMFL_REFERENCE"])).figures["fig2"], thin=False) == []


def test_the_picture_of_the_readme_shows_the_same_by_both_countings() -> None:
    kinds = kinds_2("as-plotted", "local-updates")
    by_count = named(hero())
    assert {title: (wrong_in(ax, kinds), COLUMNS[ax.get_xlabel()]) for title, ax in by_count.items()} == {
        "by the paper's axis": ([], "plotted_scalars"),
        "by bytes": ([], "wire_scalars"),
    }


# --- Figure 3, the top-k figure, the projection figure ----------------------------------------------------------------


def wrong_3(figure: Figure, part: str = "fig3", *, thin: bool = True) -> list[str]:
    frame = rows(part, "full")
    ours, dots = (images.counted_3(kept(frame[frame.check == check], "series")) for check in (False, True))
    losses = images.authors_3("train_loss", thin).assign(test_accuracy=np.nan)
    losses = losses[losses["round"] <= frame["round"].max()]
    theirs = pd.concat([images.logs_3(thin), losses])
    kinds = {"curves": ours, "checks": dots, "reference": theirs[theirs.series.isin(frame.series)]}
    return [f"{title}: {told}" for title, ax in named(figure).items() for told in wrong_in(ax, kinds)]


@pytest.mark.parametrize(
    ("part", "stem"), [("fig3", "fig3"), ("fig3", "fig3-table1"), ("fig3", "fig3-plotted"), ("topk", "topk")]
)
def test_figures_on_fashion_mnist_show_their_rows_beside_the_thinned_logs(part: str, stem: str) -> None:
    assert wrong_3(drawn(part).figures[stem], part) == []


@LOGS
def test_figure_3_shows_the_whole_logs_of_a_folder() -> None:
    authors = Path(os.environ["DECOMFL_REFERENCE"])
    assert wrong_3(made("fig3", authors=authors, count="table1").figures["fig3"], thin=False) == []


def test_thin_lines_are_the_rows_of_the_larger_scale() -> None:
    figure = made("topk", "default", longer=recorded.load("topk", "full")).figures["topk"]
    longer = images.counted_3(kept(lines(rows("topk", "full")), "series"))
    frame = rows("topk", "default")
    kinds = {name: kept(frame[frame.check == check], "series") for name, check in (("curves", False), ("checks", True))}
    theirs = images.logs_3(thin=True)
    kinds |= {"longer": longer, "reference": theirs[theirs.series.isin(frame.series)]}
    assert [wrong_in(ax, kinds) for ax in figure.axes] == [[], []]


def test_the_projection_figure_shows_its_rows() -> None:
    left, right = drawn("projection").figures["projection"].axes
    frame = rows("projection", "full")
    finite = frame[np.isfinite(frame.test_loss)]
    assert wrong_in(left, {"curves": kept(finite, "series")}) == []
    finals = images.finals(frame).rename(columns={"estimator": "series", "accuracy": "test_accuracy"}).assign(seed=0)
    columns = {"learning rate η": "eta", "final test accuracy": "test_accuracy"}
    assert wrong_in(right, {"curves": finals}, by="eta", columns=columns) == []


def caption_of(figure: Figure) -> str:
    """The text under the plots."""
    return " ".join(" ".join(text.get_text() for each in figure.subfigs for text in each.texts).split())


@pytest.mark.parametrize("part", ["fig2", "fig3"])
def test_the_numbers_of_a_caption_are_those_of_the_rows(part: str) -> None:
    frame = rows(part, "full")
    keys = [name for name in ("reading", "panel", "series", "seed", "round") if name in frame]
    both = frame[frame.check].merge(frame[~frame.check], on=keys)
    gap = 100 * (both.test_accuracy_x - both.test_accuracy_y).abs().max()
    text = caption_of(drawn(part).figures[part])
    assert f"dots and lines differ by at most {gap:.2f} points of accuracy" in text
    lost = lines(frame)[lambda t: t.diverged].groupby(["series", "seed"])["round"].max()
    assert [key for key, r in lost.items() if f"seed {key[1]}, after round {r:,}" not in text] == []


# --- planted: each is drawn, and seen ---------------------------------------------------------------------------------


SWAP = {"FedAvg": "FedCom 8 bit", "FedCom 8 bit": "FedAvg"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda given: {"y": "test_loss", "reference": None} if given["y"] == "train_loss" else {},
            r"loss against rounds: FedAvg \(curves\): no line of its colour has train_loss",
        ),
        (
            lambda given: {"x": "table1_scalars"} if given["x"] == "wire_scalars" else {},
            "test_accuracy against wire_scalars",
        ),
        (
            lambda given: {"frame": given["frame"].assign(series=given["frame"].series.replace(SWAP))},
            "(?s)(FedAvg|FedCom 8 bit) .*\n.*\n.*\n",  # two lines in each of two panels
        ),
        (lambda given: {"longer": given["frame"]}, r"15 lines and \d bands, not 10"),
    ],
    ids=["test loss under training loss", "another counting", "labels swapped", "a line drawn twice"],
)
def test_panels_that_are_drawn_otherwise_are_noticed(
    change: Callable[[dict[str, Any]], dict[str, Any]], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Panels of Figure 3 that are asked for otherwise than the part asks for them."""
    whole = comparison.Panel
    planted = lambda **given: whole(**{**given, **change(given)})  # noqa: E731 (takes the place of a class)
    monkeypatch.setattr(fig3, "Panel", planted)
    monkeypatch.setattr(comparison, "Panel", planted)
    assert re.search(told, "\n".join(wrong_3(made("fig3").figures["fig3"])))


def test_a_narrower_band_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = curves.mean_and_band

    def narrow(*given: Any) -> pd.DataFrame:
        found = whole(*given)
        return found.assign(low=(found.low + found.y) / 2, high=(found.high + found.y) / 2)

    monkeypatch.setattr(curves, "mean_and_band", narrow)
    found = wrong_2(made("fig2").figures["fig2"])
    assert any(
        told.endswith("DeComFL K=10 P=20 (curves): no band of its colour is that of its seeds") for told in found
    )


def test_a_seed_that_is_left_out_of_the_picture_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = estimators.settled
    monkeypatch.setattr(estimators, "settled", lambda frame, by: whole(frame[frame.seed != 2], by))
    assert "FedAvg K=10 (curves): no line of its colour" in " ".join(wrong_2(made("fig2").figures["fig2"]))


def test_rows_of_another_scale_in_the_picture_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    smaller = recorded.load("topk", "default")
    monkeypatch.setattr(recorded, "load", lambda *_: smaller)
    assert wrong_3(made("topk").figures["topk"], "topk") != []
