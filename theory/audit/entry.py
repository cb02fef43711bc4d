"""An entry of the audit: a statement of the paper, its finding, and the evidence that can be gathered again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from decomfl_lab.errors import require, require_choice

__all__ = ["FINDINGS", "INSTRUMENTS", "KINDS", "Entry", "Evidence", "Finding", "Instrument", "Kind", "Result", "gather"]

Finding = Literal["correct", "correct but loose", "typo", "does not follow", "false", "not checkable"]
Kind = Literal["equation", "lemma", "theorem", "corollary", "assumption", "remark", "algorithm line", "table", "claim"]
Instrument = Literal["units", "algebra", "search", "counter-example", "arithmetic", "execution"]

FINDINGS: Final[tuple[str, ...]] = get_args(Finding)
KINDS: Final[tuple[str, ...]] = get_args(Kind)
INSTRUMENTS: Final[tuple[str, ...]] = get_args(Instrument)


@dataclass(frozen=True)
class Evidence:
    """What an instrument finds, now.

    Attributes:
        instrument: units; algebra (sympy); search (over parameters, for the worst slack); counter-example (a whole
            statement or step at concrete numbers, exact or simulated); arithmetic (of tables); execution (a line of an
            algorithm run to the letter).
        holds: Whether it bears the entry's finding out: for *correct* that the statement passes, for the others that
            the defect is there (and that the fix has none).
        says: One line with the numbers.
        numbers: Every number behind it by its name.
    """

    instrument: Instrument
    holds: bool
    says: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_choice("instrument", self.instrument, INSTRUMENTS)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A statement of the paper and its finding.

    Attributes:
        label: LaTeX label if it has one, else ``line-N`` (``line-N.2`` for the second statement of a display).
        line: Line of the source on which its display, environment, algorithm line or table begins.
        kind: One of ``KINDS``.
        says: The statement, shortened, in plain text.
        finding: One of ``FINDINGS``.
        why: The reason in a sentence or two, "" only for *correct*.
        fix: The corrected statement; "" where nothing is wrong or nobody can say.
        labels: Further labels of the same display that this entry speaks for.
        checks: Functions without arguments that gather the evidence. Every finding but *not checkable* needs one.
    """

    label: str
    line: int
    kind: Kind
    says: str
    finding: Finding
    checks: tuple[Callable[[], Evidence], ...]
    why: str = ""
    fix: str = ""
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_choice(f"finding of {self.label}", self.finding, FINDINGS)
        require_choice(f"kind of {self.label}", self.kind, KINDS)
        bare = self.finding == "not checkable"
        require(bool(self.checks) or bare, f"checks of {self.label}", "be given for a finding", self.finding)
        require(bool(self.why) or self.finding == "correct", f"why of {self.label}", "be given for", self.finding)


@dataclass(frozen=True)
class Result:
    """An entry with the evidence gathered for it now."""

    entry: Entry
    evidence: tuple[Evidence, ...]

    @property
    def confirmed(self) -> bool:
        """Whether all the evidence bears the finding out."""
        return all(found.holds for found in self.evidence)

    def row(self) -> dict[str, Any]:
        """For a table or JSON: label, line, kind, finding, instrument, witness, fix first."""
        entry = self.entry
        return {
            "label": entry.label,
            "line": entry.line,
            "kind": entry.kind,
            "finding": entry.finding,
            "instrument": ", ".join(dict.fromkeys(found.instrument for found in self.evidence)),
            "witness": "; ".join(found.says for found in self.evidence),
            "fix": entry.fix,
            "says": entry.says,
            "why": entry.why,
            "labels": list(entry.labels),
            "confirmed": self.confirmed,
            "evidence": [
                {
                    "instrument": found.instrument,
                    "holds": bool(found.holds),
                    "says": found.says,
                    "numbers": {name: _json(value) for name, value in found.numbers.items()},
                }
                for found in self.evidence
            ],
        }


def _json(value: float) -> float | None:
    """JSON has neither infinity nor NaN."""
    return float(value) if math.isfinite(value) else None


def gather(entry: Entry, known: dict[Callable[[], Evidence], Evidence] | None = None) -> Result:
    """Run every check of the entry.

    Args:
        entry: The entry with its checks.
        known: What checks have found already: those in it are not run again, those run now are added.
    """
    known = {} if known is None else known
    for check in entry.checks:
        if check not in known:
            known[check] = check()
    return Result(entry, tuple(known[check] for check in entry.checks))
