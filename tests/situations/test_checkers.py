"""What no verdict shows of how a function is tried: its cost, what is taken on trust, engines that are off.

Everything is seen from the doors: the forward passes of a module, remarks, and faults that are planted in an engine.
"""

import itertools
import logging
import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

import decomfl_lab as lab
import hessian
from decomfl_lab.engines import threads
from hessian import MeanLoss, SmoothedOperator
from tests.nets import Counting, seeded
from tests.situations import zoo
from tests.situations.test_situations import OPERATORS, WRONG, product, weights
from tests.situations.zoo import BATCHES, DATA, X64, N, X, Y, ce, mlp, rand

CLIENTS = [(X[:12], Y[:12]), (X[12:], Y[12:])]
TRUSTED = "module, loss and data were taken on trust"

# --- cost -------------------------------------------------------------------------------------------------------------


def of_a_run(**options):
    """The examples that went through the module until a run began, and in its round."""
    module = Counting(mlp())
    lab.train(module, ce, CLIENTS, rounds=1, batch_size=5, engine="serial", **options)
    return module.seen


@pytest.mark.parametrize(("method", "gradients", "lines"), [("decomfl", 0, 33), ("fedavg", 3, 0)])
def test_before_a_run_values_are_tried_by_four_evaluations_of_an_epoch_and_slopes_by_three_more(
    method, gradients, lines
):
    """Or by one batch on a few lines, for a method of differences."""
    tried, trusted = (sum(of_a_run(method=method, trust=trust)) for trust in (False, True))
    rounds_again = 2 * 2 * 5 if method == "decomfl" else 2 * 5  # the engine is compared with the plain one
    # One batch once more, by the module that was called before.
    assert 0 <= tried - trusted - (4 + gradients) * N - lines * 5 - rounds_again <= 2 * 5


def test_of_the_clients_only_their_first_epoch_is_tried_in_the_sizes_of_the_run():
    assert of_a_run(test=(X[:7], Y[:7]))[:9] == [5, 5, 2, 5, 5, 5, 5, 5, 3]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ((X, Y), {}),
        ((rand(600, 4), Y.repeat(15)), {}),
        (BATCHES, {"weights": [11, 11, 11, 7]}),
        (BATCHES, {}),
        (zoo.CUTS["batches of one example each"], {}),
        ((X, Y), {"chunk": 5}),
    ],
)
def test_before_kappa_values_are_tried_by_four_evaluations_of_all_data(data, options):
    module = Counting(mlp())
    f = MeanLoss(module, ce, data, **options)
    n, most = (function(piece.examples for piece in f.pieces) for function in (sum, max))
    assert 2 * n <= sum(module.seen) <= 4 * n + most  # a piece once more, by the module that was called before
    assert f.remark == ""


@pytest.mark.parametrize("chunk", [None, 10])
def test_the_first_product_with_the_hessian_costs_two_gradients_more_and_none_on_trust(chunk):
    passes = {}
    for trust in (False, True):
        module = Counting(mlp(nn.GELU))
        operator = hessian.HessianOperator(MeanLoss(module, ce, (X, Y), trust=trust, chunk=chunk))
        passes[trust] = [sum(module.seen) / N]
        for _ in range(2):
            operator.matvec(torch.linspace(-1, 1, operator.d))
            passes[trust].append(sum(module.seen) / N)
    made, first, second = passes[True]
    assert passes[False][1] - passes[False][0] - (first - made) == pytest.approx(2)
    assert second == first  # graphs are kept
    assert passes[False][2] == passes[False][1]


@pytest.mark.parametrize("kind", OPERATORS)
def test_only_the_first_product_is_tried_and_its_bits_are_those_of_the_others(kind):
    tried, trusted = (kind(MeanLoss(mlp(nn.GELU), ce, BATCHES, trust=trust)) for trust in (False, True))
    v = torch.linspace(-1, 1, tried.d)
    first = tried.matvec(v)
    assert torch.equal(first, tried.matvec(v))
    assert torch.equal(first, trusted.matvec(v))


# --- trust ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [ce, zoo.weighted])
def test_on_trust_nothing_is_tried_and_that_is_said(loss):
    module = Counting(mlp())
    f = MeanLoss(module, loss, BATCHES, trust=True)
    assert sum(module.seen) == N
    assert f.remark == TRUSTED
    user = mlp()
    reads = lambda o, t: loss(o, t) + user[0].weight.square().sum()  # noqa: E731
    with pytest.raises(lab.InputError, match="reads the module"):
        MeanLoss(user, reads, BATCHES)
    assert MeanLoss(user, reads, BATCHES, trust=True).value > f.value


