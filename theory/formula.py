"""Formulas in the paper's symbols: one string that is evaluated, given to computer algebra, and weighed in units."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Final

import sympy as sp

from decomfl_lab.errors import InputError

__all__ = ["SYMBOLS", "Formula", "Unit", "UnitError", "require_one_unit", "unit_of"]


@dataclass(frozen=True)
class Unit:
    """A physical unit F^f X^x: F of the loss f, X of the parameters x. All else follows: [L] = F/X², [η] = X²/F."""

    f: Fraction = Fraction(0)
    x: Fraction = Fraction(0)

    def __mul__(self, other: Unit) -> Unit:
        return Unit(self.f + other.f, self.x + other.x)

    def __truediv__(self, other: Unit) -> Unit:
        return Unit(self.f - other.f, self.x - other.x)

    def __pow__(self, exponent: Fraction) -> Unit:
        return Unit(self.f * exponent, self.x * exponent)

    def __str__(self) -> str:
        over = [_power(name, e) for name, e in (("F", self.f), ("X", self.x)) if e > 0]
        under = [_power(name, -e) for name, e in (("F", self.f), ("X", self.x)) if e < 0]
        return (" ".join(over) or "1") + ("/" + " ".join(under) if under else "")


def _power(name: str, exponent: Fraction) -> str:
    return name if exponent == 1 else f"{name}^{exponent}"


ONE: Final = Unit()
_F, _X = Unit(f=Fraction(1)), Unit(x=Fraction(1))
_GRADIENT = _F / _X

# The paper's symbols (NOTATION.md) with their units, and what the corrected statements need besides.
SYMBOLS: Final[Mapping[str, Unit]] = {
    **dict.fromkeys(("d", "m", "M", "P", "K", "R", "kappa", "k", "r", "p", "n", "q"), ONE),
    "L": _F / _X ** Fraction(2),
    "eta": _X ** Fraction(2) / _F,
    "mu": _X,
    "D": _F,
    **dict.fromkeys(("sigma", "sigma_G", "G"), _GRADIENT),
    "a": _GRADIENT,  # ‖∇f(x_r)‖, or the norm of the gradient at the point of a lemma
    "delta": _X,  # ‖x_{i,r}^k − x_r‖, root mean square
    "phi": ONE,  # (M − m)/(M − 1): clients without replacement; 1 with
    "rho": ONE,  # E‖(1/P) Σ_p z_p z_pᵀ v‖² / ‖v‖²
    "rho_kappa": ONE,  # the same weighted by a Hessian of effective rank κ, in units of L
    "s2": ONE,  # ‖∇f^μ(x) − ∇f(x)‖² ≤ μ²L² s₂
    "s6": ONE,  # E‖z‖⁶
    "beta": ONE,  # what FedCom sends up, as a share of d scalars
    "epsilon": _GRADIENT ** Fraction(2),  # bound on an average of E‖∇f‖²
    "tail": ONE,  # Pr[χ²_{dP+4} ≥ 2dP]
}


_GREEK: Final[Mapping[str, str]] = {
    "eta": "η",
    "mu": "μ",
    "sigma": "σ",
    "sigma_G": "σ_G",
    "kappa": "κ",
    "delta": "δ",
    "phi": "φ",
    "rho": "ρ",
    "rho_kappa": "ρ_κ",
    "s2": "s₂",
    "s6": "s₆",
    "beta": "β",
    "epsilon": "ε",
    "sqrt": "√",
    "Min": "min",
    "Max": "max",
    "tail": "·tail",
}
_SUPERSCRIPTS: Final = str.maketrans("234", "²³⁴")
_DENOMINATOR: Final = re.compile(
    r"(/(?:\w+|\((?:[^()]|\([^()]*\))*\)))\*(?!\*)"
)  # and the product that goes on after it


class UnitError(InputError):
    """Terms of different units are added or compared, or a function is taken of a number with a unit."""


@lru_cache(maxsize=4096)
def _parse(text: str) -> sp.Expr:
    symbols: dict[str, Any] = {name: sp.Symbol(name, positive=True) for name in SYMBOLS}
    try:
        expression = sp.sympify(text, locals=symbols, rational=True)
    except (sp.SympifyError, SyntaxError, TypeError) as error:
        raise InputError(f"formula must be an expression in the paper's symbols, got {text!r} ({error})") from None
    unknown = sorted(str(symbol) for symbol in expression.free_symbols if str(symbol) not in SYMBOLS)
    if unknown:
        raise InputError(f"formula must use known symbols ({', '.join(SYMBOLS)}), got {unknown[0]!r} in {text!r}")
    return expression


@dataclass(frozen=True)
class Formula:
    """An expression in the paper's symbols, as ``16*L*(d+4)*eta/(m*P)*sigma**2``.

    Args:
        text: In Python's operators, with sqrt, exp, Min and Max. Numbers are exact: 1/2 is a half.

    Raises:
        InputError: On first use, if it is not an expression or has unknown symbols.
    """

    text: str

    def __str__(self) -> str:
        """As it would be printed: ``16*L*(d + 4)*eta/(m*P)*sigma**2`` is 16L(d + 4)η/(mP)σ²."""
        text = _DENOMINATOR.sub(r"\1·", self.text)
        text = re.sub(r"\*\*([234])\b", lambda power: power[1].translate(_SUPERSCRIPTS), text)
        text = re.sub(r"[A-Za-z][A-Za-z0-9_]*", lambda name: _GREEK.get(name[0], name[0]), text)
        return re.sub(r"(?<!\*)\*(?!\*)", "", text).replace("-", "−")

    @property
    def expression(self) -> sp.Expr:
        """For computer algebra; every symbol is positive."""
        return _parse(self.text)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names that it uses."""
        return frozenset(str(symbol) for symbol in self.expression.free_symbols)

    @cached_property
    def _function(self) -> tuple[tuple[str, ...], Callable[..., float]]:
        names = tuple(sorted(self.symbols))
        return names, sp.lambdify([sp.Symbol(name, positive=True) for name in names], self.expression, modules="math")

    def __call__(self, values: Mapping[str, float]) -> float:
        """Its value in float64; infinite where it overflows or divides by 0.

        Raises:
            InputError: If a symbol has no value.
        """
        names, function = self._function
        missing = [name for name in names if values.get(name) is None]
        if missing:
            raise InputError(f"{missing[0]} must be given for {self.text}, got None")
        try:
            return float(function(*(float(values[name]) for name in names)))
        except (OverflowError, ZeroDivisionError):
            return math.inf

    @cached_property
    def unit(self) -> Unit:
        """Its unit.

        Raises:
            UnitError: If terms of different units are added in it.
        """
        return unit_of(self.expression)


