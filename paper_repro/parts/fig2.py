"""Figure 2: DeComFL and FedAvg on MNIST; local updates K (left) and perturbations P (right)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from decomfl_lab.runs.config import TrainConfig
from figures.comparison import Panel, by_communication, comparison
from figures.curves import COUNT_LABELS, Count
from figures.style import LineStyle, series_styles
from paper_repro.workflow import estimators
from paper_repro.workflow.claims import UNTESTED, ClaimOutcome, Verdict, judged, limits
from paper_repro.workflow.measures import (
    CHECKED,
    COUNTS,
    LEAST_LEVEL,
    LEVELS,
    LOGS,
    TOLERANCE,
    accuracy_at,
    accuracy_up_to,
    band,
    bands_table,
    compared,
    flattened,
    last_round,
    numbers,
    ordered,
    sampling_error,
    scalars_to_reach,
    series_of,
    settled,
    unready,
    verdict_of,
    verdict_of_countings,
)
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.reference import D, countings, fig2_reference
from paper_repro.workflow.report import Section, settings
from paper_repro.workflow.runs import Job
from paper_repro.workflow.scales import READINGS, Fig2Scale, Scale

__all__ = [
    "add_countings",
    "claims",
    "jobs",
    "make",
    "panels",
    "saving_in_the_logs",
    "scale_words",
    "settings_table",
    "summary_table",
]

LOCAL_STEPS = (1, 4, 10)
PERTURBATIONS = (10, 20, 40)
PANELS = {"local-updates": "local updates K (P = 20)", "perturbations": "perturbations P (K = 4)"}
SETTINGS = {"as-plotted": "the authors' logs", "as-written": "the paper's text"}
"""Whose settings a reading has."""
CURVE = ("reading", "panel", "series")  # columns that name a curve

BANDS = {"as-plotted": "fig2.band", "as-written": "fig2.band-of-the-text"}
"""The claim that the curves of a reading run where the authors' do."""
LIMITS = limits("fig2")


