"""Products, probes and Lanczos vectors on a device: nothing of size d elsewhere, few host reads, a bounded memory."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import hessian
from decomfl_lab import InputError, noise
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution, derive_seed
from decomfl_lab.objectives.descent import Descent
from decomfl_lab.objectives.function import Slopes
from hessian import GaussNewtonOperator, HessianOperator, MeanLoss, Operator, effective_rank, lanczos
from hessian.kappa.interval import forecast
from hessian.kappa.interval.estimation import BESIDE
from hessian.operators.probes import probe
from hessian.spectrum import lanczos as krylov_module
from hessian.trained_models import trained_here
from tests import nets
from tests.cases import sampled
from tests.hessian.spectra import rotated
from tests.hessian.watches import META, Live, another_device

OPERATORS: dict[str, Callable[[MeanLoss], Operator]] = {
    "hessian": HessianOperator,
    "gauss-newton": GaussNewtonOperator,
    "fisher": hessian.FisherOperator,
    "smoothed": lambda f: hessian.SmoothedOperator(f, f.x, 1e-3, samples=2),
    "sum": lambda f: HessianOperator(f) + 0.5 * GaussNewtonOperator(f),
    "block of all": lambda f: hessian.BlockOperator(HessianOperator(f), [slice(0, 7), slice(7, f.d)]),
    "function": lambda f: hessian.FunctionOperator(lambda v: 2 * v, f.d, device=f.device, trust=True),
}
D = 30 * 40 + 40 + 40 * 3 + 3


def objective(device: torch.device | str, pieces: int = 2, hidden: int = 40, of: type[MeanLoss] = MeanLoss) -> MeanLoss:
    """D parameters with 40 hidden units; the data stay on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Linear(30, hidden, device=device), nn.ReLU(), nn.Linear(hidden, 3, device=device)
        data = torch.randn(4 * pieces, 30), torch.randint(3, (4 * pieces,))
    return of(nn.Sequential(*layers), cross_entropy, [data], chunk=4, trust=True)


@pytest.mark.parametrize("name", sampled(OPERATORS, 1))
def test_an_estimate_has_nothing_of_the_models_size_but_on_its_device(name: str) -> None:
    with another_device(D):
        f = objective(META)
        operator = OPERATORS[name](f)
        found = effective_rank(operator, products=12, seed=0)
        effective_rank(operator, max_products=10, seed=0, max_basis=5)
        hessian.forward_only(f, f.x, seed=0, probes=8)
        assert hessian.spectral_density(operator, products=6).products == 6
        assert math.isfinite(hessian.gauss_newton_trace(GaussNewtonOperator(f)))
        assert hessian.trace(operator, products=8).products == 8
        assert hessian.diagonal(operator, products=8).values.device == META
        assert hessian.top_eigenvalues(operator, max_products=6, vectors=True).vectors[0].device == META
        assert torch.get_default_device() == torch.device("cpu")
    assert (found.products, found.d) == (12, D)


def test_a_probe_made_on_the_cpu_is_noticed() -> None:
    def made(d: int, dtype: torch.dtype, device: torch.device, *at: Any) -> Tensor:
        return torch.from_numpy(noise.direction(0, 0, d)).to(device, dtype)

    with another_device(D, made):
        operator = HessianOperator(objective(META))
        with pytest.raises(AssertionError, match="on cpu"):
            lanczos(operator, steps=3, seed=0)


def reads(make: Callable[[MeanLoss], Operator], **of: Any) -> list[int]:
    """Host reads of a loss, a product, a quadratic form, and the products of an estimate."""
    found = []
    with another_device(D) as read:
        f = objective(META, **of)
        operator = make(f)
        v = torch.ones(f.d, device=META)
        acts: list[Callable[[], Any]] = [lambda: f(f.x), lambda: operator.matvec(v), lambda: operator.quad(v)]
        for act in [*acts, lambda: effective_rank(operator, products=12, seed=0)]:
            before = read.count
            act()
            found.append(read.count - before)
    return found


