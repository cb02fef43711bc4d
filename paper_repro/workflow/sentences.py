"""The sentences of the paper that measurements speak on: those of the one registry that name them in their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from theory.findings.data import RAW

if TYPE_CHECKING:
    from theory.findings.finding import Entry, Role

__all__ = ["NAMED", "JudgedSentence", "disagreements", "sentences", "unfounded"]

_ROLES: Final[Mapping[str, Role]] = {
    "holds": "supports",
    "does not hold": "refutes",
    "depends on how it is counted": "refutes",
}
"""What a verdict makes of a measurement for the sentences that name it; every other verdict leaves it undecided."""


@dataclass(frozen=True)
class JudgedSentence:
    """A sentence of the paper with its one status."""

    label: str  # that of its entry: ``decomfl audit --statement LABEL`` says all
    quote: str  # the paper's words
    place: str  # where they stand
    status: str  # what is to be said of it, by proofs and by runs
    runs: Mapping[str, Role]  # the measurements that speak on it, by id, each with its role


_ALL: Final = tuple(
    JudgedSentence(
        label=raw["label"],
        quote=raw.get("quote") or raw["says"],
        place=raw["place"],
        status=raw["status"],
        runs=raw["runs"],
    )
    for raw in RAW
    if "runs" in raw
)
NAMED: Final[Mapping[str, str]] = {run: each.label for each in _ALL for run in each.runs}
"""Every measurement that an entry names, with the label of one that does."""


@cache
def sentences(measurement: str) -> tuple[JudgedSentence, ...]:
    """The sentences that a measurement speaks on: first those that it decides, alone, and those of the experiments."""

    def rank(each: JudgedSentence) -> tuple[bool, int, bool]:
        return each.runs[measurement] == "context", len(each.runs), not each.place.endswith("Section 5")

    return tuple(sorted((each for each in reversed(_ALL) if measurement in each.runs), key=rank))


def disagreements(entries: Sequence[Entry], verdicts: Mapping[str, str]) -> Iterator[str]:
    """What entries say of their runs that the verdicts, by id, do not bear out, or that does not give their status.

    What is tested may be stronger than the quotation: then a run that fails leaves it undecided. Or it is weaker: then
    a run that holds does. ``tests`` says which, by its first word, and runs alone cannot make such an entry correct.
    """
    for entry in entries:
        given = {run: _ROLES.get(verdicts.get(run, ""), "context") for run in entry.runs}
        tested = entry.tests.partition(":")[0].lower()
        decides_nothing = {"stronger": "refutes", "weaker": "supports"}.get(tested)
        for run, role in entry.runs.items():
            if role != given[run] and not (role == "context" and given[run] == decides_nothing):
                yield f"{entry.label}: {run} {verdicts.get(run, 'is not recorded')!r}, so it {given[run]}, not {role}"
            if role == decides_nothing and entry.status in ("refuted", "correct") and not entry.checks(role):
                yield f"{entry.label}: {run} {role} what is {tested} than the quotation, so it is in the context of it"
        refuting = {verdicts.get(run) for run, role in entry.runs.items() if role == "refutes"}
        if "does not hold" in refuting and entry.status not in ("refuted", "misprint"):
            yield f"{entry.label}: a run refutes it, so it is refuted, not {entry.status}"
        if refuting and "does not hold" not in refuting and entry.status == "refuted" and not entry.causes:
            yield f"{entry.label}: it depends on how one counts, so it is imprecise, not refuted"
        failed = any(role == "context" and given[run] == "refutes" for run, role in entry.runs.items())
        if failed and entry.status == "correct":
            yield f"{entry.label}: a run leaves it undecided, so it is not decided, not correct"


def unfounded(entries: Sequence[Entry], measured: Mapping[str, Mapping[str, float | None]]) -> Iterator[str]:
    """Numbers of what entries with runs say that they do not have from anywhere, rounded as they are written.

    They have them from the quotation, from what the runs ``measured``, by id and name, or from the evidence, which is
    gathered where the others do not have them. A share may be said in per cent.
    """
    from theory.findings.wording import untold

    for entry in entries:
        if entry.restates or not entry.runs:
            continue
        known = [entry.quote]
        for name, value in (each for run in entry.runs for each in measured.get(run, {}).items()):
            size = abs(value or 0)
            known += [name, f"{size:f} {100 * size:f}"]
        texts = {"says": entry.says, "why": entry.why, "instead": entry.instead}
        if any(untold(text, *known) for text in texts.values()):
            known += [check.gather().says for checks in entry.evidence.values() for check in checks]
        for name, text in texts.items():
            yield from (f"{entry.label}: {name} has {each}" for each in untold(text, *known))
