"""docs/methods-theory.md: what shows that a method is replayable, and why directions from private data are not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

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
    assert len(named) == 4
    assert named <= set(LAWS)
