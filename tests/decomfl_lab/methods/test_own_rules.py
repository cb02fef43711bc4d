"""Methods with a rule of their own: HiSo, whose scale the records determine, and FZOO, whose steps have no unit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import decomfl_lab as lab
from decomfl_lab.engines.base import Line
from decomfl_lab.engines.registry import make_engine
from decomfl_lab.errors import InputError
from decomfl_lab.estimators.differences import central, projection
from decomfl_lab.layout import Layout
from decomfl_lab.methods.fzoo import Normalised
from decomfl_lab.methods.hiso import Whitened
from decomfl_lab.noise import Distribution, direction
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Plan
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import LowPrecision, Step
from tests.cases import sampled

STEP = Step(7, np.array([0.5, -2.0], np.float32), 0.1, Distribution.GAUSSIAN)
SIGNS = Step(7, np.array([0.5, -2.0, 1.0], np.float32), 0.1, Distribution.RADEMACHER)


def net() -> ModuleObjective:
    """A small classifier with its data."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    inputs, targets = torch.randn(8, 1, 2, 3), torch.arange(8) % 3
    return ModuleObjective(module, Layout.of(module), cross_entropy, inputs, targets, EpochBatches(8, 8, (0,)))


def whitened(objective: ModuleObjective) -> Replica:
    """A replica whose scale is not 1."""
    replica = Replica(objective.layout.flatten(objective.module), Whitened(0.5))
    for seed in range(5):
        replica.step_(replace(STEP, seed=seed))
    assert 0.2 < float(replica.state["scale"].std()) < 2.0
    return replica


def test_s_is_one_over_the_root_of_the_running_mean_of_squared_steps() -> None:
    replica, h = Replica(torch.zeros(50).double(), Whitened(0.9)), np.ones(50)
    for seed in range(6):
        z = [direction(seed, p, 50).astype(np.float64) for p in range(2)]
        G = (0.5 * z[0] - 2.0 * z[1]) / 2 / np.sqrt(h)
        before = replica.x.clone()
        replica.step_(replace(STEP, seed=seed, last=seed != 3))
        np.testing.assert_allclose(before - replica.x, 0.1 * G, rtol=1e-10)
        h = 0.9 * h + 0.1 * G**2 if seed != 3 else h
    np.testing.assert_allclose(replica.state["scale"], h**-0.5, rtol=1e-10)


@pytest.mark.parametrize("engine", sampled(["serial", "plain", "threads", "fused", "batched", "auto"], 3))
def test_every_engine_measures_along_scaled_directions(engine: str) -> None:
    objective = net()
    replica = whitened(objective)
    line = Line(replica, 3, Distribution.GAUSSIAN)
    values = make_engine(engine).losses(line, [(0, 0.1), (0, -0.1), (1, 0.1)], [(objective, 0)])[0]
    u = [replica.state["scale"] * torch.from_numpy(direction(3, p, replica.d)) for p in range(2)]
    wanted = [objective(replica.x + c * own, 0) for c, own in ((0.1, u[0]), (-0.1, u[0]), (0.1, u[1]))]
    np.testing.assert_allclose(np.asarray(values), wanted, rtol=2e-6)


def test_projections_are_slopes_along_scaled_directions() -> None:
    plan = Plan(0, 0.1, 4, Distribution.GAUSSIAN, (5,))
    slopes, differences = (
        Client(0, whitened(objective := net()), objective, estimator, 1e-3).local_update(plan)[0]
        for estimator in (projection, central)
    )
    np.testing.assert_allclose(slopes, differences, rtol=2e-2, atol=2e-4)


def test_what_cannot_be_whitened_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="lean clients need a rule of directions that are not scaled"):
        Client(0, whitened(net()), net(), central, 1e-3, lean=True)
    with pytest.raises(InputError, match="be one of directions that are neither scaled nor of a pool"):
        LowPrecision(Whitened())
    with pytest.raises(InputError, match="option of hiso must be one of"):
        lab.HiSo(rule=lab.Sgd())


def moved(step: Step) -> torch.Tensor:
    """How a step moves the origin."""
    replica = Replica(torch.zeros(40).double(), Normalised())
    replica.step_(step)
    return replica.x


def test_a_step_is_over_the_standard_deviation_of_its_scalars() -> None:
    z = np.stack([direction(7, p, 40, distribution=Distribution.RADEMACHER) for p in range(3)])
    sigma = np.std(SIGNS.scalars, ddof=1)
    np.testing.assert_allclose(moved(SIGNS), -0.1 / (3 * sigma) * SIGNS.scalars @ z, rtol=1e-6)


def test_a_loss_in_other_units_takes_the_same_step() -> None:
    assert torch.equal(moved(SIGNS), moved(replace(SIGNS, scalars=1024 * SIGNS.scalars)))


@pytest.mark.parametrize("scalars", [[2.0, 2.0, 2.0], [3.0], [0.0, 0.0]])
def test_scalars_without_a_spread_move_nothing(scalars: list[float]) -> None:
    assert not moved(replace(SIGNS, scalars=np.array(scalars, np.float32))).any()


def test_one_direction_has_no_spread() -> None:
    for options in ({"perturbations": 1}, {"perturbation_schedule": {3: 1}}):
        with pytest.raises(InputError, match="perturbations P for fzoo must be an integer of at least 2, got 1"):
            lab.FZOO(**options)  # type: ignore[arg-type]
