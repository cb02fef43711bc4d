"""What is run: the rows of ``series.toml``, read at the sizes of a scale. Runs of a series differ in seeds alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.storage.tables import table_beside
from paper_repro.workflow.data import data_set
from paper_repro.workflow.options import READINGS
from paper_repro.workflow.runs import Job
from paper_repro.workflow.verdicts.measures import CHECKED

if TYPE_CHECKING:
    from paper_repro.workflow.part import Options


class Series(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row, which stands for a series or several; the file says what its fields are."""

    each: Mapping[str, Any] = {}
    values: Mapping[str, Any] = {}
    when: Mapping[str, Any] = {}
    seeds: str = ""
    first: bool = False
    config: Mapping[str, Any] = {}
    times: str = ""
    by: str = ""
    differences: Any = 0
    urgency: Sequence[int] = (0,)
    labels: Mapping[str, Any] = {}
    title: str = ""
    of: str = ""
    where: Mapping[str, Sequence[Any]] = {}


def from_toml(value: Any) -> Any:
    """A value of TOML as it is meant: tuples for lists, and whole numbers for names of tables that are such."""
    if isinstance(value, Mapping):
        return {int(key) if str(key).isdigit() else key: from_toml(each) for key, each in value.items()}
    return tuple(map(from_toml, value)) if isinstance(value, list) else value


def _joined(row: Mapping[str, Any], patterns: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of the patterns that a row is like, and its own; of a field that is a table name by name."""
    found: dict[str, Any] = {}
    for fields in (*(_joined(patterns[name], patterns) for name in row.get("like", ())), row):
        for name, value in fields.items():
            found[name] = found.get(name, {}) | value if isinstance(value, dict) else value
    return {name: value for name, value in found.items() if name != "like"}


_DATA: Final[dict[str, Any]] = from_toml(table_beside(__name__, "series.toml"))
_PATTERNS: Final = _DATA.pop("patterns")
PATTERNS: Final = {name: msgspec.convert(_joined(row, _PATTERNS), Series) for name, row in _PATTERNS.items()}
ROWS: Final = {part: [msgspec.convert(_joined(row, _PATTERNS), Series) for row in rows] for part, rows in _DATA.items()}
"""The rows of each part, with all that they have from patterns."""
_NAMED: Final = re.compile(r"\{(\w+)(?:\[(\w+)\])?\}")


def _value(given: Any, known: Mapping[str, Any]) -> Any:
    """What a value of a row stands for, None where a table has nothing at a value."""
    if not isinstance(given, str):
        return given
    if named := _NAMED.fullmatch(given):
        name, at = named.groups()
        return known[name] if at is None else known[name].get(known[at])
    return given.format(**known)


def values_of(row: Series, size: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All values of each series that the row stands for, and the settings of its part."""
    known = {**size, **{name: _value(given, size) for name, given in row.values.items()}}
    if all(known[name] == value for name, value in row.when.items()):
        name, given = next(iter(row.each.items()), ("", [None]))
        for value in _value(given, size):
            yield known | ({name: value} if name else {})


def configuration(row: Series, known: Mapping[str, Any], **more: Any) -> TrainConfig:
    """The options of the runs of a series, and more."""
    given = {name: _value(value, known) for name, value in row.config.items()} | more
    # Where a table has nothing, as at a K that --set has brought, every round is evaluated.
    given = {name: 1 if value is None else value for name, value in given.items()}
    if row.times:
        given["lr"] = round(given["lr"] * _value(row.times, known), 10)
    return TrainConfig(**given | ({"data": data_set(given["data"])} if "data" in given else {}))


def runs_of(part: str, options: Options) -> list[Job]:
    """The runs of a part, series by series, in the readings that are asked for."""
    found: list[Job] = []
    for row in ROWS[part]:
        if row.of:
            # They are shared as they are on a CPU; which reading they are of, the row says itself.
            theirs = runs_of(row.of, replace(options, readings=READINGS, device="cpu"))
            found += [job for job in theirs if all(job.labels[name] in own for name, own in row.where.items())]
            continue
        for known in values_of(row, vars(options.scale.of(part))):
            if "reading" in row.labels and known["reading"] not in options.readings:
                continue
            config, seeds = configuration(row, known), _value(row.seeds, known)
            seeds = seeds[:1] if row.first else seeds
            runs = [(config.but(_value(row.by, known)) if row.by else config, seeds, row.urgency, row.labels)]
            # The runs by finite differences that check these: they take long on a CPU, and little on a GPU.
            if rounds := _value(row.differences, known):
                on_gpu = options.device != "cpu"
                check = config.but(rounds=config.rounds if on_gpu else rounds)
                first = (seeds, (0,)) if on_gpu else (seeds[:1], (3,))
                runs.append((check, *first, {**row.labels, CHECKED: True}))
            for own, of_seeds, urgency, given in runs:
                name = own.method.name
                scalars = "gradients" if own.method.gradients else "differences"
                measured = "projection" if name.endswith("-projection") else scalars
                of_run = {**own.to_dict(), **known, "method": name, "measured": measured}
                labels = {label: _value(value, of_run) for label, value in given.items()}
                title = row.title.format(**{**of_run, **labels})
                for n, seed in enumerate(of_seeds):
                    told = f"{title}, seed {seed}{', finite differences' if labels.get(CHECKED) else ''}"
                    found.append(Job(own.but(seed=seed), labels, told, urgency=urgency[min(n, len(urgency) - 1)]))
    return found
