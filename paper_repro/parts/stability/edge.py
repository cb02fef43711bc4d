"""The edge of stability: which runs diverge, beside the largest step that their curvature allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy import stats

from figures.edge import edge
from paper_repro.parts.stability.edge_runs import DIFFERENCES, PAPER_STEP, POINT, PROJECTION, USUAL, at_point, points
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import caption, notes
from paper_repro.workflow.runs import Work
from paper_repro.workflow.scales import SCALES, Scale
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome
from paper_repro.workflow.verdicts.claim_verdicts import judged
from paper_repro.workflow.verdicts.measures import RISEN, diverges
from theory.bounds import statement
from theory.checks.stability import largest_step, load
from theory.notation.setting import Setting
from theory.problems.spectrum import Spectrum

D: Final = 28_938
FALLEN: Final = 0.1  # an accuracy so far below its own best one has fallen
TINY: Final = 1e-12  # the number that takes the place of ‖∇f‖² where its unbiased estimate is not above 0


def jobs(options: Options) -> list[Work]:
    """A run a point and seed."""
    size = options.scale.edge
    return [at_point(size, point, seed) for point in points(size) for seed in size.seeds]


def with_limits(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with load (S), limit, admitted and push (T), NaN where the curvature was not finite any more.

    S is at the row's own step, limit the largest stable step, admitted the largest that corrected Theorem 2 admits; and

        T = h tr(H)/(2P) · (1 + σ²/‖∇f‖²),    σ² the variance of the mean of the examples that a step draws

    A step of plain SGD changes f by −h‖∇f‖² + ½h²E(Zv̄)ᵀH(Zv̄), which is above 0 where T > 1 if the trace is all there is
    of H (F2 in ``docs/theory.md``).
    """
    limits = []
    row: Any
    for row in rows.itertuples():
        if not row.ritz or not row.trace > 0:
            limits.append(dict.fromkeys(("load", "limit", "admitted", "push"), math.nan))
            continue
        # The positive Ritz values, and what is left of tr(H) in small parts. Ritz values of a Krylov space never add up
        # to more than as many of the largest eigenvalues do, and S is convex in the eigenvalues, so S of this spectrum
        # is at most S of the whole one.
        values = tuple(float(value) for value in row.ritz.split())
        rest = max(0.0, row.trace - math.fsum(values))
        spectrum = Spectrum((*values, rest / (D - len(values))), (*(1 for _ in values), D - len(values)))
        plain = Setting(d=D, L=spectrum.L, kappa=spectrum.kappa, P=row.P)
        h = row.factor * PAPER_STEP
        limits.append(
            {
                "load": load(spectrum, h, P=row.P, beta=row.beta),
                "limit": largest_step(spectrum, P=row.P, beta=row.beta),
                "admitted": statement("theorem-2-dimension-free").step_sizes(plain).largest,
                "push": h * row.trace / (2 * row.P) * (1 + row.variance / (row.drawn * max(row.signal, TINY))),
            }
        )
    return pd.concat([rows.reset_index(drop=True), pd.DataFrame(limits)], axis=1)


