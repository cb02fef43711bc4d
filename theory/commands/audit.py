"""``decomfl audit``: what the paper says, what is true, and the evidence, gathered again."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import click

from decomfl_lab.cli.command import command
from decomfl_lab.errors import plural, require, require_choice
from decomfl_lab.options import option
from decomfl_lab.storage.json_values import print_json
from decomfl_lab.storage.tables import table_beside
from theory.findings.finding import KINDS, STATUSES, Cause, Entry, EntryResult

_HELP: Final = table_beside(__name__, "audit.toml")
_WIDTH: Final = 118


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The options of ``decomfl audit``."""

    everything: bool = option(False, _HELP["everything"], flag="--all")
    cause: tuple[str, ...] = option((), _HELP["cause"])
    statement: tuple[str, ...] = option((), _HELP["statement"])
    status: tuple[str, ...] = option((), _HELP["status"].format(statuses=", ".join(STATUSES)), choices=STATUSES)
    kind: tuple[str, ...] = option((), _HELP["kind"].format(kinds=", ".join(KINDS)), choices=KINDS)
    as_json: bool = option(False, _HELP["as_json"], flag="--json")


@command
def audit(options: AuditOptions) -> None:
    """What the paper says, what is true, and the evidence for it.

      decomfl audit                       the findings that matter, on one screen

      decomfl audit --all                 every equation, lemma, theorem, assumption, algorithm line and table

      decomfl audit --cause mini-batch    a cause, and what it affects

      decomfl audit --statement theorem-1     a statement, its evidence, and what is true instead

    Exit code 0 if all evidence holds, else 1.
    """
    from decomfl_lab.progress import RunBars
    from theory.findings.finding import gather
    from theory.findings.page import places
    from theory.findings.registry import CAUSES, ENTRIES, affected
    from theory.findings.texts import KNOWN

    for each in options.cause or []:
        require_choice("--cause", each, CAUSES)
    for each in options.statement or []:
        require(any(_is(entry, each) for entry in ENTRIES), "--statement", _known(ENTRIES, each), each)
    spoiled = {name: affected(CAUSES[name], ENTRIES) for name in options.cause or CAUSES}
    entries = [
        entry
        for entry in ENTRIES
        if (not options.statement or any(_is(entry, each) for each in options.statement))
        and (not options.status or entry.status in options.status)
        and (not options.kind or entry.kind in options.kind)
        and (not options.cause or any(entry in each for each in spoiled.values()))
    ]
    with RunBars() as bars:
        results = gather(entries, lambda done, found: bars.show("audit", done, len(entries), found.entry.label), KNOWN)
    if options.as_json:
        print_json([result.row() for result in results])
    elif options.statement:
        print("\n\n".join(map(_in_full, results)))
    elif options.cause:
        blocks = []
        for cause in (CAUSES[name] for name in options.cause):
            lines = [f"{cause.title} [{cause.name}, {cause.nature}]", _wrapped("instead", cause.instead)]
            lines += [_wrapped("seen", _witness(cause, results)), ""]
            for entry in spoiled[cause.name]:
                lines.append(f"{entry.label} ({entry.place}, {entry.kind}): {entry.status}")
                lines += [_wrapped(name, getattr(entry, name)) for name in ("says", "why", "instead")]
            blocks.append("\n".join(lines))
        print("\n\n".join(blocks))
    elif options.everything or options.status or options.kind:
        for result in results:
            entry = result.entry
            status = entry.status if result.confirmed else f"{entry.status}: EVIDENCE FAILS"
            print(_short(f"{entry.label:24} {status:34} {entry.number}: {entry.says}", 160))
    else:
        headlines = [each for each in CAUSES.values() if each.headline]
        for number, cause in enumerate(headlines, 1):
            print(_short(f"{number:2}. {cause.name}: {cause.title}"))
            print(_short(f"    seen      {_witness(cause, results)}"))
            print(_short(f"    instead   {cause.instead}"))
            print(_short(f"    affects   {places(spoiled[cause.name])}"))
        print(
            f"\nThe other {len(CAUSES) - len(headlines)} causes are smaller: `decomfl audit --all`, docs/findings.md."
        )
    open_ = [result.entry.label for result in results if not result.confirmed]
    if not options.as_json:
        print(_counts(results, open_))
    if open_:
        raise click.exceptions.Exit(1)


