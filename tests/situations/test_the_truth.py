"""The judge's own measures, against closed forms: a test over a table is worth what its truth is worth."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.nets import seeded
from tests.situations import truth
from tests.situations.situation import REAL64, RIGHT, X64, Case, N, Situation, X, Y, ce, mean_ce, mlp, refused


def test_the_dense_hessian_of_least_squares_is_the_closed_form():
    module = seeded(lambda: nn.Linear(4, 3, bias=False))
    expected = torch.block_diag(*[2 / (3 * N) * X64.T @ X64] * 3)
    torch.testing.assert_close(truth.dense(lambda net: nn.functional.mse_loss(net(X64), REAL64), module), expected)


def test_differences_of_values_and_derivatives_give_the_same_hessian():
    torch.testing.assert_close(truth.by_values(mean_ce, mlp()), truth.dense(mean_ce, mlp()), rtol=0, atol=1e-6)


def test_rows_of_linear_parameters_are_zero():
    module = seeded(lambda: nn.Linear(4, 3))
    H = truth.dense(lambda net: net(X64)[:, 0].mean() + net.bias[0].square(), module)
    assert H.count_nonzero() == 1


def _twice() -> Case:
    return Case(mlp(), lambda outputs, targets: 2 * ce(outputs, targets), (X, Y), mean_ce)


@pytest.mark.parametrize("door", ["kappa", "train"])
def test_the_judge_notices_a_factor_of_two(door):
    with pytest.raises(AssertionError):
        Situation("", _twice, door, RIGHT).judge()


@pytest.mark.parametrize("door", ["kappa", "train"])
def test_the_judge_notices_an_answer_where_a_refusal_is_right(door):
    with pytest.raises(AssertionError, match="should be refused"):
        Situation("", _twice, door, refused(".")).judge()


@pytest.mark.parametrize("door", ["kappa", "train"])
@pytest.mark.parametrize("verdict", [RIGHT, refused("some other reason"), refused("model")])
def test_the_judge_notices_a_refusal_for_another_reason(door, verdict):
    def make() -> Case:
        return Case(mlp(), lambda outputs, targets: outputs.no_such_method(), (X, Y), mean_ce)

    with pytest.raises(AssertionError):
        Situation("", make, door, verdict).judge()
