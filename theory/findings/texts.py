"""Texts of the data in which bounds are written as the formulas that are tested, hypotheses included."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from theory.bounds import statement
from theory.findings.data import LINES, PROGRAMS
from theory.findings.evidence.proof_one import PRINTED
from theory.notation.formula import written

_MARK: Final = re.compile("⟦([a-z]+) ([^⟧]+)⟧")


def filled(text: str) -> str:
    """The text with what stands in ⟦…⟧ written out.

    ⟦bound theorem-1 stated⟧ is the statement of that name and variant in ``theory.bounds``, with its conditions and
    assumptions; ⟦terms …⟧ is its right side alone; ⟦display eq.final⟧ the terms of a printed step; ⟦slips Algorithm 1⟧
    the number of an algorithm's lines that do not run as printed, ⟦mended Algorithm 1⟧ these lines mended.
    """
    return _MARK.sub(lambda found: _WRITERS[found[1]](found[2]), text)


def bounds_in(text: str) -> list[str]:
    """The names and variants of the bounds that a text of the data has written out."""
    return [what for writer, what in _MARK.findall(text) if writer == "bound"]


def _bound(what: str) -> str:
    name, variant = what.split()
    each = statement(name, variant)  # type: ignore[arg-type]
    right = str(each).removeprefix(f"{each.title}: ")
    return f"{right}. Assumed: {each.assumptions}." if variant != "stated" else right


def _printed(name: str) -> list[str]:
    return [label for label in PROGRAMS["listings"][name] if "printed" in LINES[label]]


_WRITERS: Final[Mapping[str, Callable[[str], str]]] = {
    "bound": _bound,
    "terms": lambda what: " + ".join(map(written, statement(*what.split()).terms.values())),  # type: ignore[arg-type]
    "display": lambda key: " + ".join(map(written, PRINTED[key].values())),
    "slips": lambda name: str(len(_printed(name))),
    "mended": lambda name: "; ".join(LINES[label]["instead"] for label in _printed(name)),
}
