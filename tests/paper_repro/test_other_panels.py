"""Figures that are no curves of runs alone show what they showed when every mark of them was read against its rows.

``other_panels.json`` has every line, band, bar and map of each panel: label, colour, number of points, and their mean
place. ``python -m tests.paper_repro.test_other_panels`` writes it anew, to be read as a difference.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from paper_repro.workflow import recordings
from tests.paper_repro.recomputed.axes import lines_of
from tests.paper_repro.test_panels import Plant, made, wrong_curves

GOLDEN = Path(__file__).with_name("other_panels.json")
PARTS = ("memory", "smollm2", "sizes", "hessian", "theory", "llm", "edge")


def marked(kind: str, label: str, colour: str, points: Any) -> list[Any]:
    """A mark of a panel. The scale of its mean place is that of a logarithm, so that no point hides others."""
    values = np.arcsinh(np.asarray(points, dtype=float))
    there = np.where(np.isfinite(values), values, 0.0)
    return [kind, label, colour, len(values), *np.atleast_1d(there.mean(axis=0)).round(9).tolist()]


def shown(ax: Axes) -> dict[str, Any]:
    """What a panel shows."""
    marks = [marked("line", label, colour, points) for label, colour, points in lines_of(ax) if len(points)]
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


def figures_of(part: str, plant: Plant = lambda frame: frame) -> dict[str, list[dict[str, Any]]]:
    """What the figures of a part show, made of its rows at the largest scale, or of what is planted in them."""
    kept = recordings.largest(part)
    assert kept is not None
    drawn = made(part, kept.scale, plant).figures
    return {stem: [shown(ax) for ax in draw().axes] for stem, draw in drawn.items()}


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


# --- planted: each is drawn, and seen ---------------------------------------------------------------------------------


def swapped(column: str, one: str, other: str) -> Plant:
    return lambda frame: frame.replace({column: {one: other, other: one}})


@pytest.mark.parametrize(
    ("part", "planted"),
    [
        ("hessian", swapped("name", "signed", "absolute")),
        ("theory", swapped("series", "Theorem 2, stated", "Theorem 2, corrected")),
    ],
)
def test_what_is_drawn_of_other_rows_is_noticed(part: str, planted: Plant) -> None:
    assert wrong(figures_of(part, planted)) != []


@pytest.mark.parametrize(
    ("part", "planted", "told"),
    [
        # Two lines in each of two panels.
        ("fig3", swapped("series", "FedAvg", "FedCom 8 bit"), r"(?s)(FedAvg|FedCom 8 bit) .*\n.*\n.*\n"),
        ("fig3", lambda frame: frame.assign(train_loss=frame.test_loss), "FedAvg .*: no line .* has train_loss"),
    ],
)
def test_curves_of_other_rows_are_noticed(part: str, planted: Plant, told: str) -> None:
    figure: Figure = made(part, "full", planted).figures[part]()
    assert re.search(told, "\n".join(wrong_curves(figure, part)))


if __name__ == "__main__":
    every = {stem: panels for part in PARTS for stem, panels in figures_of(part).items()}
    lines = [f"{json.dumps(stem)}: {json.dumps(panels, ensure_ascii=False)}" for stem, panels in every.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
