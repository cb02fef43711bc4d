"""Figures of the theory: what stands on the axes is what was computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from decomfl_lab.errors import InputError
from figures.theory import CONDITIONS, dimension_free, speed_ups, step_sizes, training
from tests.figures.test_curves import lines_of

SERIES = {"measured, κ equal eigenvalues": 0.03, "Theorem 2, stated": 0.1, "Theorem 1, corrected": 5.0}


def axes_of(figure: Figure) -> dict[str, Axes]:
    return {ax.get_title(loc="left"): ax for ax in figure.axes}


def sweep(x: str, fixed: str) -> pd.DataFrame:
    rows = [
        {"series": series, x: at, fixed: 10, "value": value * (1 + 0.02 * (at == 10**6))}
        for series, value in SERIES.items()
        for at in (10, 1000, 10**6)
    ]
    return pd.DataFrame(rows).sample(frac=1.0, random_state=0)  # in no order


def simulated() -> pd.DataFrame:
    return pd.DataFrame({"d": [10, 1000], "value": [0.031, 0.029], "low": [0.03, 0.02], "high": [0.04, 0.03]})


def test_every_series_stands_in_both_panels_and_points_have_their_intervals() -> None:
    axes = axes_of(dimension_free(sweep("d", "kappa"), sweep("kappa", "d"), simulated()))
    left, right = axes["d grows, κ = 10"], axes["κ grows, d = 10"]
    for ax in (left, right):
        drawn = lines_of(ax)
        for series, value in SERIES.items():
            assert drawn[series] == ([10, 1000, 10**6], pytest.approx([value, value, 1.02 * value]))
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in left.texts] == ["measured, from d = 1,000 on:\nmost / least − 1 = 2.0e-02"]
    (container,) = left.containers
    (segments,) = container.lines[2]  # type: ignore[attr-defined]
    assert [piece[:, 1].tolist() for piece in segments.get_segments()] == [
        pytest.approx([0.03, 0.04]),
        pytest.approx([0.02, 0.03]),
    ]
    assert not axes_of(dimension_free(sweep("d", "kappa"), sweep("kappa", "d"), simulated()[:0]))[
        "d grows, κ = 10"
    ].containers


def rounds() -> pd.DataFrame:
    rows = [
        {"knob": knob, "at": at, "noise": noise, "series": series, "rounds": factor * 100.0 / at}
        for knob in ("K", "m")
        for at in (4, 1, 16)
        for noise in ("σ", "σ_G")
        for series, factor in (("measured", 1.0), ("stated bound", 9.0))
    ]
    frame = pd.DataFrame(rows)
    frame.loc[(frame["knob"] == "K") & (frame["at"] == 16) & (frame["noise"] == "σ_G"), "rounds"] = np.nan
    return frame


def test_rounds_fall_beside_lines_of_slope_minus_one() -> None:
    axes = axes_of(speed_ups(rounds(), ends={"K": (4.0, "K = d")}))
    assert list(axes) == ["more clients sampled", "more local steps"]
    drawn = lines_of(axes["more clients sampled"])
    assert drawn["measured, σ"] == ([1, 4, 16], [100, 25, 6.25])
    assert drawn["stated bound, σ_G"] == ([1, 4, 16], [900, 225, 56.25])
    assert drawn["_slope"] == drawn["measured, σ"]
    assert lines_of(axes["more local steps"])["_end"][0] == [4.0, 4.0]
    assert [text.get_text() for text in axes["more local steps"].texts] == ["K = d"]
    assert "_end" not in drawn
    assert lines_of(axes["more local steps"])["measured, σ_G"] == (
        [1, 4],
        [100, 25],
    )  # what is not reached is not drawn


def maps() -> pd.DataFrame:
    rows = [
        {
            "K": K,
            "m": m,
            "ratio": ratio,
            "binding": "drift" if m > 1 else "variance",
            "stated": 1.0 / m,
            "corrected": 0.1,
            "limit": 10.0 * ratio,
        }
        for K in (1, 4)
        for m in (1, 10, 100)
        for ratio in (0.1, 1.0, 10.0)
    ]
    return pd.DataFrame(rows)


def test_maps_show_what_binds_and_both_ratios() -> None:
    figure = step_sizes(maps())
    panels = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    assert [panels[0].get_title(loc="left"), panels[1].get_title(loc="left")] == ["K = 1", "K = 4"]
    binds, over, below = (panels[2 * row].collections[0] for row in range(3))
    assert all(isinstance(each, QuadMesh) for each in (binds, over, below))
    kinds = list(CONDITIONS)
    assert np.asarray(binds.get_array()).reshape(3, 3)[:, 0].tolist() == [
        kinds.index(each) for each in ("variance", "drift", "drift")
    ]
    assert np.asarray(over.get_array()).reshape(3, 3)[:, 1] == pytest.approx([1.0, 0.0, -1.0])
    assert np.asarray(below.get_array()).reshape(3, 3)[2] == pytest.approx([2.0, 3.0, 4.0])
    assert to_hex(binds.to_rgba(kinds.index("drift"))).upper() == CONDITIONS["drift"]
    (legend,) = [each for part in figure.subfigs for each in part.legends]
    assert [text.get_text() for text in legend.get_texts()] == ["variance binds", "drift binds"]


def trained() -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for panel in ("a, d = 9", "b, d = 99"):
        for R in (1, 10, 100):
            rows.append(
                {"panel": panel, "series": "measured", "round": R, "value": 1 / R, "low": 0.9 / R, "high": 1.1 / R}
            )
            rows.append({"panel": panel, "series": "Theorem 2, corrected", "round": R, "value": 10 / R})
    return pd.DataFrame(rows)


def test_training_stands_under_its_bounds_with_the_range_of_seeds() -> None:
    axes = axes_of(training(trained()))
    assert list(axes) == ["a, d = 9", "b, d = 99"]
    drawn = lines_of(axes["b, d = 99"])
    assert drawn["measured"] == ([1, 10, 100], [1.0, 0.1, 0.01])
    assert drawn["Theorem 2, corrected"] == ([1, 10, 100], [10.0, 1.0, 0.1])
    (band,) = axes["b, d = 99"].collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(0.009), pytest.approx(1.1))


def test_frames_without_what_is_needed_are_refused() -> None:
    with pytest.raises(InputError, match="by_d must have the columns series, d, kappa, value, got none named value"):
        dimension_free(sweep("d", "kappa").drop(columns="value"), sweep("kappa", "d"), simulated())
    with pytest.raises(InputError, match="noise of frame must be among σ, σ_G, got"):
        speed_ups(rounds().assign(noise="loud"))
    with pytest.raises(InputError, match="binding of frame must be among variance, drift, local_steps, smoothing, got"):
        step_sizes(maps().assign(binding="none"))
    with pytest.raises(InputError, match="frame must have at least one row, got 0"):
        training(trained()[:0])
