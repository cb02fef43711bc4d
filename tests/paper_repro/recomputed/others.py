"""The parts on stability, language models, memory, spectra and bounds: their frames; and the audit."""

import math
from collections import Counter
from itertools import permutations, product

import numpy as np
import pandas as pd
from scipy import optimize, stats

from decomfl_lab.methods.memory import ROLES
from paper_repro.workflow.verdicts.claim_table import limits
from tests.paper_repro.recomputed.common import (
    ALL,
    FAILS,
    HOLDS,
    JUDGES,
    UNTESTED,
    Found,
    Frames,
    binomial,
    frames_of,
    having,
)
from theory.notation import printed

# --- the edge of stability --------------------------------------------------------------------------------------------

EDGE = limits("edge")
STEP, D = 0.01, 28_938
POINT = ["estimator", "batch", "factor", "P", "K", "beta"]


def curvature(row: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and how often each is there: the Ritz values, and the rest of the trace in equal parts."""
    values = np.array([float(value) for value in row.ritz.split()])
    rest = max(0.0, row.trace - values.sum()) / (D - len(values))
    return np.append(values, rest), np.append(np.ones(len(values)), D - len(values))


def load(row: pd.Series, h: float) -> float:
    """S(h) = Σ hλ/(2P − hλ(1 + P(1 − β)/(1 + β)))."""
    values, times = curvature(row)
    left = 2 * row.P - h * values * (1 + row.P * (1 - row.beta) / (1 + row.beta))
    return math.inf if (left <= 0).any() else float((times * h * values / left).sum())


def measured(row: pd.Series) -> dict[str, float]:
    """S at the run's own step, the step at which S = 1, what Theorem 2 admits as corrected, and T."""
    if not isinstance(row.ritz, str) or not row.trace > 0:
        return dict.fromkeys(("load", "limit", "admitted", "push"), math.nan)
    h, top = row.factor * STEP, 2 * row.P / row.trace
    values, _ = curvature(row)
    kappa = max(row.trace, values.sum()) / values.max()
    noise = 1 + row.variance / (row.drawn * max(row.signal, 1e-12))
    return {
        "load": load(row, h),
        "limit": float(optimize.brentq(lambda x: min(load(row, x), 2.0) - 1, 0, top)),
        "admitted": 1 / (4 * values.max() * (1 + (kappa + 1) / row.P)),
        "push": h * row.trace / (2 * row.P) * noise,
    }


def edge_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each run: whether it diverged, and S and T on its way."""
    own = frame.join(pd.DataFrame([measured(row) for _, row in frame.iterrows()], index=frame.index))
    found = []
    for key, run in own.groupby([*POINT, "seed"], sort=False):
        run = run.sort_values("round").reset_index(drop=True)
        lost = run.diverged.any() or not run.test_loss.iloc[-1] <= EDGE.risen * run.test_loss.min()
        turn = int(run.test_loss.idxmin())
        best = run.test_accuracy.cummax()
        above = run.load >= 1
        found.append(
            {
                **dict(zip([*POINT, "seed"], key, strict=True)),
                "apart": lost,
                "at_turn": run.load[turn],
                "push_at_turn": run.push[turn],
                "peak": run.load.max(),
                "limit": run.limit[: turn + 1].min(),
                "admitted": run.admitted[: turn + 1].min(),
                "crossed": above.any(),
                "warned": (above & (best - run.test_accuracy <= 0.1)).any(),
            }
        )
    return pd.DataFrame(found)


def usual(runs: pd.DataFrame, but: str = "") -> pd.DataFrame:
    """The runs at Figure 2's point, but for one knob: the largest batch by projection."""
    base = {"estimator": "projection", "batch": runs.batch.max(), "factor": 1.0, "P": 20, "K": 1, "beta": 0.9}
    return having(runs, {name: value for name, value in base.items() if name != but})


@frames_of("edge")
def _(frame: pd.DataFrame) -> Frames:
    runs = edge_runs(frame).astype({"apart": bool, "crossed": bool, "warned": bool})
    keys = [name for name in [*POINT, "seed"] if name != "estimator"]
    ours = runs[runs.estimator == "finite differences"]
    theirs = runs[runs.estimator == "projection"].set_index(keys).apart
    both = pd.concat({"a": ours.set_index(keys).apart, "b": theirs}, axis=1, join="inner").astype(bool)
    rescued, lost, apart = (both.b & ~both.a).sum(), (both.a & ~both.b).sum(), (both.a & both.b).sum()
    pairs = {"pairs": len(both), "both": apart, "rescued": rescued, "lost": lost, "batch": ours.batch.max()}
    pairs["better"] = stats.binomtest(rescued, rescued + lost, alternative="greater").pvalue if rescued + lost else 1.0
    pairs["fewer"] = stats.binomtest(rescued, rescued + apart, alternative="less").pvalue if rescued + apart else 1.0
    directions = usual(runs, but="P")
    counts = directions.groupby("P").apart.agg(["sum", "count"]).iloc[[0, -1]]
    table = [[row["sum"], row["count"] - row["sum"]] for _, row in counts.iterrows()]
    better, worse = (stats.fisher_exact(table, alternative=side).pvalue for side in ("greater", "less"))
    fisher = pd.DataFrame([{"better": better, "worse": worse}])
    found = {"": runs, "usual": usual(runs), "directions": directions.sort_values("P"), "fisher": fisher}
    return {**found, "pairs": pd.DataFrame([pairs])}


# --- fine-tuning ------------------------------------------------------------------------------------------------------

TITLES = {"sst2": "SST-2", "cb": "CB", "wsc": "WSC", "wic": "WiC", "rte": "RTE", "boolq": "BoolQ"}
PRINTED = {"sst2": "SST-2", "cb": "CB", "wsc": "WSC", "wic": "WIC", "rte": "RTE", "boolq": "BoolQ"}
TITLES["cb-two-way"] = "CB, read two ways"
COLUMNS = {
    False: {"FedAvg": 0, "MeZO": 1, "FedZO": 2, "DeComFL P=10": 3},
    True: {"MeZO": 0, "FedZO": 1, "DeComFL P=5": 2, "DeComFL P=10": 3},
}
"""The columns of the paper's tables, without and with LoRA."""


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each run: accuracies before and after, their errors, and bytes a client."""
    own = frame.sort_values("round", kind="stable").groupby(["row", "task", "series"], sort=False)
    first, last = own.first(), own.last()
    found = last.reset_index()
    found["start"] = np.fmax(first.test_accuracy, first.calibrated_accuracy).to_numpy()
    found["accuracy"] = found.test_accuracy
    found["trained"] = found.model + np.where(found["row"].str.endswith("+LoRA"), "+LoRA", "")
    found["error"] = [binomial(a, n) for a, n in zip(found.accuracy, found.examples, strict=True)]
    found["gain"] = found.accuracy - found.start
    found["gain_error"] = [
        math.hypot(e, binomial(s, n)) for e, s, n in zip(found.error, found.start, found.examples, strict=True)
    ]
    found["learnt"] = found.accuracy - np.maximum(found.start, found.majority) > 2 * found.error
    found["bytes"] = 4 * found.wire_scalars
    found["name"] = found.task.map(TITLES) + ", " + found.trained
    found["rounds"], found["diverged"] = found["round"], found.diverged.astype(bool)
    found["a_round"] = found.bytes / found.rounds
    found["by_length"] = -found.rounds
    found["ours"] = found.series.str.startswith("DeComFL")
    found["formula"] = [
        R * 12 * int("0" + name.partition("=")[2]) for R, name in zip(found.rounds, found.series, strict=True)
    ]
    fedzo = frame[(frame.series == "FedZO") & (frame["round"] > 0)].groupby("row").last()
    found["d"] = found["row"].map(fedzo.gradient_scalars / (4 * fedzo["round"]))  # two clients, both ways
    return found


def side_by_side(found: pd.DataFrame) -> pd.DataFrame:
    """Every two cells of one task and model."""
    found = found.assign(base=found["row"].str.removesuffix("+LoRA"))
    found["column"] = found.series + np.where(found["row"].str.endswith("+LoRA"), "+LoRA", "")
    both = found.merge(found, on=["base", "task"], suffixes=("_a", "_b"))
    both = both[both.column_a != both.column_b]
    across = np.where(both.row_a == both.row_b, "", " − " + both.trained_b)
    return both.assign(
        pair=both.column_a + " − " + both.column_b,
        told=both.series_a + " − " + both.series_b + ", " + both.name_a + across,
        trained=both.trained_a,
        whole=~(both.diverged_a | both.diverged_b),
        learnt=both.learnt_a | both.learnt_b,
        difference=both.accuracy_a - both.accuracy_b,
        error=(both.error_a**2 + both.error_b**2) ** 0.5,
        counted=both.bytes_b > 0,
        ratio=(both.a_round_a / both.a_round_b).where(both.bytes_b > 0),
    )


def printed_cells() -> pd.DataFrame:
    """The cells of the paper's tables: costs beside the formula's, and accuracies beside always the same answer."""
    found = []
    for row, task in product(printed.ROUNDS, PRINTED):
        lora, rounds = row.endswith("+LoRA"), printed.ROUNDS[row][PRINTED[task]]
        always = 100 * printed.MOST_FREQUENT[PRINTED[task]] / printed.EXAMPLES[PRINTED[task]]
        for name, n in COLUMNS[lora].items():
            cell = (printed.LORA if lora else printed.RESULTS[row])[PRINTED[task]][n]
            ours, cost = name.startswith("DeComFL"), math.nan if cell.cost is None else cell.cost
            formula = rounds * int("0" + name.partition("=")[2]) * 12 / 1e6
            told = {"row": row, "task": task, "series": name, "accuracy": cell.accuracy, "printed": cost}
            told |= {"name": f"{TITLES[task]}, {row}", "ours": ours}
            told |= {"formula": formula, "off": ours and round(formula, 2) != cost, "below": always - cell.accuracy}
            told |= {
                "is_below": cell.accuracy <= always,
                "printed_bytes": cost * 1e12,
                "bytes": rounds / 4 * 8 * 294_912,
            }
            found.append(told)
    return pd.DataFrame(found)


def rounds_in_print() -> pd.DataFrame:
    """DeComFL's rounds over FedAvg's, which cost two models for one client in four a round, to the next 500."""
    told = []
    for (model, d), (task, row) in product((("OPT-125M", 125e6), ("OPT-1.3B", 1.3e9)), PRINTED.items()):
        theirs = 500 * round(printed.RESULTS[model][row][0].cost * 1e12 / (2 * 4 * d / 4) / 500)
        told.append({"name": f"{TITLES[task]}, {model}", "ratio": printed.ROUNDS[model][row] / theirs})
    return pd.DataFrame(told)


def at_equal_rounds(frame: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Bytes a client of DeComFL in two rows of the settings at the last round that both have, task by task."""
    own, parts = frame[(frame.series == "DeComFL P=10") & (frame["round"] > 0)], []
    facts = found.groupby("row").first()
    for one, other in permutations(own["row"].unique(), 2):
        a, b = (own[own["row"] == row].set_index(["task", "round"]).wire_bytes / 8 for row in (one, other))
        both = pd.concat({"one_bytes": a, "other_bytes": b}, axis=1, join="inner").reset_index()
        both = both.loc[both.groupby("task")["round"].idxmax()].sort_values(["round", "task"])
        told = {"one_trained": facts.trained[one], "other_trained": facts.trained[other]}
        told |= {"one_d": facts.d[one], "other_d": facts.d[other]}
        parts.append(both.assign(one=one, other=other, longest=both.index == both.index[-1], **told))
    ends = pd.concat(parts)
    apart = (ends.one_bytes - ends.other_bytes).abs()
    return ends.assign(apart=apart, r=ends["round"], title=ends.task.map(TITLES))


@frames_of("llm")
def _(frame: pd.DataFrame) -> Frames:
    found, costs = cells(frame), printed_cells()
    accuracies = costs[costs.ours].assign(name=lambda t: t.name + ", " + t.series)
    frames = {"cells": found, "pairs": side_by_side(found), "printed": accuracies, "costs": costs}
    return {**frames, "": pd.DataFrame(), "rounds": rounds_in_print(), "same": at_equal_rounds(frame, found)}


# --- sizes ------------------------------------------------------------------------------------------------------------

SIZES = limits("sizes")


def size_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each run: the round at which the loss has done most of its fall, and the accuracy at the end."""
    found = []
    for (d, model, _), run in frame[frame.what == "evaluation"].groupby(["d", "model", "seed"]):
        run = run.sort_values("round")
        start, low = run.test_loss.iloc[0], run.test_loss.min()
        end = run.tail(max(2, round(0.2 * len(run))))
        fell = start - low > max(SIZES.scatter * end.test_loss.std(), SIZES.learnt * start) and not run.diverged.any()
        accuracy, began = end.test_accuracy.mean(), run[["test_accuracy", "calibrated_accuracy"]].iloc[0].max()
        margin = ALL.errors * math.hypot(binomial(accuracy, 872), binomial(began, 872))
        level = start - SIZES.share * (start - low)
        k = int(np.argmax(run.test_loss.to_numpy() <= level))
        (r0, r1), (l0, l1) = run["round"].iloc[k - 1 : k + 1], run.test_loss.iloc[k - 1 : k + 1]
        rounds = r0 + (l0 - level) / (l0 - l1) * (r1 - r0) if fell and accuracy - began > margin else math.nan
        settled = rounds <= SIZES.settled * run["round"].max()
        found.append({"d": d, "model": model, "rounds": rounds, "settled": settled, "accuracy": accuracy})
    return pd.DataFrame(found)


@frames_of("sizes")
def _(frame: pd.DataFrame) -> Frames:
    runs = size_runs(frame)
    rounds = runs.groupby("model", sort=False).rounds.apply(lambda r: r.mean(skipna=False)).round().reset_index()
    ends = runs.groupby("model", sort=False).accuracy.mean().reset_index()
    slope = dict.fromkeys(("s", "low", "high"), math.nan)
    if runs.settled.all():
        line = stats.linregress(np.log(runs.d), np.log(runs.rounds))
        half = stats.t.ppf(0.975, len(runs) - 2) * line.stderr
        slope = {"s": line.slope, "low": line.slope - half, "high": line.slope + half}
    own = frame[frame.what == "kappa"].astype({"d": int}).groupby(["at", "d"])
    kappa = own.agg(kappa=("kappa", "mean"), low=("low", "min"), high=("high", "max")).reset_index()
    accuracies = ends.assign(error=[binomial(value, 872) for value in ends.accuracy])
    return {"runs": runs, "rounds": rounds, "slope": pd.DataFrame([slope]), "accuracies": accuracies, "kappa": kappa}


# --- memory and spectra -----------------------------------------------------------------------------------------------


@frames_of("memory")
def _(frame: pd.DataFrame) -> Frames:
    own = frame[frame.d == frame.d.max()]
    return {"": own.assign(models=own.peak_bytes / (4 * own.d), what=[ROLES[role].what for role in own.role])}


READINGS = ("signed", "positive", "absolute", "gauss-newton")


@frames_of("hessian")
def _(frame: pd.DataFrame) -> Frames:
    return {"": frame[(frame["kind"] == "estimate") & (frame.step > 0)].astype({"step": int}).sort_values("step")}


# --- theory and audit -------------------------------------------------------------------------------------------------


@frames_of("theory")
def _(frame: pd.DataFrame) -> Frames:
    rounds = frame[frame.sweep == "rounds"].sort_values("at")
    needed = rounds.set_index(["knob", "at", "noise", "series"]).rounds.unstack("series").reset_index()
    return {
        "far": frame[(frame.sweep == "by-d") & (frame.d >= 1000)].drop(columns="model"),
        "quadratics": frame[frame.sweep.isin(["by-d", "by-kappa"])].drop(columns="model"),
        "rounds": rounds,
        "promised": needed.assign(ratio=needed.measured / needed["stated bound"]),
        "moving": rounds[rounds.series == "measured"].dropna(subset="eta"),
        "trained": trained(frame[frame.sweep == "training"]),
    }


def trained(frame: pd.DataFrame) -> pd.DataFrame:
    """What was measured over the bounds at every round that these have, beside the constants, model by model."""
    parts = []
    for model, own in frame.groupby("model"):
        runs = own[own.kind == "run"].groupby("round").value.max()
        stated, mended = (own[own.series == f"Theorem 2, {f}"].set_index("round") for f in ("stated", "corrected"))
        ratios = pd.DataFrame({"stated": runs / stated.value, "corrected": runs / mended.value}).dropna()
        constants = own[own.kind == "constant"].set_index("series").value.to_dict()
        admitted = (stated.admitted.astype(str) == "True").all()
        parts.append(ratios.reset_index().assign(model=model, admitted=int(admitted), **constants))
    return pd.concat(parts)


RIGHT = ("true ", "not decided", "not checkable")


def audited(frame: pd.DataFrame, name: str) -> Found:
    again = frame.restates.notna() & (frame.restates.astype(str) != "")
    if name == "audit.all":
        counts = Counter(frame[~again].status)
        return dict(counts), HOLDS if all(status.startswith(RIGHT) for status in counts) else FAILS
    row = frame[frame.label.str.replace(":", "-") == name.removeprefix("audit.")].iloc[0]
    numbers = next((found["numbers"] for found in row.evidence if found["numbers"]), {})
    told = {key: value for key, value in numbers.items() if value is not None and math.isfinite(value)}
    if not row.confirmed or row.status == "not checkable":
        return told, UNTESTED
    return told, HOLDS if row.status.startswith(RIGHT) else FAILS


JUDGES |= dict.fromkeys(("audit.all", "audit.*"), audited)
