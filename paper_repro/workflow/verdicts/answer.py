"""Is the paper right? Ten sentences of ``answer.toml`` with numbers filled in: the report opens with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from decomfl_lab.storage.tables import table_beside
from paper_repro.workflow.verdicts.claim_table import rows
from theory.findings.finding import Entry
from theory.findings.registry import ENTRIES
from theory.findings.texts import FORMULAS, fill, found, told

_DATA: Final[dict[str, Any]] = table_beside(__name__, "answer.toml")
LINES: Final[list[dict[str, Any]]] = _DATA["line"]
TONES: Final[Mapping[str, str]] = _DATA["tones"]
"""The tone of each status of a statement in the registry, the gravest first."""


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
    """The ten lines; the evidence that they name is gathered now, and runs are those that are recorded."""
    entries = {entry.label: entry for entry in ENTRIES}
    recorded = {row["id"]: row for row in rows()}
    return [_filled(raw, entries, recorded) for raw in LINES]


def _filled(raw: Mapping[str, Any], entries: Mapping[str, Entry], recorded: Mapping[str, Any]) -> AnswerLine:
    """A row of ``answer.toml`` with its marks ⟦count …⟧, ⟦run …⟧ and ⟦check …⟧ filled in, by the functions below."""
    from decomfl_lab.laws import LAWS

    sources: list[str] = []

    def count(what: str) -> str:
        kind, status = map(str.strip, what.split("|"))
        return str(sum(entry.kind == kind and status in (entry.status, "*") for entry in entries.values()))

    def run(what: str) -> str:
        claim_id, number, *form = map(str.strip, what.split("|"))
        sources.append(recorded[claim_id]["recorded"].split(";")[0])
        return told(recorded[claim_id]["measured"], claim_id, number, *form)

    def check(what: str) -> str:
        label, _, name = what.partition(" ")
        by_role = entries[label].evidence.values()
        return found((check for checks in by_role for check in checks), name, "the answer", label)

    writers = {**FORMULAS, "laws": lambda _: str(len(LAWS)), "count": count, "run": run, "check": check}
    says = fill(raw["says"], writers)
    statuses = sorted({entries[label].status for label in raw["entries"]}, key=[*TONES].index)
    dates = "; ".join(dict.fromkeys(sources))
    return AnswerLine(raw["topic"], "; ".join(statuses), says, raw["part"], raw["link"], raw["again"], dates)
