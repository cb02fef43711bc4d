"""The appendix's top-k figure: FedAvg + Top-k with k = 10, 5 and 1 % of d beside DeComFL."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from figures.comparison import by_communication, by_rounds, comparison
from figures.style import method_styles
from paper_repro.parts import fig3
from paper_repro.parts.fig3 import DECOMFL, top_k_name
from paper_repro.workflow import estimators
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.runs import Job
from paper_repro.workflow.series import runs_of
from paper_repro.workflow.verdicts.claim_verdicts import judged
from paper_repro.workflow.verdicts.measures import highest_level

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
    figure = partial(
        comparison,
        [
            by_communication(count=options.count, **drawn),
            by_rounds(**drawn),
        ],
        styles,
        title="FedAvg + Top-k with smaller k, and DeComFL",
        caption=curves.caption("topk", provenance, options),
    )
    level = highest_level([run for _, run in lines.groupby("series")])
    tables = {"topk": fig3.reaching_table(lines, level)}
    words = f"{words}; {data}; DeComFL by projection. {missing}".strip()
    frames = {"": lines}
    if options.authors is not None and authors is not None:  # nothing is judged by thinned curves
        frames["logs"] = authors.dropna(subset="test_accuracy")
    return curves.made("topk", judged("topk", words, frames), {"topk": figure}, tables)
