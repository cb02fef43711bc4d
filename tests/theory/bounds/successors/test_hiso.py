"""HiSo: scaled directions are plain ones in other variables, the bound holds while s moves, and s learns little."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import sampled
from tests.theory.checks.test_verdict import planted
from theory import check, hiso, learned_scale, whitened
from theory.bounds.successors.hiso import hiso_step, speed
from theory.checks.simulation import simulate
from theory.checks.stability import largest_step
from theory.notation.setting import DISTRIBUTIONS
from theory.notation.symbols import symbol
from theory.problems.problem import Bowl, Floats
from theory.problems.quadratic import Quadratic, expected
from theory.problems.spectrum import Spectrum
from theory.statements.left_sides import LAST_LOSS

SPECTRUM = Spectrum((4.0, 1.0, 0.25), (1, 1, 1))
MIXED = Quadratic.of(SPECTRUM, sigma=0.5, sigma_G=0.5, start=(1, 1, 1), noise=(1, 1, 0), dissimilarity=(0, 1, 1))


def power(d: int, exponent: float, *, start: float = 0.0) -> Quadratic:
    """λ_j = j^(−exponent) one by one, x_j² = λ_j^(−start)."""
    values = tuple(float(j**-exponent) for j in range(1, d + 1))
    return Quadratic(Spectrum(values, (1,) * d), tuple(value**-start for value in values), (0.0,) * d, (0.0,) * d)


# What a scale that stays changes


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_fixed_scale_does_what_plain_directions_do_on_the_whitened_problem(distribution: str) -> None:
    run: Any = {"eta": 0.03, "m": 2, "M": 4, "P": 3, "R": 8, "mu": 0.1, "distribution": distribution}
    s = np.array([0.5, 1.0, 4.0])
    found = simulate(MIXED, MIXED.setting(**run), runs=4000, seed=0, left=LAST_LOSS.path, step=hiso_step(1.0, s))
    plain, scaled = (expected(each, each.setting(**run)).f[-1] for each in (MIXED, whitened(MIXED, s)))
    assert abs(found.value - scaled) < 4 * found.stderr
    assert abs(found.value - plain) > 10 * found.stderr


# What a scale that moves changes

GROWTH = symbol("growth")
EXPOSED = [  # the term, a wrong factor that is caught, the constants that are not 0, μ, P, ν, R
    ("start", 0.5, {"D": 1.0}, 0.0, 100, 0.998, 60),
    ("noise", 0.2, {"D": 0.0, "sigma": 1.0}, 0.0, 100, 0.998, 60),
    ("noise", 0.2, {"D": 0.0, "sigma_G": 1.0}, 0.0, 100, 0.998, 60),
    ("smoothing", 0.03, {"D": 0.0}, 1.0, 1, 0.998, 60),
    # A square of the growth that is lost: the gradients are far below h, so that h falls by ν a round and c is 6,000.
    ("noise", 1 / GROWTH, {"D": 0.0, "sigma": 1e-8}, 0.0, 100, 0.8, 40),
    ("noise", 1 / GROWTH, {"D": 0.0, "sigma_G": 1e-8}, 0.0, 100, 0.8, 40),
    ("smoothing", 1 / GROWTH, {"D": 0.0}, 1e-8, 1, 0.8, 40),
]


@pytest.mark.parametrize(("term", "factor", "constants", "mu", "P", "nu", "R"), sampled(EXPOSED, 4))
def test_the_bound_holds_while_the_scale_moves_and_wrong_constants_are_caught(
    term: str, factor: Any, constants: dict[str, float], mu: float, P: int, nu: float, R: int
) -> None:
    flat = Quadratic.of(Spectrum.flat(1), **constants)  # type: ignore[arg-type]
    found, setting = at_the_largest_step(nu, flat, flat.setting(m=1, M=4, P=P, R=R, mu=mu))
    right = check(found, flat, setting, source="simulation", runs=1000)
    assert right.holds, str(right)
    wrong = check(planted(found, term, factor), flat, setting, source="simulation", runs=1000)
    assert wrong.holds is False, str(wrong)


def at_the_largest_step(nu: float, quadratic: Quadratic, setting: Any) -> tuple[Any, Any]:
    """The bound and the setting at the largest η that it admits."""
    values = hiso(nu, 1.0).own(quadratic, setting)
    eta = hiso(nu, 1.0).step_sizes(setting, **values).largest
    return hiso(nu, eta), setting.at(eta)


# Where it ends: at the edge of stability


@pytest.mark.parametrize("exponent", sampled([0.0, 1.0], 1))
def test_without_noise_hiso_goes_to_the_edge_of_stability_and_its_loss_to_the_cube_of_the_step(exponent: float) -> None:
    quadratic, ends = power(30, exponent), []
    for eta in (0.01, 0.1):
        setting = quadratic.setting(eta=eta, P=5, R=1500)
        seen = [
            simulate(quadratic, setting, runs=12, seed=0, left=left, step=hiso_step(0.95)).value
            for left in (lambda f, x: np.log(f.value(x[-500:])).mean(0), _late_load(eta, 5, 0.95))
        ]
        assert 0.4 < seen[1] < 1.6
        ends.append(seen[0])
    assert (ends[1] - ends[0]) / math.log(10) == pytest.approx(3.0, abs=0.15)


def _late_load(eta: float, P: int, nu: float) -> Any:
    def left(problem: Bowl, x: Floats) -> Floats:
        h, loads = np.ones_like(x[0]), []
        for here, there in pairwise(x):
            loads.append(eta * (problem.eigenvalues / h).sum(-1) / (2 * P))
            h = nu * h + (1 - nu) * ((here - there) / eta) ** 2
        found: Floats = np.median(loads[-500:], axis=0)
        return found

    return left


def test_on_one_curvature_the_best_constant_step_is_faster_than_the_best_hiso() -> None:
    quadratic, P = power(100, 0.0), 10
    contraction = 1 - 1 / quadratic.setting(P=P).values["rho"]
    plain = math.log(0.01) / math.log(contraction)

    def rounds_to_a_hundredth(problem: Any, x: Floats) -> Floats:
        reached = problem.value(x) <= 0.01 * problem.value(x[0])
        return np.where(reached.any(axis=0), reached.argmax(axis=0), len(x)).astype(float)

    end = (0.01 * quadratic.gradient2 / P) ** (1 / 3)  # h at a hundredth of f
    steps = end * largest_step(quadratic.spectrum, P=P) * np.array([0.5, 0.7, 0.9, 1.1])
    moving = [
        simulate(quadratic, quadratic.setting(eta=eta, P=P, R=150), runs=16, seed=0, left=rounds_to_a_hundredth,
                 step=hiso_step(0.95)).value
        for eta in steps
    ]  # fmt: skip
    assert 1.1 < min(moving) / plain < 1.4  # 1.22 says docs/methods-theory.md


# What s learns


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
def test_a_run_under_one_gradient_settles_at_the_scale_that_the_fixed_point_says(distribution: str) -> None:
    g, P, nu = 1.0 / np.arange(1.0, 41.0), 8, 0.995
    rng, h, total = np.random.default_rng(0), np.ones(40), np.zeros(40)
    for r in range(12_000):
        z = rng.standard_normal((P, 40)) if distribution == "gaussian" else rng.choice([-1.0, 1.0], (P, 40))
        h = nu * h + (1 - nu) * (z.T @ (z @ (g / np.sqrt(h))) / P / np.sqrt(h)) ** 2
        total += h * (r >= 2000)
    s = learned_scale(g**2, P=P, distribution=distribution)
    assert (total / 10_000) ** -0.5 == pytest.approx(s, rel=0.03)
    assert s.max() / s.min() > 1.4


@given(
    st.lists(st.floats(0.0, 1e3), min_size=1, max_size=30).filter(lambda v: max(v) > 1e-3),
    st.integers(1, 40), st.sampled_from(DISTRIBUTIONS),
)  # fmt: skip
def test_no_two_coordinates_are_scaled_further_apart_than_the_directions_allow(
    squares: list[float], P: int, distribution: str
) -> None:
    d = len(squares)
    s = learned_scale(np.array(squares), P=P, distribution=distribution)
    signal = {"gaussian": P + 1, "rademacher": P - 1, "sphere": (P - 1) * (d + 2) / d + 2}[distribution]
    assert (s.max() / s.min()) ** 2 <= math.sqrt(1 + signal) * (1 + 1e-9)
    w = np.array(squares) * s**2
    noise = (d / (d + 2) if distribution == "sphere" else 1.0) / P
    assert (s**-4 / (w.sum() * noise) - 1).sum() == pytest.approx(signal, rel=1e-6, abs=1e-6)


@given(st.data(), st.floats(0.0, 2.0), st.floats(-2.0, 2.0), st.integers(1, 30))
@settings(max_examples=25)
def test_what_is_learned_changes_kappa_and_speed_by_a_root_of_the_directions_at_most(
    data: st.DataObject, exponent: float, start: float, P: int
) -> None:
    quadratic = power(data.draw(st.integers(2, 60)), exponent, start=start)
    s = learned_scale(np.array(quadratic.start) * quadratic.spectrum.eigenvalues**2, P=P)
    found, most = whitened(quadratic, s), math.sqrt(P + 2) * (1 + 1e-9)
    for ratio in (quadratic.spectrum.kappa / found.spectrum.kappa, speed(found, P=P) / speed(quadratic, P=P)):
        assert 1 / most <= ratio <= most
