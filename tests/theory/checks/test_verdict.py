"""Checks: every corrected statement holds on random admissible instances, every planted wrong constant is caught."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import theory
from decomfl_lab.errors import InputError
from hessian.estimate import Estimate
from tests.cases import cases, refuses, rows_of, sampled
from tests.theory.strategies import quadratics, runs, waves
from theory.bounds import STATEMENTS, statement
from theory.checks.simulation import run
from theory.checks.verdict import check, decide
from theory.notation import symbols as s
from theory.notation.setting import DISTRIBUTIONS, Setting
from theory.notation.symbols import D, R
from theory.problems.problem import Bowl
from theory.problems.quadratic import Quadratic, expected
from theory.problems.spectrum import Spectrum
from theory.problems.waves import Waves
from theory.statements.algorithms import Losses, Step, decomfl
from theory.statements.statement import Statement, Variant

MINE = theory.Statement(
    "mine",
    terms={"start": 2 * D / (R * s.eta), "noise": 2 * s.L * s.eta * s.kappa * s.sigma**2 / s.m},
    eta={"descent": 1 / (8 * s.L * s.kappa)},
)

OURS = [key for key in STATEMENTS if key[1] in ("corrected", "sharper", "wider")]
AVERAGES = [
    pytest.param(key, marks=() if key[1] == "corrected" else pytest.mark.thorough, id="/".join(key))
    for key in OURS
    if STATEMENTS[key].left is theory.AVERAGE
]
ON_WAVES = [
    *((name, False) for name in ("smoothed-value", "smoothed-gradient", "second-moment", "variance")),
    *((name, True) for name in ("smoothed-gradient", "central-bias", "central-second-moment")),
    *(("local-second-moment", central) for central in (False, True)),
]
"""Lemmas on estimates, by forward or by central differences."""


@pytest.mark.parametrize("key", OURS, ids="/".join)
@cases(6, 150)
def test_every_statement_of_ours_holds_on_random_admissible_quadratics(key: tuple[str, Variant], cases: int) -> None:
    @given(st.data(), quadratics())
    @settings(max_examples=cases)
    def holds(data: st.DataObject, quadratic: Quadratic) -> None:
        found = check(statement(*key), quadratic, data.draw(runs(statement(*key), quadratic)))
        assert found.holds, str(found)

    holds()


@pytest.mark.parametrize(("name", "central"), ON_WAVES)
@cases(10, 120)
def test_every_corrected_lemma_on_estimates_holds_on_random_waves(name: str, central: bool, cases: int) -> None:
    @given(waves(), st.floats(-1.5, 1.0), st.integers(1, 100), st.sampled_from(statement(name).distributions))
    @settings(max_examples=cases)
    def holds(problem: Waves, log_mu: float, P: int, distribution: str) -> None:
        setting = problem.setting(mu=10.0**log_mu, P=P, distribution=distribution, central=central)
        found = check(statement(name), problem, setting)
        assert found.holds, str(found)

    holds()


def planted(found: Statement, term: str, factor: float) -> Statement:
    """The statement with a wrong constant."""
    return replace(found, terms={**found.terms, term: factor * found.terms[term]})


def simulated(found: Statement, problem: Any, setting: Setting, runs: int = 40) -> Any:
    """The check of a statement by so many simulated runs."""
    return check(found, problem, setting, source="simulation", runs=runs)


def alone(constants: str, d: int, **run: Any) -> tuple[Quadratic, Setting]:
    """A flat quadratic on which of D, σ, σ_G and μ only those that are named are not 0."""
    quadratic = Quadratic.of(
        Spectrum.flat(d), **{each: float(each in constants.split()) for each in ("D", "sigma", "sigma_G")}
    )
    return quadratic, quadratic.setting(m=1, M=4, mu=float(constants == "mu"), G=0.0, **run)


Plant = tuple[str, Variant, str, float, str, int, int, int, int, float, str]
PLANTS: list[Plant] = [tuple(row) for row in rows_of(__file__)["plants"]]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: "-".join(map(str, plant[:4])))
def test_planted_wrong_constants_are_caught(plant: Plant) -> None:
    name, variant, term, factor, constants, d, P, K, R, beta, z = plant
    right = statement(name, variant)
    quadratic, setting = alone(constants, d, P=P, K=K, R=R, beta=beta, distribution=z, central=right.central)
    setting = setting.at(right.step_sizes(setting).largest if right.eta else 1e-3)
    found = check(right, quadratic, setting)
    assert found.holds, str(found)
    wrong = check(planted(right, term, factor), quadratic, setting)
    assert wrong.holds is False, str(wrong)


def test_a_wrong_constant_of_every_statement_of_ours_is_planted() -> None:
    # On quadratics E g z is ∇f, so constants of these two cannot be seen; waves show them below.
    elsewhere = {("smoothed-gradient", "corrected"), ("central-bias", "corrected")}
    assert {(name, variant) for name, variant, *_ in PLANTS} | elsewhere == set(OURS)


def test_wrong_constants_of_lemmas_are_caught_on_waves() -> None:
    for name, term, factor, mu, a, theta in (
        ("smoothed-gradient", "smoothing", 0.2, 1.5, -1.0, 0.7),
        ("smoothed-value", "smoothing", 0.5, 0.1, -1.0, 0.7),
        ("second-moment", "gradient", 0.4, 0.05, -1.0, 0.7),
        # f = −sin x at 0 for Gaussian z: the bias is 1 − exp(−μ²/2), the bound μ²/2.
        ("central-bias", "smoothing", 0.99, 0.05, 1.0, np.pi / 2),
    ):
        steep = Waves(
            a=np.array([a]), b=np.zeros(1), s=np.zeros(1), w=np.ones((1, 1)), theta=np.array([theta]),
            start=np.zeros(1), d=1,
        )  # fmt: skip
        setting = steep.setting(mu=mu, central=statement(name).central)
        assert check(statement(name), steep, setting).holds
        assert check(planted(statement(name), term, factor), steep, setting).holds is False, name


MIXED = Quadratic.of(Spectrum((2.0, 1.0, 0.0), (1, 3, 1)), sigma=0.5, sigma_G=0.5, start=(1, 1, 0))


@pytest.mark.parametrize(("beta", "central"), sampled([(0.9, True), (0.0, False), (0.0, True), (0.9, False)], 1))
@pytest.mark.parametrize("distribution", sampled(DISTRIBUTIONS, 1))
def test_runs_of_the_labs_algorithm_have_the_mean_of_the_closed_form_and_keep_the_bound(
    distribution: str, beta: float, central: bool
) -> None:
    given: Any = {"distribution": distribution, "beta": beta, "central": central}
    setting = MIXED.setting(eta=0.1 * (1 - beta), m=2, M=3, P=3, K=2, R=6, mu=0.7, **given)
    found = run(MIXED, setting, runs=20, seed=5)
    assert abs(found.value - expected(MIXED, setting).average) < 4 * found.stderr
    single = MIXED.setting(eta=0.005, m=2, M=3, P=2, R=6, mu=0.1, distribution=distribution)
    of_run = check(statement("theorem-1-single"), MIXED, single, source="run", runs=10)
    assert of_run.holds
    assert of_run.stderr > 0
    assert of_run.source == "run"


@pytest.mark.parametrize("key", AVERAGES)
def test_theorems_hold_on_problems_that_are_not_quadratic(key: tuple[str, Variant]) -> None:
    found, problem = statement(*key), Waves.random(waves=3, n=2, d=50, M=4, seed=4)
    if found.one_hessian:
        with pytest.raises(InputError, match="kappa must be that of one H that dominates every"):
            check(found, problem, problem.setting(eta=1e-9), source="simulation")
        return
    for distribution in found.distributions:
        setting = problem.setting(
            m=2, P=2, R=15, K=1 if found.single_step else 3, mu=1e-2, distribution=distribution,
            beta=0.9 if found.with_momentum else 0.0, central=found.central,
        )  # fmt: skip
        setting = setting.at(found.step_sizes(setting).largest)
        assert check(found, problem, setting, source="simulation", runs=50).holds


@given(st.floats(0.1, 10), st.floats(0.01, 1), st.floats(0.01, 20), st.integers(2, 500))
@settings(max_examples=120)
def test_so_many_runs_as_are_asked_for_decide(value: float, stderr: float, bound: float, samples: int) -> None:
    finding, more = decide(Estimate(value, stderr, samples), bound, 0.99)
    if finding is None:
        assert more >= samples
        enough = Estimate(value, stderr * (samples / (1.01 * more)) ** 0.5, int(1.01 * more) + 1)
        assert decide(enough, bound, 0.99)[0] is (value <= bound) or more > 10**6 or value == bound
    else:
        assert finding is (value <= bound)
        assert more == 0


def test_the_step_size_that_a_refusal_names_is_that_of_the_statement() -> None:
    corollary, setting = statement("corollary-1"), MIXED.setting(m=2, M=3, P=2, R=6)
    with pytest.raises(InputError, match="^eta must be .* the largest admissible, for corollary-1") as refusal:
        check(corollary, MIXED, setting.at(1e-9))
    assert check(corollary, MIXED, setting.at(float(str(refusal.value).split()[3].rstrip(",")))).holds


def test_a_bound_of_ones_own_is_checked_at_the_constants_of_a_run() -> None:
    found = check(MINE, theory.quadratic(d=10**9, kappa=50, D=2.0, sigma=0.1), m=10, M=100, P=10, R=1000)
    assert found.holds
    assert found.bound == pytest.approx(2 * 2.0 * 400 / 1000 + 2 * 50 * 0.1**2 / 10 / 400)
    assert str(found).splitlines()[1] == "  2D/(Rη) + 2Lηκσ²/m at η = 0.0025: start 1.6, noise 0.00025"


@refuses(
    ({"terms": {"start": D / R}}, r"must have one unit, got start \[F\]"),
    ({"terms": {"start": 1 / s.eta}}, r"start \[F/X\^2\], \(1/R\) Σ_r E‖∇f\(x_r\)‖² \[F\^2/X\^2\]"),
    ({"eta": {"descent": 1 / D}}, r"η \[X\^2/F\], descent \[1/F\]"),
    ({"mu": {"small": s.eta}}, r"μ \[X\], small"),
    ({"terms": {"start": "2*D/(R*eta)"}}, r"^terms\['start'\] must be an expression"),
    ({"terms": {}}, "^terms must be one or more"),
    ({"terms": {"my start": D / (R * s.eta)}}, "^terms must be one or more"),
)
def test_a_bound_of_ones_own_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    replace(MINE, **wrong)


def sgd(losses: Losses, x: Any, v: Any, z: Any, setting: Setting) -> Any:
    return x - setting.eta * losses.gradient(x), v  # type: ignore[operator]


def _central(losses: Losses, x: Any, v: Any, z: Any, setting: Setting) -> Any:
    """MeZO's step along the first direction, whose square is 1 here."""
    apart = 1e-3 * z[:, :1]
    g = (losses(x + apart) - losses(x - apart)) / 2e-3
    return x - setting.eta * g[..., None] * z[:, :1], v  # type: ignore[operator]


