"""Is what the user gave one function f, and are its derivatives its own? The tables at every door.

After them what one door's verdict does not say: every engine, every operator, what is done before and after.
"""

import copy
import functools
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

import decomfl_lab as lab
import hessian
from hessian import FisherOperator, GaussNewtonOperator, HessianOperator, MeanLoss
from tests.cases import rows_of, sampled
from tests.nets import seeded
from tests.situations import (
    table_containers,
    table_derivatives,
    table_functions,
    table_lines,
    table_measures,
    table_memory,
    table_trainer,
    truth,
    zoo,
)
from tests.situations.judge import RIGHT, Entry, Situation, mean, refused, situations
from tests.situations.zoo import DATA, REAL64, X64, N, X, Y, ce, mean_ce, mlp

TABLES = tuple(
    table.TABLE
    for table in (
        *(table_containers, table_functions, table_derivatives, table_memory, table_lines, table_trainer),
        table_measures,
    )
)
SITUATIONS = {str(situation): situation for situation in situations(*TABLES)}
OPERATORS = (HessianOperator, GaussNewtonOperator, FisherOperator)
WRONG = "module and loss must have the derivatives that torch gives, got"


BY_A_TRAINER = [own for own in SITUATIONS.values() if own.door == "trainer"]
"""Each takes seconds, as it trains twice."""
OTHERS = [own for own in SITUATIONS.values() if own.door != "trainer"]


@pytest.mark.parametrize("situation", [*sampled(OTHERS, 180), *sampled(BY_A_TRAINER, 3)], ids=str)
def test_a_door_takes_it_rightly_or_says_in_a_line_why_not(situation):
    situation.judge()


def test_no_two_situations_have_one_name():
    assert len(SITUATIONS) == len(list(situations(*TABLES)))


@pytest.mark.parametrize("name", zoo.NO_MEANS)
def test_to_cut_one_of_these_losses_would_be_seen(name):
    """Else a table that trains them says nothing."""
    loss, outputs = zoo.NO_MEANS[name], mlp().double()(X64).detach()
    whole, pieces = float(loss(outputs, Y)), [loss(*piece) for piece in zoo.batches(outputs, Y, 16)]
    in_pieces = sum(float(piece) * n for piece, n in zip(pieces, (16, 16, 8), strict=True)) / N
    assert abs(whole - in_pieces) > 0.003 * abs(whole)


# --- the judge and its truth ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("door", ["kappa", "train"])
@pytest.mark.parametrize(("verdict", "seen"), [(RIGHT, "the truth"), (refused("."), "should be refused")])
def test_the_judge_notices_a_factor_of_two_and_an_answer_where_a_refusal_is_right(door, verdict, seen):
    twice = Entry("", {}, mlp, lambda outputs, targets: 2 * ce(outputs, targets), DATA, mean_ce)
    with pytest.raises(AssertionError, match=seen):
        Situation(twice, door, verdict).judge()


@pytest.mark.parametrize("door", ["kappa", "train"])
@pytest.mark.parametrize("verdict", [RIGHT, refused("some other reason"), refused("model")])
def test_the_judge_notices_a_refusal_for_another_reason(door, verdict):
    failing = Entry("", {}, mlp, lambda outputs, targets: outputs.no_such_method(), DATA, mean_ce)
    with pytest.raises(AssertionError):
        Situation(failing, door, verdict).judge()


# --- every engine, and methods of first order -------------------------------------------------------------------------

ENGINES = ("plain", "serial", "threads", "batched", "auto")
FUNCTIONS = rows_of(__file__)["functions"]


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@functools.cache
def trained(name, engine):
    """The model at x_0, f, and the run."""
    entry = SITUATIONS[f"train: {FUNCTIONS[name]}"].entry
    start, options = seeded(entry.module), {"lr": 0.02, "mu": 1e-3, "batch_size": N, "seed": 3, "eval_every": 1}
    run = lab.train(start, entry.loss, entry.data, rounds=2, engine=engine, **options)
    return start, entry.f or mean(entry.loss, entry.data), run


@pytest.mark.parametrize(("name", "engine"), sampled(itertools.product(FUNCTIONS, ENGINES), 12))
def test_every_engine_trains_the_loss_of_the_whole_batch(name, engine):
    (start, f, run), plain = trained(name, engine), trained(name, "plain")[2]
    # μ is large here, so that the scalars are more than rounding; a round's loss is then that beside x.
    assert run.metrics.train_loss.iloc[0] == pytest.approx(truth.value(f, start), rel=0.02)
    assert run.metrics.train_loss.tolist() == pytest.approx(plain.metrics.train_loss.tolist(), rel=1e-4)
    moved = weights(plain.model) - weights(start)  # by the scalars alone: directions are the same
    torch.testing.assert_close(weights(run.model) - weights(start), moved, rtol=0, atol=0.02 * float(moved.norm()))
    assert moved.norm() > 0


@pytest.mark.parametrize("name", ["class weights", "InfoNCE", "a sum", "soft F1", "loss(model, batch)"])
def test_the_fused_engine_refuses_losses_that_its_kernel_does_not_compute(name):
    entry = SITUATIONS[f"train: {FUNCTIONS[name]}"].entry
    with pytest.raises(lab.InputError, match="loss must be torch's cross_entropy for the fused engine"):
        lab.train(seeded(entry.module), entry.loss, DATA, rounds=1, engine="fused")


