"""Every figure of the report shows what it showed when every mark of it was read against its rows.

``panels.json`` has every line, band, bar and map of each panel: label, colour, number of points, their mean place, and
the mean product of their coordinates. ``python -m tests.paper_repro.test_panels`` writes it anew, to be read as a
difference.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from docs.pictures import hero
from paper_repro import contents
from paper_repro.workflow import recordings
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.scales import SCALES
from tests.paper_repro.recomputed.common import lines, rows

GOLDEN = Path(__file__).with_name("panels.json")
PARTS = ("fig2", "fig3", "topk", "projection", "memory", "smollm2", "sizes", "hessian", "theory", "llm", "edge")

Plant = Callable[[pd.DataFrame], pd.DataFrame]


def made(part: str, plant: Plant = lambda frame: frame, scale: str = "") -> Made:
    """What is made of a part's recorded rows, at the largest scale if none is named, or of what is planted in them."""
    found = recordings.load(part, scale) if scale else recordings.largest(part)
    assert found is not None
    longer = recordings.load(part, "full") if scale == "default" else None
    readings = ("as-plotted", "as-written")
    options = Options(scale=SCALES[found.scale], readings=readings, count="wire", longer=longer)
    return contents.PARTS[part].make(plant(found.rows), found.provenance, options)


def marked(kind: str, label: str, colour: str, points: Any) -> list[Any]:
    """A mark of a panel. The scale of its mean place is that of a logarithm, so that no point hides others."""
    values = np.arcsinh(np.asarray(points, dtype=float))
    there = np.where(np.isfinite(values), values, 0.0).reshape(len(values), -1)
    means = [*there.mean(axis=0), there.prod(axis=1).mean()]
    return [kind, label, colour, len(values), *np.round(means, 9).tolist()]


def shown(ax: Axes) -> dict[str, Any]:
    """What a panel shows."""
    marks = []
    for line in ax.get_lines():
        points = np.column_stack([line.get_xdata(orig=True), line.get_ydata(orig=True)]).astype(float)
        if len(points):
            marks.append(marked("line", str(line.get_label()), to_hex(line.get_color()), points))
    for each in ax.collections:
        if isinstance(each, QuadMesh):
            marks.append(marked("map", "", "", np.ravel(each.get_array())))
        elif isinstance(each, LineCollection) and each.get_segments():
            marks.append(marked("bars", "", to_hex(each.get_color()[0]), np.concatenate(each.get_segments())))
        elif isinstance(each, PolyCollection):
            marks.append(marked("band", "", to_hex(each.get_facecolor()[0]), each.get_paths()[0].vertices))
    ticks = [text.get_text() for text in (*ax.get_xticklabels(), *ax.get_yticklabels())]
    return {
        "title": ax.get_title(loc="left") or ax.get_title(),
        "axes": [ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale(), ax.get_yscale()],
        "texts": [text.get_text() for text in ax.texts],
        "ticks": [text for text in ticks if re.search("[A-Za-z]", text)],
        "marks": marks,
    }


def panels(figure: Figure) -> list[dict[str, Any]]:
    return [shown(ax) for ax in figure.axes]


def figures_of(part: str, plant: Plant = lambda frame: frame) -> dict[str, list[dict[str, Any]]]:
    """What the figures of a part show, made of its rows at the largest scale, or of what is planted in them."""
    return {stem: panels(draw()) for stem, draw in made(part, plant).figures.items()}


OTHERS: dict[str, Callable[[], Figure]] = {
    "the picture of the README": hero,
    "topk, beside the thin lines of a larger scale": lambda: made("topk", scale="default").figures["topk"](),
}


def wrong(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The panels that show something else than is kept of them."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    told = []
    for stem, panels in found.items():
        assert len(panels) == len(golden[stem]), stem
        for own, kept in zip(panels, golden[stem], strict=True):
            words = {name: own[name] == kept[name] for name in own if name != "marks"}
            alike = len(own["marks"]) == len(kept["marks"]) and all(
                one[:3] == other[:3] and one[3:] == pytest.approx(other[3:], rel=1e-6, abs=1e-6)
                for one, other in zip(own["marks"], kept["marks"], strict=True)
            )
            told += [f"{stem}: {own['title']}"] * (not alike or not all(words.values()))
    return told


@pytest.mark.parametrize("part", PARTS)
def test_the_figures_of_a_part_show_what_is_kept_of_them(part: str) -> None:
    assert wrong(figures_of(part)) == []


def test_the_picture_of_the_readme_and_thin_lines_show_what_is_kept_of_them() -> None:
    assert wrong({stem: panels(draw()) for stem, draw in OTHERS.items()}) == []


@pytest.mark.parametrize("part", ["fig2", "fig3"])
def test_the_numbers_of_a_caption_are_those_of_the_rows(part: str) -> None:
    frame = rows(part, "full")
    keys = [name for name in ("reading", "panel", "series", "seed", "round") if name in frame]
    both = frame[frame.check].merge(frame[~frame.check], on=keys)
    gap = 100 * (both.test_accuracy_x - both.test_accuracy_y).abs().max()
    subfigures = made(part).figures[part]().subfigs
    text = " ".join(" ".join(text.get_text() for each in subfigures for text in each.texts).split())
    assert f"dots and lines differ by at most {gap:.2f} points of accuracy" in text
    lost = lines(frame)[lambda t: t.diverged].groupby(["series", "seed"])["round"].max()
    assert [key for key, r in lost.items() if f"seed {key[1]}, after round {r:,}" not in text] == []


# --- planted: each is drawn, and seen ---------------------------------------------------------------------------------


def swapped(column: str, one: str, other: str) -> Plant:
    return lambda frame: frame.replace({column: {one: other, other: one}})


@pytest.mark.parametrize(
    ("part", "planted"),
    [
        ("hessian", swapped("name", "signed", "absolute")),
        ("theory", swapped("series", "Theorem 2, stated", "Theorem 2, corrected")),
        ("fig3", swapped("series", "FedAvg", "FedCom 8 bit")),
        ("fig3", lambda frame: frame.assign(train_loss=frame.test_loss)),
    ],
)
def test_what_is_drawn_of_other_rows_is_noticed(part: str, planted: Plant) -> None:
    assert wrong(figures_of(part, planted)) != []


if __name__ == "__main__":
    every = {stem: panels for part in PARTS for stem, panels in figures_of(part).items()}
    every |= {stem: panels(draw()) for stem, draw in OTHERS.items()}
    kept = [f"{json.dumps(stem)}: {json.dumps(panels, ensure_ascii=False)}" for stem, panels in every.items()]
    GOLDEN.write_text("{\n" + ",\n".join(kept) + "\n}\n", encoding="utf-8")
