"""Figure 3: DeComFL and first-order methods with the large CNN on Fashion-MNIST."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from decomfl_lab.records.schedules import Schedule
from figures.comparison import by_communication, by_rounds, comparison
from figures.curves import Count
from figures.style import method_styles
from paper_repro.workflow import estimators
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.report import settings
from paper_repro.workflow.runs import Job
from paper_repro.workflow.scales import SCALES, Scale
from paper_repro.workflow.series import ROWS, runs_of
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome
from paper_repro.workflow.verdicts.claim_verdicts import judged
from paper_repro.workflow.verdicts.measures import (
    CHECKED,
    COUNTS,
    bands_table,
    compared,
    final_accuracy,
    highest_level,
    judged_bands,
    scalars_to_reach,
    settled,
    unready,
)
from paper_repro.workflow.verdicts.reference import countings, fig3_reference
from theory.communication import expected_traffic


def top_k_name(fraction: float) -> str:
    """The label of FedAvg + Top-k with k = ``fraction``·d, of the largest magnitude."""
    return f"FedAvg+Top-k {100 * fraction:g} %"


D = 1_206_590
DECOMFL = "DeComFL"
FEDCOM = "FedCom 8 bit"
TOP_K = top_k_name(0.1)
BY_VALUE = f"{TOP_K} by signed value"
"""What the authors' helper for Top-k computes: no method of the paper's, and no claim rests on it."""
LOGS_OF = {"FedAvg": "FedAvg", FEDCOM: FEDCOM, TOP_K: TOP_K, BY_VALUE: TOP_K}
"""The first-order series, and the authors' log that each is compared with."""
OURS = ROWS["fig3"][0].config  # the settings of DeComFL
K = OURS["local_steps"]
PERTURBATIONS = Schedule(OURS["perturbations"], OURS["perturbation_schedule"])  # P as a function of the round
CURVE = ("series",)  # columns that name a curve
BEGIN, END = 30, 301  # evaluations from the first of these rounds to the last are compared
AT: Final = (101, 301, 991)  # rounds whose training losses are told
OTHER_DATA: Final = "Fashion-MNIST was not available here: this is the same model and method on MNIST digits."
DISTANCE: Final = "largest distance of training losses"


def jobs(options: Options) -> list[Job]:
    """DeComFL, FedAvg, FedCom and FedAvg + Top-k."""
    return runs_of("fig3", options)


def add_countings(rows: pd.DataFrame, scale: Scale) -> pd.DataFrame:
    """The rows with table1_scalars and plotted_scalars beside the measured wire_scalars.

    plotted is what the authors' notebook draws for the 0-based round s: 5·Σ K·P for DeComFL (the 5 is unexplained),
    2·s·d for FedAvg, d·s·k/d for Top-k and d·s/4 for FedCom.
    """
    # What is measured after r rounds has had the pairs of direction and scalar of the r rounds before.
    pairs = np.cumsum([0, *(K * PERTURBATIONS(r) for r in range(int(rows["round"].max())))])
    axis = {"decomfl": 5.0, "decomfl-projection": 5.0, "fedavg": 2.0, "fedcom": 0.25}
    return countings(
        rows,
        lambda R: pairs[R],
        M=scale.fig3.M,
        m=scale.fig3.m,
        d=D,
        ours=rows.series == DECOMFL,
        uplink=rows.uplink,
        axis=rows.method.map(axis).fillna(rows.top_k),
    )


def settings_table(scale: Scale, data: str) -> pd.DataFrame:
    """What was run, beside what the paper's text and the authors' logs have."""
    size = scale.fig3
    reached = {r: number for r, number in sorted(PERTURBATIONS.changes.items()) if r < size.rounds}
    changes = "".join(f"; {number} from round {r}" for r, number in reached.items())
    rates = [OURS["lr"], *(rate for r, rate in OURS["lr_schedule"].items() if r < size.rounds)]
    more = {"data": data, "changes": changes, "rates": " → ".join(f"{rate:g}" for rate in rates)}
    return settings("fig3", size.told(**more))


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
    rows, lines, longer = curves.rows, curves.lines, curves.longer
    data = str(rows["data"].iloc[0])
    authors = authors_curves(options.authors)
    styles = method_styles([DECOMFL, FEDCOM, TOP_K, BY_VALUE, "FedAvg"])  # the last is drawn over the others
    words = scale.words("fig3")
    last = max(int(frame["round"].max()) for frame in (lines, longer) if frame is not None)

    def drawn(count: Count) -> Figure:
        losses: dict[str, Any] = {"y": "train_loss", "ylabel": "training loss", "title": "loss against rounds"}
        losses["xscale"] = "linear" if longer is None else "log"
        theirs = None if authors is None else authors[authors["round"] <= last]
        return comparison(
            [
                by_rounds(reference=theirs, **losses, **curves.drawn),
                by_communication(count=count, reference=authors, **curves.drawn),
            ],
            styles,
            title="Figure 3: the large CNN (d = 1,206,590)",
            caption=curves.caption("fig3", provenance, options),
        )

    figures = {("fig3" if count == options.count else f"fig3-{count}"): partial(drawn, count) for count in COUNTS}
    level = highest_level([run for _, run in lines.groupby("series")])
    elsewhere = [] if data == "fashion-mnist" else [OTHER_DATA]
    tables = {
        "fig3": reaching_table(lines, level),
        "fig3-estimators": estimators.gaps_table(estimators.gaps(rows, CURVE), CURVE),
    }
    frames = {}
    testable = scale.name == "full" and data == "fashion-mnist"
    if authors is not None and options.authors is not None:  # nothing is judged by thinned curves
        frames["logs"] = authors.dropna(subset="test_accuracy")
        again = authors[authors.series == TOP_K].assign(series=BY_VALUE)  # one log, beside both ways of Top-k
        tables["fig3-bands"] = bands_table(compared(lines, pd.concat([authors, again]), CURVE), CURVE, rows)
        frames["bands"] = judged_bands(tables["fig3-bands"], 1, testable=testable)
        frames["settings"] = settings_told(lines, authors, LOGS_OF).assign(testable=testable)
    outcomes = claims(rows, f"{words}; {data}", frames)
    return curves.made("fig3", outcomes, figures, tables, before=elsewhere, settings=settings_table(scale, data))


