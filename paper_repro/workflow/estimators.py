"""The curves of Figures 2, 3 and the top-k one, by projection and by finite differences, how far these lie apart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import caption, notes
from paper_repro.workflow.runs import Job
from paper_repro.workflow.scales import SCALES, Scale
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome
from paper_repro.workflow.verdicts.measures import CHECKED, TOLERANCE, lines_of, settled, unready


@dataclass(frozen=True)
class Curves:
    """The runs of a figure of curves, as far as they have come."""

    rows: pd.DataFrame  # all of them, with their countings
    lines: pd.DataFrame  # the runs whose curves are lines
    dots: pd.DataFrame  # the runs by finite differences beside lines by projection
    longer: pd.DataFrame | None  # the lines that are recorded at full scale; None where none are
    missing: str  # the sentence about runs that are not finished; "" where all are
    unbegun: str  # the sentence about those of which there is no row; "" where there is none
    by: Sequence[str]  # the columns that name a curve

    @classmethod
    def of(
        cls,
        rows: pd.DataFrame,
        options: Options,
        by: Sequence[str],
        counted: Callable[[pd.DataFrame, Scale], pd.DataFrame],
        jobs: Sequence[Job],
    ) -> Self:
        """The curves of the jobs' rows and of the recorded ones, ``by`` these columns, ``counted`` at their scales."""
        rows = counted(rows, options.scale)
        lines, dots = (settled(rows[rows[CHECKED] == check], by) for check in (False, True))
        # What is recorded at full scale is drawn thin behind these runs, without the runs that check it.
        longer = None
        if options.longer is not None:
            recorded = options.longer.rows
            longer = settled(counted(lines_of(recorded), SCALES[options.longer.scale]), by)
        # A run is named by its curve, estimator and seed. "seed 0" and not 0, as the names are joined to sentences.
        keys = [*by, "estimator", "seed"]
        wanted = [tuple({**job.labels, "seed": f"seed {job.config.seed}"}[key] for key in keys) for job in jobs]
        begun = set(rows[keys].assign(seed=[f"seed {seed}" for seed in rows.seed]).itertuples(index=False, name=None))
        absent = "; ".join(", ".join(map(str, name)) for name in wanted if name not in begun)
        unbegun = f"Not begun: {absent}." if absent else ""
        return cls(rows, lines, dots, longer, unready(rows, keys[:-1]), unbegun, by)

    @property
    def drawn(self) -> dict[str, Any]:
        """The lines, and what is drawn beside them, as a ``figures.comparison.Panel`` takes them."""
        return {"frame": self.lines, "checks": self.dots, "longer": self.longer}

    def caption(self, stem: str, provenance: Sequence[Mapping[str, Any]], options: Options, **more: str) -> str:
        """The text under a figure of these curves: that of ``report.toml``, with what they are of."""
        # How far the estimators lie apart, beside what else tells dots from lines, the seeds.
        pairs, gap, longer = gaps(self.rows, self.by), "", options.longer
        if len(pairs):
            means = " (a line may be the mean of several)" if self.rows.seed.nunique() > 1 else ""
            largest = f"{100 * pairs.gap.max():.2f} points of accuracy"
            gap = f"At equal seeds{means} dots and lines differ by at most {largest}."
        return caption(
            stem,
            data=provenance[0]["data"],
            scale=options.scale.words(),
            seeds=", ".join(map(str, sorted(set(self.lines.seed)))),
            estimators=caption(
                "projection-lines" if "projection" in set(self.lines.estimator) else "differences-lines"
            ),
            gaps=gap,
            missing=self.missing,
            thin=f"Thin: {longer.words}; {longer.provenance[0].get('data', 'no data')}." if longer else "",
            **more,
        )

    def made(
        self,
        part: str,
        claims: Sequence[ClaimOutcome],
        figures: Mapping[str, Callable[[], Figure]],
        tables: Mapping[str, pd.DataFrame],
        *,
        before: Sequence[str] = (),
        facts: Mapping[str, str] | None = None,
        **section: Any,
    ) -> Made:
        """The part of these curves, see ``part.made``: its notes are below those ``before``, its rows are a table.

        ``facts`` are told of its runs, beside the time that they took.
        """
        seconds = self.rows.groupby([*self.by, CHECKED, "seed"]).seconds.max().sum()
        return made(
            part,
            claims,
            figures,
            {**tables, f"{part}-curves": self.rows},
            # The notes of the part are below what is missing and what finite differences are there for.
            notes=[*before, *filter(None, [self.missing, self.unbegun]), *notes("estimators"), *notes(part)],
            facts={**(facts or {}), "training time": f"{seconds / 60:.1f} core-minutes"},
            **section,
        )


def gaps(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Every evaluation that both estimators have at equal seed and round, with their ``gap`` in accuracy.

    The rows have columns ``CHECKED``, seed, round, test_accuracy, examples (of an evaluation) and ``by``, which name a
    curve. ``within`` says whether a gap is within ``TOLERANCE`` standard errors.
    """
    # Merging on seed and round leaves evaluations that both have; a checked stretch is shorter than its line.
    keys = [*by, "seed", "round"]
    checked = rows[CHECKED].eq(True)  # a file has nothing, and not False, where only some runs check others
    lines, dots = (rows.loc[checked == check, [*keys, "test_accuracy", "examples"]] for check in (False, True))
    pairs = dots.merge(lines.drop(columns="examples"), on=keys, suffixes=("", "_projection"))
    # Were both samples of one accuracy p, their difference would have this standard error.
    p = (pairs.test_accuracy + pairs.test_accuracy_projection) / 2
    error = np.sqrt(2 * p * (1 - p) / pairs.examples)
    gap = (pairs.test_accuracy - pairs.test_accuracy_projection).abs()
    return pairs.assign(gap=gap, within=gap <= TOLERANCE * error)


def gaps_table(pairs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """A row for each curve: over how many evaluations and rounds, the largest gap and where, and how many are small."""
    table = []
    for name, curve in pairs.groupby(list(by), sort=False):
        largest = curve.sort_values("gap").iloc[-1]
        table.append(
            {
                "series": ", ".join(map(str, name)),
                "rounds compared": int(curve["round"].max()),
                "evaluations": len(curve),
                "largest difference in accuracy": float(largest.gap),
                "at round": int(largest["round"]),
                "share within two standard errors": float(curve.within.mean()),
            }
        )
    return pd.DataFrame(table)


def frames(rows: pd.DataFrame, by: Sequence[str]) -> dict[str, pd.DataFrame]:
    """What the claims on estimators are about: "gaps" between them, and ratios of the "seconds" that a round takes."""
    pairs = gaps(rows, by)
    curves = [", ".join(map(str, name)) for name in pairs[list(by)].itertuples(index=False)]
    # Round 0 is evaluated before anything is trained, and takes no time of training. Of each curve the fastest seed
    # counts: what else a machine does only adds to a run's seconds.
    last = rows[rows["round"] > 0].groupby([CHECKED, *by, "seed"])[["seconds", "round"]].max()
    a_round = (last["seconds"] / last["round"]).groupby(level=[CHECKED, *by]).min().unstack(CHECKED)
    by_estimator = a_round.reindex(columns=[False, True]).dropna()  # CHECKED is true of finite differences
    names = [", ".join(name) if isinstance(name, tuple) else name for name in by_estimator.index]
    seconds = pd.DataFrame({"curve": names, "ratio": (by_estimator[False] / by_estimator[True]).to_numpy()})
    return {"gaps": pairs.assign(curve=curves), "seconds": seconds}
