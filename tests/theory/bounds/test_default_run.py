"""Central differences and momentum: closed forms against runs, bounds against both, wrong constants caught."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decomfl_lab.errors import InputError
from tests.cases import sampled
from tests.theory.checks.test_verdict import planted
from tests.theory.problems.test_quadratic import MIXED
from tests.theory.strategies import waves
from theory import Quadratic, Setting, Spectrum, Waves, check, expected, statement
from theory.notation.setting import DISTRIBUTIONS
from theory.problems.problem import Floats, Integers


def test_central_differences_have_no_error_on_quadratics_and_forward_ones_have() -> None:
    setting = MIXED.setting(eta=0.1, m=2, M=4, R=9, mu=3.0, beta=0.5)
    exact = expected(MIXED, replace(setting, mu=0.0)).average
    assert expected(MIXED, replace(setting, central=True)).average == exact
    assert expected(MIXED, setting).average > 1.1 * exact


@given(waves(), st.floats(-1.0, 1.0), st.sampled_from(DISTRIBUTIONS))
@settings(max_examples=30)
def test_central_differences_have_at_most_the_second_moment_of_forward_ones(w: Waves, log_mu: float, z: str) -> None:
    mu = 10.0**log_mu
    forward, central = (w.second_moment(w.start, mu, z, central=each) for each in (False, True))
    assert central <= forward * (1 + 1e-9) + 1e-13 * w.d * float(abs(w.a).sum() / mu) ** 2


@dataclass(frozen=True)
class Split:
    """f_0 = ½x² and f_1 = −x for x in R: clients whose Hessians differ, so that local steps miss the minimum x* = 1."""

    d: int = 1
    M: int = 2

    @property
    def start(self) -> Floats:
        """x*."""
        return np.ones(1)

    def sampled(self, x: Floats, clients: Integers, xi: Floats) -> Floats:
        """See ``Problem``."""
        found: Floats = np.where(clients == 0, 0.5 * x[..., 0] ** 2, -x[..., 0]) + 0 * xi
        return found

    def sampled_gradient(self, x: Floats, clients: Integers, xi: Floats) -> Floats:
        """See ``Problem``."""
        found: Floats = np.where((clients == 0)[..., None], x, -1.0) + 0 * xi[..., None]
        return found

    def gradient(self, x: Floats) -> Floats:
        """See ``Problem``."""
        return 0.5 * (x - 1.0)

    def setting(self, **run: Any) -> Setting:
        """See ``Problem``; σ_G of the points near x* through which a run goes."""
        return Setting(**{"d": 1, "M": 2, "L": 1.0, "D": 0.0, "sigma_G": 1.1, "kappa": 1.0, "H3": 0.0, **run})


@pytest.mark.parametrize("beta", sampled([0.0, 0.9], 1))
@pytest.mark.parametrize("name", sampled(["momentum-local", "default-run-local", "theorem-2-local"], 1))
def test_the_drift_of_clients_that_differ_is_within_its_term_which_cannot_be_left_out(name: str, beta: float) -> None:
    right = statement(name)
    setting = Split().setting(m=2, K=20, R=1000, beta=beta, distribution="sphere", central=True)
    setting = setting.at(right.step_sizes(setting).largest)
    assert check(right, Split(), setting, source="simulation", runs=2).holds
    few = planted(right, "drift", 0.0002)
    assert check(few, Split(), setting, source="simulation", runs=2).holds is False


def test_without_momentum_the_bound_is_that_of_theorem_1_but_for_its_smoothing() -> None:
    setting = Setting(d=50, L=2.0, m=3, M=9, P=4, R=100, eta=1e-3, sigma=0.5, sigma_G=0.3, D=2.0)
    with_momentum, landed = statement("momentum"), statement("theorem-1-single")
    assert with_momentum.bound(setting) == pytest.approx(landed.bound(setting))
    assert with_momentum.step_sizes(setting).largest == pytest.approx(landed.step_sizes(setting).largest)


@pytest.mark.parametrize(
    ("name", "spectrum", "run", "rel"),
    [
        ("theorem-2-local", Spectrum.two_level, {"K": 1, "beta": 0.9}, 0.02),
        ("theorem-2-local", Spectrum.two_level, {"K": 5, "beta": 0.9}, 0.02),
        ("pl-dimension-free", Spectrum.confined, {}, 1e-9),
    ],
)
def test_with_low_rank_neither_truth_nor_bound_depends_on_d(name: str, spectrum: Any, run: Any, rel: float) -> None:
    def both(d: int) -> tuple[float, float]:
        found = check(statement(name), Quadratic.of(spectrum(d, 10), sigma=1.0), m=1, M=4, P=5, R=500, **run)
        return found.measured, found.bound

    assert both(10**9) == pytest.approx(both(10**4), rel=rel)


@pytest.mark.parametrize(("name", "share"), [("momentum-local", 0.2), ("theorem-1", 0.1), ("default-run", 0.1)])
def test_the_best_mu_adds_its_share_and_no_more_of_whatever_order_smoothing_is(name: str, share: float) -> None:
    each = statement(name)
    here = Setting(d=100, L=1.0, H3=2.0, D=1.0, R=50, eta=1e-4, beta=0.9 * each.with_momentum, central=each.central)
    at = sum(each.bound(replace(here, mu=each.best_mu(here, share=share))))
    assert at == pytest.approx((1 + share) * sum(each.bound(replace(here, mu=0.0))))
    with pytest.raises(InputError, match="^share must"):
        each.best_mu(here, share=0.0)
