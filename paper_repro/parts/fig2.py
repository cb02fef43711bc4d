"""Figure 2: DeComFL and FedAvg on MNIST; local updates K (left) and perturbations P (right)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from figures.comparison import Panel, by_communication, comparison
from figures.curves import COUNT_LABELS, Count
from figures.style import LineStyle, series_styles
from paper_repro.workflow import estimators
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.report import settings
from paper_repro.workflow.runs import Job
from paper_repro.workflow.scales import Scale
from paper_repro.workflow.series import runs_of
from paper_repro.workflow.verdicts.claim_table import CLAIMS, ClaimOutcome
from paper_repro.workflow.verdicts.claim_verdicts import evaluated, judged
from paper_repro.workflow.verdicts.measures import (
    CHECKED,
    COUNTS,
    bands_table,
    compared,
    judged_bands,
    settled,
    unready,
)
from paper_repro.workflow.verdicts.reference import fig2_countings, fig2_reference

PANELS = {"local-updates": "local updates K (P = 20)", "perturbations": "perturbations P (K = 4)"}
SETTINGS = {"as-plotted": "the authors' logs", "as-written": "the paper's text"}
"""Whose settings a reading has."""
CURVE = ("reading", "panel", "series")  # columns that name a curve
BANDS = {"as-plotted": "bands", "as-written": "bands of the text"}
"""The frames of the claims that the curves of a reading run where the authors' do."""
TEXT = CLAIMS["fig2.band-of-the-text"]


