"""f(x) of a model on fixed data: what it is equal to, what it leaves alone, what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab.errors import InputError
from decomfl_lab.models.registry import build_model
from hessian import GaussNewtonOperator, HessianOperator, MeanLoss
from tests.hessian import problems
from tests.nets import Counting
from tests.refusals import refuses

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


def test_float32_agrees_with_float64():
    single = loss_of(problems.mlp(nn.GELU), dtype=torch.float32)
    double = loss_of(copy.deepcopy(problems.mlp(nn.GELU)).float(), dtype=torch.float64)
    v = torch.linspace(-1, 1, single.d)
    for kind in (HessianOperator, GaussNewtonOperator):
        low, high = kind(single).matvec(v), kind(double).matvec(v.double())
        assert (low.dtype, high.dtype) == (torch.float32, torch.float64)
        assert (low - high).norm() < 1e-5 * high.norm()


# --- what x is --------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Encoder and decoder share a weight; one layer is frozen, one is not used."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight
        self.frozen, self.unused, self.head = nn.Linear(4, 4), nn.Linear(2, 2), nn.Linear(4, 3)
        self.frozen.requires_grad_(False)

    def forward(self, h):
        return self.head(self.b(torch.tanh(self.frozen(self.a(h)))))


def test_tied_weights_count_once_frozen_ones_not_and_unused_ones_give_zeros():
    module = problems.seeded(Tied)
    f = loss_of(module)
    assert f.names == ("a.weight", "a.bias", "unused.weight", "unused.bias", "head.weight", "head.bias")
    assert f.d == 16 + 4 + 4 + 2 + 12 + 3
    dense = problems.dense_hessian(f, module, INPUTS, TARGETS)
    columns = problems.columns(HessianOperator(f), f.d)
    torch.testing.assert_close(columns, dense, rtol=1e-12, atol=1e-14)
    assert not columns[20:26].any()
    assert not f.gradient(f.x)[20:26].any()
    assert columns[:16].any()


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        (["2"], ("2.weight", "2.bias")),
        (["4.bias", "0"], ("0.weight", "0.bias", "4.bias")),
        (["*.bias"], ("0.bias", "2.bias", "4.bias")),
        (lambda name: name == "2.bias", ("2.bias",)),
    ],
)
def test_a_subset_gives_the_block_of_the_hessian(parameters, names):
    module = problems.mlp(nn.GELU)
    whole, part = loss_of(module), loss_of(module, parameters=parameters)
    assert part.names == names
    sizes = dict(zip(whole.names, whole.layout.sizes, strict=True))
    inside = torch.cat([torch.full((size,), name in names) for name, size in sizes.items()])
    block = problems.dense_hessian(whole, module, INPUTS, TARGETS)[inside][:, inside]
    torch.testing.assert_close(problems.columns(HessianOperator(part), part.d), block, rtol=1e-12, atol=1e-14)


# --- what it leaves alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalisation", ["eval", "batch"])
@pytest.mark.parametrize("training", [True, False])
def test_the_module_is_left_as_it_was(normalisation, training):
    module = build_model("resnet8-bn", seed=3, in_shape=(1, 8, 8), classes=3).double().train(training)
    module(torch.randn(4, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    state = copy.deepcopy(module.state_dict())
    flags = [part.training for part in module.modules()]
    f = loss_of(module, [problems.data(shape=(1, 8, 8))], normalisation=normalisation)
    x = f.x
    f(x + 0.01)
    f.gradient(x + 0.01)
    for kind in (HessianOperator, GaussNewtonOperator):
        kind(f).matvec(x)
        kind(f).quad(x)
    assert [part.training for part in module.modules()] == flags
    assert all(p.grad is None for p in module.parameters())
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(f.x, x)


def test_batch_normalisation_is_in_the_stated_mode_whatever_the_module_is_in():
    build = lambda: build_model("resnet8-bn", seed=3, in_shape=(1, 8, 8), classes=3).double()  # noqa: E731
    images, targets = problems.data(shape=(1, 8, 8))
    for training in (True, False):
        for normalisation in ("eval", "batch"):
            f = loss_of(build().train(training), [(images, targets)], normalisation=normalisation)
            expected = cross_entropy(build().train(normalisation == "batch")(images), targets)
            assert f.value == pytest.approx(expected.item(), rel=1e-12)
            assert f.mode == normalisation
    assert loss_of().mode == "none"


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
            loss_of(dtype=torch.float32),
        )
    ]
    assert len(set(prints)) == len(prints)
    assert loss_of().fingerprint() == prints[0]
    f = loss_of()
    assert HessianOperator(f).fingerprint() != HessianOperator(f, f.x + 1e-9).fingerprint()
    assert HessianOperator(f).fingerprint() != GaussNewtonOperator(f).fingerprint()


# --- what it refuses --------------------------------------------------------------------------------------------------


def frozen() -> nn.Module:
    return problems.mlp().requires_grad_(False)


def norm() -> nn.Module:
    return problems.seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))


@pytest.mark.parametrize("x", [torch.zeros(3, dtype=torch.float64), torch.zeros(83), torch.zeros(1, 83)])
def test_a_point_that_is_none_is_refused(x):
    f = loss_of()
    assert f.d == 83
    for use in (f, f.gradient, lambda x: HessianOperator(f, x), HessianOperator(f).matvec, GaussNewtonOperator(f).quad):
        with pytest.raises(InputError, match=r"(x|v) must have shape, dtype and device"):
            use(x)


# --- weights by a function, a penalty, trust --------------------------------------------------------------------------

CLASS_WEIGHTS = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)


def weighted(outputs, targets):
    return cross_entropy(outputs, targets, CLASS_WEIGHTS.to(outputs.dtype))


SORTED = [(INPUTS[own], TARGETS[own]) for own in (c == TARGETS for c in range(3))]
ONES = list(zip(INPUTS.split(1), TARGETS.split(1), strict=True))


@refuses(
    (lambda targets: targets - 1.0, "weights of a batch must add up to a finite number of at least 0, got -"),
    (lambda targets: targets * float("nan"), "weights of a batch must add up to a finite number"),
    (lambda targets: 0 * targets, "weights must be finite and above 0"),
    (lambda targets: targets["y"], "model and loss must take the examples of weights"),
    (["a", "b", "c"], "weights must be a number for each batch, or a function of targets"),
    ([1.0, float("inf"), 1.0], "weights must be a number for each batch"),
    ([True, 1, 1], "weights must be a number for each batch"),
)
def test_weights_that_are_none_are_refused(weights):
    loss_of(batches=[(INPUTS[TARGETS == 0], TARGETS[TARGETS == 0]), *SORTED[1:]], weights=weights)


def test_a_penalty_is_added_to_value_and_gradient():
    plain, f = loss_of(batches=RAGGED), loss_of(batches=RAGGED, weight_decay=0.3)
    x = f.x + 0.1
    assert f.value == pytest.approx(plain.value + 0.15 * float(f.x.square().sum()), rel=1e-14)
    assert f(x) == pytest.approx(plain(x) + 0.15 * float(x.square().sum()), rel=1e-14)
    torch.testing.assert_close(f.gradient(x), plain.gradient(x) + 0.3 * x)
    assert f.fingerprint() != plain.fingerprint()


@pytest.mark.parametrize("decay", [-1e-3, float("nan"), float("inf"), "0.1", True])
def test_a_penalty_that_is_none_is_refused(decay):
    with pytest.raises(InputError, match="weight_decay λ must be a finite number of at least 0"):
        loss_of(weight_decay=decay)


MANY, LABELS = problems.data(n=600)


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ((INPUTS, TARGETS), {}),
        ([(INPUTS, TARGETS)], {}),
        ((MANY, LABELS), {}),
        ([(MANY, LABELS)], {}),
        (RAGGED, {"weights": [7, 1, 4]}),
        (RAGGED, {}),
        (ONES, {}),
        ((INPUTS, TARGETS), {"chunk": 5}),
        ((MANY, LABELS), {"chunk": 100}),
    ],
)
def test_to_try_a_loss_takes_four_evaluations_at_most(data, options):
    module = Counting(problems.mlp())
    f = loss_of(module, data, **options)
    n = sum(piece.examples for piece in f.pieces)
    most = max(piece.examples for piece in f.pieces)
    assert 2 * n <= sum(module.seen) <= 4 * n + most  # a piece once more, by the module that was called before
    assert f.remark == ""


@pytest.mark.parametrize("data", [(MANY, LABELS), RAGGED])
@pytest.mark.parametrize("loss", [cross_entropy, weighted])
def test_on_trust_nothing_is_tried_and_that_is_said(data, loss):
    module = Counting(problems.mlp())
    f = loss_of(module, data, loss, trust=True)
    assert sum(module.seen) == sum(piece.examples for piece in f.pieces)
    assert f.remark == "module, loss and data were taken on trust"
    assert (f.trusted, f.kinked, f.may_be_cut) == (True, None, True)


def test_trust_leaves_out_faults_that_would_be_told():
    module = problems.mlp()
    reads = lambda z, y: cross_entropy(z, y) + module[0].weight.square().sum()  # noqa: E731
    with pytest.raises(InputError, match="reads the module"):
        loss_of(module, loss=reads)
    assert loss_of(module, loss=reads, trust=True).value > loss_of(module).value


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


def test_weights_of_one_a_client_make_the_f_that_training_has() -> None:
    torch.manual_seed(0)
    model, loss = nn.Linear(3, 2), cross_entropy
    clients = [(torch.randn(n, 3), torch.arange(n) % 2) for n in (4, 20)]
    each = [loss(model(inputs), targets).item() for inputs, targets in clients]
    alike = MeanLoss(model, loss, clients, weights=[1.0] * len(clients)).value
    assert alike == pytest.approx(sum(each) / 2, rel=1e-6)
    assert MeanLoss(model, loss, clients).value == pytest.approx((4 * each[0] + 20 * each[1]) / 24, rel=1e-6)