def unit_of(expression: sp.Expr) -> Unit:
    """The unit of a sympy expression in the symbols of ``SYMBOLS``.

    Raises:
        UnitError: If terms of different units are added, or exp and the like are taken of a number with a unit.
    """
    if expression.is_Symbol:
        return SYMBOLS[str(expression)]
    if expression.is_number:
        return ONE
    if isinstance(expression, sp.Mul):
        unit = ONE
        for factor in expression.args:
            unit = unit * unit_of(factor)
        return unit
    if isinstance(expression, sp.Pow):
        base, exponent = expression.args
        if not exponent.is_Rational:
            raise UnitError(f"exponents must be numbers, got {expression}")
        return unit_of(base) ** Fraction(int(exponent.p), int(exponent.q))
    if isinstance(expression, sp.Add | sp.Max | sp.Min):
        return require_one_unit({str(term): unit_of(term) for term in expression.args})
    units = {str(term): unit_of(term) for term in expression.args}
    if any(unit != ONE for unit in units.values()):
        raise UnitError(f"{expression.func} must be taken of a number without unit, got {units}")
    return ONE


def require_one_unit(units: Mapping[str, Unit]) -> Unit:
    """The common unit of named terms.

    Raises:
        UnitError: That lists them, if there is none.
    """
    distinct = set(units.values())
    if len(distinct) > 1:
        listed = ", ".join(f"{name} [{unit}]" for name, unit in units.items())
        raise UnitError(f"terms that are added or compared must have one unit, got {listed}")
    return distinct.pop() if distinct else ONE
