"""The figure of the edge of stability: what it refuses."""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib.figure import Figure

from decomfl_lab.errors import InputError
from paper_repro.studies.drawings import edge

BY_STEP = pd.DataFrame(
    {
        "series": ["projection", "projection", "differences"],
        "h": [0.01, 0.02, 0.02],
        "share": [0.0, 1.0, 0.5],
        "low": [0.0, 0.7, 0.2],
        "high": [0.3, 1.0, 0.8],
    }
)
LINES = pd.DataFrame(
    {"knob": ["P", "P", "K"], "at": [40, 5, 4], "share": [0.0, 1.0, 0.5], "low": [0.0, 0.7, 0.2], "high": 1.0}
)
ALONG = pd.DataFrame(
    {
        "run": ["a", "a", "b", "b"],
        "apart": [False, False, True, True],
        "step": [0, 10, 0, 10],
        "test_loss": [2.3, 0.4, 2.3, 1e9],
        "push": [0.1, 0.5, 0.1, float("inf")],
        "load": [0.1, 0.4, 0.1, None],
    }
)
LIMITS = {"admitted": (0.001, 0.002), "stable": (0.015, 0.02)}


def drawn(**changes: pd.DataFrame) -> Figure:
    frames = {"by_step": BY_STEP, "lines": LINES, "along": ALONG} | changes
    return edge(frames["by_step"], frames["lines"], frames["along"], limits=LIMITS, title="Edge", caption="Made up.")


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="along must have the columns .* got none named push"):
        drawn(along=ALONG.drop(columns="push"))
    with pytest.raises(InputError, match="by_step must have at least one row"):
        drawn(by_step=BY_STEP.iloc[:0])
    many = pd.concat([BY_STEP.assign(series=name) for name in "abcd"])
    with pytest.raises(InputError, match="series of by_step must be at most 3"):
        drawn(by_step=many)
    with pytest.raises(InputError, match="limits must be at most 2"):
        edge(BY_STEP, LINES, ALONG, limits=dict.fromkeys("abc", (1.0, 2.0)))
