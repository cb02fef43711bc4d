"""Moments of second differences against closed forms, brackets against kappa, and the choice of mu."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab import noise
from decomfl_lab.estimators.second_differences import PowerSums, bracket, cross_cumulants, cumulants, power_sums
from decomfl_lab.noise import Distribution
from hessian import MeanLoss, forward_only
from hessian.kappa.function_values import evaluation_noise, mu_ladder, second_differences
from tests.hessian import problems

DISTRIBUTIONS = (Distribution.GAUSSIAN, Distribution.SPHERE)


def quadratic(eigenvalues: torch.Tensor):
    """x -> 1/2 xᵀHx + gᵀx + 3 with H = diag(eigenvalues): a diagonal H is no special case for rotation-invariant z."""
    g = torch.linspace(-1, 1, len(eigenvalues), dtype=eigenvalues.dtype)
    return lambda x: float(0.5 * (eigenvalues * x * x).sum() + g @ x + 3)


def spectrum(d: int = 60, outliers: float = 10.0) -> torch.Tensor:
    return torch.cat([torch.tensor([outliers, outliers / 2], dtype=torch.float64), torch.full((d - 2,), 0.2).double()])


def sums_of(eigenvalues: torch.Tensor) -> PowerSums:
    return PowerSums(*(np.float64(float((eigenvalues**k).sum())) for k in (1, 2, 3)))


def forms(eigenvalues: torch.Tensor, n: int, distribution: Distribution, seed: int = 0) -> np.ndarray:
    """n samples of zᵀHz along the lab's own directions."""
    d = len(eigenvalues)
    z = (torch.from_numpy(noise.direction(seed, p, d, distribution=distribution)).double() for p in range(n))
    return np.array([float(eigenvalues @ direction**2) for direction in z])


# Power sums ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_second_and_third_cumulants_are_the_power_sums_within_their_sampling_error(distribution):
    sampled = cumulants(np.stack([forms(spectrum(20), 500, distribution, seed) for seed in range(20)]))
    found = power_sums(sampled, distribution, 20)
    for k, (estimates, truth) in enumerate(zip(found, sums_of(spectrum(20)), strict=True)):
        stderr = estimates.std(ddof=1) / math.sqrt(len(estimates))
        assert abs(estimates.mean() - truth) < 4 * stderr, k + 1
        assert stderr < (0.01, 0.04, 0.14)[k] * truth  # sharp enough to tell a wrong factor
    wrong = power_sums(sampled * np.array([1.0, 2.0, 1.0])[:, None], distribution, 20).t2  # such as one in the variance
    assert abs(wrong.mean() - sums_of(spectrum(20)).t2) > 4 * wrong.std(ddof=1) / math.sqrt(20)


@pytest.mark.parametrize("m", [2, 4])
def test_cross_cumulants_are_those_of_the_tuples_written_out(m):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(m, 7)) ** 2
    c, n = q - q.mean(1, keepdims=True), 7
    pairs = [c[i] @ c[j] / (n - 1) for i in range(m) for j in range(m) if i != j]
    triples = [
        n / ((n - 1) * (n - 2)) * (c[i] * c[j] * c[k]).sum()
        for i in range(m)
        for j in range(m)
        for k in range(m)
        if len({i, j, k}) == 3
    ]
    found = cross_cumulants(q)
    assert_allclose(found[:2], [q.mean(), np.mean(pairs)])
    if m > 2:
        assert_allclose(found[2], np.mean(triples))


def test_scatter_of_batches_and_rounding_add_to_pooled_moments_but_not_to_those_across_clients():
    d, m, n, rounds = 12, 4, 20, 400
    rng = np.random.default_rng(1)
    base = np.diag(np.linspace(0.5, 3, d))
    crossed, pooled = [], []
    for _ in range(rounds):
        noises = rng.normal(size=(m, d, d)) * 0.5
        matrices = base + (noises + noises.transpose(0, 2, 1)) / 2
        z = rng.normal(size=(n, d))
        q = np.einsum("pa,iab,pb->ip", z, matrices, z) + rng.normal(size=(m, n)) * 3
        crossed.append(cross_cumulants(q))
        pooled.append(cumulants(q.mean(0)))
    truth = np.array([np.trace(base), 2 * np.trace(base @ base), 8 * np.trace(base @ base @ base)])
    for k in (1, 2):
        values = np.array(crossed)[:, k]
        assert abs(values.mean() - truth[k]) < 4 * values.std() / math.sqrt(rounds)
    values = np.array(pooled)[:, 1]
    assert values.mean() - truth[1] > 4 * values.std() / math.sqrt(rounds)


# Brackets -----------------------------------------------------------------------------------------------------


def kappa(eigenvalues: torch.Tensor) -> float:
    return float(eigenvalues.sum() / eigenvalues.abs().max())


@given(st.lists(st.floats(-10.0, 10.0), min_size=2, max_size=12), st.booleans())
def test_brackets_hold_kappa_for_every_matrix_that_they_are_for_and_the_third_moment_narrows(values, psd):
    eigenvalues = torch.tensor(values, dtype=torch.float64).abs() if psd else torch.tensor(values, dtype=torch.float64)
    assume(float(eigenvalues.abs().max()) > 1e-3)
    names = ("any-sign", "psd-second", "psd") if psd else ("any-sign",)
    ends = {name: bracket(name, sums_of(eigenvalues), len(values)) for name in names}
    for low, high in ends.values():
        rounding = 1e-9 * (1 + abs(kappa(eigenvalues)))
        assert low - rounding <= kappa(eigenvalues) <= high + rounding
    if psd:
        assert ends["psd"][0] >= ends["psd-second"][0] * (1 - 1e-9)
        assert ends["psd"][1] <= ends["psd-second"][1] * (1 + 1e-9)


