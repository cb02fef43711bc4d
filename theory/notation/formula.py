"""Formulas: sympy expressions in the lab's symbols that are evaluated, printed and weighed in units."""

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy as sp
from sympy.parsing.sympy_parser import parse_expr

from decomfl_lab.errors import InputError
from theory.notation.symbols import LETTERS, UNITS
from theory.notation.units import ONE, Unit, UnitError, require_one_unit


def formula(name: str, expression: Any) -> sp.Expr:
    """A formula as it is kept: an expression in known symbols whose numbers are exact.

    Args:
        name: What an error calls it.
        expression: A sympy expression or a number; a float is taken for the simplest fraction that rounds to it, so
            that ``1/3`` is a third.

    Raises:
        InputError: If it is neither, or has a symbol that is neither in ``theory.symbols`` nor of ``theory.symbol``.
    """
    try:
        kept = sp.sympify(expression, strict=True)  # strict: text is refused and never evaluated
    except sp.SympifyError:
        kept = None
    if not isinstance(kept, sp.Expr):
        raise InputError(f"{name} must be an expression in the symbols of theory.notation.symbols, got {expression!r}")
    if unknown := sorted(map(str, kept.free_symbols - UNITS.keys())):
        known = ", ".join(map(str, UNITS))
        raise InputError(f"{name} must use theory.symbols ({known}) or theory.symbol, got another {unknown[0]}")
    exact = {number: sp.Rational(Fraction(float(number)).limit_denominator(10**6)) for number in kept.atoms(sp.Float)}
    return kept.xreplace({number: each for number, each in exact.items() if float(each) == float(number)})


def parsed(text: str, *, evaluate: bool = True, **others: Any) -> sp.Expr:
    """A formula of a table, in the symbols of ``theory.notation.symbols`` and in others by their names."""
    symbols = {str(symbol): symbol for symbol in UNITS}
    return parse_expr(text, local_dict={**symbols, **others}, evaluate=evaluate)


@lru_cache(maxsize=4096)
def names_in(expression: sp.Expr) -> tuple[str, ...]:
    """The names of its symbols, sorted."""
    return tuple(sorted(str(symbol) for symbol in expression.free_symbols))


@lru_cache(maxsize=4096)
def _compiled(expression: sp.Expr) -> Callable[..., float]:
    symbols = sorted(expression.free_symbols, key=str)
    compiled: Callable[..., float] = sp.lambdify(symbols, expression.doit(), modules="math")
    return compiled


def value_of(expression: sp.Expr, values: Mapping[str, float]) -> float:
    """Its value in float64; infinite where it overflows or divides by 0.

    Raises:
        InputError: If a symbol has no value, or the formula none that is real.
    """
    names = names_in(expression)
    missing = [name for name in names if values.get(name) is None]
    if missing:
        raise InputError(f"{missing[0]} must be given for {written(expression)}, got None")
    try:
        return float(_compiled(expression)(*(float(values[name]) for name in names)))
    except (OverflowError, ZeroDivisionError):
        return math.inf
    except (TypeError, ValueError) as error:  # a root or power of a number below 0
        at = ", ".join(f"{name} = {values[name]:g}" for name in names)
        raise InputError(f"{written(expression)} must be a real number, got {at}") from error


@lru_cache(maxsize=4096)
def unit_of(expression: sp.Expr) -> Unit:
    """The unit of an expression in the symbols of ``theory.notation.symbols``.

    Raises:
        UnitError: If terms of different units are added, or exp, (·)^R and the like are taken of a number with a unit.
    """
    if expression.is_Symbol:
        return UNITS[expression]
    if expression.is_number:
        return ONE
    if isinstance(expression, sp.Mul):
        unit = ONE
        for factor in expression.args:
            unit = unit * unit_of(factor)
        return unit
    if isinstance(expression, sp.Pow):
        base, exponent = expression.args
        if exponent.is_Rational:
            return unit_of(base) ** Fraction(int(exponent.p), int(exponent.q))
        if (unit_of(base), unit_of(exponent)) != (ONE, ONE):
            raise UnitError(f"exponents of what has a unit must be numbers, others without unit, got {expression}")
        return ONE
    units = {str(term): unit_of(term) for term in expression.args}
    if isinstance(expression, sp.Add | sp.Max | sp.Min):
        return require_one_unit(units)
    if any(unit != ONE for unit in units.values()):
        raise UnitError(f"{expression.func} must be taken of a number without unit, got {units}")
    return ONE


