"""Figure 2: DeComFL and FedAvg on MNIST; local updates K (left) and perturbations P (right)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from decomfl_lab.runs.config import TrainConfig
from figures.comparison import Panel, by_communication, comparison
from figures.curves import Count
from figures.style import series_styles
from paper_repro.workflow import estimators
from paper_repro.workflow.claims import ClaimOutcome
from paper_repro.workflow.expression import judged
from paper_repro.workflow.measures import (
    CHECKED,
    COUNTS,
    band,
    bands_table,
    compared,
    settled,
    unready,
)
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.reference import countings, fig2_reference
from paper_repro.workflow.report import Section, settings
from paper_repro.workflow.runs import Job
from paper_repro.workflow.scales import READINGS, Fig2Scale, Scale

__all__ = [
    "add_countings",
    "claims",
    "jobs",
    "make",
    "scale_words",
    "settings_table",
    "summary_table",
]

LOCAL_STEPS = (1, 4, 10)
PERTURBATIONS = (10, 20, 40)
PANELS = {"local-updates": "local updates K (P = 20)", "perturbations": "perturbations P (K = 4)"}
CURVE = ("reading", "panel", "series")  # columns that name a curve

BANDS = {"as-plotted": "fig2.band", "as-written": "fig2.band-of-the-text"}
"""The claim that the curves of a reading run where the authors' do."""


