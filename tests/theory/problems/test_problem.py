"""Problems coordinate by coordinate, and spectra: their constants hold, closed forms are those of sampling."""

import math

import numpy as np
import pytest
from hypothesis import given

from tests.cases import sampled
from tests.theory.strategies import spectra
from theory import Spectrum, Waves
from theory.notation.setting import DISTRIBUTIONS
from theory.problems.problem import directions


def test_no_value_is_lower_than_d_below_the_start_and_the_rank_is_that_of_hessians() -> None:
    """The other constants ``theory.probe`` looks at, in tests of checks."""
    problem, rng = Waves.random(waves=5, n=3, d=8, M=3, seed=1), np.random.default_rng(2)
    setting, n = problem.setting(), problem.start.size
    start = float(problem.value(problem.start))
    top = (problem.w.T * abs(problem.a)) @ problem.w
    assert np.trace(top) <= setting.kappa * setting.L * (1 + 1e-12)
    for _ in range(50):
        x = problem.start + 3 * rng.standard_normal(n)
        assert start - float(problem.value(x)) <= setting.D
        steps = 1e-4 * np.eye(n)
        hessian = np.stack([problem.gradient(x + e) - problem.gradient(x - e) for e in steps]) / 2e-4
        assert np.linalg.eigvalsh(top - hessian)[0] > -1e-6


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(("n", "d"), sampled([(3, 400), (1, 1), (3, 3)], 1))
def test_smoothing_of_waves_is_that_of_sampling(distribution: str, n: int, d: int) -> None:
    problem, rng, mu, draws = Waves.random(waves=4, n=n, d=d, seed=2), np.random.default_rng(0), 0.8, 50_000
    x = problem.start
    z = directions(distribution, (draws,), n, d, rng)
    held = (z**2).sum(1)
    if distribution == "sphere":
        assert held == pytest.approx(np.full(draws, d), rel=1e-12) if n == d else held.max() <= d
    rest = {"gaussian": rng.chisquare(d - n, draws) if d > n else 0.0, "sphere": d - held, "rademacher": d - n}[
        distribution
    ]
    values = problem.value(x + mu * z)
    g = (values - problem.value(x)) / mu
    central = (values - problem.value(x - mu * z)) / (2 * mu)
    for samples, wanted in (
        (values[:, None], np.array([problem.smoothed(x, mu, distribution)])),
        (g[:, None] * z, problem.mean_estimate(x, mu, distribution)),
        ((g**2 * (held + rest))[:, None], np.array([problem.second_moment(x, mu, distribution)])),
        (
            (central**2 * (held + rest))[:, None],
            np.array([problem.second_moment(x, mu, distribution, central=True)]),
        ),
    ):
        assert (abs(samples.mean(0) - wanted) <= 4.5 * samples.std(0) / math.sqrt(draws) + 1e-9).all()


# Spectra --------------------------------------------------------------------------------------------------------------


@given(spectra())
def test_kappa_is_the_trace_over_the_norm_and_within_1_and_d(spectrum: Spectrum) -> None:
    assert 1 <= spectrum.kappa <= spectrum.d
    assert spectrum.kappa == pytest.approx(spectrum.trace / spectrum.L, rel=1e-12)
    assert spectrum.lambda_min <= spectrum.L == max(spectrum.values)


@pytest.mark.parametrize("d", [1, 2, 10, 10**9])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_two_levels_have_any_effective_rank_in_any_dimension(d: int, share: float) -> None:
    kappa = 1 + share * (d - 1)
    spectrum = Spectrum.two_level(d, kappa, L=3.0)
    assert (spectrum.d, spectrum.L) == (d, 3.0)
    assert spectrum.kappa == pytest.approx(kappa, rel=1e-12)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("d", [1, 30, 5000])
def test_a_power_distribution_in_groups_has_the_trace_of_single_eigenvalues(d: int, exponent: float) -> None:
    spectrum = Spectrum.power(d, exponent, L=2.0)
    single = 2.0 * np.arange(1, d + 1) ** -exponent
    assert (spectrum.d, spectrum.L) == (d, 2.0)
    assert spectrum.trace == pytest.approx(single.sum(), rel=2e-3)
    assert spectrum.power_sum(2) == pytest.approx((single**2).sum(), rel=2e-2)
