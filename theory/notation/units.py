"""Physical units F^f X^x: F of the loss f, X of the parameters x. All else follows: [L] = F/X², [η] = X²/F."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from decomfl_lab.errors import InputError


@dataclass(frozen=True)
class Unit:
    """The unit F^f X^x."""

    f: Fraction = Fraction(0)
    x: Fraction = Fraction(0)

    def __mul__(self, other: Unit) -> Unit:
        return Unit(self.f + other.f, self.x + other.x)

    def __truediv__(self, other: Unit) -> Unit:
        return Unit(self.f - other.f, self.x - other.x)

    def __pow__(self, exponent: Fraction | int) -> Unit:
        return Unit(self.f * exponent, self.x * exponent)

    def __str__(self) -> str:
        over: list[str] = []
        under: list[str] = []
        for name, exponent in (("F", self.f), ("X", self.x)):
            if exponent:
                power = abs(exponent)
                (over if exponent > 0 else under).append(name if power == 1 else f"{name}^{power}")
        return (" ".join(over) or "1") + ("/" + " ".join(under) if under else "")


ONE: Final = Unit()
"""The unit of a number."""
F: Final = Unit(f=Fraction(1))
"""The unit of the loss."""
X: Final = Unit(x=Fraction(1))
"""The unit of the parameters."""


class UnitError(InputError):
    """Terms of different units are added or compared, or a function is taken of a number with a unit."""


def require_one_unit(units: Mapping[str, Unit]) -> Unit:
    """The common unit of named terms; UnitError, which lists them, if there is none."""
    distinct = set(units.values())
    if len(distinct) > 1:
        listed = ", ".join(f"{name} [{unit}]" for name, unit in units.items())
        raise UnitError(f"terms that are added or compared must have one unit, got {listed}")
    return distinct.pop() if distinct else ONE
