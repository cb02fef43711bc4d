"""Formulas: evaluated, parsed exactly, and weighed in units."""

import math
from typing import Any

import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st
from sympy import Min, exp, sqrt

from decomfl_lab.errors import InputError
from theory import STATEMENTS, Setting, UnitError, unit_of, value_of
from theory.notation.formula import formula
from theory.notation.symbols import UNITS, D, G, K, L, P, R, d, eta, m, mu, sigma

POSITIVE = st.floats(0.1, 10.0)


@pytest.mark.parametrize(
    ("term", "unit"),
    [
        (4 * D / (K * R * eta), "F^2/X^2"),
        (16 * L * (d + 4) * eta / (m * P) * sigma**2, "F^2/X^2"),
        (4 * mu**2 * L**4 * d**3 * eta, "F^3/X^4"),
        (sqrt(D / L), "X"),
        (1 / (4 * L), "X^2/F"),
        (d * P + 1, "1"),
        (sigma * mu, "F"),
        (exp(-m * d * P / 16) * G, "F/X"),
    ],
)
def test_units(term: sp.Expr, unit: str) -> None:
    assert str(unit_of(term)) == unit


@pytest.mark.parametrize("term", [mu + L, Min(eta, mu), exp(L), L**d, sqrt(D) + D], ids=str)
def test_units_that_do_not_fit_are_refused(term: sp.Expr) -> None:
    with pytest.raises(UnitError):
        unit_of(term)


@given(POSITIVE, POSITIVE, POSITIVE)
def test_a_formula_s_value_is_that_of_python(x: float, y: float, z: float) -> None:
    found = value_of(3 * L * eta * sigma**2 / 2 + sqrt(L), {"L": x, "eta": y, "sigma": z})
    assert math.isclose(found, 1.5 * x * y * z**2 + math.sqrt(x), rel_tol=1e-12)


@pytest.mark.parametrize(
    "wrong", ["4*D/R", "__import__('os')", "1/2", None, [L], eta > L, sp.Symbol("L"), sp.Symbol("unknown") + 1]
)
def test_what_is_no_formula_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="^term must"):
        formula("term", wrong)


def test_overflow_and_division_by_zero_are_infinite() -> None:
    assert value_of(1 / mu, {"mu": 0.0}) == math.inf
    assert value_of(exp(d), {"d": 1e6}) == math.inf


def test_scaling_f_and_x_scales_a_formula_by_its_unit() -> None:
    """The unit is what it says: f → 3f, x → 2x multiplies the value by 3^f 2^x, for every term of every bound."""
    base = Setting(d=5, L=0.7, m=2, M=4, P=3, eta=0.03, mu=0.2, sigma=0.4, sigma_G=0.6, D=1.3, kappa=2.0, G=0.9).values
    base = {**base, "a": 0.8, "delta": 0.3, "H3": 0.6, "alpha": 0.2, "Q": 1.7}
    units = {str(symbol): unit for symbol, unit in UNITS.items()}
    scaled = {name: number * 3.0 ** float(units[name].f) * 2.0 ** float(units[name].x) for name, number in base.items()}
    seen = 0
    for each in STATEMENTS.values():
        for term in [*each.terms.values(), *each.eta.values()]:
            unit = unit_of(term) if "rate" not in each.terms or each.variant == "corrected" else None
            if unit is None:
                continue
            factor = 3.0 ** float(unit.f) * 2.0 ** float(unit.x)
            assert math.isclose(value_of(term, scaled), factor * value_of(term, base), rel_tol=1e-9, abs_tol=1e-300), (
                term
            )
            seen += 1
    assert seen > 60