def jobs(options: Options) -> list[Job]:
    """The runs behind both panels, for each reading."""
    on_gpu = options.device != "cpu"
    return [job for name in options.readings for job in _reading_jobs(name, options.scale.fig2, on_gpu=on_gpu)]


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The figure by all three countings, its table and its verdicts."""
    scale = options.scale
    curves = estimators.Curves.of(rows, options, CURVE, add_countings, jobs(options))
    rows, lines = curves.rows, curves.lines
    authors = fig2_reference(options.authors)
    readings = [*dict.fromkeys(lines.reading)]
    words = f"Scale {scale_words(scale)}. Data: {provenance[0]['data']}. {measured_words(lines, curves.dots)}"

    # The paper's own two panels; then by the other countings, and with the settings of other readings.
    kinds = [(count, readings[0]) for count in sorted(COUNTS, key=lambda count: count != options.count)]
    kinds += [(options.count, reading) for reading in readings[1:]]
    figures: dict[str, Figure] = {}
    for count, reading in kinds:
        own = replace(curves, rows=rows[rows.reading == reading], lines=lines[lines.reading == reading])
        stem = "fig2" + f"-{count}" * (count != options.count) + f"-{reading}" * (reading != readings[0])
        figures[stem] = comparison(
            *panels(curves, authors, [(count, reading, name) for name in PANELS], scale),
            across=len(PANELS),
            title="Figure 2: what K, P and FedAvg cost in communication",
            caption=own.caption("fig2", provenance, options, settings=SETTINGS[reading]),
        )
    table = summary_table(lines)
    agreement = estimators.gaps_table(estimators.gaps(rows, CURVE), CURVE)
    verdicts = claims(rows, scale) if "as-plotted" in set(rows.reading) else []
    tables = {"fig2": table, "fig2-curves": rows, "fig2-estimators": agreement}
    if options.authors is not None:  # nothing is judged by thinned curves
        every = rows[~rows[CHECKED].astype(bool)]
        for reading in readings:
            read = lines[lines.reading == reading]
            of_each = [compared(own, authors, CURVE[1:]) for _, own in read.groupby("method")]
            bands = bands_table(pd.concat(of_each), CURVE[1:], every[every.reading == reading])
            tables[f"fig2-bands-{reading}"] = bands
            wanted = len(LOCAL_STEPS) + len(PERTURBATIONS)
            verdicts.append(band(BANDS[reading], bands, words, testable=scale.name == "full", wanted=wanted))
        verdicts.append(saving_in_the_logs(authors))
    seconds = rows.groupby([*CURVE, CHECKED, "seed"]).seconds.max().sum()
    headings = [f"The same, {COUNT_LABELS[count]}" for count, reading in kinds[1:] if reading == readings[0]]
    headings += [f"With the settings of {SETTINGS[reading]} ({reading})" for reading in readings[1:]]
    section = Section(
        id="fig2",
        figure=figures["fig2"],
        more_figures=dict(zip(headings, [*figures.values()][1:], strict=True)),
        settings=settings_table(scale),
        notes=curves.notes("fig2"),
        table=table,
        facts={
            "sizes": words,
            "runs": str(rows.groupby([*CURVE, CHECKED, "seed"]).ngroups),
            "seeds": ", ".join(map(str, sorted(set(rows.seed)))),
            "training time": f"{seconds / 60:.1f} core-minutes",
        },
    )
    return Made(section=section, claims=verdicts, figures=figures, tables=tables)


def panels(
    curves: estimators.Curves, authors: pd.DataFrame, wanted: Sequence[tuple[Count, str, str]], scale: Scale
) -> tuple[list[Panel], dict[str, LineStyle]]:
    """The panels of these countings, readings and sides of the figure, and the style of every series."""
    frames = {kind: own for kind, own in {**curves.drawn, "reference": authors}.items() if own is not None}
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
    found = []
    for count, reading, name in wanted:
        own: dict[str, pd.DataFrame] = {}
        for kind, rows in frames.items():
            # The rows of a panel, FedAvg's from the other where it has none; the authors' of the same series are beside
            # every reading.
            read = rows[rows.reading == reading] if kind != "reference" else rows[rows.series.isin(own["frame"].series)]
            here, fedavg = read.panel == name, read.method == "FedAvg"
            own[kind] = read[here] if (here & fedavg).any() else read[here | fedavg]
        found.append(by_communication(count=count, title=PANELS[name], **own, **axis))
    return found, styles


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


def claims(rows: pd.DataFrame, scale: Scale) -> list[ClaimOutcome]:
    """The claims about Figure 2, judged by the "as-plotted" runs.

    A comparison is decided only if the difference exceeds two standard errors of the seeds, or, with one seed,
    two binomial standard errors of the test accuracy.
    """
    plotted = rows[rows.reading == "as-plotted"]
    own = settled(plotted[~plotted[CHECKED].astype(bool)], CURVE)
    left = own[own.panel == "local-updates"]
    right = own[own.panel == "perturbations"]
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
    outcomes = [
        _saving(left),
        _local_updates(left),
        _perturbations(right),
        _slow_start(right),
        _more_influential(left, right),
        _not_converged(left),
        estimators.outcome("fig2", plotted, CURVE[1:]),
        estimators.seconds("fig2", plotted, CURVE[1:]),
    ]
    return judged("fig2", words, outcomes)


def saving_in_the_logs(authors: pd.DataFrame) -> ClaimOutcome:
    """The same comparison on the authors' own logged curves, counted alike."""
    return replace(_saving(authors[authors.panel == "local-updates"], "-in-the-logs"), scale=LOGS)


def _saving(left: pd.DataFrame, where: str = "") -> ClaimOutcome:
    """Counted in three ways, which of DeComFL and FedAvg (K = 10 both) needs fewer scalars?"""
    ours, theirs = series_of(left, "DeComFL K=10 P=20"), series_of(left, "FedAvg K=10")
    measured: dict[str, float | None] = {}
    ratios = []
    for count in COUNTS:
        for level in LEVELS:  # the highest level that both reach
            a, b = (scalars_to_reach(run, level, f"{count}_scalars") for run in (ours, theirs))
            if a is not None and b is not None:
                measured["accuracy reached by both"] = level
                measured[f"DeComFL scalars, {count}"] = a
                measured[f"FedAvg scalars, {count}"] = b
                ratios.append(b / a if a else float("inf"))
                if a:
                    measured[f"FedAvg / DeComFL, {count}"] = b / a
                break
    verdict: Verdict = UNTESTED
    if len(ratios) == len(COUNTS) and (measured["accuracy reached by both"] or 0.0) >= LEAST_LEVEL:
        verdict = verdict_of_countings([ratio > 1.0 for ratio in ratios])
    for name, runs in (("DeComFL", ours), ("FedAvg", theirs)):
        if not runs.empty:
            measured[f"highest mean accuracy of {name}"] = float(runs.groupby("round").test_accuracy.mean().max())
    return ClaimOutcome(f"fig2.saving{where}", verdict, measured)