def outcomes(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a run: its point and seed, apart, fallen (by accuracy instead), and S on its way.

    ``turn`` is the local step of the smallest test loss, ``at_turn`` and ``push_at_turn`` are S and T there; ``peak``
    is the largest S of all, ``crossed`` whether it is 1 or more; ``limit`` and ``admitted`` are the smallest steps
    allowed up to the turn; ``warned`` is whether S was above 1 while accuracy was not yet ``FALLEN`` below its best.
    """
    table = []
    for _, run in rows.groupby([*POINT, "seed"], sort=False):
        path = run.sort_values("round").reset_index(drop=True)
        turn = int(np.nanargmin(path["test_loss"].to_numpy()))
        best = path["test_accuracy"].cummax()
        above = path["load"] >= 1.0
        table.append(
            {
                **path[[*POINT, "seed"]].iloc[0],
                "apart": diverges(path),
                "fallen": bool(path["diverged"].any() or best.iloc[-1] - path["test_accuracy"].iloc[-1] > FALLEN),
                "turn": int(path["round"][turn] * path["K"][turn]),
                "best_accuracy": float(best.iloc[-1]),
                "last_accuracy": float(path["test_accuracy"].iloc[-1]),
                "at_turn": float(path["load"][turn]),
                "push_at_turn": float(path["push"][turn]),
                "peak": float(path["load"].max()),
                "limit": float(path["limit"][: turn + 1].min()),
                "admitted": float(path["admitted"][: turn + 1].min()),
                "crossed": bool(above.any()),
                "warned": bool((above & (best - path["test_accuracy"] <= FALLEN)).any()),
            }
        )
    return pd.DataFrame(table)


def shares(by_run: pd.DataFrame) -> pd.DataFrame:
    """One row a point: runs, those that diverged, their share with Wilson's 95 % interval, and the same by accuracy.

    ``by_run`` is of ``outcomes``. Source: Wilson 1927.
    """
    groups = by_run.groupby(POINT, sort=False)
    table = groups.agg(runs=("apart", "size"), apart=("apart", "sum"))
    counts = table[["apart", "runs"]].to_numpy().tolist()
    ends = [stats.binomtest(apart, runs).proportion_ci(0.95, method="wilson") for apart, runs in counts]
    table["share"] = table["apart"] / table["runs"]
    table["low"] = [max(0.0, interval.low) for interval in ends]
    table["high"] = [min(1.0, interval.high) for interval in ends]
    table["fallen"] = groups["fallen"].sum()
    table["best accuracy"] = groups["best_accuracy"].agg(lambda runs: runs.mean())  # pandas' own adds up otherwise
    medians = {"at_turn": "S at the turn", "push_at_turn": "T at the turn"}
    medians |= {"limit": "largest stable step", "admitted": "Theorem 2 admits"}
    table = table.join(groups[[*medians]].median().rename(columns=medians)).reset_index()
    table.insert(len(POINT), "h", table["factor"] * PAPER_STEP)
    return table


def _paired(by_run: pd.DataFrame, one: Mapping[str, Any], other: Mapping[str, Any]) -> pd.DataFrame:
    """Whether runs diverged, one beside the other on the same seeds and in all else alike: columns one, other."""
    columns = [name for name in [*POINT, "seed"] if name not in one]

    def of(which: Mapping[str, Any]) -> pd.Series[bool]:
        kept = by_run[np.logical_and.reduce([by_run[name] == value for name, value in which.items()])]
        return kept.set_index(columns)["apart"]

    return pd.concat({"one": of(one), "other": of(other)}, axis=1, join="inner").astype(bool)


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The runs made here; and, above them, those recorded at the paper's sizes where there are any."""
    here = made_of(rows, provenance, options.scale)
    if options.longer is None:
        return here
    full = made_of(options.longer.rows, options.longer.provenance, SCALES[options.longer.scale]).of(options.longer)
    section = replace(
        full.section,
        more_figures={f"Made here, scale {options.scale.name}": here.figures["edge"]},
        facts={**full.section.facts, **{f"{name}, made here": text for name, text in here.section.facts.items()}},
    )
    figures = {f"{stem}-{options.longer.scale}": draw for stem, draw in full.figures.items()}
    tables = {f"{stem}-{options.longer.scale}": table for stem, table in full.tables.items()}
    figures |= here.figures
    tables |= here.tables
    return Made(section=section, claims=here.claims, figures=figures, tables=tables)


def made_of(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], scale: Scale) -> Made:
    """Figure, table and verdicts of the runs of one scale."""
    size, seeds = scale.edge, sorted(set(rows["seed"]))
    batches = ", ".join(map(str, sorted(set(rows["batch"]), reverse=True)))
    words = scale.words("edge", batches=batches, first=seeds[0], last=seeds[-1])
    rows = with_limits(rows)
    by_run = outcomes(rows)
    table = shares(by_run)
    factors = by_run[by_run["estimator"] == PROJECTION].groupby("batch")["factor"].nunique()
    base = {**USUAL, "batch": int(factors[factors == factors.max()].index.max())}  # so far, where runs are missing
    usual = by_run[_on_line(by_run, "factor", base) & (by_run["factor"] == 1.0)].dropna(subset=["limit"])
    bands = {"Theorem 2 admits, by the curvature met": "admitted", "stable in mean square, by the same": "limit"}
    limits = {name: (usual[column].min(), usual[column].max()) for name, column in bands.items() if len(usual)}
    line = rows[_on_line(rows, "factor", base)]
    along = line.assign(
        run=[f"{row.factor:g} {row.seed}" for row in line.itertuples()], step=line["round"] * line["K"]
    ).merge(by_run[[*POINT, "seed", "apart"]], on=[*POINT, "seed"])
    # The points that differ in η/(1 − β), estimator and B alone, a series each of the two; but for the line in B.
    steps = table[np.logical_and.reduce([table[name] == base[name] for name in ("P", "K", "beta")])]
    steps = steps[steps["batch"].isin([size.batch_size, size.small_batch])]
    # The lines in B, P, K and β that have more than one point.
    varied = [pd.DataFrame(columns=["knob", "at", "share", "low", "high"])]
    for knob, symbol in (("batch", "B"), ("P", "P"), ("K", "K"), ("beta", "β")):
        on_line = table[_on_line(table, knob, base)]
        if len(on_line) > 1:
            varied.append(on_line.assign(knob=symbol, at=on_line[knob])[["knob", "at", "share", "low", "high"]])
    facts = {"scale": words, "data": str(provenance[0]["data"])}
    part_notes = notes("edge", fallen=FALLEN)
    of_batch = ({"estimator": PROJECTION, "batch": batch} for batch in (size.small_batch, size.batch_size))
    pairs = _paired(by_run, *of_batch)
    if len(pairs):
        part_notes.append(
            f"Does B matter? On {len(pairs)} equal seeds and steps, B = {size.small_batch} diverged "
            f"{int(pairs['one'].sum())} times and B = {size.batch_size} {int(pairs['other'].sum())} times; "
            f"{int((pairs['one'] != pairs['other']).sum())} pairs differ."
        )
    figure = partial(
        edge,
        steps.assign(series=[f"{row.estimator}, B = {row.batch}" for row in steps.itertuples()]),
        pd.concat(varied),
        along,
        limits=limits,
        title="The edge of stability: Figure 2's setting, and around it",
        caption=caption("edge", **facts, d=D, risen=RISEN, step=PAPER_STEP, B=base["batch"], examples=size.examples),
    )
    return made(
        "edge",
        claims(by_run, words),
        {"edge": figure},
        {"edge": table, "edge-runs": by_run, "edge-measurements": rows},
        notes=part_notes,
        facts={**facts, "runs": str(len(by_run))},
    )


