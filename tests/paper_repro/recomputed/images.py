"""The claims about the curves on images: Figures 2 and 3, the top-k and projection figures, Table 1."""

from __future__ import annotations

import os
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

import paper_repro
from decomfl_lab.runs.config import TrainConfig
from paper_repro.workflow.claims import limits
from tests.paper_repro.recomputed.common import (
    ALL,
    COUNTS,
    DEPENDS,
    FAILS,
    HOLDS,
    ILL,
    UNTESTED,
    Found,
    M,
    Numbers,
    accuracy_at,
    all_trained,
    by_countings,
    decided,
    final_accuracy,
    kept,
    last_common,
    lines,
    m,
    mean_accuracy,
    mean_and_error,
    reached_by_all,
    recomputes,
    rising,
    series,
    to_reach,
)
from theory.communication import expected_traffic

SMALL, LARGE = 28_938, 1_206_590
"""d of the two CNNs."""
SHARES = {"fedavg": (1.0, 2.0), "fedcom": (0.25, 0.25), "fedavg-topk": (None, None)}
"""β of Table 1 and what the authors' axis counts of d, of the first-order methods of Figure 3."""


def healthy(verdict: str, *frames: pd.DataFrame) -> str:
    """The verdict if every run that it rests on trained and has enough evaluations."""
    decides = verdict not in (UNTESTED, ILL)
    enough = len(frames) < 2 or all(frame["round"].nunique() >= ALL.common for frame in frames)
    return verdict if not decides or (enough and all(all_trained(frame) for frame in frames)) else ILL


# --- Figure 2 ---------------------------------------------------------------------------------------------------------


def counted_2(frame: pd.DataFrame) -> pd.DataFrame:
    """Table 1: 2KP down and KP up of one in ten, or β d up and d down of one in ten; the axis: K P or d a round."""
    own = frame.method == "DeComFL"
    table1 = np.where(own, (2 + m / M) * frame.K * frame.P, 2 * SMALL * m / M) * frame["round"]
    plotted = np.where(own, frame.K * frame.P, SMALL) * (frame["round"] - 1)
    return frame.assign(table1_scalars=table1, plotted_scalars=plotted)


def figure_2(frame: pd.DataFrame, panel: str, reading: str = "as-plotted") -> pd.DataFrame:
    own = lines(frame)
    return counted_2(kept(own[(own.reading == reading) & (own.panel == panel)], "series"))


def by_k(frame: pd.DataFrame) -> dict[int, pd.DataFrame]:
    return {K: series(figure_2(frame, "local-updates"), f"DeComFL K={K} P=20") for K in (1, 4, 10)}


def by_p(frame: pd.DataFrame) -> dict[int, pd.DataFrame]:
    return {P: series(figure_2(frame, "perturbations"), f"DeComFL K=4 P={P}") for P in (10, 20, 40)}


def saving(ours: pd.DataFrame, theirs: pd.DataFrame) -> Found:
    level = reached_by_all([ours, theirs])
    assert level is not None
    told: Numbers = {"accuracy reached by both": level}
    for count in COUNTS:
        a, b = (to_reach(frame, level, f"{count}_scalars") for frame in (ours, theirs))
        told |= {f"DeComFL scalars, {count}": a, f"FedAvg scalars, {count}": b, f"FedAvg / DeComFL, {count}": b / a}
    for name, frame in (("DeComFL", ours), ("FedAvg", theirs)):
        told[f"highest mean accuracy of {name}"] = mean_accuracy(frame).max()
    if level < ALL.least_level:
        return told, UNTESTED
    return told, by_countings([told[f"FedAvg / DeComFL, {count}"] > 1 for count in COUNTS])


@recomputes("fig2.saving")
def _(frame: pd.DataFrame, _: str) -> Found:
    left = figure_2(frame, "local-updates")
    ours, theirs = series(left, "DeComFL K=10 P=20"), series(left, "FedAvg K=10")
    told, verdict = saving(ours, theirs)
    return told, healthy(verdict, ours, theirs)


