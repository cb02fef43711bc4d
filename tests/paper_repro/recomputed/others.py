"""The claims about stability, language models, the board, memory, spectra, bounds, and the audit's own count."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import numpy as np
import pandas as pd
from scipy import optimize, stats

from paper_repro.workflow.claims import limits
from tests.paper_repro.recomputed.common import (
    ALL,
    DEPENDS,
    FAILS,
    HOLDS,
    UNTESTED,
    Found,
    Numbers,
    binomial,
    by_countings,
    decided,
    recomputes,
    rising,
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
                "push": run.push[turn],
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
    return runs[np.logical_and.reduce([runs[name] == value for name, value in base.items() if name != but])]


@recomputes("edge.*")
def _(frame: pd.DataFrame, name: str) -> Found:
    runs = edge_runs(frame)
    return {
        "edge.more-stable": edge_pairs,
        "edge.covered": edge_covered,
        "edge.directions": edge_directions,
        "edge.turn": edge_turn,
        "edge.limit": edge_limit,
    }[name](runs)


def edge_pairs(runs: pd.DataFrame) -> Found:
    keys = [name for name in [*POINT, "seed"] if name != "estimator"]
    ours = runs[runs.estimator == "finite differences"].set_index(keys).apart
    theirs = runs[runs.estimator == "projection"].set_index(keys).apart
    both = pd.concat({"a": ours, "b": theirs}, axis=1, join="inner").astype(bool)
    rescued, lost, apart = (both.b & ~both.a).sum(), (both.a & ~both.b).sum(), (both.a & both.b).sum()
    better = stats.binomtest(rescued, rescued + lost, alternative="greater").pvalue if rescued + lost else 1.0
    fewer = stats.binomtest(rescued, rescued + apart, alternative="less").pvalue if rescued + apart else 1.0
    told = {"pairs": len(both), "both came apart": apart, "only the projection": rescued, "only the differences": lost}
    told |= {"p, more stable": better, "p, fewer than half rescued": fewer}
    told["B"] = runs[runs.estimator == "finite differences"].batch.max()
    return told, decided(better <= EDGE.significant, min(better, fewer) <= EDGE.significant)


def edge_covered(runs: pd.DataFrame) -> Found:
    own = usual(runs)
    told = {"Figure 2's η/(1 − β)": STEP, "runs": len(own), "came apart": own.apart.sum()}
    told |= {"admitted, least over seeds": own.admitted.min(), "admitted, largest over seeds": own.admitted.max()}
    told["stable in mean square, least over seeds"] = own.limit.min()
    return told, decided(own.admitted.min() >= STEP)


def edge_directions(runs: pd.DataFrame) -> Found:
    own = usual(runs, but="P")
    apart = own.groupby("P").apart.agg(["sum", "count"])
    few, many = apart.iloc[0], apart.iloc[-1]
    table = [[few["sum"], few["count"] - few["sum"]], [many["sum"], many["count"] - many["sum"]]]
    better, worse = (stats.fisher_exact(table, alternative=side).pvalue for side in ("greater", "less"))
    told = {f"came apart, P = {P}": count for P, count in apart["sum"].items()}
    told |= {"runs a P": apart["count"].min(), "p": better}
    return told, decided(better <= EDGE.significant, min(better, worse) <= EDGE.significant)


def edge_turn(runs: pd.DataFrame) -> Found:
    at = runs[runs.apart].push.dropna()
    within = ((at >= 1 / EDGE.factor) & (at <= EDGE.factor)).mean()
    told = {"came apart": len(at), "within": within}
    told |= {f"T, {name}": np.quantile(at, q) for name, q in (("tenth", 0.1), ("median", 0.5), ("ninth", 0.9))}
    return told, decided(within >= EDGE.most, len(at) >= EDGE.least_runs)


def edge_limit(runs: pd.DataFrame) -> Found:
    apart, stayed = runs[runs.apart], runs[~runs.apart.astype(bool)]
    right = (runs.crossed == runs.apart).mean()
    told = {
        "runs told right": right,
        "came apart": len(apart),
        "of those, S ≥ 1 somewhere": apart.crossed.sum(),
        "of those, S ≥ 1 before accuracy fell": apart.warned.sum(),
        "S where their loss turns, median": apart.at_turn.median(),
        "S where their loss turns, least": apart.at_turn.min(),
        "stayed together": len(stayed),
        "largest S of those": stayed.peak.max(),
    }
    return told, decided(right >= EDGE.agreement, min(len(apart), len(stayed)) >= EDGE.least_runs)


# --- fine-tuning ------------------------------------------------------------------------------------------------------

LLM = limits("llm")
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
    found["end"] = found.test_accuracy
    found["trained"] = found.model + np.where(found["row"].str.endswith("+LoRA"), "+LoRA", "")
    found["error"] = [binomial(a, n) for a, n in zip(found.end, found.examples, strict=True)]
    found["gain"] = found.end - found.start
    found["gain_error"] = [
        math.hypot(e, binomial(s, n)) for e, s, n in zip(found.error, found.start, found.examples, strict=True)
    ]
    found["learnt"] = found.end - np.maximum(found.start, found.majority) > 2 * found.error
    found["bytes"] = 4 * found.wire_scalars
    found["name"] = found.task.map(TITLES) + ", " + found.trained
    return found[~found.diverged.astype(bool)]


def gains(differences: list[tuple[float, float]]) -> list[int]:
    """The signs of those that stand out, 0 of the others, by a level that is shared out among them."""
    limit = stats.norm.ppf(1 - ALL.chance / 2 / max(1, len(differences)))
    return [int(np.sign(value)) if abs(value) > limit * error else 0 for value, error in differences]


def verdict_of_gains(signs: list[int]) -> str:
    return FAILS if -1 in signs else decided(True, bool(signs) and 0 not in signs)


@recomputes("llm.gain")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = cells(frame)[lambda t: t.series == "DeComFL P=10"]
    told = {
        f"gain, {row.name}": row.gain for row in own.set_index("name", drop=False).itertuples(index=False, name="R")
    }
    return told, verdict_of_gains(gains([*zip(own.gain, own.gain_error, strict=True)]))


@recomputes("llm.five-points")
def _(frame: pd.DataFrame, _: str) -> Found:
    found = cells(frame)
    own = found[(found["row"] == "OPT-125M") & (found.task == "sst2") & (found.series == "DeComFL P=10")].iloc[0]
    told = {"before": own.start, "after": own.end, "gain": own.gain, "its standard error": own.gain_error}
    margin = ALL.errors * own.gain_error
    holds = own.gain >= LLM.five and own.gain > margin
    return told, decided(holds, holds or own.gain < LLM.five - margin)


PAIRS = {
    "llm.mezo": [("", "DeComFL P=10", "", "MeZO")],
    "llm.fedzo": [("", "DeComFL P=10", "", "FedZO"), ("+LoRA", "DeComFL P=5", "+LoRA", "FedZO")],
    "llm.directions": [("", "DeComFL P=10", "", "DeComFL P=5"), ("+LoRA", "DeComFL P=10", "+LoRA", "DeComFL P=5")],
    "llm.lora": [("+LoRA", "DeComFL P=10", "", "DeComFL P=10"), ("+LoRA", "DeComFL P=10", "", "MeZO")],
    "llm.first-order": [("", "FedAvg", "", "DeComFL P=10")],
    "llm.saving": [("", "FedZO", "", "DeComFL P=10"), ("+LoRA", "FedZO", "+LoRA", "DeComFL P=5")],
}


def pairs(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Cells of two columns of the same task and model, side by side."""
    found = cells(frame)
    found["base"] = found["row"].str.removesuffix("+LoRA")
    found["end_of_row"] = np.where(found["row"].str.endswith("+LoRA"), "+LoRA", "")
    parts = []
    for end, series, other_end, other in PAIRS[name]:
        a = found[(found.series == series) & (found.end_of_row == end)]
        b = found[(found.series == other) & (found.end_of_row == other_end)]
        parts.append(a.merge(b, on=["base", "task"], suffixes=("_a", "_b")))
    both = pd.concat(parts)
    both["difference"] = both.end_a - both.end_b
    both["error"] = (both.error_a**2 + both.error_b**2) ** 0.5
    across = both.end_of_row_a != both.end_of_row_b
    both["told"] = (
        both.series_a + " − " + both.series_b + ", " + both.name_a + np.where(across, " − " + both.trained_b, "")
    )
    return both


