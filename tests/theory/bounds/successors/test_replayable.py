"""docs/methods-theory.md: what shows that a method is replayable, and why directions from private data are not."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from decomfl_lab.laws import LAWS

DOC = Path(__file__).parents[4] / "docs" / "methods-theory.md"


def agzo_step(a: np.ndarray, n: float) -> tuple[float, np.ndarray]:
    """The scalar of f(W) = ½(Wa − 1)² at W = 0, and where it leads: z is in the row space of the activations a."""
    mu, z = 0.5, n * a / np.linalg.norm(a)
    g = (0.5 * (mu * z @ a - 1) ** 2 - 0.5) / mu
    return g, -0.1 * g * z


def test_directions_from_private_activations_give_two_models_of_one_record() -> None:
    (g, x), (other_g, other_x) = (agzo_step(a, n=0.7) for a in np.eye(2))
    assert g == other_g
    assert np.linalg.norm(x - other_x) > 0.05


def test_the_laws_that_show_what_is_replayable_exist() -> None:
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+){2,})`", DOC.read_text().split("\n## ")[1]))
    assert named
    assert named <= set(LAWS)


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
