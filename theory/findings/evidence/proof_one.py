"""The proof of Theorem 1 by computer algebra: what is printed in each display, and what follows from those before it.

Symbols stand for what a display is linear in: a for ‖∇f(x_r)‖ (or the gradient at the present point), delta for
‖x_{i,r}^k − x_r‖, after summation for √χ_r, and G for the norm of (1/MK) Σ_i Σ_k ∇f_i^μ(x_{i,r}^k).
"""
# given.toml places these checks beside statements: "line-N" is the one on line N of the paper's LaTeX source.

from collections.abc import Callable, Mapping
from typing import Any, Final

import sympy as sp

from theory.bounds import statement
from theory.findings.data import PRINTED as RAW
from theory.findings.finding import Evidence
from theory.notation.formula import parsed
from theory.notation.symbols import D, G, K, L, P, R, a, delta, eta, m, sigma, sigma_G

Terms = Mapping[str, sp.Expr]

PRINTED: Final = {key: {name: parsed(text) for name, text in terms.items()} for key, terms in RAW.items()}
"""The displays as printed, term by term."""


def printed(key: str) -> Terms:
    """The terms of a display, or of a statement of ``theory.bounds`` as printed."""
    if key in PRINTED:
        return PRINTED[key]
    return {name: term.doit() for name, term in statement(key, "stated").terms.items()}


def plus(*parts: Terms) -> Terms:
    """The sum, name by name."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum((part[name] for part in parts if name in part), sp.Integer(0)) for name in names}


def times(factor: Any, terms: Terms) -> Terms:
    """Every term times a factor."""
    return {name: factor * term for name, term in terms.items()}


def without(terms: Terms, *names: str) -> Terms:
    """All but these."""
    return {name: term for name, term in terms.items() if name not in names}


def summed(terms: Terms) -> Terms:
    """(1/M) Σ_i Σ_k of bounds on one local step: K times, ‖x_{i,r}^k − x_r‖² summing to χ_r."""
    return {name: sp.expand(K * term.subs(delta, delta / sp.sqrt(K))) for name, term in terms.items()}


# Each display's terms out of those before it.
DERIVED: Final[dict[str, Callable[[], Terms]]] = {
    "line-1046": lambda: printed("second-moment"),
    # the mean of P estimates; E‖∇f_i(x; ξ)‖² ≤ ‖∇f_i(x)‖² + σ²
    "line-1050": lambda: {
        **times(1 / P, printed("line-1046")),
        "noise": printed("line-1046")["gradient"].subs(a, sigma) / P,
    },
    "line-1056": lambda: {
        "gradient": 3 * a**2,
        "drift": 3 * L**2 * delta**2,
        "dissimilarity": 3 * sigma_G**2,
    },
    # the gradient of line-1050 bounded by line-1056
    "variance": lambda: plus(
        times(printed("line-1050")["gradient"] / a**2, printed("line-1056")), without(printed("line-1050"), "gradient")
    ),
    "line-1085": lambda: plus(
        times(2, printed("line-1056")), {"smoothing": 2 * printed("smoothed-gradient")["smoothing"] ** 2}
    ),
    "local-second-moment": lambda: plus(printed("variance"), printed("line-1085")),
    "line-1112": lambda: times(K**2 * eta**2 / 2, summed(printed("local-second-moment"))),
    "local-drift": lambda: without(times(2, printed("line-1112")), "drift"),
    # polarisation; ‖Σ‖² ≤ n Σ‖·‖²; ‖∇f_i^μ(x) − ∇f_i(y)‖² ≤ 2‖∇f_i^μ(x) − ∇f_i(x)‖² + 2L²‖x − y‖²
    "line-1152": lambda: {
        "gradient": -K * eta * a**2 / 2,
        "mean": -K * eta * G**2 / 2,
        **times(
            eta,
            summed({"smoothing": printed("smoothed-gradient")["smoothing"] ** 2, "drift": L**2 * delta**2}),
        ),
    },
    "eq.hh": lambda: times(L * eta**2 / m, summed(printed("variance"))),
    "eq.iffew.sio": lambda: {"smoothing": 2 * 3 * K**2 * printed("smoothed-gradient")["smoothing"] ** 2},
    "line-1191": lambda: {
        "drift": 2 * 9 * K * L**2 * delta**2,
        "dissimilarity": 9 * K**2 * sigma_G**2 / m,
    },
    "line-1204": lambda: plus(
        {"mean": L * eta**2 * K**2 * G**2},
        times(L * eta**2, plus(printed("eq.iffew.sio"), printed("line-1191"))),
    ),
    "line-1209": lambda: plus(printed("eq.hh"), printed("line-1204")),
    "eq.vb": lambda: plus(printed("line-1152"), printed("line-1209")),
    "eq.asd": lambda: without(printed("eq.vb"), "mean"),
    "eq.final": lambda: without(times(4 / (K * eta), printed("line-1235")), "gradient"),
    "theorem-1": lambda: plus({"start": 4 * D / (K * R * eta)}, printed("eq.final")),
}


def follows(key: str, *but: str) -> Evidence:
    """Evidence, by computer algebra, that the display's terms are those derived; without the terms ``but``."""
    left, right = without(printed(key), *but), without(DERIVED[key](), *but)
    wrong = {name for name in {*left, *right} if not _same(left.get(name, 0), right.get(name, 0))}
    says = f"{len(right)} terms derived and compared ({', '.join(right)})"
    return Evidence("algebra", not wrong, says + (f"; they differ in {', '.join(sorted(wrong))}" if wrong else ""))


def slips(key: str, name: str, factor: Any) -> Evidence:
    """Evidence, by computer algebra, that a term is printed ``factor`` times what is derived, which is not 1."""
    ratio = sp.simplify(printed(key)[name] / DERIVED[key]()[name])
    slipped = _same(ratio, factor) and not _same(ratio, 1)
    return Evidence("algebra", slipped, f"{name}: printed {printed(key)[name]}, {ratio} times what substitution gives")


def _same(left: Any, right: Any) -> bool:
    return bool(sp.expand(left - right) == 0)  # sums of products of powers