def jobs(options: Options) -> list[Job]:
    """The runs behind both panels, for each reading."""
    on_gpu = options.device != "cpu"
    return [job for name in options.readings for job in _reading_jobs(name, options.scale.fig2, on_gpu=on_gpu)]


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The figure by all three countings, its table and its verdicts."""
    scale = options.scale
    curves = estimators.Curves.of(rows, options, CURVE, add_countings, jobs(options))
    rows, lines = curves.rows, curves.lines
    authors = fig2_reference(options.authors) if options.authors is not None else None
    caption = [
        "as-plotted: the settings of the authors' logs; as-written: those of the paper's text.",
        f"Scale {scale_words(scale)}. Data: {provenance[0]['data']}. {measured_words(lines, curves.dots)}",
        estimators.words(rows, CURVE),
        curves.missing,
        options.thin,
    ]
    readings = [*dict.fromkeys(lines.reading)]
    frames = {**curves.drawn, "reference": authors}
    kinds = {kind: own[own.reading.isin([*readings, "authors"])] for kind, own in frames.items() if own is not None}
    curve_rows = pd.concat(kinds.values()).sort_values(["panel", "K", "P"])
    # Colours for DeComFL, those of K before those of P, and greys for FedAvg.
    ours, fedavg = (curve_rows[(curve_rows.method == "FedAvg") == baseline].series for baseline in (False, True))
    styles = series_styles(ours) | series_styles(fedavg, baseline=True)
    axis: dict[str, Any] = {}
    if scale.name != "smoke":
        # Most of a long curve lies between 90 and 99 %: the axis spreads them, as far as the curves go.
        values = curve_rows.test_accuracy
        low, high = max(0.05, 0.9 * float(values.min())), min(0.995, 0.4 + 0.6 * float(values.max()))
        axis = {"yscale": "logit", "ylimits": (low, high)}

    def panel(count: Count, reading: str, name: str) -> Panel:
        own = {}
        for kind, rows in kinds.items():
            # The rows of a panel, FedAvg's from the other where it has none; the authors' are beside every reading.
            read = rows[rows.reading.isin([reading, "authors"])]
            here, fedavg = read.panel == name, read.method == "FedAvg"
            own[kind] = read[here] if (here & fedavg).any() else read[here | fedavg]
        return by_communication(count=count, title=f"{reading} · {PANELS[name]}", **own, **axis)

    drawn = {
        count: comparison(
            [panel(count, reading, name) for reading in readings for name in PANELS],
            styles,
            across=len(PANELS),
            title="Figure 2: what K, P and FedAvg cost in communication",
            caption=" ".join(caption),
        )
        for count in COUNTS
    }
    table = summary_table(lines)
    agreement = estimators.gaps_table(estimators.gaps(rows, CURVE), CURVE)
    verdicts = []
    tables = {"fig2": table, "fig2-curves": rows, "fig2-estimators": agreement}
    if authors is not None:
        every = rows[~rows[CHECKED].astype(bool)]
        for reading in readings:
            read = lines[lines.reading == reading]
            of_each = [compared(own, authors, CURVE[1:]) for _, own in read.groupby("method")]
            bands = bands_table(pd.concat(of_each), CURVE[1:], every[every.reading == reading])
            tables[f"fig2-bands-{reading}"] = bands
            wanted = len(LOCAL_STEPS) + len(PERTURBATIONS)
            verdicts.append(band(BANDS[reading], bands, caption[1], testable=scale.name == "full", wanted=wanted))
    if "as-plotted" in set(rows.reading):
        verdicts = claims(rows, scale, authors, verdicts)
    seconds = rows.groupby([*CURVE, CHECKED, "seed"]).seconds.max().sum()
    section = Section(
        id="fig2",
        figure=drawn[options.count],
        settings=settings_table(scale),
        notes=curves.notes("fig2"),
        table=table,
        facts={
            "runs": str(rows.groupby([*CURVE, CHECKED, "seed"]).ngroups),
            "seeds": ", ".join(map(str, sorted(set(rows.seed)))),
            "training time": f"{seconds / 60:.1f} core-minutes",
        },
    )
    stems = {count: "fig2" if count == options.count else f"fig2-{count}" for count in COUNTS}
    return Made(
        section=section,
        claims=verdicts,
        figures={stems[count]: figure for count, figure in drawn.items()},
        tables=tables,
    )


def measured_words(lines: pd.DataFrame, dots: pd.DataFrame) -> str:
    """The estimator by which the curves of DeComFL were measured, reading by reading, for the caption."""
    said = []
    ours = lines[lines.method == "DeComFL"]
    for reading, own in ours.groupby("reading", sort=False):
        if set(own.estimator) == {"projection"}:
            checked = dots[dots.reading == reading]
            drawn = f"; dots: finite differences, μ = 1e-4, seed {', '.join(map(str, sorted(set(checked.seed))))}"
            lines_are = "projection ⟨∇f, z⟩, the limit μ → 0 of the finite difference"
            said.append(f"{reading}: lines of DeComFL by {lines_are}{drawn if len(checked) else ''}.")
        else:
            said.append(f"{reading}: DeComFL by finite differences.")
    return " ".join(said)


def _reading_jobs(name: str, size: Fig2Scale, *, on_gpu: bool) -> list[Job]:
    reading = READINGS[name]
    base = size.config(split=reading.split, alpha=1.0)
    plotted = name == "as-plotted"
    seeds = size.seeds if plotted else size.seeds[:1]
    factor = size.eta_factor if plotted else 1.0
    made: list[Job] = []

    def add(config: TrainConfig, panel: str, series: str) -> None:
        seed = config.seed
        method = "FedAvg" if config.method.name == "fedavg" else "DeComFL"
        labels = {
            "reading": name,
            "panel": panel,
            "method": method,
            "series": series,
            "K": config.local_steps,
            "P": 0 if method == "FedAvg" else config.perturbations,
            **estimators.labels(config.method),
        }
        check = plotted and config.method.name == "decomfl"
        labels[CHECKED] = check
        urgency = (0 if on_gpu else 3) if check else 0 if plotted and seed == seeds[0] else 1
        title = f"{name}: {series}, {panel}, seed {seed}{', finite differences' if check else ''}"
        made.append(Job(config, labels, title, urgency=urgency))

    def decomfl(panel: str, seeds: Sequence[int], rounds: int, checked: int, **changes: Any) -> None:
        series = f"DeComFL K={changes['local_steps']} P={changes['perturbations']}"
        every = size.eval_every.get(changes["local_steps"], 1) if plotted else size.written_every
        changes = {**reading.decomfl, "rebuild": "copy", "eval_every": every, **changes}
        for seed in seeds:
            config = base.but(rounds=rounds, seed=seed, **changes)
            add(config.but("decomfl-projection" if plotted else size.written_method), panel, series)
        for seed in (seeds if on_gpu else seeds[:1]) if plotted and checked else ():
            add(base.but(rounds=rounds if on_gpu else checked, seed=seed, **changes), panel, series)

    left, right = (
        (size.local_rounds, size.perturbation_rounds)
        if plotted
        else (size.written_rounds, size.written_perturbation_rounds)
    )
    for K in left:
        lr = reading.lr_left * factor
        checked = size.local_differences.get(K, 0)
        decomfl("local-updates", seeds, left[K], checked, local_steps=K, perturbations=20, lr=lr)
    for P in size.perturbation_differences:
        lr = reading.lr_right * factor
        checked = size.perturbation_differences[P]
        decomfl("perturbations", seeds[:1], right, checked, local_steps=4, perturbations=P, lr=lr)
    for K in reading.fedavg_steps:
        for seed in seeds:
            changes = {**reading.fedavg, "local_steps": K, "eval_every": size.fedavg_every}
            config = base.but("fedavg", rounds=size.fedavg_rounds, seed=seed, **changes)
            add(config, "local-updates", f"FedAvg K={K}")
    return made


def add_countings(rows: pd.DataFrame, scale: Scale) -> pd.DataFrame:
    """The rows with columns table1_scalars and plotted_scalars beside the measured wire_scalars."""
    size = scale.fig2
    return rows.assign(**countings(rows, M=size.M, m=size.m))


def scale_words(scale: Scale) -> str:
    """The scale in a line, for captions and claims."""
    size = scale.fig2
    rounds = ", ".join(f"{R} rounds at K={K}" for K, R in size.local_rounds.items())
    slower = (
        "" if size.eta_factor == 1 else f"as-plotted η × {size.eta_factor:g} (small batches diverge at the full η); "
    )
    tested = f"at most {size.test_examples:,} held-out images; " if size.test_examples else ""
    written = "" if size.written_rounds == size.local_rounds else f"; as-written {_listed(size.written_rounds)} rounds"
    return (
        f"{scale.words()}: M={size.M}, m={size.m}, B={size.batch_size}; {slower}{tested}left {rounds}; "
        f"right {size.perturbation_rounds} rounds{written}; FedAvg {size.fedavg_rounds}; "
        f"seeds {', '.join(map(str, size.seeds))}"
    )


def _listed(rounds: Mapping[int, int]) -> str:
    return ", ".join(f"{R} (K={K})" for K, R in rounds.items())


def settings_table(scale: Scale) -> pd.DataFrame:
    """What was run, beside what the paper's text and the authors' logs have."""
    size, plotted = scale.fig2, READINGS["as-plotted"]
    return settings(
        "fig2",
        **vars(size),
        by={"decomfl": "finite differences", "decomfl-projection": "projection ⟨∇f, z⟩"}[size.written_method],
        rates=" / ".join(f"{lr * size.eta_factor:g}" for lr in (plotted.lr_left, plotted.lr_right)),
        left=_listed(size.local_rounds),
        written_left=_listed(size.written_rounds),
        checked_left=_listed(size.local_differences),
        checked_right=", ".join(f"P={P}: {R}" for P, R in size.perturbation_differences.items()),
    )


def summary_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Final accuracy and communication of every series, mean over seeds."""
    last = rows.sort_values("round").groupby(["reading", "panel", "series", "seed"], sort=False).tail(1)
    grouped = last.groupby(["reading", "panel", "series"], sort=True)
    return grouped.agg(
        seeds=("seed", "count"),
        rounds=("round", "max"),
        accuracy=("test_accuracy", "mean"),
        std=("test_accuracy", lambda v: v.std(ddof=1) if len(v) > 1 else float("nan")),
        wire_scalars=("wire_scalars", "mean"),
        table1_scalars=("table1_scalars", "mean"),
        plotted_scalars=("plotted_scalars", "mean"),
    ).reset_index()


def claims(
    rows: pd.DataFrame, scale: Scale, authors: pd.DataFrame | None = None, others: Sequence[ClaimOutcome] = ()
) -> list[ClaimOutcome]:
    """The claims about Figure 2, judged by the "as-plotted" runs, and what the authors' curves say of them."""
    plotted = rows[rows.reading == "as-plotted"]
    own = settled(plotted[~plotted[CHECKED].astype(bool)], CURVE)
    size = scale.fig2
    sizes = "the paper's sizes" if scale.name == "full" else "reduced"
    words = (
        f"{scale.name} ({sizes}): M={size.M}, m={size.m}, B={size.batch_size}, seeds {', '.join(map(str, size.seeds))}"
    )
    if size.eta_factor != 1:
        words += f", η × {size.eta_factor:g}"
    words += "; DeComFL by projection"
    if missing := unready(plotted, [*CURVE[1:], "estimator"]):
        words += f"; {missing[0].lower()}{missing[1:-1]}"
    frames = {"": own, **estimators.frames(plotted, CURVE[1:])}
    if authors is not None:
        frames["logs"] = authors.assign(reading="as-plotted")
    return judged("fig2", words, frames, others)