@recomputes("fig2.local-updates")
def _(frame: pd.DataFrame, _: str) -> Found:
    runs = by_k(frame)
    r = last_common([*runs.values()])
    told: Numbers = {"up to round": r}
    values = []
    for K, own in runs.items():
        means = own[own["round"] <= r].groupby("seed").test_accuracy.mean()
        values.append(mean_and_error(list(means), own.examples.min()))
        told |= {f"seeds K={K}": len(means), f"mean accuracy K={K}": values[-1][0]}
        told[f"standard error K={K}"] = values[-1][1]
    return told, healthy(rising(values), *(own[own["round"] <= r] for own in runs.values()))


@recomputes("fig2.perturbations")
def _(frame: pd.DataFrame, _: str) -> Found:
    runs = by_p(frame)
    r = last_common([*runs.values()])
    values = {P: accuracy_at(own, r) for P, own in runs.items()}
    ends = [own["round"].max() for own in runs.values()]
    gains = [accuracy_at(own, R)[0] - accuracy_at(own, 0.75 * R)[0] for own, R in zip(runs.values(), ends, strict=True)]
    told = {"at round": r, **{f"accuracy P={P}": value for P, (value, _) in values.items()}}
    verdict = rising([*values.values()]) if max(gains) <= ALL.flat else UNTESTED
    return told, healthy(verdict, *runs.values())


@recomputes("fig2.slow-start")
def _(frame: pd.DataFrame, _: str) -> Found:
    runs = by_p(frame)
    starts = [own.wire_scalars.min() for own in runs.values()]
    passed = [to_reach(own, ALL.least_level, "wire_scalars") for own in runs.values()]
    spent = max(max(starts), min(each for each in passed if each is not None))
    values = []
    for own in runs.values():
        by_round = own.sort_values("round")
        value = float(np.interp(spent, by_round.wire_scalars, by_round.test_accuracy))
        values.append((value, 0.5 / own.examples.min() ** 0.5))
    told = {"at scalars per client (wire)": spent}
    told |= {f"accuracy P={P}": value for P, (value, _) in zip(runs, values, strict=True)}
    return told, healthy(rising(values[::-1]), *runs.values())


@recomputes("fig2.p-over-k")
def _(frame: pd.DataFrame, _: str) -> Found:
    ks, ps = by_k(frame), by_p(frame)
    r_k, r_p = last_common([*ks.values()]), last_common([*ps.values()])
    (k1, e1), (k10, e10) = accuracy_at(ks[1], r_k), accuracy_at(ks[10], r_k)
    (p10, f10), (p40, f40) = accuracy_at(ps[10], r_p), accuracy_at(ps[40], r_p)
    gain_k, gain_p = (k10 - k1) / np.log2(10), (p40 - p10) / 2
    error = float(np.sqrt((e1**2 + e10**2) / np.log2(10) ** 2 + (f10**2 + f40**2) / 4))
    told = {"gain a doubling of K": gain_k, "at round (K)": r_k, "gain a doubling of P": gain_p, "at round (P)": r_p}
    own, margin = limits("fig2"), ALL.errors * error
    clear = abs(gain_p - gain_k) > margin or margin < own.precise
    seeds = min(each.seed.nunique() for each in (ks[1], ks[10], ps[10], ps[40]))
    verdict = decided(gain_p - gain_k > margin, min(k1, k10, p10, p40) >= own.trained and clear and seeds > 1)
    told |= {"standard error of the difference": error, "fewest seeds of a series": seeds}
    return told, healthy(verdict, ks[1], ks[10], *ps.values())


@recomputes("fig2.fedavg-not-converged")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = series(figure_2(frame, "local-updates"), "FedAvg K=10")
    end, last = 1 + limits("fig2").axis // SMALL, int(own["round"].max())
    early, late = accuracy_at(own, end), accuracy_at(own, last)
    told = {"FedAvg's rounds within the paper's axis": end, "accuracy there": early[0]}
    verdict = rising([early, late]) if last > 2 * end else UNTESTED
    return {**told, f"accuracy at round {last}": late[0]}, healthy(verdict, own)


