"""``decomfl paper``: every figure and table, the verdicts and the report, with one command."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Annotated, Any, cast

import joblib
import matplotlib
import pandas as pd
import typer
from matplotlib.figure import Figure

from decomfl_lab.errors import InputError, require_choice, require_int
from decomfl_lab.files import write_atomically
from figures.curves import Count, accuracy_by_communication
from figures.style import rc
from paper_repro import fig2
from paper_repro.claims import Claim, claims_json, write_claims
from paper_repro.reference import fig2_reference
from paper_repro.report import Section, render_report
from paper_repro.runs import run_all
from paper_repro.scales import FIG2_SCALES

__all__ = ["paper"]

PARTS = ("fig2",)


def paper(
    *,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (a minute), default (minutes) or full (the paper's sizes). [default: default]",
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
    jobs: Annotated[int, typer.Option(help="Runs at a time; 0 for one a CPU. [default: 0]", show_default=False)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON on stdout.")] = False,
) -> None:
    """Regenerate the paper's figures and tables, with a verdict on every claim.

    Runs are kept under OUT/runs by a fingerprint of settings, seed, data and code: what is there is not
    computed again, and an interrupted command resumes. Open OUT/report.html when it is done.
    """
    require_choice("scale", scale, FIG2_SCALES)
    require_choice("count", count, fig2.COUNTS)
    require_choice("reading", reading, (*fig2.READINGS, "both"))
    for part in filter(None, only.split(",")):
        require_choice("only", part, PARTS)
    require_int("jobs", jobs, 0)
    authors = fig2_reference(reference) if reference is not None else None
    readings = fig2.READINGS if reading == "both" else (reading,)
    started = time.monotonic()
    n_jobs = jobs or joblib.cpu_count()
    for folder in (out, out / "figures", out / "tables"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"out must be a folder that can be written, got {out} ({error.strerror})") from None
    runs, provenance = run_all(fig2.jobs(scale, readings), out / "runs", n_jobs=n_jobs)
    rows = fig2.add_countings(runs, scale)
    section, claims = _fig2(rows, scale, count, authors, out, provenance)
    minutes = (time.monotonic() - started) / 60
    facts = _facts(scale, provenance, rows, minutes)
    write_claims(out / "claims.json", claims)
    write_atomically(out / "report.html", render_report([section], facts=facts, claims=claims))
    if as_json:
        print(claims_json(claims))
    else:
        for claim in claims:
            print(f"{claim.verdict:28s} {claim.id}: {claim.claim}")
        print(f"\n{out / 'report.html'} ({minutes:.1f} min; {facts['data']})")


def _rendered(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(rc()):
        figure.savefig(buffer, format=kind)
    return buffer.getvalue()


def _fig2(
    rows: pd.DataFrame,
    scale: str,
    count: str,
    authors: pd.DataFrame | None,
    out: Path,
    provenance: list[dict[str, Any]],
) -> tuple[Section, list[Claim]]:
    data = provenance[0]["data"]
    drawn = {
        name: accuracy_by_communication(
            rows,
            count=cast(Count, name),
            reference=authors,
            title="Figure 2: what K, P and FedAvg cost in communication",
            caption=f"Scale {fig2.scale_words(scale)}. Data: {data}.",
        )
        for name in fig2.COUNTS
    }
    for name, figure in drawn.items():
        stem = "fig2" if name == count else f"fig2-{name}"
        for kind in ("png", "pdf"):
            write_atomically(out / "figures" / f"{stem}.{kind}", _rendered(figure, kind))
    table = fig2.summary_table(rows)
    write_atomically(out / "tables" / "fig2.csv", table.to_csv(index=False))
    write_atomically(out / "tables" / "fig2-curves.csv", rows.to_csv(index=False))
    claims = fig2.claims(rows, scale) if "as-plotted" in set(rows.reading) else []
    if authors is not None:
        claims.append(fig2.saving_in_the_logs(authors))
    seconds = rows.groupby(["reading", "panel", "series", "seed"]).seconds.max().sum()
    section = Section(
        id="fig2",
        title="Figure 2: accuracy against communication on MNIST",
        figure_png=_rendered(drawn[count], "png"),
        settings=fig2.settings_table(scale),
        notes=[
            "as-plotted is what the authors' logs and code say; as-written what the paper's text says. They are "
            "different experiments, and the curves of the paper's figure are of the first kind.",
            "wire: bytes really encoded by the codec, both directions, lag included, divided by 4 and averaged over "
            "all M clients. table1: the formula of the paper's Table 1. plotted: what the paper's axis counts, "
            "(round - 1)·K·P for DeComFL and (round - 1)·d for FedAvg, one direction and full participation. The "
            "same figure by the other two countings is in the folder figures.",
            "A record counts when it is sent: at the end of a short run the clients that were not sampled lately "
            "have not been sent the last rounds yet, so wire lies below table1 there.",
            "The curve that the paper labels FedAvg K=4 is, by its log's history, a run of K=5; it is run so here.",
        ],
        table=table,
        facts={
            "runs": str(len(provenance)),
            "seeds": ", ".join(map(str, sorted(set(rows.seed)))),
            "training time": f"{seconds / 60:.1f} core-minutes",
        },
    )
    return section, claims


def _facts(scale: str, provenance: list[dict[str, Any]], rows: pd.DataFrame, minutes: float) -> dict[str, str]:
    first = provenance[0]
    return {
        "scale": scale,
        "data": first["data"],
        "seeds": ", ".join(map(str, sorted(set(rows.seed)))),
        "time": f"{minutes:.1f} minutes for what was not there yet",
        "code": first["code"],
        "versions": f"Python {first['python']}, torch {first['torch']}, numpy {first['numpy']}",
        "device": first["device"],
        "noise": f"stream version {first['stream_version']}, backend {first['noise_backend']}",
    }
