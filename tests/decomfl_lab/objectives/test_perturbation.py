"""The loss at x + μ z without a write to x, against a copy of the module that is perturbed by hand."""

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode

from decomfl_lab.errors import InputError
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution, direction
from decomfl_lab.objectives import perturbation
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.objectives.perturbation import moved
from decomfl_lab.replicas.rebuild import BLOCK
from tests.cases import refuses

Distributions = st.sampled_from(list(Distribution))
Seeds = st.integers(0, 2**64 - 1)


def inside(module: nn.Module, seed: int, p: int, mu: float, **options: Any) -> AbstractContextManager[None]:
    """A block in which the module is moved, frozen parameters too."""
    return moved(list(module.named_parameters()), seed, p, mu, **options)


def _tied() -> nn.Module:
    made = nn.Sequential(nn.Embedding(11, 6), nn.Tanh(), nn.Linear(6, 11))
    made[2].weight = made[0].weight
    return made


class _Functional(nn.Module):
    """Weights that no forward method of a leaf module uses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 7))
        self.bias = nn.Parameter(torch.randn(5))
        self.scales = nn.ParameterList([torch.randn(()), torch.randn(5, 1)])
        self.never_called = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight, bias=self.bias) + x @ self.weight.t()
        y = torch.cat([y, self.scales[1].T * self.scales[0], self.weight.data[:, :5], self.weight[1:3, -5:]])
        return torch.addmm(self.never_called.bias, y, self.never_called.weight) * self.bias.detach().numpy().sum()


class _Lstm(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]  # type: ignore[no-any-return]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.PReLU(), nn.Linear(9, 3))


def _conv() -> nn.Module:
    parts = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2), nn.Flatten()
    return nn.Sequential(*parts, nn.Linear(2 * 5 * 5, 3))


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (_mlp, lambda: torch.randn(5, 6)),
    "conv": (_conv, lambda: torch.randn(3, 1, 6, 6)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), lambda: torch.randn(2, 4, 8)),
    "lstm": (lambda: _Lstm(4, 5, num_layers=2, bidirectional=True), lambda: torch.randn(3, 2, 4)),
    "tied": (_tied, lambda: torch.tensor([[1, 5, 10], [0, 0, 3]])),
    "functional": (_Functional, lambda: torch.randn(4, 7)),
}


def _make(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    make, data = MODULES[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module, inputs = make().eval().to(dtype), data()
    return module, inputs.to(dtype) if inputs.is_floating_point() else inputs


def _by_hand(
    module: nn.Module, seed: int, p: int, mu: float, distribution: Distribution = Distribution.GAUSSIAN
) -> nn.Module:
    """A copy at fl(w + fl(mu z)), from one whole direction; no code of ``perturbation``."""
    other = copy.deepcopy(module)
    weights = list(other.parameters())
    z = torch.from_numpy(direction(seed, p, sum(w.numel() for w in weights), distribution=distribution))
    first = 0
    with torch.no_grad():
        for w in weights:
            wide = torch.promote_types(w.dtype, torch.float32)
            part = z[first : first + w.numel()].to(wide)
            w.copy_((w.to(wide) + part.mul(float(np.float32(mu))).view(w.shape)).to(w.dtype))
            first += w.numel()
    return other


def _bits(module: nn.Module) -> list[bytes]:
    return [w.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for w in module.parameters()]


@pytest.fixture
def chunks_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A chunk has so many elements from now on, for small tensors to take several."""
    return lambda elements: monkeypatch.setattr(perturbation, "CHUNK", elements)


def _run(module: nn.Module, inputs: Tensor, *, mode: bool = True) -> Tensor:
    """One forward pass; under some torch function mode, for that is what switches the fused kernels off."""
    with torch.no_grad(), BaseTorchFunctionMode() if mode else nullcontext():
        out: Tensor = module(inputs)
    return out