@recomputes("llm.mezo", "llm.fedzo", "llm.directions", "llm.lora", "llm.first-order")
def _(frame: pd.DataFrame, name: str) -> Found:
    both = pairs(frame, name)
    if name == "llm.first-order":
        signs = gains([*zip(both.difference, both.error, strict=True)])
        return dict(zip(both.told, both.difference, strict=True)), verdict_of_gains(signs)
    judged = both[both.learnt_a | both.learnt_b]
    signs = gains([*zip(judged.difference, judged.error, strict=True)])
    told = {"pairs of cells": len(both), "judged: something was learnt": len(judged)}
    told |= dict(zip(judged.told, judged.difference, strict=True))
    worse = -1 in signs or (1 in signs and name == "llm.fedzo")
    return told, decided(not worse, bool(signs))


@recomputes("llm.saving")
def _(frame: pd.DataFrame, name: str) -> Found:
    both = pairs(frame, name)
    ratio = (both.bytes_a / both.round_a) / (both.bytes_b / both.round_b)
    told = {f"FedZO / DeComFL, {model}, least of its tasks": own.min() for model, own in ratio.groupby(both.trained_a)}
    verdict = decided(ratio.min() >= LLM.dramatic)
    sst2 = printed.RESULTS["OPT-125M"]["SST-2"]
    return told | {"as printed for OPT-125M and SST-2": sst2[2].cost * 1e12 / (sst2[3].cost * 1e6)}, verdict


