"""The diagonal of H: exact from columns, and from random signs with the standard errors that it states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.nn.functional import cross_entropy

import hessian
from decomfl_lab.errors import InputError
from hessian.operators.mean_loss import MeanLoss
from tests.hessian import problems
from tests.hessian.spectra import rotated

H = rotated(list(np.concatenate([[20.0, -5.0], np.linspace(0, 2, 118)])))


@pytest.mark.parametrize("operator", ["hessian", "gauss-newton", "fisher"])
def test_it_is_exact_and_has_the_names_of_the_parameters_where_columns_are_affordable(operator: str) -> None:
    module, data = problems.mlp(), problems.data()
    f = MeanLoss(module, cross_entropy, data)
    dense = {
        "hessian": problems.dense_hessian,
        "gauss-newton": problems.dense_gauss_newton,
        "fisher": problems.dense_fisher,
    }[operator](f, module, *data)
    found = hessian.diagonal(module, cross_entropy, data, operator=operator)
    assert (found.exact, found.products, found.error) == (True, f.d, 0.0)
    torch.testing.assert_close(found.values, dense.diagonal())
    torch.testing.assert_close(found.named["0.weight"].flatten(), dense.diagonal()[:24])
    assert found.named.keys() == dict(module.named_parameters()).keys()


def test_its_standard_errors_are_those_of_the_signs() -> None:
    """√(Σ_{j≠i} H_ij²/N), and t intervals that hold 95 % of the elements."""
    held, ratios, N = [], [], 40
    true = (H.matrix.square().sum(1) - H.matrix.diagonal().square()).div(N).sqrt()
    for seed in range(20):
        found = hessian.diagonal(H, products=N, seed=seed)
        low, high = found.interval()
        held += ((low <= H.matrix.diagonal()) & (H.matrix.diagonal() <= high)).tolist()
        ratios.append(float((found.stderr / true).square().mean()))
        off = float((found.values - H.matrix.diagonal()).norm() / found.values.norm())
        assert found.error == pytest.approx(off, rel=0.5)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.1)
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_a_diagonal_matrix_has_no_error_and_any_source_will_do() -> None:
    values = np.linspace(-1, 3, 500)
    found = hessian.diagonal(sparse.diags_array(values), products=2)
    assert found.values.numpy() == pytest.approx(values)
    assert not found.stderr.any()
    assert str(found) == "diagonal of the dia_array, d = 500: -1 .. 3, ± 0 of its norm (2 products)"
    with pytest.raises(InputError, match="the dia_array must be a matrix of a module's parameters to have their names"):
        _ = found.named


def test_it_says_what_it_cost() -> None:
    assert str(hessian.diagonal(H, products=120)).endswith("exact (120 products)")
    assert str(hessian.diagonal(H, products=10)).endswith("of its norm (10 products)")
    with pytest.raises(InputError, match="products must be an integer of at least 2, got 1"):
        hessian.diagonal(H, products=1)
