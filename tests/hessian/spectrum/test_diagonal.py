"""The diagonal of H: exact from columns, and from random signs with the standard errors that it states."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.nn.functional import cross_entropy

import hessian
from hessian.operators.mean_loss import MeanLoss
from tests.hessian import problems
from tests.hessian.spectra import rotated

H = rotated(list(np.concatenate([[20.0, -5.0], np.linspace(0, 2, 118)])))


@pytest.mark.parametrize("operator", problems.DENSE)
def test_it_and_the_trace_are_exact_and_it_has_the_names_of_parameters_where_columns_are_few(operator: str) -> None:
    module, data = problems.mlp(), problems.data()
    f = MeanLoss(module, cross_entropy, data)
    dense = problems.DENSE[operator](f, module, *data)
    found = hessian.diagonal(module, cross_entropy, data, operator=operator)
    assert (found.samples, found.products, found.error) == (0, f.d, 0.0)
    torch.testing.assert_close(found.values, dense.diagonal())
    torch.testing.assert_close(found.named["0.weight"].flatten(), dense.diagonal()[:24])
    assert found.named.keys() == dict(module.named_parameters()).keys()
    trace = hessian.trace(module, cross_entropy, data, operator=operator, products=1000)
    assert trace.value == pytest.approx(float(dense.trace()))
    assert (trace.stderr, trace.operator, trace.reached) == (0.0, operator, True)


def test_its_standard_errors_are_right_and_its_intervals_hold() -> None:
    held, ratios, diagonal = [], [], H.matrix.diagonal()
    for seed in range(30):
        found = hessian.diagonal(H, products=40, seed=seed)
        low, high = found.interval()
        held += ((low <= diagonal) & (diagonal <= high)).tolist()
        ratios.append(float((found.values - diagonal).norm() / found.stderr.norm()))
        assert (found.samples, found.products) == (20, 40)
    assert np.mean(held) == pytest.approx(0.95, abs=0.02)
    assert np.mean(np.square(ratios)) == pytest.approx(1.0, abs=0.2)


def test_what_lanczos_found_takes_the_outliers_out_of_the_error() -> None:
    spiked = rotated([20.0, -9.0, 6.0, *np.linspace(0, 0.2, 197)])
    plain, deflated = (hessian.diagonal(spiked, products=60, max_basis=basis) for basis in (1, None))
    off = [float((each.values - spiked.matrix.diagonal()).norm()) for each in (plain, deflated)]
    assert off[1] < off[0] / 5
    assert deflated.error < plain.error / 5


def test_any_source_will_do() -> None:
    values = np.linspace(-1, 3, 500)
    found = hessian.diagonal(sparse.diags_array(values), products=100)
    assert float(np.linalg.norm(found.values.numpy() - values)) <= 3 * found.error * np.linalg.norm(values)


def test_a_multiple_of_the_identity_is_exact() -> None:
    found = hessian.diagonal(lambda v: 3 * v, d=50, dtype="float64", products=6)
    assert found.values.tolist() == pytest.approx([3.0] * 50)


def test_it_says_what_it_cost() -> None:
    assert str(hessian.diagonal(H, products=120)).endswith("exact (120 products)")
    assert str(hessian.diagonal(H, products=10)).endswith("of its norm (10 products)")
