"""Figure 3: DeComFL and first-order methods with the large CNN on Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from decomfl_lab.records.schedules import Schedule
from figures.comparison import Panel, by_communication, comparison
from figures.curves import Count
from figures.style import method_styles
from paper_repro.workflow import estimators
from paper_repro.workflow.claims import UNTESTED, ClaimOutcome, Verdict, judged, limits
from paper_repro.workflow.measures import (
    CHECKED,
    COUNTS,
    LOGS,
    TOLERANCE,
    accuracy_at,
    band,
    bands_table,
    compared,
    ended,
    final_accuracy,
    highest_level,
    last_round,
    numbers,
    sampling_error,
    scalars_to_reach,
    series_of,
    settled,
    unready,
    verdict_of,
    verdict_of_countings,
)
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.reference import fig3_reference
from paper_repro.workflow.report import Section, settings
from paper_repro.workflow.runs import Job
from paper_repro.workflow.scales import SCALES, Scale
from paper_repro.workflow.series import ROWS, runs_of
from theory.communication import expected_traffic, table1_scalars_decomfl, table1_scalars_fedavg

__all__ = [
    "AT",
    "BY_VALUE",
    "CURVE",
    "DECOMFL",
    "DISTANCE",
    "PERTURBATIONS",
    "D",
    "add_countings",
    "authors_curves",
    "claims",
    "jobs",
    "losses_beside",
    "make",
    "reaching_table",
    "settings_outcome",
    "top_k_name",
]


def top_k_name(fraction: float) -> str:
    """The label of FedAvg + Top-k with k = ``fraction``·d, of the largest magnitude."""
    return f"FedAvg+Top-k {100 * fraction:g} %"


D = 1_206_590
DECOMFL = "DeComFL"
FEDCOM = "FedCom 8 bit"
TOP_K = top_k_name(0.1)
BY_VALUE = f"{TOP_K} by signed value"
"""What the authors' helper for Top-k computes: no method of the paper's, and no claim rests on it."""
_OF_THE_FIGURE = (DECOMFL, "FedAvg", FEDCOM, TOP_K)
LOGS_OF = {"FedAvg": "FedAvg", FEDCOM: FEDCOM, TOP_K: TOP_K, BY_VALUE: TOP_K}
"""The first-order series, and the authors' log that each is compared with."""
EXPLAINED = (DECOMFL, "FedAvg")
"""The authors' logs of which the settings are known: of the others ``fig3.settings`` finds none that explain them."""
OURS = ROWS["fig3"][0].config  # the settings of DeComFL
K = OURS["local_steps"]
PERTURBATIONS = Schedule(OURS["perturbations"], OURS["perturbation_schedule"])  # P as a function of the round
CURVE = ("series",)  # columns that name a curve
LIMITS = limits("fig3")
BEGIN, END = 30, 301  # evaluations from the first of these rounds to the last are compared
AT: Final = (101, 301, 991)  # rounds whose training losses are told
DISTANCE: Final = "largest distance of training losses"


def jobs(options: Options) -> list[Job]:
    """DeComFL, FedAvg, FedCom and FedAvg + Top-k."""
    return runs_of("fig3", options)


def add_countings(rows: pd.DataFrame, scale: Scale) -> pd.DataFrame:
    """The rows with table1_scalars and plotted_scalars beside the measured wire_scalars.

    plotted is what the authors' notebook draws for the 0-based round s: 5·Σ K·P for DeComFL (the 5 is unexplained),
    2·s·d for FedAvg, d·s·k/d for Top-k and d·s/4 for FedCom.
    """
    size = scale.fig3
    return rows.assign(**countings(rows, PERTURBATIONS, M=size.M, m=size.m))


def countings(rows: pd.DataFrame, P: Schedule[int], *, M: int, m: int) -> dict[str, list[float]]:
    """The columns table1_scalars and plotted_scalars for rows with round, series, method, uplink and top_k."""
    pairs = np.cumsum([0, *(K * P(r) for r in range(int(rows["round"].max())))])  # measured before round r

    def table1(row: Any) -> float:
        if row.series == DECOMFL:
            return float(pairs[row.round]) * table1_scalars_decomfl(1, M=M, m=m, K=1, P=1)
        return table1_scalars_fedavg(int(row.round), M=M, m=m, d=D, uplink=float(row.uplink))

    def plotted(row: Any) -> float:
        s = row.round - 1
        if row.series == DECOMFL:
            return 5.0 * float(pairs[s])
        shares: dict[str, float] = {"fedavg": 2.0, "fedcom": 0.25, "fedavg-topk": float(row.top_k)}
        return float(s * D * shares[row.method])

    return {
        "table1_scalars": [table1(row) for row in rows.itertuples()],
        "plotted_scalars": [plotted(row) for row in rows.itertuples()],
    }