@recomputes("fig2.estimators", "fig3.estimators")
def _(frame: pd.DataFrame, name: str) -> Found:
    by = ["panel", "series"] if name.startswith("fig2") else ["series"]
    own = frame[frame.reading == "as-plotted"] if name.startswith("fig2") else frame
    keys = [*by, "seed", "round"]
    both = own[own.check].merge(own[~own.check], on=keys, suffixes=("", "_line"))
    both["gap"] = (both.test_accuracy - both.test_accuracy_line).abs()
    p = (both.test_accuracy + both.test_accuracy_line) / 2
    both["near"] = both.gap <= ALL.errors * (2 * p * (1 - p) / both.examples) ** 0.5
    worst = both.loc[both.gap.idxmax()]
    told = {"evaluations compared": len(both), "largest difference in accuracy": worst.gap, "at round": worst["round"]}
    shares = []
    for curve, each in both.groupby(by):
        told[f"{', '.join(curve)}, to round {each['round'].max()}: largest difference"] = each.gap.max()
        shares.append(each.near.mean())
    return told, decided(min(shares) >= ALL.within)


@recomputes("fig2.projection-dearer")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = frame[(frame.reading == "as-plotted") & (frame.method == "DeComFL")]
    told = {}
    for (panel, name), each in own.groupby(["panel", "series"]):
        fastest = {}
        for check, runs in each.groupby("check"):
            ends = runs.groupby("seed").agg(seconds=("seconds", "max"), rounds=("round", "max"))
            fastest[check] = (ends.seconds / ends.rounds).min()
        told[f"{panel}, {name}: projection / differences"] = fastest[False] / fastest[True]
    return told, by_countings([ratio > 1 for ratio in told.values()])


# --- the authors' curves ----------------------------------------------------------------------------------------------


THINNED = Path(paper_repro.__file__).parent / "authors" / "curves.csv.gz"


@cache
def logs(thin: bool = False) -> pd.DataFrame:
    """The authors' logged curves, once a seed and step: the whole ones, or those that come with the project."""
    table = pd.read_csv(THINNED if thin else Path(os.environ["DECOMFL_REFERENCE"]) / "authors_curves.csv")
    found = table.drop_duplicates(["figure", "series", "seed", "step", "metric"])
    return found.assign(round=found.step + 1)


def authors_2(panel: str, thin: bool = False) -> pd.DataFrame:
    """Those of a panel of Figure 2, up to the rounds that it plots, under the names of ours."""
    figure, rounds = {"local-updates": ("fig2_left", 2000), "perturbations": ("fig2_right", 1500)}[panel]
    own = logs(thin)[lambda t: (t.figure == figure) & (t.metric == "test_accuracy") & (t.step < rounds)].copy()
    # FedAvg's "K=4" is a file that was named K=5.
    own["K"] = [int((re.search(r"file was named K=(\d+)", s) or re.search(r"K=(\d+)", s))[1]) for s in own.series]
    own["P"] = [int(found[1]) if (found := re.search(r"P=(\d+)", s)) else 0 for s in own.series]
    own["method"] = np.where(own.P > 0, "DeComFL", "FedAvg")
    own["series"] = own.method + " K=" + own.K.astype(str) + np.where(own.P > 0, " P=" + own.P.astype(str), "")
    return own.rename(columns={"value": "test_accuracy"})


@cache
def logs_2(panel: str, thin: bool = False) -> pd.DataFrame:
    """The authors' curves with all countings, of which messages carry theirs in expectation."""
    frame = counted_2(authors_2(panel, thin))
    base = {"clients": M, "sampled": m}
    wire = {}
    for K, P, R in set(zip(frame.K, frame.P, frame["round"], strict=True)):
        own = {"perturbations": P} if P else {"method": "fedavg"}
        wire[K, P, R] = expected_traffic(TrainConfig(rounds=R, local_steps=K, **base, **own), SMALL).bytes / 4
    keys = zip(frame.K, frame.P, frame["round"], strict=True)
    return frame.assign(wire_scalars=[wire[key] for key in keys])


NAMES_3 = {
    "DeComFL": "DeComFL",
    "FedAvg+TopK 10%": "FedAvg+Top-k 10 %",
    "FedCom 8-bit": "FedCom 8 bit",
    "FedAvg K": "FedAvg",
}
TOP_K = "FedAvg+Top-k 10 %"
BY_VALUE = f"{TOP_K} by signed value"
"""No method of the paper's: no claim rests on it."""
METHODS_3 = {"DeComFL": "decomfl", "FedAvg+Top-k 10 %": "fedavg-topk", "FedCom 8 bit": "fedcom", "FedAvg": "fedavg"}


