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

    each: Mapping[str, Any] = {}  # {name: its values}, a series for each
    values: Mapping[str, Any] = {}  # other values, by name
    when: Mapping[str, Any] = {}  # {setting or value: what it has to be}
    seeds: str = ""  # "{name}" of the setting that has them
    first: bool = False  # whether the first seed alone is run
    config: Mapping[str, Any] = {}  # options of ``TrainConfig``
    times: str = ""  # "{name}" of a factor of the learning rate
    by: str = ""  # the method, where config is that of another
    differences: Any = 0  # rounds of the runs by finite differences that check it
    urgency: Sequence[int] = (0,)  # of the first seed, the second, ... and all others
    labels: Mapping[str, Any] = {}  # {column of the rows: its value}
    title: str = ""  # that of the progress bar
    of: str = ""  # the part whose runs it shares
    where: Mapping[str, Sequence[Any]] = {}  # {label: the values that the shared runs have}


def from_toml(value: Any) -> Any:
    """A value of TOML as it is meant: tuples for lists, and whole numbers for names of tables that are such."""
    if isinstance(value, Mapping):
        return {int(key) if str(key).isdigit() else key: from_toml(each) for key, each in value.items()}
    return tuple(map(from_toml, value)) if isinstance(value, list) else value


def _joined(row: Mapping[str, Any], patterns: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of the patterns that a row is like, and its own; of a field that is a table name by name."""
    merged: dict[str, Any] = {}
    for fields in (*(_joined(patterns[name], patterns) for name in row.get("like", ())), row):
        for name, value in fields.items():
            merged[name] = merged.get(name, {}) | value if isinstance(value, dict) else value
    return {name: value for name, value in merged.items() if name != "like"}


_DATA: Final[dict[str, Any]] = from_toml(table_beside(__name__, "series.toml"))
_PATTERNS: Final = _DATA.pop("patterns")
PATTERNS: Final = {name: msgspec.convert(_joined(row, _PATTERNS), Series) for name, row in _PATTERNS.items()}
ROWS: Final = {part: [msgspec.convert(_joined(row, _PATTERNS), Series) for row in rows] for part, rows in _DATA.items()}
"""The rows of each part, with all that they have from patterns."""
_NAMED: Final = re.compile(r"\{(\w+)(?:\[(\w+)\])?\}")


def _value(given: Any, known: Mapping[str, Any]) -> Any:
    """What a value of a row stands for, as "{M}" or "{rounds[K]}"; None where a table has nothing at a value."""
    if not isinstance(given, str):
        return given
    if named := _NAMED.fullmatch(given):
        name, key = named.groups()
        return known[name] if key is None else known[name].get(known[key])
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
    jobs: list[Job] = []
    for row in ROWS[part]:
        if row.of:
            # They are shared as they are on a CPU; which reading they are of, the row says itself.
            shared = runs_of(row.of, replace(options, readings=READINGS, device="cpu"))
            jobs += [job for job in shared if all(job.labels[name] in wanted for name, wanted in row.where.items())]
            continue
        for known in values_of(row, vars(options.scale.of(part))):
            if "reading" in row.labels and known["reading"] not in options.readings:
                continue
            config, seeds = configuration(row, known), _value(row.seeds, known)
            seeds = seeds[:1] if row.first else seeds
            # (configuration, seeds, urgency, labels) of the runs that are drawn as lines ...
            series = [(config.but(_value(row.by, known)) if row.by else config, seeds, row.urgency, row.labels)]
            # ... and of those by finite differences that check them: they take long on a CPU, and little on a GPU.
            if rounds := _value(row.differences, known):
                labels_of_checks = {**row.labels, CHECKED: True}
                if options.device == "cpu":
                    series.append((config.but(rounds=rounds), seeds[:1], (3,), labels_of_checks))
                else:
                    series.append((config, seeds, (0,), labels_of_checks))
            for run, seeds_of_series, urgency, label_values in series:
                method = run.method.name
                scalars = "gradients" if run.method.gradients else "differences"
                measured = "projection" if method.endswith("-projection") else scalars
                of_run = {**run.to_dict(), **known, "method": method, "measured": measured}
                labels = {label: _value(value, of_run) for label, value in label_values.items()}
                title = row.title.format(**{**of_run, **labels})
                for n, seed in enumerate(seeds_of_series):
                    bar = f"{title}, seed {seed}{', finite differences' if labels.get(CHECKED) else ''}"
                    jobs.append(Job(run.but(seed=seed), labels, bar, urgency=urgency[min(n, len(urgency) - 1)]))
    return jobs
