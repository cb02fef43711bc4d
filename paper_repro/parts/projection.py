"""The appendix's projection figure: zeroth-order scalars against projected gradients ⟨∇f, z⟩, at several η."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from figures.comparison import Panel, by_communication, comparison
from figures.style import OKABE_ITO, LineStyle
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import caption, notes
from paper_repro.workflow.runs import Job
from paper_repro.workflow.scales import SCALES, Sizes
from paper_repro.workflow.series import runs_of
from paper_repro.workflow.verdicts.claim_verdicts import judged
from paper_repro.workflow.verdicts.measures import RISEN, diverges, final_accuracy, settled, unready
from paper_repro.workflow.verdicts.reference import countings

ZO, PROJECTION = "zeroth order", "projection"
_METHODS = {ZO: "decomfl", PROJECTION: "decomfl-projection"}
_SUMMARY = {
    ZO: LineStyle(color="#000000", dash=(0.0, ()), linewidth=2.6),
    PROJECTION: LineStyle(color="#BFBFBF", dash=(0.0, (6.0, 1.6)), linewidth=1.6),
}
CHANCE = 0.1


def jobs(options: Options) -> list[Job]:
    """Both estimators at every learning rate, with the same directions, batches and clients."""
    runs = runs_of("projection", options)
    rates = [*dict.fromkeys(job.config.lr for job in runs)]
    return sorted(runs, key=lambda job: rates.index(job.config.lr))


def _counted(rows: pd.DataFrame, size: Sizes) -> pd.DataFrame:
    return countings(rows, lambda R: R * size.K * size.P, M=size.M, m=size.m)


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """Accuracy against communication at every η, final accuracy against η, and the verdicts."""
    size = options.scale.projection
    words = options.scale.words("projection")
    rows = _counted(rows, size)
    missing = unready(rows, ["series"])
    # The first seed's rows of each η that both estimators have, up to the last round both have or were to have.
    pairs = [rows.iloc[:0]]
    for _, pair in rows[rows.seed == size.seeds[0]].groupby("eta", sort=False):
        runs = [run for _, run in pair.groupby("estimator")]
        ends = [int(run["planned" if run.finished.all() else "round"].max()) for run in runs]
        if len(runs) == len(_METHODS):
            pairs.append(pair[pair["round"] <= min(*ends, size.rounds, size.differences)])
    equal = pd.concat(pairs).sort_index()
    # A row a run, with its final accuracy: chance where it diverged.
    finals = []
    for (name, eta, seed), run in equal.groupby(["estimator", "eta", "seed"], sort=False):
        diverged = diverges(run)
        accuracy = CHANCE if diverged else final_accuracy(run)[0]
        finals.append({"series": name, "eta": eta, "seed": seed, "test_accuracy": accuracy, "diverged": diverged})
    final = pd.DataFrame(finals, columns=["series", "eta", "seed", "test_accuracy", "diverged"])
    rates = sorted(set(rows.eta))
    styles = {
        f"{name}, η = {eta:g}": LineStyle(color=OKABE_ITO[n % len(OKABE_ITO)], dash=_SUMMARY[name].dash, linewidth=1.6)
        for name in _METHODS
        for n, eta in enumerate(rates)
    }
    finite = settled(rows[np.isfinite(rows.test_loss)], ["series"])
    # Another scale has other rates: only runs at the same rates are drawn thin behind these.
    longer = None
    if options.longer is not None:
        kept = options.longer.rows
        kept = kept[kept.series.isin(finite.series) & np.isfinite(kept.test_loss)]
        longer = settled(_counted(kept, SCALES[options.longer.scale].projection), ["series"])
    words_by_name = {"scale": words, "data": provenance[0]["data"], "missing": missing}
    figure = partial(
        comparison,
        [
            by_communication(
                finite, options.count, title="solid: zeroth order; dashed: projection", xscale="linear", longer=longer
            ),
            Panel(
                frame=final,
                x="eta",
                y="test_accuracy",
                by="eta",
                xlabel="learning rate η",
                ylabel="final test accuracy",
                title="how much η matters",
                xscale="log",
            ),
        ],
        {**styles, **_SUMMARY},
        title="Zeroth-order scalars and projected gradients, ⟨∇f, z⟩",
        caption=caption("projection", **words_by_name, seed=size.seeds[0], risen=RISEN, chance=CHANCE),
    )
    # Bytes sent up to every round that both evaluated, seed by seed.
    cost = equal[~equal.diverged.astype(bool)].pivot_table(
        index=["eta", "seed", "round"], columns="estimator", values="wire_bytes"
    )
    both = cost.reindex(columns=list(_METHODS)).dropna()
    frames = {
        "final": final.assign(examples=equal.examples.min()),
        "cost": both.assign(apart=(both[ZO] - both[PROJECTION]).abs()),
    }
    means = final.pivot_table(index="eta", columns="series", values="test_accuracy")
    table = means.reindex(columns=list(_METHODS)).sort_index()
    return made(
        "projection",
        judged("projection", f"{words}; at equal rounds. {missing}".strip(), frames),
        {"projection": figure},
        {"projection": final, "projection-curves": rows},
        notes=[*filter(None, [missing]), *notes("projection")],
        table=table.reset_index(),
        facts={"training time": f"{rows.groupby(['series', 'seed']).seconds.max().sum() / 60:.1f} core-minutes"},
    )
