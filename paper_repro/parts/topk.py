"""The appendix's top-k figure: FedAvg + Top-k with k = 10, 5 and 1 % of d beside DeComFL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from figures.comparison import Panel, by_communication, comparison
from figures.style import method_styles
from paper_repro.parts import fig3
from paper_repro.parts.fig3 import DECOMFL, D, top_k_name
from paper_repro.workflow import estimators
from paper_repro.workflow.claims import UNTESTED, ClaimOutcome, judged, limits
from paper_repro.workflow.measures import (
    COUNTS,
    LOGS,
    TOLERANCE,
    ended,
    final_accuracy,
    highest_level,
    numbers,
    ordered,
    sampling_error,
    scalars_to_reach,
    series_of,
    verdict_of,
    verdict_of_countings,
)
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.report import Section
from paper_repro.workflow.runs import Job
from paper_repro.workflow.series import runs_of

__all__ = ["claims", "jobs", "make"]

FRACTIONS = (0.1, 0.05, 0.01)


def jobs(options: Options) -> list[Job]:
    """DeComFL and FedAvg (the runs of Figure 3), and Top-k at each k."""
    return runs_of("topk", options)


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """Accuracy against communication and against rounds, its table and its verdicts."""
    curves = estimators.Curves.of(rows, options, fig3.CURVE, fig3.add_countings, jobs(options))
    lines, missing = curves.lines, curves.missing
    data = str(rows["data"].iloc[0])
    words = options.scale.words("fig3")
    styles = method_styles([DECOMFL, *map(top_k_name, FRACTIONS), "FedAvg"])
    authors = fig3.authors_curves(options.authors)
    drawn = {**curves.drawn, "reference": None if authors is None else authors[authors.series.isin(styles)]}
    figure = comparison(
        [
            by_communication(count=options.count, **drawn),
            Panel(
                x="round",
                y="test_accuracy",
                xlabel="rounds completed",
                ylabel="test accuracy",
                title="accuracy against rounds",
                **drawn,
            ),
        ],
        styles,
        title="FedAvg + Top-k with smaller k, and DeComFL",
        caption=curves.caption("topk", provenance, options),
    )
    level = highest_level(run for _, run in lines.groupby("series"))
    table = fig3.reaching_table(lines, level)
    section = Section(
        id="topk",
        figure=figure,
        notes=curves.notes("topk"),
        table=table,
    )
    verdicts = claims(lines, f"{words}; {data}; DeComFL by projection. {missing}".strip())
    if authors is not None and options.authors is not None:  # nothing is judged by thinned curves
        verdicts.append(_degrades_in_the_logs(authors.dropna(subset="test_accuracy")))
    return Made(
        section=section,
        claims=verdicts,
        figures={"topk": figure},
        tables={"topk": table, "topk-curves": curves.rows},
    )


def claims(rows: pd.DataFrame, words: str) -> list[ClaimOutcome]:
    """The claims about the top-k figure."""
    return judged("topk", words, [_cheaper(rows), _still_higher(rows), _degrades(rows)])


def _by_fraction(rows: pd.DataFrame) -> dict[float, pd.DataFrame]:
    return {fraction: series_of(rows, top_k_name(fraction)) for fraction in FRACTIONS}


def _cheaper(rows: pd.DataFrame) -> ClaimOutcome:
    """Bytes a round and client, and the share that no k can save: the dense downlink."""
    measured: dict[str, float | None] = {}
    a_round = []
    for fraction, run in _by_fraction(rows).items():
        if run.empty:
            continue
        last = run[run["round"] == run["round"].max()]
        a_round.append(float((last.wire_scalars / last["round"]).mean()))
        measured[f"wire scalars a client and round, k = {fraction:.0%}"] = a_round[-1]
        measured[f"share that goes up, k = {fraction:.0%}"] = float((last.up_bytes / last.wire_bytes).mean())
    whole = series_of(rows, "FedAvg")
    last = whole[whole["round"] == whole["round"].max()]
    measured["wire scalars a client and round, FedAvg"] = float((last.wire_scalars / last["round"]).mean())
    falls = all(more > less for more, less in pairwise(a_round))
    return ClaimOutcome("topk.cheaper", verdict_of(falls, tested=len(a_round) == len(FRACTIONS)), numbers(measured))


def _still_higher(rows: pd.DataFrame) -> ClaimOutcome:
    """The claim about the cost to reach the highest accuracy that DeComFL and at least one Top-k both reach."""
    measured: dict[str, float | None] = {}
    holds = []
    level: float | None = None
    for count in COUNTS:
        for fraction, run in _by_fraction(rows).items():
            both = [series_of(rows, DECOMFL), run]
            level = None if any(each.empty for each in both) else highest_level(both)
            if level is None or level < fig3.LIMITS.least:
                continue
            column = f"{count}_scalars"
            ours, theirs = (scalars_to_reach(each, level, column) for each in both)
            assert ours is not None
            assert theirs is not None
            measured[f"k = {fraction:.0%} / DeComFL at accuracy {level:g}, {count}"] = theirs / max(ours, 1.0)
            holds.append(theirs > ours)
    return ClaimOutcome("topk.still-higher", verdict_of_countings(holds) if holds else UNTESTED, measured)


def _degrades(rows: pd.DataFrame) -> ClaimOutcome:
    final = {fraction: final_accuracy(ended(run)) for fraction, run in _by_fraction(rows).items()}
    whole = final_accuracy(ended(series_of(rows, "FedAvg")))
    falling = ordered(list(final.values())[::-1])  # 1 % < 5 % < 10 %
    lost, least = whole[0] - final[FRACTIONS[-1]][0], limits("topk").severe
    error = TOLERANCE * 2**0.5 * sampling_error(rows)
    told = {f"final accuracy k = {fraction:.0%}": value[0] for fraction, value in final.items()}
    measured = numbers({"final accuracy FedAvg": whole[0], **told, "d": D})
    if lost + error < least:
        return ClaimOutcome("topk.degrades", "does not hold", measured)
    severe = lost > max(least, error)
    verdict = verdict_of(severe, tested="final accuracy FedAvg" in measured) if falling == "holds" else falling
    return ClaimOutcome("topk.degrades", verdict, measured)


def _degrades_in_the_logs(authors: pd.DataFrame) -> ClaimOutcome:
    """The same of the one k that the authors' logs have."""
    name = top_k_name(FRACTIONS[0])
    final = {each: final_accuracy(series_of(authors, each))[0] for each in ("FedAvg", name)}
    error = TOLERANCE * 2**0.5 * sampling_error(authors)
    verdict = verdict_of(final["FedAvg"] - final[name] > max(limits("topk").severe, error))
    measured = {"final accuracy FedAvg": final["FedAvg"], f"final accuracy k = {FRACTIONS[0]:.0%}": final[name]}
    return ClaimOutcome("topk.degrades-in-the-logs", verdict, numbers(measured), LOGS)