def _on_line(table: pd.DataFrame, knob: str, base: Mapping[str, Any]) -> pd.Series[bool]:
    """Whether each row differs from the base in nothing but the knob."""
    others = [name for name in POINT if name != knob]
    same: pd.Series[bool] = np.logical_and.reduce([table[name] == base[name] for name in others])
    return same


def claims(by_run: pd.DataFrame, words: str) -> list[ClaimOutcome]:
    """What the paper says of stability, and what the corrected theory says; ``by_run`` is of ``outcomes``."""
    most = int(by_run["batch"].max())
    # Whether runs by finite differences are more stable than by projection, on equal seeds and in all else alike:
    # ``better`` is the p of an exact one-sided McNemar test that pairs of which only the projection diverged outnumber
    # those of which only the differences did; ``fewer`` that of an exact binomial test that differences rescue fewer
    # than half of the runs that diverged by projection.
    pairs = _paired(by_run, {"estimator": DIFFERENCES}, {"estimator": PROJECTION})
    rescued = int((pairs["other"] & ~pairs["one"]).sum())
    lost = int((pairs["one"] & ~pairs["other"]).sum())
    both = int((pairs["one"] & pairs["other"]).sum())
    stable = {
        "pairs": len(pairs),
        "both": both,
        "rescued": rescued,
        "lost": lost,
        "better": float(stats.binom.sf(rescued - 1, rescued + lost, 0.5)),
        "fewer": float(stats.binom.cdf(rescued, rescued + both, 0.5)),
        "batch": by_run[by_run["estimator"] == DIFFERENCES]["batch"].max(),
    }
    # The p of Fisher's exact tests that fewer, and that more, runs diverge with the most directions.
    directions = by_run[_on_line(by_run, "P", {**USUAL, "batch": most})]
    few, many = (directions[directions["P"] == P]["apart"] for P in (directions["P"].min(), directions["P"].max()))
    counts = [[int(few.sum()), int((~few).sum())], [int(many.sum()), int((~many).sum())]]
    better, worse = (float(stats.fisher_exact(counts, alternative=side).pvalue) for side in ("greater", "less"))
    known = directions["P"].nunique() > 1
    fisher = {"better": better if known else math.nan, "worse": worse}
    frames = {
        "": by_run,
        "usual": by_run[_on_line(by_run, "batch", USUAL) & (by_run["batch"] == most)],
        "pairs": pd.DataFrame([stable]),
        "directions": directions,
        "fisher": pd.DataFrame([fisher]),
    }
    return judged("edge", words, frames)
