"""Formulas: evaluated, parsed exactly, and weighed in units."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

from decomfl_lab.errors import InputError
from theory.bounds import STATEMENTS
from theory.formula import SYMBOLS, Formula, Unit, UnitError, require_one_unit
from theory.setting import Setting

POSITIVE = st.floats(0.1, 10.0)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("4*D/(K*R*eta)", "F^2/X^2"),
        ("16*L*(d + 4)*eta/(m*P)*sigma**2", "F^2/X^2"),
        ("4*mu**2*L**4*d**3*eta", "F^3/X^4"),
        ("sqrt(D/L)", "X"),
        ("1/(4*L)", "X^2/F"),
        ("d*P + 1", "1"),
        ("sigma*mu", "F"),
        ("exp(-m*d*P/16)*G", "F/X"),
    ],
)
def test_units(text: str, unit: str) -> None:
    assert str(Formula(text).unit) == unit


@pytest.mark.parametrize("text", ["mu + L", "Min(eta, mu)", "exp(L)", "L**d", "sqrt(D) + D"])
def test_units_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(UnitError):
        _ = Formula(text).unit


def test_the_error_lists_the_terms_with_their_units() -> None:
    with pytest.raises(UnitError, match=r"first \[F/X\^2\], second \[X\]"):
        require_one_unit({"first": Formula("L").unit, "second": Formula("mu").unit})


@given(st.fractions(-3, 3, max_denominator=4), st.fractions(-3, 3, max_denominator=4))
def test_units_multiply_as_numbers_do(f: Fraction, x: Fraction) -> None:
    unit = Unit(f, x)
    assert unit / unit == Unit()
    assert unit * unit == unit ** Fraction(2)


@given(POSITIVE, POSITIVE, POSITIVE)
def test_a_formula_s_value_is_that_of_python(L: float, eta: float, sigma: float) -> None:
    found = Formula("3/2*L*eta*sigma**2 + sqrt(L)")({"L": L, "eta": eta, "sigma": sigma})
    assert math.isclose(found, 1.5 * L * eta * sigma**2 + math.sqrt(L), rel_tol=1e-12)


def test_numbers_in_formulas_are_exact() -> None:
    assert Formula("1/3").expression == sp.Rational(1, 3)


@pytest.mark.parametrize("text", ["4*D/(", "Lambda*eta", "unknown + 1"])
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="formula must"):
        _ = Formula(text).expression


def test_a_missing_value_is_named() -> None:
    with pytest.raises(InputError, match="kappa must be given"):
        Formula("kappa*L")({"L": 1.0})


def test_overflow_and_division_by_zero_are_infinite() -> None:
    assert Formula("1/mu")({"mu": 0.0}) == math.inf
    assert Formula("exp(d)")({"d": 1e6}) == math.inf


def test_scaling_f_and_x_scales_a_formula_by_its_unit() -> None:
    """The unit is what it says: f → 3f, x → 2x multiplies the value by 3^f 2^x, for every term of every bound."""
    base = Setting(d=5, L=0.7, m=2, M=4, P=3, eta=0.03, mu=0.2, sigma=0.4, sigma_G=0.6, D=1.3, kappa=2.0, G=0.9).values
    base = {**base, "a": 0.8, "delta": 0.3}
    scaled = {
        name: value * 3.0 ** float(SYMBOLS[name].f) * 2.0 ** float(SYMBOLS[name].x) for name, value in base.items()
    }
    seen = 0
    for each in STATEMENTS.values():
        for formula in [*each.terms.values(), *each.eta.values()]:
            unit = formula.unit if "rate" not in each.terms or each.variant == "corrected" else None
            if unit is None:
                continue
            factor = 3.0 ** float(unit.f) * 2.0 ** float(unit.x)
            assert math.isclose(formula(scaled), factor * formula(base), rel_tol=1e-9, abs_tol=1e-300), formula.text
            seen += 1
    assert seen > 60
