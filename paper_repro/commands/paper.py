"""``decomfl paper``: every figure and table, the verdicts and the report, with one command."""

from __future__ import annotations

import json
from collections.abc import Sequence

from decomfl_lab.cli.command import command
from decomfl_lab.errors import require
from paper_repro.workflow.asked import PaperOptions
from paper_repro.workflow.claims import PARTS, VERDICTS, WORDS, named, rows

__all__ = ["paper"]


@command
def paper(options: PaperOptions) -> None:
    """Regenerate the paper's figures, tables and verdicts on claims.

    Runs are kept under OUT/runs, or in --runs, by a fingerprint of settings, seed, data and code: what is there is not
    computed again, and an interrupted command resumes. Open OUT/report.html when it is done.
    """
    if options.list_claims:
        require(not options.changes, "--set", "be left out with --list", options.changes)
        _list(named("only", options.only, ",", [*PARTS, "paper"]), as_json=options.as_json)
        return
    from paper_repro.making import make_report  # with it come torch, pandas and matplotlib

    make_report(options)


def _list(parts: Sequence[str], *, as_json: bool) -> None:
    """Print the registry: a table a part and the words in them, 100 columns wide, or rows of JSON."""
    found = rows(parts)
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=100)
    for part in dict.fromkeys(row["part"] for row in found):
        own = [row for row in found if row["part"] == part]
        title = PARTS[part].title if part in PARTS else "Measured by no part"
        table = Table(title=f"{part}: {title}", title_justify="left", title_style="bold", show_lines=True, expand=True)
        table.add_column("claim, recorded verdict", width=24)
        table.add_column("the paper's words, or the question; where", ratio=8)
        table.add_column("what is measured; when it holds", ratio=9)
        for row in own:
            name = row["id"].partition(".")[2]
            known = f"from scale {row['scale']}\n{row['verdict']}" if row["scale"] else row["verdict"]
            says = f"“{row['words']}”" if row["words"] else row["question"]
            subject = f"\n{row['subject']}" if row["subject"] else ""
            rule = row["unmeasured"] or f"{row['measures']}\n{row['rule']}"
            table.add_row(*map(Text, (f"{name}\n{known}", f"{says}{subject}\n{row['where']}", rule)))
        console.print(table)
    judged = sum(not row["unmeasured"] for row in found)
    decided = sum(row["verdict"] in VERDICTS[:3] for row in found)
    words = Table(title="Words", title_justify="left", title_style="bold", show_header=False, expand=True)
    words.add_column(width=24)
    words.add_column()
    for word, meaning in WORDS.items():
        words.add_row(Text(word), Text(meaning))
    console.print(words)
    console.print(f"{len(found)} rows, {judged} of them judged by a part, {decided} decided by recorded runs")
