"""What is true instead of displays of the paper, as expressions: evidence evaluates them, texts are made of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import sympy as sp

from theory.findings.data import MENDED as RAW
from theory.notation.formula import parsed, value_of, written
from theory.notation.symbols import UNITS


@dataclass(frozen=True)
class Display:
    """A display: a left side in words, and the terms that it is at most, or equal to."""

    left: str
    terms: Mapping[str, sp.Expr]  # in the symbols of ``theory.notation.symbols``, in the order of the print
    relation: str = "≤"

    def __getitem__(self, name: str) -> sp.Expr:
        """One term, or its coefficient where it is of an object that has no symbol."""
        return self.terms[name].doit().subs(dict.fromkeys(self.terms[name].free_symbols - UNITS.keys(), 1))

    @property
    def right(self) -> sp.Expr:
        """The sum of its terms."""
        return sum((self[name] for name in self.terms), sp.Integer(0))

    def value(self, values: Mapping[str, float]) -> float:
        """The sum of its terms at these values of the symbols."""
        return math.fsum(value_of(self[name], values) for name in self.terms)

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {' + '.join(map(written, self.terms.values()))}".replace("+ −", "− ")


MENDED: Final[dict[str, Display]] = {}
"""Every mended display by its label, as ``data/mended.toml`` has it."""
for _key, _raw in RAW.items():
    _letters = {name: sp.Symbol(text, positive=True) for name, text in _raw.get("letters", {}).items()}
    _terms = {name: parsed(text, evaluate=False, **_letters) for name, text in _raw["terms"].items()}
    MENDED[_key] = Display(_raw["left"], _terms, _raw.get("relation", "≤"))