def settings_table(scale: Scale, data: str) -> pd.DataFrame:
    """What was run, beside what the paper's text and the authors' logs have."""
    size = scale.fig3
    reached = {r: number for r, number in sorted(PERTURBATIONS.changes.items()) if r < size.rounds}
    changes = "".join(f"; {number} from round {r}" for r, number in reached.items())
    rates = [OURS["lr"], *(rate for r, rate in OURS["lr_schedule"].items() if r < size.rounds)]
    more = {"data": data, "changes": changes, "rates": " → ".join(f"{rate:g}" for rate in rates)}
    return settings("fig3", **vars(size), **more, number_of_baseline_seeds=len(size.baseline_seeds))


def reaching_table(rows: pd.DataFrame, level: float | None) -> pd.DataFrame:
    """Every series: rounds, final accuracy, bytes a round, and what it needs to reach ``level``."""
    table = []
    for series, run in rows.groupby("series", sort=False):
        last = run["round"].max()
        at_last = run[run["round"] == last]
        row: dict[str, Any] = {
            "series": series,
            "rounds": last,
            "final accuracy": final_accuracy(run)[0],
            "final train loss": float(at_last.train_loss.mean()),
            "wire scalars a client": float(at_last.wire_scalars.mean()),
        }
        if level is not None:
            row[f"rounds to {level:g}"] = scalars_to_reach(run, level, "round")
            for count in COUNTS:
                row[f"scalars to {level:g}, {count}"] = scalars_to_reach(run, level, f"{count}_scalars")
        table.append(row)
    return pd.DataFrame(table)


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The figure by all three countings, its table and its verdicts."""
    scale = options.scale
    curves = estimators.Curves.of(rows, options, CURVE, add_countings, jobs(options))
    rows, lines, dots, longer = curves.rows, curves.lines, curves.dots, curves.longer
    data = str(rows["data"].iloc[0])
    authors = authors_curves(options.authors)
    styles = method_styles([DECOMFL, FEDCOM, TOP_K, BY_VALUE, "FedAvg"])  # the last is drawn over the others
    words = scale.words("fig3")
    dotted = f", seed {', '.join(map(str, sorted(set(dots.seed))))}." if len(dots) else "."
    said = [f"Scale {words}. Data: {provenance[0]['data']}. {estimators.WORDS}{dotted}"]
    said += [estimators.words(rows, CURVE), curves.missing, options.thin]
    caption = " ".join(filter(None, said))
    last = max(int(frame["round"].max()) for frame in (lines, longer) if frame is not None)

    def drawn(count: Count) -> Figure:
        return comparison(
            [
                Panel(
                    x="round",
                    y="train_loss",
                    xlabel="rounds completed",
                    ylabel="training loss",
                    title="loss against rounds",
                    xscale="linear" if longer is None else "log",
                    reference=None if authors is None else authors[authors["round"] <= last],
                    **curves.drawn,
                ),
                by_communication(count=count, reference=authors, **curves.drawn),
            ],
            styles,
            title="Figure 3: the large CNN (d = 1,206,590)",
            caption=caption,
        )

    figures = {("fig3" if count == options.count else f"fig3-{count}"): drawn(count) for count in COUNTS}
    level = highest_level(run for _, run in lines.groupby("series"))
    notes = curves.notes("fig3")
    if data != "fashion-mnist":
        notes.insert(0, "Fashion-MNIST was not available here: this is the same model and method on MNIST digits.")
    tables = {
        "fig3": reaching_table(lines, level),
        "fig3-curves": rows,
        "fig3-estimators": estimators.gaps_table(estimators.gaps(rows, CURVE), CURVE),
    }
    section = Section(
        id="fig3",
        figure=figures["fig3"],
        settings=settings_table(scale, data),
        notes=notes,
        table=tables["fig3"],
        facts={
            "training time": f"{rows.groupby(['series', CHECKED, 'seed']).seconds.max().sum() / 60:.1f} core-minutes"
        },
    )
    verdicts = claims(rows, f"{words}; {data}")
    if authors is not None:
        every = rows[~rows[CHECKED].astype(bool)]
        again = authors[authors.series == TOP_K].assign(series=BY_VALUE)  # one log, beside both ways of Top-k
        tables["fig3-bands"] = bands_table(compared(lines, pd.concat([authors, again]), CURVE), CURVE, every)
        testable = scale.name == "full" and data == "fashion-mnist"
        verdicts.append(
            band("fig3.band", tables["fig3-bands"], f"{words}; {data}. {curves.missing}", testable=testable)
        )
        beside = settings_outcome(lines, authors, LOGS_OF)
        verdicts.append(replace(beside, scale=f"{words}; {data}", verdict=beside.verdict if testable else UNTESTED))
    return Made(
        section=section,
        claims=[*verdicts, *_claims_on_the_logs(authors)],
        figures=figures,
        tables=tables,
    )


def authors_curves(folder: Path | None) -> pd.DataFrame | None:
    """The authors' curves, counted as for their 100 clients, 10 sampled (wire: in expectation); None without any."""
    if folder is None or (rows := fig3_reference(folder)).empty:
        return None
    full = SCALES["full"]
    counted = rows.assign(**countings(rows, PERTURBATIONS, M=full.fig3.M, m=full.fig3.m))
    settings = {str(job.labels["series"]): job.config for job in jobs(Options(scale=full, readings=(), count="wire"))}

    def wire(row: Any) -> float:
        if pd.isna(row.test_accuracy):
            return float("nan")  # its place is on the axis of rounds
        return expected_traffic(settings[row.series].but(rounds=int(row.round)), D).bytes / 4

    return counted.assign(wire_scalars=[wire(row) for row in counted.itertuples()])


