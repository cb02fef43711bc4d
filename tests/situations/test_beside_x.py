"""What is the same at x and not beside it: couplings behind zeros, caches, functions that are equal at x alone."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import decomfl_lab as lab
import hessian
from decomfl_lab.errors import InputError
from tests.nets import Around, seeded

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3


def net(head: float | None = None) -> nn.Sequential:
    made: nn.Sequential = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)), 1)
    if head is not None:
        nn.init.constant_(made[2].weight, head)
        nn.init.constant_(made[2].bias, head)
    return made


def coupled(z: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(z, y) + 5 * z.mean(0).square().sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_coupling_of_examples_behind_a_head_of_zeros_is_seen(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    with pytest.raises(InputError, match="weights="):
        hessian.effective_rank(net(0.0).to(dtype), coupled, [(x[:20] + 3, Y[:20]), (x[20:40] - 3, Y[20:40])])
    run = lab.train(net(0.0).to(dtype), coupled, [(x, Y)], rounds=1, batch_size=60)
    assert "no mean over examples" in run.remark


def test_a_loss_of_pairs_of_neighbours_is_no_mean() -> None:
    def paired(z: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(z, y) + ((z[::2] * z[1::2]).mean() if len(z) % 2 == 0 else 0)

    assert hessian.MeanLoss(net(), paired, [(X[:10], Y[:10])]).additive is False


class Cached(nn.Module):
    """It keeps what it made of its weight at the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.kept = net(), None

    def forward(self, h: Tensor) -> Tensor:
        if self.kept is None or self.kept.dtype != h.dtype:
            self.kept = self.inner[0].weight.detach().tanh()
        return self.inner[2](h @ self.kept.T)  # type: ignore[no-any-return]


@pytest.mark.parametrize("data", [(X, Y), [(X[:30], Y[:30]), (X[30:], Y[30:])]])
def test_a_module_that_keeps_something_of_x_is_refused(data: Any) -> None:
    with pytest.raises(InputError, match="keep no state"):
        hessian.effective_rank(Cached(), cross_entropy, data, products=20)
    with pytest.raises(InputError, match="keep no state"):
        lab.train(Cached(), cross_entropy, [data], rounds=1)


def test_a_copy_of_an_operator_gives_the_same_products() -> None:
    operator = hessian.HessianOperator(hessian.MeanLoss(net(), cross_entropy, (X, Y)))
    v = torch.linspace(-1, 1, operator.d)
    product = operator.matvec(v)
    assert torch.equal(pickle.loads(pickle.dumps(operator)).matvec(v), product)
    assert torch.equal(copy.deepcopy(operator).matvec(v), product)


def interrupted(at: hessian.EffectiveRankProgress) -> None:
    if at.products == 8:
        raise KeyboardInterrupt


@pytest.mark.parametrize("other", [{"weight": 5.0}, {"trust": False}])
def test_an_estimate_goes_on_with_no_function_that_is_equal_at_x_alone(other: dict[str, Any], tmp_path: Path) -> None:
    module, file = net(), tmp_path / "c"
    there = module(X).detach()

    def run(weight: float = 0.0, *, trust: bool = True, **more: Any) -> hessian.EffectiveRank:
        def loss(z: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(z, y) + weight * (z - there).square().mean()

        return hessian.effective_rank(module, loss, (X, Y), products=24, checkpoint=file, trust=trust, **more)

    with pytest.raises(KeyboardInterrupt):
        run(on_progress=interrupted)
    with pytest.raises(InputError, match="checkpoint must be of this run"):
        run(**other)


def five_fold(z: Tensor, y: Tensor) -> Tensor:
    return 5 * cross_entropy(z, y)


def test_a_run_goes_on_with_the_model_and_loss_that_it_had(tmp_path: Path) -> None:
    lab.train(net(), five_fold, [(X, Y)], rounds=2, out=tmp_path)
    assert lab.load(tmp_path, net(), five_fold, [(X, Y)]).round == 2
    other = net()
    other[1] = nn.ReLU()
    with pytest.raises(InputError, match="model and loss must give the loss"):
        lab.load(tmp_path, other, five_fold, [(X, Y)])


def test_a_gradient_is_checked_where_a_loss_has_constants_of_its_own() -> None:
    short = Around(net(), after=lambda z: 0.5 * z + 0.5 * z.detach())
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    with pytest.raises(InputError, match="derivative"):
        lab.train(short, weighted, [(X, Y)], method="fedavg", rounds=1)
    with pytest.raises(InputError, match="derivatives"):
        hessian.effective_rank(short, weighted, [(X, Y)], products=10)


def test_a_well_trained_net_in_float32_is_taken() -> None:
    module, inputs = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)), torch.randn(400, 20)
    targets = (inputs[:, 0] > 0).long()
    steps = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(400):
        steps.zero_grad()
        cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        steps.step()
    exact = hessian.effective_rank(module.double(), cross_entropy, (inputs, targets), products=40)
    found = hessian.effective_rank(module.float(), cross_entropy, (inputs, targets), products=40)
    assert found.norm == pytest.approx(exact.norm, rel=0.02)


def test_numbers_beside_tensors_must_be_those_of_all_batches() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch["x"]) * batch["scale"], batch["y"])

    clients = [{"x": X[a : a + 30], "y": Y[a : a + 30], "scale": 2.0 - a / 30} for a in (0, 30)]
    with pytest.raises(InputError, match=r"must be the same in all batches .*, got 1\.0, 2\.0"):
        lab.train(net(), loss, clients, rounds=1)


@pytest.mark.parametrize("take", [lambda out: out.logits, lambda out: out.aux])
def test_a_loss_may_take_the_outputs_apart_itself(take: Any) -> None:
    both = Around(net(), after=lambda z: SimpleNamespace(logits=z, aux=z))

    def loss(out: Any, y: Tensor) -> Tensor:
        return cross_entropy(take(out), y)

    assert hessian.effective_rank(both, loss, (X, Y), products=32).kappa == pytest.approx(
        hessian.effective_rank(net(), cross_entropy, (X, Y), products=32).kappa
    )
    assert lab.train(both, loss, [(X, Y)], rounds=1).round == 1


def test_arrays_that_go_backwards_are_taken() -> None:
    turned = X.numpy()[::-1], Y.numpy()[::-1]
    copied = np.ascontiguousarray(turned[0]), np.ascontiguousarray(turned[1])
    found, same = (hessian.effective_rank(net(), cross_entropy, data, products=20).kappa for data in (turned, copied))
    assert found == same
