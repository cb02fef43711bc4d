"""Pictures of fine-tuning: what stands on the axes is what was measured."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer

from decomfl_lab.errors import InputError
from figures.finetuning import accuracies, round_costs
from figures.style import method_styles

STYLES = method_styles(["FedAvg", "MeZO", "DeComFL"])


def cells(panels: int = 1) -> pd.DataFrame:
    before = {"zero_shot": 0.5, "calibrated_zero_shot": 0.55, "majority": 0.6}
    rows = [
        {"series": "FedAvg", "tuned": "all", "accuracy": 0.9, "error": 0.01, "printed": 0.87},
        {"series": "DeComFL", "tuned": "all", "accuracy": 0.8, "error": 0.02, "printed": 0.85},
        {"series": "DeComFL", "tuned": "LoRA", "accuracy": 0.7, "error": 0.03, "printed": math.nan},
    ]
    return pd.DataFrame([{"panel": f"task {n}", **row, **before} for n in range(panels) for row in rows])


def bars(ax: Axes) -> list[tuple[str, float, float, float]]:
    """Colour, accuracy, y and half a bar's length of every cell."""
    found = []
    for bar in (each for each in ax.containers if isinstance(each, ErrorbarContainer)):
        (line,) = bar.lines[2]
        (left, y), (right, _) = line.get_segments()[0]
        found.append((to_hex(bar.lines[0].get_color()), float(bar.lines[0].get_xdata()[0]), y, (right - left) / 2))  # type: ignore[index]
    return found


def diamonds(ax: Axes) -> list[float]:
    drawn = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "D"]  # type: ignore[index]
    return [x for x in drawn if not math.isnan(x)]


def test_accuracies_stand_where_they_belong_with_two_errors() -> None:
    (ax,) = accuracies(cells(), STYLES).axes
    first, ours, adapted = bars(ax)
    assert [each[1] for each in (first, ours, adapted)] == [0.9, 0.8, 0.7]
    assert [each[3] for each in (first, ours, adapted)] == pytest.approx([0.02, 0.04, 0.06])
    assert [each[0] for each in (first, ours)] == [STYLES[name].color.lower() for name in ("FedAvg", "DeComFL")]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["FedAvg", "DeComFL"]  # none of MeZO was made
    assert round(first[2]) == 0
    assert round(ours[2]) == round(adapted[2]) == 1
    assert ours[2] < adapted[2]
    assert diamonds(ax) == [0.87, 0.85]
    lines = {float(line.get_xdata()[0]): line.get_linestyle() for line in ax.lines if len(line.get_xdata()) == 2}  # type: ignore[index,arg-type]
    assert lines == {0.5: "-", 0.55: "--", 0.6: ":"}


def test_costs_are_drawn_filled_measured_and_hollow_printed() -> None:
    frame = pd.DataFrame(
        [
            {"series": "FedAvg", "d": 1e3, "bytes": 2e3, "printed": False},
            {"series": "DeComFL", "d": 1e3, "bytes": 120.0, "printed": False},
            {"series": "DeComFL", "d": 1e8, "bytes": 1200.0, "printed": True},
        ]
    )
    (ax,) = round_costs(frame, {"FedAvg": (0.0, 2.0), "DeComFL": (120.0, 0.0)}, STYLES).axes
    spots: list[tuple[Any, ...]] = [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]), line.get_markerfacecolor() == "white")  # type: ignore[index]
        for line in ax.lines
        if line.get_marker() in ("o", "D")
    ]
    assert spots == [(1e3, 2e3, False), (1e3, 120.0, False), (1e8, 1200.0, True)]
    formulas = [line for line in ax.lines if line.get_linestyle() == "--"]
    for line, (constant, slope) in zip(formulas, [(0.0, 2.0), (120.0, 0.0)], strict=True):
        assert list(line.get_ydata()) == pytest.approx([constant + slope * d for d in line.get_xdata()])  # type: ignore[union-attr,arg-type]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="frame must have the columns panel, .*, got none named panel"):
        accuracies(cells().drop(columns="panel"), STYLES)
    with pytest.raises(InputError, match=r"series must be among FedAvg, MeZO, DeComFL, got \['odd'\]"):
        accuracies(cells().assign(series="odd"), STYLES)
    with pytest.raises(InputError, match="frame must have at least one row"):
        accuracies(cells().iloc[:0], STYLES)
    frame = pd.DataFrame([{"series": "FedAvg", "d": 1.0, "bytes": 2.0, "printed": False}])
    with pytest.raises(InputError, match=r"series must be among FedAvg, MeZO, DeComFL, got \['odd'\]"):
        round_costs(frame, {"odd": (0.0, 1.0)}, STYLES)
