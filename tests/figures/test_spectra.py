"""Figures of spectra: what stands on the axes is what was measured."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from decomfl_lab.errors import InputError
from figures.spectra import KAPPAS, training_spectra
from tests.figures.test_curves import lines_of

D, WIDTH = 1000, 0.1


def curve(top: float = 5.0) -> pd.DataFrame:
    value = np.linspace(-1.0, top + 1, 400)
    density = 0.99 * np.exp(-0.5 * (value / WIDTH) ** 2) / (WIDTH * math.sqrt(2 * math.pi)) + 1e-9
    return pd.DataFrame({"value": value, "density": density, "low": 0.8 * density, "high": 1.2 * density})


def axes_of(figure: Figure) -> dict[str, Axes]:
    return {ax.get_title(loc="left") or ax.get_ylabel(): ax for ax in figure.axes}


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


def test_the_density_and_the_known_eigenvalues_are_drawn_where_they_are() -> None:
    ax = axes_of(training_spectra(**training(), d=D, near=0.01))["after 50 steps"]
    assert lines_of(ax)["density"] == (list(curve().value), list(curve().density))
    one = 1 / (D * WIDTH * math.sqrt(2 * math.pi))
    assert lines_of(ax)["_heads"] == ([5.0, 2.0], [one] * 2)
    assert (ax.get_yscale(), ax.get_xscale()) == ("log", "symlog")
    assert ax.get_ylim()[0] < one < ax.get_ylim()[1]
    assert ax.get_xlim()[0] < -0.2
    assert ax.get_xlim()[1] > 5


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
    assert lines_of(ax)["d = 1,000"][1] == [D, D]
    assert lines_of(axes["outer eigenvalues and loss"])["−λ_min"] == ([0, 50], [0.5, 0.1])


def test_frames_without_what_is_needed_are_refused() -> None:
    frames = training()
    with pytest.raises(InputError, match="kappas must be among signed, positive, absolute, gauss-newton"):
        training_spectra(**{**frames, "kappas": frames["kappas"].assign(kappa="mean")}, d=D, near=0.01)
    with pytest.raises(InputError, match="curves must have the columns .*, got none named low"):
        training_spectra(**{**frames, "curves": frames["curves"].drop(columns="low")}, d=D, near=0.01)
