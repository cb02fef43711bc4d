"""What was measured, as a list of readings: text, table, Markdown and JSON are functions of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from decomfl_lab.errors import Told
from decomfl_lab.storage.json_values import plain
from hessian.estimate import Jsonable, to_its_width
from hessian.parts import PARTS

_PLAIN = (1e-4, 1e6)  # the largest number of a reading that is written without a power of ten


@dataclass(frozen=True)
class Reading:
    """A number that was measured, with what is known of it."""

    name: str  # what it is called, e.g. "κ₊"
    value: float  # NaN where it was not measured, or is undefined
    low: float = math.nan  # the lower end of its interval; NaN where there is none
    high: float = math.nan  # the upper end
    words: str = ""  # what it is

    @property
    def shown(self) -> tuple[str, str]:
        """The value and its interval, to two digits of the half-width; a dash for what is not known."""
        if math.isnan(self.low):
            return ("–" if math.isnan(self.value) else f"{self.value:.4g}"), "–"
        ends = self.low, self.high
        if math.isnan(self.value):
            return "–", f"{self.low:.4g} .. {self.high:.4g}"
        if _PLAIN[0] <= max(abs(number) for number in (self.value, *ends) if math.isfinite(number)) < _PLAIN[1]:
            value, low, high = to_its_width(self.value, *ends)
        else:
            value, low, high = (f"{number:.5g}" for number in (self.value, *ends))
        return value, f"{low} .. {high}"

    def line(self, confidence: float) -> str:
        """The reading with its interval, in a line."""
        value, low, high = to_its_width(self.value, self.low, self.high)
        return f"{self.name} = {value}, {100 * confidence:g} % interval {low} .. {high}"


def reading_of(part: str, kappa: float, ends: Sequence[float]) -> Reading:
    """κ of a part, with the ends of its interval."""
    (name, trace, norm, *_), (low, high) = PARTS[part], ends
    words = f"{trace}/{norm}" + (", where negative eigenvalues cancel" if part == "signed" else "")
    return Reading(name, kappa, low, high, words)


def _cells(readings: Sequence[Reading]) -> list[tuple[str, ...]]:
    """The rows of a table, its heads first."""
    return [("", "value", "interval", ""), *((each.name, *each.shown, each.words) for each in readings)]


def table(readings: Sequence[Reading]) -> str:
    """A line a reading, below a line of heads."""
    rows = _cells(readings)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides: tuple[Callable[[str, int], str], ...] = (str.ljust, str.rjust, str.rjust, str.ljust)
    lines = ["  ".join(map(lambda side, *cell: side(*cell), sides, row, widths)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


class Reported(Told, Jsonable):
    """A result that is a list of readings: all that is printed of it is made of them."""

    in_json: ClassVar[Sequence[str]] = ()  # what its JSON has beside the fields and the readings

    def report(self) -> tuple[str, Sequence[Reading], str]:
        """What was measured of what at which cost; the readings, the most wanted first; and what there is to remark."""
        raise NotImplementedError

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What was measured."""
        return tuple(self.report()[1])

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """What was measured, a line for each reading, and what there is to remark."""
        title, readings, remark = self.report()
        return "\n".join(filter(None, [title, table(readings), remark]))

    def to_json(self) -> dict[str, Any]:
        """Every field, the readings and what ``in_json`` names, ready for ``json.dumps``; see ``Jsonable``."""
        more = {"readings": [asdict(each) for each in self.readings]}
        return {**super().to_json(), **plain(more | {name: getattr(self, name) for name in self.in_json})}

    def _repr_markdown_(self) -> str:
        """The same as Markdown, which a notebook shows."""
        title, readings, remark = self.report()
        heads, *rows = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in _cells(readings))
        return "\n".join([title, "", heads, "|---|--:|--:|---|", *rows, "", remark])
