"""Figures of spectra: what stands on the axes is what was measured."""

from __future__ import annotations

import io
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from decomfl_lab.errors import InputError
from figures.spectra import KAPPAS, spectrum, training_spectra

D, WIDTH = 1000, 0.1


def curve(top: float = 5.0) -> pd.DataFrame:
    value = np.linspace(-1.0, top + 1, 400)
    density = 0.99 * np.exp(-0.5 * (value / WIDTH) ** 2) / (WIDTH * math.sqrt(2 * math.pi)) + 1e-9
    return pd.DataFrame({"value": value, "density": density, "low": 0.8 * density, "high": 1.2 * density})


def ritz() -> pd.DataFrame:
    return pd.DataFrame({"value": [5.0, 2.0, 0.7, -0.2], "residual": [1e-6, 0.02, 0.3, 0.001]})


def history() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "products": [5, 10, 20],
            "lambda_max": [4.0, 4.9, 5.0],
            "kappa": [2.5, 3.5, 3.0],
            "low": [1.0, 2.5, 2.7],
            "high": [9.0, 4.5, 3.3],
        }
    )


def axes_of(figure: Figure) -> dict[str, Axes]:
    return {ax.get_title(loc="left") or ax.get_ylabel(): ax for ax in figure.axes}


def lines(ax: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (list(np.asarray(line.get_xdata())), list(np.asarray(line.get_ydata())))
        for line in ax.get_lines()
    }


def test_the_density_and_the_known_eigenvalues_are_drawn_where_they_are() -> None:
    figure = spectrum(curve(), ritz(), history(), d=D, bandwidth=WIDTH, caption="Model: made up.")
    ax = axes_of(figure)["density of the d = 1,000 eigenvalues"]
    x, y = lines(ax)["density"]
    assert x == list(curve().value)
    assert y == list(curve().density)
    one = 1 / (D * WIDTH * math.sqrt(2 * math.pi))
    assert lines(ax)["_heads"] == ([5.0, 2.0, -0.2], [one] * 3)  # residuals of at most 1 %
    assert (ax.get_yscale(), ax.get_xscale()) == ("log", "symlog")
    assert ax.get_ylim()[0] < one < ax.get_ylim()[1]
    assert ax.get_xlim()[0] < -0.2
    assert ax.get_xlim()[1] > 5


def test_every_ritz_value_has_its_residual_as_a_bar() -> None:
    strip = spectrum(curve(), ritz(), history(), d=D, bandwidth=WIDTH).axes[1]
    bars = {}
    for container in strip.containers:
        assert isinstance(container, ErrorbarContainer)
        (segments,) = container.lines[2]
        for segment in segments.get_segments():
            left, right = segment[:, 0]
            bars[round((left + right) / 2, 9)] = round((right - left) / 2, 9)
    assert bars == dict(zip(ritz().value, ritz().residual, strict=True))
    assert [str(c.get_label()) for c in strip.containers] == ["converged", "not yet"]


def test_convergence_is_in_units_of_the_last_value_and_the_legend_says_it() -> None:
    figure = spectrum(curve(), ritz(), history(), d=D, bandwidth=WIDTH)
    drawn = lines(axes_of(figure)["how sure: value so far / last value"])
    assert drawn["λ_max = 5"][0] == [5, 10, 20]
    assert drawn["λ_max = 5"][1] == pytest.approx([0.8, 0.98, 1.0])
    assert drawn["κ = 3 in [2.7, 3.3]"][1] == pytest.approx([2.5 / 3, 3.5 / 3, 1.0])
    assert drawn["trace = 15"][1] == pytest.approx([10 / 15, 17.15 / 15, 1.0])


def test_without_a_density_the_ritz_values_stand_alone() -> None:
    figure = spectrum(None, ritz(), history(), d=D, bandwidth=None)
    assert list(axes_of(figure)) == ["Ritz values (d = 1,000)", "how sure: value so far / last value"]


def training() -> dict[str, pd.DataFrame]:
    steps = (0, 50)
    variants = {"signed": 3.0, "positive": 6.0, "absolute": 8.0, "gauss-newton": 4.0}
    return {
        "curves": pd.concat([curve(top).assign(step=s, bandwidth=WIDTH) for s, top in zip(steps, (1, 5), strict=True)]),
        "single": pd.DataFrame({"step": [0, 50, 50], "value": [1.0, 5.0, 2.0]}),
        "kappas": pd.DataFrame(
            [
                {"step": s, "kappa": name, "value": v / (1 + s), "low": 0.9 * v / (1 + s), "high": 1.2 * v / (1 + s)}
                for s in steps
                for name, v in variants.items()
            ]
        ),
        "extremes": pd.DataFrame(
            {
                "step": steps,
                "lambda_max": [1.0, 5.0],
                "lambda_min": [-0.5, -0.1],
                "near zero": [0.5, 0.987],
                "loss": [2.3, 0.4],
            }
        ),
    }


def test_every_step_has_a_panel_and_every_kappa_a_line_with_its_interval() -> None:
    figure = training_spectra(**training(), d=D, near=0.01, title="made up", caption="Scale: test.")
    axes = axes_of(figure)
    assert {"before training", "after 50 steps", "effective rank κ", "outer eigenvalues and loss"} <= set(axes)
    assert [text.get_text() for text in axes["after 50 steps"].texts] == ["98.7% near 0"]
    ax = axes["effective rank κ"]
    drawn = {str(c.get_label()): c for c in ax.containers}
    assert set(drawn) == {f"{name}: {what}" for name, what in KAPPAS.items()}
    container = drawn[f"absolute: {KAPPAS['absolute']}"]
    assert isinstance(container, ErrorbarContainer)
    assert list(np.asarray(container.lines[0].get_ydata())) == pytest.approx([8.0, 8.0 / 51])
    (segments,) = container.lines[2]
    assert [list(s[:, 1]) for s in segments.get_segments()] == [
        pytest.approx([7.2, 9.6]),
        pytest.approx([7.2 / 51, 9.6 / 51]),
    ]
    assert lines(ax)["d = 1,000"][1] == [D, D]
    assert lines(axes["outer eigenvalues and loss"])["−λ_min"] == ([0, 50], [0.5, 0.1])


def test_files_can_be_written_of_both() -> None:
    for figure in (
        spectrum(curve(), ritz(), history(), d=D, bandwidth=WIDTH),
        training_spectra(**training(), d=D, near=0.01),
    ):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        assert buffer.tell() > 10_000


def test_frames_without_what_is_needed_are_refused() -> None:
    with pytest.raises(InputError, match="ritz must have the columns value, residual, got none named residual"):
        spectrum(curve(), ritz().drop(columns="residual"), history(), d=D, bandwidth=WIDTH)
    with pytest.raises(InputError, match="history must have at least one row"):
        spectrum(curve(), ritz(), history().iloc[:0], d=D, bandwidth=WIDTH)
    with pytest.raises(InputError, match="bandwidth must be a finite number above 0, got 0"):
        spectrum(curve(), ritz(), history(), d=D, bandwidth=0.0)
    frames = training()
    frames["kappas"] = frames["kappas"].assign(kappa="mean")
    with pytest.raises(InputError, match="kappas must be among signed, positive, absolute, gauss-newton"):
        training_spectra(**frames, d=D, near=0.01)
