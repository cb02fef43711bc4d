"""The operators against dense matrices made another way, against other libraries, and on what is not differentiable."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hessian.curvature import FisherOperator, GaussNewtonOperator, HessianOperator, require_reproducible
from hessian.mean_loss import MeanLoss
from tests.hessian import problems

CASES = {
    "mlp-relu": (problems.mlp(nn.ReLU), problems.data()),
    "mlp-gelu": (problems.mlp(nn.GELU), problems.data()),
    "cnn-relu": (problems.cnn(nn.ReLU), problems.data(shape=(1, 6, 6))),
    "cnn-gelu": (problems.cnn(nn.GELU), problems.data(shape=(1, 6, 6))),
}
DENSE = {
    HessianOperator: problems.dense_hessian,
    GaussNewtonOperator: problems.dense_gauss_newton,
    FisherOperator: problems.dense_fisher,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", DENSE)
def test_products_and_quadratic_forms_are_those_of_the_dense_matrix(case, kind):
    module, (inputs, targets) = CASES[case]
    f = MeanLoss(module, cross_entropy, [(inputs, targets)], chunk=5)
    operator = kind(f)
    dense = DENSE[kind](f, module, inputs, targets)
    scale = float(dense.abs().max())
    assert (problems.columns(operator, f.d) - dense).abs().max() < 1e-13 * max(scale, 1)
    v = torch.linspace(-1, 1, f.d, dtype=torch.float64)
    assert operator.quad(v) == pytest.approx(float(v @ dense @ v), rel=1e-12)
    require_reproducible(operator)