def _tight(factor: float, step: Step = decomfl) -> Statement:
    """A bound that holds with equality where every eigenvalue is L and η = 1/L, times a factor."""
    terms = {"start": 2 * factor * D / (R * s.eta), "noise": s.L * s.eta * s.sigma**2 / s.m}
    own = {"step": step, "distributions": ("rademacher",), "without": ("sigma_G", "mu")}
    return Statement("tight", terms=terms, eta={"descent": 1 / s.L}, single_step=True, **own)  # type: ignore[arg-type]


@given(
    st.sampled_from([(sgd, "simulation"), (_central, "simulation"), (decomfl, "exact"), (decomfl, "simulation")]),
    *[st.floats(0.1, 10)] * 2, st.integers(1, 30), st.integers(1, 60), st.integers(1, 4), st.integers(2, 50),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_bound_that_is_attained_holds_and_one_lower_by_a_billionth_fails(
    way: tuple[Step, Any], D: float, L: float, n: int, R: int, m: int, runs: int
) -> None:
    step, source = way
    problem = Bowl(Quadratic.of(Spectrum(values=(L,), counts=(n if step is sgd else 1,)), D=D), m)
    holds = [
        check(_tight(factor, step), problem, source=source, runs=runs, m=m, R=R).holds for factor in (1.0, 1.0 - 1e-9)
    ]
    assert holds == [True, False]
