"""``decomfl paper``: every figure and table, the verdicts and the report, with one command."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import joblib
import pandas as pd
import typer

from decomfl_lab.errors import require_choice, require_int
from decomfl_lab.files import held, write_atomically
from decomfl_lab.interrupts import telling
from decomfl_lab.training import code_version
from figures.curves import Count
from paper_repro import (
    audit,
    fig2,
    fig3,
    hessian,
    llm,
    memory,
    pretrained,
    projection,
    recorded,
    sizes,
    table1,
    theory,
    topk,
)
from paper_repro.claims import claims_json, write_claims
from paper_repro.measures import COUNTS
from paper_repro.part import Made, Options, Part, rendered
from paper_repro.reference import fig2_reference
from paper_repro.report import SCALES, render_report
from paper_repro.runs import run_all

__all__ = ["PARTS", "paper"]

PARTS: dict[str, Part] = {
    "fig2": fig2,
    "fig3": fig3,
    "projection": projection,
    "topk": topk,
    "table1": table1,
    "llm": llm,
    "smollm2": pretrained,
    "memory": memory,
    "hessian": hessian,
    "sizes": sizes,
    "theory": theory,
    "audit": audit,
}
"""In the order of the report."""


def paper(
    *,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (2 minutes), default (a quarter of an hour) or full (the paper's sizes). [default: default]",
            show_default=False,
        ),
    ] = "default",
    only: Annotated[
        str,
        typer.Option(help=f"Parts to make, joined by commas: {', '.join(PARTS)}. [default: all]", show_default=False),
    ] = "",
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for report.html, figures, tables, claims.json and runs. [default: out]", show_default=False
        ),
    ] = Path("out"),
    count: Annotated[
        str,
        typer.Option(
            help="x-axis: wire (bytes encoded), table1 (the paper's formula) or plotted (its axis). [default: wire]",
            show_default=False,
        ),
    ] = "wire",
    reading: Annotated[
        str,
        typer.Option(
            help="Settings: as-plotted (the authors' logs), as-written (the paper's text) or both. [default: both]",
            show_default=False,
        ),
    ] = "both",
    reference: Annotated[
        Path | None,
        typer.Option(help="Folder with authors_curves.csv: the authors' curves are drawn beside ours."),
    ] = None,
    from_recorded: Annotated[
        bool,
        typer.Option(
            help="Draw what is kept under paper_repro/results instead of computing; parts without it are run."
        ),
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(help="Keep the rows of the parts made here in this folder (paper_repro/results: with the code)."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; 0 for one a CPU. [default: 0]", show_default=False)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON on stdout.")] = False,
) -> None:
    """Regenerate the paper's figures and tables, with a verdict on every claim.

    Runs are kept under OUT/runs by a fingerprint of settings, seed, data and code: what is there is not
    computed again, and an interrupted command resumes. Open OUT/report.html when it is done.
    """
    require_choice("scale", scale, SCALES)
    require_choice("count", count, COUNTS)
    require_choice("reading", reading, (*fig2.READINGS, "both"))
    chosen = [name.strip() for name in only.split(",") if name.strip()] or list(PARTS)
    for name in chosen:
        require_choice("only", name, PARTS)
    require_int("jobs", jobs, 0)
    started = time.monotonic()
    options = Options(
        scale=scale,
        readings=fig2.READINGS if reading == "both" else (reading,),
        count=cast(Count, count),
        cache=out / "runs",
        authors=reference,
        from_recorded=from_recorded,
        record=record,
    )

    def interrupted() -> str:
        return f"interrupted; what was finished is kept in {out}; the same command goes on"

    with telling(interrupted), held(out), held(out / "figures"), held(out / "tables"):
        if reference is not None:
            fig2_reference(reference)  # refused before anything is run
        made, provenance = _make([name for name in PARTS if name in chosen], options, jobs or joblib.cpu_count())
        for part in made:
            for stem, figure in part.figures.items():
                for kind in ("png", "pdf"):
                    write_atomically(out / "figures" / f"{stem}.{kind}", rendered(figure, kind))
            for stem, table in part.tables.items():
                write_atomically(out / "tables" / f"{stem}.csv", table.to_csv(index=False))
        claims = [claim for part in made for claim in part.claims]
        minutes = (time.monotonic() - started) / 60
        facts = _facts(scale, provenance, minutes)
        write_claims(out / "claims.json", claims)
        sections = [part.section for part in made]
        write_atomically(out / "report.html", render_report(sections, facts=facts, claims=claims))
    if as_json:
        print(claims_json(claims))
    else:
        data = f"; {facts['data']}" if "data" in facts else ""
        for claim in claims:
            print(f"{claim.verdict:28s} {claim.id}: {claim.claim}")
        print(f"\n{out / 'report.html'} ({minutes:.1f} min{data})")


def _make(names: Sequence[str], options: Options, n_jobs: int) -> tuple[list[Made], list[Mapping[str, Any]]]:
    """The parts, and the provenance of every run: all runs of all parts go into one pool.

    A part that is asked for as it was recorded, or whose runs cannot be made here (no jobs), is drawn from what is
    kept with the code, where there is something.
    """
    kept = {name: recorded.load(name, options.scale) for name in names}
    jobs = {name: [] if options.from_recorded and kept[name] else PARTS[name].jobs(options) for name in names}
    results = run_all([job for own in jobs.values() for job in own], options.cache, n_jobs=n_jobs)
    made: list[Made] = []
    provenance: list[Mapping[str, Any]] = []
    for name, own in jobs.items():
        mine, results = results[: len(own)], results[len(own) :]
        rows = pd.concat([frame for frame, _ in mine], ignore_index=True) if mine else pd.DataFrame()
        facts = [facts for _, facts in mine]
        earlier = None if mine else kept[name]
        if earlier is not None:
            made.append(earlier.told(PARTS[name].make(earlier.rows, earlier.provenance, options)))
        else:
            made.append(PARTS[name].make(rows, facts, options))
        if mine and options.record is not None:
            recorded.save(name, options.scale, rows, facts, options.record)
        provenance += [each for each in facts if each]  # what only code makes has none
    return made, provenance


def _facts(scale: str, provenance: Sequence[Mapping[str, Any]], minutes: float) -> dict[str, str]:
    facts = {"scale": scale, "time": f"{minutes:.1f} minutes for what was not there yet", "code": code_version()}
    if provenance:
        first = provenance[0]
        hub = next((f", transformers {each['transformers']}" for each in provenance if "transformers" in each), "")
        said = [piece for each in provenance for piece in str(each["data"]).split("; ")]  # runs share data and models
        facts |= {
            "data": "; ".join(dict.fromkeys(said)),
            "versions": f"Python {first['python']}, torch {first['torch']}, numpy {first['numpy']}{hub}",
            "device": first["device"],
            "noise": f"stream version {first['stream_version']}, backend {first['noise_backend']}",
        }
    return facts
