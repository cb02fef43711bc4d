"""Claims that are lines of ``claims.toml``: which rows, what is measured of them, and the rule that decides.

A line has ``numbers``, one after the other, and ``decides``, conditions that all have to hold; ``claims.toml`` says
what their fields are. What stands at the claim, or at a group of numbers, is of each number below it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise, product
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy.stats import norm

from paper_repro.workflow.verdicts.claims import CLAIMS, UNKNOWN, UNTESTED, Claim, ClaimOutcome, Verdict, claim, limits
from paper_repro.workflow.verdicts.health import series_named
from paper_repro.workflow.verdicts.measures import (
    LOGS,
    TOLERANCE,
    accuracy_at,
    accuracy_up_to,
    ended,
    final_accuracy,
    highest_level,
    sampling_error,
    scalars_to_reach,
)

# --- numbers, and how sure they are -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """A number, and how sure it is: NaN without ``ends`` where its rows are missing, with them where there is none."""

    value: float
    error: float = 0.0  # its standard error
    ends: tuple[float, float] | None = None  # what it is at least and at most, where no error says it

    def interval(self, errors: float = 0.0) -> tuple[float, float]:
        """What it is at least and at most, by so many standard errors."""
        return self.ends or (self.value - errors * self.error, self.value + errors * self.error)

    def __sub__(self, other: Reading) -> Reading:
        """The difference: by errors that are independent, or by the ends where one of the two has these."""
        if self.ends or other.ends:
            (low, high), (least, most) = self.interval(TOLERANCE), other.interval(TOLERANCE)
            return Reading(self.value - other.value, ends=(low - most, high - least))
        return Reading(self.value - other.value, math.hypot(self.error, other.error))

    def __mul__(self, other: Reading) -> Reading:
        """The product with an exact number."""
        return Reading(self.value * other.value, self.error * other.value)

    def __truediv__(self, other: Reading) -> Reading:
        """The ratio to a number above 0, or at 0; that of errors where the other is exact."""
        if self.ends or other.ends:
            (low, high), (least, most) = self.interval(), other.interval()
            return Reading(_quotient(self.value, other.value), ends=(_quotient(low, most), _quotient(high, least)))
        return Reading(_quotient(self.value, other.value), _quotient(self.error, other.value) if self.error else 0.0)


_NONE: Final = Reading(math.nan, ends=(math.nan, math.nan))  # of rows that are there, and have no number


def _quotient(over: float, under: float) -> float:
    return over / under if under else math.inf * over if over else math.nan


# --- rules ------------------------------------------------------------------------------------------------------------

# What a number has to be to a bound, and by which of its ends (0: at least, 1: at most) it surely is so, or surely not.
_RULES: Final[Mapping[str, tuple[Callable[[float, float], bool], int, int]]] = {
    "above": (operator.gt, 0, 1),
    "at least": (operator.ge, 0, 1),
    "below": (operator.lt, 1, 0),
    "at most": (operator.le, 1, 0),
    # A number is so unless it stands out.
    "no less": (operator.ge, 1, 1),
    "no more": (operator.le, 0, 0),
}


def _verdict(signs: Sequence[bool | None], of: str = "any") -> Verdict:
    """The verdict of numbers that each keep their rule, break it, or (None) leave it open.

    "any": one that breaks it refutes, whatever others leave open. "surely": one that leaves it open does so, too.
    "open": one that breaks it only leaves it open. "clear": all have to be clear. "countings": these too, and where
    some keep it, it depends on how it is counted; "depends": it does where one does not.
    """
    if of == "open":
        signs = [sign or None for sign in signs]
    if (of in ("any", "surely") and False in signs) or (of == "surely" and None in signs):
        return "does not hold"
    if None in signs or not signs:
        return UNTESTED
    if all(signs):
        return "holds"
    return "depends on how it is counted" if of == "depends" or (of == "countings" and any(signs)) else "does not hold"


def _signs(rule: str, readings: Iterable[Reading], bound: float, errors: float = TOLERANCE) -> list[bool | None]:
    holds, surely, possibly = _RULES[rule]
    found: list[bool | None] = []
    for ends in (each.interval(errors) for each in readings):
        if any(map(math.isnan, (*ends, bound))):
            found.append(None)
        else:
            found.append(True if holds(ends[surely], bound) else None if holds(ends[possibly], bound) else False)
    return found


# --- measures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Number:
    """A number of a line, as a measure takes it."""

    line: _Line
    row: Mapping[str, Any]  # its fields
    names: Mapping[str, Any]  # what stands for the names in braces

    @property
    def frame(self) -> pd.DataFrame:
        """The frame of its part that it is about."""
        return self.line.frames[self.row.get("of", "")]

    @property
    def runs(self) -> list[pd.DataFrame]:
        """Its rows: a frame a series, which is empty for a pattern that none fits; all in one where it names none."""
        frame = self.frame
        for column, wanted in self.row.get("rows", {}).items():
            values = wanted if isinstance(wanted, list) else [wanted]
            frame = frame[frame[column].isin([self.text(value) for value in values])]
        if "series" not in self.row:
            return [frame]
        known = series_named(frame) if len(frame) else {}
        patterns = [self.row["series"]] if isinstance(self.row["series"], str) else self.row["series"]
        found = []
        for each in map(self.text, patterns):
            found += [own for name, own in known.items() if fnmatchcase(name, each)] or [frame[:0]]
        return found

    @property
    def rows(self) -> pd.DataFrame:
        """The same in one frame."""
        runs = self.runs
        return runs[0] if len(runs) == 1 else pd.concat(runs)

    def text(self, value: Any) -> Any:
        """A field with its names in it."""
        return value.format_map(self.names) if isinstance(value, str) else value

    def read(self, value: Any) -> Reading:
        """A number of the line, of its names or of the thresholds, by its name; or the number itself."""
        name = self.text(value)
        if not isinstance(name, str):
            return Reading(name)
        if name in self.line.known:
            return self.line.known[name]
        part, _, threshold = name.rpartition(".")
        known = vars(limits(part)) if part else {**self.line.thresholds, **self.names}
        return Reading(known[threshold])

    def read_all(self, given: Any) -> list[Reading]:
        """The numbers of the line that fit patterns, in the order of the patterns; an exact name has to be there."""
        found = []
        for each in map(self.text, given if isinstance(given, list) else [given]):
            pattern = isinstance(each, str) and "*" in each
            fitting = [own for name, own in self.line.known.items() if pattern and fnmatchcase(name, each)]
            found += fitting if pattern else [self.read(each)]
        return found

    def value(self, field: str) -> float:
        """The value of the number that a field names."""
        return self.read(self.row[field]).value


def _accuracy(of: Callable[[_Number], tuple[float, float]]) -> Callable[[_Number], Reading]:
    """An accuracy with its error over seeds, or with the bound that is the same for all curves."""

    def measure(own: _Number) -> Reading:
        value, error = of(own)
        return Reading(value, sampling_error(own.frame) if own.row.get("error") == "bound" else error)

    return measure


def _gain(own: _Number) -> Reading:
    """What the accuracy gains in the last quarter of a run: only where that is little, it has come to its end."""
    rows = own.rows
    last = rows["round"].max()
    return Reading(accuracy_at(rows, last)[0] - accuracy_at(rows, 0.75 * last)[0])


def _to_reach(own: _Number) -> Reading:
    """What has been spent when the mean accuracy first reaches a level; nobody knows of one under way that has not."""
    rows = own.rows
    if rows.empty:
        return Reading(math.nan)
    found = scalars_to_reach(rows, own.value("level"), own.text(own.row["column"]))
    never = math.inf if len(ended(rows)) else -math.inf
    return Reading(math.nan, ends=(never, math.inf)) if found is None else Reading(found)


_TAKEN: Final[Mapping[str, Callable[[pd.Series[Any]], Any]]] = {
    "first": lambda values: values.iloc[0],
    "last": lambda values: values.iloc[-1],
    "size": len,
}


def _column(own: _Number) -> Reading:
    """One value of a column, or of its share of another: the first, the largest, the mean, a quantile ..

    There is none of rows that are there without a number, and it is missing where there are no rows.
    """
    rows, take = own.rows, own.row["take"]
    if rows.empty:
        return Reading(0 if take in ("size", "sum", "count", "nunique") else math.nan)
    if "along" in own.row:
        rows = rows.sort_values(own.row["along"], kind="stable")
    if "at_last" in own.row:
        rows = rows[rows["round"] == rows["round"].max()]

    def taken(column: str) -> Any:
        values = rows[own.text(column)]
        if "per" in own.row:
            values = values / rows[own.text(own.row["per"])]
        if isinstance(take, float):
            return float(values.quantile(take))
        found = _TAKEN[take](values) if take in _TAKEN else values.agg(take)
        return found.item() if isinstance(found, np.generic) else found

    value, error, ends = taken(own.row["column"]), own.row.get("error"), own.row.get("ends")
    if math.isnan(value):
        return _NONE
    if "whole" in own.row:  # a file has whole numbers as fractions beside rows without
        value = int(value)
    if error == "bound":
        return Reading(value, sampling_error(own.frame))
    return Reading(value, taken(error) if error else 0.0, (taken(ends[0]), taken(ends[1])) if ends else None)


def _share(own: _Number) -> Reading:
    """The share of rows whose column lies between two numbers, or is equal to another column."""
    rows = own.rows
    values = rows[own.row["column"]]
    if "same" in own.row:
        return Reading(float((values == rows[own.row["same"]]).mean()))
    known = values.dropna()
    return Reading(float(known.between(own.value("from"), own.value("to")).mean()))


def _extreme(of: Callable[[Iterable[float]], float]) -> Callable[[_Number], Reading]:
    """The least or the most of some numbers, as far as they have a value; missing where one is."""

    def measure(own: _Number) -> Reading:
        found = own.read_all(own.row["among"])
        lows, highs = ([each.interval()[end] for each in found] for end in (0, 1))
        known = [each.value for each in found if not math.isnan(each.value)]
        if not lows or any(map(math.isnan, lows)):
            return Reading(math.nan)
        return Reading(of(known) if known else math.nan, ends=(of(lows), of(highs)))

    return measure


def _of_two(of: Callable[[Reading, Reading], Reading]) -> Callable[[_Number], Reading]:
    return lambda own: of(*own.read_all(own.row["among"]))


_MEASURES: Final[Mapping[str, Callable[[_Number], Reading]]] = {
    # of curves
    "at": _accuracy(lambda own: accuracy_at(own.rows, own.value("round"), own.row.get("along", "round"))),
    "up to": _accuracy(lambda own: accuracy_up_to(own.rows, own.value("round"))),
    "final": _accuracy(lambda own: final_accuracy(ended(own.rows))),
    "best": lambda own: Reading(float(own.rows.groupby("round").test_accuracy.mean().max())),
    "gain at the end": _gain,
    "to reach": _to_reach,
    "spent": lambda own: Reading(spent := float(own.rows[own.row["column"]].max()), ends=(spent, math.inf)),
    # the highest of the levels that every series reaches
    "level": lambda own: _NONE if (found := highest_level(own.runs)) is None else Reading(found),
    # the last round that all series have
    "common": lambda own: Reading(min((int(run["round"].max()) if len(run) else 0 for run in own.runs), default=0)),
    # how many of the series that are finished end at a round
    "over": lambda own: Reading(
        sum(len(run) > 0 and run["round"].max() == own.value("round") for run in map(ended, own.runs))
    ),
    # of columns
    "column": _column,
    "share": _share,
    # of numbers
    "value": lambda own: own.read(own.row["value"]),
    "error": lambda own: Reading(0 * own.value("value") + own.read(own.row["value"]).error),
    "difference": _of_two(operator.sub),
    "ratio": _of_two(operator.truediv),
    "least": _extreme(min),
    "most": _extreme(max),
    "between": _of_two(lambda low, high: Reading(math.nan, ends=(low.value, high.value))),
}


# What is done with a number once it is measured, and with another one, in the order of the fields.
_STEPS: Final = {"over": operator.truediv, "times": operator.mul, "less": operator.sub}
# Fields that name a number, and whether that has to have a value.
_THERE: Final = {"if": True, "unless": False}


# --- a line -----------------------------------------------------------------------------------------------------------


class _Line:
    """The line of a claim, with its numbers over the frames of its part."""

    def __init__(self, of: Claim, frames: Mapping[str, pd.DataFrame]) -> None:
        self.frames = frames
        self.thresholds = {**vars(limits()), **vars(limits(of.part))}
        self.known: dict[str, Reading] = {}
        self.told: dict[str, float | None] = {}
        self.names: dict[str, Any] = dict(of.line.get("given", {}))
        fields = {name: value for name, value in of.line.items() if name not in ("numbers", "decides", "given")}
        whole = self._evaluate(of.line["numbers"], fields, self.names)
        found = [self._condition(each, self.names) for each in of.line["decides"]] if whole else [UNTESTED]
        self.verdict: Verdict = next(
            (each for each in ("does not hold", UNTESTED, "depends on how it is counted") if each in found), "holds"
        )

    def _evaluate(self, rows: Sequence[Mapping[str, Any]], given: Mapping[str, Any], names: dict[str, Any]) -> bool:
        """Evaluate numbers and groups of them; False where a ``when`` does not hold, which ends them."""
        for own in rows:
            row = {**given, **own, "rows": {**given.get("rows", {}), **own.get("rows", {})}}
            if "each" in own:
                inner = {field: value for field, value in row.items() if field not in ("each", "numbers")}
                for found, columns in self._each(row, names):
                    there = {**inner, "rows": {**inner["rows"], **columns}}
                    self._evaluate(own["numbers"], there, {**names, **found})
            elif "when" in own:
                if self._condition({**own, "rule": own["when"]}, names) != "holds":
                    return False
            elif all(math.isnan(self.known[own[word]].value) != there for word, there in _THERE.items() if word in own):
                name = str(own["tell"] if "tell" in own else own["hidden"]).format_map(names)
                reading = _MEASURES[row["measure"]](_Number(self, row, names))
                for step in (each for each in own if each in _STEPS):
                    reading = _STEPS[step](reading, _Number(self, row, names).read(own[step]))
                self.known[name] = reading
                names[name] = reading.value
                if "tell" in own and (math.isfinite(reading.value) or reading.ends):
                    self.told[name] = reading.value if math.isfinite(reading.value) else None
        return True

    def _each(
        self, row: Mapping[str, Any], names: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """(names, what columns have to be) of a group: for the values that it lists, or those that columns have."""
        if isinstance(row["each"], Mapping):
            for values in product(*row["each"].values()):
                yield dict(zip(row["each"], values, strict=True)), {}
            return
        known = _Number(self, row, names).rows[row["each"]].drop_duplicates()
        for values in known.itertuples(index=False, name=None):
            found = dict(zip(row["each"], values, strict=True))
            yield found, {name: [value] for name, value in found.items()}

    def _condition(self, row: Mapping[str, Any], names: Mapping[str, Any]) -> Verdict:
        own = _Number(self, row, names)
        found, rule = own.read_all(row["of"]), row["rule"]
        if rule in ("rises", "falls"):
            found = [high - low for low, high in pairwise(found if rule == "rises" else found[::-1])]
            rule = "above"
        if "around" in row:
            found = [Reading(abs(each.value - own.value("around"))) for each in found]
        errors = 0.0 if "exact" in row else TOLERANCE
        if "shared" in row:
            # Φ⁻¹(1 − 0.025/n): a false alarm in at most one of twenty reports, shared out among the n (Bonferroni).
            errors = float(norm.isf(limits().chance / 2 / max(1, len(found))))
        bound = own.value("bound") if "bound" in row else 0.0
        signs = _signs(rule, found, bound, errors)
        if "precise" in row:
            # A number that is known so well, and is not surely above, is not.
            margins = [errors * each.error for each in found]
            signs = [
                False if s is None and m < own.value("precise") else s for s, m in zip(signs, margins, strict=True)
            ]
        return _verdict(signs, row.get("signs", "any"))


def evaluated(of: Claim, frames: Mapping[str, pd.DataFrame]) -> ClaimOutcome:
    """The outcome of a claim that is a line, by the frames of its part: "" its own, "logs" the authors' curves.

    Raises:
        InputError: If the line names what there is not.
    """
    line = _Line(of, frames)
    return ClaimOutcome(of.id, line.verdict, line.told, of.words.format_map(line.names))


def judged(
    part: str,
    scale: str,
    frames: Mapping[str, pd.DataFrame],
    others: Iterable[ClaimOutcome] = (),
    scales: Mapping[str, str] | None = None,
) -> list[ClaimOutcome]:
    """The outcomes of a part, in the order of ``claims.toml``.

    Args:
        part: The part.
        scale: The scale in words, of those that do not name their own.
        frames: What the lines of its claims are evaluated over, by the names in their ``of``; a claim on a frame that
            is not given is left out.
        others: The outcomes of its claims that are no lines.
        scales: The scale in words of some frames.
    """
    of_frames = {"logs": LOGS, **(scales or {})}
    found = list(others)
    for each in CLAIMS.values():
        frame = each.line.get("of", "")
        if each.part == part and each.line and frame in frames:
            outcome = evaluated(each, frames)
            found.append(replace(outcome, scale=outcome.scale or of_frames.get(frame, "")))
    found.sort(key=lambda outcome: list(CLAIMS).index(claim(outcome.id).id))
    for i, own in enumerate(found):
        words, unknown, verdict = own.scale or scale, claim(own.id).unknown, own.verdict
        # Where it would refute runs of a setting that nobody knows, it decides nothing.
        if unknown and verdict in ("does not hold", "depends on how it is counted"):
            words, verdict = f"{words.rstrip('.')}; not decided, because nobody knows {unknown}", UNKNOWN
        found[i] = replace(own, verdict=verdict, scale=words)
    return found
