"""The lines of ``claims.toml`` evaluated a second time: plain Python over rows that are dictionaries.

Nothing here calls ``workflow.expression`` or what that calls. A number is (value, error, least, most); where there is
none its value is None, and it is missing, as (), where its rows are.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from scipy.stats import norm

HOLDS, FAILS, DEPENDS, UNTESTED = "holds", "does not hold", "depends on how it is counted", "not tested at this scale"
LEVELS = (0.97, 0.95, 0.90, 0.85, 0.80, 0.75, 0.70, 0.65, 0.60, 0.55, 0.50, 0.40, 0.30, 0.20)
NAMED_BY = ("reading", "panel", "row", "task", "series", "model")

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]
Number = tuple[Any, ...]


def exact(value: float) -> Number:
    return (value, 0.0, value, value)


def known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def binomial(accuracy: float, n: float) -> float:
    """The standard error of an accuracy on n examples, by the rule of one success and one failure more."""
    a = (n * accuracy + 1) / (n + 2)
    return float((a * (1 - a) / n) ** 0.5)


# --- curves -----------------------------------------------------------------------------------------------------------


def seeds(rows: Rows) -> list[Rows]:
    found: dict[Any, Rows] = {}
    for row in sorted(rows, key=lambda row: row["round"]):
        found.setdefault(row["seed"], []).append(row)
    return list(found.values())


def between(run: Rows, x: float, along: str) -> float:
    """The accuracy at x, on the straight line between the evaluations beside it."""
    points = [(row[along], row["test_accuracy"]) for row in run]
    if x <= points[0][0]:
        return float(points[0][1])
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return float(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    return float(points[-1][1])


def over_seeds(values: Sequence[float], rows: Rows, bound: bool, everything: Rows) -> Number:
    """Their mean and its error; of one seed, or where it is the same for all, that of the test images."""
    mean = statistics.fmean(values)
    if bound:
        error = 0.5 / min(row["examples"] for row in everything) ** 0.5 if "examples" in everything[0] else 0.016
    elif len(values) > 1:
        error = statistics.stdev(values) / len(values) ** 0.5
    else:
        error = binomial(mean, min(row.get("examples", 1000) for row in rows))
    return (mean, error, None, None)


def by_round(rows: Rows, column: str) -> dict[float, float]:
    """The mean over seeds, by round."""
    found: dict[float, list[float]] = {}
    for row in rows:
        found.setdefault(row["round"], []).append(row[column])
    return {r: statistics.fmean(found[r]) for r in sorted(found)}


def whole(rows: Rows) -> bool:
    return all(row.get("finished", True) for row in rows)


# --- rules ------------------------------------------------------------------------------------------------------------

RULES: dict[str, Callable[[float, float, float], tuple[bool, bool]]] = {
    # by the least and the most that a number is, and a bound: whether it keeps the rule, and whether it breaks it
    "above": lambda least, most, bound: (least > bound, most <= bound),
    "at least": lambda least, most, bound: (least >= bound, most < bound),
    "below": lambda least, most, bound: (most < bound, least >= bound),
    "at most": lambda least, most, bound: (most <= bound, least > bound),
    "no less": lambda _, most, bound: (most >= bound, most < bound),
    "no more": lambda least, _, bound: (least <= bound, least > bound),
}


def ends(number: Number, errors: float) -> tuple[float, float]:
    if not number or (number[0] is None and number[2] is None):
        return math.nan, math.nan
    value, error, least, most = number
    return (value - errors * error, value + errors * error) if least is None else (least, most)


def verdict(kept: int, broken: int, n: int, signs: str) -> str:
    """Of n numbers, how many keep their rule and how many break it."""
    clear = n > 0 and kept + broken == n
    if kept == n > 0:
        return HOLDS
    if signs == "surely" and n > 0:
        return FAILS
    if signs == "any":
        return FAILS if broken else UNTESTED
    if signs == "open" or not clear:
        return UNTESTED
    return DEPENDS if signs == "depends" or (signs == "countings" and kept) else FAILS


# --- a line -----------------------------------------------------------------------------------------------------------


class Line:
    """A claim's line over the frames of its part."""

    def __init__(self, line: Row, frames: Mapping[str, Rows], thresholds: Mapping[str, Any], errors: float) -> None:
        self.frames, self.thresholds, self.errors = frames, thresholds, errors
        self.numbers: dict[str, Number] = {}
        self.told: dict[str, Any] = {}
        names = dict(line.get("given", {}))
        above = {key: value for key, value in line.items() if key not in ("numbers", "decides", "given")}
        goes_on = self.walk(line["numbers"], above, names)
        found = [self.judge(each, names) for each in line["decides"]] if goes_on else [UNTESTED]
        self.verdict = min(found, key=(FAILS, UNTESTED, DEPENDS, HOLDS).index)

    def walk(self, rows: Sequence[Row], above: Row, names: dict[str, Any]) -> bool:
        for own in rows:
            row = {**above, **own, "rows": {**above.get("rows", {}), **own.get("rows", {})}}
            if "when" in own:
                if self.judge({**own, "rule": own["when"]}, names) != HOLDS:
                    return False
                continue
            if "each" in own:
                inner = {key: value for key, value in row.items() if key not in ("each", "numbers")}
                for labels, columns in self.groups(row, names):
                    self.walk(own["numbers"], {**inner, "rows": {**row["rows"], **columns}}, {**names, **labels})
                continue
            if "if" in own and not self.is_there(own["if"]):
                continue
            if "unless" in own and self.is_there(own["unless"]):
                continue
            name = str(own.get("tell") or own["hidden"]).format_map(names)
            number = self.measure(row, names)
            for step in own:
                if step in ("over", "times", "less") and number:
                    number = self.changed(step, number, self.number(own[step], names))
            self.numbers[name] = number
            names[name] = number[0] if number else None
            if "tell" in own and number and number[0] not in (math.inf, -math.inf):
                self.told[name] = number[0]
        return True

    def is_there(self, name: str) -> bool:
        return bool(self.numbers[name]) and known(self.numbers[name][0])

    def groups(self, row: Row, names: Row) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
        if not isinstance(row["each"], list):
            found: list[dict[str, Any]] = [{}]
            for key, values in row["each"].items():
                found = [{**labels, key: value} for labels in found for value in values]
            return [(labels, {}) for labels in found]
        seen = dict.fromkeys(tuple(own[key] for key in row["each"]) for own in self.rows(row, names))
        labelled = [dict(zip(row["each"], values, strict=True)) for values in seen]
        return [(labels, {key: [value] for key, value in labels.items()}) for labels in labelled]

    # --- rows and numbers by name -------------------------------------------------------------------------------------

    def rows(self, row: Row, names: Row) -> Rows:
        return [own for run in self.runs(row, names).values() for own in run]

    def runs(self, row: Row, names: Row) -> dict[str, Rows]:
        """{series: rows} of a number; a pattern that none fits has none."""
        found = self.frames[row.get("of", "")]
        for column, wanted in row["rows"].items():
            values = wanted if isinstance(wanted, list) else [wanted]
            values = [each.format_map(names) if isinstance(each, str) else each for each in values]
            found = [own for own in found if own[column] in values]
        if "series" not in row:
            return {"": found}
        series: dict[str, Rows] = {}
        for own in found:
            # A series is called by those of its labels that the part has.
            name = ", ".join(str(own[key]) for key in NAMED_BY if key in own)
            series.setdefault(name, []).append(own)
        patterns = [row["series"]] if isinstance(row["series"], str) else row["series"]
        fitting: dict[str, Rows] = {}
        for pattern in (each.format_map(names) for each in patterns):
            own_runs = {name: run for name, run in series.items() if fnmatchcase(name, pattern)}
            fitting |= own_runs or {pattern: []}
        return fitting

    def number(self, given: Any, names: Row) -> Number:
        if not isinstance(given, str):
            return exact(given)
        name = given.format_map(names)
        if name in self.numbers:
            return self.numbers[name]
        return exact(names[name] if name in names else self.thresholds[name])

    def some(self, given: Any, names: Row) -> list[Number]:
        found = []
        for each in given if isinstance(given, list) else [given]:
            pattern = each.format_map(names) if isinstance(each, str) else ""
            if "*" in pattern:
                found += [own for name, own in self.numbers.items() if fnmatchcase(name, pattern)]
            else:
                found.append(self.number(each, names))
        return found

    def changed(self, step: str, one: Number, other: Number) -> Number:
        """One number less, times or over another one."""
        if not one or not other:
            return ()
        if step == "less" and (one[2] is None or other[2] is None) and one[0] is not None and other[0] is not None:
            errors = (one[1] if one[2] is None else 0.0, other[1] if other[2] is None else 0.0)
            return (one[0] - other[0], math.hypot(*errors), None, None)
        (least, most), (low, high) = (ends(each, self.errors) for each in (one, other))
        values = None not in (one[0], other[0])
        if step == "less":
            return (one[0] - other[0] if values else None, 0.0, least - high, most - low)
        if step == "times":
            return (one[0] * other[0], one[1] * other[0], None, None) if one[2] is None else exact(one[0] * other[0])
        if one[2] is None:
            return (one[0] / other[0], one[1] / other[0], None, None)
        quotients = [a / b if b else math.inf for a, b in ((least, high), (most, low))]
        value = one[0] / other[0] if values and other[0] else math.inf if values else None
        return (value, 0.0, *quotients)

    # --- measures -----------------------------------------------------------------------------------------------------

    def measure(self, row: Row, names: Row) -> Number:
        """The number of a row, by the measure that it names."""
        kind = row["measure"]
        if kind in ("difference", "ratio"):
            return self.changed("less" if kind == "difference" else "over", *self.some(row["among"], names))
        if kind in ("least", "most"):
            return self.extreme(min if kind == "least" else max, self.some(row["among"], names))
        if kind == "value":
            return self.number(row["value"], names)
        if kind == "error":
            found = self.number(row["value"], names)
            return exact(found[1]) if found else ()
        if kind == "between":
            low, high = self.some(row["among"], names)
            return (None, 0.0, low[0], high[0])
        runs = self.runs(row, names)
        rows = [own for run in runs.values() for own in run]
        if kind == "common":
            return exact(min(max((own["round"] for own in run), default=0) for run in runs.values()))
        if kind == "level":
            best = min(max(by_round(run, "test_accuracy").values(), default=0.0) for run in runs.values())
            found = [level for level in LEVELS if level <= best]
            return exact(found[0]) if found else (None, 0.0, None, None)
        if kind == "over":
            r = self.number(row["round"], names)[0]
            at_end = [run for run in runs.values() if run and max(own["round"] for own in run) == r]
            return exact(sum(map(whole, at_end)))
        if kind == "column":
            return self.column(row, rows, names)
        if not rows:
            return ()
        if kind == "share":
            return exact(self.share(row, rows, names))
        if kind == "spent":
            spent = max(own[row["column"]] for own in rows)
            return (spent, 0.0, spent, math.inf)
        if kind == "best":
            return exact(max(by_round(rows, "test_accuracy").values()))
        if kind == "to reach":
            return self.to_reach(rows, self.number(row["level"], names), row["column"].format_map(names))
        if kind == "gain at the end":
            last = max(own["round"] for own in rows)
            later, earlier = ([between(run, r, "round") for run in seeds(rows)] for r in (last, 0.75 * last))
            return exact(statistics.fmean(later) - statistics.fmean(earlier))
        return self.accuracy(kind, row, rows, names)

    def accuracy(self, kind: str, row: Row, rows: Rows, names: Row) -> Number:
        runs = seeds(rows)
        if kind == "final":
            if not whole(rows):
                return ()
            tails = [run[-max(1, len(run) // 10) :] for run in runs]
        else:
            at = self.number(row["round"], names)
            if not at:
                return ()
            tails = [[own for own in run if own["round"] <= at[0]] for run in runs]
        values = [statistics.fmean(own["test_accuracy"] for own in tail) for tail in tails if tail]
        if kind == "at":
            values = [between(run, at[0], row.get("along", "round")) for run in runs]
        everything = self.frames[row.get("of", "")]
        return over_seeds(values, rows, row.get("error") == "bound", everything)

    def to_reach(self, rows: Rows, level: Number, column: str) -> Number:
        spent = by_round(rows, column)
        reached = by_round(rows, "test_accuracy")
        there = [r for r in reached if level and level[0] is not None and reached[r] >= level[0]]
        if there:
            return exact(float(spent[there[0]]))
        return (None, 0.0, math.inf if whole(rows) else -math.inf, math.inf)

    def extreme(self, of: Callable[[Any], float], found: Sequence[Number]) -> Number:
        lows, highs = ([ends(each, 0.0)[end] for each in found] for end in (0, 1))
        if not lows or any(map(math.isnan, lows)):
            return ()
        values = [each[0] for each in found if each[0] is not None]
        return (of(values) if values else None, 0.0, of(lows), of(highs))

    def share(self, row: Row, rows: Rows, names: Row) -> float:
        if "same" in row:
            return statistics.fmean(bool(own[row["column"]]) == bool(own[row["same"]]) for own in rows)
        low, high = (self.number(row[end], names)[0] for end in ("from", "to"))
        return statistics.fmean(low <= own[row["column"]] <= high for own in rows if known(own[row["column"]]))

    def column(self, row: Row, rows: Rows, names: Row) -> Number:
        take = row["take"]
        if not rows:
            return exact(0) if take in ("size", "sum", "count", "nunique") else ()
        if "along" in row:
            rows = sorted(rows, key=lambda own: own[row["along"]])
        if "at_last" in row:
            rows = [own for own in rows if own["round"] == max(each["round"] for each in rows)]

        def taken(column: str) -> Any:
            values = [own[column.format_map(names)] for own in rows]
            if "per" in row:
                per = [own[row["per"].format_map(names)] for own in rows]
                values = [a / b if known(a) and known(b) and b else math.nan for a, b in zip(values, per, strict=True)]
            return one_of(values, take)

        value = taken(row["column"])
        if not known(value):
            return (None, 0.0, None, None)
        if "ends" in row:
            return (value, 0.0, *(taken(end) for end in row["ends"]))
        if row.get("error") == "bound":
            return over_seeds([value], rows, True, self.frames[row.get("of", "")])
        return (value, taken(row["error"]), None, None) if "error" in row else exact(value)

    # --- what decides -------------------------------------------------------------------------------------------------

    def judge(self, row: Row, names: Row) -> str:
        found, rule = self.some(row["of"], names), row["rule"]
        if rule in ("rises", "falls"):
            found = [self.changed("less", *(pair[::-1] if rule == "rises" else pair)) for pair in pairwise(found)]
            rule = "above"
        if "around" in row:
            centre = self.number(row["around"], names)[0]
            found = [exact(abs(each[0] - centre)) if each and each[0] is not None else () for each in found]
        errors = 0.0 if row.get("exact") else self.errors
        if row.get("shared"):
            errors = float(norm.ppf(1 - self.thresholds["chance"] / 2 / max(1, len(found))))
        bound = self.number(row["bound"], names) if "bound" in row else exact(0.0)
        if not bound or bound[0] is None:
            return UNTESTED
        signs = [RULES[rule](*ends(each, errors), bound[0]) for each in found]
        kept = sum(sign for sign, _ in signs)
        broken = sum(sign for _, sign in signs)
        if "precise" in row:
            open_ones = [each for each, sign in zip(found, signs, strict=True) if each and not any(sign)]
            broken += sum(errors * each[1] < self.number(row["precise"], names)[0] for each in open_ones)
        return verdict(kept, broken, len(found), row.get("signs", "any"))


def one_of(values: list[Any], take: Any) -> Any:
    """The first, the last, the largest ... of values; those that are no numbers aside where a mean would be none."""
    if take == "size":
        return len(values)
    if take in ("first", "last"):
        return values[0] if take == "first" else values[-1]
    there = [value for value in values if known(value)]
    if take == "nunique":
        return len(set(there))
    if take == "count":
        return len(there)
    if take == "sum":
        return sum(there)
    if not there:
        return math.nan
    if isinstance(take, float):
        place = take * (len(there) - 1)
        ordered = sorted(there)
        low = math.floor(place)
        return ordered[low] + (place - low) * (ordered[min(low + 1, len(there) - 1)] - ordered[low])
    return {"min": min, "max": max, "mean": statistics.fmean, "median": statistics.median}[take](there)
