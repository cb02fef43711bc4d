"""Curves and panels of them: what is drawn is the mean of what was measured."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from decomfl_lab.errors import InputError
from figures.comparison import by_communication, comparison
from figures.curves import mean_and_band
from figures.style import series_styles
from tests.refusals import refuses

ROUNDS = (20, 40)
K1, K4, FEDAVG = "DeComFL K=1 P=20", "DeComFL K=4 P=20", "FedAvg K=10"
STYLES = series_styles([K1, K4]) | series_styles([FEDAVG], baseline=True)


def run(series: str, seed: int, accuracies: tuple[float, ...], **changes: Any) -> pd.DataFrame:
    rounds = np.array(ROUNDS[: len(accuracies)])
    columns = {
        "series": series,
        "seed": seed,
        "round": rounds,
        "test_accuracy": accuracies,
        "wire_scalars": 100.0 * rounds + seed,
        "table1_scalars": 200.0 * rounds,
        "plotted_scalars": 300.0 * rounds,
    }
    return pd.DataFrame(columns | changes)


def frame() -> pd.DataFrame:
    """Three seeds of K=1, two of K=4, and one of FedAvg."""
    return pd.concat(
        [
            run(K4, 0, (0.5, 0.7)),
            run(K4, 1, (0.6, 0.9)),
            run(K1, 0, (0.1, 0.4)),
            run(K1, 1, (0.2, 0.5)),
            run(K1, 5, (0.6, 0.9)),
            run(FEDAVG, 0, (0.9, 0.95)),
        ],
        ignore_index=True,
    )


def drawn(count: Any = "wire", *, frame: pd.DataFrame = frame(), **changes: Any) -> Figure:  # noqa: B008 (not changed)
    return comparison([by_communication(frame, count, **changes)], STYLES, title="Title", caption="Scale: smoke.")


def plots_of(figure: Figure) -> list[Axes]:
    return list(figure.axes)


def lines_of(ax: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (list(np.asarray(line.get_xdata())), list(np.asarray(line.get_ydata())))
        for line in ax.get_lines()
    }


def test_three_seeds_give_a_band_of_one_standard_deviation() -> None:
    curves = frame()
    band = mean_and_band(curves[curves["series"] == K1], "wire_scalars")
    deviation = np.sqrt((0.2**2 + 0.1**2 + 0.3**2) / 2)  # of 0.1, 0.2, 0.6 about 0.3
    assert band["high"][0] - band["y"][0] == pytest.approx(deviation)
    assert band["y"][0] - band["low"][0] == pytest.approx(deviation)


def test_two_seeds_give_a_band_from_minimum_to_maximum_and_one_gives_none() -> None:
    curves = frame()
    two = mean_and_band(curves[curves["series"] == K4], "round")
    assert list(two["low"]) == [0.5, 0.7]
    assert list(two["high"]) == [0.6, 0.9]
    one = mean_and_band(curves[curves["series"] == FEDAVG], "round")
    assert list(one["low"]) == list(one["y"]) == list(one["high"])


def test_rounds_that_some_seed_did_not_reach_are_left_out() -> None:
    curves = pd.concat([run(K1, 0, (0.1, 0.4)), run(K1, 1, (0.3,))])
    band = mean_and_band(curves, "round")
    assert list(band["round"]) == [20]
    assert list(band["y"]) == pytest.approx([0.2])


@pytest.mark.parametrize("change", [{}, {"yscale": "logit", "ylimits": (0.05, 0.99)}, {"title": "A panel"}])
def test_figures_render_without_a_warning_and_without_pyplot(change: dict[str, Any]) -> None:
    before = dict(matplotlib.rcParams)
    figure = drawn(**change)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=50)
    assert image.getvalue().startswith(b"\x89PNG")
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == before
    assert plots_of(figure)[0].get_ylim() == change.get("ylimits", plots_of(figure)[0].get_ylim())


def words(figure: Figure) -> str:
    return " ".join(text.get_text() for part in figure.subfigs for text in part.texts).replace("\n", " ")


def test_the_caption_is_in_the_figure_and_says_when_points_are_lost() -> None:
    zero = frame().assign(plotted_scalars=lambda f: f["plotted_scalars"].where(f["series"] != FEDAVG, 0.0))
    assert "Scale: smoke." in words(drawn(frame=zero))
    assert "outside the logarithmic axis" in words(drawn("plotted", frame=zero))
    assert "outside the logarithmic axis" in words(drawn("plotted", reference=zero))
    assert "outside" not in words(drawn("table1", frame=zero))


@pytest.mark.parametrize("column", ["seed", "test_accuracy", "wire_scalars", "round"])
def test_a_missing_column_is_named(column: str) -> None:
    with pytest.raises(InputError, match=rf"curves of panel .* must have the columns .* none named {column}$"):
        drawn(frame=frame().drop(columns=column))
    with pytest.raises(InputError, match=rf"reference of panel .* must have .* none named {column}$"):
        drawn(reference=frame().drop(columns=column))


@refuses(
    (lambda: drawn("bytes"), "count must be one of wire, table1, plotted, got 'bytes'"),
    (lambda: drawn(frame=frame().iloc[:0]), "panels must be at least one, with at least one row, got 1"),
    (lambda: drawn(frame=frame().assign(series="MeZO")), r"series of panel .* must be among .*, got \['MeZO'\]"),
    (lambda: drawn(frame=pd.concat([frame(), frame()])), "seed 0 round 20 again"),
)
def test_bad_input_is_refused_by_name(attempt: Callable[[], Any]) -> None:
    attempt()
