"""FeedSign's votes: closed forms against brute force and simulation, the floor on quadratics, planted constants."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from tests.theory.bounds.successors.test_robust_means import divided
from tests.theory.checks.test_verdict import planted, simulated
from theory import Quadratic, Spectrum, feedsign
from theory.bounds.successors.signs import efficiency, sign_floor, tolerated_gradient, vote_gain, wrong_vote
from theory.checks.simulation import simulate

MEAN = math.sqrt(2 / math.pi)


def near(found: np.ndarray, wanted: float, errors: float = 4.0) -> bool:
    """Whether the mean of independent draws is within so many standard errors of what it should be."""
    return bool(abs(found.mean() - wanted) < errors * found.std() / math.sqrt(found.size))


@pytest.mark.parametrize(("honest", "liars"), [(1, 0), (2, 0), (2, 1), (3, 1), (4, 2), (3, 4), (1, 3)])
def test_the_majoritys_gain_is_that_of_all_votes_counted_out(honest: int, liars: int) -> None:
    def right(t: float) -> float:
        q = stats.norm.cdf(t / 0.7)
        patterns = itertools.product((1, -1), repeat=honest)
        return sum(math.prod(q if v > 0 else 1 - q for v in votes) * np.sign(sum(votes) - liars) for votes in patterns)

    counted = integrate.quad(lambda t: 2 * t * stats.norm.pdf(t, scale=1.5) * right(t), 0, 15, limit=200)[0]
    assert vote_gain(1.5, 0.7, honest=honest, liars=liars) == pytest.approx(counted, rel=1e-7, abs=1e-9)


def test_a_gradient_at_an_angle_votes_wrongly_by_the_angle_and_gains_its_cosine() -> None:
    rng = np.random.default_rng(0)
    a, u, z = np.array([1.0, 0, 0]), np.array([1.0, 0.6, 0.8]), rng.standard_normal((100_000, 3))  # ‖u − a‖ = 1
    vote = np.sign(z @ u)
    assert near((vote != np.sign(z @ a)).astype(float), wrong_vote(1.0, 1.0))
    assert near(vote * (z @ a), vote_gain(1.0, 1.0))
    assert not near(vote * (z @ a), MEAN * (1 - 2 * wrong_vote(1.0, 1.0)))  # as if wrong votes were a coin's


def test_below_the_tolerated_gradient_liars_lead_uphill() -> None:
    least = tolerated_gradient(2.0, honest=7, liars=2)
    assert vote_gain(0.99 * least, 2.0, honest=7, liars=2) < 0 < vote_gain(1.01 * least, 2.0, honest=7, liars=2)
    many = tolerated_gradient(2.0, honest=30_000, liars=10_000)
    assert many == pytest.approx(2 * 0.304570 / math.sqrt(math.log(2)), rel=1e-3)  # erf(0.304570) = 1/3
    assert tolerated_gradient(2.0, honest=7, liars=0) == 0


def long_run(eigenvalues: list[float], noise: float, what: Any) -> np.ndarray:
    """Means of what(λ, x) over 2,000 steps of length 1, after 1,000 others, of 100 runs."""
    rng, values = np.random.default_rng(1), np.array(eigenvalues)
    x, total = rng.standard_normal((100, values.size)) * math.sqrt(values.size), np.zeros(100)
    for step in range(3000):
        z = rng.standard_normal(x.shape)
        x = x - np.where((values * x * z).sum(1) + noise * rng.standard_normal(100) >= 0, 1, -1)[:, None] * z
        total += (step >= 1000) * what(values, x) / 2000
    return total


@pytest.mark.parametrize(
    ("eigenvalues", "noise"), [([1.0] * 20, 0.0), ([1.0] * 20, 200.0), ([2.0, 1, 1], 1.0), ([8.0, 1], 0.5)]
)
def test_the_floor_lies_between_its_bounds(eigenvalues: list[float], noise: float) -> None:
    low, high = sign_floor(Spectrum(tuple(eigenvalues), (1,) * len(eigenvalues)), 1.0, noise)
    loss = long_run(eigenvalues, noise, lambda values, x: 0.5 * (values * x**2).sum(1))
    error = 4 * loss.std() / math.sqrt(loss.size)
    assert low - error < loss.mean() < high + error
    if min(eigenvalues) == max(eigenvalues):  # there constants that are a little wrong are caught
        assert high / 1.3 + error < loss.mean() < 1.1 * low - error


def test_where_nothing_is_noisy_the_mean_norm_of_the_gradient_is_known_exactly() -> None:
    found = long_run([3.0, 1.0, 0.5], 0.0, lambda values, x: np.linalg.norm(values * x, axis=1))
    assert near(found, math.sqrt(math.pi / 8) * 4.5)
    assert not near(found, 1.02 * math.sqrt(math.pi / 8) * 4.5)


@pytest.mark.parametrize(("term", "factor"), [("start", 0.95), ("length", 0.97)])
def test_wrong_constants_of_the_first_two_terms_are_caught(term: str, factor: float) -> None:
    quadratic = Quadratic.of(Spectrum((4.0, 1.0), (1, 3)), D=300.0 if term == "start" else 1.0)
    setting = quadratic.setting(m=3, M=3, R=300, eta=0.2)
    assert simulated(feedsign(3, 1), quadratic, setting, 400).holds is not False
    assert simulated(planted(feedsign(3, 1), term, factor), quadratic, setting, 400).holds is False


def test_a_wrong_constant_of_the_votes_is_caught_where_liars_side_with_one_client() -> None:
    # One of ten wants the point 3, the others −1/3. Nine liars keep x away from 0, and it sets out from 1.
    problem = replace(divided(1, 9), quadratic=Quadratic.of(Spectrum.flat(1), D=0.5, sigma_G=1.0))
    setting = problem.setting(m=10, eta=1e-2, R=3000, distribution="gaussian")
    assert simulated(feedsign(10, 9), problem, setting, 4).holds
    assert simulated(planted(feedsign(10, 9), "votes", 0.35), problem, setting, 4).holds is False


def test_votes_lead_to_the_median_of_the_clients_not_to_their_mean() -> None:
    problem = divided(2, 3)
    setting = problem.setting(m=5, eta=1e-2, R=1000, distribution="gaussian")
    last = simulate(problem, setting, runs=20, seed=0, step=feedsign(5).step, left=lambda _, x: x[-1, :, 0])
    assert last.value == pytest.approx(-math.sqrt(2 / 3), abs=0.02)


@pytest.mark.parametrize(("d", "P"), [(1, 1), (3, 1), (30, 1), (5, 4)])
def test_signs_are_worth_their_efficiency(d: int, P: int) -> None:
    rng = np.random.default_rng(2)
    z = rng.standard_normal((200_000 // P, P, d))
    worth = [
        (weight[..., None] * z).mean((0, 1))[0] ** 2 / ((weight[..., None] * z).mean(1) ** 2).sum(-1).mean()
        for weight in (np.sign(z[..., 0]), z[..., 0])
    ]
    assert worth[0] / worth[1] == pytest.approx(efficiency(d, P), rel=0.02)
    assert (efficiency(d, P) > 1) == (d <= 3)
