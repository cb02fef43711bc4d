"""The bounds of later methods hold on random quadratics, at whatever steps they are for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decomfl_lab as lab
from tests.theory.bounds.successors.test_hiso import at_the_largest_step
from tests.theory.checks.test_verdict import simulated
from theory import Quadratic, Spectrum, feedsign, fzoo, hiso, robust

RULES = [(lab.Mean(), 0), (lab.Median(), 0), (lab.Median(), 2), (lab.TrimmedMean(2), 1)]


@pytest.mark.parametrize("method", ["feedsign", "fzoo", "robust", "hiso"])
@given(st.data(), st.tuples(*[st.floats(0, 2)] * 3), st.integers(1, 6), st.floats(0, 3), st.integers(1, 30))
@settings(max_examples=10)
def test_the_bound_holds_on_random_quadratics(
    method: str, data: st.DataObject, constants: tuple[float, ...], d: int, exponent: float, R: int
) -> None:
    D, sigma, sigma_G = constants
    quadratic = Quadratic.of(Spectrum.power(d, exponent), D=D, sigma=sigma, sigma_G=sigma_G)
    share = data.draw(st.floats(0.05, 1))
    any_step = 10 ** data.draw(st.floats(-3, 1))
    if method == "feedsign":
        honest, liars = data.draw(st.sampled_from([(1, 0), (2, 0), (5, 2), (3, 2)]))
        found = feedsign(honest, liars)
        run = {"m": honest, "M": honest, "eta": any_step}
    elif method == "fzoo":
        found = fzoo
        run = {"m": data.draw(st.integers(1, 4)), "M": 4, "P": 6, "eta": any_step}
    elif method == "robust":
        found = robust(*data.draw(st.sampled_from(RULES)))
        m = data.draw(st.integers(5, 9))
        run = {"m": m, "M": m, "P": data.draw(st.integers(1, 3))}
    else:
        nu = data.draw(st.floats(0.8, 1.0))
        found = hiso(nu, 1.0)
        run = {"m": 1, "M": 3, "P": 3, "mu": share, "central": data.draw(st.booleans())}
    distribution = data.draw(st.sampled_from(found.distributions))
    setting = quadratic.setting(R=R, distribution=distribution, **run)
    if method == "robust":
        setting = setting.at(share * found.step_sizes(setting).largest)
    elif method == "hiso":
        found, setting = at_the_largest_step(nu, quadratic, setting)
    assert simulated(found, quadratic, setting, runs=30).holds is not False
