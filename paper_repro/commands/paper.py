"""``decomfl paper``: every figure and table, the verdicts and the report, with one command."""

from dataclasses import asdict
from typing import Any

from decomfl_lab.cli.command import command
from decomfl_lab.errors import require
from decomfl_lab.storage.json_values import print_json
from paper_repro.workflow.options import PaperOptions
from paper_repro.workflow.verdicts.claim_table import PARTS, VERDICTS, WORDS, named, outcomes_json, rows


@command
def paper(options: PaperOptions) -> None:
    """Regenerate the paper's figures, tables and verdicts on claims.

    Without --scale the page OUT/report.html first shows what is recorded with the code, within a minute. Then the
    beginnings of the runs of default scale check it on this machine, section by section. Figures are then PNG files;
    with --from-recorded or --scale they are PDF files too.

    Runs are kept under OUT/runs, or in --runs, by a fingerprint of settings, seed, data and code: what is there is not
    computed again, and an interrupted command resumes. The page is whole at any time.
    """
    if options.answer or options.list_claims:  # which are tables, 100 columns wide
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console(width=100)
        style: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "expand": True}
    if options.answer:
        # The ten lines, with what is recorded below; or JSON.
        from paper_repro.workflow.verdicts.answer import answer

        lines = answer()
        if options.as_json:
            print_json([asdict(each) for each in lines], indent=1)
            return
        table = Table(title="Is the paper right?", **style)
        table.add_column("about", width=19)
        table.add_column("verdict", width=12)
        table.add_column("found", ratio=1)
        for each in lines:
            found = f"{each.says}\n→ docs/{each.link}, {each.again}"
            table.add_row(each.topic, Text(each.verdict, style="bold"), Text(found))
        console.print(table)
        console.print("Several words in one line: its sentences have different verdicts, the gravest is named first.")
        recorded = sorted({each.recorded.partition(" by code")[0] for each in lines if each.recorded})
        days = " and ".join(text.removeprefix("recorded ") for text in recorded)
        console.print(f"Numbers from runs were recorded {days}; all others are computed now.")
        console.print("Full scale has the paper's sizes; default scale has smaller models, fewer rounds or seeds.")
        return
    if options.list_claims:
        require(not options.changes, "--set", "be left out with --list", options.changes)
        # The registry: a table a part and the words in them, or rows of JSON.
        listed = rows(named("only", options.only, PARTS))
        if options.as_json:
            print_json(listed, indent=1)
            return
        for part in dict.fromkeys(row["part"] for row in listed):
            rows_of_part = [row for row in listed if row["part"] == part]
            table = Table(title=f"{part}: {PARTS[part].title}", show_lines=True, **style)
            table.add_column("claim, recorded verdict", width=24)
            table.add_column("the question; sentences by status", ratio=8)
            table.add_column("what is measured; when it holds", ratio=9)
            for row in rows_of_part:
                name = row["id"].partition(".")[2]
                asked = [row["question"], row["subject"], row["where"]]
                asked += [f"{each['status']}: “{each['quote']}” {each['place']}" for each in row["sentences"]]
                known = (name, row["verdict"], f"(decided from scale {row['scale']} on)")
                cells = (known, asked, (row["measures"], row["rule"]))
                table.add_row(*(Text("\n".join(filter(None, cell))) for cell in cells))
            console.print(table)
        decided = sum(row["verdict"] in VERDICTS[:3] for row in listed)
        words = Table(title="Words", show_header=False, **style)
        words.add_column(width=24)
        words.add_column()
        for word, meaning in WORDS.items():
            words.add_row(Text(word), Text(meaning))
        console.print(words)
        console.print(f"{len(listed)} rows, {decided} decided by recorded runs")
        return
    from paper_repro.pipeline import make_report  # with it come torch, pandas and matplotlib
    from paper_repro.request import requested

    outcomes = make_report(requested(options), silent=options.as_json)
    if options.as_json:
        print(outcomes_json(outcomes))
