"""Plain first-order training: the textbook's steps, in an order that the seed alone decides."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.errors import DivergedError, InputError
from decomfl_lab.layout import Layout
from decomfl_lab.models.registry import build_model
from decomfl_lab.objectives.descent import Descent

DATA = load_dataset("digits")


def descended(steps: int, **settings: Any) -> tuple[torch.Tensor, list[float]]:
    module = build_model("logistic", seed=0, in_shape=(1, 8, 8), classes=10)
    losses = Descent(**settings)(module, cross_entropy, DATA.train_images[:200], DATA.train_labels[:200], steps)
    found = list(losses)
    return Layout.of(module).flatten(module), found


def test_a_step_on_all_data_is_minus_eta_times_the_gradient() -> None:
    module = build_model("logistic", seed=0, in_shape=(1, 8, 8), classes=10)
    loss = cross_entropy(module(DATA.train_images[:200]), DATA.train_labels[:200])
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
    x, losses = descended(1, optimizer="sgd", lr=0.5, batch_size=200)
    assert torch.allclose(x, Layout.of(module).flatten(module) - 0.5 * gradient, atol=1e-6)
    assert losses == [pytest.approx(float(loss.detach()))]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_losses_fall_and_runs_repeat_by_seed(optimizer: str) -> None:
    x, losses = descended(60, optimizer=optimizer, lr=0.02, batch_size=32, seed=3)
    again, _ = descended(60, optimizer=optimizer, lr=0.02, batch_size=32, seed=3)
    other, _ = descended(60, optimizer=optimizer, lr=0.02, batch_size=32, seed=4)
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    assert losses[-1] < 0.7 * losses[0]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="optimizer must be one of sgd, adam, got 'lion'"):
        Descent(optimizer="lion")
    with pytest.raises(InputError, match=r"momentum β must be in \[0, 1\), got 1.0"):
        Descent(momentum=1.0)
    with pytest.raises(DivergedError, match="loss of step"):
        descended(200, optimizer="sgd", lr=1e38)
