"""f(x) of a model on fixed data: what it is equal to, what it leaves alone, what it refuses."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab.errors import InputError
from hessian import GaussNewtonOperator, HessianOperator, MeanLoss
from tests.hessian import problems

INPUTS, TARGETS = problems.data()
RAGGED = [(INPUTS[:7], TARGETS[:7]), (INPUTS[7:8], TARGETS[7:8]), (INPUTS[8:], TARGETS[8:])]


def loss_of(module: nn.Module = None, batches=((INPUTS, TARGETS),), loss=cross_entropy, **options) -> MeanLoss:
    return MeanLoss(problems.mlp() if module is None else module, loss, batches, **options)


# --- the function -----------------------------------------------------------------------------------------------------


def test_it_is_the_mean_over_all_examples_however_they_are_cut():
    module = problems.mlp(nn.GELU)
    expected = cross_entropy(module(INPUTS), TARGETS)
    expected_gradient = torch.cat([g.flatten() for g in torch.autograd.grad(expected, module.parameters())])
    v = torch.linspace(-1, 1, expected_gradient.numel(), dtype=torch.float64)
    whole = HessianOperator(loss_of(module)).matvec(v)
    for f in (loss_of(module, RAGGED), loss_of(module, chunk=5), loss_of(module, RAGGED, chunk=3)):
        assert f(f.x) == pytest.approx(expected.item(), rel=1e-14)
        torch.testing.assert_close(f.gradient(f.x), expected_gradient, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(HessianOperator(f).matvec(v), whole, rtol=1e-12, atol=1e-15)
    equal_batches = loss_of(module, RAGGED, weights=[1, 1, 1])  # the usual mistake is seen
    assert abs(equal_batches(equal_batches.x) / expected.item() - 1) > 1e-3
    assert (HessianOperator(equal_batches).matvec(v) - whole).norm() > 1e-3 * whole.norm()


# --- what x is --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        (["2"], ("2.weight", "2.bias")),
        (["4.bias", "0"], ("0.weight", "0.bias", "4.bias")),
        (["*.bias"], ("0.bias", "2.bias", "4.bias")),
        (lambda name: name == "2.bias", ("2.bias",)),
    ],
)
def test_a_subset_has_the_names_that_fit_in_the_order_of_the_module(parameters, names):
    assert loss_of(parameters=parameters).names == names


def test_the_fingerprint_tells_apart_what_matters_and_nothing_else():
    prints = [
        f.fingerprint()
        for f in (
            loss_of(),
            loss_of(problems.mlp(nn.GELU)),
            loss_of(batches=[(INPUTS + 1e-9, TARGETS)]),
            loss_of(batches=[(INPUTS, TARGETS.roll(1))]),
            loss_of(chunk=5),
            loss_of(parameters=["0"]),
            loss_of(weight_decay=0.3),
            loss_of(dtype=torch.float32),
        )
    ]
    assert len(set(prints)) == len(prints)
    assert loss_of().fingerprint() == prints[0]
    f = loss_of()
    assert HessianOperator(f).fingerprint() != HessianOperator(f, f.x + 1e-9).fingerprint()
    assert HessianOperator(f).fingerprint() != GaussNewtonOperator(f).fingerprint()


# --- what it refuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [torch.zeros(3, dtype=torch.float64), torch.zeros(64), torch.zeros(1, 64)])
def test_a_point_that_is_none_is_refused(x):
    f = loss_of()
    assert f.d == 64
    for use in (f, f.gradient, lambda x: HessianOperator(f, x), HessianOperator(f).matvec, GaussNewtonOperator(f).quad):
        with pytest.raises(InputError, match=r"(x|v) must have shape, dtype and device"):
            use(x)


# --- pieces of the data ----------------------------------------------------------------------------------------------

MANY, LABELS = problems.data(n=600)


def test_what_is_not_cut_by_its_user_is_cut_to_go_faster_where_it_may_be():
    f = loss_of(batches=(MANY, LABELS))
    assert [piece.examples for piece in f.pieces] == [250, 250, 100]
    assert f.value == pytest.approx(cross_entropy(problems.mlp()(MANY), LABELS).item(), rel=1e-13)
    assert [piece.examples for piece in loss_of(batches=[(MANY, LABELS)]).pieces] == [600]


@pytest.mark.parametrize("data", [(MANY, LABELS), [(MANY, LABELS)], (MANY.numpy(), LABELS.numpy())])
@pytest.mark.parametrize("chunk", [None, 100])
def test_data_are_not_copied_pieces_are_views_of_them(data, chunk):
    start = 0
    for piece in loss_of(batches=data, chunk=chunk).pieces:
        assert piece.inputs.data_ptr() == MANY[start:].data_ptr()
        assert piece.targets.data_ptr() == LABELS[start:].data_ptr()
        start += piece.examples
    assert start == 600
