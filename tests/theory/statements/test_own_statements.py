"""Statements of one's own: left sides, symbols and algorithms that the paper does not have."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import theory
from decomfl_lab.errors import InputError
from tests.cases import sampled
from tests.theory.checks.test_verdict import MIXED
from theory import F, Left, Losses, Quadratic, Spectrum, UnitError, X
from theory.checks.simulation import simulate
from theory.notation import symbols as s

NU = theory.symbol("nu", F / X**2)
RUN = MIXED.setting(eta=0.02, m=2, M=3, P=2, K=2, R=6, mu=0.1)

# With f strongly convex and no noise: E f(x_{r+1}) ≤ f(x_r) − (η/2)‖∇f(x_r)‖² for η ≤ 1/(Lρ), and ‖∇f‖² ≥ 2ν(f − f*).
CONTRACTION = theory.Statement(
    "contraction",
    left=theory.LAST_LOSS,
    terms={"start": (1 - s.eta * NU) ** s.R * s.D, "noise": s.L * s.eta * s.rho * s.sigma**2 / (2 * NU * s.m)},
    eta={"descent": 1 / (s.L * s.rho)},
    single_step=True,
    constants={"nu": lambda problem, _: problem.spectrum.lambda_min},
)
STRONG = Quadratic.of(Spectrum((2.0, 0.5), (1, 3)), sigma=0.5, start=(1, 1))
LEFTS = [theory.AVERAGE, theory.AVERAGE_LOSS, theory.LAST_GRADIENT, theory.LAST_LOSS, theory.LAST_DISTANCE]


@pytest.mark.parametrize("left", sampled(LEFTS, 1), ids=str)
@pytest.mark.parametrize("change", [{}, {"central": True}, {"beta": 0.5}], ids=str)
def test_simulated_left_sides_have_the_mean_of_their_closed_forms(left: Left, change: dict[str, Any]) -> None:
    assert left.path is not None
    setting = replace(RUN, **change)
    found = simulate(MIXED, setting, runs=20_000, seed=1, left=left.path)
    assert abs(found.value - left.exact(MIXED, setting).value) < 4 * found.stderr
    assert found.stderr < 0.02 * found.value


def test_a_last_iterate_bound_with_a_power_and_an_own_symbol_holds_exactly() -> None:
    found = theory.check(CONTRACTION, STRONG, m=2, M=4, P=3, R=20)
    assert found.holds
    assert 0.1 < found.ratio < 1
    assert found.bounded_by.startswith("D(1 − ην)^R + Lηρσ²/(2mν) at η = ")


def test_a_left_side_of_ones_own_is_simulated() -> None:
    least = Left("E min_r ‖∇f(x_r)‖²", (F / X) ** 2, lambda f, x: (f.gradient(x[:-1]) ** 2).sum(-1).min(0))
    mine = theory.Statement("mine", left=least, terms={"start": 2 * s.D / (s.eta * s.R)})
    setting = MIXED.setting(eta=0.02, P=4, R=30)
    found = theory.check(mine, MIXED, setting, source="simulation", runs=200)
    assert found.holds
    small = replace(mine, terms={"start": s.D / (1000 * s.eta * s.R)})
    assert theory.check(small, MIXED, setting, source="simulation", runs=200).holds is False
    with pytest.raises(InputError, match="^source must be simulation or run for E min_r .* got 'exact'"):
        theory.check(mine, MIXED, setting)


def test_a_step_of_ones_own_is_simulated() -> None:
    def forward(losses: Losses, x: Any, v: Any, z: Any, setting: theory.Setting) -> Any:
        assert setting.eta is not None
        g = (losses(x[:, :, None] + setting.mu * z[:, None]) - losses(x)[..., None]) / setting.mu
        return x - setting.eta * np.einsum("rmp,rpn->rmn", g, z) / setting.P, v

    def halved(losses: Losses, x: Any, v: Any, z: Any, setting: theory.Setting) -> Any:
        assert setting.eta is not None
        return forward(losses, x, v, z, setting.at(setting.eta / 2))

    plain = simulate(MIXED, RUN, runs=50, seed=3)
    assert simulate(MIXED, RUN, runs=50, seed=3, step=forward).value == pytest.approx(plain.value)
    slow = simulate(MIXED, RUN, runs=50, seed=3, step=halved)
    assert slow.value == pytest.approx(simulate(MIXED, RUN.at(0.01), runs=50, seed=3).value)
    mine = replace(CONTRACTION, step=halved)
    assert theory.check(mine, STRONG, R=9, mu=0.1, source="simulation", runs=50).holds
    with pytest.raises(InputError, match="^source must be simulation for .*: a step of its own, got 'exact'"):
        theory.check(mine, STRONG, R=9, mu=0.1)


def test_units_of_powers_and_of_own_symbols_are_weighed() -> None:
    assert str(theory.unit_of((1 - s.eta * s.L) ** s.R * s.D)) == "F"
    for wrong in ((1 - s.eta) ** s.R, s.L**s.R, (1 - s.eta * s.L) ** s.D):
        with pytest.raises(UnitError):
            theory.unit_of(wrong)
    with pytest.raises(UnitError, match=r"noise \[F\], E‖x_R − x\*‖² \[X\^2\]"):
        replace(CONTRACTION, left=theory.LAST_DISTANCE)


def test_a_constant_that_the_problem_does_not_say_is_not_believed() -> None:
    problem, single = theory.Piecewise(at=1.0), theory.statement("theorem-1-single")
    setting = problem.setting(R=3, H3=2.0)
    with pytest.raises(InputError, match="H3 must be left out where the problem does not say it, got 2"):
        theory.check(single, problem, setting.at(single.step_sizes(setting).largest), source="simulation", runs=50)