# Estimates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_quadratic_gives_its_trace_norm_and_a_bracket_around_kappa(distribution):
    eigenvalues = spectrum()
    found = forward_only(
        quadratic(eigenvalues), torch.linspace(-1, 1, 60).double(), seed=3, probes=1000, distribution=distribution
    )
    truth = sums_of(eigenvalues)
    assert found.trace_interval[0] < truth.t1 < found.trace_interval[1]
    assert found.trace.stderr < 0.03 * truth.t1
    for quantity, wanted in ((found.frobenius_squared, truth.t2), (found.cube, truth.t3)):
        assert quantity.low < wanted < quantity.high
        assert quantity.low < quantity.value < quantity.high
    for name, ends in found.brackets.items():
        assert ends.outer_low < kappa(eigenvalues) < ends.outer_high, name
        assert ends.outer_low <= ends.low
        assert ends.high <= ends.outer_high
    assert found.brackets["psd"].outer_high < found.brackets["psd-second"].high  # sharper, sampling error included
    assert not found.indefinite
    assert not found.ladder.kinked
    assert found.evaluations == found.ladder.evaluations + 2001


def test_an_indefinite_hessian_is_named():
    eigenvalues = torch.cat([torch.full((10,), 3.0), torch.full((10,), -2.0)]).double()
    found = forward_only(quadratic(eigenvalues), torch.zeros(20).double(), seed=0, probes=400)
    assert found.indefinite
    assert "H is indefinite" in found.summary()
    assert "rademacher" not in found.reason
    bracket = found.brackets["any-sign"]
    assert bracket.outer_low < kappa(eigenvalues) < bracket.outer_high


def test_rademacher_directions_give_the_trace_alone_and_say_so():
    found = forward_only(
        quadratic(spectrum()), torch.zeros(60).double(), seed=0, probes=8, distribution=Distribution.RADEMACHER
    )
    assert found.trace.value == pytest.approx(float(spectrum().sum()), rel=1e-6)  # diagonal H: no variance at all
    assert found.frobenius_squared is None
    assert found.brackets == {}
    assert "rademacher directions tell the trace only" in found.summary()


def test_brackets_with_their_sampling_error_hold_kappa_as_often_as_they_state():
    eigenvalues = torch.cat([torch.tensor([5.0, 3.0, 2.0]), 1 / torch.arange(1, 28)]).double()
    f, x, runs = quadratic(eigenvalues), torch.zeros(30).double(), 60
    found = [forward_only(f, x, seed=seed, probes=40, mu=1e-2, resamples=100) for seed in range(runs)]
    for name in found[0].brackets:
        held = [r.brackets[name].outer_low < kappa(eigenvalues) < r.brackets[name].outer_high for r in found]
        bare = [r.brackets[name].low < kappa(eigenvalues) < r.brackets[name].high for r in found]
        assert sum(held) >= 0.92 * runs
        assert sum(bare) < sum(held)
    assert sum(r.indefinite for r in found) <= 0.05 * runs


def test_the_variance_of_rounding_is_taken_off():
    """float32 values with an error much larger than the spread of zᵀHz: uncorrected, ‖H‖_F² is many times too large."""
    eigenvalues = spectrum(60).float()
    rng = np.random.default_rng(0)
    exact = quadratic(eigenvalues.double())

    def rough(x):
        return exact(x.double()) + 1e-4 * rng.normal()

    z = [torch.from_numpy(noise.direction(0, p, 60)).double() for p in range(2000)]
    q = second_differences(rough, torch.zeros(60).double(), z, 5e-3)
    raw, corrected = (power_sums(cumulants(q, v), Distribution.GAUSSIAN, 60).t2 for v in (0.0, 2 * 1e-8 / 5e-3**4))
    truth = sums_of(eigenvalues.double()).t2
    assert raw > 1.1 * truth
    assert corrected == pytest.approx(truth, rel=0.17)


# μ ------------------------------------------------------------------------------------------------------------


def loss_of(activation: type[nn.Module], dtype: torch.dtype) -> MeanLoss:
    return MeanLoss(problems.mlp(activation), cross_entropy, [problems.data(n=30)], dtype=dtype)


def test_noise_of_evaluation_is_a_few_units_in_the_last_place():
    for dtype in (torch.float32, torch.float64):
        f = loss_of(nn.GELU, dtype)
        unit = torch.finfo(dtype).eps / 2 * f.value
        assert 0.1 * unit < evaluation_noise(f, f.x, seed=0) < 20 * unit


def test_kinks_are_found_from_the_ladder_and_named():
    f = loss_of(nn.ReLU, torch.float64)
    ladder = mu_ladder(f, f.x, seed=1)
    assert ladder.kinked
    assert "smoothed" in ladder.reason
    assert ladder.mu == 1e-3
    assert ladder.truncation(1e-3) > 0
