"""Table 1: communication complexities, with what was measured beside every formula."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import pandas as pd

from decomfl_lab.errors import plural, require
from paper_repro.workflow import estimators
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import notes, printed
from paper_repro.workflow.runs import Job
from paper_repro.workflow.series import runs_of
from paper_repro.workflow.verdicts.claim_verdicts import judged
from paper_repro.workflow.verdicts.measures import CHECKED, highest_level, lines_of, scalars_to_reach, unready
from paper_repro.workflow.verdicts.reference import D, countings

K, P = 10, 20
OURS = "DeComFL K=10 P=20"
FEDZO = "FedZO K=10 P=20"


ROWS = printed("table1")
"""The rows of the paper's table: costs a round up and down; the complexity, rounds, scalars up and down for an
ε-approximate solution; and β, the share of d scalars that goes up, NaN for DeComFL."""

CHECK_MU = 1e-3  # the μ of the runs of FedZO by finite differences that check those by projection, the limit μ → 0

_COMPARED = [series for series in ROWS if series != FEDZO]
"""DeComFL and the first-order methods, of which table1.least is."""


def jobs(options: Options) -> list[Job]:
    """DeComFL and FedAvg (K = 10) of Figure 2 as plotted, and the table's other methods at the same size."""
    size = options.scale.fig2
    require(10 in size.local_rounds, "fig2.local_rounds", "have K = 10, which Table 1 is about", size.local_rounds)
    runs = runs_of("table1", options)
    of_fig2 = [job for job in runs if "panel" in job.labels]
    # The table's own methods seed by seed.
    return of_fig2 + sorted(runs[len(of_fig2) :], key=lambda job: size.seeds.index(job.config.seed))


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:  # noqa: ARG001
    """The table, and whether its formulas are what is sent."""
    size = options.scale.fig2
    measured_by = "finite differences"
    if size.fedzo_method != "fedzo":
        # How far FedZO's runs by finite differences are from those by projection, where there are any.
        measured_by = "projection"
        gaps = estimators.gaps(rows[rows.series == FEDZO], ["series"]) if CHECKED in rows else rows[:0]
        if len(gaps):
            last = gaps[gaps["round"] == gaps["round"].max()]
            gap, at_last = (f"{100 * each.gap.max():.2f}" for each in (gaps, last))
            measured_by += (
                f" (by finite differences, μ = {CHECK_MU:g}, {plural(gaps.seed.nunique(), 'seed')}, accuracies are at "
                f"most {gap} points from those, at {len(gaps)} evaluations, and {at_last} at the last)"
            )
    rows = lines_of(rows)
    beta = rows.series.map({series: row.beta for series, row in ROWS.items()})
    rows = countings(rows, lambda R: R * K * P, M=size.M, m=size.m, ours=beta.isna(), uplink=beta)
    runs = [rows[rows.series == series] for series in _COMPARED]
    level, M, m = highest_level(runs), size.M, size.m
    # The paper's formulas with their values in scalars a round (all clients), and the measured ones beside them.
    entries = []
    for series, row in ROWS.items():
        run = rows[rows.series == series]
        if run.empty:
            continue
        last = run[run["round"] == run["round"].max()]
        formula_up, formula_down = (m * K * P, 2 * M * K * P) if isnan(row.beta) else (row.beta * m * D, m * D)
        entry: dict[str, Any] = {
            "algorithm": series,
            "uplink a round": row.up,
            "uplink, formula": float(formula_up),
            "uplink, measured": float((last.up_bytes / 4 / last["round"]).mean()),
            "downlink a round": row.down,
            "downlink, formula": float(formula_down),
            "downlink, measured": float(((last.wire_bytes - last.up_bytes) / 4 / last["round"]).mean()),
            "rounds; up; down to ε": row.complexity,
        }
        if level is not None:
            entry[f"rounds to {level:g}"] = scalars_to_reach(run, level, "round")
            for count in ("wire", "table1"):
                entry[f"scalars a client to {level:g}, {count}"] = scalars_to_reach(run, level, f"{count}_scalars")
        entries.append(entry)
    table = pd.DataFrame(entries)
    words = f"{options.scale.words('fig2')}; K={K}, P={P}, d={D:,}. {unready(rows, ['series'])}".strip(". ")
    return made(
        "table1",
        judged("table1", words, {"": rows, "table": table}),
        tables={"table1": table},
        notes=notes("table1", fedzo_rounds=size.fedzo_rounds, fedzo_by=measured_by),
        facts={"scale": words},
    )