def settings_outcome(rows: pd.DataFrame, authors: pd.DataFrame, logs: Mapping[str, str]) -> ClaimOutcome:
    """The claim that the settings of all series explain the logs, and the numbers of both sides.

    Args:
        rows: Ours, with series, seed, round, train_loss (mean since the row before) and test_accuracy.
        authors: The logs, with series, round, and train_loss (of that round) or test_accuracy.
        logs: {our series: the log that it is compared with}.
    """
    told: dict[str, float | None] = {}
    explained = []
    for series, log in logs.items():
        own, theirs = rows[rows.series == series], authors[authors.series == log]
        losses, accuracies = losses_beside(own, theirs), theirs.dropna(subset="test_accuracy").sort_values("round")
        judged = losses[losses["round"].between(BEGIN, END)]
        if judged.empty or accuracies.empty or losses["round"].max() < END:
            continue
        farthest = float((judged.ours / judged.theirs - 1).abs().max())
        explained.append(farthest <= LIMITS.near)
        means = own.groupby("round").test_accuracy.mean()
        sides = {"ours": means, "authors'": accuracies.set_index("round").test_accuracy}
        told[f"{series}: {DISTANCE}"] = farthest
        for side, accuracy in sides.items():
            told[f"{series}: last accuracy, {side}"] = float(accuracy.iloc[-1])
            told[f"{series}: best accuracy, {side}"] = float(accuracy.max())
        for r in AT:
            at = losses[losses["round"] == r]
            for side, column in (("ours", "ours"), ("authors'", "theirs")):
                told[f"{series}: training loss at {r}, {side}"] = float(at[column].mean())
    verdict: Verdict = UNTESTED
    if explained and len(explained) == len(logs):
        verdict = "holds" if all(explained) else "depends on how it is counted" if any(explained) else "does not hold"
    return ClaimOutcome("fig3.settings", verdict, numbers(told))


