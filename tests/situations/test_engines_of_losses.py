"""Every engine of the CPU trains the same function, also where the loss is no mean over examples."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import decomfl_lab as lab
from tests.nets import Around, seeded
from tests.situations import truth
from tests.situations.situation import X64, N, X, Y, ce, mean_ce, mlp
from tests.situations.test_no_mean_over_examples import ZScore, infonce, soft_f1, summed, weighted

ENGINES = ("plain", "serial", "threads", "batched", "auto")


def penalised(model, batch):
    return ce(model(batch[0]), batch[1]) + 0.1 * sum(p.square().sum() for p in model.parameters())


def _penalised(net):
    return mean_ce(net) + 0.1 * sum(p.square().sum() for p in net.parameters())


FUNCTIONS = {
    "a mean": (mlp, ce, mean_ce),
    "class weights": (mlp, weighted, lambda net: weighted(net(X64), Y)),
    "InfoNCE": (mlp, infonce, lambda net: infonce(net(X64), Y)),
    "a sum": (mlp, summed, lambda net: summed(net(X64), Y)),
    "soft F1": (mlp, soft_f1, lambda net: soft_f1(net(X64), Y)),
    "a z-score of the batch": (lambda: seeded(ZScore), ce, mean_ce),
    "loss(model, batch)": (mlp, penalised, _penalised),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_engine_trains_the_loss_of_the_whole_batch(name: str, engine: str):
    make, loss, f = FUNCTIONS[name]
    options = {"lr": 0.02, "mu": 1e-3, "batch_size": N, "seed": 3, "eval_every": 1}
    run = lab.train(make(), loss, [(X, Y)], rounds=2, engine=engine, **options)
    plain = lab.train(make(), loss, [(X, Y)], rounds=2, engine="plain", **options)
    # μ is large here, so that the scalars are more than rounding; a round's loss is then that beside x.
    assert run.metrics.train_loss.iloc[0] == pytest.approx(truth.value(f, make()), rel=0.02)
    assert run.metrics.train_loss.tolist() == pytest.approx(plain.metrics.train_loss.tolist(), rel=1e-4)
    moved = _weights(plain.model) - _weights(make())  # by the scalars alone: directions are the same
    torch.testing.assert_close(_weights(run.model) - _weights(make()), moved, rtol=0, atol=0.02 * float(moved.norm()))
    assert moved.norm() > 0


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if FUNCTIONS[name][1] is not ce])
def test_the_fused_engine_refuses_losses_that_its_kernel_does_not_compute(name: str):
    make, loss, _ = FUNCTIONS[name]
    with pytest.raises(lab.InputError, match="loss must be torch's cross_entropy for the fused engine"):
        lab.train(make(), loss, [(X, Y)], rounds=1, engine="fused")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_trains_outputs_that_are_no_tensor(engine: str):
    module = Around(mlp(), after=lambda z: {"logits of three": z})
    options = {"rounds": 2, "lr": 0.1, "batch_size": N, "seed": 3, "eval_every": 1, "engine": engine}
    named = lab.train(module, lambda o, t: ce(o["logits of three"], t), [(X, Y)], **options)
    plain = lab.train(mlp(), ce, [(X, Y)], **options)
    torch.testing.assert_close(_weights(named.model), _weights(plain.model), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["fedavg", "decomfl"])
def test_methods_of_first_and_zeroth_order_train_the_same_loss(method: str):
    run = lab.train(mlp(), weighted, [(X, Y)], method=method, rounds=1, lr=0.1, batch_size=N, seed=3, eval_every=1)
    assert run.metrics.train_loss.iloc[0] == pytest.approx(
        truth.value(lambda net: weighted(net(X64), Y), mlp()), rel=0.02
    )


def test_the_gradient_of_fedavg_is_that_of_the_whole_batch():
    model = mlp()
    run = lab.train(model, weighted, [(X, Y)], method="fedavg", rounds=1, lr=0.1, batch_size=N)
    gradient = torch.autograd.grad(weighted(model(X), Y), list(model.parameters()))
    wanted = _weights(model) - 0.1 * torch.cat([g.flatten() for g in gradient])
    torch.testing.assert_close(_weights(run.model), wanted, rtol=1e-4, atol=1e-5)


def _weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])
