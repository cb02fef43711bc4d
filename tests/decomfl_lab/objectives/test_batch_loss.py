"""The forms of a user's loss: how each is told from the others, what it is given, and how what is none is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from decomfl_lab.errors import InputError
from decomfl_lab.objectives.batch_loss import BatchLoss, Form, called
from tests.nets import seeded

X, Y = torch.arange(12.0).view(4, 3) / 12, torch.tensor([0, 1, 1, 0])


def net() -> nn.Linear:
    return seeded(lambda: nn.Linear(3, 2))  # type: ignore[no-any-return]


def penalised(model: nn.Module, batch: Any) -> Tensor:
    """A loss of the model: its value is told from that of any loss of outputs."""
    return cross_entropy(model(batch[0]), batch[1]) + sum(p.square().sum() for p in model.parameters())


class Criterion(nn.Module):
    """A loss as a module, of outputs."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(z, y)


class CriterionOfModel(nn.Module):
    """A loss as a module, of the model."""

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return penalised(model, batch)


class OfModel:
    """A loss as an object, of the model."""

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        return penalised(model, batch)


class Labelled(nn.Module):
    """A module with a loss of its own, which it returns in one of the ways that there are."""

    def __init__(self, pack: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.pack = net(), pack

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        outputs = self.inner(x)
        return self.pack(cross_entropy(outputs, labels), outputs)


# --- which form -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "form"),
    [
        (cross_entropy, Form.OUTPUTS),
        (nn.CrossEntropyLoss(), Form.OUTPUTS),
        (Criterion(), Form.OUTPUTS),
        (lambda outputs, targets: outputs.sum(), Form.OUTPUTS),
        (lambda net, batch: net(batch).sum(), Form.OUTPUTS),  # the name decides
        (max, Form.OUTPUTS),  # without a signature
        (penalised, Form.MODEL),
        (CriterionOfModel(), Form.MODEL),
        (OfModel(), Form.MODEL),
        (OfModel().__call__, Form.MODEL),
        (functools.partial(penalised), Form.MODEL),
        (lambda model, batch, decay=0.1: model(batch).sum(), Form.MODEL),
        (None, Form.OWN),
    ],
)
def test_the_name_of_the_first_parameter_says_what_a_loss_is_a_function_of(loss: Any, form: Form) -> None:
    found = BatchLoss.of(loss)
    assert found.form is form
    assert found.is_of_outputs == (form is Form.OUTPUTS)


@pytest.mark.parametrize("loss", [7, "cross_entropy", nn.CrossEntropyLoss, torch.ones(2)])
def test_what_cannot_be_called_as_a_loss_is_refused_also_a_class_of_losses(loss: Any) -> None:
    with pytest.raises(InputError, match=r"^loss must be a function of \(outputs, targets\), or of \(model, batch\)"):
        BatchLoss.of(loss)


def test_parameters_of_a_loss_are_refused_by_name_and_frozen_ones_are_constants() -> None:
    loss = Criterion()
    loss.temperature = nn.Parameter(torch.ones(()))
    with pytest.raises(InputError, match=r"no parameters of its own.*got Criterion with temperature"):
        BatchLoss.of(loss)
    loss.requires_grad_(False)
    assert BatchLoss.of(loss).form is Form.OUTPUTS


def test_losses_are_equal_where_function_form_and_cutting_are() -> None:
    first, same = BatchLoss.of(cross_entropy), BatchLoss(cross_entropy, Form.OUTPUTS, tried=True)
    assert first == same
    assert hash(first) == hash(same)
    others = [
        BatchLoss.of(mse_loss),
        BatchLoss(cross_entropy, Form.MODEL),
        BatchLoss(cross_entropy, Form.OUTPUTS, False),
    ]
    assert first not in [*others, cross_entropy]


# --- what a loss is given ---------------------------------------------------------------------------------------------


def test_each_form_is_the_loss_that_one_would_write() -> None:
    module = net()
    plain = cross_entropy(module(X), Y)
    assert BatchLoss.of(cross_entropy)(module, X, Y) == plain
    assert BatchLoss.of(penalised)(module, X, Y) == penalised(module, (X, Y)) != plain
    assert BatchLoss.of(None)(Labelled(lambda loss, z: (loss, z)), {"x": X}, Y) == plain


def test_at_other_tensors_the_model_that_the_loss_gets_has_them_and_afterwards_its_own() -> None:
    module = net()
    before = [p.clone() for p in module.parameters()]
    x = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    wanted = cross_entropy(X @ x["weight"].T, Y) + 6
    assert BatchLoss.of(penalised).at(module, x, X, Y) == pytest.approx(wanted.item())
    assert all(torch.equal(p, own) for p, own in zip(module.parameters(), before, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_outputs_in_16_bits_are_widened_in_any_tree_and_integers_are_not(dtype: torch.dtype) -> None:
    seen: list[Any] = []

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        seen.append(outputs)
        return outputs["z"].sum()

    BatchLoss.of(loss).of_outputs({"z": X.to(dtype), "n": Y, "wide": X.double()}, Y)
    assert [tensor.dtype for tensor in seen[0].values()] == [torch.float32, torch.int64, torch.float64]


class Two(NamedTuple):
    a: Tensor
    b: Tensor


@pytest.mark.parametrize(
    ("inputs", "what"),
    [(X, "one"), ((X, Y), "two"), ({"a": X, "b": Y}, "two"), (Two(X, Y), "one")],
    ids=["a tensor", "a tuple", "a mapping", "a named tuple"],
)
def test_inputs_are_one_argument_or_several_or_named(inputs: Any, what: str) -> None:
    class Module(nn.Module):
        def forward(self, a: Any, b: Any = None) -> str:
            return "one" if b is None else "two"

    assert called(Module(), inputs) == what
