"""The findings as a page: every statement of the paper with its status, and what is true instead."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from theory.findings.finding import Cause, Entry
from theory.notation.symbols import MOMENTS

_HEAD: Final = f"""# Every statement of the paper

Generated from the data of `theory/findings` by `decomfl findings --write docs`; `decomfl audit` gathers the evidence
again, `decomfl audit --statement LABEL` shows it. Statements are in the order of the paper. D = f(x_0) − f*;
{"; ".join(MOMENTS.values())}; the other symbols are those of [NOTATION](../NOTATION.md).
"""


def statements(entries: Sequence[Entry], causes: Mapping[str, Cause]) -> str:
    """The page as Markdown: causes first, then the statements of each section."""
    lines = [_HEAD, "## Causes", "", "| cause | nature | what is wrong | what is true |", "|---|---|---|---|"]
    lines += [_row(item.name, item.nature, item.title, item.instead) for item in causes.values()]
    for section, group in groupby(entries, key=lambda entry: entry.section):
        lines += ["", f"## {section}", "", "| statement | says | status | why, and what is true |", "|---|---|---|---|"]
        for item in group:
            place = ", ".join(part for part in item.place.split(", ") if part != section)
            # The paper's words, what they assert, and what is tested where that is something else.
            quote = f"“{item.quote}”" if item.quote else ""
            tests = f"Tested: {item.tests}" if item.tests else ""
            says = "<br>".join(filter(None, (quote, item.says, tests)))
            status = f"**{item.status}**" + (f" from {item.carries}" if item.carries else "")
            named = ", ".join((*(cause.name for cause in item.causes), *item.runs))
            instead = f"Correction: {item.instead}" if item.instead else ""
            lines.append(
                _row(
                    f"{item.label}<br>{place}",
                    says,
                    "<br>".join(filter(None, (status, named))),
                    "<br>".join(filter(None, (item.why, instead))),
                )
            )
    return "\n".join(lines) + "\n"


def places(entries: Sequence[Entry]) -> str:
    """The theorems, lemmas, assumptions, tables and algorithms among the entries by number, and how many in all."""
    named = ("theorem", "corollary", "lemma", "assumption", "table", "algorithm line")
    numbered = dict.fromkeys(entry.number for entry in entries if entry.kind in named)
    rest = sorted({entry.section for entry in entries})
    count = f"{len(entries)} statement{'s' * (len(entries) > 1)}"
    return f"{', '.join(numbered) or ', '.join(rest)} ({count})"


def _row(*cells: str) -> str:
    escaped = [
        cell.replace("|", "\\|").replace("*", "\\*").replace("\\*\\*", "**").replace("_", "\\_") for cell in cells
    ]
    return f"| {' | '.join(escaped)} |"
