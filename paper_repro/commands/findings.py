"""``decomfl findings``: is the paper right? What holds, what does not and what is open, of theory and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from decomfl_lab.cli.command import command
from decomfl_lab.errors import plural, require
from decomfl_lab.options import option
from decomfl_lab.storage.files import write_atomically
from decomfl_lab.storage.tables import table_beside
from paper_repro.workflow.verdicts.claim_table import CLAIMS, UNHEALTHY, rows

if TYPE_CHECKING:
    from theory.findings.finding import Entry

_TEXTS: Final = table_beside(__name__, "findings.toml")
_TOLD: Final = 3  # the most numbers that are told of a measurement which does not say what decides it
_WORDS: Final = 6  # the most words of a quotation that are told


@dataclass(frozen=True, kw_only=True)
class FindingsOptions:
    """The options of ``decomfl findings``."""

    write: Path | None = option(
        None, "The folder in which findings.md and statements.md are written. [default: print the first]"
    )


@command
def findings(options: FindingsOptions) -> None:
    """Write what holds of the paper, and what does not, as a page.

    The page is Markdown: the answer in ten lines, then the theory and the experiments.

    The witnesses of the theory are computed anew; the experiments are those that are recorded with the code.
    """
    from theory.findings.page import statements
    from theory.findings.registry import CAUSES, ENTRIES

    if options.write is None:
        print(page(), end="")
        return
    require(options.write.is_dir(), "--write", "be a folder that is there", str(options.write))
    write_atomically(options.write / "findings.md", page())
    write_atomically(options.write / "statements.md", statements(ENTRIES, CAUSES))


def page() -> str:
    """The page as Markdown."""
    from paper_repro.workflow.verdicts.answer import answer  # with it come sympy and scipy
    from theory.findings.registry import CAUSES, ENTRIES, affected

    notes: dict[str, str] = {}

    def mark(recorded: str) -> str:
        """The mark of a footnote that says where recorded numbers come from; "" where nothing is recorded."""
        return f"[^{notes.setdefault(recorded, f'runs-{len(notes) + 1}')}]" if recorded else ""

    lines = [_TEXTS["head"], "| | verdict | | more |", "|---|---|---|---|"]
    for line in answer():
        where = f"[{line.link}]({line.link}.md)" if line.link != "findings" else "below"
        says = f"{line.says}{mark(line.recorded.partition(' by code')[0])}"
        lines.append(_row(line.topic, f"**{line.verdict}**", says, f"{where}<br>`{line.again}`"))
    lines += ["", "## The theory", ""]
    for number, cause in enumerate((cause for cause in CAUSES.values() if cause.headline), 1):
        lines.append(f"**{number}. {cause.title}.**")
        lines.append(f"Seen: {_escaped(cause.witness.gather().says)}. Correction: {_escaped(cause.instead)}")
        spoiled = plural(len(affected(cause, ENTRIES)), "statement")
        lines += [f"Affects {spoiled} ({cause.name}).", ""]
    lines += ["## The experiments", ""]
    lines += [f"[![{title}]({picture})]({picture})" for title, picture in _TEXTS["pictures"].items()]
    lines += ["", "| the paper's words | status | numbers that decide |", "|---|---|---|"]
    # A row for each measurement that decides sentences of the paper, with these sentences and its numbers.
    named: dict[str, list[Entry]] = {}
    for entry in ENTRIES:
        if entry.runs and not entry.restates:
            # The measurement that decides a sentence: the first that speaks against it, or else the first of all.
            against = [name for name, role in entry.runs.items() if role == "refutes"]
            named.setdefault([*against, *entry.runs][0], []).append(entry)
    for row in rows():
        entries = named.get(row["id"], [])
        if entries:
            quotes = []
            for entry in entries:
                # The first words of the quotation, as many as tell it from others.
                words = entry.quote.split()
                quote = entry.quote if len(words) <= _WORDS else f"{' '.join(words[:_WORDS]).rstrip(',;…')} …"
                quotes.append(f"“{quote}” ({entry.place.replace('Section ', '§')})")
            # Numbers of a run that did not train would be read as a verdict.
            numbers = UNHEALTHY if row["verdict"] == UNHEALTHY else _told(deciding(row))
            # What a proof decides is told above: its runs are the context of it.
            if all(entry.causes and set(entry.runs.values()) == {"context"} for entry in entries):
                numbers = "decided by the theory above"
            each_status = [f"**{entry.status}**" for entry in entries]
            statuses = each_status[0] if len(set(each_status)) == 1 else "<br>".join(each_status)
            source = ""
            if row["recorded"].startswith("recorded"):
                data = (row["data"] or "no data").partition("; ")[0]
                source = f"{row['recorded'].partition(' by code')[0]}; {data}"
            lines.append(_row("<br>".join(quotes), statuses, f"{numbers}{mark(source)}"))
    footnotes = [f"[^{name}]: {text[:1].upper()}{text[1:]}." for text, name in notes.items()]
    return "\n".join([*lines, "", *footnotes]) + "\n"


def deciding(row: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a measurement that decide it: those that ``Claim.tells`` names, or that its rules compare."""
    ruled = CLAIMS[row["id"]].line.get("decides", ()) if row["id"] in CLAIMS else ()
    compared = [condition["of"] for condition in ruled if isinstance(condition.get("of"), str)]
    patterns = row["tells"] or compared or ("*",)
    numbers = {name: value for name, value in row["measured"].items() if any(fnmatchcase(name, p) for p in patterns)}
    return numbers if numbers and patterns != ("*",) else dict(list(row["measured"].items())[:_TOLD])


def _told(numbers: Mapping[str, Any]) -> str:
    """Names and values, in which a name does not say again the first words of the one before."""
    phrases, before = [], list[str]()
    for name, value in numbers.items():
        for short, plain in _TEXTS["plain"].items():
            name = name.replace(short, plain)
        words = name.split()
        same = 0
        while same < min(len(words), len(before)) - 1 and words[same] == before[same]:
            same += 1
        shown = f"{value:.4g}" if isinstance(value, float) else "never" if value is None else str(value)
        phrases.append(f"{' '.join(words[same:])} {shown}")
        before = words
    return "; ".join(phrases)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("_", "\\_").replace("*", "\\*") if "`" not in text else text