# --- what is right, and looks otherwise -------------------------------------------------------------------------------

ODD = {
    "no curvature but rounding": lambda z, y: z.exp().log().mean(),
    "a large constant": lambda z, y: ce(z, y) + 1e9,
    "zero": lambda z, y: 0 * z.sum(),
}


@pytest.mark.parametrize("name", ODD)
def test_rounding_is_no_fault_where_a_loss_has_little_curvature_or_a_large_value(name):
    assert product(zoo.linear()().double(), loss=ODD[name], data=[(X64, Y)]).remark == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", OPERATORS)
def test_a_softmax_that_is_computed_in_float32_passes(kind, dtype):
    narrow = zoo.around(after=lambda z: (10 * z.float().softmax(1)).to(z.dtype))()
    assert product(narrow, kind, dtype=dtype).remark == ""


CONVOLUTIONS = zoo.layers(
    *(lambda: nn.Conv2d(1, 16, 3), nn.ReLU, lambda: nn.Conv2d(16, 16, 3), nn.ReLU),
    *(lambda: nn.AdaptiveAvgPool2d(1), nn.Flatten, zoo.linear(16)),
)
"""Of two million units with a kink, for 100 images."""
IMAGES = (seeded(lambda: torch.randn(100, 1, 28, 28)), Y.repeat(3)[:100])


def in_float32(own, h):
    parameters = {name: p.float() for name, p in own.inner.named_parameters()}
    return functional_call(own.inner, parameters, h.float()).to(h.dtype)


def test_many_kinks_are_no_fault_and_said_where_they_are_in_float32_whatever_is_given():
    assert product(seeded(CONVOLUTIONS), data=IMAGES).remark == ""
    narrow = seeded(zoo.parts(in_float32, inner=CONVOLUTIONS))
    said = product(narrow, data=zoo.wide(IMAGES), dtype=torch.float64).remark
    assert "the module computes in float32 whatever it is given, and has kinks" in said


def test_a_constant_that_hides_slopes_in_float32_is_said():
    said = product(zoo.without_float64(nn.ReLU)(), loss=lambda z, y: ce(z, y) + 1e4).remark
    assert "take no float64" in said


def test_where_there_is_no_room_for_float64_float32_stands_in(monkeypatch):
    short, d = zoo.short(zoo.WHERE["everywhere"])(), 27
    pages = {"SC_PAGE_SIZE": 2}  # half of the memory may be taken
    monkeypatch.setattr(os, "sysconf", lambda name: pages.get(name, 6 * 4 * d))
    with pytest.raises(lab.InputError, match=WRONG):
        product(short)
    pages["SC_PHYS_PAGES"] = 6 * 4 * d - 1
    assert "there is no room for it" in product(short).remark


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_that_are_smoothed_are_compared_with_values(dtype):
    def remarks(*factors, **options):
        f = MeanLoss(zoo.short(zoo.WHERE["everywhere"], *factors)(), ce, DATA, dtype=dtype, **options)
        smoothed = SmoothedOperator(f, f.x, 1e-2)
        assert (smoothed @ torch.linspace(-1, 1, f.d, dtype=dtype)).isfinite().all()
        return smoothed.remarks

    (wrong,) = remarks()
    assert "∇fᵀv is" in wrong
    assert "f has a kink there, or" in wrong
    assert remarks(trust=True) == (TRUSTED,)
    assert remarks(1.0, 1.0) == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_its_least_value_or_a_kink_a_loss_can_be_smoothed(dtype):
    x, w = seeded(lambda: torch.randn(100, 6, dtype=dtype)), torch.linspace(-1, 1, 6, dtype=dtype)[:, None]
    for at, loss in ((w.T, zoo.mse), (w.T, nn.functional.l1_loss), (0 * w.T, nn.functional.l1_loss)):
        line = nn.Linear(6, 1, bias=False).to(dtype)
        line.weight.data.copy_(at)
        f = MeanLoss(line, loss, [(x, x @ w)])
        assert (SmoothedOperator(f, f.x, 1e-2) @ f.x.new_ones(6)).isfinite().all()


