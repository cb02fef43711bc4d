"""A user's module as it is computed with: unwrapped, its padding rows held; what is handed back and swapped."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DataParallel

from decomfl_lab.errors import InputError
from decomfl_lab.objectives.modules import HeldEmbedding, constants, handed_back_, prepared, swapped
from tests.cases import rows_of

TOKENS = torch.tensor([[1, 0, 3], [2, 0, 0]])
PAD = 0


def table(padding: int | None = PAD) -> nn.Embedding:
    """Of 4 tokens, float64, with values in its padding row too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = nn.Embedding(4, 2, padding_idx=padding).double()
    with torch.no_grad():
        made.weight[PAD] = torch.tensor([0.7, -0.3])
    return made


def tied() -> nn.Sequential:
    """Outputs are by the table's own weight."""
    made = nn.Sequential(table(), nn.Linear(2, 4, bias=False).double())
    made[1].weight = made[0].weight
    return made


# --- the padding row --------------------------------------------------------------------------------------------------


def test_a_held_embedding_has_torchs_values_at_its_own_weight_and_its_row_at_any() -> None:
    plain = table()
    held = prepared(plain, shared=False)
    assert isinstance(held, HeldEmbedding)
    assert torch.equal(held(TOKENS), plain(TOKENS))
    moved = functional_call(held, {"weight": plain.weight + 1}, TOKENS)
    is_pad = TOKENS == PAD
    assert torch.equal(moved[is_pad], plain(TOKENS)[is_pad])
    assert torch.equal(moved[~is_pad], plain(TOKENS)[~is_pad] + 1)


@pytest.mark.parametrize("padding", [PAD, -1, 2])
def test_what_is_handed_back_is_torchs_embedding_with_its_row_as_it_was(padding: int) -> None:
    plain = table(padding)
    row, other = plain.weight.detach()[padding].clone(), 1 if plain.padding_idx != 1 else 3
    held = prepared(plain, shared=False)
    with torch.no_grad():
        held.weight.add_(1.0)  # whatever training does
    back = handed_back_(held)
    assert type(back) is nn.Embedding
    assert back.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(back.weight[padding], row)
    assert torch.equal(back.weight[other], plain.weight[other] + 1)
    assert back.padding_idx == plain.padding_idx


def test_a_row_that_is_tied_to_another_layer_is_that_layers_and_stays_moved() -> None:
    held = prepared(tied(), shared=False)
    moved = held[0].weight.detach() + 1
    with torch.no_grad():
        held[0].weight.copy_(moved)
    back = handed_back_(held)
    assert torch.equal(back[0].weight, moved)
    assert back[1].weight is back[0].weight


# --- the copy ---------------------------------------------------------------------------------------------------------


def test_a_shared_copy_has_the_users_own_tensors_and_another_one_has_its_own() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    module.constant = torch.ones(5)
    for shared in (True, False):
        own = prepared(module, shared=shared)
        assert own is not module
        mine = [*module.parameters(), *module.buffers(), module.constant]
        theirs = [*own.parameters(), *own.buffers(), own.constant]
        same = [a.data_ptr() == b.data_ptr() for a, b in zip(mine, theirs, strict=True)]
        assert same == [shared] * len(same)


def test_wrappers_are_taken_off_outside_and_inside_and_the_module_keeps_its_own() -> None:
    inner = nn.Linear(2, 2)
    module = nn.Sequential(DataParallel(inner), torch.compile(nn.Linear(2, 2), backend="eager"))
    own = prepared(DataParallel(module), shared=True)
    assert [name for name, _ in own.named_parameters()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert isinstance(module[0], DataParallel)
    assert type(module[1]).__name__ == "OptimizedModule"


class Uncopied(nn.Module):
    """It holds a lock, which nothing can copy."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts, self.lock = nn.ModuleList(parts), threading.Lock()


@pytest.mark.parametrize("make", [lambda: nn.Embedding(3, 2, padding_idx=0), lambda: DataParallel(nn.Linear(2, 2))])
def test_a_module_that_cannot_be_copied_is_refused_where_something_has_to_be(make: Any) -> None:
    with pytest.raises(InputError, match=r"model must be a module that copy.deepcopy can copy, got TypeError: .*lock"):
        prepared(Uncopied(make()), shared=True)


# --- what is not trained ---------------------------------------------------------------------------------------------


class Parts(nn.Module):
    """A layer that is trained, one that is not, a buffer, a padding row and a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.frozen, self.norm = nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.table = nn.Embedding(3, 2, padding_idx=0)
        self.register_buffer("shift", torch.zeros(2))


@pytest.mark.parametrize(("name", "told"), rows_of(__file__)["rows"])
def test_the_digest_of_what_is_not_trained_tells_apart_constants_alone(name: str, told: bool) -> None:
    module = prepared(Parts(), shared=False)
    names = {"trained.weight", "trained.bias", "table.weight", "norm.weight", "norm.bias"}
    before = constants(module, names)
    with torch.no_grad():
        {**dict(module.named_parameters()), **dict(module.named_buffers())}[name].add_(1.0)
    assert (constants(module, names) != before) is told


# --- swapped ----------------------------------------------------------------------------------------------------------


class TwoNames(nn.Module):
    """One layer under two names, and one weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(2, 2), nn.Linear(2, 2)
        self.b = self.a
        self.c.weight = self.a.weight
        self.register_buffer("shift", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x))) + self.shift


def _own(module: nn.Module) -> dict[str, int]:
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: id(tensor) for name, tensor in named}


@pytest.mark.parametrize("name", ["a.weight", "b.weight", "c.weight"])
def test_inside_a_tensor_is_there_under_every_name_and_outside_the_users_own(name: str) -> None:
    module = TwoNames()
    before = _own(module)
    with swapped(module, {name: torch.zeros(2, 2), "shift": torch.ones(2)}):
        assert torch.equal(module(torch.ones(1, 2)), module.c.bias[None] + 1)
        assert len({_own(module)[each] for each in ("a.weight", "b.weight", "c.weight")}) == 1
    assert _own(module) == before


def test_whatever_is_raised_inside_however_deep_the_users_tensors_are_restored() -> None:
    module = TwoNames()
    before, first = _own(module), torch.ones(2, 2)

    def inner() -> None:
        with swapped(module, {"a.weight": torch.zeros(2, 2), "c.bias": torch.zeros(2)}):
            raise KeyError("inside")

    with swapped(module, {"b.weight": first}):
        with pytest.raises(KeyError, match="inside"):
            inner()
        assert module.a.weight is first
        assert module.c.weight is first
    assert _own(module) == before
    with pytest.raises(KeyError, match="outside"), swapped(module, {"a.weight": first}):
        raise KeyError("outside")
    assert _own(module) == before
