"""Laws of the accuracy curves: what is drawn is the mean of what was measured."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from decomfl_lab.errors import InputError
from figures.curves import accuracy_by_communication, mean_and_band
from figures.style import OKABE_ITO, rc, series_styles

ROUNDS = (20, 40)


def run(
    method: str, panel: str, K: int, P: int, seed: int, accuracies: tuple[float, ...], **changes: Any
) -> pd.DataFrame:
    name = f"{method} K={K}" + (f" P={P}" if method == "DeComFL" else "")
    rounds = np.array(ROUNDS[: len(accuracies)])
    columns = {
        "reading": "as-plotted",
        "panel": panel,
        "method": method,
        "series": name,
        "K": K,
        "P": P,
        "seed": seed,
        "round": rounds,
        "test_accuracy": accuracies,
        "test_loss": 1.0,
        "train_loss": 1.0,
        "wire_scalars": 100.0 * rounds + seed,
        "table1_scalars": 200.0 * rounds,
        "plotted_scalars": 300.0 * rounds,
    }
    return pd.DataFrame(columns | changes)


def frame() -> pd.DataFrame:
    """Three seeds of K=1, two of K=4, one of P=10, and FedAvg in the left panel only."""
    return pd.concat(
        [
            run("DeComFL", "local-updates", 4, 20, 0, (0.5, 0.7)),
            run("DeComFL", "local-updates", 4, 20, 1, (0.6, 0.9)),
            run("DeComFL", "local-updates", 1, 20, 0, (0.1, 0.4)),
            run("DeComFL", "local-updates", 1, 20, 1, (0.2, 0.5)),
            run("DeComFL", "local-updates", 1, 20, 5, (0.6, 0.9)),
            run("DeComFL", "perturbations", 4, 10, 0, (0.3, 0.8)),
            run("FedAvg", "local-updates", 10, 0, 0, (0.9, 0.95)),
        ],
        ignore_index=True,
    )


def plots_of(figure: Figure) -> list[Axes]:
    return list(figure.axes)


def lines_of(ax: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (list(np.asarray(line.get_xdata())), list(np.asarray(line.get_ydata())))
        for line in ax.get_lines()
    }


def test_the_line_is_the_mean_over_seeds_of_both_coordinates() -> None:
    left = plots_of(accuracy_by_communication(frame()))[0]
    x, y = lines_of(left)["DeComFL K=1 P=20"]
    assert x == pytest.approx([2000 + (0 + 1 + 5) / 3, 4000 + (0 + 1 + 5) / 3])
    assert y == pytest.approx([(0.1 + 0.2 + 0.6) / 3, (0.4 + 0.5 + 0.9) / 3])


@pytest.mark.parametrize(("count", "factor"), [("table1", 200.0), ("plotted", 300.0)])
def test_the_x_axis_follows_the_counting(count: Any, factor: float) -> None:
    left = plots_of(accuracy_by_communication(frame(), count=count))[0]
    assert lines_of(left)["DeComFL K=4 P=20"][0] == pytest.approx([20 * factor, 40 * factor])


def test_each_counting_is_named_on_the_axis() -> None:
    labels = {
        plots_of(accuracy_by_communication(frame(), count=c))[0].get_xlabel() for c in ("wire", "table1", "plotted")
    }
    assert len(labels) == 3
    assert all("communicated scalars per client" in label for label in labels)


def test_three_seeds_give_a_band_of_one_standard_deviation() -> None:
    curves = frame()
    band = mean_and_band(curves[curves["series"] == "DeComFL K=1 P=20"], "wire_scalars")
    deviation = np.sqrt((0.2**2 + 0.1**2 + 0.3**2) / 2)  # of 0.1, 0.2, 0.6 about 0.3
    assert band["high"][0] - band["y"][0] == pytest.approx(deviation)
    assert band["y"][0] - band["low"][0] == pytest.approx(deviation)


def test_two_seeds_give_a_band_from_minimum_to_maximum_and_one_gives_none() -> None:
    curves = frame()
    two = mean_and_band(curves[curves["series"] == "DeComFL K=4 P=20"], "round")
    assert list(two["low"]) == [0.5, 0.7]
    assert list(two["high"]) == [0.6, 0.9]
    one = mean_and_band(curves[curves["series"] == "FedAvg K=10"], "round")
    assert list(one["low"]) == list(one["y"]) == list(one["high"])


def test_rounds_that_some_seed_did_not_reach_are_left_out() -> None:
    curves = pd.concat(
        [
            run("DeComFL", "local-updates", 1, 20, 0, (0.1, 0.4)),
            run("DeComFL", "local-updates", 1, 20, 1, (0.3,)),
        ]
    )
    band = mean_and_band(curves, "round")
    assert list(band["round"]) == [20]
    assert list(band["y"]) == pytest.approx([0.2])


def test_fedavg_is_drawn_in_both_panels_though_run_for_one() -> None:
    left, right = plots_of(accuracy_by_communication(frame()))
    assert lines_of(left)["FedAvg K=10"] == lines_of(right)["FedAvg K=10"]


def test_every_reading_has_its_row_and_series_are_ordered_by_their_knob() -> None:
    both = pd.concat([frame(), frame().assign(reading="as-written")])
    axes = plots_of(accuracy_by_communication(both))
    assert [ax.get_title(loc="left").split(" ")[0] for ax in axes] == ["as-plotted"] * 2 + ["as-written"] * 2
    assert list(lines_of(axes[0])) == ["DeComFL K=1 P=20", "DeComFL K=4 P=20", "FedAvg K=10"]


def test_the_authors_curve_has_the_colour_of_the_same_k_and_is_thinner() -> None:
    authors = run("DeComFL", "local-updates", 4, 20, 99, (0.4, 0.6), reading="authors", series="DeComFL K=4 lr=1")
    left = plots_of(accuracy_by_communication(frame(), reference=authors))[0]
    theirs = next(line for line in left.get_lines() if str(line.get_label()).startswith("_"))
    ours = next(line for line in left.get_lines() if line.get_label() == "DeComFL K=4 P=20")
    assert theirs.get_color() == ours.get_color()
    assert theirs.get_linewidth() < ours.get_linewidth()
    legend = left.get_legend()
    assert legend is not None
    legends = [text.get_text() for text in legend.get_texts()]
    assert "authors' logs (same colours)" in legends


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"count": "plotted", "yscale": "logit"},
        {"ylimits": (0.2, 1.0)},
        {"title": "Title", "caption": "A long caption. " * 30},
    ],
)
def test_figures_render_without_a_warning_and_without_pyplot(change: dict[str, Any]) -> None:
    before = dict(matplotlib.rcParams)
    figure = accuracy_by_communication(frame(), **change)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=50)
    assert image.getvalue().startswith(b"\x89PNG")
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_the_caption_is_in_the_figure_and_says_when_points_are_lost() -> None:
    zero = frame().assign(plotted_scalars=lambda f: f["plotted_scalars"].where(f["method"] != "FedAvg", 0.0))

    def words(figure: Figure) -> str:
        return " ".join(text.get_text() for part in figure.subfigs for text in part.texts).replace("\n", " ")

    assert "Scale: smoke." in words(accuracy_by_communication(zero, caption="Scale: smoke."))
    assert "outside the logarithmic axis" in words(accuracy_by_communication(zero, count="plotted"))
    assert "outside" not in words(accuracy_by_communication(zero, count="table1"))


def test_a_panel_without_runs_is_drawn_empty() -> None:
    curves = frame()
    only_left = curves[(curves["panel"] == "local-updates") & (curves["method"] == "DeComFL")]
    figure = accuracy_by_communication(only_left.assign(P=lambda f: f["P"].astype(float)))
    figure.savefig(io.BytesIO(), format="png", dpi=50)
    assert [len(ax.get_lines()) for ax in plots_of(figure)] == [2, 0]


@pytest.mark.parametrize("column", ["reading", "panel", "K", "seed", "test_accuracy", "wire_scalars"])
def test_a_missing_column_is_named(column: str) -> None:
    with pytest.raises(InputError, match=f"curves must have the columns .* none named {column}$"):
        accuracy_by_communication(frame().drop(columns=column))


def test_a_missing_column_of_the_reference_is_named() -> None:
    with pytest.raises(InputError, match=r"reference must have .* none named round$"):
        accuracy_by_communication(frame(), reference=frame().drop(columns="round"))


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="count must be one of wire, table1, plotted, got 'bytes'"):
        accuracy_by_communication(frame(), count="bytes")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="curves must have at least one row"):
        accuracy_by_communication(frame().iloc[:0])
    with pytest.raises(InputError, match="yscale must be one of linear, logit, got 'log'"):
        accuracy_by_communication(frame(), yscale="log")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="panel must hold only"):
        accuracy_by_communication(frame().assign(panel="left"))
    with pytest.raises(InputError, match="column test_accuracy must hold finite numbers"):
        accuracy_by_communication(frame().assign(test_accuracy=float("nan")))
    with pytest.raises(InputError, match="seed 0 round 20 again"):
        accuracy_by_communication(pd.concat([frame(), frame()]))


def test_seeds_without_a_common_round_are_refused() -> None:
    curves = pd.concat(
        [
            run("DeComFL", "local-updates", 1, 20, 0, (0.1, 0.2)),
            run("DeComFL", "local-updates", 1, 20, 1, (0.1, 0.2)).assign(round=[21, 41]),
        ]
    )
    with pytest.raises(InputError, match="share at least one evaluated round"):
        mean_and_band(curves, "round")


def test_styles_follow_the_order_of_values_and_apply() -> None:
    assert [series_styles([40, 10, 20, 10])[P].color for P in (10, 20, 40)] == list(OKABE_ITO[:3])
    greys = series_styles([1, 4, 10], baseline=True)
    assert len({style.dash for style in greys.values()}) == len({style.color for style in greys.values()}) == 3
    with matplotlib.rc_context(rc()):
        assert matplotlib.rcParams["font.size"] == 9.0
    with pytest.raises(InputError, match="base_size"):
        rc(0)
    with pytest.raises(InputError, match="values"):
        series_styles([])


def test_checks_are_dots_and_longer_runs_thin_lines_in_the_colour_of_the_same_k() -> None:
    checks = run("DeComFL", "local-updates", 4, 20, 0, (0.51,))
    longer = frame()[frame()["K"] != 1]
    figure = accuracy_by_communication(frame(), checks=checks, longer=longer)
    left, right = plots_of(figure)
    of = {label: [line for line in left.get_lines() if line.get_label() == label] for label in lines_of(left)}
    (dots,), thin, (ours,) = of["_checks"], of["_longer"], of["DeComFL K=4 P=20"]
    assert (dots.get_linestyle(), dots.get_color()) == ("None", ours.get_color())
    assert list(np.asarray(dots.get_xydata()).ravel()) == [2000.0, 0.51]
    assert len(thin) == 2
    assert all(line.get_linewidth() < ours.get_linewidth() for line in thin)
    assert ours.get_color() in {line.get_color() for line in thin}
    legend = left.get_legend()
    assert legend is not None
    assert {"dots: finite differences, μ = 1e-4", "thin: recorded runs at full scale"} <= {
        text.get_text() for text in legend.get_texts()
    }
    assert not [line for line in right.get_lines() if line.get_label() == "_checks"]
