"""The instruments of the audit: units, computer algebra, search over parameters; each finds, and is itself tested."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import numpy as np
import sympy as sp

from theory.bounds import statement
from theory.checks.search import Axis as Axis
from theory.checks.search import Worst as Worst
from theory.checks.search import search as search
from theory.findings.finding import Evidence
from theory.notation.formula import unit_of, written
from theory.notation.setting import Setting
from theory.notation.units import UnitError, require_one_unit
from theory.statements.statement import Statement, Variant

_ROUNDING = 1e-9  # the share by which numbers may be off

# Ranges of whole numbers, and ranges that are searched on a linear scale.
whole = partial(Axis, whole=True)
linear = partial(Axis, log=False)


def one_unit(**terms: sp.Expr) -> Evidence:
    """Evidence that all terms, named formulas in the symbols of ``theory.notation.symbols``, have one unit."""
    try:
        unit = require_one_unit({name: unit_of(term) for name, term in terms.items()})
    except UnitError as error:
        return Evidence("units", False, str(error), against=False)
    return Evidence("units", True, f"every term has the unit {unit}", against=False)


def wrong_unit(odd: str, **terms: sp.Expr) -> Evidence:
    """Evidence that the term named ``odd`` alone has another unit than the others, which agree."""
    others = one_unit(**{name: term for name, term in terms.items() if name != odd})
    if not others.holds:
        return Evidence("units", False, others.says, against=True)
    try:
        found = str(unit_of(terms[odd]))
    except UnitError as error:
        found = str(error)
    usual = unit_of(next(term for name, term in terms.items() if name != odd))
    says = f"{written(terms[odd])} has the unit {found}, the other terms {usual}"
    return Evidence("units", found != str(usual), says, against=True)


def equal(left: sp.Expr, right: sp.Expr, what: str) -> Evidence:
    """Evidence, by computer algebra, that two expressions are one."""
    difference = sp.factor(sp.simplify(left.doit() - right.doit()))
    # As one writes it in a line, the letters as sympy has them.
    shown = str(difference).replace("**", "^").replace("*", "·")
    return Evidence("algebra", difference == 0, f"{what}: difference {shown}", against=False)


def differs(left: sp.Expr, right: sp.Expr, what: str) -> Evidence:
    """Evidence, by computer algebra, that two expressions are not one: their difference is shown."""
    compared = equal(left, right, what)
    return Evidence("algebra", not compared.holds, compared.says, against=True)


def same(left: Any, right: Any, what: str) -> Evidence:
    """Exact numbers, or arrays of them, are equal."""
    unequal = np.argwhere(np.asarray(left) != np.asarray(right))
    shown = tuple(unequal[0]) if len(unequal) else (0,) * np.ndim(left)  # the indices of the entry that is told
    where = f" in entry {tuple(int(index) + 1 for index in shown)}" if shown else ""
    sign = "≠" if len(unequal) else "="
    says = f"{what}: {np.asarray(left)[shown]} {sign} {np.asarray(right)[shown]}{where}"
    return Evidence("algebra", not len(unequal), says, against=False)


def unlike(left: Any, right: Any, what: str) -> Evidence:
    """Exact numbers, or arrays of them, are not equal."""
    compared = same(left, right, what)
    return Evidence("counter-example", not compared.holds, compared.says, against=True)


def within(worst: Worst, what: str = "") -> Evidence:
    """Evidence that a search found no violation of ``what``."""
    says = f"{what}: {worst}" if what else str(worst)
    return Evidence("search", worst.ratio <= 1 + _ROUNDING, says, {"ratio": worst.ratio, **worst.at}, against=False)


def over(*, effort: int, **axes: Axis) -> Callable[[Callable[..., float]], Callable[..., Worst]]:
    """Make a ratio of two sides the search, in these ranges of its arguments, for where it is largest.

    What the search itself is given comes before these arguments, of which the whole ones are int.
    """

    def make(ratio: Callable[..., float]) -> Callable[..., Worst]:
        @wraps(ratio)
        def worst(*given: Any) -> Worst:
            def ratio_at(at: Mapping[str, float]) -> float:
                return ratio(*given, **{name: int(at[name]) if axes[name].whole else at[name] for name in axes})

            return search(ratio_at, axes, effort=effort)

        return worst

    return make


def everywhere(what: str) -> Callable[[Callable[..., Worst]], Callable[..., Evidence]]:
    """Make such a search the check that it finds no violation of ``what``, formatted with what the search is given."""

    def make(worst: Callable[..., Worst]) -> Callable[..., Evidence]:
        @wraps(worst)
        def check(*given: Any) -> Evidence:
            return within(worst(*given), what.format(*given))

        return check

    return make


def beyond(worst: Worst, what: str = "") -> Evidence:
    """Evidence that a search found a violation of ``what``."""
    says = f"{what}: {worst}" if what else str(worst)
    return Evidence("search", worst.ratio > 1 + _ROUNDING, says, {"ratio": worst.ratio, **worst.at}, against=True)


def at_most(left: float, right: float, what: str) -> Evidence:
    """Evidence that left ≤ right at concrete numbers, exact up to rounding."""
    holds = left <= right * (1 + _ROUNDING) + 1e-300
    return _judged(holds, f"{what}: {left:.6g} ≤ {right:.6g}", left, right)


def nearly(left: float, right: float, what: str, share: float = 1.0) -> Evidence:
    """Evidence that left ≤ right, and that left is this share of right: a bound a tenth smaller or larger fails."""
    holds = left <= right * (1 + _ROUNDING) and 0.9 * share < left / right < 1.1 * share
    says = f"{what}: {left:.6g} ≤ {right:.6g}, {left / right:.3g} of it"
    return _judged(holds, says, left, right)


def exceeds(left: float, right: float, what: str) -> Evidence:
    """Evidence that left > right at concrete numbers: left ≤ right is false."""
    holds = left > right * (1 + _ROUNDING)
    return _judged(holds, f"{what}: {left:.6g} > {right:.6g}", left, right, against=True)


def agree(left: float, right: float, what: str) -> Evidence:
    """Evidence that two numbers, each found in its own way, are one up to rounding."""
    holds = math.isclose(left, right, rel_tol=_ROUNDING, abs_tol=1e-12)
    return _judged(holds, f"{what}: {left:.6g} = {right:.6g}", left, right)


def _judged(holds: bool, says: str, left: float, right: float, *, against: bool = False) -> Evidence:
    """The evidence of two numbers that were compared."""
    return Evidence("counter-example", holds, says, {"left": left, "right": right}, against=against)


def breaks(
    name: str, left: float, setting: Setting, what: str, variant: Variant = "stated", **point: float
) -> Evidence:
    """Evidence that a bound of ``theory.bounds`` is exceeded by its exact left side, where its conditions are kept.

    ``what`` is the problem in words; ``point`` are symbols that belong to a point, as for ``Statement.bound``.
    """
    return _against(exceeds, left, statement(name, variant), setting, what, point)


def keeps(
    name: str, left: float, setting: Setting, what: str, variant: Variant = "corrected", **point: float
) -> Evidence:
    """Evidence that a bound is kept, as ``breaks`` is that it is exceeded."""
    return _against(at_most, left, statement(name, variant), setting, what, point)


def _against(
    judge: Callable[..., Evidence],
    left: float,
    each: Statement,
    setting: Setting,
    what: str,
    point: Mapping[str, float],
) -> Evidence:
    """What is judged of a left side beside a bound, which counts where the setting keeps the bound's conditions."""
    admitted = each.admits(setting) if each.eta or each.mu else True
    judged = judge(left, math.fsum(each.bound(setting, **point)), f"{what}: {each.name} as {each.variant}")
    return replace(judged, holds=judged.holds and admitted)
