"""Kept results of work: used as they were left or not at all; work stops when its turn ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.interrupts import Interrupted
from decomfl_lab.training import Progress
from paper_repro.runs import DONE_FILE, TURN_FILE, run_all


class Small:
    """Work that leaves a table; ``during`` is called in the middle of it."""

    title = "small"

    def __init__(self, during: Callable[[Path], None] = lambda _: None) -> None:
        self.during = during

    def key(self) -> str:
        return "small"

    def cost(self) -> float:
        return 1.0

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        self.during(folder)
        report(Progress(1, 1, 0.0, 0.0, 0.0))
        (folder / "rows.csv").write_text("value\n1.5\n")
        return "ended well"

    def result(self, folder: Path, ended: str) -> tuple[pd.DataFrame, dict[str, Any]]:
        return pd.read_csv(folder / "rows.csv"), {"ended": ended}


@pytest.mark.parametrize("name", ["rows.csv", DONE_FILE])
def test_a_kept_result_with_a_changed_bit_is_refused(name: str, tmp_path: Path) -> None:
    for _ in range(2):  # computed, then kept
        ((rows, facts),) = run_all([Small()], tmp_path, n_jobs=1)
        assert (rows.value.tolist(), facts) == ([1.5], {"ended": "ended well"})
    path = tmp_path / "small" / name
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"runs must be as they were left, got .*small with another .*{name}"):
        run_all([Small()], tmp_path, n_jobs=1)


def _taken_over(folder: Path) -> None:
    (folder.parent / TURN_FILE).write_text("another's")


def test_work_stops_when_another_command_has_the_turn(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=r"^interrupted; 0 of 1 runs are finished, .* the same command goes on$"):
        run_all([Small(_taken_over)], tmp_path, n_jobs=1)
    assert not (tmp_path / "small" / DONE_FILE).exists()
    assert (tmp_path / TURN_FILE).read_text() == "another's"