@pytest.mark.parametrize("name", MODULES)
@settings(max_examples=12, deadline=None)
@given(Seeds, st.integers(0, 2**32 - 1), st.floats(-1, 1, width=64), Distributions, st.sampled_from([32, 64]))
def test_the_loss_is_that_of_the_module_moved_by_hand(
    name: str, seed: int, p: int, mu: float, distribution: Distribution, bits: int
) -> None:
    """To the bit, since the kernels of torch see the same contiguous tensors."""
    mu = mu if abs(mu) > 1e-30 else 0.0
    module, inputs = _make(name, torch.float32 if bits == 32 else torch.float64)
    wanted = _run(_by_hand(module, seed, p, mu, distribution), inputs)
    before = _bits(module)
    with inside(module, seed, p, mu, distribution=distribution), torch.inference_mode():
        assert torch.equal(module(inputs), wanted)
        assert torch.equal(module(inputs), wanted)
    assert _bits(module) == before
    assert mu == 0 or abs(mu) < 1e-3 or not torch.equal(wanted, _run(module, inputs))


@pytest.mark.parametrize("name", [name for name in MODULES if name != "functional"])  # numpy has no bfloat16
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_moved_in_float32_and_rounded_once_or_not_at_all(
    name: str, dtype: torch.dtype, chunks_of: Callable[[int], None]
) -> None:
    """Without rounding the pass is that of the widened module, moved; rounding would forget so small a step."""
    chunks_of(32)  # so that small tensors take several chunks
    module, inputs = _make(name)
    module, own = module.to(dtype), inputs.to(dtype) if inputs.is_floating_point() else inputs
    widened, wanted, before = copy.deepcopy(module).float(), _by_hand(module, 3, 4, 0.3), _bits(module)
    with inside(module, 3, 4, 0.3), torch.no_grad():
        for w, moved_so in zip(module.parameters(), wanted.parameters(), strict=True):
            assert torch.equal(w.clone(), moved_so)
        assert torch.equal(module(own), _run(wanted, own))
    assert _bits(module) == before
    if name in ("mlp", "encoder", "tied"):
        with inside(module, 3, 4, 1e-4, wide=True), torch.no_grad():
            found = module(inputs)
        assert found.dtype == torch.float32
        assert torch.equal(found, _run(_by_hand(widened, 3, 4, 1e-4), inputs))
        assert not torch.equal(found, _run(widened, inputs))


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_elements_are_counted_row_major_whatever_the_strides(chunk: int, chunks_of: Callable[[int], None]) -> None:
    chunks_of(chunk)
    plain, inputs = _make("conv")
    strided = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    strided[-1].weight = nn.Parameter(plain[-1].weight.detach().T.contiguous().T)  # type: ignore[index,union-attr,operator]
    spread = torch.zeros(2 * 4).fill_(7.0)
    spread[::2] = plain[1].weight.detach()  # type: ignore[index,union-attr]
    strided[1].weight = nn.Parameter(spread[::2])  # type: ignore[index]
    assert sum(not w.is_contiguous() for w in strided.parameters()) >= 3
    wanted = _by_hand(plain, 5, 2, 0.2)
    with inside(strided, 5, 2, 0.2), torch.no_grad():
        for w, moved_so in zip(strided.parameters(), wanted.parameters(), strict=True):
            assert torch.equal(w.clone(), moved_so)
            assert torch.equal(w.view(-1) if w.is_contiguous() else w.reshape(-1), moved_so.reshape(-1))
            if w.dim() > 1:
                assert torch.equal(w.as_strided(w.shape, w.stride()), moved_so)
        assert torch.allclose(strided(inputs), wanted(inputs), rtol=1e-5, atol=1e-5)
    assert spread[1::2].eq(7).all()


