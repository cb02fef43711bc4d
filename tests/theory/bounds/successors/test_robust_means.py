"""What rules of aggregation cost: the bound holds, its constants are needed, and the lab's own server agrees."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest

import decomfl_lab as lab
from tests.cases import sampled
from tests.theory.checks.test_verdict import planted, simulated
from theory import Quadratic, Setting, Spectrum, robust, statement
from theory.checks.simulation import federation
from theory.problems.problem import Bowl, Floats

APART = Quadratic.of(Spectrum.flat(1), D=0.0, sigma_G=1.0)


@dataclass(frozen=True)
class Divided(Bowl):
    """APART with clients' gradients x − share, one share a client."""

    shares: tuple[float, ...] = ()

    @cached_property
    def tilts(self) -> Floats:
        return np.array(self.shares)[:, None]


def divided(few: int, others: int) -> Divided:
    """Two camps, as far apart as σ_G = 1 lets them be; f is the mean of all."""
    shares = (math.sqrt(others / few),) * few + (-math.sqrt(few / others),) * others
    return Divided(APART, few + others, shares)


def at(m: int, eta: float, R: int) -> Setting:
    """The setting in which all m honest clients take part."""
    return APART.setting(eta=eta, R=R, m=m, M=m, distribution="rademacher")


@pytest.mark.parametrize(
    ("rule", "liars", "few"), sampled([(lab.TrimmedMean(1), 1, 1), (lab.TrimmedMean(2), 1, 2), (lab.Median(), 1, 5)], 1)
)
def test_a_rule_costs_at_least_half_of_what_the_bound_says(rule: lab.Median, liars: int, few: int) -> None:
    problem, setting = divided(few, 11 - liars - few), at(11 - liars, 0.01, 2000)
    found = simulated(robust(rule, liars), problem, setting, 2)
    assert found.holds, str(found)
    assert found.ratio > 0.45
    wrong = simulated(planted(robust(rule, liars), "spread", 0.45), problem, setting, 2)
    assert wrong.holds is False, str(wrong)


def test_the_mean_without_liars_has_theorem_1s_bound_for_one_step() -> None:
    own, known = robust(lab.Mean()), statement("theorem-1-single")
    setting = Setting(d=7, L=2.0, m=3, M=3, P=4, R=50, eta=0.01, sigma=0.5, sigma_G=0.7, D=1.5)
    assert sum(own.bound(setting, omega=0.0)) == pytest.approx(sum(known.bound(setting)))
    assert own.step_sizes(setting).largest == known.step_sizes(setting).largest


def test_the_labs_server_goes_where_the_recursion_says() -> None:
    # d = 1 and z = ±1: x⁺ = x − η A(x − b_i), as the rules are odd. The last of 11 clients wants 10⁶ and never gets it.
    problem = Divided(APART, 11, (*[1.0] * 4, *[-1.0] * 6, 1e6))
    for rule, wanted in ((lab.Median(), -1.0), (lab.TrimmedMean(1), (4 - 5) / 9), (lab.Krum(1), -1.0)):
        running = federation(problem, replace(at(11, 0.1, 40), mu=0.5, central=True), seed=0)
        running.server.aggregation = rule
        for _ in range(40):
            running.advance()
        assert float(running.x[0]) == pytest.approx(wanted * (1 - 0.9**40), rel=1e-5)
