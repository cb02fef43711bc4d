"""Evidence on units: every term of a sum, and both sides of a comparison, have one."""

from __future__ import annotations

from sympy import Expr
from sympy.parsing.sympy_parser import parse_expr

from theory.bounds import statement
from theory.findings.finding import Evidence
from theory.findings.instruments import one_unit, wrong_unit
from theory.notation.symbols import UNITS
from theory.statements.statement import Variant

__all__ = ["agree", "bound", "odd", "odd_in"]


_SYMBOLS = {str(symbol): symbol for symbol in UNITS}


def _formula(text: str) -> Expr:
    return parse_expr(text, local_dict=_SYMBOLS)


def agree(**formulas: str) -> Evidence:
    """All formulas, written in the symbols of ``theory.notation.symbols``, have one unit."""
    return one_unit(**{name: _formula(text) for name, text in formulas.items()})


def odd(name: str, **formulas: str) -> Evidence:
    """The formula of that name has another unit than the others, which agree."""
    return wrong_unit(name, **{each: _formula(text) for each, text in formulas.items()})


def bound(name: str, variant: Variant) -> Evidence:
    """All terms of a statement of ``theory.bounds`` have one unit."""
    return one_unit(**statement(name, variant).terms)


def odd_in(term: str, name: str, variant: Variant) -> Evidence:
    """One term of a statement of ``theory.bounds`` has another unit than the others."""
    return wrong_unit(term, **statement(name, variant).terms)
