"""The findings as a page: every statement of the paper with its status, and what is true instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from theory.findings.finding import Cause, Entry
from theory.notation.symbols import MOMENTS

__all__ = ["places", "statements"]

_HEAD: Final = f"""# Every statement of the paper

Generated from the data of `theory/findings` by `decomfl findings --write docs`; `decomfl audit` gathers the evidence
again, `decomfl audit --statement LABEL` shows it. Statements are in the order of the paper. D = f(x_0) − f*;
{"; ".join(MOMENTS.values())}; the other symbols are those of [NOTATION](../NOTATION.md).
"""


def statements(entries: Sequence[Entry], causes: Mapping[str, Cause]) -> str:
    """The page as Markdown: causes first, then the statements of each section."""
    lines = [_HEAD, "## Causes", "", "| cause | nature | what is wrong | what is true |", "|---|---|---|---|"]
    lines += [_row(each.name, each.nature, each.title, each.instead) for each in causes.values()]
    for section, group in groupby(entries, key=lambda entry: entry.section):
        lines += ["", f"## {section}", "", "| statement | says | status | why, and what is true |", "|---|---|---|---|"]
        lines += [_row(f"{each.label}<br>{_place(each)}", _says(each), _status(each), _instead(each)) for each in group]
    return "\n".join(lines) + "\n"


def places(entries: Sequence[Entry]) -> str:
    """The theorems, lemmas, assumptions, tables and algorithms among the entries by number, and how many in all."""
    named = ("theorem", "corollary", "lemma", "assumption", "table", "algorithm line")
    numbered = dict.fromkeys(entry.number for entry in entries if entry.kind in named)
    rest = sorted({entry.section for entry in entries})
    count = f"{len(entries)} statement{'s' * (len(entries) > 1)}"
    return f"{', '.join(numbered) or ', '.join(rest)} ({count})"


def _place(entry: Entry) -> str:
    return ", ".join(part for part in entry.place.split(", ") if part != entry.section)


def _says(entry: Entry) -> str:
    """The paper's words, what they assert, and what is tested where that is something else."""
    tests = f"Tested: {entry.tests}" if entry.tests else ""
    return "<br>".join(part for part in (f"“{entry.quote}”" if entry.quote else "", entry.says, tests) if part)


def _status(entry: Entry) -> str:
    named = ", ".join((*(cause.name for cause in entry.causes), *entry.runs))
    carried = f" from {entry.carries}" if entry.carries else ""
    return f"**{entry.status}**{carried}" + (f"<br>{named}" if named else "")


def _instead(entry: Entry) -> str:
    return "<br>".join(part for part in (entry.why, f"Correction: {entry.instead}" if entry.instead else "") if part)


def _row(*cells: str) -> str:
    escaped = [
        cell.replace("|", "\\|").replace("*", "\\*").replace("\\*\\*", "**").replace("_", "\\_") for cell in cells
    ]
    return f"| {' | '.join(escaped)} |"
