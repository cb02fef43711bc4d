"""``python -m`` of HiSo's speed runs as it stands: curvature's part of what it saves keeps to the root of P + 2."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.thorough
def test_a_perfect_scale_saves_far_more_rounds_than_the_one_that_is_learned() -> None:
    words = [sys.executable, "-m", "theory.bounds.successors.hiso_speed", "1", "10"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row = [float(cell) for cell in done.stdout.splitlines()[-1].strip("| ").split("|")]
    plain, hiso, one, ideal = row[2:6]
    assert 0.8 < plain / hiso < 1.25
    assert 1.0 < one / hiso < (10 + 2) ** 0.5
    assert plain / ideal > 2