def authors_curves(folder: Path | None) -> pd.DataFrame | None:
    """The authors' curves, counted as for their 100 clients, 10 sampled (wire: in expectation); None without any."""
    if (rows := fig3_reference(folder)).empty:
        return None
    full = SCALES["full"]
    counted = add_countings(rows, full)
    settings = {str(job.labels["series"]): job.config for job in jobs(Options(scale=full, readings=(), count="wire"))}

    @cache  # seeds share it
    def wire(series: str, R: int) -> float:
        return expected_traffic(settings[series].but(rounds=R), D).bytes / 4

    has_accuracy = counted["test_accuracy"].notna()  # elsewhere its place is on the axis of rounds
    sent = [wire(str(series), int(R)) for series, R in counted.loc[has_accuracy, ["series", "round"]].to_numpy()]
    counted.loc[has_accuracy, "wire_scalars"] = sent
    return counted


def settings_told(rows: pd.DataFrame, authors: pd.DataFrame, logs: Mapping[str, str]) -> pd.DataFrame:
    """What ours and the logs have, series by series: columns series, what and value.

    Args:
        rows: Ours, with series, seed, round, train_loss (mean since the row before) and test_accuracy.
        authors: The logs, with series, round, and train_loss (of that round) or test_accuracy.
        logs: {our series: the log that it is compared with}.
    """
    table: list[tuple[str, str, float]] = []
    for series, log in logs.items():
        ours, theirs = rows[rows.series == series], authors[authors.series == log]
        losses = losses_beside(ours, theirs)
        accuracies = theirs.dropna(subset="test_accuracy").sort_values("round")
        compared_losses = losses[losses["round"].between(BEGIN, END)]
        if compared_losses.empty or accuracies.empty or losses["round"].max() < END:
            continue
        table.append((series, DISTANCE, float((compared_losses.ours / compared_losses.theirs - 1).abs().max())))
        means = ours.groupby("round").test_accuracy.mean()
        sides = {"ours": means, "authors'": accuracies.set_index("round").test_accuracy}
        for side, accuracy in sides.items():
            table.append((series, f"last accuracy, {side}", float(accuracy.iloc[-1])))
            table.append((series, f"best accuracy, {side}", float(accuracy.max())))
        for r, (side, column) in product(AT, (("ours", "ours"), ("authors'", "theirs"))):
            table.append((series, f"training loss at {r}, {side}", float(losses[losses["round"] == r][column].mean())))
    return pd.DataFrame(table, columns=["series", "what", "value"]).dropna()


def losses_beside(own: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Columns round, ours (mean over seeds) and theirs: the mean training loss since the evaluation before."""
    ours = own.groupby("round").train_loss.mean()
    log = theirs.dropna(subset="train_loss").groupby("round").train_loss.mean()
    table, before = [], 0
    for r, loss in zip(map(int, ours.index), ours, strict=True):
        window = log[(log.index > before) & (log.index <= r)]
        if len(window):
            table.append({"round": r, "ours": loss, "theirs": float(window.mean())})
        before = r
    return pd.DataFrame(table, columns=["round", "ours", "theirs"])


def claims(rows: pd.DataFrame, words: str, of_logs: Mapping[str, pd.DataFrame] | None = None) -> list[ClaimOutcome]:
    """The claims about Figure 3, whether its two estimators agree, and what the authors' own curves say."""
    lines = settled(rows[~rows[CHECKED].astype(bool) & (rows.series != BY_VALUE)], CURVE)
    of_lines = f"{words}; DeComFL by projection"
    if missing := unready(rows, [*CURVE, "estimator"]):
        of_lines += f"; {missing[0].lower()}{missing[1:-1]}"
    frames = {"": lines, **estimators.frames(rows, CURVE), **(of_logs or {})}
    return judged("fig3", of_lines, frames, scales={"settings": words})