@recomputes("llm.dimension-free", "llm.peft")
def _(frame: pd.DataFrame, name: str) -> Found:
    two = ("OPT-125M", "OPT-1.3B" if name == "llm.dimension-free" else "OPT-125M+LoRA")
    own = frame[frame.series == "DeComFL P=10"]
    a, b = (own[own["row"] == row][["task", "round", "wire_bytes"]] for row in two)
    both = a.merge(b, on=["task", "round"])[lambda t: t["round"] > 0]
    ends = both.loc[both.groupby("task")["round"].idxmax()]
    longest = ends.sort_values(["round", "task"]).iloc[-1]
    trained = cells(frame).groupby("row").trained.first()
    told: Numbers = {"tasks compared": len(ends)}
    for row, sent in zip(two, (longest.wire_bytes_x, longest.wire_bytes_y), strict=True):
        told[f"bytes a client in {longest['round']} rounds of {TITLES[longest.task]}, {trained[row]}"] = sent / 8
        fedzo = frame[(frame["row"] == row) & (frame.series == "FedZO") & (frame["round"] > 0)].iloc[-1]
        told[f"d, {trained[row]}"] = fedzo.gradient_scalars / (4 * fedzo["round"])  # two clients, both ways
    return told, decided(bool((ends.wire_bytes_x == ends.wire_bytes_y).all()))


@recomputes("llm.one-megabyte")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = cells(frame)[lambda t: t.series == "DeComFL P=10"]
    most, rounds = (own.bytes / own["round"]).max(), max(printed.ROUNDS["OPT-1.3B"].values())
    told = {"bytes a client and round here, at most": most, "rounds": rounds, "megabytes": most * rounds / 1e6}
    return told, decided(told["megabytes"] <= LLM.megabytes)


@recomputes("llm.ten-gigabytes")
def _(_: pd.DataFrame, __: str) -> Found:
    sent = 2 * 4 * 1.3
    return {"gigabytes a round, both ways": sent}, decided(abs(sent / LLM.gigabytes - 1) <= LLM.near)


@recomputes("llm.rounds")
def _(_: pd.DataFrame, __: str) -> Found:
    told = {}
    for model, d in (("OPT-125M", 125e6), ("OPT-1.3B", 1.3e9)):
        for task, row in PRINTED.items():
            # FedAvg's printed terabytes in rounds of two models for one client in four, to the next 500.
            theirs = 500 * round(printed.RESULTS[model][row][0].cost * 1e12 / (2 * 4 * d / 4) / 500)
            told[f"rounds of DeComFL / FedAvg, {TITLES[task]}, {model}"] = printed.ROUNDS[model][row] / theirs
    return told, decided(max(told.values()) <= LLM.slightly)