def losses_beside(own: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Columns round, ours (mean over seeds) and theirs: the mean training loss since the evaluation before."""
    ours = own.groupby("round").train_loss.mean()
    log = theirs.dropna(subset="train_loss").groupby("round").train_loss.mean()
    found, before = [], 0
    for r, loss in zip(map(int, ours.index), ours, strict=True):
        window = log[(log.index > before) & (log.index <= r)]
        if len(window):
            found.append({"round": r, "ours": loss, "theirs": float(window.mean())})
        before = r
    return pd.DataFrame(found, columns=["round", "ours", "theirs"])


def claims(rows: pd.DataFrame, words: str) -> list[ClaimOutcome]:
    """The claims about Figure 3, and whether its two estimators agree."""
    lines = settled(rows[~rows[CHECKED].astype(bool) & (rows.series != BY_VALUE)], CURVE)
    words += "; DeComFL by projection"
    if missing := unready(rows, [*CURVE, "estimator"]):
        words += f"; {missing[0].lower()}{missing[1:-1]}"
    outcomes = [judge(lines) for judge in (_twenty_times, _saving, _slower, _not_by_d)]
    return judged("fig3", words, [*outcomes, estimators.outcome("fig3", rows, CURVE)])


def _claims_on_the_logs(authors: pd.DataFrame | None) -> list[ClaimOutcome]:
    """The comparisons on the authors' own logged curves; those of communication for settings that are known."""
    if authors is None:
        return []
    rows = authors.dropna(subset="test_accuracy")
    known = rows[rows.series.isin(EXPLAINED)]
    found = [judge(known, "-in-the-logs") for judge in (_twenty_times, _saving)]
    return [replace(each, scale=LOGS) for each in (*found, _slower(rows, "-in-the-logs"))]


def _to_reach_final(rows: pd.DataFrame, count: str) -> tuple[float, dict[str, float | None]]:
    """DeComFL's own final accuracy, and what every series needs to reach it."""
    level = final_accuracy(ended(series_of(rows, DECOMFL)))[0]  # NaN where there is none yet, and nobody reaches that
    column = f"{count}_scalars"
    return level, {str(name): scalars_to_reach(run, level, column) for name, run in rows.groupby("series", sort=False)}


def _twenty_times(rows: pd.DataFrame, where: str = "") -> ClaimOutcome:
    level, needed = _to_reach_final(rows, "wire")
    ours, theirs = needed.get(DECOMFL), needed.get("FedAvg")
    spent = float(series_of(rows, "FedAvg").wire_scalars.max())  # at the least, if it never gets there
    measured: dict[str, float | None] = {
        "DeComFL's final accuracy": level,
        "DeComFL, wire scalars a client to reach it": ours,
        "FedAvg, wire scalars a client to reach it": theirs,
        "FedAvg's highest mean accuracy": float(series_of(rows, "FedAvg").groupby("round").test_accuracy.mean().max()),
    }
    verdict: Verdict = UNTESTED
    if ours:
        at_least = spent if theirs is None else theirs
        measured["FedAvg / DeComFL" + (", at least" if theirs is None else "")] = at_least / ours
        enough = at_least >= LIMITS.times * ours
        if level >= LIMITS.least and (theirs is not None or enough):
            verdict = verdict_of(enough)
    return ClaimOutcome(f"fig3.twenty-times{where}", verdict, numbers(measured))


def _saving(rows: pd.DataFrame, where: str = "") -> ClaimOutcome:
    measured: dict[str, float | None] = {}
    holds = []
    level = 0.0
    for count in COUNTS:
        level, needed = _to_reach_final(rows, count)
        ours = needed.pop(DECOMFL, None)
        measured[f"DeComFL, {count}"] = ours
        for name, theirs in needed.items():
            measured[f"{name}, {count}"] = theirs
        # a method that never gets there does not refute that DeComFL needs less
        holds.append(ours is not None and all(theirs is None or theirs > ours for theirs in needed.values()))
    under_way = [name for name, theirs in needed.items() if theirs is None and ended(series_of(rows, name)).empty]
    there = {str(name) for name in rows.series.unique()}
    judged = level >= LIMITS.least and there >= set(EXPLAINED if where else _OF_THE_FIGURE) and not under_way
    measured["accuracy reached (DeComFL's final)"] = level
    return ClaimOutcome(f"fig3.saving{where}", verdict_of_countings(holds) if judged else UNTESTED, numbers(measured))


def _slower(rows: pd.DataFrame, where: str = "") -> ClaimOutcome:
    """Whether DeComFL is behind FedAvg and FedCom, and ahead of Top-k, at the round where the shortest run is over."""
    names = [str(name) for name in rows.series.unique()]
    r = last_round(series_of(rows, name) for name in names)
    at = {name: accuracy_at(series_of(rows, name), r)[0] for name in names}
    at.setdefault(DECOMFL, float("nan"))
    margin = TOLERANCE * 2**0.5 * sampling_error(rows)
    signs = {name: (at[name] - at[DECOMFL]) * (-1 if "Top-k" in name else 1) for name in names if name != DECOMFL}
    clear = at[DECOMFL] >= LIMITS.least and bool(signs) and all(abs(gap) > margin for gap in signs.values())
    over = any(len(own) and int(own["round"].max()) == r for own in (ended(series_of(rows, name)) for name in names))
    verdict = verdict_of(all(gap > 0 for gap in signs.values()), tested=clear and over)
    measured = {"at round": r, **{f"accuracy {name}": value for name, value in at.items()}}
    return ClaimOutcome(f"fig3.slower{where}", verdict, numbers(measured))


def _not_by_d(rows: pd.DataFrame) -> ClaimOutcome:
    both = [series_of(rows, name) for name in (DECOMFL, "FedAvg")]
    level = None if any(run.empty for run in both) else highest_level(both)
    P = max(PERTURBATIONS.initial, *PERTURBATIONS.changes.values())
    measured: dict[str, float | None] = {"accuracy": level, "d": D, "P": P}
    verdict: Verdict = UNTESTED
    if level is not None and level >= LIMITS.least:
        ours, theirs = (scalars_to_reach(run, level, "round") for run in both)
        assert ours is not None
        assert theirs is not None
        measured |= {"DeComFL's rounds": ours, "FedAvg's rounds": theirs, "ratio": ours / theirs}
        verdict = verdict_of(ours / theirs < LIMITS.fraction * D / P)
    return ClaimOutcome("fig3.not-by-d", verdict, measured)