def authors_3(metric: str = "test_accuracy", thin: bool = False) -> pd.DataFrame:
    """Those of a panel of Figure 3: accuracies to the right, training losses to the left."""
    figure = {"test_accuracy": "fig3_right", "train_loss": "fig3_left"}[metric]
    own = logs(thin)[lambda t: (t.figure == figure) & (t.metric == metric)].copy()
    own["series"] = [next(ours for start, ours in NAMES_3.items() if name.startswith(start)) for name in own.series]
    own["method"] = own.series.map(METHODS_3)
    return own.rename(columns={"value": metric})


def band(ours: pd.DataFrame, theirs: pd.DataFrame, everything: pd.DataFrame, prefix: str = "") -> tuple[Numbers, list]:
    """Per series: share of common rounds inside the authors' range widened by test error and spread of seeds."""

    def stats(frame: pd.DataFrame) -> pd.DataFrame:
        table = frame.groupby(["series", "round"]).test_accuracy.agg(["mean", "min", "max", "std", "count"])
        return table[table["count"] == table["count"].groupby("series").transform("max")]

    both = stats(ours).add_suffix("_a").join(stats(theirs).add_suffix("_b"), how="inner")
    pooled = both.std_a.groupby("round").transform("mean")
    spread = both.std_b.fillna(both.std_a).fillna(pooled).fillna(0)
    n = ours.groupby(["series", "round"]).examples.min().reindex(both.index)
    margin = ALL.errors * (both.mean_b * (1 - both.mean_b) / n) ** 0.5 + spread
    both["inside"] = (both.mean_a >= both.min_b - margin) & (both.mean_a <= both.max_b + margin)
    told, judged = {}, []
    for name, own in both.groupby("series"):
        end = own.iloc[-1]
        to = f"{prefix}{name}, to round {own.index[-1][1]}"
        told |= {f"{to}: evaluations": len(own), f"{to}: share inside": own.inside.mean()}
        told |= {f"{to}: last accuracy, ours": end.mean_a, f"{to}: last accuracy, authors'": end.mean_b}
        seeds = everything[everything.series == name].groupby("seed").diverged.any()
        if seeds.sum():
            told[f"{to}: seeds that diverged"] = int(seeds.sum())
        if "DeComFL" in name:
            judged.append((own.inside.mean(), len(own), int(seeds.sum())))
    return told, judged


def band_verdict(judged: list, wanted: int) -> str:
    enough = [each for each in judged if each[1] >= ALL.common]
    if any(share < ALL.within or diverged for share, _, diverged in enough):
        return FAILS
    if len(judged) < wanted:
        return UNTESTED
    return HOLDS if len(enough) == len(judged) else ILL


def band_of_figure_2(frame: pd.DataFrame, reading: str) -> tuple[Numbers, list, pd.DataFrame]:
    """What ``band`` says of both panels of a reading, and the runs of DeComFL."""
    every = lines(frame)
    every = every[every.reading == reading]
    every = every.assign(series=every.panel + ", " + every.series)

    def named(panel: str, own: pd.DataFrame) -> pd.DataFrame:
        return own.assign(series=f"{panel}, " + own.series)

    panels = ("local-updates", "perturbations")
    a = pd.concat([named(panel, figure_2(frame, panel, reading)) for panel in panels])
    b = pd.concat([named(panel, authors_2(panel)) for panel in panels])
    told: Numbers = {}
    judged = []
    # The spread of "our other series" at a round is over both panels, but of DeComFL and FedAvg apart.
    for method in ("DeComFL", "FedAvg"):
        more, own = band(a[a.method == method], b[b.method == method], every)
        told |= more
        judged += own
    return told, judged, a[a.method == "DeComFL"]


@recomputes("fig2.band", "fig2.band-of-the-text")
def _(frame: pd.DataFrame, name: str) -> Found:
    told, judged, runs = band_of_figure_2(frame, "as-plotted" if name == "fig2.band" else "as-written")
    return told, healthy(band_verdict(judged, 6), runs)


@recomputes("fig3.band")
def _(frame: pd.DataFrame, _: str) -> Found:
    every = lines(frame)
    ours, theirs = kept(every, "series"), authors_3()
    top_k = theirs[theirs.series.str.contains("Top-k")]
    theirs = pd.concat([theirs, top_k.assign(series=BY_VALUE)])  # one log for both ways
    told, judged = band(ours, theirs, every)
    return told, healthy(band_verdict(judged, 1), series(ours, "DeComFL"))


