"""``decomfl audit``: every statement of the paper, its finding, and the evidence gathered again."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decomfl_lab.errors import require, require_choice
from decomfl_lab.runs.progress import RunBars
from theory.audit.entry import FINDINGS, KINDS, Entry, Result
from theory.audit.registry import ENTRIES, missing, run, stale
from theory.audit.source import read

__all__ = ["audit"]


def audit(
    *,
    statement: Annotated[
        list[str] | None, typer.Option(help="Show only the entries of this LaTeX label or line-N, in full. Repeatable.")
    ] = None,
    finding: Annotated[
        list[str] | None,
        typer.Option("--finding", "--verdict", help=f"Show only the entries found {', '.join(FINDINGS)}. Repeatable."),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help=f"Show only the entries of the kind {', '.join(KINDS)}. Repeatable.")
    ] = None,
    paper: Annotated[
        Path | None,
        typer.Option(
            envvar="DECOMFL_PAPER",
            help="Path of the paper's TeX source, to say what of it has no entry and which entries have no line.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print rows of label, line, kind, finding, instrument, witness, fix as JSON.")
    ] = False,
) -> None:
    """Repeat the findings on every equation, lemma, theorem, assumption, algorithm line and table of the paper.

    Exit code 0 if the evidence bears every finding out and nothing of the source is left out, else 1.
    """
    entries = _chosen(statement or [], finding or [], kind or [])
    gaps = _coverage(paper) if paper else []
    started = time.monotonic()
    with RunBars() as bars:
        results = run(entries, lambda done, found: bars.show("audit", done, len(entries), found.entry.label))
    if as_json:
        print(json.dumps([result.row() for result in results], ensure_ascii=False))
    elif statement:
        for result in results:
            _print_in_full(result)
    else:
        _print_table(results, time.monotonic() - started)
    for gap in gaps:
        print(gap, file=sys.stderr)
    if gaps or not all(result.confirmed for result in results):
        raise typer.Exit(1)


def _chosen(statements: list[str], findings: list[str], kinds: list[str]) -> list[Entry]:
    for each in findings:
        require_choice("--finding", each, FINDINGS)
    for each in kinds:
        require_choice("--kind", each, KINDS)
    for each in statements:
        require(any(_is(entry, each) for entry in ENTRIES), "--statement", "be a label or line of the audit", each)
    return [
        entry
        for entry in ENTRIES
        if (not statements or any(_is(entry, each) for each in statements))
        and (not findings or entry.finding in findings)
        and (not kinds or entry.kind in kinds)
    ]


def _is(entry: Entry, name: str) -> bool:
    """Whether the name is one of the entry's labels, or its line."""
    return name in (entry.label, *entry.labels, f"line-{entry.line}")


def _coverage(paper: Path) -> list[str]:
    """What the source has and the audit lacks, or the other way round."""
    source = read(paper)
    if not source.audited:
        print(f"{paper} is not the file that the entries were made for (other sha256)", file=sys.stderr)
    gaps = [*(f"no entry for {gap}" for gap in missing(source)), *(f"stale entry {name}" for name in stale(source))]
    print(f"{paper}: {len(source.items)} parts to speak of, {len(gaps)} gaps", file=sys.stderr)
    return gaps


def _print_table(results: list[Result], seconds: float) -> None:
    table = Table("label", "line", "kind", "finding", "checked by", "why, or what it says", row_styles=["", "dim"])
    for row in (result.row() for result in results):
        finding = row["finding"] if row["confirmed"] else f"{row['finding']}: NOT CONFIRMED"
        cells = (
            row["label"],
            row["line"],
            row["kind"],
            finding,
            row["instrument"].replace(", ", "\n"),
            row["why"] or row["says"],
        )
        table.add_row(*(escape(str(cell)) for cell in cells))
    console = Console()
    console.print(table)
    counts: Counter[str] = Counter(result.entry.finding for result in results)
    console.print(", ".join(f"{counts[finding]} {finding}" for finding in FINDINGS if counts[finding]) or "no entry")
    open_ = [result.entry.label for result in results if not result.confirmed]
    confirmed = f"{len(results) - len(open_)} of {len(results)} findings confirmed in {seconds:.0f} s"
    console.print(escape(f"{confirmed}; not confirmed: {', '.join(open_)}" if open_ else confirmed))


def _print_in_full(result: Result) -> None:
    entry = result.entry
    lines = [
        f"{entry.label} (line {entry.line}, {entry.kind}): {entry.finding}",
        f"  says     {entry.says}",
        f"  why      {entry.why}" if entry.why else "",
        *(
            f"  {'evidence' if found.holds else 'AGAINST '} {found.instrument}: {found.says}"
            for found in result.evidence
        ),
        f"  instead  {entry.fix}" if entry.fix else "",
    ]
    print("\n".join(line for line in lines if line))
