"""Decides the verdicts of a part's claims from the rows of its runs, by the lines of ``claims.toml``: see ``judged``.

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
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm

from paper_repro.workflow.verdicts.claim_table import (
    CLAIMS,
    UNKNOWN,
    UNTESTED,
    Claim,
    ClaimOutcome,
    Verdict,
    claim,
    limits,
)
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
    """over/under; at 0 infinite, or NaN for 0/0."""
    if under:
        return over / under
    return math.inf * over if over else math.nan


# --- rules ------------------------------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """What a number has to be to a bound, by which of its ends (0: the low one, 1: the high one)."""

    keeps: Callable[[float, float], bool]  # (end, bound)
    surely: int  # the end that keeps it where the number surely does
    possibly: int  # the end that breaks it where the number surely does


_RULES: Final[Mapping[str, _Rule]] = {
    "above": _Rule(operator.gt, 0, 1),
    "at least": _Rule(operator.ge, 0, 1),
    "below": _Rule(operator.lt, 1, 0),
    "at most": _Rule(operator.le, 1, 0),
    # A number is so unless it stands out.
    "no less": _Rule(operator.ge, 1, 1),
    "no more": _Rule(operator.le, 0, 0),
}


def _verdict(signs: Sequence[bool | None], mode: str = "any") -> Verdict:
    """The verdict of numbers that each keep their rule (True), break it (False), or leave it open (None).

    "any": one that breaks it refutes, whatever others leave open. "surely": one that leaves it open does so, too.
    "open": one that breaks it only leaves it open. "clear": all have to be clear. "countings": these too, and where
    some keep it, it depends on how it is counted; "depends": it does where one does not.
    """
    if mode == "open":
        signs = [sign or None for sign in signs]
    if (mode in ("any", "surely") and False in signs) or (mode == "surely" and None in signs):
        return "does not hold"
    if None in signs or not signs:
        return UNTESTED
    if all(signs):
        return "holds"
    depends = mode == "depends" or (mode == "countings" and any(signs))
    return "depends on how it is counted" if depends else "does not hold"


def _signs(rule: _Rule, readings: Iterable[Reading], bound: float, errors: float = TOLERANCE) -> list[bool | None]:
    """Whether each reading keeps its rule, as far as so many standard errors tell; None where that is open."""
    signs: list[bool | None] = []
    for ends in (reading.interval(errors) for reading in readings):
        if any(map(math.isnan, (*ends, bound))):
            signs.append(None)
        elif rule.keeps(ends[rule.surely], bound):
            signs.append(True)
        else:
            signs.append(None if rule.keeps(ends[rule.possibly], bound) else False)
    return signs


# --- measures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Number:
    """A number of a line, as a measure takes it."""

    line: _Line  # the line, with the numbers before this one
    row: Mapping[str, Any]  # its fields, with those of its claim and groups
    names: Mapping[str, Any]  # what stands for the names in braces: labels of groups, and numbers before it

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
        rows_by_series = series_named(frame) if len(frame) else {}
        patterns = [self.row["series"]] if isinstance(self.row["series"], str) else self.row["series"]
        runs = []
        for pattern in map(self.text, patterns):
            runs += [rows for name, rows in rows_by_series.items() if fnmatchcase(name, pattern)] or [frame[:0]]
        return runs

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
        readings = []
        for name in map(self.text, given if isinstance(given, list) else [given]):
            if isinstance(name, str) and "*" in name:
                readings += [reading for known, reading in self.line.known.items() if fnmatchcase(known, name)]
            else:
                readings.append(self.read(name))
        return readings

    def value(self, field: str) -> float:
        """The value of the number that a field names."""
        return self.read(self.row[field]).value


def _accuracy(accuracy_of: Callable[[_Number], tuple[float, float]]) -> Callable[[_Number], Reading]:
    """An accuracy with its error over seeds, or with the bound that is the same for all curves."""

    def measure(number: _Number) -> Reading:
        value, error = accuracy_of(number)
        return Reading(value, sampling_error(number.frame) if number.row.get("error") == "bound" else error)

    return measure


def _gain(number: _Number) -> Reading:
    """What the accuracy gains in the last quarter of a run: only where that is little, it has come to its end."""
    rows = number.rows
    last_round = rows["round"].max()
    return Reading(accuracy_at(rows, last_round)[0] - accuracy_at(rows, 0.75 * last_round)[0])


def _to_reach(number: _Number) -> Reading:
    """What has been spent when the mean accuracy first reaches a level; nobody knows of one under way that has not."""
    rows = number.rows
    if rows.empty:
        return Reading(math.nan)
    spent = scalars_to_reach(rows, number.value("level"), number.text(number.row["column"]))
    never = math.inf if len(ended(rows)) else -math.inf
    return Reading(math.nan, ends=(never, math.inf)) if spent is None else Reading(spent)


_TAKEN: Final[Mapping[str, Callable[[pd.Series[Any]], Any]]] = {
    "first": lambda values: values.iloc[0],
    "last": lambda values: values.iloc[-1],
    "size": len,
}


def _column(number: _Number) -> Reading:
    """One value of a column, or of its share of another: the first, the largest, the mean, a quantile ..

    There is none of rows that are there without a number, and it is missing where there are no rows.
    """
    rows, take = number.rows, number.row["take"]
    if rows.empty:
        return Reading(0 if take in ("size", "sum", "count", "nunique") else math.nan)
    if "along" in number.row:
        rows = rows.sort_values(number.row["along"], kind="stable")
    if "at_last" in number.row:
        rows = rows[rows["round"] == rows["round"].max()]

    def taken(column: str) -> Any:
        """The one value of a column, over ``per`` where there is one."""
        values = rows[number.text(column)]
        if "per" in number.row:
            values = values / rows[number.text(number.row["per"])]
        if isinstance(take, float):
            return float(values.quantile(take))
        statistic = _TAKEN[take](values) if take in _TAKEN else values.agg(take)
        return statistic.item() if isinstance(statistic, np.generic) else statistic

    value = taken(number.row["column"])
    error, ends = number.row.get("error"), number.row.get("ends")  # columns, or "bound"
    if math.isnan(value):
        return _NONE
    if "whole" in number.row:  # a file has whole numbers as fractions beside rows without
        value = int(value)
    if error == "bound":
        return Reading(value, sampling_error(number.frame))
    return Reading(value, taken(error) if error else 0.0, (taken(ends[0]), taken(ends[1])) if ends else None)


def _share(number: _Number) -> Reading:
    """The share of rows whose column lies between two numbers, or is equal to another column."""
    rows = number.rows
    values = rows[number.row["column"]]
    if "same" in number.row:
        return Reading(float((values == rows[number.row["same"]]).mean()))
    known = values.dropna()
    return Reading(float(known.between(number.value("from"), number.value("to")).mean()))


def _extreme(least_or_most: Callable[[Iterable[float]], float]) -> Callable[[_Number], Reading]:
    """The least or the most of some numbers, as far as they have a value; missing where one is."""

    def measure(number: _Number) -> Reading:
        readings = number.read_all(number.row["among"])
        lows, highs = ([reading.interval()[end] for reading in readings] for end in (0, 1))
        known = [reading.value for reading in readings if not math.isnan(reading.value)]
        if not lows or any(map(math.isnan, lows)):
            return Reading(math.nan)
        return Reading(least_or_most(known) if known else math.nan, ends=(least_or_most(lows), least_or_most(highs)))

    return measure


def _of_two(operation: Callable[[Reading, Reading], Reading]) -> Callable[[_Number], Reading]:
    """What an operation makes of the two numbers that ``among`` names."""
    return lambda number: operation(*number.read_all(number.row["among"]))


_MEASURES: Final[Mapping[str, Callable[[_Number], Reading]]] = {
    # of curves
    "at": _accuracy(lambda number: accuracy_at(number.rows, number.value("round"), number.row.get("along", "round"))),
    "up to": _accuracy(lambda number: accuracy_up_to(number.rows, number.value("round"))),
    "final": _accuracy(lambda number: final_accuracy(ended(number.rows))),
    "best": lambda number: Reading(float(number.rows.groupby("round").test_accuracy.mean().max())),
    "gain at the end": _gain,
    "to reach": _to_reach,
    "spent": lambda number: Reading(spent := float(number.rows[number.row["column"]].max()), ends=(spent, math.inf)),
    # the highest of the levels that every series reaches
    "level": lambda number: _NONE if (level := highest_level(number.runs)) is None else Reading(level),
    # the last round that all series have
    "common": lambda number: Reading(
        min((int(run["round"].max()) if len(run) else 0 for run in number.runs), default=0)
    ),
    # how many of the series that are finished end at a round
    "over": lambda number: Reading(
        sum(len(run) > 0 and run["round"].max() == number.value("round") for run in map(ended, number.runs))
    ),
    # of columns
    "column": _column,
    "share": _share,
    # of numbers
    "value": lambda number: number.read(number.row["value"]),
    "error": lambda number: Reading(0 * number.value("value") + number.read(number.row["value"]).error),
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

    def __init__(self, asked: Claim, frames: Mapping[str, pd.DataFrame]) -> None:
        self.frames = frames
        self.thresholds = {**vars(limits()), **vars(limits(asked.part))}
        self.known: dict[str, Reading] = {}  # every number so far, by its name
        self.told: dict[str, float | None] = {}  # those that the outcome has; None for a level that was never reached
        self.names: dict[str, Any] = dict(asked.line.get("given", {}))
        shared = {name: value for name, value in asked.line.items() if name not in ("numbers", "decides", "given")}
        verdicts: list[Verdict] = [UNTESTED]
        if self._evaluate(asked.line["numbers"], shared, self.names):
            verdicts = [self._condition(condition, self.names) for condition in asked.line["decides"]]
        gravest: tuple[Verdict, ...] = ("does not hold", UNTESTED, "depends on how it is counted", "holds")
        self.verdict = next(verdict for verdict in gravest if verdict in (*verdicts, "holds"))

    def _evaluate(self, rows: Sequence[Mapping[str, Any]], given: Mapping[str, Any], names: dict[str, Any]) -> bool:
        """Evaluate numbers and groups of them; False where a ``when`` does not hold, which ends them.

        ``given`` has the fields of the claim and of the groups around, ``names`` what stands for names in braces.
        """
        for entry in rows:
            row = {**given, **entry, "rows": {**given.get("rows", {}), **entry.get("rows", {})}}
            if "each" in entry:
                inner = {field: value for field, value in row.items() if field not in ("each", "numbers")}
                for labels, columns in self._each(row, names):
                    fields_of_group = {**inner, "rows": {**inner["rows"], **columns}}
                    self._evaluate(entry["numbers"], fields_of_group, {**names, **labels})
            elif "when" in entry:
                if self._condition({**entry, "rule": entry["when"]}, names) != "holds":
                    return False
            elif not any(
                math.isnan(self.known[entry[word]].value) == there for word, there in _THERE.items() if word in entry
            ):
                name = str(entry["tell"] if "tell" in entry else entry["hidden"]).format_map(names)
                reading = _MEASURES[row["measure"]](_Number(self, row, names))
                for step in (key for key in entry if key in _STEPS):
                    reading = _STEPS[step](reading, _Number(self, row, names).read(entry[step]))
                self.known[name] = reading
                names[name] = reading.value
                if "tell" in entry and (math.isfinite(reading.value) or reading.ends):
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
        combinations = _Number(self, row, names).rows[row["each"]].drop_duplicates()
        for values in combinations.itertuples(index=False, name=None):
            labels = dict(zip(row["each"], values, strict=True))
            yield labels, {name: [value] for name, value in labels.items()}

    def _condition(self, row: Mapping[str, Any], names: Mapping[str, Any]) -> Verdict:
        """The verdict of a condition: its numbers (``of``) held against its rule and bound."""
        number = _Number(self, row, names)
        readings, rule = number.read_all(row["of"]), row["rule"]
        if rule in ("rises", "falls"):
            readings = [high - low for low, high in pairwise(readings if rule == "rises" else readings[::-1])]
            rule = "above"
        if "around" in row:
            readings = [Reading(abs(reading.value - number.value("around"))) for reading in readings]
        errors = 0.0 if "exact" in row else TOLERANCE
        if "shared" in row:
            # Φ⁻¹(1 − 0.025/n): a false alarm in at most one of twenty reports, shared out among the n (Bonferroni).
            errors = float(norm.isf(limits().chance / 2 / max(1, len(readings))))
        bound = number.value("bound") if "bound" in row else 0.0
        signs = _signs(_RULES[rule], readings, bound, errors)
        if "precise" in row:
            # A number that is known so well, and is not surely above, is not.
            margins = [errors * reading.error for reading in readings]
            for n, margin in enumerate(margins):
                if signs[n] is None and margin < number.value("precise"):
                    signs[n] = False
        return _verdict(signs, row.get("signs", "any"))


def evaluated(asked: Claim, frames: Mapping[str, pd.DataFrame]) -> ClaimOutcome:
    """The outcome of a claim that is a line, by the frames of its part: "" its own, "logs" the authors' curves.

    Raises:
        InputError: If the line names what there is not.
    """
    line = _Line(asked, frames)
    return ClaimOutcome(asked.id, line.verdict, line.told, asked.words.format_map(line.names))


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
    words_of_frames = {"logs": LOGS, **(scales or {})}
    outcomes = list(others)
    for registered in CLAIMS.values():
        frame = registered.line.get("of", "")
        if registered.part == part and registered.line and frame in frames:
            outcome = evaluated(registered, frames)
            outcomes.append(replace(outcome, scale=outcome.scale or words_of_frames.get(frame, "")))
    outcomes.sort(key=lambda outcome: list(CLAIMS).index(claim(outcome.id).id))
    for i, outcome in enumerate(outcomes):
        words = outcome.scale or scale
        unknown = claim(outcome.id).unknown
        outcomes[i] = replace(outcome, scale=words)
        # Where it would refute runs of a setting that nobody knows, it decides nothing.
        if unknown and outcome.verdict in ("does not hold", "depends on how it is counted"):
            words = f"{words.rstrip('.')}; not decided, because nobody knows {unknown}"
            outcomes[i] = replace(outcome, verdict=UNKNOWN, scale=words)
    return outcomes