def test_metadata_form_nothing_and_values_do() -> None:
    module, _ = _make("functional")
    w = module.weight
    with inside(module, 1, 0, 0.1, strict=False), _tracked() as live:
        facts = w.shape, w.dtype, w.dim(), w.device, w.requires_grad, w.stride(), len(w), w.type(), w.is_contiguous()
        assert facts == (torch.Size([5, 7]), torch.float32, 2, w.device, True, (7, 1), 5, "torch.FloatTensor", True)
        w.requires_grad_(False)
        assert not w.requires_grad
        torch.zeros_like(w), w.new_zeros(2), w.data_ptr(), torch.zeros(35).view_as(w), hash(w), torch.ones(2).to(w)
        assert live.formed == 0
        assert w.tolist() != w.numel()
        assert live.formed == 1


class _Live:
    elements = peak = formed = 0

    def count(self, elements: int) -> None:
        self.elements += elements
        self.peak = max(self.peak, self.elements)


@contextmanager
def _tracked() -> Iterator[_Live]:
    """Counts the elements of formed tensors from when they are made until their memory is freed."""
    live, form = _Live(), perturbation.Moved.formed

    def formed(self: Any, w: Tensor, first: int) -> Tensor:
        t = form(self, w, first)
        live.count(t.numel())
        live.formed += 1
        weakref.finalize(t.untyped_storage(), live.count, -t.numel())
        return t

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perturbation.Moved, "formed", formed)
        yield live


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("block", [0, BLOCK])
def test_no_more_than_the_largest_layer_is_perturbed_at_a_time_or_a_block_more(dtype: torch.dtype, block: int) -> None:
    module = nn.Sequential(nn.Linear(3, 40), nn.Linear(40, 1700), nn.Linear(1700, 45), nn.Linear(45, 3)).to(dtype)
    inputs = torch.ones(2, 3, dtype=dtype)
    with _tracked() as live, inside(module, 1, 0, 0.1, in_blocks=block > 0), torch.no_grad():
        for _ in range(2):
            found = module(inputs)
            assert live.elements <= block
    assert 1700 * 45 <= live.peak <= 1700 * 45 + 45 + block
    assert torch.equal(found, _run(_by_hand(module, 1, 0, 0.1), inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("index", [[[3, 399], [3, 200]], [[0, 1, 2, 3]], [399], []])
def test_of_a_table_the_rows_that_are_looked_up_are_made(
    index: list[object], dtype: torch.dtype, chunks_of: Callable[[int], None]
) -> None:
    module, rows = nn.Sequential(nn.Embedding(2, 5), nn.Embedding(400, 5)).to(dtype), 20
    chunks_of(5 * rows)
    inputs = torch.tensor(index, dtype=torch.int64)
    with _tracked() as live, inside(module, 3, 1, 0.1, strict=False), torch.no_grad():
        found = module[1](inputs)
    assert torch.equal(found, _by_hand(module, 3, 1, 0.1)[1](inputs))  # type: ignore[index]
    assert live.peak <= 5 * rows
    with pytest.raises(IndexError), inside(module, 3, 1, 0.1):
        module[1](torch.tensor([400]))


def test_what_is_never_used_is_named() -> None:
    module, inputs = _make("mlp")
    module.add_module("spare", nn.Linear(2, 2))

    def measure() -> None:
        with inside(module, 0, 0, 0.1):
            assert module.spare.weight.size() == module.spare.weight.shape
            torch.zeros_like(module.spare.bias)
            nn.Sequential(*list(module)[:4])(inputs)  # type: ignore[call-overload]

    with pytest.raises(InputError, match=r"no torch function was given parameter 'spare.weight', 'spare.bias'.*strict"):
        measure()
    with inside(module, 0, 0, 0.1, strict=False):
        pass


class _Writer(nn.Module):
    def __init__(self, write: Callable[[nn.Parameter], object]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        self.write(self.weight)
        return y


def _write_view_of_view(w: Tensor) -> None:
    v = w.view(-1)[2:]
    v = v[1:]
    v.mul_(2)


WRITES: dict[str, Callable[[nn.Parameter], object]] = {
    "add_": lambda w: w.add_(1.0),
    "__iadd__": lambda w: w.__iadd__(1.0),
    "__setitem__": lambda w: w.__setitem__(0, 0.0),
    "out": lambda w: torch.add(torch.ones(4, 4), 1.0, out=w),
    "data": lambda w: setattr(w, "data", torch.zeros(4, 4)),
    "data.copy_": lambda w: w.data.copy_(torch.zeros(4, 4)),
    "data.view": lambda w: w.data.view(-1)[1:].zero_(),
    "detach": lambda w: w.detach().clamp_(0, 0.5),
    "view of a view": _write_view_of_view,
    "foreach": lambda w: torch._foreach_add_([w], 1.0),
    "init": lambda w: nn.init.zeros_(w),
    "max_norm": lambda w: functional.embedding(torch.tensor([0]), w, max_norm=0.1),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("inference", [False, True])
def test_a_forward_pass_that_writes_to_x_is_refused(name: str, inference: bool) -> None:
    module = _Writer(WRITES[name])
    refused = pytest.raises(InputError, match="writes to parameter 'weight' inside a forward pass")
    with refused, inside(module, 1, 0, 0.1), torch.inference_mode(inference), torch.no_grad():
        module(torch.ones(4))
    assert torch.equal(module.weight, torch.ones(4, 4))


class _OwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, w: Tensor) -> Tensor:
        return x @ w.t()


WAYS: dict[str, Callable[[Tensor, nn.Parameter], Tensor]] = {
    "op": lambda x, w: torch.ops.aten.linear(x, w),
    "overload": lambda x, w: torch.ops.aten.linear.default(x, w),
    "autograd function": lambda x, w: _OwnGradient.apply(x, w),  # type: ignore[no-untyped-call,no-any-return]
    "einsum": lambda x, w: torch.einsum("bi,oi->bo", x, w),
    "vmap over data": lambda x, w: torch.vmap(lambda row: w @ row)(x),
    "checkpoint": lambda x, w: torch.utils.checkpoint.checkpoint(lambda y: y @ w.T, x, use_reentrant=False),
    "norm": lambda x, w: functional.linear(x, torch._weight_norm(w, torch.ones(3, 1))),
    "callback": lambda x, w: functional.triplet_margin_with_distance_loss(
        x, x + 1, x * x, distance_function=lambda a, b: ((a - b) @ w.T).square().sum(-1)
    ),
    "named tuple": lambda x, w: torch.block_diag(*torch.broadcast_tensors(w, w)),
    "dict": lambda x, w: torch.stack(list(OrderedDict(w=w).values())),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_use_a_weight_is_seen(way: str) -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
    x = torch.linspace(0, 3, 8).view(2, 4)
    wanted = WAYS[way](x, _by_hand(module, 1, 2, 0.25).weight)
    assert not torch.equal(wanted, WAYS[way](x, module.weight))
    with inside(module, 1, 2, 0.25):
        assert torch.equal(WAYS[way](x, module.weight), wanted)


def test_losses_of_an_objective_and_a_flat_vector_agree() -> None:
    """f at x + μz made as a vector, as the client does, is f at a point moved so; a rebind inside is refused."""
    module, _ = _make("mlp")
    layout, inputs, targets = Layout.of(module), torch.randn(40, 6), torch.randint(0, 3, (40,))
    objective = ModuleObjective(module, layout, functional.cross_entropy, inputs, targets, EpochBatches(40, 40, (0,)))
    x = layout.flatten(module)
    other = x + 0.125 * torch.from_numpy(direction(6, 3, layout.d))
    wanted = objective(other, 0)
    assert objective(x, 0) != wanted
    with inside(module, 6, 3, 0.125):
        assert objective(x, 0) == wanted
        with pytest.raises(InputError, match=r"data\.__set__ writes to parameter '0.weight'"):
            objective(other, 0)


@refuses(
    (float("nan"), "mu rounded to float32 must be finite"),
    (1e39, "mu rounded to float32 must be finite"),
    (1e-60, "mu rounded to float32 must be finite, and 0 only if mu is, got 1e-60"),
)
def test_a_bad_distance_is_refused_by_name(mu: float) -> None:
    with inside(_mlp(), 0, 0, mu):
        raise AssertionError