def test_a_model_may_begin_where_its_gradient_is_0_and_a_loss_of_steps_be_trained_by_differences():
    model = zoo.layers(zoo.linear(4, 5), nn.Tanh, zoo.linear(5))
    balanced = [(torch.zeros(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))] * 2  # the last bias has a slope of 0 there
    for begins in (lambda net: net.parameters(), lambda net: net[2].parameters()):
        zeros = zoo.changed(model, lambda net, begins=begins: [nn.init.zeros_(p) for p in begins(net)])()
        assert lab.train(zeros, ce, balanced, method="fedavg", rounds=1, batch_size=6).round == 1
    assert lab.train(mlp(), lambda o, t: ce((8 * o).round(), t), DATA, rounds=1, mu=0.05).round == 1


# --- engines ----------------------------------------------------------------------------------------------------------


FAULTS = {
    "one per cent more": lambda values: 1.01 * values,
    "the last client's alone": lambda values: np.vstack([values[:-1], 1.01 * values[-1:]]),
    "clients exchanged": lambda values: values[::-1].copy(),
    "a sum for a mean": lambda values: 10 * values,
}


def planted(plant, fault, from_call=1):
    """The engine of threads has a fault from a call on."""
    calls = itertools.count(1)

    def losses(right, *given):
        values = right(*given)
        return fault(values) if next(calls) >= from_call else values

    plant(threads.Threads, "losses", losses)


def trained(module=None, **options):
    return lab.train(module or mlp(), ce, CLIENTS, **{"rounds": 1, "engine": "threads"} | options)


@pytest.mark.parametrize("engine", ["auto", "threads"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_whose_engine_is_off_is_stopped_in_its_first_round(fault, engine, plant):
    planted(plant, FAULTS[fault])
    with pytest.raises(lab.InputError, match=rf"engine must give the losses of the module .* plain does.* by {engine}"):
        trained(engine=engine)


@pytest.mark.parametrize(("rounds", "stopped"), [(3, False), (5, True)])
def test_a_run_whose_engine_is_off_later_is_stopped_where_it_is_compared_again(rounds, stopped, plant):
    planted(plant, FAULTS["one per cent more"], from_call=3)
    if stopped:
        with pytest.raises(lab.InputError, match="engine must give the losses of the module"):
            trained(rounds=rounds)
    else:
        assert trained(rounds=rounds).round == rounds


def test_gradients_of_another_size_are_caught(plant):
    def larger(right, *given):
        losses, gradients = right(*given)
        return losses, 1.01 * gradients

    plant(threads.Threads, "gradients", larger)
    with pytest.raises(lab.InputError, match="engine must give the gradients of the module"):
        trained(method="fedavg")


@pytest.mark.parametrize(("factor", "options"), [(1.01, {"trust": True}), (1 + 1e-5, {})])
def test_a_run_on_trust_has_no_probation_and_what_rounding_explains_passes_as_it_is(factor, options, plant):
    plain = trained(engine="serial").metrics.train_loss.iloc[0]
    planted(plant, lambda values: factor * values)
    assert trained(**options).metrics.train_loss.iloc[0] == pytest.approx(factor * plain, rel=3e-6)


def test_where_vmap_fails_an_automatic_engine_is_replaced_and_one_that_was_asked_for_refused(caplog):
    branching = zoo.around(after=lambda z: z if z.sum() > -1e9 else -z)  # a tensor's value in an ``if``
    with caplog.at_level(logging.INFO, "decomfl_lab"):
        run = trained(branching(), rounds=2, engine="auto")
    assert run.verify()
    serial = trained(branching(), rounds=2, engine="serial")
    assert torch.allclose(weights(run.model), weights(serial.model), atol=1e-6)
    for method in ("decomfl", "fedavg"):
        with pytest.raises(
            lab.InputError, match=r"engine must be one that takes this model and loss, .*got batched \("
        ) as error:
            trained(branching(), engine="batched", method=method)
        assert "\n" not in str(error.value)


def test_a_refusal_that_is_kept_holds_none_of_torchs_modes():
    kept = None
    try:
        lab.train(mlp(), lambda o, t: ce(o * o.detach(), t), DATA, method="fedavg", rounds=1)
    except lab.InputError as error:
        kept = error
    assert "must have the derivative that torch gives, for fedavg" in str(kept)
    with torch.inference_mode():
        del kept
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
