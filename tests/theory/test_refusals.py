"""What theory refuses, by the name of what is wrong: problems, settings, statements, checks and bounds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import decomfl_lab as lab
import theory
from tests.cases import calls, refuses, rows_of
from tests.theory.bounds.successors.test_hiso import MIXED as SCALED
from tests.theory.bounds.successors.test_robust_means import APART, at
from tests.theory.bounds.test_bounds import BASE
from tests.theory.bounds.test_default_run import MIXED as MOVED
from tests.theory.checks.test_verdict import MIXED, simulated
from tests.theory.statements.test_own_statements import CONTRACTION, STRONG
from tests.theory.test_communication import config
from theory import Quadratic, Setting, Spectrum, Waves, check, expected, hiso, statement, whitened
from theory.bounds.successors.fzoo import normalised_step
from theory.bounds.successors.pool import pool_contraction, pool_left, pool_left_about
from theory.bounds.successors.signs import efficiency, sign_floor, vote_gain, wrong_vote
from theory.checks.rounds import rounds_by_bound
from theory.checks.simulation import federation, simulate
from theory.checks.stability import largest_step, load
from theory.findings.evidence.designs import design
from theory.notation.symbols import D

SETTING = MIXED.setting(eta=0.005, m=2, M=3, P=2, R=6)
DEFAULT = MOVED.setting(eta=1e-4, m=2, M=4, R=3)
CONFINED, FLAT = Spectrum.confined(3, 1), Quadratic.of(Spectrum.flat(2))
WAVES = Waves.random(waves=2, n=2, seed=0)
OTHER: Any = object()
BY_COST = config("decomfl", server_model=True, pull="auto")


def of(problem: Any, name: str, source: Any = "exact", **constants: Any) -> Any:
    """A statement put to a problem in a setting of it."""
    return check(statement(name), problem, problem.setting(**constants), source=source)


def single(**changes: Any) -> Any:
    return check(statement("theorem-1-single"), MIXED, replace(SETTING, **changes))


def counts(**wrong: int) -> Any:
    return theory.expected_numbers(**{"R": 5, "M": 3, "m": 2, "K": 1, "P": 1, **wrong})


def run_of_a_subspace(**changes: Any) -> Any:
    confined = Quadratic.of(Spectrum.confined(10, 2))
    given: Any = {"eta": 0.1, "M": 2, "mu": 0.1, "distribution": "gaussian", **changes}
    return federation(confined, confined.setting(**given), seed=0)


def contraction(**changes: Any) -> Any:
    return theory.check(CONTRACTION, STRONG, **changes)


FUNCTIONS = (
    Spectrum.two_level, Spectrum.flat, Spectrum.confined, Spectrum.power, Waves.random, design, statement, single,
    run_of_a_subspace, contraction, counts, theory.symbol, normalised_step, theory.feedsign, vote_gain, wrong_vote,
    efficiency, hiso,
)  # fmt: skip


@refuses(
    *calls(rows_of(__file__)["refused"], *FUNCTIONS),
    # Problems.
    (lambda: Spectrum((1.0,), (1, 2)), "^counts must"),
    (lambda: Spectrum((1.0, -1.0), (1, 2)), "^values must"),
    (lambda: Spectrum((0.0,), (3,)), "^values must"),
    (lambda: Spectrum((1.0,), (0,)), "^counts must"),
    (lambda: Spectrum.power(5, 1.0, groups=1), "^groups must"),
    (lambda: Quadratic.of(CONFINED, start=(0.0, 1.0)), "^start must"),
    (lambda: Quadratic.of(CONFINED, start=(1.0,)), "^start must"),
    (lambda: Quadratic.of(CONFINED, start=(-1.0, 2.0)), "^start must"),
    (lambda: Quadratic.of(CONFINED, start=(0.0, 0.0)), "^start must"),
    (lambda: Quadratic(CONFINED, (1.0, 0.0), (-1.0, 0.0), (0.0, 0.0)), "^noise must"),
    (lambda: expected(Quadratic.of(CONFINED), Quadratic.of(CONFINED).setting()), "^eta must be given"),
    (lambda: simulate(Quadratic.of(CONFINED), Quadratic.of(CONFINED).setting(), runs=2, seed=0), "^eta must be given"),
    (lambda: federation(Quadratic.of(CONFINED), Quadratic.of(CONFINED).setting(), seed=0), "^eta must be given"),
    (lambda: expected(Quadratic.of(CONFINED), Setting(d=4, L=1.0, eta=0.1)), "^d must be the problem's 3, got 4"),
    (lambda: Waves(*np.ones((3, 2)), np.ones((2, 1)), np.ones(3), np.ones(1), 1), "^theta must"),
    (lambda: Waves(*np.ones((3, 2)), np.ones((2, 1)), np.ones(2), np.ones(2), 1), "^start must"),
    (lambda: Waves.random(waves=2, n=1).mean_estimate(np.zeros(1), 0.0, "gaussian"), "^mu must"),
    # Settings that a statement is not for.
    (lambda: statement("theorem-2").bound(BASE), "^distribution must be one of sphere, rademacher, got 'gaussian'"),
    (lambda: statement("theorem-1-single").bound(replace(BASE, K=2)), "^K must be 1 in theorem-1-single, got 2"),
    (lambda: statement("theorem-2").bound(replace(BASE, kappa=None, distribution="sphere")), "^kappa must be given"),
    (lambda: statement("theorem-1").admits(replace(BASE, eta=None)), "^eta must be given"),
    (lambda: statement("smoothed-value").best_eta(BASE), "^eta must be bounded"),
    (lambda: statement("pl").bound(replace(DEFAULT, alpha=None)), "^alpha must be given"),
    (lambda: replace(DEFAULT, alpha=3.0), "^alpha must be above 0 and at most L = 2, got 3"),
    (lambda: replace(DEFAULT, beta=1.0), r"^beta must be in \[0, 1\), got 1"),
    # Claims beyond the conditions, or below the truth.
    (lambda: check(statement("pl"), MOVED, replace(DEFAULT, alpha=0.5)), r"^alpha must be at most its 0\.3, got 0\.5"),
    (lambda: check(statement("default-run"), MOVED, DEFAULT), "^central must be true in default-run, got False"),
    (lambda: check(statement("default-run"), MOVED, replace(DEFAULT, central=True, H3=None)), "^H3 must be given"),
    (lambda: of(WAVES, "central-bias", mu=0.1, central=True, H3=1e-3), "^H3 must be at least the problem's"),
    (lambda: of(WAVES, "pl", "simulation", eta=1e-6, alpha=0.01), "^alpha must be left out where the problem does not"),
    (lambda: of(WAVES, "pl", "simulation", eta=1e-6, Q=1.0), "^Q must be left out where the problem does not say"),
    # Checks.
    (lambda: check(statement("theorem-1"), MIXED, SETTING, source=OTHER), "^source must be one of"),
    (
        lambda: check(statement("variance"), MIXED, SETTING, source="simulation"),
        "^source must be exact for E_r‖G",
    ),
    (lambda: of(WAVES, "theorem-1", eta=1e-3), "^source must be simulation or run for .* on Waves"),
    (lambda: theory.check("theorem-1", STRONG), r"^statement must be a theory.Statement, as theory.statement\('theor"),
    (lambda: theory.tightness("theorem-1", STRONG), r"^statement must be a theory.Statement, as theory.statement\('th"),
    (lambda: theory.check(CONTRACTION, OTHER), "^problem must have setting, see theory.Problem, got 'object'"),
    (lambda: theory.tightness(statement("pl"), ("cubics",)), "^family must be one of quadratics, waves, .*'cubics'"),
    (lambda: load(CONFINED, -1.0, P=4), "h must be a finite number of at least 0, got -1"),
    (lambda: largest_step(CONFINED, P=4, beta=1.0), r"beta must be in \[0, 1\), got 1"),
    (lambda: rounds_by_bound(statement("theorem-1"), SETTING, 0.0), "epsilon must be a finite number above 0, got 0"),
    (
        lambda: rounds_by_bound(statement("corollary-1"), SETTING, 1.0),
        "have R in its term start alone, got 'corol",
    ),
    (lambda: theory.expected_traffic(lab.TrainConfig("fedavg"), 0), "d must be an integer of at least 1, got 0"),
    (lambda: theory.expected_traffic(BY_COST, 10), "pull must be never for a closed form, got 'auto'"),
    # Statements and symbols.
    (
        lambda: replace(CONTRACTION, without=("sigmaG",)),
        r"^without must be one of sigma, sigma_G, mu, got 'sigmaG' \(did you mean sigma_G\?\)",
    ),
    (lambda: replace(CONTRACTION, terms=[D]), r"^terms must map names to formulas, got \[D\]$"),
    # Later methods.
    (lambda: pool_left(Spectrum.flat(3), 0), "^S must be"),
    (lambda: pool_left_about(Spectrum.flat(3), 0), "^S must be"),
    (lambda: pool_contraction(np.ones((2, 3)), 0.1), r"^gram must be a square matrix, got \(2, 3\)"),
    (lambda: pool_contraction(np.eye(2), -1.0), "^eta must be"),
    (
        lambda: simulated(theory.robust(lab.Mean(), 1), APART, at(10, 0.01, 20)),
        "omega must be a finite number, got inf",
    ),
    (lambda: simulated(theory.fzoo, FLAT, FLAT.setting(eta=0.1, P=2)), "P must be .* got 2"),
    (lambda: sign_floor(CONFINED, 1.0), "^spectrum must have eigenvalues above 0"),
    (
        lambda: simulated(theory.feedsign(3), FLAT, FLAT.setting(m=2, M=4, eta=0.1)),
        "^m must be M = 3: all honest clients take part, got 2",
    ),
    (
        lambda: check(hiso(0.9, 0.02), SCALED, SCALED.setting(eta=0.01, R=2), source="simulation", growth=1.0),
        "eta must be the 0.02 of the statement, got 0.01",
    ),
    (lambda: whitened(SCALED, np.ones(2)), "^s must be"),
    (lambda: whitened(SCALED, np.array([1.0, 0.0, 1.0])), "^s must be"),
    (lambda: whitened(SCALED, np.array([1.0, np.inf, 1.0])), "^s must be"),
)
def test_what_makes_no_sense_is_refused_by_name(attempt: Callable[[], Any]) -> None:
    attempt()