def written(expression: sp.Expr) -> str:
    """As it would be printed: ``16*L*(d + 4)*eta/(m*P)*sigma**2`` is 16L(d + 4)η/(mP)·σ².

    What is built under ``sympy.evaluate(False)`` keeps the order in which it is written; sympy sorts the rest.
    """
    return _written(expression, kept=expression != expression.doit())


def _written(expression: sp.Expr, kept: bool) -> str:
    """The text of ``expression``; ``kept`` says whether terms and factors stay in the order in which they stand."""
    if expression.is_Symbol:
        return LETTERS.get(str(expression), str(expression))
    if isinstance(expression, sp.Add):
        terms = [_written(term, kept) for term in _parts(expression, kept)]
        first, *others = terms if kept else sorted(terms, key=lambda text: text[0] == "−")  # 1 − x and not −x + 1
        return first + "".join(f" − {text[1:]}" if text[0] == "−" else f" + {text}" for text in others)
    if isinstance(expression, sp.Pow) and not _below(expression):
        base, power = expression.args
        if power == sp.S.Half:
            return f"√({_written(base, kept)})"
        raised = str(power).translate(str.maketrans("234", "²³⁴")) if power in (2, 3, 4) else f"^{_factor(power, kept)}"
        return _factor(base, kept) + raised
    if isinstance(expression, sp.Mul | sp.Pow) or (expression.is_Rational and not expression.is_Integer):
        # Factors side by side, with a dot between a denominator and what is not in it.
        text, apart = "", False
        for factor in _parts(expression, kept) if expression.is_Mul else (expression,):
            if _below(factor):
                base = factor.base if factor.exp == -1 else sp.Pow(factor.base, -factor.exp, evaluate=False)
                text += f"{'' if text.strip('−') else '1'}/{_factor(base, kept)}"
            elif factor in (1, -1):
                text = f"−{text}" if factor == -1 else text
            else:
                one = str(factor).replace("-", "−") if factor.is_Rational else _written(factor, kept)
                one = f"({one})" if factor.is_Add else one
                word = len(one) > 1 and one.isascii() and one.isalpha()  # which would run into what is beside it
                called = isinstance(factor, sp.Function | sp.Max | sp.Min)
                text += ("·" if (apart or word or called or one[0].isdecimal()) and text.strip("−") else "") + one
            apart = _below(factor) or (factor.is_Rational and not factor.is_Integer) or (factor.is_Symbol and word)
        return text if text.strip("−") else text + "1"
    if expression.args:
        return f"{expression.func.__name__.lower()}({', '.join(_written(each, kept) for each in expression.args)})"
    return str(expression).replace("-", "−")


def _parts(expression: sp.Expr, kept: bool) -> Iterator[sp.Expr]:
    """The terms of a sum or the factors of a product, in order; of a sorted product with one denominator, the last."""
    if kept:
        for part in expression.args:
            yield from _parts(part, kept) if isinstance(part, expression.func) else (part,)
    elif expression.is_Add:
        yield from expression.as_ordered_terms()
    else:
        over, under = sp.fraction(expression, exact=True)
        yield from over.as_ordered_factors()
        yield from () if under == 1 else (sp.Pow(under, -1, evaluate=False),)


def _below(factor: sp.Expr) -> bool:
    """Whether it stands in the denominator."""
    return isinstance(factor, sp.Pow) and bool(factor.exp.is_negative)


def _factor(expression: sp.Expr, kept: bool) -> str:
    """In brackets unless it is a single factor."""
    text = _written(expression, kept)
    several = isinstance(expression, sp.Add | sp.Mul) or _below(expression) or (expression.is_Rational and "/" in text)
    return f"({text})" if several else text
