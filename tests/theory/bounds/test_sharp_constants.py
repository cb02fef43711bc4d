"""The sharper bounds: constants by intervals, truth by closed forms and simulation, planted constants."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decomfl_lab.errors import InputError
from theory import Quadratic, Setting, Spectrum, expected, statement
from theory.bounds.intervals import needed
from theory.bounds.sharp_constants import SHARPENED, Sharpened
from theory.bounds.successors import ratios
from theory.bounds.threshold import printed_theorem_1

BY_VARIANT = pytest.mark.parametrize("of", SHARPENED, ids=lambda of: of.variant)


_once = cache(needed)


@BY_VARIANT
def test_every_constant_is_proved_and_one_of_a_percent_less_is_not(of: Sharpened) -> None:
    """What the proof needs over what is claimed."""
    shares = {name: least / float(of.constants[name]) for name, least in _once(of.young, of.limit).items()}
    assert all(0.99 < share <= 1 for share in shares.values()), shares


@BY_VARIANT
def test_a_wider_range_or_other_parameters_are_not_proved_by_the_same_constants(of: Sharpened) -> None:
    wider = needed(of.young, of.limit * 21 / 20, cells=200)
    other = needed(replace(of.young, alpha=2 * of.young.alpha), of.limit, cells=200)
    assert all(any(found[name] > of.constants[name] for name in found) for found in (wider, other))
    assert needed(of.young, 4 * of.limit, cells=50)["start"] == float("inf")


def _by_sums(of: Sharpened, K: int, q: float, share: float) -> dict[str, float]:
    """The constants at a point by the proof's own inequalities in K, q and h = ηL, sums over k as they stand there."""
    y: Any = type("Floats", (), {name: float(each) for name, each in vars(of.young).items()})
    h = share * float(of.limit) / (K + 2 * q)
    squares, steps = sum((k - 1) ** 2 for k in range(1, K + 1)), sum(k - 1 for k in range(1, K + 1))
    cross, cross_1 = 1 + 1 / y.beta + 1 / y.theta, 1 + 1 / y.beta_1 + 1 / y.theta_1
    b2 = (1 + y.nu + (1 + 1 / y.nu) / 4) / 2.25  # ‖b_i − ∇f_i‖² without a step, in units of μ²L²s₂
    most = max((sum(k - 1 for k in range(tau + 1, K + 1)) for tau in range(2, K + 1)), default=0)
    kept = 1 - h**2 * (cross_1 * (1 + y.nu) * most + (1 + y.theta_1) * (1 + y.s_1) * q * (1 + 1 / y.t_1) * (K - 1))
    chi = {  # χ/η² by what it is multiplied with
        "gradient": (1 + y.beta_1) * squares + (1 + y.theta_1) * (1 + y.s_1) * q * (1 + y.t_1) * steps,
        "noise": (1 + y.theta_1) * (1 + y.s_1) * (1 + q) * steps,
        "w": (1 + y.theta_1) * (1 + 1 / y.s_1) * steps,
        "s2": cross_1 * b2 * squares + (1 + y.theta_1) * (1 + 1 / y.s_1) * steps / 9,
    }
    of_chi = (1 + y.nu) / (4 * y.alpha * K) + h / 2 * (
        cross * (1 + y.nu) + (1 + y.theta) * (1 + y.s) * q * (1 + 1 / y.t) / K
    )
    drift = {name: of_chi * h**2 * each / kept for name, each in chi.items()}
    second = h / 2 * ((1 + y.beta) * K + (1 + y.theta) * (1 + y.s) * (1 + y.t) * q)
    left = 1 - y.alpha - second - drift["gradient"]
    w = h / 2 * (1 + y.theta) * (1 + 1 / y.s)
    found = {
        "start": 1 / left,
        "dissimilarity": second / (h * (K + 2 * q)) / left,
        "noise": (1 + y.theta) * (1 + y.s) / 2 / left,
        "bias": (b2 * (1 / (4 * y.alpha) + h / 2 * cross * K) + w / 9 + drift["s2"]) / left,
        "remainder": (w + drift["w"]) / h / left,
    }
    if K > 1:
        unit = h**2 * (K - 1) * left
        found["drift"] = max(drift["gradient"] / (K + 2 * q), drift["noise"] / (1 + q)) / unit
    return found


