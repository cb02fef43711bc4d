"""Is the paper right? Ten lines, each a sentence with numbers, its verdict and a link: ``answer.toml``, filled in."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from decomfl_lab.errors import require
from paper_repro.workflow.claims import rows
from theory.findings.finding import Entry, Status
from theory.findings.registry import ENTRIES

__all__ = ["AnswerLine", "answer"]

_LINES: Final[list[dict[str, Any]]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))[
    "line"
]
_GRAVITY: Final[tuple[Status, ...]] = (
    "refuted",
    "proof gap",
    "carried over",
    "imprecise",
    "misprint",
    "not decided",
    "not checkable",
    "correct",
)
_MARK: Final = re.compile("⟦([a-z]+) ?([^⟧]*)⟧")


@dataclass(frozen=True)
class AnswerLine:
    """A line of the answer."""

    topic: str  # what it is about
    verdict: str  # the statuses of its entries in the registry, the gravest first, each once
    says: str  # one sentence, with numbers
    part: str  # the section of the report that shows it
    link: str  # the page of the documentation that says more
    again: str  # the command that finds it again
    recorded: str  # when and by what code the runs behind its numbers were recorded; "" where they are computed now


def answer() -> list[AnswerLine]:
    """The ten lines; the evidence that they name is gathered now, and runs are those that are recorded.

    Raises:
        InputError: If a mark names no entry, check, measurement or number that there is.
    """
    entries = {entry.label: entry for entry in ENTRIES}
    recorded = {row["id"]: row for row in rows()}
    return [_filled(raw, entries, recorded) for raw in _LINES]


def _filled(raw: Mapping[str, Any], entries: Mapping[str, Entry], recorded: Mapping[str, Any]) -> AnswerLine:
    from decomfl_lab.laws import LAWS

    sources: list[str] = []
    writers: dict[str, Callable[[str], str]] = {
        "run": partial(_run, recorded, sources),
        "check": partial(_check, entries),
        "count": partial(_count, entries),
        "laws": lambda _: str(len(LAWS)),
    }
    says = _MARK.sub(lambda found: writers[found[1]](found[2]), raw["says"])
    statuses = sorted({_known(entries, label).status for label in raw["entries"]}, key=_GRAVITY.index)
    told = "; ".join(dict.fromkeys(sources))
    return AnswerLine(raw["topic"], "; ".join(statuses), says, raw["part"], raw["link"], raw["again"], told)


def _known(entries: Mapping[str, Entry], label: str) -> Entry:
    require(label in entries, "label of the answer", "be one of the registry", label)
    return entries[label]


def _run(recorded: Mapping[str, Any], sources: list[str], what: str) -> str:
    """``ID | NAME | FORMAT``: a number of a recorded outcome; ``1/FORMAT`` for one over it."""
    name, number, *form = map(str.strip, what.split("|"))
    require(name in recorded, "measurement of the answer", "be recorded", name)
    row = recorded[name]
    return _number(row["measured"], number, form, name, sources, row["recorded"].split(";")[0])


def _check(entries: Mapping[str, Entry], what: str) -> str:
    """``LABEL CHECK | NAME | FORMAT``: a number of the first evidence on the entry whose name begins so."""
    whose, number, *form = map(str.strip, what.split("|"))
    label, _, name = whose.partition(" ")
    entry = _known(entries, label)
    checks = [check for own in entry.evidence.values() for check in own if check.name.startswith(name)]
    require(bool(checks), "check of the answer", f"be one on {label}", name)
    return _number(checks[0].gather().numbers, number, form, whose, [], "")


def _number(
    numbers: Mapping[str, Any], name: str, form: Sequence[str], whose: str, sources: list[str], source: str
) -> str:
    require(name in numbers, f"number of {whose}", f"be one of {', '.join(numbers)}", name)
    sources.append(source)
    told = form[0] if form else ""
    if told.startswith("1/"):  # a ratio the other way round
        return format(1 / numbers[name], told.removeprefix("1/"))
    return format(numbers[name], told)


def _count(entries: Mapping[str, Entry], what: str) -> str:
    """``KIND STATUS``: how many entries there are; ``*`` is any status."""
    kind, _, status = what.rpartition(" ")
    return str(sum(entry.kind == kind and status in (entry.status, "*") for entry in entries.values()))
