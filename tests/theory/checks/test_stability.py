"""Stability in mean square: the formula against the whole map of second moments, both against runs, and wrong ones."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.cases import sampled
from theory import Quadratic, Setting, Spectrum, expected, largest_step, rounds_by_bound, rounds_of, statement
from theory.checks.rounds import stability_limit
from theory.checks.stability import growth, load
from theory.notation.setting import DISTRIBUTIONS

SPECTRA = (Spectrum.flat(12, 3.0), Spectrum((5.0, 1.0, 0.01, 0.0), (1, 3, 40, 7)), Spectrum((5.0,), (1,)))


@pytest.mark.parametrize(
    ("distribution", "beta", "P"), sampled(product(DISTRIBUTIONS, (0.0, 0.5, 0.9, 0.99), (1, 20, 1000)), 9)
)
def test_second_moments_neither_grow_nor_fall_at_the_largest_step(distribution: str, beta: float, P: int) -> None:
    for spectrum in SPECTRA:
        h = largest_step(spectrum, P=P, beta=beta, distribution=distribution)
        assert load(spectrum, h, P=P, beta=beta, distribution=distribution) == pytest.approx(1.0)
        below, at, above = (
            growth(spectrum, factor * h, P=P, beta=beta, distribution=distribution) for factor in (0.99, 1.0, 1.01)
        )
        assert at == pytest.approx(1.0, abs=1e-6)
        assert below < 1 + 1e-12 < above


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_without_momentum_it_is_what_is_known_already(distribution: str) -> None:
    flat = Spectrum.flat(12, 3.0)
    assert largest_step(flat, P=7, distribution=distribution) == pytest.approx(
        stability_limit(Setting(d=12, L=3.0, P=7, distribution=distribution))
    )
    spectrum, P = Spectrum((3.0, 1.0, 0.1), (1, 4, 30)), 5
    h = 1.2 * largest_step(spectrum, P=P, distribution=distribution)
    quadratic = Quadratic.of(spectrum, start=(1.0, 1.0, 1.0))
    f = expected(quadratic, quadratic.setting(eta=h, P=P, R=400, distribution=distribution)).f
    assert f[-1] / f[-2] == pytest.approx(growth(spectrum, h, P=P, distribution=distribution), rel=1e-6)


EPSILON = 0.2
NOISY = Quadratic.of(Spectrum.flat(8), sigma=2.0, sigma_G=1.0)


@pytest.mark.parametrize(("name", "K"), [("theorem-1", 3), ("theorem-1-single", 1)])
def test_a_bound_is_epsilon_after_its_rounds_and_no_other_step_size_is_faster(name: str, K: int) -> None:
    setting, of = NOISY.setting(m=2, M=10, P=3, K=K), statement(name)
    found = rounds_by_bound(of, setting, EPSILON)
    assert found.eta <= of.step_sizes(setting).largest * (1 + 1e-12)
    after = replace(setting, R=math.ceil(found.rounds), eta=found.eta)
    assert sum(of.bound(after)) == pytest.approx(EPSILON, rel=1e-3)
    for factor in (0.5, 0.8, 1.25, 2.0):
        other = after.at(factor * found.eta)
        assert not of.admits(other) or sum(of.bound(other)) > EPSILON


def test_a_quadratic_needs_the_rounds_found_and_no_step_size_needs_fewer() -> None:
    setting = NOISY.setting(m=2, M=10, P=3)
    bound = rounds_by_bound(statement("theorem-1-single"), setting, EPSILON)
    found = rounds_of(NOISY, setting, EPSILON, bound=bound)
    assert 1 < found.rounds < bound.rounds
    R = int(found.rounds)
    average = expected(NOISY, replace(setting, R=R, eta=found.eta)).average
    assert average <= EPSILON
    assert expected(NOISY, replace(setting, R=R - 1, eta=found.eta)).average > EPSILON
    fewer = round(0.99 * R)
    for eta in np.geomspace(bound.eta / 10, bound.eta * 100, 60):
        assert not expected(NOISY, replace(setting, R=fewer, eta=float(eta))).average <= EPSILON


@pytest.mark.parametrize("distribution", ["gaussian", "sphere", "rademacher"])
@pytest.mark.parametrize(("K", "m", "P"), [(1, 1, 1), (4, 3, 2)])
def test_from_the_limit_on_a_quadratic_diverges(distribution: str, K: int, m: int, P: int) -> None:
    quadratic = Quadratic.of(Spectrum.flat(12, L=3.0))
    setting = quadratic.setting(m=m, M=5, P=P, K=K, distribution=distribution, R=200)
    limit = stability_limit(setting)
    below, above = (expected(quadratic, setting.at(factor * limit)).gradient2 for factor in (0.999, 1.001))
    assert below[-1] < below[0]
    assert above[-1] > above[0]


def test_where_smoothing_alone_is_above_the_accuracy_no_rounds_reach_it() -> None:
    noisier = replace(NOISY.setting(), mu=10.0)
    assert math.isinf(rounds_by_bound(statement("theorem-1-single"), noisier, 1e-9).rounds)