@BY_VARIANT
@given(K=st.integers(1, 60), log_q=st.floats(-3, 4), share=st.floats(0.01, 1))
def test_the_proofs_sums_over_local_steps_need_no_more(of: Sharpened, K: int, log_q: float, share: float) -> None:
    found = _by_sums(of, K, 10.0**log_q, share)
    assert {name: value for name, value in found.items() if value > _once(of.young, of.limit)[name]} == {}


@BY_VARIANT
def test_the_sums_come_close_to_what_is_proved_so_that_smaller_constants_would_be_seen(of: Sharpened) -> None:
    points = [_by_sums(of, K, q, 1.0) for K, q in ((1000, 1e-3), (1000, 400.0), (1000, 1e6), (2, 1e6), (1, 1e-9))]
    for name, least in _once(of.young, of.limit).items():
        assert max(each.get(name, 0.0) for each in points) > 0.93 * least, name


def test_the_page_of_ratios_has_a_row_for_every_setting() -> None:
    assert ratios.page().count("\n| ") == 20


def _noise_over_print(d: int, P: int, m: int, K: int, R: int) -> float:
    """Exact left side over the printed bound at its largest η: noise alone on f = ½‖x‖², from the optimum."""
    printed = statement("theorem-1", "stated")
    quadratic = Quadratic.of(Spectrum.flat(d), D=0.0, sigma=1.0)
    here = quadratic.setting(m=m, P=P, K=K, R=R)
    here = here.at(printed.step_sizes(here).largest)
    return expected(quadratic, here).average / sum(printed.bound(here))


def test_the_printed_theorem_1_is_true_up_to_144_directions_for_one_parameter_and_false_from_145() -> None:
    assert [printed_theorem_1(Setting(d=1, L=3.0, P=P)) for P in (1, 143, 144, 145, 10**6)] == [True] * 3 + [False] * 2
    assert _noise_over_print(1, 144, 1, 1, 10**5) < 1 < _noise_over_print(1, 145, 1, 1, 10**5)


@pytest.mark.parametrize(("m", "low", "high"), [(1, 28.23, 28.25), (1000, 30.9, 31.1)])
def test_the_threshold_in_directions_by_dimension(m: int, low: float, high: float) -> None:
    d = 10**6
    assert printed_theorem_1(Setting(d=d, L=1.0, m=m, P=int(low * (d + 4)))) is True
    assert printed_theorem_1(Setting(d=d, L=1.0, m=m, P=int(high * (d + 4)))) is False


@given(d=st.integers(1, 10**6), m=st.integers(1, 20), K=st.integers(1, 10), share=st.floats(0.01, 40))
@settings(max_examples=100)
def test_noise_alone_breaks_the_print_where_it_is_said_to_be_false(d: int, m: int, K: int, share: float) -> None:
    P = max(1, int(share * (d + 4)))
    answer = printed_theorem_1(Setting(d=d, L=1.0, m=m, P=P, K=K))
    noise = _noise_over_print(d, P, m, K, 10**5)
    assert (noise > 1) <= (answer is False) <= (noise > 0.98)
    assert K > 1 or answer is not None


def test_for_several_local_steps_the_print_is_open_between_what_is_proved_and_what_breaks_it() -> None:
    answers = [printed_theorem_1(Setting(d=100, L=1.0, m=1, P=int(share * 104), K=2)) for share in (1, 6, 20, 32)]
    assert answers == [True, True, None, False]
    with pytest.raises(InputError, match="^distribution must be gaussian, got 'sphere'"):
        printed_theorem_1(Setting(d=1, L=1.0, distribution="sphere"))