@pytest.mark.parametrize("name", sampled(["hessian", "gauss-newton", "fisher"], 1))
def test_the_host_waits_as_often_whatever_the_data_and_d_are(name: str) -> None:
    few = reads(OPERATORS[name])
    assert few[:3] == [1, 1, 2 if name == "hessian" else 1]
    assert few[3] < 12 * 10
    assert reads(OPERATORS[name], pieces=5, hidden=60) == few


def test_a_host_read_in_every_piece_is_noticed() -> None:
    class Slow(MeanLoss):
        def slopes(self, *args: Any) -> Slopes:
            float(self.x.sum())
            return super().slopes(*args)

    few, many = (reads(partial(HessianOperator, cache=0), of=Slow, pieces=pieces)[1] for pieces in (2, 5))
    assert many == few + 3


@pytest.mark.parametrize("distribution", Distribution)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_probe_made_in_its_place_has_the_bits_of_the_stream(distribution: Distribution, dtype: torch.dtype) -> None:
    for d in (1, 300, 70_001):
        stream = torch.from_numpy(noise.direction(derive_seed(7, 2), 5, d, distribution=distribution)).to(dtype)
        made = probe(torch.empty(d, dtype=dtype), 7, 2, 5, distribution)
        assert torch.equal(made.view(torch.uint8), stream.view(torch.uint8))


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [10_000, pytest.param(31_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("asked", [{"products": 20}, {"products": 20, "max_basis": 6}], ids=str)
def test_an_estimate_holds_what_is_told(hidden: int, asked: dict[str, int]) -> None:
    """What is alive beside the module, x and the point, in vectors; of more than 2**20 elements a sketch is kept."""
    f = objective("cpu", hidden=hidden)
    operator = HessianOperator(f, cache=0)
    with Live(least=f.d // 4) as live:
        found = effective_rank(operator, **asked)
    kept = len(found.ritz_values)  # however often they were restarted
    seen = live.most / (4 * f.d)
    told = sum(forecast.held(operator, kept).values())
    assert told - 1 < seen <= told + (1 if hidden == 10_000 else 3)  # with tiles, of up to 2**20 elements each


def test_x_is_the_modules_own_vector_where_it_has_one() -> None:
    module, data = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 3)), (torch.randn(4, 8), torch.arange(4) % 3)
    Layout.of(module).bind(module, own := Layout.of(module).flatten(module))
    f, before = MeanLoss(module, cross_entropy, data), own.clone()
    bound = effective_rank(HessianOperator(f), products=9, within=60)
    assert (f.x.data_ptr(), torch.equal(own, before)) == (own.data_ptr(), True)
    module[1].bias.data = module[1].bias.data.clone()  # one elsewhere, and x is a copy
    copied = MeanLoss(module, cross_entropy, data)
    assert copied.x.data_ptr() != own.data_ptr()
    assert effective_rank(HessianOperator(copied), products=9).interval == bound.interval
    hurried = effective_rank(HessianOperator(f), within=1e-6)
    assert (hurried.steps, hurried.probes, "time that was allowed" in hurried.reason) == (2, 3, True)


class Recomputing(nn.Module):
    """Layers whose activations are forgotten and computed again, if that is on."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again, self.layers = again, nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = (
                checkpoint(lambda x, layer=layer: layer(x).tanh().sin(), x, use_reentrant=False)
                if self.again
                else (layer(x).tanh().sin())
            )
        return x


def test_a_model_that_recomputes_its_activations_does_so_in_a_product() -> None:
    data, v = (torch.randn(5000, 8), torch.arange(5000) % 8), torch.randn(12 * 72)
    seen = []
    for again in (False, True):
        module = nets.seeded(partial(Recomputing, again))
        operator = GaussNewtonOperator(MeanLoss(module, cross_entropy, data, chunk=5000, trust=True))
        with Live(least=4 * 5000 * 8) as live:
            seen.append((operator.matvec(v), live.most))
    (product, most), (same, less) = seen
    assert torch.equal(product, same)
    assert less < 0.7 * most


class Wasteful(MeanLoss):
    """Copies x for every gradient."""

    def add_gradient_(self, total: Tensor, x: Tensor, *at: Any) -> Any:
        return super().add_gradient_(total, x.clone(), *at)


@pytest.mark.parametrize(
    ("part", "trust", "of", "least", "most"),
    [
        (nn.GELU, True, MeanLoss, 2.0, 2.3),  # the product itself, and one gradient
        (nn.ReLU, True, MeanLoss, 2.0, 2.3),
        (nn.GELU, False, MeanLoss, 3.0, 4.7),  # and what it is tried by, in tiles of up to 2**20 elements
        (nn.ReLU, False, MeanLoss, 4.0, 5.4),  # in float64 where there are kinks
        (nn.ReLU, False, Wasteful, 5.4, 9.0),  # the fault
    ],
)
def test_a_product_holds_itself_and_one_gradient_and_its_trial_two_vectors_more(
    part: type[nn.Module], trust: bool, of: type[MeanLoss], least: float, most: float
) -> None:
    """Of eight equal layers, so that one is little beside d; few examples, so that activations are less."""
    width = 160
    layers = [(nn.Linear(width, width, bias=False), part()) for _ in range(8)]
    module = nn.Sequential(*[each for layer in layers for each in layer])
    f = of(module, cross_entropy, (torch.randn(2, width), torch.tensor([0, 1])), trust=trust)
    operator = HessianOperator(f)
    v = torch.randn(operator.d)
    with Live(least=4 * operator.d // 16) as live:
        operator.matvec(v)
    vectors = live.most / (4 * operator.d) - 2  # x and v, which views of them show
    assert least < vectors < most


def test_a_basis_that_does_not_fit_is_refused_with_the_number_that_does() -> None:
    operator = rotated(np.linspace(1, 3, 400).tolist())

    def free(device: torch.device) -> int:
        return operator.d * operator.dtype.itemsize * (BESIDE + 10)

    with mock.patch.multiple(krylov_module, free_memory=free, available_memory=free, _SHARE=1):
        with pytest.raises(InputError, match=r"max_basis must be at most 6 .*GiB free on cpu\), got 11$"):
            effective_rank(operator, seed=0, max_basis=11)
        found = effective_rank(operator, seed=0, products=40)
        assert (found.steps > 6, "free has room for 6 Lanczos vectors" in found.reason) == (True, True)
        assert effective_rank(operator, seed=0, max_basis=6, products=40).interval == found.interval
        with pytest.raises(InputError, match="at most 8 "):
            lanczos(operator, steps=100, seed=0, max_basis=9)
        assert lanczos(operator, steps=100, seed=0, max_basis=8).products == 100


@pytest.mark.parametrize("part", ["signed", "positive"])
def test_a_small_basis_is_restarted_until_the_norm_is_known(part: str) -> None:
    values = np.r_[np.linspace(5, 10, 20), np.abs(np.random.default_rng(0).normal(0, 0.1, 380))]
    rtol = 0.1 if part == "signed" else 0.2
    found = effective_rank(rotated(values.tolist()), rtol=rtol, part=part, seed=0, max_products=100, max_basis=6)
    assert found.reached
    assert found.steps > 6 >= len(found.ritz_values)
    assert found.interval[0] <= values.sum() / values.max() <= found.interval[1]


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_model_is_trained_and_measured_where_it_is_told_to_be() -> None:
    with another_device(10**9):
        trained = trained_here("resnet8-half-bn", "digits", steps=2, descent=Descent(), device=META)
        (f,) = trained.mean_loss(hessian.CurvatureOptions(chunk=4), examples=8)
    assert f.device == META
    assert all(piece.inputs.device == piece.targets.device == META for piece in f.pieces)  # sent once, not a product
