"""Curves and panels of them: what is drawn is the mean of what was measured."""

import io
from collections.abc import Callable
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from decomfl_lab.errors import InputError
from figures.comparison import by_communication, comparison
from figures.curves import mean_and_band
from figures.style import series_styles
from tests.refusals import refuses

ROUNDS = (20, 40)
K1, K4, FEDAVG = "DeComFL K=1 P=20", "DeComFL K=4 P=20", "FedAvg K=10"
STD = 0.07**0.5  # of three numbers of which two lie 0.2 and 0.1 below their mean, and one 0.3 above
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


@pytest.mark.parametrize(
    ("runs", "mean", "low", "high"),
    [
        ([(0.1, 0.4), (0.2, 0.5), (0.6, 0.9)], [0.3, 0.6], [0.3 - STD, 0.6 - STD], [0.3 + STD, 0.6 + STD]),
        ([(0.5, 0.7), (0.6, 0.9)], [0.55, 0.8], [0.5, 0.7], [0.6, 0.9]),
        ([(0.9, 0.95)], [0.9, 0.95], [0.9, 0.95], [0.9, 0.95]),
        ([(0.1, 0.4), (0.3,)], [0.2], [0.1], [0.3]),
    ],
    ids=["one standard deviation of three seeds", "least to most of two", "none of one", "rounds that all have"],
)
def test_a_band_is_that_of_its_seeds(
    runs: list[tuple[float, ...]], mean: list[float], low: list[float], high: list[float]
) -> None:
    band = mean_and_band(pd.concat([run(K1, seed, own) for seed, own in enumerate(runs)]), "round")
    found = [[*band[name]] for name in ("round", "y", "low", "high")]
    assert found == [pytest.approx(own) for own in (ROUNDS[: len(mean)], mean, low, high)]


@pytest.mark.parametrize("change", [{}, {"yscale": "logit", "ylimits": (0.05, 0.99)}, {"title": "A panel"}])
def test_figures_render_without_a_warning_and_without_pyplot(change: dict[str, Any]) -> None:
    before = dict(matplotlib.rcParams)
    figure = drawn(**change)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=50)
    assert image.getvalue().startswith(b"\x89PNG")
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].get_ylim() == change.get("ylimits", figure.axes[0].get_ylim())


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
