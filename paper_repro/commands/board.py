"""``decomfl board``: every method in one race, as a table, a picture and verdicts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from decomfl_lab.cli.command import command
from decomfl_lab.errors import InputError, require, require_choice
from decomfl_lab.files import write_atomically
from decomfl_lab.options import option
from paper_repro.workflow.claims import decided, named

if TYPE_CHECKING:
    import pandas as pd

    from paper_repro.workflow.claims import Outcome

__all__ = ["board", "page"]

_NARROW = ("problem", "replayable", "pace", "a client keeps", "back after missed rounds", "backward passes", "seconds")
"""Columns that a terminal has no room for."""


@dataclass(frozen=True, kw_only=True)
class BoardOptions:
    """The options of ``decomfl board``."""

    scale: str = option(
        "default", "The scale: smoke (2 minutes), default (a quarter of an hour) or full (hours). [default: default]"
    )
    problem: str = option(
        "", "The problems, joined by semicolons; the error for another lists them. [default: all of the scale]"
    )
    methods: str = option(
        "", "The lines of the board, joined by semicolons; the error for another lists them. [default: all]"
    )
    out: Path = option(Path("out"), "The folder for report.html, figures, tables, claims.json and runs. [default: out]")
    jobs: int = option(0, "The number of races at a time; 0 for one a CPU. [default: 0]")
    record: Path | None = option(
        None,
        "Keep the rows in this folder (paper_repro/results: with the code), beside those that are recorded "
        "there of other problems and methods.",
    )
    write: Path | None = option(
        None, "Compute nothing: write board.md and board.png, of what is recorded, in this folder."
    )
    as_json: bool = option(False, "Print table and verdicts as JSON on stdout.", flag="--json")


@command
def board(options: BoardOptions) -> None:
    """Race all methods to an accuracy or loss, and count the cost.

    Counted are rounds, bytes, forward passes, memory and rebuilds.

    Learning rates are chosen by one rule, on other seeds than the table's. Races are kept under OUT/runs: what is there
    is not run again, and an interrupted command goes on.
    """
    if options.write is not None:
        require(options.write.is_dir(), "--write", "be a folder that is there", str(options.write))
        text, picture = page()
        write_atomically(options.write / "board.png", picture)
        write_atomically(options.write / "board.md", text)
        return
    from paper_repro.making import make_report
    from paper_repro.studies.board_runs import LINES
    from paper_repro.workflow.scales import SCALES

    require_choice("scale", options.scale, SCALES)
    problems = named("problem", options.problem, ";", SCALES[options.scale].board.races)
    lines = named("methods", options.methods, ";", LINES)
    outcomes = make_report(
        scale=options.scale,
        only="board",
        out=options.out,
        count="wire",
        reading="both",
        reference=None,
        from_recorded=False,
        record=options.record,
        hours=None,
        minutes=None,
        device="cpu",
        resume=False,
        jobs=options.jobs,
        backend="loky",
        runs=None,
        as_json=False,
        problems=problems,
        lines=lines,
        silent=True,
    )
    import pandas as pd

    _print(pd.read_csv(options.out / "tables" / "board.csv"), outcomes, options.out, as_json=options.as_json)


def _print(table: pd.DataFrame, outcomes: list[Outcome], out: Path, *, as_json: bool) -> None:
    """The table, problem by problem, and the verdicts."""
    verdicts = [outcome.row() for outcome in outcomes]
    if as_json:
        rows = json.loads(table.to_json(orient="records"))
        print(json.dumps({"table": rows, "claims": verdicts}, indent=1, ensure_ascii=False))
        return
    from paper_repro.studies.board import shown
    from paper_repro.studies.board_runs import RULE

    for name, own in table.groupby("problem", sort=False):
        print(f"{name}\n{shown(own).drop(columns=[*_NARROW]).to_string(index=False)}\n")
    for verdict in verdicts:
        print(f"{verdict['verdict']:28s} {verdict['id']}: {verdict['claim']}")
    print(f"\n{RULE}\n{out / 'report.html'}")


def page() -> tuple[str, bytes]:
    """The page of the documentation, as Markdown, and its picture: of what is recorded at the largest scale."""
    from paper_repro.making import LARGEST
    from paper_repro.studies.board import make, scale_words, shown, summary
    from paper_repro.workflow import recorded
    from paper_repro.workflow.part import Options, rendered
    from paper_repro.workflow.scales import SCALES

    kept = recorded.largest("board")
    if kept is None:
        raise InputError("board must be recorded (decomfl board --record paper_repro/results), got no rows")
    made = make(kept.rows, kept.provenance, Options(scale=SCALES[kept.scale], readings=(), count="wire"))
    text = [
        "# The board: all methods in one race",
        f"Generated by `decomfl board --write docs` from rows {kept.words}. Scale {scale_words(SCALES[kept.scale])}.",
        "![accuracy against bytes and against forward passes](board.png)",
        *made.section.notes,
    ]
    for name, own in summary(kept.rows).groupby("problem", sort=False):
        text += [f"## {name}", _markdown(shown(own).drop(columns="problem"))]
    longer = recorded.load("board", LARGEST)
    if longer is not None:
        more = longer.rows[~longer.rows["problem"].isin(kept.rows["problem"])]
        size = SCALES[LARGEST].board
        for name, own in more.groupby("problem", sort=False):
            lines = f"the lines that were raced, from rows {longer.words}"
            text += [f"## {name}", f"Scale {LARGEST}: {size.races[str(name)]}; {lines}."]
            text.append(_markdown(shown(summary(own)).drop(columns="problem")))
    text.append("## Claims of the successors")
    for outcome in decided(made.claims, kept.scale):
        row = outcome.row()
        told = "; ".join(f"{label} {value:.4g}" for label, value in row["measured"].items())
        measured = f" Measured: {told}." if told else ""
        text.append(f"**{row['verdict']}**: {row['claim']} {row['source']}. {row['rule']}{measured}")
    return "\n\n".join(text) + "\n", rendered(made.figures["board-all"], dpi=100)


def _markdown(table: pd.DataFrame) -> str:
    """A table."""
    rows = [list(table.columns), ["---"] * table.shape[1], *table.astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
