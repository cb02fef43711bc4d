"""The board's figure: who did not get there is hollow and last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from paper_repro.studies.drawings import line_styles, races

STYLES = line_styles({"A": False, "B": True, "silent": False})


def run(line: str, seed: int, accuracy: list[float], cost: float, **more: Any) -> pd.DataFrame:
    rounds = np.arange(1, len(accuracy) + 1)
    frame = pd.DataFrame({"line": line, "seed": seed, "round": rounds, "accuracy": accuracy, "loss": np.nan})
    given = {"problem": "digits", "target": 0.8, "by": "accuracy", "reached": accuracy[-1] >= 0.8}
    return frame.assign(client_bytes=rounds * cost, passes=10.0 * rounds, **given | more)


FRAME = pd.concat(
    [
        run("A", 0, [0.5, 0.4, 0.9], 10),
        run("A", 1, [0.5, 0.8], 60),
        run("B", 0, [0.1, 0.2], 7),
        run("silent", 0, [0.9], 0),
    ]
)


def test_who_did_not_get_there_is_hollow_and_last() -> None:
    *_, below = races(FRAME, STYLES).axes
    dots = {line.get_ydata()[0]: line.get_markerfacecolor() for line in below.get_lines() if line.get_marker() == "o"}
    names = [text.get_text() for text in below.get_yticklabels()]
    assert names == ["silent", "A", "B"]
    assert [dots[place] == "white" for place in range(3)] == [False, False, True]
