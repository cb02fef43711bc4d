"""``decomfl findings``: is the paper right? What holds, what does not and what is open, of theory and experiments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from decomfl_lab.cli.command import command
from decomfl_lab.errors import plural, require
from decomfl_lab.files import write_atomically
from decomfl_lab.options import option
from paper_repro.workflow.answer import answer
from paper_repro.workflow.claims import rows

if TYPE_CHECKING:
    from theory.findings.finding import Cause, Entry

__all__ = ["findings", "page"]

_HEAD: Final = """# Findings: is the paper right?

`decomfl findings --write docs` makes this page of the registry of the paper's sentences (`theory/findings`) and of recorded
runs (`paper_repro/results`). `decomfl audit` gathers the evidence again, `decomfl paper --list` has every measurement
with its rule. Every statement: [statements](statements.md); the bounds that are true: [theory](theory.md),
[theory-more](theory-more.md).
"""
_PICTURES: Final[Mapping[str, str]] = {
    "Figure 2": "fig2.png",
    "Figure 3": "fig3.png",
    "the effective rank": "kappa.png",
    "what the bounds promise": "theory-dimension.png",
}
"""Pictures of docs/, by what they show."""
_TOLD: Final = 3
"""The most numbers that are told of a measurement which does not say what decides it."""
_WORDS: Final = 10
"""The most words of a quotation that are told."""


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
    from theory.findings.registry import CAUSES, ENTRIES

    notes = _Notes()
    lines = [_HEAD, "| | verdict | | more |", "|---|---|---|---|"]
    for each in answer():
        where = f"[{each.link}]({each.link}.md)" if each.link != "findings" else "below"
        says = f"{each.says}{notes.mark(each.recorded.partition(' by code')[0])}"
        lines.append(_row(each.topic, f"**{each.verdict}**", says, f"{where}<br>`{each.again}`"))
    lines += ["", "## The theory", ""]
    for number, cause in enumerate((cause for cause in CAUSES.values() if cause.headline), 1):
        lines += _cause(number, cause)
    lines += ["## The experiments", ""]
    lines += [f"[![{title}]({picture})]({picture})" for title, picture in _PICTURES.items()]
    lines += ["", "| the paper's words | status | numbers that decide |", "|---|---|---|"]
    lines += _sentences(ENTRIES, {row["id"]: row for row in rows()}, notes)
    return "\n".join([*lines, "", *notes.lines()]) + "\n"


class _Notes:
    """Footnotes: where recorded numbers come from, each once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def mark(self, recorded: str) -> str:
        """The mark of a footnote; "" where nothing is recorded."""
        if not recorded:
            return ""
        return f"[^{self._names.setdefault(recorded, f'runs-{len(self._names) + 1}')}]"

    def lines(self) -> list[str]:
        """All of them."""
        return [f"[^{name}]: {text[:1].upper()}{text[1:]}." for text, name in self._names.items()]


def _sentences(entries: Sequence[Entry], measurements: Mapping[str, Mapping[str, Any]], notes: _Notes) -> Iterable[str]:
    """A row for each measurement that decides sentences of the paper, with these sentences and its numbers."""
    named: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.runs and not entry.restates:
            named.setdefault(_first(entry), []).append(entry)
    for name, row in measurements.items():
        own = named.get(name, [])
        if own:
            words = "<br>".join(f"“{_shortened(entry.quote)}” ({entry.place})" for entry in own)
            numbers = _told(deciding(row))
            statuses = "<br>".join(f"**{entry.status}**" for entry in own)
            yield _row(words, statuses, f"{numbers}{notes.mark(_source(row))}")


def _first(entry: Entry) -> str:
    """The measurement that decides a sentence: the first that speaks against it, or else the first of all."""
    return next((name for name, role in entry.runs.items() if role == "refutes"), next(iter(entry.runs)))


def _shortened(quote: str) -> str:
    """The first words of a quotation, as many as tell it from others."""
    words = quote.split()
    return quote if len(words) <= _WORDS else f"{' '.join(words[:_WORDS]).rstrip(',;…')} …"


def deciding(row: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a measurement that decide it, as ``Claim.tells`` names them."""
    patterns = row["tells"] or ("*",)
    found = {name: value for name, value in row["measured"].items() if any(fnmatchcase(name, p) for p in patterns)}
    return dict(list(found.items())[:_TOLD]) if not row["tells"] else found


def _told(numbers: Mapping[str, Any]) -> str:
    """Names and values, in which a name does not say again the first words of the one before."""
    told, before = [], list[str]()
    for name, value in numbers.items():
        words = name.split()
        same = 0
        while same < min(len(words), len(before)) - 1 and words[same] == before[same]:
            same += 1
        told.append(f"{' '.join(words[same:])} {_number(value)}")
        before = words
    return "; ".join(told)


def _source(row: Mapping[str, Any]) -> str:
    """The date and the scale of a record, and the first of its data."""
    if not row["recorded"].startswith("recorded"):
        return ""
    return f"{row['recorded'].partition(' by code')[0]}; {(row['data'] or 'no data').partition('; ')[0]}"


def _cause(number: int, cause: Cause) -> Iterable[str]:
    """A finding of the audit, with its witness computed now."""
    from theory.findings.registry import ENTRIES, affected

    yield f"**{number}. {cause.title}.**"
    yield f"Seen: {_escaped(cause.witness.gather().says)}. Correction: {_escaped(cause.instead)}"
    yield f"Affects {plural(len(affected(cause, ENTRIES)), 'statement')}: `decomfl audit --cause {cause.name}`"
    yield ""


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _number(value: object) -> str:
    if value is None:
        return "never"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("_", "\\_").replace("*", "\\*") if "`" not in text else text
