"""A refusal names the smallest part whose derivative is wrong."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding

import decomfl_lab as lab
import hessian
from decomfl_lab.objectives.batch_loss import BatchLoss
from decomfl_lab.objectives.trials.culprit import Order, culprit
from tests.nets import seeded
from tests.situations.zoo import sine

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(3))
Y = torch.arange(20) % 3


wrong = sine(lambda x: 0.8 * x.cos())
"""The sine, with 0.8 times its derivative."""


class Part(nn.Module):
    """A function of a layer's outputs, as a part of a part."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 3)]), function

    def forward(self, h: Tensor) -> Tensor:
        return self.layers[1](self.function(self.layers[0](h)))


def net(function: Callable[[Tensor], Tensor] = torch.tanh) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Part(function)))


def hooked() -> nn.Module:
    model = net()
    model[2].layers[0].register_full_backward_hook(lambda part, before, after: (0.5 * before[0],))
    return model


def normed() -> nn.Module:
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        model = seeded(lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3)))
        model(X)  # which it needs to be copied
    return model


def of_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(wrong(outputs), targets)


def penalised(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1]) + wrong(model[0].weight).sum()


def padded(h: Tensor) -> Tensor:
    return h * embedding(Y[:4], torch.tanh(h[:4]), padding_idx=1).sum()


def multiplied(h: Tensor) -> Tensor:
    return h * h.new_ones(4).scatter_reduce(0, Y[:4], h[0], "prod")


PART = r"; it is the part '2' \(Part\) whose"
TORCH = r"second derivative differs from differences by \d+%; torch's own _weight_norm is wrong: write weight_norm as g"
CASES: dict[str, tuple[nn.Module, Any, str]] = {
    "a backward": (net(wrong), cross_entropy, rf"{PART} derivative differs from differences by \d+%$"),
    "a second derivative": (net(sine(lambda x: x.cos().detach())), cross_entropy, rf"{PART} second derivative"),
    "a hook of a layer in a list": (hooked(), cross_entropy, r"'2.layers.0' \(Linear\) whose derivative"),
    "a loss of outputs": (net(), of_outputs, r"the loss \(of_outputs\) whose derivative"),
    "a loss of the model": (net(), penalised, r"the loss \(penalised\) whose derivative"),
    "a hook that makes a weight": (normed(), cross_entropy, rf"'0' \(Linear\) whose {TORCH}"),
    "a padding row": (net(padded), cross_entropy, rf"{PART}.* torch's own embedding\(padding_idx\) is wrong"),
    "a forward derivative": (net(multiplied), cross_entropy, rf"{PART} forward .* own scatter_reduce\(prod\) is wrong"),
    "nothing": (net(), cross_entropy, "^$"),
    "a module that takes no float64": (net(lambda h: h.float() @ torch.ones(4, 4)), cross_entropy, "^$"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_part_that_is_wrong_is_named(name: str) -> None:
    module, loss, words = CASES[name]
    told = culprit(module, BatchLoss.of(loss), [(X, Y)], [Order.FIRST, Order.SECOND, Order.FORWARD])
    assert re.search(words, told), told


def test_each_door_names_it() -> None:
    module, loss, words = CASES["a backward"]
    with pytest.raises(lab.InputError, match=words):
        hessian.effective_rank(module, loss, (X, Y), products=5)
    with pytest.raises(lab.InputError, match=words):
        lab.train(module, loss, [(X, Y)], method=lab.FedAvg(), rounds=1)
