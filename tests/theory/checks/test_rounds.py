"""Rounds to ε: what a bound promises is where it says ε, what a quadratic needs is where its recursion is."""

import math
from dataclasses import replace

import numpy as np
import pytest

from theory import Quadratic, Spectrum, expected, rounds_by_bound, rounds_of, statement
from theory.checks.rounds import Rounds, stability_limit

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


def test_a_promise_that_is_too_small_is_seen_as_never_reached() -> None:
    """The checker of the checker: with a wrong bound instead of a right one, nothing is found."""
    setting = NOISY.setting(m=2, M=10, P=3)
    right = rounds_by_bound(statement("theorem-1-single"), setting, EPSILON)
    truth = rounds_of(NOISY, setting, EPSILON, bound=right).rounds
    wrong = Rounds(truth / 2, right.eta)
    assert math.isinf(rounds_of(NOISY, setting, EPSILON, bound=wrong).rounds)


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