@pytest.mark.parametrize("inside", [torch.enable_grad, torch.no_grad])
def test_the_gradient_of_fedavg_is_that_of_the_whole_batch_also_inside_no_grad(inside):
    model = mlp()
    with inside():
        run = lab.train(model, zoo.weighted, DATA, method="fedavg", rounds=1, lr=0.1, batch_size=N)
    gradient = torch.autograd.grad(zoo.weighted(model(X), Y), list(model.parameters()))
    wanted = weights(model) - 0.1 * torch.cat([g.flatten() for g in gradient])
    torch.testing.assert_close(weights(run.model), wanted, rtol=1e-4, atol=1e-5)


def test_a_coupling_of_examples_is_said():
    assert "no mean over examples" in lab.train(zoo.with_zeros(), zoo.coupled, DATA, rounds=1, batch_size=N).remark


# --- every operator ---------------------------------------------------------------------------------------------------


def product(module, kind=HessianOperator, loss=ce, data=DATA, **options):
    """The operator after its first product."""
    operator = kind(MeanLoss(module, loss, data, **options))
    operator.matvec(torch.linspace(-1, 1, operator.d, dtype=operator.dtype))
    return operator


SHORT = itertools.product(OPERATORS, [*zoo.WHERE][:3], [torch.float32, torch.float64])


@pytest.mark.parametrize(("kind", "where", "dtype"), sampled(SHORT, 5))
def test_no_operator_gives_a_product_with_derivatives_that_are_short(kind, where, dtype):
    short = zoo.short(zoo.WHERE[where], *((0.9, 0.9) if kind is HessianOperator else (0.5, 0.5)))()
    with pytest.raises(lab.InputError, match=f"{WRONG} .* from .*: is there a backward or jvp of your own") as error:
        product(short, kind, chunk=10, dtype=dtype)
    assert "hessian.forward_only" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("factors", [(1.0, 0.9), (0.9, 1.0)])
@pytest.mark.parametrize("kind", OPERATORS[1:])
def test_forward_and_reverse_derivatives_are_both_compared(kind, factors):
    with pytest.raises(lab.InputError, match=rf"{WRONG} forward derivatives of the outputs are \d+% off from reverse"):
        product(zoo.short(zoo.WHERE["everywhere"], *factors)(), kind)


def test_gauss_newton_needs_two_derivatives_of_the_loss_and_fisher_one():
    with pytest.raises(lab.InputError, match="got derivatives of the loss in the outputs are 10% off from differences"):
        product(mlp(), GaussNewtonOperator, zoo.short_loss)
    with pytest.raises(lab.InputError, match="got second derivatives of the loss in the outputs are 100% off from"):
        product(mlp(), GaussNewtonOperator, zoo.first_order)
    assert product(mlp(), FisherOperator, zoo.first_order).remark == ""


@pytest.mark.parametrize("kink", [nn.ReLU, nn.GELU])
@pytest.mark.parametrize("kind", OPERATORS)
def test_where_float64_cannot_be_had_differences_in_float32_stand_in(kind, kink):
    assert product(zoo.without_float64(kink)(), kind).remark == ""
    with pytest.raises(lab.InputError, match=WRONG):
        product(zoo.without_float64(kink, 0.7)(), kind)


def test_a_copy_of_an_operator_gives_the_same_products():
    operator = HessianOperator(MeanLoss(mlp(), ce, (X, Y)))
    v = torch.linspace(-1, 1, operator.d)
    wanted = operator.matvec(v)
    assert torch.equal(pickle.loads(pickle.dumps(operator)).matvec(v), wanted)
    assert torch.equal(copy.deepcopy(operator).matvec(v), wanted)


# --- what is done before and after ------------------------------------------------------------------------------------


def five_fold(z, y):
    return 5 * ce(z, y)


def test_a_run_goes_on_with_the_model_and_loss_that_it_had(tmp_path):
    lab.train(mlp(), five_fold, DATA, rounds=2, out=tmp_path)
    assert lab.load(tmp_path, mlp(), five_fold, DATA).round == 2
    with pytest.raises(lab.InputError, match="model and loss must give the loss"):
        lab.load(tmp_path, mlp(nn.ReLU), five_fold, DATA)


def test_the_global_generator_is_left_as_it_was():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    loader = DataLoader(TensorDataset(X, Y), batch_size=11, shuffle=True)
    hessian.effective_rank(mlp(), ce, loader, products=32)
    for method in ("decomfl", "fedavg"):
        lab.train(mlp(), ce, DATA, method=method, rounds=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("method", ["decomfl", "fedavg"])
def test_a_pruned_module_comes_back_pruned_and_can_be_pickled_and_trained(method):
    module = mlp()
    prune.l1_unstructured(module[0], "weight", 0.5)
    run = lab.train(module, ce, DATA, method=method, rounds=2, lr=0.1)
    for model in (run.model, pickle.loads(pickle.dumps(run.model))):
        assert prune.is_pruned(model)
        before = model[0].weight_orig.detach().clone()
        ce(model(X), Y).backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        assert not torch.equal(model[0].weight_orig, before)
        prune.remove(model[0], "weight")
        assert int((model[0].weight == 0).sum()) == 6
