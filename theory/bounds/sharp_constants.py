"""The theorems with smaller constants, proved in docs/theory.md; those of Theorem 1 in ``theory.bounds.intervals``."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import sympy as sp
from sympy import Rational

from decomfl_lab.storage.tables import table_beside
from theory.bounds.intervals import Young
from theory.bounds.paper import statements
from theory.statements.statement import Variant


@dataclass(frozen=True)
class Sharpened:
    """Constants of Theorem 1 and what proves them."""

    variant: Variant  # the variant that has them
    limit: Rational  # the largest ηL(K + 2(ρ − 1))
    # By the names of ``intervals.needed``, whose values for ``young`` must not be above them.
    constants: Mapping[str, Rational]
    young: Young  # the free parameters of the proof


_TABLE: Final = table_beside(__name__, "sharp_constants.toml")


def _sharpened(variant: Variant, young: str) -> Sharpened:
    constants = {name: Rational(text) for name, text in _TABLE["given"][variant]["values"].items()}
    return Sharpened(variant, constants.pop("limit"), constants, Young(*map(Fraction, young.split())))


SHARPENED: Final = tuple(_sharpened(variant, young) for variant, young in _TABLE.pop("young").items())

for _of in SHARPENED:  # what follows from the constants
    _TABLE["given"][_of.variant]["values"] |= _TABLE["numbers"]
del _TABLE["numbers"]

with sp.evaluate(False):
    SHARPER: Final = tuple(statements(_TABLE))
