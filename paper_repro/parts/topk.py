"""The appendix's top-k figure: FedAvg + Top-k with k = 10, 5 and 1 % of d beside DeComFL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from figures.comparison import Panel, by_communication, comparison
from figures.style import method_styles
from paper_repro.parts import fig3
from paper_repro.parts.fig3 import DECOMFL, D, top_k_name
from paper_repro.workflow import estimators
from paper_repro.workflow.claims import ClaimOutcome, limits
from paper_repro.workflow.expression import Reading, judged, ordered
from paper_repro.workflow.measures import (
    TOLERANCE,
    ended,
    final_accuracy,
    highest_level,
    numbers,
    sampling_error,
    verdict_of,
)
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.runs import Job
from paper_repro.workflow.series import runs_of

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
    tables = {"topk": fig3.reaching_table(lines, level)}
    words = f"{words}; {data}; DeComFL by projection. {missing}".strip()
    whole = None if options.authors is None else authors  # nothing is judged by thinned curves
    return curves.made("topk", claims(lines, words, whole), {"topk": figure}, tables)


def claims(rows: pd.DataFrame, words: str, authors: pd.DataFrame | None = None) -> list[ClaimOutcome]:
    """The claims about the top-k figure."""
    frames = {"": rows} if authors is None else {"": rows, "logs": authors.dropna(subset="test_accuracy")}
    return judged("topk", words, frames, [_degrades(rows)])


def _degrades(rows: pd.DataFrame) -> ClaimOutcome:
    final = {fraction: final_accuracy(ended(rows[rows.series == top_k_name(fraction)])) for fraction in FRACTIONS}
    whole = final_accuracy(ended(rows[rows.series == "FedAvg"]))
    falling = ordered([Reading(*value) for value in reversed(final.values())])  # 1 % < 5 % < 10 %
    lost, least = whole[0] - final[FRACTIONS[-1]][0], limits("topk").severe
    error = TOLERANCE * 2**0.5 * sampling_error(rows)
    told = {f"final accuracy k = {fraction:.0%}": value[0] for fraction, value in final.items()}
    measured = numbers({"final accuracy FedAvg": whole[0], **told, "d": D})
    if lost + error < least:
        return ClaimOutcome("topk.degrades", "does not hold", measured)
    severe = lost > max(least, error)
    verdict = verdict_of(severe, tested="final accuracy FedAvg" in measured) if falling == "holds" else falling
    return ClaimOutcome("topk.degrades", verdict, measured)