@recomputes("fig2.saving-in-the-logs")
def _(frame: pd.DataFrame, _: str) -> Found:
    left = logs_2("local-updates")
    return saving(series(left, "DeComFL K=10 P=20"), series(left, "FedAvg K=10"))


# --- Figure 3 and the top-k figure ------------------------------------------------------------------------------------


def directions(r: int) -> int:
    """Σ K·P over r rounds: K = 5; P = 25, 50 after 500 rounds, 100 after 1,000, 200 after 2,000."""
    return 5 * sum(
        P * max(0, min(r, end) - start)
        for P, start, end in ((25, 0, 500), (50, 500, 1000), (100, 1000, 2000), (200, 2000, r))
    )


def counted_3(frame: pd.DataFrame) -> pd.DataFrame:
    table1, plotted = [], []
    for row in frame.itertuples():
        s = row.round - 1
        if row.series == "DeComFL":
            table1.append((2 + m / M) * directions(row.round))
            plotted.append(5 * directions(s))
            continue
        k = 0.1 if row.method == "fedavg-topk" and not hasattr(row, "top_k") else getattr(row, "top_k", 0)
        beta, share = (2 * k, k) if row.method == "fedavg-topk" else SHARES[row.method]
        table1.append((1 + beta) * LARGE * m / M * row.round)
        plotted.append(share * LARGE * s)
    return frame.assign(table1_scalars=table1, plotted_scalars=plotted)


def figure_3(frame: pd.DataFrame) -> pd.DataFrame:
    return counted_3(kept(lines(frame), "series"))


@recomputes("fig3.settings")
def _(frame: pd.DataFrame, _: str) -> Found:
    ours, told, found = kept(lines(frame), "series"), Numbers(), []
    log_of = {name: name for name in ("FedAvg", "FedCom 8 bit", TOP_K)} | {BY_VALUE: TOP_K}
    theirs = logs()[lambda t: t.figure.str.startswith("fig3")].copy()
    theirs["series"] = [next(own for start, own in NAMES_3.items() if name.startswith(start)) for name in theirs.series]
    for name, log in log_of.items():
        own = series(ours, name).groupby("round")[["train_loss", "test_accuracy"]].mean()
        other = (
            series(theirs, log)
            .drop_duplicates(["metric", "round"])
            .pivot(index="round", columns="metric", values="value")
        )
        ends = list(own.index)
        windows = {
            end: other.train_loss.loc[start + 1 : end].mean() for start, end in zip([0, *ends], ends, strict=False)
        }
        distances = [abs(own.train_loss[r] / windows[r] - 1) for r in ends if 30 <= r <= 301]
        if not distances or ends[-1] < 301:
            continue
        found.append(max(distances) <= limits("fig3").near)
        told[f"{name}: largest distance of training losses"] = max(distances)
        for side, accuracy in (("ours", own.test_accuracy), ("authors'", other.test_accuracy.dropna())):
            told |= {
                f"{name}: last accuracy, {side}": accuracy.iloc[-1],
                f"{name}: best accuracy, {side}": accuracy.max(),
            }
        for r in (101, 301, 991):
            told[f"{name}: training loss at {r}, ours"] = own.train_loss[r]
            told[f"{name}: training loss at {r}, authors'"] = windows[r]
    if len(found) < len(log_of):
        return told, UNTESTED
    return told, HOLDS if all(found) else DEPENDS if any(found) else FAILS


def claimed_3(frame: pd.DataFrame) -> pd.DataFrame:
    """The curves that claims are about."""
    return figure_3(frame[frame.series != BY_VALUE])


@cache
def logs_3(thin: bool = False) -> pd.DataFrame:
    """The authors' curves with what the messages would carry, in expectation."""
    frame = counted_3(authors_3(thin=thin))
    own = {"local_steps": 5, "clients": M, "sampled": m}
    schedule = {"perturbations": 25, "perturbation_schedule": {500: 50, 1000: 100, 2000: 200}}
    more = {
        "decomfl": schedule,
        "fedavg": {"optimizer": "adam"},
        "fedcom": {"optimizer": "adam", "quantize_bits": 8},
        "fedavg-topk": {"optimizer": "adam", "top_k": 0.1},
    }
    wire = [
        expected_traffic(TrainConfig(method=row.method, rounds=int(row.round), **own, **more[row.method]), LARGE).bytes
        / 4
        for row in frame.itertuples()
    ]
    return frame.assign(wire_scalars=wire)


