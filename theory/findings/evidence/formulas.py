"""Evidence that is formulas alone, the rows of ``formulas.toml``: two sides that an instrument compares, or units.

A row names the statements in whose roles it speaks, and its instrument with both sides, in the symbols of
``theory.notation.symbols`` and in words for what stands elsewhere, as stated('theorem-1', 'noise'); ``what`` says what
the sides are. Where it has ``at``, these symbols are replaced on both sides; ``letters`` are further positive symbols.
``turned`` makes what the instrument finds speak the other way than it does elsewhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import sympy as sp
from scipy import stats

from theory.bounds import statement
from theory.communication import TABLE_1
from theory.findings.corrections import MENDED
from theory.findings.evidence.proof_one import printed
from theory.findings.evidence.smoothing import norm_moment
from theory.findings.finding import Evidence
from theory.findings.instruments import agree, at_most, differs, equal, exceeds, one_unit, unlike, wrong_unit
from theory.notation.formula import parsed
from theory.notation.setting import Setting, effective_factor, second_moment_factor
from theory.statements.statement import Variant

_EXACT: Final = {find.__name__: find for find in (differs, equal, unlike)}
_NUMBERS: Final = {find.__name__: find for find in (agree, at_most, exceeds)}


# Words of formulas.


def stated(name: str, term: str) -> sp.Expr:
    return statement(name, "stated").terms[term].doit()


def corrected(name: str, term: str) -> sp.Expr:
    return statement(name).terms[term].doit()


def condition(name: str, variant: Variant, term: str) -> sp.Expr:
    """What η is at most."""
    return statement(name, variant).eta[term].doit()


def mended(key: str, term: str = "") -> sp.Expr:
    return MENDED[key][term] if term else MENDED[key].right


def in_print(key: str, term: str) -> sp.Expr:
    return printed(key)[term]


def table_1(row: str, column: str) -> sp.Expr:
    return getattr(TABLE_1[row], column).doit()


def bound(name: str, variant: Variant, **constants: Any) -> float:
    """All of a statement at these constants."""
    return math.fsum(statement(name, variant).bound(_setting(constants)))


def largest_step(name: str, **constants: Any) -> float:
    """The largest η that the statement as printed allows."""
    return statement(name, "stated").step_sizes(_setting(constants)).largest


def best_step(name: str, **constants: Any) -> float:
    """The η at which the bound as printed is least."""
    return statement(name, "stated").best_eta(_setting(constants))


def _setting(constants: Mapping[str, Any]) -> Setting:
    """Of the constants as sympy reads them, the whole ones as int."""
    given: dict[str, Any] = {name: each if isinstance(each, str) else float(each) for name, each in constants.items()}
    return Setting(**given | {name: int(given[name]) for name in given if name in "dmMPKR"})


def chi2_tail(above: int, freedom: int) -> float:
    """Pr[χ²_n ≥ x]."""
    return float(stats.chi2.sf(int(above), int(freedom)))


def factor(distribution: str, d: int, P: int) -> float:
    """ρ."""
    return second_moment_factor(distribution, d=int(d), P=int(P))


def weighted_factor(distribution: str, d: int, P: int, kappa: float) -> float:
    """ρ_κ."""
    return effective_factor(distribution, d=int(d), P=int(P), kappa=float(kappa))


def normal_mean(polynomial: sp.Expr, z: sp.Symbol) -> sp.Expr:
    """E of a polynomial in a normal variable: E z^n = (n − 1)!! for even n, else 0."""
    terms = sp.Poly(sp.expand(polynomial), z).terms()
    return sum(coefficient * sp.factorial2(n - 1) for (n,), coefficient in terms if n % 2 == 0)


_WORDS: Final[dict[str, Any]] = {
    word.__name__: word
    for word in (
        *(stated, corrected, condition, mended, in_print, table_1),
        *(bound, largest_step, best_step, chi2_tail, factor, weighted_factor, norm_moment, normal_mean),
    )
}


def compared(
    what: str, at: Mapping[str, str] = {}, letters: str = "", *, turned: bool = False, **sides: tuple[str, str]
) -> Evidence:
    """What the instrument of that name finds of the two sides."""
    ((instrument, (left, right)),) = sides.items()
    symbols = {**_WORDS, **{name: sp.Symbol(name, positive=True) for name in letters.split()}}

    def value(text: str) -> sp.Expr:
        replaced = {parsed(name, **symbols): parsed(other, **symbols) for name, other in at.items()}
        return sp.sympify(parsed(text, **symbols)).subs(replaced, simultaneous=True)

    if instrument in _EXACT:
        evidence = _EXACT[instrument](value(left), value(right), what)
    else:
        evidence = _NUMBERS[instrument](float(value(left)), float(value(right)), what)
    return replace(evidence, against=evidence.against != turned)


def units(units: Mapping[str, str], odd: str = "") -> Evidence:
    """All formulas have one unit, or all but the odd one."""
    formulas = {name: parsed(text, **_WORDS) for name, text in units.items()}
    return wrong_unit(odd, **formulas) if odd else one_unit(**formulas)


def units_of_bound(statement_of: tuple[str, Variant], odd: str = "", terms: Sequence[str] = ()) -> Evidence:
    """The same of the terms of a statement of ``theory.bounds``, or of some of them."""
    all_terms = statement(*statement_of).terms
    some = {name: all_terms[name] for name in terms or all_terms}
    return wrong_unit(odd, **some) if odd else one_unit(**some)
