"""How curves are compared, for ``claim_verdicts``, ``health`` and the parts: no verdict has a rule of its own.

A frame of rows has a row an evaluation: columns seed, round (completed ones), test_accuracy in 0..1, and more as said.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from paper_repro.workflow.options import COUNTS as COUNTS
from paper_repro.workflow.runs import is_whole
from paper_repro.workflow.verdicts.claim_table import limits

CHECKED: Final = "check"
"""The column that is true for runs by finite differences whose curve is drawn by projection: dots over a line."""
LEVELS = (0.97, 0.95, 0.90, 0.85, 0.80, 0.75, 0.70, 0.65, 0.60, 0.55, 0.50, 0.40, 0.30, 0.20)
MANY: Final = 3  # where more runs than this were only begun, a caption gives their number and not their names
LOGS = "the authors' logs: M=100, m=10; scalars by formula, expectation"
"""The scale of an outcome on the authors' own logged curves."""
TEST_ERROR = 0.016
"""A bound on one standard error √(p(1-p)/n) of an accuracy on n ≥ 1,000 held-out images: see ``sampling_error``."""
TOLERANCE: float = limits().errors  # standard errors that two measurements of the same thing may lie apart


def settled(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """The rows of runs that can be averaged: the finished seeds of each series, or the one that came furthest.

    Seeds that diverged are left out where another did not. Where nothing says which runs are finished, they all are.
    """
    if "finished" not in rows or rows.empty:
        return rows
    kept = [series[series.seed.isin(_kept(series))] for _, series in rows.groupby(list(by), sort=False, dropna=False)]
    return pd.concat(kept).sort_index()


def _kept(series: pd.DataFrame) -> list[Any]:
    """The seeds of a series that ``settled`` has."""
    # A row a seed: finished, apart (whether it diverged) and rounds.
    by_seed = series.assign(apart=series.get("diverged", False)).groupby("seed")
    runs = by_seed.agg(finished=("finished", "all"), apart=("apart", "any"), rounds=("round", "max"))
    # Finished seeds that stayed together; else all, if all ended; else the one that came furthest, alone.
    together = runs.index[runs.finished & ~runs.apart]
    if len(together):
        return list(together)
    return list(runs.index) if runs.finished.all() else [runs.rounds.idxmax()]


def ended(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a series if its runs are finished, else none: one under way has not come to its end."""
    return rows if is_whole(rows) else rows[:0]


def unfinished(rows: pd.DataFrame, by: Sequence[str]) -> list[str]:
    """What there is so far of each run that is not finished: "series, seed 0: 340 of 1,250 rounds".

    Where none of many is, as where runs were only begun, their number.
    """
    if "finished" not in rows or rows.empty or rows.finished.all():
        return []
    begun = []
    for name, run in rows[~rows.finished.astype(bool)].groupby([*by, "seed"], sort=False, dropna=False):
        title = ", ".join([*map(str, name[:-1]), f"seed {name[-1]}"])
        begun.append(f"{title}: {int(run['round'].max()):,} of {int(run.planned.iloc[0]):,} rounds")
    return [f"all {len(begun)} runs"] if len(begun) > MANY and not rows.finished.any() else begun


class LeftOut(NamedTuple):
    """A run that diverged and that ``settled`` leaves out."""

    series: tuple[Any, ...]  # the values of the columns that name its series
    seed: Any
    last_round: int


def left_out(rows: pd.DataFrame, by: Sequence[str]) -> list[LeftOut]:
    """Each run that diverged and that ``settled`` leaves out, ``by`` the columns that name a series."""
    if not {"diverged", "finished"} <= set(rows) or not rows.diverged.any():
        return []
    diverged = []
    for name, series in rows.groupby(list(by), sort=False, dropna=False):
        for seed, run in series[series.diverged.astype(bool) & ~series.seed.isin(_kept(series))].groupby("seed"):
            diverged.append(LeftOut(name, seed, int(run["round"].max())))
    return diverged


def unready(rows: pd.DataFrame, by: Sequence[str]) -> str:
    """The sentences about runs that are not finished, and about those that diverged; "" where there is none."""
    diverged = []
    for run in left_out(rows, by):
        diverged.append(f"{', '.join(map(str, run.series))}, seed {run.seed}, after round {run.last_round:,}")
    sentences = {"Not finished": unfinished(rows, by), "Diverged, and not in the means": diverged}
    return " ".join(f"{what}: {'; '.join(runs)}." for what, runs in sentences.items() if runs)


def lines_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without those of runs that are there to check others."""
    return rows[~rows[CHECKED].eq(True)] if CHECKED in rows else rows


def sampling_error(rows: pd.DataFrame) -> float:
    """A bound on one standard error of an accuracy on these rows' held-out images; used where there is one seed only.

    √(p(1 − p)/n) ≤ 1/(2√n),    n of the column examples, or 1,000 where there is none
    """
    return float(0.5 / np.sqrt(rows.examples.min())) if "examples" in rows and len(rows) else TEST_ERROR


def scalars_to_reach(rows: pd.DataFrame, level: float, column: str) -> float | None:
    """``column`` (say wire_scalars, or round) when the seed-mean accuracy first reaches ``level``; None if never."""
    columns = list(dict.fromkeys(["test_accuracy", column]))  # which may be one and the same
    # Grouped by a copy of the round, so that the round itself can be the column that is asked for.
    mean = rows.assign(at=rows["round"]).groupby("at")[columns].mean().sort_index()
    reached = mean[mean.test_accuracy >= level]
    return None if reached.empty else float(reached[column].iloc[0])


def highest_level(runs: Sequence[pd.DataFrame]) -> float | None:
    """The highest of ``LEVELS`` that the seed-mean accuracy of every series reaches; None if there is none."""
    if any(run.empty for run in runs):
        return None
    # The worst series limits what all reach; each at its best round, not at its last.
    best = min((float(run.groupby("round").test_accuracy.mean().max()) for run in runs), default=0.0)
    return next((level for level in LEVELS if level <= best), None)


def accuracy_at(rows: pd.DataFrame, r: float, along: str = "round") -> tuple[float, float]:
    """(mean, standard error) over seeds of the accuracy at round r, or r of another column, between evaluations."""
    return over_seeds(rows, lambda run: np.interp(r, run[along], run.test_accuracy))


def accuracy_up_to(rows: pd.DataFrame, r: float) -> tuple[float, float]:
    """(mean, standard error) over seeds of a run's accuracy averaged over its evaluations up to round r."""
    # The mean of a group adds up otherwise than that of a column, in the last digit.
    return over_seeds(rows[rows["round"] <= r], lambda run: run.groupby("seed").test_accuracy.mean().iloc[0])


def final_accuracy(rows: pd.DataFrame) -> tuple[float, float]:
    """(mean, standard error) over seeds of each run's mean accuracy over the last tenth of its evaluations."""
    return over_seeds(rows, lambda run: run.test_accuracy.tail(max(1, len(run) // 10)).mean())


def over_seeds(rows: pd.DataFrame, of: Callable[[pd.DataFrame], Any]) -> tuple[float, float]:
    """(mean, standard error) over seeds of a number ``of`` a run, its rows in order; NaN where there is none.

    One seed has no spread: what is left is ``binomial_error``, on the images of the column examples, or 1,000 without.
    """
    values = [float(of(run.sort_values("round"))) for _, run in rows.groupby("seed")]
    if not values:
        return float("nan"), float("nan")
    if len(values) > 1:
        return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))
    return values[0], binomial_error(values[0], int(rows.examples.min()) if "examples" in rows else 1000)


def binomial_error(accuracy: float, examples: int) -> float:
    """Standard error √(a(1 − a)/n) of an accuracy on n examples, with a = (n·accuracy + 1)/(n + 2), so it is not 0."""
    a = (examples * accuracy + 1) / (examples + 2)
    return float(np.sqrt(a * (1 - a) / examples))


RISEN: Final[float] = limits("edge").risen  # a test loss so many times its own smallest one is lost


def diverges(run: pd.DataFrame) -> bool:
    """Whether a run diverged: fixed before the recorded runs, though after a few trials.

    It did if losses stopped being finite, or if the test loss at its last evaluation is more than ``RISEN`` times the
    smallest that the run has had. A dip from which a run recovers does not count. ``run`` has a row an evaluation, with
    columns round, test_loss and diverged.
    """
    ordered = run.sort_values("round")
    # "not <=" is true of NaN too: a loss that is no number is lost.
    last = float(ordered["test_loss"].iloc[-1])
    return bool(ordered["diverged"].any()) or not last <= RISEN * float(ordered["test_loss"].min())


# --- our curves against the authors': series by series, over their whole common length, by one rule -------------------


def compared(ours: pd.DataFrame, authors: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """A row for every series and round that both have; the columns ``by`` name a series.

    ``ours`` has ``by``, seed, round, test_accuracy and examples (of an evaluation), ``authors`` all but examples. The
    result has ``by``, round, ours, theirs (means over seeds), low, high (the authors' seeds), seeds_of_ours,
    seeds_of_theirs, margin, inside, narrowly (inside by the error on the test images alone), finished.
    """
    keys = [*by, "round"]
    # An inner join: of a round that only one side evaluated nothing can be said.
    frames = [_range_over_seeds(ours, keys).add_suffix("_ours"), _range_over_seeds(authors, keys).add_suffix("_theirs")]
    runs = ours.assign(finished=ours.get("finished", True)).groupby(keys).agg({"examples": "min", "finished": "all"})
    joined = pd.concat([*frames, runs], axis=1, join="inner").reset_index()
    # How far seeds lie apart: the authors' seeds say, or else ours, or else the mean over our series at that round.
    common = joined.groupby("round").std_ours.transform("mean")
    spread = joined.std_theirs.fillna(joined.std_ours).fillna(common).fillna(0.0)
    # √(p(1 − p)/n): what the choice of the n test images alone moves.
    error = np.sqrt(joined.mean_theirs * (1 - joined.mean_theirs) / joined.examples)
    margin = TOLERANCE * error + spread
    # How far our mean lies outside the range of their seeds; negative inside it.
    beyond = np.maximum(joined.min_theirs - joined.mean_ours, joined.mean_ours - joined.max_theirs)
    means = {"mean_ours": "ours", "mean_theirs": "theirs", "min_theirs": "low", "max_theirs": "high"}
    named = joined.rename(columns={**means, "count_ours": "seeds_of_ours", "count_theirs": "seeds_of_theirs"})
    return named.assign(margin=margin, inside=beyond <= margin, narrowly=beyond <= TOLERANCE * error)


def _range_over_seeds(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean, min, max and standard deviation (NaN of one seed), where all seeds of the series are."""
    groups = rows.dropna(subset="test_accuracy").groupby(list(keys)).test_accuracy
    ranges = groups.agg(["mean", "min", "max", "std", "count"])
    # Seeds stop at different rounds. Behind the first that stops, means would jump for want of it.
    series = [key for key in keys if key != "round"]
    return ranges[ranges["count"] == ranges.groupby(series)["count"].transform("max")]


def bands_table(rounds: pd.DataFrame, by: Sequence[str], runs: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row for each series: how much of it is inside, where it first is not, and how it ends.

    ``rounds`` are those of ``compared``, ``by`` columns that name a series; ``runs`` are all rows of ours, also of the
    seeds that diverged and are not in the means, which are counted.
    """
    diverged = [run.series for run in left_out(lines_of(runs), by)] if runs is not None else []
    table = []
    for name, series in rounds.groupby(list(by), sort=False):
        rows = series.sort_values("round")
        last, outside = rows.iloc[-1], rows[~rows.inside]
        table.append(
            {
                "series": ", ".join(map(str, name)),
                "seeds, ours": int(last.seeds_of_ours),
                "seeds, authors'": int(last.seeds_of_theirs),
                "evaluations": len(rows),
                "last round": int(last["round"]),
                "finished": bool(rows.finished.all()),
                "seeds that diverged": diverged.count(name),
                "share inside": float(rows.inside.mean()),
                "share inside by the error on test images alone": float(rows.narrowly.mean()),
                "first round outside": int(outside["round"].iloc[0]) if len(outside) else None,
                "last accuracy, ours": float(last.ours),
                "last accuracy, authors'": float(last.theirs),
                "largest distance of means": float((rows.ours - rows.theirs).abs().max()),
            }
        )
    return pd.DataFrame(table)


def judged_bands(table: pd.DataFrame, wanted: int, *, testable: bool) -> pd.DataFrame:
    """The rows of ``bands_table`` as claims take them: ``judged`` are DeComFL's, finished and long enough.

    As many are ``wanted`` for the claim to hold, and it is ``testable`` where the runs have the sizes of the authors'.
    """
    if table.empty:
        return pd.DataFrame(columns=["series", "last round", "testable", "judged", "wanted"])
    ours = table["series"].str.contains("DeComFL") & table["finished"]
    return table.assign(testable=testable, wanted=wanted, judged=ours & (table["evaluations"] >= limits().common))