def final_level(frame: pd.DataFrame) -> float:
    return final_accuracy(series(frame, "DeComFL"))[0]


@recomputes("fig3.twenty-times", "fig3.twenty-times-in-the-logs")
def _(frame: pd.DataFrame, name: str) -> Found:
    own = logs_3() if name.endswith("logs") else claimed_3(frame)
    ours, theirs = series(own, "DeComFL"), series(own, "FedAvg")
    level = final_level(own)
    a, b = (to_reach(each, level, "wire_scalars") for each in (ours, theirs))
    told: Numbers = {
        "DeComFL's final accuracy": level,
        "DeComFL, wire scalars a client to reach it": a,
        "FedAvg, wire scalars a client to reach it": b,
        "FedAvg's highest mean accuracy": mean_accuracy(theirs).max(),
    }
    own_limits = limits("fig3")
    if not a:
        return told, UNTESTED
    spent = theirs.wire_scalars.max() if b is None else b
    told["FedAvg / DeComFL" + (", at least" if b is None else "")] = spent / a
    enough = spent >= own_limits.times * a
    verdict = decided(enough, level >= own_limits.least and (b is not None or enough))
    return told, verdict if name.endswith("logs") else healthy(verdict, ours, theirs)


@recomputes("fig3.saving", "fig3.saving-in-the-logs")
def _(frame: pd.DataFrame, name: str) -> Found:
    own = logs_3() if name.endswith("logs") else claimed_3(frame)
    if name.endswith("logs"):
        own = own[own.series.isin(["DeComFL", "FedAvg"])]  # of the others no setting is known
    level = final_level(own)
    told: Numbers = {"accuracy reached (DeComFL's final)": level}
    fewest = []
    for count in COUNTS:
        needed = {each: to_reach(run, level, f"{count}_scalars") for each, run in own.groupby("series")}
        told |= {f"{each}, {count}": value for each, value in needed.items()}
        ours = needed.pop("DeComFL")
        fewest.append(ours is not None and all(value is None or value > ours for value in needed.values()))
    whole = own.groupby("series").finished.all() if "finished" in own else pd.Series([True])
    under_way = any(value is None and not whole.get(each, True) for each, value in needed.items())
    verdict = by_countings(fewest)
    if level < limits("fig3").least or own.series.nunique() < (2 if name.endswith("logs") else 4) or under_way:
        verdict = UNTESTED
    return told, verdict if name.endswith("logs") else healthy(verdict, *(run for _, run in own.groupby("series")))


@recomputes("fig3.slower", "fig3.slower-in-the-logs")
def _(frame: pd.DataFrame, name: str) -> Found:
    logged = name.endswith("logs")
    own = logs_3().assign(finished=True, examples=1000) if logged else claimed_3(frame)
    runs = dict(iter(own.groupby("series")))
    r = last_common([*runs.values()])
    at = {name: accuracy_at(run, r)[0] for name, run in runs.items()}
    margin = ALL.errors * 2**0.5 * 0.5 / own.examples.min() ** 0.5
    gaps = {name: (value - at["DeComFL"]) * (-1 if "Top-k" in name else 1) for name, value in at.items()}
    gaps.pop("DeComFL")
    over = any(run.finished.all() and run["round"].max() == r for run in runs.values())
    clear = at["DeComFL"] >= limits("fig3").least and min(map(abs, gaps.values())) > margin and over
    verdict = decided(min(gaps.values()) > 0, clear)
    told = {"at round": r, **{f"accuracy {name}": value for name, value in at.items()}}
    return told, verdict if logged else healthy(verdict, *(run[run["round"] <= r] for run in runs.values()))


@recomputes("fig3.not-by-d")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = figure_3(frame)
    both = [series(own, name) for name in ("DeComFL", "FedAvg")]
    level = reached_by_all(both)
    ours, theirs = (to_reach(run, level, "round") for run in both)
    told = {"accuracy": level, "d": LARGE, "P": 200, "DeComFL's rounds": ours, "FedAvg's rounds": theirs}
    told["ratio"] = ours / theirs
    holds = told["ratio"] < limits("fig3").fraction * LARGE / 200
    return told, healthy(decided(holds, level >= limits("fig3").least), *both)