def _is(entry: Entry, name: str) -> bool:
    """Whether the name, as "the.1", "theorem-1" or "Theorem 1", is one of the entry's."""
    return name in entry.names or name.lower().replace(" ", "-") in entry.names


def _known(entries: Sequence[Entry], name: str) -> str:
    """The rule for the name of a statement, with names that are like this one, or else those of theorems and lemmas."""
    from theory.bounds import names

    if name in names():
        return f"be stated by the paper, as this bound is not (decomfl bound --statement {name} has it)"
    everything = sorted({each for entry in entries for each in entry.names})
    shown = get_close_matches(name.lower(), everything, 6, 0.5)
    shown = shown or sorted({entry.names[-1] for entry in entries if entry.kind in ("theorem", "corollary", "lemma")})
    return f"be a statement of the audit, which --all lists, as {', '.join(shown)}"


def _short(text: str, width: int = _WIDTH) -> str:
    """In one line, cut at the end where it is too long."""
    return text if len(text) <= width else text[: width - 2].rstrip() + " …"


def _witness(cause: Cause, results: Sequence[EntryResult]) -> str:
    """What the check that shows a cause best has found now."""
    for result in results:
        names = [check.name for checks in result.entry.evidence.values() for check in checks]
        if cause.witness.name in names:
            where, colon, found = result.evidence[names.index(cause.witness.name)][1].says.rpartition(": ")
            return f"{found} ({where})" if colon else found
    return ""


def _wrapped(name: str, text: str) -> str:
    """A field with its text below its name's end."""
    return textwrap.fill(" ".join(text.split()), _WIDTH, initial_indent=f"  {name:9} ", subsequent_indent=12 * " ")


def _in_full(result: EntryResult) -> str:
    entry = result.entry
    lines = [
        f"{entry.label} ({entry.place}, {entry.kind}): {entry.status}",
        _wrapped("quote", f"“{entry.quote}”") if entry.quote else "",
        _wrapped("says", entry.says),
        _wrapped("tests", entry.tests) if entry.tests else "",
        *(_wrapped("cause", f"{cause.title} [{cause.name}]") for cause in entry.causes),
        _wrapped("carries", entry.carries) if entry.carries else "",
        _wrapped("why", entry.why) if entry.why else "",
        *(
            _wrapped(role if found.plays(role) else "FAILS", f"{found.instrument}: {found.says}")
            for role, found in result.evidence
        ),
        *(_wrapped(role, f"run {run} (decomfl paper --list)") for run, role in entry.runs.items()),
        _wrapped("instead", entry.instead) if entry.instead else "",
    ]
    return "\n".join(line for line in lines if line)


def _counts(results: Sequence[EntryResult], open_: Sequence[str]) -> str:
    """How many statements have each status, and whether their evidence holds."""
    counts = Counter[str](result.entry.status for result in results)
    again = sum(bool(result.entry.restates) for result in results)
    pieces = sum(len(result.evidence) for result in results)
    by_status = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status]) or "none"
    evidence = f"evidence fails for {', '.join(open_)}" if open_ else f"{plural(pieces, 'piece')} of evidence: all hold"
    in_all = f"{len(results)} statement{'s' * (len(results) != 1)}{f', {again} of them said again' * bool(again)}"
    from theory.notation.symbols import MOMENTS

    symbols = textwrap.fill(f"{'; '.join(MOMENTS.values())}; D = f(x_0) − f*. NOTATION.md has the others.", _WIDTH)
    return f"\n{symbols}\n{in_all}: {by_status}; {evidence}."
