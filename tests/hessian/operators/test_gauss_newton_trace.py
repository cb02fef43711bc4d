"""Traces without sampling against dense matrices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from decomfl_lab.errors import InputError
from hessian import GaussNewtonOperator, MeanLoss, gauss_newton_trace
from tests.hessian import problems

INPUTS, TARGETS = problems.data(shape=(1, 6, 6))
OWN = torch.tensor([1.0, 5.0, 0.0], dtype=torch.float64)
"""Weights of the examples, by their classes."""


def _diagonal_sum(operator: GaussNewtonOperator) -> float:
    return float(problems.columns(operator).trace())


@pytest.mark.parametrize(
    "settings", [{}, {"weights": [3.0, 1.0]}, {"weights": lambda y: OWN[y]}, {"weight_decay": 0.7}]
)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_it_is_the_sum_of_the_diagonal(activation: type[nn.Module], settings: dict[str, Any]) -> None:
    loss = nn.CrossEntropyLoss(OWN) if callable(settings.get("weights")) else cross_entropy
    batches = [(INPUTS[:7], TARGETS[:7]), (INPUTS[7:], TARGETS[7:])]
    operator = GaussNewtonOperator(MeanLoss(problems.cnn(activation), loss, batches, **settings))
    exact = gauss_newton_trace(operator)
    assert exact == pytest.approx(_diagonal_sum(operator), rel=1e-12)
    assert gauss_newton_trace(operator, memory=1) == pytest.approx(exact, rel=1e-12)  # an example at a time


class Squeezing(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).squeeze()


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_a_net_that_squeezes_an_only_example_has_the_same_trace(outputs: int, memory: int) -> None:
    inputs, targets = torch.randn(4, 2).double(), torch.randn(4, outputs).double().squeeze()
    for n in (4, 1):
        net = Squeezing(2, outputs).double()
        f = MeanLoss(net, lambda z, y: (z - y.view_as(z)).square().sum() / len(y), [(inputs[:n], targets[:n])])
        operator = GaussNewtonOperator(f)
        if n == 1:
            with pytest.raises(InputError, match="outputs must have the 1 examples in their first dimension, got"):
                gauss_newton_trace(operator)
        else:
            assert gauss_newton_trace(operator, memory=memory) == pytest.approx(_diagonal_sum(operator), rel=1e-12)


def mixed(loss: Callable[[Tensor, Tensor], Tensor], *layers: nn.Module) -> float:
    data = torch.randn(6, 3), torch.randn(6, 2)
    return gauss_newton_trace(GaussNewtonOperator(MeanLoss(nn.Sequential(nn.Linear(3, 2), *layers), loss, [data])))


def test_an_error_is_of_the_examples_that_are_mixed_and_not_of_the_loss() -> None:
    assert mixed(mse_loss) > 0