FRACTIONS = {"10%": "FedAvg+Top-k 10 %", "5%": "FedAvg+Top-k 5 %", "1%": "FedAvg+Top-k 1 %"}


@recomputes("topk.cheaper")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = figure_3(frame)
    ends = {name: run[run["round"] == run["round"].max()] for name, run in own.groupby("series")}
    told: Numbers = {}
    a_round = []
    for k, name in FRACTIONS.items():
        end = ends[name]
        a_round.append((end.wire_bytes / (4 * M * end["round"])).mean())
        told[f"wire scalars a client and round, k = {k}"] = a_round[-1]
        told[f"share that goes up, k = {k}"] = (end.up_bytes / end.wire_bytes).mean()
    end = ends["FedAvg"]
    told["wire scalars a client and round, FedAvg"] = (end.wire_bytes / (4 * M * end["round"])).mean()
    return told, decided(all(more > less for more, less in pairwise(a_round)))


@recomputes("topk.still-higher")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = figure_3(frame)
    ours, told = series(own, "DeComFL"), {}
    for k, name in FRACTIONS.items():
        both = [ours, series(own, name)]
        level = reached_by_all(both)
        if level is not None and level >= limits("fig3").least:
            for count in COUNTS:
                a, b = (to_reach(run, level, f"{count}_scalars") for run in both)
                told[f"k = {k} / DeComFL at accuracy {level:g}, {count}"] = b / max(a, 1.0)
    verdict = by_countings([ratio > 1 for ratio in told.values()]) if told else UNTESTED
    return told, healthy(verdict, ours, *(series(own, name) for name in FRACTIONS.values()))


@recomputes("topk.degrades")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = figure_3(frame)
    runs = {"FedAvg": series(own, "FedAvg"), **{f"k = {k}": series(own, name) for k, name in FRACTIONS.items()}}
    final = {name: final_accuracy(run) for name, run in runs.items()}
    told = {f"final accuracy {name}": value for name, (value, _) in final.items()} | {"d": LARGE}
    loss, severe = final["FedAvg"][0] - final["k = 1%"][0], limits("topk").severe
    error = ALL.errors * 2**0.5 * 0.5 / own.examples.min() ** 0.5
    falling = rising([final[f"k = {k}"] for k in ("1%", "5%", "10%")])
    verdict = decided(loss > max(severe, error)) if falling == HOLDS else falling
    return told, healthy(FAILS if loss + error < severe else verdict, *runs.values())


@recomputes("topk.degrades-in-the-logs")
def _(_: pd.DataFrame, __: str) -> Found:
    whole, tenth = (final_accuracy(series(logs_3(), name))[0] for name in ("FedAvg", FRACTIONS["10%"]))
    lost = whole - tenth > max(limits("topk").severe, ALL.errors * 2**0.5 * 0.5 / 1000**0.5)
    return {"final accuracy FedAvg": whole, "final accuracy k = 10%": tenth}, decided(lost)


# --- Table 1 ----------------------------------------------------------------------------------------------------------

BETA = {"FedAvg K=10": 1.0, "FedZO K=10 P=20": 1.0, "FedCom 8 bit K=10": 0.25, "FedAvg+Top-k 10 % K=10": 0.2}
OURS = "DeComFL K=10 P=20"


@recomputes("table1.per-round")
def _(frame: pd.DataFrame, _: str) -> Found:
    # Of whatever scale, the numbers of clients follow from what FedAvg's messages cost in all and a client.
    fedavg = series(frame, "FedAvg K=10").iloc[-1]
    clients = round(fedavg.wire_bytes / (4 * fedavg.wire_scalars))
    sampled = round(fedavg.up_bytes / (4 * SMALL * fedavg["round"]))
    told, off = {}, set()
    for name in (*BETA, OURS):
        run = series(frame, name)
        end = run[run["round"] == run["round"].max()]
        up, down = end.up_bytes / end["round"] / 4, (end.wire_bytes - end.up_bytes) / end["round"] / 4
        wanted = (sampled * 200, 2 * clients * 200) if name == OURS else (BETA[name] * sampled * SMALL, sampled * SMALL)
        for way, sent, formula in (("uplink", up, wanted[0]), ("downlink", down, wanted[1])):
            told[f"measured / formula, {name}, {way}"] = sent.mean() / formula
            if abs(sent.mean() / formula - 1) > limits("table1").off:
                off.add(name)
    return told, HOLDS if not off else "depends on how it is counted" if off == {OURS} else FAILS


