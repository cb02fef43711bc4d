"""Texts of the data and what their marks stand for: formulas that are evaluated, lines that run, numbers found.

A mark is ⟦writer words⟧. The writers of formulas are in ``FORMULAS``; numbers are of evidence, which is gathered when a
text is read, once for all texts; whoever has other numbers brings writers of their own.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import sympy as sp

from decomfl_lab.errors import require
from theory.bounds import statement
from theory.findings.corrections import MENDED
from theory.findings.data import LINES, PROGRAMS
from theory.findings.evidence.proof_one import PRINTED
from theory.findings.finding import Evidence, EvidenceCheck
from theory.notation.formula import written

Writer = Callable[[str], str]

MARK: Final = re.compile("⟦([a-z]+) ?([^⟧]*)⟧")
KNOWN: Final[dict[str, Evidence]] = {}
"""The evidence behind texts that were read, by the name of its check."""


def fill(text: str, writers: Mapping[str, Writer]) -> str:
    """The text with its marks written out; InputError if a mark has no writer, or names nothing that one knows."""

    def write(mark: re.Match[str]) -> str:
        require(mark[1] in writers, "mark", f"be one of {', '.join(writers)}", mark[0])
        return writers[mark[1]](mark[2])

    return MARK.sub(write, text)


def bounds_in(text: str) -> list[str]:
    """The names and variants of the bounds that a text of the data has written out."""
    return [what for writer, what in MARK.findall(text) if writer == "bound"]


def told(numbers: Mapping[str, float | None], whose: str, name: str, form: str = "") -> str:
    """A number by its name in a format of Python's; 1/… turns a ratio round, 10^ is the power of ten."""
    require(numbers.get(name) is not None, f"number of {whose}", f"be one of {', '.join(numbers)}", name)
    value = numbers[name]
    assert value is not None
    if form == "10^":
        return f"10{f'{value:.0e}'.partition('e')[2].lstrip('+0').translate(_SUPERSCRIPTS)}"
    return format(1 / value, form.removeprefix("1/")) if form.startswith("1/") else format(value, form)


def found(checks: Iterable[EvidenceCheck], what: str, text: str, on: str) -> str:
    """A number of evidence on something: ``CHECK | NUMBER | FORMAT``, of the first whose name begins with CHECK."""
    check, number, *form = map(str.strip, what.split("|"))
    fitting = [each for each in checks if each.name.startswith(check)]
    require(bool(fitting), f"check of {text}", f"be one on {on}", check)
    if fitting[0].name not in KNOWN:
        KNOWN[fitting[0].name] = fitting[0].gather()
    return told(KNOWN[fitting[0].name].numbers, check, number, *form)


def later(text: str, checks: Iterable[EvidenceCheck], on: str) -> Callable[[], str] | str:
    """The text, or what fills it when it is read, with numbers of these checks, where marks are in it."""
    writers = {**FORMULAS, "check": lambda what: found(checks, what, on, on)}
    return (lambda: fill(text, writers)) if MARK.search(text) else text


def _bound(what: str) -> str:
    name, variant = what.split()
    bound = statement(name, variant)  # type: ignore[arg-type]
    right = str(bound).removeprefix(f"{bound.title}: ")
    return f"{right}. Assumed: {bound.assumptions}." if variant != "stated" else right


def _sum(terms: Mapping[str, sp.Expr], names: Iterable[str]) -> str:
    return " + ".join(written(terms[name]) for name in list(names) or terms)


def _steps(what: str) -> str:
    name, variant = what.split()
    return ", ".join(f"η ≤ {written(each)}" for each in statement(name, variant).eta.values())  # type: ignore[arg-type]


def _printed(name: str) -> list[str]:
    return [label for label in PROGRAMS["listings"][name] if "printed" in LINES[label]]


def _line(label: str) -> str:
    """What of a line's code is printed otherwise, with the letters and signs of formulas."""
    code, printed = (LINES[label].get(key, "").strip().split("\n") for key in ("code", "printed"))
    text = "; ".join(line.strip() for line in code if line.strip() not in map(str.strip, printed))
    for pattern, sign in _SIGNS.items():
        text = re.sub(pattern, sign, text)
    return text


_SUPERSCRIPTS: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_SIGNS: Final = {
    r"range\((\w+), (\w+) \+ 1\)": r"\1 … \2", r"range\((.+?), r\)": r"\1 … r - 1",
    r"^(\w+) = Symbols\(.*?, .*?, (.*)\)$": r"room for \1 at \2",
    r"\beta\b": "η", r"\bdelta\b": "Δ", r", 0 \* start\)": ")", r" \* ": "·", r" - ": " − ", r"\bsum\(": "Σ(",
}  # fmt: skip
FORMULAS: Final[Mapping[str, Writer]] = {
    # A statement of ``theory.bounds``, by name and variant: with its conditions and assumptions; its right side alone,
    # or the terms named after it; its conditions on η.
    "bound": _bound,
    "terms": lambda what: _sum(statement(*what.split()[:2]).terms, what.split()[2:]),  # type: ignore[arg-type]
    "steps": _steps,
    # A step of a proof: the terms as printed; the mended display, or terms of it.
    "display": lambda what: _sum(PRINTED[what.split()[0]], what.split()[1:]),
    "mended": lambda key: str(MENDED[key]),
    "formula": lambda what: _sum(MENDED[what.split()[0]].terms, what.split()[1:]),
    # Of an algorithm: how many lines do not run as printed, and these lines mended; one line.
    "slips": lambda name: str(len(_printed(name))),
    "lines": lambda name: "; ".join(map(_line, _printed(name))),
    "line": _line,
}
"""What marks of formulas stand for."""
