"""Initial weights: the field's formulas, torch's distributions, bits that hang on nothing."""

import hashlib
import math

import pytest
import torch
from torch import nn

from decomfl_lab.errors import InputError
from decomfl_lab.models import MODEL_NAMES, initialisers
from decomfl_lab.models.registry import build_model
from tests.tables import rows_of

BITS = rows_of(__file__)["bits"]


def made(name: str, draws: str = "stream") -> nn.Module:
    in_shape, classes = ((16,), 30) if name.startswith("gpt") else ((1, 28, 28), 10)
    return build_model(name, seed=3, in_shape=in_shape, classes=classes, draws=draws)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_initial_weights_have_these_bits_on_every_machine(name: str) -> None:
    h = hashlib.blake2b(digest_size=8)
    for p in made(name).parameters():
        h.update(p.detach().numpy().tobytes())
    assert h.hexdigest() == BITS[name]


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_each_tensor_has_the_distribution_that_torch_gives_it(name: str) -> None:
    for (path, ours), torchs in zip(made(name).named_parameters(), made(name, "libraries").parameters(), strict=True):
        a, b = ours.detach().double(), torchs.detach().double()
        if (b == b.reshape(-1)[0]).all():
            assert torch.equal(a, b), path
        else:
            error = 4 / math.sqrt(2 * a.numel())  # of a deviation, of both
            assert abs(float(a.square().mean().sqrt() / b.square().mean().sqrt()) - 1) < 1.5 * error, path
            assert abs(float(a.mean())) < 5 * float(b.square().mean().sqrt()) / math.sqrt(a.numel()), path
            assert float(a.abs().max()) <= 1.05 * float(b.abs().max()) or a.numel() < 1000 or name[:3] != "cnn", path


def test_a_layer_that_says_nothing_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"start of parameter 1.weight must be said .*, got a PReLU"):
        initialisers.starts_of(nn.Sequential(nn.Linear(2, 2), nn.PReLU()))


def test_frozen_parameters_are_no_part_of_x() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    before = module[0].weight.clone()
    initialisers.draw_(module, 1)
    assert torch.equal(module[0].weight, before)
    first = initialisers.starts_of(module)[0].elements(1, 0, 4)
    assert module[1].weight.reshape(-1).tolist() == first.tolist()