def printed_cells() -> list[tuple[str, str, str, printed.Cell]]:
    """(row, task, series, cell) of the paper's tables."""
    found = []
    for row, task in product(printed.ROUNDS, PRINTED):
        table = printed.LORA if row.endswith("+LoRA") else printed.RESULTS[row]
        found += [(row, task, name, table[PRINTED[task]][n]) for name, n in COLUMNS[row.endswith("+LoRA")].items()]
    return found


@recomputes("llm.printed-accuracies")
def _(_: pd.DataFrame, __: str) -> Found:
    below, ours = {}, [each for each in printed_cells() if each[2].startswith("DeComFL")]
    for row, task, name, cell in ours:
        always = 100 * printed.MOST_FREQUENT[PRINTED[task]] / printed.EXAMPLES[PRINTED[task]]
        if cell.accuracy <= always:
            below[f"{TITLES[task]}, {row}, {name}: below by"] = always - cell.accuracy
    return {"cells": len(ours), "cells below": len(below), **below}, decided(not below)


@recomputes("llm.printed-costs")
def _(frame: pd.DataFrame, _: str) -> Found:
    off, ours = {}, [each for each in printed_cells() if each[2].startswith("DeComFL")]
    for row, task, name, cell in ours:
        formula = printed.ROUNDS[row][PRINTED[task]] * int(name.partition("=")[2]) * 12 / 1e6
        if round(formula, 2) != cell.cost:
            told = f"{TITLES[task]}, {row}, MB"
            off |= {f"{told}: printed": cell.cost, f"{told}: by the formula": formula}
    made = cells(frame)[lambda t: t.series.str.startswith("DeComFL")]
    longest = made.loc[made["round"].idxmax()]
    sent = longest.bytes / (longest["round"] * int(longest.series.partition("=")[2]) * 12)
    told = {"cells": len(ours), "cells that are off": len(off) // 2, **off}
    return told | {f"bytes sent here / by the formula, {longest['round']} rounds": sent}, decided(not off)


@recomputes("llm.lora-costs")
def _(frame: pd.DataFrame, _: str) -> Found:
    ratios = [
        cell.cost * 1e12 / (printed.ROUNDS[row][PRINTED[task]] / 4 * 8 * 294_912)
        for row, task, name, cell in printed_cells()
        if row.endswith("+LoRA") and name == "FedZO"
    ]
    made = cells(frame)[lambda t: t.series == "FedZO"]
    a_round = (made.bytes / made["round"]).groupby(made["row"]).last()
    told = {"printed / for LoRA's numbers, least": min(ratios), "printed / for LoRA's numbers, most": max(ratios)}
    told["FedZO's bytes a round here, LoRA / all parameters"] = a_round["OPT-125M+LoRA"] / a_round["OPT-125M"]
    return told, decided(all(abs(ratio - 1) < LLM.lora for ratio in ratios))


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


@recomputes("sizes.same-round", "sizes.larger-later", "sizes.not-by-d")
def _(frame: pd.DataFrame, name: str) -> Found:
    runs = size_runs(frame)
    means = runs.groupby("model", sort=False).rounds.apply(lambda r: r.mean(skipna=False))
    told: Numbers = {f"rounds, {model}": None if math.isnan(r) else round(r) for model, r in means.items()}
    told |= {
        "runs that settled": runs.settled.sum(),
        "runs": len(runs),
        "largest d / smallest": runs.d.max() / runs.d.min(),
    }
    if not runs.settled.all():
        return told, UNTESTED
    line = stats.linregress(np.log(runs.d), np.log(runs.rounds))
    half = stats.t.ppf(0.975, len(runs) - 2) * line.stderr
    low, high = line.slope - half, line.slope + half
    told |= {"s": line.slope, "s, 95% from": low, "s, 95% to": high}
    if name == "sizes.larger-later":
        return told, decided(low > 0, low > 0 or high <= 0)
    bound = SIZES.same if name == "sizes.same-round" else 1.0
    return told, decided(high < bound, high < bound or low >= bound)


@recomputes("sizes.larger-better")
def _(frame: pd.DataFrame, _: str) -> Found:
    ends = size_runs(frame).groupby("model", sort=False).accuracy.mean()
    told = {f"accuracy, {model}": value for model, value in ends.items()}
    return told, rising([(value, binomial(value, 872)) for value in ends])


@recomputes("sizes.low-rank")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = frame[frame.what == "kappa"]
    told, verdicts = {}, []
    for at, found in own.groupby("at"):
        table = found.groupby("d").agg(kappa=("kappa", "mean"), low=("low", "min"), high=("high", "max"))
        told |= {f"κ at the {at}, d = {d:,}": value for d, value in table.kappa.items()}
        surely, possibly = table.low.iloc[-1] / table.high.iloc[0], table.high.iloc[-1] / table.low.iloc[0]
        told |= {
            f"κ at the {at}, largest model / smallest, {end}": v for end, v in (("from", surely), ("to", possibly))
        }
        verdicts.append(decided(possibly <= SIZES.grown, possibly <= SIZES.grown or surely > SIZES.grown))
    if UNTESTED in verdicts or own.d.max() <= SIZES.grown * own.d.min():
        return told, UNTESTED
    return told, verdicts[0] if len(set(verdicts)) == 1 else DEPENDS


# --- the board --------------------------------------------------------------------------------------------------------

BOARD = limits("board")


def ends(frame: pd.DataFrame) -> pd.DataFrame:
    """The last evaluation of every raced run, with the forward passes until then."""
    own = frame[frame.what == "evaluation"]
    last = own.loc[own.groupby(["problem", "line", "seed"])["round"].idxmax()]
    return last.assign(passes=last["round"] * last.m * last.forward, there=last.ended == "reached")


def ratio(frame: pd.DataFrame, column: str, more: str, less: str, told: str, bound: float) -> Found:
    """The geometric mean over problems that both reach with every seed, with two standard errors over seeds."""
    runs = ends(frame)
    logs, variance = {}, 0.0
    for problem, own in runs.groupby("problem", sort=False):
        both = [own[own.line == line] for line in (more, less)]
        if all(len(each) > 1 and each.there.all() for each in both):
            a, b = (np.log(each[column].astype(float)) for each in both)
            logs[problem] = a.mean() - b.mean()
            variance += a.sem() ** 2 + b.sem() ** 2
    mean, error = np.mean([*logs.values()]), variance**0.5 / len(logs)
    low, high = (math.exp(mean + sign * ALL.errors * error) for sign in (-1, 1))
    numbers = {told: math.exp(mean), f"{told}, from": low, f"{told}, to": high}
    numbers |= {f"{told}, {problem}": math.exp(value) for problem, value in logs.items()}
    return numbers, decided(low >= bound, low >= bound or high < bound)


@recomputes("board.hiso")
def _(frame: pd.DataFrame, _: str) -> Found:
    return ratio(frame, "round", "DeComFL", "HiSo", "rounds, DeComFL / HiSo", 1.0)


@recomputes("board.fzoo")
def _(frame: pd.DataFrame, _: str) -> Found:
    one = "FZOO, one client"
    return ratio(frame, "passes", "MeZO", one, f"forward passes, MeZO / {one}", BOARD.passes)


@recomputes("board.feedsign")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = ends(frame)[lambda t: t.line == "FeedSign"]
    told = {f"bits a direction, {way}": own[f"{way}_bits"].max() for way in ("up", "down")}
    told |= {f"bytes a round with heads, {way}": own[f"round_{way}"].max() for way in ("up", "down")}
    return told, decided(bool((own[["up_bits", "down_bits"]] == BOARD.bits).all(axis=None)))


@recomputes("board.fedkseed")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = ends(frame)[lambda t: t.line == "FedKSeed"]
    most, back = (own.round_up + own.round_down).max(), own.back_bytes.max()
    told = {"bytes of a client's round": most, "bytes of a client that comes back": back}
    return told, decided(max(most, back) < BOARD.round_bytes)


# --- memory and spectra -----------------------------------------------------------------------------------------------

ROLES = {
    "server": "DeComFL server without a model",
    "server-model": "DeComFL server that keeps the model",
    "client-lean-k1": "lean DeComFL client, K = 1: x and a layer",
    "client-lean-grid": "lean DeComFL client, K > 1, on a grid: x and a layer",
    "client": "DeComFL client, K > 1: x, the point and a snapshot",
    "client-k1": "DeComFL client, K = 1: x and the point x + μz",
    "client-momentum": "the same with momentum: state and its snapshot too",
    "fedzo": "FedZO client: the model sent, its copy, then the point or the update",
}
OF = {
    "memory.server": ("server", "server-model"),
    "memory.client": ("client-lean-k1", "client-lean-grid"),
    "memory.client-as-printed": ("client", "client-k1", "client-momentum"),
    "memory.fedzo": ("fedzo",),
}


@recomputes("memory.*")
def _(frame: pd.DataFrame, name: str) -> Found:
    own = frame[frame.d == frame.d.max()].set_index("role")
    models = own.peak_bytes / (4 * own.d)
    told = {ROLES[role]: models[role] for role in OF[name]}
    phi, room = own.phi_share.iloc[0], limits("memory").room
    told |= {"φ/d": phi} if "client" in name else {}
    holds = {
        "memory.server": models["server"] < limits("memory").negligible,
        "memory.client": models[["client-lean-k1", "client-lean-grid"]].max() < 1 + phi + room,
        "memory.client-as-printed": models["client"] < 1 + phi + room,
        "memory.fedzo": abs(models["fedzo"] - 3) < room,
    }
    return told, decided(bool(holds[name]))


HESSIAN = limits("hessian")
READINGS = ("signed", "positive", "absolute", "gauss-newton")


def estimates(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    own = frame[(frame["kind"] == "estimate") & (frame["name"] == name)]
    return own[own.step > 0].astype({"step": int}).set_index("step").sort_index()


@recomputes("hessian.majority-zero")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = estimates(frame, "near zero")
    told = {f"share after {step} steps": value for step, value in own.value.items()}
    told |= {f"share after {step} steps, at least": low for step, low in own.low.items()}
    surely, possibly = (own[end].min() > HESSIAN.half for end in ("low", "high"))
    return told, HOLDS if surely else decided(False, not possibly)


@recomputes("hessian.low-rank")
def _(frame: pd.DataFrame, _: str) -> Found:
    d = estimates(frame, "d").value.iloc[0]
    own = {name: estimates(frame, name) for name in READINGS}
    told = {"d": d} | {f"κ {name}, at most": each.high.max() for name, each in own.items()}
    surely, possibly = (max(each[end].max() for each in own.values()) < HESSIAN.small * d for end in ("high", "low"))
    return told, HOLDS if surely else decided(False, not possibly)


@recomputes("hessian.stays-low")
def _(frame: pd.DataFrame, _: str) -> Found:
    told, stays = {}, []
    for name in READINGS:
        own = estimates(frame, name)
        stays.append(own.low.max() <= HESSIAN.grown * own.high.iloc[0])
        told |= {f"κ {name} after {step} steps": own.value[step] for step in (own.index[0], own.index[-1])}
    return told, by_countings(stays)


# --- theory and audit -------------------------------------------------------------------------------------------------

THEORY = limits("theory")


def exact(frame: pd.DataFrame, knob: str, noise: str, column: str, series: str = "measured") -> pd.Series:
    """A quantity of the sweep of rounds along a knob, from its smallest value on."""
    own = frame[(frame.sweep == "rounds") & (frame.knob == knob) & (frame.noise == noise) & (frame.series == series)]
    return own.set_index("at")[column].sort_index()


@recomputes("theory.dimension-free")
def _(frame: pd.DataFrame, _: str) -> Found:
    far = frame[(frame.sweep == "by-d") & (frame.d >= 1000)]
    span = far.groupby("series").value.agg(["min", "max"])
    grown = span["max"] / span["min"]
    spread = {name: value - 1 for name, value in grown.items() if name.startswith("measured")}
    told = {f"spread, {name.removeprefix('measured, ')}": value for name, value in spread.items()}
    told |= {"largest d": far.d.max(), "growth of Theorem 1's bound": grown["Theorem 1, corrected"]}
    return told, decided(max(spread.values()) <= THEORY.flat)


@recomputes("theory.theorem-2-on-quadratics")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = frame[frame.sweep.isin(["by-d", "by-kappa"]) & frame.series.astype(str).str.startswith("measured")]
    told = {f"largest measured / {form}, at one η": (own.value / own[form]).max() for form in ("stated", "corrected")}
    holds = told["largest measured / stated, at one η"] <= 1
    return {**told, "problems": len(own)}, decided(bool(holds))


@recomputes("theory.speed-up-m", "theory.speed-up-P", "theory.speed-up-K")
def _(frame: pd.DataFrame, name: str) -> Found:
    knob, told, enough = name[-1], {}, []
    for noise in ("σ", "σ_G"):
        own = exact(frame, knob, noise, "rounds")
        told[f"times fewer rounds, {noise} alone"] = own.iloc[0] / own.iloc[-1]
        enough.append(own.iloc[0] / own.iloc[-1] >= THEORY.linear * own.index[-1])
    return told, by_countings(enough)


@recomputes("theory.rounds-by-theorem-1")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = frame[frame.sweep == "rounds"].set_index(["knob", "at", "noise"])
    needed, promised, mended = (
        own[own.series == name].rounds for name in ("measured", "stated bound", "corrected bound")
    )
    worst = (needed / promised).idxmax()
    told = {"most rounds needed / promised": (needed / promised).max(), f"at {worst[0]} of": worst[1]}
    told["the same by corrected Theorem 1"] = (needed / mended).max()
    return told, decided(told["most rounds needed / promised"] <= 1)


@recomputes("theory.learning-rates")
def _(frame: pd.DataFrame, _: str) -> Found:
    told, so = {}, []
    for knob, noise in product("PK", ("σ", "σ_G")):
        own = exact(frame, knob, noise, "eta").dropna()
        moved = own.iloc[-1] / own.iloc[0]
        told[f"best η at the largest {knob} / at 1, {noise} alone"] = moved
        so.append(moved > THEORY.moved if knob == "P" else moved < 1 / THEORY.moved)
    return told, by_countings(so)


@recomputes("theory.trained-*")
def _(frame: pd.DataFrame, name: str) -> Found:
    own = frame[(frame.sweep == "training") & (frame.model == name.removeprefix("theory.trained-"))]
    runs = own[own.kind == "run"].groupby("round").value.max()
    stated, mended = (own[own.series == f"Theorem 2, {form}"].set_index("round") for form in ("stated", "corrected"))
    constants = own[own.kind == "constant"].set_index("series").value
    told = {"most measured / stated": (runs / stated.value).max()}
    told["measured / corrected, at the end"] = (runs / mended.value).dropna().iloc[-1]
    letters = {"L": "L", "κ": "kappa", "σ": "sigma", "σ_G": "sigma_G", "η": "eta"}
    told |= {letter: constants[word] for letter, word in letters.items()}
    return told, decided(told["most measured / stated"] <= 1, (stated.admitted.astype(str) == "True").all())


WRONG = ("refuted", "proof gap", "inconsistent", "imprecise")


@recomputes("audit.*")
def _(frame: pd.DataFrame, name: str) -> Found:
    again = frame.restates.notna() & (frame.restates.astype(str) != "")
    if name == "audit.all":
        counts = Counter(frame[~again].status)
        return dict(counts), decided(not any(counts[status] for status in WRONG))
    row = frame[frame.label.str.replace(":", "-") == name.removeprefix("audit.")].iloc[0]
    numbers = next((found["numbers"] for found in row.evidence if found["numbers"]), {})
    told = {key: value for key, value in numbers.items() if value is not None and math.isfinite(value)}
    if not row.confirmed or row.status == "not checkable":
        return told, UNTESTED
    return told, FAILS if row.status in WRONG else HOLDS