def _local_updates(left: pd.DataFrame) -> ClaimOutcome:
    names = {K: f"DeComFL K={K} P=20" for K in LOCAL_STEPS}
    r = last_round(series_of(left, name) for name in names.values())
    values = [accuracy_up_to(series_of(left, name), r) for name in names.values()]
    measured: dict[str, float | None] = {"up to round": r}
    for K, (mean, error) in zip(LOCAL_STEPS, values, strict=True):
        measured[f"seeds K={K}"] = series_of(left, names[K]).seed.nunique()
        measured[f"mean accuracy K={K}"] = mean
        if np.isfinite(error):
            measured[f"standard error K={K}"] = error
    return ClaimOutcome("fig2.local-updates", ordered(values), numbers(measured))


def _by_perturbations(right: pd.DataFrame) -> dict[int, pd.DataFrame]:
    return {P: series_of(right, f"DeComFL K=4 P={P}") for P in PERTURBATIONS}


def _perturbations(right: pd.DataFrame) -> ClaimOutcome:
    runs = _by_perturbations(right)
    r = last_round(runs.values())
    values = [accuracy_at(run, r) for run in runs.values()]
    measured = {"at round": r, **{f"accuracy P={P}": v[0] for P, v in zip(runs, values, strict=True)}}
    verdict = ordered(values) if flattened(runs.values()) else UNTESTED
    return ClaimOutcome("fig2.perturbations", verdict, numbers(measured))


def _slow_start(right: pd.DataFrame) -> ClaimOutcome:
    runs = _by_perturbations(right)
    budget = min(float(run.wire_scalars.max()) for run in runs.values()) / 2
    reached = [scalars_to_reach(run, LEAST_LEVEL, "wire_scalars") for run in runs.values()]
    if any(reached):  # at the earliest that all have been evaluated and one has learned something
        first = max(float(run.wire_scalars.min()) for run in runs.values())
        budget = max(first, min(each for each in reached if each))
    values = []
    for run in runs.values():
        by_round = run.sort_values("round")
        if run.empty:
            values.append((float("nan"), float("nan")))
            continue
        values.append((float(np.interp(budget, by_round.wire_scalars, by_round.test_accuracy)), sampling_error(run)))
    accuracies = {f"accuracy P={P}": v[0] for P, v in zip(runs, values, strict=True)}
    measured = numbers({"at scalars per client (wire)": budget, **accuracies})
    return ClaimOutcome("fig2.slow-start", ordered(values[::-1]), measured)


def _more_influential(left: pd.DataFrame, right: pd.DataFrame) -> ClaimOutcome:
    by_k = {K: series_of(left, f"DeComFL K={K} P=20") for K in LOCAL_STEPS}
    by_p = _by_perturbations(right)
    last_k, last_p = last_round(by_k.values()), last_round(by_p.values())
    (k_low, k_low_error), (k_high, k_high_error) = (accuracy_at(by_k[K], last_k) for K in (1, 10))
    (p_low, p_low_error), (p_high, p_high_error) = (accuracy_at(by_p[P], last_p) for P in (10, 40))
    gain_k, gain_p = (k_high - k_low) / np.log2(10), (p_high - p_low) / 2
    error = np.hypot(np.hypot(k_low_error, k_high_error) / np.log2(10), np.hypot(p_low_error, p_high_error) / 2)
    margin = TOLERANCE * error
    trained = min(k_low, k_high, p_low, p_high) >= LIMITS.trained
    # With one seed alone the error is of the test images only: what another seed would gain is not known.
    seeds = min(run.seed.nunique() for run in (by_k[1], by_k[10], by_p[10], by_p[40]))
    clear = abs(gain_p - gain_k) > margin or margin < LIMITS.precise
    verdict = verdict_of(gain_p - gain_k > margin, tested=trained and clear and seeds > 1)
    measured = {
        "gain a doubling of K": gain_k,
        "at round (K)": last_k,
        "gain a doubling of P": gain_p,
        "at round (P)": last_p,
        "standard error of the difference": float(error),
        "fewest seeds of a series": seeds,
    }
    return ClaimOutcome("fig2.p-over-k", verdict, numbers(measured))


def _not_converged(left: pd.DataFrame) -> ClaimOutcome:
    """Whether FedAvg still improves where the paper's axis ends."""
    theirs = series_of(left, "FedAvg K=10")
    end = 1 + int(LIMITS.axis) // D
    measured: dict[str, float | None] = {"FedAvg's rounds within the paper's axis": end}
    last = last_round([theirs])
    verdict: Verdict = UNTESTED
    if last > 2 * end:
        (early, early_error), (late, late_error) = accuracy_at(theirs, end), accuracy_at(theirs, last)
        measured |= {"accuracy there": early, f"accuracy at round {last}": late}
        verdict = ordered([(early, early_error), (late, late_error)])
    return ClaimOutcome("fig2.fedavg-not-converged", verdict, measured)
