"""The picture of a device's ratios: its bars are the numbers, and nothing is cut off."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.figure_device import device_ratios
from decomfl_lab.errors import InputError

FRAME = pd.DataFrame(
    [
        {"what": "rebuild, d = 28,938", "how": "10 gaussian", "seconds": 2e-4, "ratio": 6.0, "of limit": 0.4},
        {"what": "round of cnn-mnist", "how": "in place, central", "seconds": 4.0, "ratio": 1.0, "of limit": 0.3},
        {"what": "round of cnn-mnist", "how": "batched, central", "seconds": 0.2, "ratio": 20.0, "of limit": None},
    ]
)


def test_a_bar_is_a_ratio_and_the_usual_way_is_the_line_at_one() -> None:
    figure = device_ratios(FRAME, device="cuda (a GPU)")
    (ax,) = figure.axes
    assert [bar.get_width() for bar in ax.patches] == [6.0, 20.0]  # type: ignore[attr-defined]
    assert ax.lines[0].get_xdata()[0] == 1.0  # type: ignore[index]
    assert [text.get_text() for text in ax.texts] == ["6.0×  (0.0002 s, 40% of the limit)", "20.0×  (0.2 s)"]
    assert ax.get_title(loc="left") == "cuda (a GPU)"


def test_a_frame_without_ratios_is_refused() -> None:
    with pytest.raises(InputError, match="frame must have the columns what, how, seconds, ratio, of limit"):
        device_ratios(FRAME.drop(columns="ratio"), device="cpu")
    with pytest.raises(InputError, match="frame must have at least one row, got 0"):
        device_ratios(FRAME.iloc[:0], device="cpu")