@recomputes("table1.least")
def _(frame: pd.DataFrame, _: str) -> Found:
    runs = {name: series(frame, name) for name in (*BETA, OURS) if name != "FedZO K=10 P=20"}
    level = reached_by_all([*runs.values()])
    told: Numbers = {"accuracy that all reach": level}
    fewest = []
    for count in ("wire", "table1"):
        needed = {}
        for name, run in runs.items():
            a_round = (2 + m / M) * 200 if name == OURS else (1 + BETA[name]) * SMALL * m / M
            needed[name] = to_reach(run.assign(table1_scalars=a_round * run["round"]), level, f"{count}_scalars")
        told |= {f"{name}, {count}": value for name, value in needed.items()}
        fewest.append(needed[OURS] == min(needed.values()))
    verdict = by_countings(fewest) if level >= ALL.least_level else UNTESTED
    return told, healthy(verdict, *runs.values())


# --- the projection figure --------------------------------------------------------------------------------------------


def at_equal_rounds(frame: pd.DataFrame) -> pd.DataFrame:
    """The first seed of both estimators at each η, up to the last round that both were to have."""
    own = frame[frame.seed == 0]
    ends = own.groupby(["eta", "estimator"]).planned.max().groupby("eta").min()
    return own[own["round"] <= own.eta.map(ends)]


def finals(frame: pd.DataFrame) -> pd.DataFrame:
    """Final accuracy by η and estimator: chance where losses stopped being finite or doubled; and which did."""
    found = []
    for (eta, name), run in at_equal_rounds(frame).groupby(["eta", "estimator"]):
        own = run.sort_values("round")
        end = own.test_loss.iloc[-1]
        lost = own.diverged.any() or not end <= limits("edge").risen * own.test_loss.min()
        found.append((eta, name, 0.1 if lost else final_accuracy(own)[0], lost))
    return pd.DataFrame(found, columns=["eta", "estimator", "accuracy", "lost"])


@recomputes("projection.better")
def _(frame: pd.DataFrame, _: str) -> Found:
    table = finals(frame).pivot(index="eta", columns="estimator", values="accuracy")
    learns = table[table.max(axis=1) > limits("projection").learned]
    gains = learns["zeroth order"] - learns["projection"]
    margin = ALL.errors * 2**0.5 * 0.5 / frame.examples.min() ** 0.5
    told = {f"accuracy gained at η = {eta:g}": gain for eta, gain in gains.items()} | {"margin of error": margin}
    return told, decided(bool((gains > margin).all()), len(gains) > 0)


@recomputes("projection.insensitive")
def _(frame: pd.DataFrame, _: str) -> Found:
    found = finals(frame)
    table = found.pivot(index="eta", columns="estimator", values="accuracy")
    spread = table.max() - table.min()
    told = {f"spread of final accuracy over η, {name}": value for name, value in spread.items()}
    told |= {f"runs that came apart, {name}": own.lost.sum() for name, own in found.groupby("estimator")}
    told |= {"smallest η": table.index.min(), "largest η": table.index.max()}
    margin = ALL.errors * 2**0.5 * 0.5 / frame.examples.min() ** 0.5
    less = (
        spread["zeroth order"] < limits("projection").spread and spread["projection"] - spread["zeroth order"] > margin
    )
    return told, decided(bool(less), table.max().min() > limits("projection").learned)


@recomputes("projection.same-cost")
def _(frame: pd.DataFrame, _: str) -> Found:
    own = at_equal_rounds(frame)
    cost = own[~own.diverged].pivot(index=["eta", "round"], columns="estimator", values="wire_bytes").dropna()
    apart = (cost["zeroth order"] - cost["projection"]).abs()
    return {"evaluations compared": len(cost), "largest difference in bytes": apart.max()}, decided(apart.max() == 0)
