"""FZOO: steps that do not depend on the loss's unit, from P + 1 losses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import decomfl_lab as lab
from decomfl_lab.errors import InputError
from decomfl_lab.methods.fzoo import Normalised
from decomfl_lab.noise import Distribution, direction
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Step

STEP = Step(7, np.array([0.5, -2.0, 1.0], np.float32), 0.1, Distribution.RADEMACHER)


def moved(step: Step) -> torch.Tensor:
    """How a step moves the origin."""
    replica = Replica(torch.zeros(40).double(), Normalised())
    replica.step_(step)
    return replica.x


def test_a_step_is_over_the_standard_deviation_of_its_scalars() -> None:
    z = np.stack([direction(7, p, 40, distribution=Distribution.RADEMACHER) for p in range(3)])
    sigma = np.std(STEP.scalars, ddof=1)
    np.testing.assert_allclose(moved(STEP), -0.1 / (3 * sigma) * STEP.scalars @ z, rtol=1e-6)


def test_a_loss_in_other_units_takes_the_same_step() -> None:
    assert torch.equal(moved(STEP), moved(replace(STEP, scalars=1024 * STEP.scalars)))


@pytest.mark.parametrize("scalars", [[2.0, 2.0, 2.0], [3.0], [0.0, 0.0]])
def test_scalars_without_a_spread_move_nothing(scalars: list[float]) -> None:
    assert not moved(replace(STEP, scalars=np.array(scalars, np.float32))).any()


def test_one_direction_has_no_spread() -> None:
    for options in ({"perturbations": 1}, {"perturbation_schedule": {3: 1}}):
        with pytest.raises(InputError, match="perturbations P for fzoo must be an integer of at least 2, got 1"):
            lab.FZOO(**options)  # type: ignore[arg-type]
