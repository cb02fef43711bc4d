"""What P directions make of a tangent kernel: exact in mean square, bounded in norm, planted faults caught."""

from dataclasses import replace
from itertools import product

import pytest
import sympy as sp
import torch
from torch import nn
from torch.func import functional_call, jacrev

import hessian
from decomfl_lab.errors import InputError
from tests.cases import sampled
from tests.theory.checks.test_verdict import planted
from theory import KERNEL_NORM, KERNEL_NORM_BELOW, Quadratic, Spectrum, Statement, Waves, check, kernel_frobenius
from theory.checks.verdict import Source
from theory.notation.setting import DISTRIBUTIONS
from theory.notation.symbols import L, P, d

SPECTRA = {
    "one outlier": Spectrum.two_level(120, 12.0),
    "flat": Spectrum.flat(50),
    "a power": Spectrum.power(80, 1.0, groups=80),
    "rank one": Spectrum.confined(100, 1),
}


def network() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A small network, its inputs, and the kernel of its outputs from its whole Jacobian."""
    torch.manual_seed(7)
    module, inputs = nn.Sequential(nn.Linear(9, 14), nn.Tanh(), nn.Linear(14, 5)).double(), torch.randn(10, 9).double()
    weights = {name: each.detach() for name, each in module.named_parameters()}
    jacobian = jacrev(lambda own: functional_call(module, own, inputs))(weights)
    J = torch.cat([each.reshape(50, -1) for each in jacobian.values()], 1)
    return module, inputs, J @ J.T


def of_kernel(K: torch.Tensor, d: int) -> Quadratic:
    """The quadratic that stands for a kernel: its eigenvalues, and as many 0 as there are parameters more."""
    values = torch.linalg.eigvalsh(K).clamp(min=0).tolist()
    return Quadratic.of(Spectrum((*values[::-1], 0.0), (*[1] * len(values), d - len(values))))


@pytest.mark.parametrize(("name", "distribution"), sampled(product(SPECTRA, DISTRIBUTIONS), 4))
def test_the_mean_square_error_is_exact_and_that_of_simulated_directions(name: str, distribution: str) -> None:
    statement, problem = kernel_frobenius(distribution), Quadratic.of(SPECTRA[name])
    for directions in (1, 7):
        exact = check(statement, problem, P=directions, distribution=distribution)
        assert exact.holds
        assert exact.measured == pytest.approx(exact.bound, rel=1e-12, abs=1e-12)
        drawn = check(statement, problem, source="simulation", runs=400, P=directions, distribution=distribution)
        assert abs(drawn.measured - drawn.bound) <= 4 * drawn.stderr + 1e-9


@pytest.mark.parametrize(("name", "directions"), sampled(product([*SPECTRA, "a network"], (1, 10, 100)), 4))
def test_the_error_in_norm_is_between_its_bounds(name: str, directions: int) -> None:
    problem = of_kernel(network()[2], 215) if name == "a network" else Quadratic.of(SPECTRA[name])
    for statement in (KERNEL_NORM, KERNEL_NORM_BELOW):
        for distribution in statement.distributions:
            found = check(
                statement, problem, source="simulation", runs=200, P=directions, distribution=distribution, seed=3
            )
            assert found.holds is not False
            assert found.ratio < 1.1  # of a rank-one kernel the lower bound is nearly the error


RADEMACHER = kernel_frobenius("rademacher")


@pytest.mark.parametrize(
    ("statement", "spectrum", "directions"),
    [
        (planted(kernel_frobenius(), "error", 0.99), "flat", 5),
        (replace(kernel_frobenius(), terms=RADEMACHER.terms, constants=RADEMACHER.constants), "flat", 5),
        (planted(KERNEL_NORM, "root", 0.25), "flat", 100),
        (replace(KERNEL_NORM, terms={"root": KERNEL_NORM.terms["root"]}), "flat", 1),
        (replace(KERNEL_NORM_BELOW, terms={"least": -L * sp.sqrt(2 * (d - 1) / (sp.pi * P))}), "one outlier", 50),
        (planted(KERNEL_NORM_BELOW, "least", 1.5), "flat", 1),
    ],
    ids=["a factor", "other directions", "a factor of the norm", "no r/P", "d for r", "a factor below"],
)
def test_a_planted_fault_fails(statement: Statement, spectrum: str, directions: int) -> None:
    source: Source = "exact" if statement.left.closed else "simulation"
    found = check(statement, Quadratic.of(SPECTRA[spectrum]), runs=200, P=directions, source=source)
    assert found.holds is False
    assert found.ratio > 1


def test_what_has_no_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="distribution must be one of gaussian, sphere, rademacher"):
        kernel_frobenius("cauchy")
    with pytest.raises(InputError, match="problem must be a Quadratic"):
        check(KERNEL_NORM, Waves.random(waves=3, n=2), source="simulation", runs=2)


def test_the_kernels_rank_comes_from_products_and_holds_that_of_the_whole_jacobian() -> None:
    module, inputs, K = network()
    true = float(K.trace() / torch.linalg.matrix_norm(K, 2))
    data = (inputs, torch.zeros(10, dtype=torch.long))
    found = hessian.tangent_kernel(module, data, rtol=0.05, seed=1)
    assert found.reached
    low, high = found.interval
    assert low <= true <= high
    assert found.products < 215
    whole = hessian.tangent_kernel(module, data, products=215)
    assert whole.kappa == pytest.approx(true, rel=1e-6)
    with pytest.raises(InputError, match="operator must stay unset: a tangent kernel has its own, got 'hessian'"):
        hessian.tangent_kernel(module, data, operator="hessian")
