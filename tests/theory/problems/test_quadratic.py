"""The exact recursion against what cannot share its bugs: simulation, dense matrices, closed forms by hand."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.cases import rows_of, sampled
from tests.theory.strategies import quadratics
from theory.checks.simulation import simulate
from theory.notation.setting import DISTRIBUTIONS, effective_factor, second_moment_factor, sixth_moment
from theory.problems.problem import Bowl, directions
from theory.problems.quadratic import Quadratic, expected, local_steps, remainder, signs, spread
from theory.problems.spectrum import Spectrum

MIXED = Quadratic.of(
    Spectrum((2.0, 1.0, 0.3, 0.0), (1, 2, 1, 1)), D=1.0, sigma=1.0, sigma_G=0.8,
    start=(1, 1, 1, 0), noise=(1, 1, 1, 1), dissimilarity=(1, 2, 0, 1),
)  # fmt: skip


@pytest.mark.parametrize(
    ("run", "distribution"), sampled(itertools.product(rows_of(__file__)["rows"], DISTRIBUTIONS), 7)
)
def test_the_closed_form_is_the_mean_of_simulated_runs(run: dict[str, Any], distribution: str) -> None:
    setting = MIXED.setting(**{"eta": 0.1, "P": 3, "R": 5, "mu": 0.7, "distribution": distribution} | run)
    wanted = expected(MIXED, setting)
    found = simulate(MIXED, setting, runs=5_000, seed=1)
    assert abs(found.value - wanted.average) < 4 * found.stderr
    assert found.stderr < 0.02 * wanted.average


def test_the_closed_form_without_noise_or_dissimilarity_or_smoothing_is_another() -> None:
    strong = Quadratic(MIXED.spectrum, MIXED.start, (9.0, 0.0, 0.0, 0.0), (9.0, 0.0, 0.0, 0.0))
    run = {"eta": 0.1, "m": 3, "M": 4, "P": 3, "K": 3, "R": 4, "mu": 0.7, "distribution": "sphere"}
    found = simulate(strong, strong.setting(**run), runs=5_000, seed=1)
    assert abs(found.value - expected(strong, strong.setting(**run)).average) < 4 * found.stderr
    none = (0.0,) * 4
    for other in (
        expected(Quadratic(MIXED.spectrum, MIXED.start, none, strong.dissimilarity), strong.setting(**run)),
        expected(Quadratic(MIXED.spectrum, MIXED.start, strong.noise, none), strong.setting(**run)),
        *(expected(strong, strong.setting(**(run | change))) for change in rows_of(__file__)["changes"]),
    ):
        assert abs(found.value - other.average) > 4 * found.stderr


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_group_stands_for_its_eigenvalues_one_by_one(distribution: str) -> None:
    grouped = Quadratic.of(Spectrum((2.0, 0.5), (2, 3)), sigma=0.4, sigma_G=0.6, start=(1, 1))
    (a, b), (s, _), (g, _) = grouped.start, grouped.noise, grouped.dissimilarity
    single = Quadratic(
        Spectrum((2.0, 2.0, 0.5, 0.5, 0.5), (1,) * 5),
        (a / 2, a / 2, 0, b, 0),
        (0, s, 0, 0, 0),
        (g / 4, 3 * g / 4, 0, 0, 0),
    )
    run = {"eta": 0.1, "m": 2, "M": 6, "P": 2, "K": 3, "R": 9, "mu": 0.4, "distribution": distribution}
    assert expected(grouped, grouped.setting(**run)).f == pytest.approx(
        expected(single, single.setting(**run)).f, rel=1e-12
    )


def test_the_trajectory_by_doubling_is_that_of_round_after_round() -> None:
    whole = expected(MIXED, MIXED.setting(eta=0.05, m=2, M=4, P=2, K=2, R=37, mu=0.3))
    for R in (1, 2, 3, 8, 36):
        part = expected(MIXED, MIXED.setting(eta=0.05, m=2, M=4, P=2, K=2, R=R, mu=0.3))
        assert part.f == pytest.approx(whole.f[: R + 1], rel=1e-12)
        assert part.average == pytest.approx(whole.gradient2[:R].mean(), rel=1e-12)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_moments_of_estimates_are_those_of_dense_sampling(distribution: str) -> None:
    bowl = Bowl(MIXED, 1)
    H, rng = bowl.eigenvalues, np.random.default_rng(0)
    v = rng.standard_normal(H.size)
    setting = MIXED.setting(P=3, mu=0.9, distribution=distribution)
    z = directions(distribution, (100_000, 3), H.size, H.size, rng)
    g = z @ v
    curved = 0.5 * setting.mu * np.einsum("rpn,n,rpn->rp", z, H, z)
    groups = np.repeat(np.arange(4), MIXED.spectrum.counts)

    def by_group(squares: np.ndarray) -> np.ndarray:
        return np.array([squares[groups == group].sum() for group in range(4)])

    for scalars, wanted in ((g, spread(MIXED, setting, by_group(v**2))), (curved, remainder(MIXED, setting))):
        squares = ((scalars[..., None] * z).mean(1) ** 2)[:]
        errors = squares.std(0) / math.sqrt(len(squares))
        assert np.all(abs(by_group(squares.mean(0)) - wanted) < 5 * by_group(errors))


@given(quadratics())
@settings(max_examples=60)
def test_traces_of_moments_are_the_factors_of_the_settings(quadratic: Quadratic) -> None:
    H = quadratic.spectrum.eigenvalues
    for distribution in DISTRIBUTIONS:
        setting = quadratic.setting(P=3, mu=0.5, distribution=distribution)
        V = np.array(quadratic.noise) + np.array(quadratic.dissimilarity)
        second = spread(quadratic, setting, V)
        assert second.sum() == pytest.approx(
            second_moment_factor(distribution, d=quadratic.d, P=3) * V.sum(), rel=1e-12
        )
        kappa = quadratic.spectrum.kappa
        assert H @ second <= quadratic.L * effective_factor(distribution, d=quadratic.d, P=3, kappa=kappa) * V.sum() * (
            1 + 1e-12
        )
        found = remainder(quadratic, setting).sum()
        most = 0.25 * 0.25 * quadratic.L**2 * sixth_moment(distribution, d=quadratic.d) / 3
        assert found <= most * (1 + 1e-12)
        if len(quadratic.spectrum.values) == 1:
            assert found == pytest.approx(most, rel=1e-9)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("client", [0, None])
def test_local_steps_are_those_of_simulated_clients(distribution: str, client: int | None) -> None:
    M, K, runs = 3, 4, 10_000
    bowl, rng = Bowl(MIXED, M), np.random.default_rng(2)
    setting = MIXED.setting(eta=0.1, M=M, P=2, K=K, mu=0.6, distribution=distribution)
    who = np.full(runs, client) if client is not None else rng.integers(0, M, runs)
    x = np.tile(bowl.start, (runs, 1))
    for step in local_steps(MIXED, setting, client):
        distance2 = ((x - bowl.start) ** 2).sum(1)
        own = bowl.gradient(x) - bowl.tilts[who]
        for samples, wanted in ((distance2, step.distance2), ((own**2).sum(1), step.gradients.sum())):
            assert abs(samples.mean() - wanted) <= 4.5 * samples.std() / math.sqrt(runs) + 1e-12
        z, xi = directions(distribution, (runs, 2), x.shape[1], MIXED.d, rng), rng.random(runs)
        moved = bowl.sampled(x[:, None] + 0.6 * z, who[:, None], xi[:, None])
        g = (moved - bowl.sampled(x, who, xi)[:, None]) / 0.6
        x = x - 0.1 * (g[..., None] * z).mean(1)


@pytest.mark.parametrize("M", [1, 2, 3, 8, 9])
def test_clients_shares_sum_to_0_and_their_covariance_is_that_of_the_samples(M: int) -> None:
    shares = signs(M)
    assert shares.sum() == 0
    assert MIXED.covariance(M).sum() == pytest.approx(MIXED.sigma_G**2 * (shares**2).mean())
    for m in range(1, M + 1):
        means = [np.mean(chosen) ** 2 for chosen in itertools.combinations(shares, m)]
        phi = MIXED.setting(m=m, M=M).phi
        assert np.mean(means) == pytest.approx(phi / m * (shares**2).mean(), abs=1e-12)
