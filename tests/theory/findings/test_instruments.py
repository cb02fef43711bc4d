"""The instruments of the audit find what they are for, and nothing else."""

import math
from collections.abc import Mapping

import pytest
import sympy as sp

from theory.findings.instruments import (
    Axis,
    agree,
    at_most,
    beyond,
    breaks,
    differs,
    equal,
    everywhere,
    exceeds,
    keeps,
    one_unit,
    over,
    search,
    whole,
    within,
    wrong_unit,
)
from theory.notation.setting import Setting
from theory.notation.symbols import D, K, L, R, a, d, eta, mu, sigma

THEOREM_2 = {
    "start": 4 * D / (R * eta),
    "smoothing": mu**2 * L**2 * (d + 3) ** 3 / 2,
    "remainder": 4 * mu**2 * L**4 * d**3 * eta,
}


def test_units_that_agree_and_units_that_do_not() -> None:
    assert not one_unit(**THEOREM_2).holds
    assert one_unit(**{**THEOREM_2, "remainder": 4 * mu**2 * L**3 * d**3 * eta}).holds
    found = wrong_unit("remainder", **THEOREM_2)
    assert found.holds
    assert "F^3/X^4" in found.says
    assert not wrong_unit("start", **THEOREM_2).holds  # the others do not agree
    assert not wrong_unit("remainder", **{**THEOREM_2, "remainder": 4 * mu**2 * L**3 * d**3 * eta}).holds
    assert wrong_unit("sum", sum=mu + L, other=mu).holds


def test_algebra_sees_a_wrong_coefficient() -> None:
    assert equal(3 * (a**2 + sigma**2), 3 * a**2 + 3 * sigma**2, "a sum").holds
    assert not equal(3 * (a**2 + sigma**2), 3 * a**2 + 2 * sigma**2, "a sum").holds
    assert differs(K**2 / 2, K * (K + 1) / 2, "a product").holds
    assert not differs(K**2 / 2, K * K / 2, "a product").holds
    with sp.evaluate(False):
        square = K * K / K
    assert equal(square, K, "what is not evaluated yet").holds


@pytest.mark.parametrize(("constant", "holds"), [(1.0, True), (0.9, False)])
def test_search_finds_the_violating_region(constant: float, holds: bool) -> None:
    """x(2 − x) ≤ constant fails only near x = 1."""

    def ratio(at: Mapping[str, float]) -> float:
        return at["x"] * (2 - at["x"]) / constant

    worst = search(ratio, {"x": Axis(1e-3, 1e3)})
    assert within(worst).holds is holds
    assert beyond(worst).holds is not holds
    assert worst.at["x"] == pytest.approx(1.0, abs=0.05)
    assert str(worst.tried) in str(worst)


def test_search_skips_what_is_not_admissible_and_repeats_itself() -> None:
    def ratio(at: Mapping[str, float]) -> float:
        return at["n"] if at["n"] <= 7 else math.nan

    axes = {"n": Axis(1, 1000, whole=True)}
    worst = search(ratio, axes, seed=3)
    assert worst == search(ratio, axes, seed=3)
    assert worst.ratio == 7.0


def test_a_ratio_over_ranges_is_a_check_that_is_given_what_comes_before_them() -> None:
    @everywhere("a share")
    @over(effort=5, n=whole(1, 7))
    def share(of: int, *, n: int) -> float:
        assert isinstance(n, int)
        return n / of

    assert share(7).holds
    assert share(7).numbers == {"ratio": 1.0, "n": 7.0}
    assert not share(6).holds


def test_numbers_are_compared_up_to_rounding() -> None:
    assert at_most(1.0, 1.0, "equal").holds
    assert not at_most(1.001, 1.0, "more").holds
    assert exceeds(1.001, 1.0, "more").holds
    assert not exceeds(1.0, 1.0, "equal").holds
    assert agree(0.1 + 0.2, 0.3, "rounded").holds
    assert not agree(1.0, 1.001, "not").holds
    assert not at_most(math.nan, 1.0, "nan").holds
    assert not exceeds(math.nan, 1.0, "nan").holds
    assert exceeds(3.0, 2.0, "three").numbers == {"left": 3.0, "right": 2.0}


def test_a_bound_is_broken_or_kept_only_at_admissible_constants() -> None:
    here = Setting(d=1, L=1.0, P=1000, R=100, sigma=1.0, D=0.0, eta=0.1)
    assert breaks("theorem-1", 1.0, here, "planted").holds
    assert not breaks("theorem-1", 1e-6, here, "planted").holds
    assert keeps("theorem-1", 1e-6, here, "planted").holds
    assert not keeps("theorem-1", 100.0, here, "planted").holds
    outside = Setting(d=1, L=1.0, P=1000, R=100, sigma=1.0, D=0.0, eta=1.0)
    assert not breaks("theorem-1", 1.0, outside, "planted").holds
    assert not keeps("theorem-1", 1e-6, outside, "planted").holds
