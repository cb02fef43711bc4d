"""Scalars stay where they were measured until a client has taken all its local steps; then they come at once."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.estimators import differences
from decomfl_lab.noise import Distribution, Program
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import GridSgd, Momentum, Sgd, Step, UpdateRule
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.preparation import Prepared

SETTINGS: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 4, "sampled": 2, "perturbations": 3}


@pytest.mark.parametrize("method", ["decomfl", "decomfl-projection", "feedsign"])
def test_the_host_waits_once_a_round(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    federation = Prepared.of(
        TrainConfig(**SETTINGS, method=method, local_steps=4, batch_size=8, engine="batched"), load_dataset("digits")
    ).federation()
    right, waited = differences.fetched, []

    def counted(estimates: Any) -> Any:
        assert all(isinstance(at.g, Tensor) and isinstance(at.loss, Tensor) for at in estimates)
        waited.append(len(estimates))
        return right(estimates)

    monkeypatch.setattr("decomfl_lab.protocol.client.fetched", counted)
    monkeypatch.setattr(Replica, "step_", None)  # steps are taken together, which makes each direction once
    federation.advance()
    assert waited == [8]


@pytest.mark.parametrize("rule", [Sgd(0.01), Momentum(0.9), GridSgd(-20)])
@pytest.mark.parametrize("seed", [7, (7, 8, 9)])
@pytest.mark.parametrize("g", [(0.3, -1.7, 2.1), (1, -1, 1)])
def test_steps_of_a_tensor_and_of_an_array_have_the_same_bits(rule: UpdateRule, seed: Any, g: Any) -> None:
    g = np.array(g, dtype=np.float32 if 0.3 in g else np.int8)
    x = torch.linspace(-1, 1, 300)
    replicas = [Replica(rule.begin(x), rule) for _ in range(2)]
    for replica, scalars in zip(replicas, (g, torch.from_numpy(g)), strict=True):
        replica.step_(Step(seed, scalars, 1e-3, Distribution.GAUSSIAN))
    assert replicas[0].digest() == replicas[1].digest()


def test_what_is_fetched_has_the_bits_of_what_was_measured() -> None:
    values = torch.tensor([2.5, 2.25, 2.75, 1e-9, 2.0], dtype=torch.float64)
    for estimator in (differences.forward, differences.central_curved, differences.ESTIMATORS["forward-sign"]):
        (there,) = differences.fetched([estimator.combine(values, torch.empty(0), 1e-3)])
        here = estimator.combine(values.numpy(), np.empty(0), 1e-3)
        assert (there.g.tobytes(), there.g.dtype) == (here.g.tobytes(), here.g.dtype)
        assert there.loss == pytest.approx(here.loss)
        assert (there.curvature is None) == (here.curvature is None)


class _OnGpu:
    """What a program sees of a float32 tensor on a GPU."""

    is_cuda, device = True, torch.device("cpu")

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("waited for the GPU")


def test_a_program_does_not_wait_for_its_coefficients() -> None:
    program = Program(["x"])
    program.noise("x", 1, _OnGpu(torch.ones(4)), Distribution.GAUSSIAN)
    assert program.pairs == 4
    assert Program.together([program, program]) is None
