"""Worst cases: known ones are found, wrong constants are refuted by an instance that can be repeated."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import theory
from decomfl_lab.errors import InputError
from tests.cases import sampled
from tests.theory.checks.test_verdict import planted, sgd
from theory import Piecewise, Statement, statement, tightness
from theory.checks.worst_case import FAMILIES
from theory.notation import symbols as s

SINGLE = statement("theorem-1-single")


@pytest.mark.thorough
def test_the_sharp_four_sevenths_of_one_local_step_are_found() -> None:
    found = tightness(SINGLE, ("quadratics",), effort=5)
    assert found.holds
    assert found.worst.check.ratio == pytest.approx(4 / 7, rel=0.02)
    alone = {each.alone: each.check.ratio for each in found.instances}
    # What docs/theory.md says of how much of each term is needed.
    assert alone == pytest.approx({"D": 4 / 7, "sigma": 2 / 7, "sigma_G": 2 / 7, "mu": 0.28, "": 4 / 7}, rel=0.03)


@pytest.mark.parametrize(("name", "term", "factor"), sampled([
    ("theorem-1-single", "start", 0.56), ("theorem-1-single", "noise", 0.27), ("theorem-1", "dissimilarity", 0.063),
    ("theorem-2-gaussian", "noise", 0.27), ("variance", "noise", 0.98), ("local-drift", "noise", 0.4),
], 1))  # fmt: skip
def test_a_constant_that_is_planted_too_small_is_refuted(name: str, term: str, factor: float) -> None:
    found = tightness(planted(statement(name), term, factor), ("quadratics",), effort=3, first=True)
    assert found.holds is False
    assert found.worst.check.ratio > 1


@pytest.mark.parametrize("family", sampled(["waves", "piecewise"], 1))
def test_problems_without_closed_forms_are_searched_by_simulation(family: str) -> None:
    right = tightness(SINGLE, (family,), effort=2)
    assert right.holds
    assert 0.3 < right.worst.check.ratio < 1
    assert right.worst.check.stderr > 0
    wrong = tightness(planted(SINGLE, "start", 0.2), (family,), effort=2)
    assert wrong.holds is False


@pytest.mark.thorough
def test_a_class_is_no_less_than_its_parts_and_a_small_instance_no_more_than_the_search() -> None:
    found = tightness(planted(SINGLE, "start", 0.2), ("quadratics",), effort=1)
    *parts, whole = found.instances
    assert (whole.alone, whole.title) == ("", "quadratics")
    assert whole.ratio == max(each.ratio for each in found.instances) >= whole.check.ratio > 1
    assert max(each.ratio for each in parts) > 2


def test_the_printed_theorem_1_is_refuted_by_its_noise() -> None:
    found = tightness(statement("theorem-1", "stated"), ("quadratics",), effort=2, first=True)
    assert found.holds is False
    assert found.worst.alone == "sigma"
    assert 28 * (found.worst.setting.d + 4) < found.worst.setting.P


@pytest.mark.parametrize("family", sampled(FAMILIES, 1))
def test_three_lines_of_python_repeat_an_instance(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = tightness(planted(SINGLE, "start", 0.2), (family,), effort=2, first=True).worst
    exec(found.python("replace(theory.statement('theorem-1-single'), terms=TERMS)"), {
        "replace": lambda *_, **__: planted(SINGLE, "start", 0.2), "TERMS": {},
    })  # fmt: skip
    assert capsys.readouterr().out == f"{found.check}\n"
    assert "fails" in str(found.check)


@pytest.mark.thorough
def test_a_class_that_a_statement_does_not_reach_is_left_out_with_the_reason() -> None:
    nu = theory.symbol("nu", theory.F / theory.X**2)
    own = {"nu": lambda problem, _: problem.spectrum.lambda_min}
    mine = Statement("mine", terms={"start": 4 * s.D / (s.eta * s.R) + 0 * nu, "own": s.D * nu}, constants=own)
    found = tightness(replace(mine, eta={"descent": 1 / (s.L * s.rho)}), ("quadratics", "waves"), effort=1)
    assert found.left_out["waves"].startswith("nu must have a value on every problem, got none on Waves")
    with pytest.raises(InputError, match="^statement must have an instance in piecewise, got local-drift"):
        tightness(statement("local-drift"), ("piecewise",), effort=1)


@pytest.mark.thorough
def test_constants_that_a_statement_takes_for_zero_are_zero_in_every_instance() -> None:
    terms = {"start": 2 * s.D / (s.eta * s.R), "noise": s.L * s.eta * s.rho * s.sigma**2 / s.m}
    mine = Statement("mine", terms=terms, eta={"descent": 1 / (s.L * s.rho)}, single_step=True)
    assert tightness(mine, ("quadratics",), effort=1, first=True).worst.alone in ("sigma_G", "mu")
    alone = replace(mine, without=("sigma_G", "mu"))
    found = tightness(alone, ("quadratics", "piecewise"), effort=1)
    assert found.holds
    assert {(each.setting.sigma_G, each.setting.mu) for each in found.instances} == {(0.0, 0.0)}
    with pytest.raises(InputError, match="^sigma_G must be 0 in mine, got 1"):
        theory.check(alone, theory.quadratic(d=5, kappa=2, sigma_G=1.0))


@given(st.floats(-9, 9), st.floats(0.1, 3), st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 9))
def test_the_slope_of_a_piecewise_loss_is_its_derivative_and_keeps_its_curvature(
    at: float, width: float, fall: float, rest: float, L: float
) -> None:
    problem = Piecewise(at=at, width=width, fall=fall, rest=rest, L=L)
    x = np.linspace(-10, 10, 2001)[:, None]
    slope, steps = problem.gradient(x)[:, 0], np.diff(x[:, 0])
    rises = np.diff(problem.value(x))
    assert rises == pytest.approx(0.5 * (slope[1:] + slope[:-1]) * steps, abs=0.26 * L * 0.01**2)
    assert (abs(np.diff(slope)) <= L * steps * (1 + 1e-9)).all()
    assert (problem.value(x) >= problem.least).all()


@pytest.mark.parametrize(
    "wrong", [{"at": np.inf}, {"width": 0.0}, {"fall": 1.5}, {"rest": -1.0}, {"noise": -1.0}, {"M": 0}]
)
def test_an_impossible_piecewise_problem_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(wrong))} must"):
        Piecewise(**{"at": 1.0, **wrong})  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize(("factor", "holds"), [(2.0, True), (1.0, False)])
def test_a_step_of_ones_own_is_searched_in_short_runs_and_says_how_far_it_is(factor: float, holds: bool) -> None:
    terms = {"start": factor * s.D / (s.R * s.eta), "noise": s.L * s.eta * s.sigma**2 / s.m}
    own = {"eta": {"descent": 1 / s.L}, "step": sgd, "single_step": True, "without": ("sigma_G", "mu")}
    told: list[tuple[str, int, int, float]] = []
    mine = Statement("mine", terms=terms, **own)  # type: ignore[arg-type]
    found = tightness(mine, ("quadratics",), effort=2, first=True, watch=lambda *at: told.append(at))
    assert found.holds is holds
    assert found.worst.check.ratio == pytest.approx(2 / factor, rel=1e-6)
    first = [at for at in told if at[0] == told[0][0]]
    assert [done for _, done, _, _ in first] == list(range(1, len(first) + 1))
    assert len(first) == first[-1][2]
    assert found.worst.runs < 1000


def test_an_interval_that_decides_stops_a_simulated_search() -> None:
    told: list[tuple[int, int]] = []
    wrong = planted(SINGLE, "start", 0.5)
    found = tightness(wrong, ("piecewise",), effort=9, first=True, watch=lambda *at: told.append(at[1:3]))
    assert found.holds is False
    assert max(done for done, _ in told) < max(every for _, every in told)