def jobs(options: Options) -> list[Job]:
    """The runs behind both panels, for each reading."""
    return runs_of("fig2", options)


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The figure by all three countings, its table and its verdicts."""
    scale = options.scale
    curves = estimators.Curves.of(rows, options, CURVE, add_countings, jobs(options))
    rows, lines = curves.rows, curves.lines
    authors = fig2_reference(options.authors)
    readings = [*dict.fromkeys(lines.reading)]

    # The paper's own two panels; then by the other countings, and with the settings of other readings.
    kinds = [(count, readings[0]) for count in sorted(COUNTS, key=lambda count: count != options.count)]
    kinds += [(options.count, reading) for reading in readings[1:]]
    figures: dict[str, Callable[[], Figure]] = {}
    for count, reading in kinds:
        of_reading = replace(curves, rows=rows[rows.reading == reading], lines=lines[lines.reading == reading])
        stem = "fig2" + f"-{count}" * (count != options.count) + f"-{reading}" * (reading != readings[0])
        figures[stem] = partial(
            comparison,
            *panels(curves, authors, [(count, reading, name) for name in PANELS], scale),
            across=len(PANELS),
            title="Figure 2: what K, P and FedAvg cost in communication",
            caption=of_reading.caption("fig2", provenance, options, settings=SETTINGS[reading]),
        )
    # Final accuracy and communication of every series, mean over seeds.
    last = lines.sort_values("round").groupby([*CURVE, "seed"], sort=False).tail(1)
    table = last.groupby([*CURVE]).agg(
        seeds=("seed", "count"),
        rounds=("round", "max"),
        accuracy=("test_accuracy", "mean"),
        std=("test_accuracy", lambda v: v.std(ddof=1) if len(v) > 1 else float("nan")),
        **{f"{count}_scalars": (f"{count}_scalars", "mean") for count in COUNTS},
    )
    tables = {
        "fig2": table.reset_index(),
        "fig2-estimators": estimators.gaps_table(estimators.gaps(rows, CURVE), CURVE),
    }
    frames = {}
    if options.authors is not None:  # nothing is judged by thinned curves
        frames["logs"] = authors.assign(reading="as-plotted")
        for reading in readings:
            read = lines[lines.reading == reading]
            by_method = [compared(of_method, authors, CURVE[1:]) for _, of_method in read.groupby("method")]
            bands = bands_table(pd.concat(by_method), CURVE[1:], rows[rows.reading == reading])
            tables[f"fig2-bands-{reading}"] = bands
            frames[BANDS[reading]] = judged_bands(bands, 6, testable=scale.name == "full")
    headings = [f"The same, {COUNT_LABELS[count]}" for count, reading in kinds[1:] if reading == readings[0]]
    headings += [f"With the settings of {SETTINGS[reading]} ({reading})" for reading in readings[1:]]
    return curves.made(
        "fig2",
        claims(rows, scale, frames),
        figures,
        tables,
        more=headings,
        settings=settings_table(scale),
        facts={
            "sizes": f"Scale {scale.words('fig2')}. Data: {provenance[0]['data']}.",
            "runs": str(rows.groupby([*CURVE, CHECKED, "seed"]).ngroups),
            "seeds": ", ".join(map(str, sorted(set(rows.seed)))),
        },
    )


def panels(
    curves: estimators.Curves, authors: pd.DataFrame, wanted: Sequence[tuple[Count, str, str]], scale: Scale
) -> tuple[list[Panel], dict[str, LineStyle]]:
    """The panels of these countings, readings and sides of the figure, and the style of every series."""
    frames = {kind: rows for kind, rows in {**curves.drawn, "reference": authors}.items() if rows is not None}
    curve_rows = pd.concat(frames.values()).sort_values(["panel", "K", "P"])
    # Colours for DeComFL, those of K before those of P, and greys for FedAvg.
    ours, fedavg = (curve_rows[(curve_rows.method == "FedAvg") == baseline].series for baseline in (False, True))
    styles = series_styles(ours) | series_styles(fedavg, baseline=True)
    axis: dict[str, Any] = {}
    if scale.name != "smoke":
        # Most of a long curve lies between 90 and 99 %: the axis spreads them, as far as the curves go.
        values = curve_rows.test_accuracy
        low, high = max(0.05, 0.9 * float(values.min())), min(0.995, 0.4 + 0.6 * float(values.max()))
        axis = {"yscale": "logit", "ylimits": (low, high)}
    drawn = []
    for count, reading, name in wanted:
        of_panel: dict[str, pd.DataFrame] = {}
        for kind, rows in frames.items():
            # The rows of a panel, FedAvg's from the other where it has none; the authors' of the same series are beside
            # every reading.
            is_read = rows.series.isin(of_panel["frame"].series) if kind == "reference" else rows.reading == reading
            read = rows[is_read]
            here, fedavg = read.panel == name, read.method == "FedAvg"
            of_panel[kind] = read[here] if (here & fedavg).any() else read[here | fedavg]
        drawn.append(by_communication(count=count, title=PANELS[name], **of_panel, **axis))
    return drawn, styles


def add_countings(rows: pd.DataFrame, scale: Scale) -> pd.DataFrame:
    """The rows with columns table1_scalars and plotted_scalars beside the measured wire_scalars."""
    size = scale.fig2
    return fig2_countings(rows, M=size.M, m=size.m)


def settings_table(scale: Scale) -> pd.DataFrame:
    """What was run, beside what the paper's text and the authors' logs have."""
    size = scale.fig2
    plotted = runs_of("fig2", Options(scale=scale, readings=("as-plotted",), count="wire"))
    rates = dict.fromkeys(job.config.lr for job in plotted if job.labels["method"] == "DeComFL")
    by = {"decomfl": "finite differences", "decomfl-projection": "projection ⟨∇f, z⟩"}[size.written_method]
    return settings("fig2", size.told(by=by, rates=" / ".join(f"{lr:g}" for lr in rates)))


def claims(rows: pd.DataFrame, scale: Scale, of_logs: Mapping[str, pd.DataFrame] | None = None) -> list[ClaimOutcome]:
    """The claims about Figure 2, judged by the "as-plotted" runs, and what the authors' curves say of them."""
    plotted = rows[rows.reading == "as-plotted"]
    lines = settled(plotted[~plotted[CHECKED].astype(bool)], CURVE)
    sizes = "the paper's sizes" if scale.name == "full" else "reduced"
    words = f"{scale.name} ({sizes}): {scale.fig2.told()['judged']}"
    if missing := unready(plotted, [*CURVE[1:], "estimator"]):
        words += f"; {missing[0].lower()}{missing[1:-1]}"
    frames = dict(of_logs or {})
    if plotted.empty:  # all other claims are about these runs
        return [replace(evaluated(TEXT, frames), scale=scale.words("fig2"))] if TEXT.line["of"] in frames else []
    frames = {"": lines, **estimators.frames(plotted, CURVE[1:]), **frames}
    return judged("fig2", words, frames, scales={TEXT.line["of"]: scale.words("fig2")})
