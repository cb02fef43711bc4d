"""The parts of curves on images: their frames, made of the recorded rows, and their claims that are no lines."""

import os
import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

import paper_repro
from decomfl_lab.runs.configuration import TrainConfig
from paper_repro.workflow.verdicts.claim_table import limits
from tests.paper_repro.recomputed.common import ALL, Frames, M, frames_of, kept, lines, m
from theory.communication import expected_traffic

SMALL, LARGE = 28_938, 1_206_590
"""d of the two CNNs."""
SHARES = {"fedavg": (1.0, 2.0), "fedcom": (0.25, 0.25), "fedavg-topk": (None, None)}
"""β of Table 1 and what the authors' axis counts of d, of the first-order methods of Figure 3."""


# --- Figure 2 ---------------------------------------------------------------------------------------------------------


def counted_2(frame: pd.DataFrame) -> pd.DataFrame:
    """Table 1: 2KP down and KP up of one in ten, or β d up and d down of one in ten; the axis: K P or d a round."""
    own = frame.method == "DeComFL"
    table1 = np.where(own, (2 + m / M) * frame.K * frame.P, 2 * SMALL * m / M) * frame["round"]
    plotted = np.where(own, frame.K * frame.P, SMALL) * (frame["round"] - 1)
    return frame.assign(table1_scalars=table1, plotted_scalars=plotted)


def figure_2(frame: pd.DataFrame, reading: str = "as-plotted") -> pd.DataFrame:
    own = lines(frame)
    return counted_2(kept(own[own.reading == reading], "panel", "series"))


def estimators(frame: pd.DataFrame, by: list[str]) -> Frames:
    """Differences of the two estimators at equal seeds and rounds, and ratios of the seconds a round of the fastest."""
    both = frame[frame.check].merge(frame[~frame.check], on=[*by, "seed", "round"], suffixes=("", "_line"))
    both["gap"] = (both.test_accuracy - both.test_accuracy_line).abs()
    p = (both.test_accuracy + both.test_accuracy_line) / 2
    both["within"] = both.gap <= ALL.errors * (2 * p * (1 - p) / both.examples) ** 0.5
    both["curve"] = both[by].agg(", ".join, axis=1)
    ratios = {}
    for curve, each in frame[frame["round"] > 0].groupby(by):
        run = each.groupby(["check", "seed"]).agg(seconds=("seconds", "max"), rounds=("round", "max"))
        fastest = (run.seconds / run.rounds).groupby("check").min()
        if len(fastest) == 2:
            ratios[", ".join(curve)] = fastest[False] / fastest[True]
    return {"gaps": both, "seconds": pd.DataFrame(ratios.items(), columns=["curve", "ratio"])}


@frames_of("fig2")
def _(frame: pd.DataFrame) -> Frames:
    found = {"": figure_2(frame), **estimators(frame[frame.reading == "as-plotted"], ["panel", "series"])}
    if "DECOMFL_REFERENCE" not in os.environ:
        return found
    bands = {"bands": bands_2(frame, "as-plotted"), "bands of the text": bands_2(frame, "as-written")}
    return {**found, **bands, "logs": logs_2("local-updates").assign(reading="as-plotted", panel="local-updates")}


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


def band(ours: pd.DataFrame, theirs: pd.DataFrame, everything: pd.DataFrame, wanted: int) -> pd.DataFrame:
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
    found = []
    for name, own in both.groupby("series"):
        end, seeds = own.iloc[-1], everything[everything.series == name].groupby("seed").diverged.any()
        row = {
            "series": name,
            "last round": own.index[-1][1],
            "evaluations": len(own),
            "testable": True,
            "wanted": wanted,
        }
        row |= {"share inside": own.inside.mean(), "judged": "DeComFL" in name and len(own) >= ALL.common}
        row |= {"last accuracy, ours": end.mean_a, "last accuracy, authors'": end.mean_b}
        found.append({**row, "seeds that diverged": int(seeds.sum())})
    return pd.DataFrame(found)


def bands_2(frame: pd.DataFrame, reading: str) -> pd.DataFrame:
    """What ``band`` says of both panels of a reading."""
    every = lines(frame)
    every = every[every.reading == reading]
    every = every.assign(series=every.panel + ", " + every.series)

    def named(panel: str, own: pd.DataFrame) -> pd.DataFrame:
        return own.assign(series=f"{panel}, " + own.series)

    panels = ("local-updates", "perturbations")
    ours = figure_2(frame, reading)
    a = pd.concat([named(panel, ours[ours.panel == panel]) for panel in panels])
    b = pd.concat([named(panel, authors_2(panel)) for panel in panels])
    # The spread of "our other series" at a round is over both panels, but of DeComFL and FedAvg apart.
    return pd.concat([band(a[a.method == method], b[b.method == method], every, 6) for method in ("DeComFL", "FedAvg")])


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


def figure_3(frame: pd.DataFrame) -> pd.DataFrame:
    """The curves that claims are about."""
    return counted_3(kept(lines(frame[frame.series != BY_VALUE]), "series"))


def settings(frame: pd.DataFrame) -> pd.DataFrame:
    """Losses and accuracies of ours and of the logs, and how far the losses lie apart, series by series."""
    ours, told = kept(lines(frame), "series"), []
    log_of = {name: name for name in ("FedAvg", "FedCom 8 bit", TOP_K)} | {BY_VALUE: TOP_K}
    theirs = logs()[lambda t: t.figure.str.startswith("fig3")].copy()
    theirs["series"] = [next(own for start, own in NAMES_3.items() if name.startswith(start)) for name in theirs.series]
    for name, log in log_of.items():
        own = ours[ours.series == name].groupby("round")[["train_loss", "test_accuracy"]].mean()
        other = theirs[theirs.series == log].drop_duplicates(["metric", "round"])
        other = other.pivot(index="round", columns="metric", values="value")
        stops = list(own.index)
        windows = {
            end: other.train_loss.loc[start + 1 : end].mean() for start, end in zip([0, *stops], stops, strict=False)
        }
        distances = [abs(own.train_loss[r] / windows[r] - 1) for r in stops if 30 <= r <= 301]
        if not distances or stops[-1] < 301:
            continue
        found = {"largest distance of training losses": max(distances)}
        for side, accuracy in (("ours", own.test_accuracy), ("authors'", other.test_accuracy.dropna())):
            found |= {f"last accuracy, {side}": accuracy.iloc[-1], f"best accuracy, {side}": accuracy.max()}
        for r in (101, 301, 991):
            found |= {f"training loss at {r}, ours": own.train_loss.get(r, np.nan)}
            found |= {f"training loss at {r}, authors'": windows.get(r, np.nan)}
        told += [{"series": name, "what": what, "value": value, "testable": True} for what, value in found.items()]
    return pd.DataFrame(told, columns=["series", "what", "value", "testable"]).dropna()


@frames_of("fig3")
def _(frame: pd.DataFrame) -> Frames:
    found = {"": figure_3(frame), **estimators(frame, ["series"])}
    if "DECOMFL_REFERENCE" not in os.environ:
        return found
    every, theirs = lines(frame), authors_3()
    # One log for both ways to choose the largest values.
    theirs = pd.concat([theirs, theirs[theirs.series == TOP_K].assign(series=BY_VALUE)])
    bands = band(kept(every, "series"), theirs, every, 1)
    return {**found, "logs": logs_3(), "settings": settings(frame), "bands": bands}


@frames_of("topk")
def _(frame: pd.DataFrame) -> Frames:
    found = {"": figure_3(frame).assign(wire_bytes=lambda t: 4 * M * t.wire_scalars)}
    return {**found, "logs": logs_3()} if "DECOMFL_REFERENCE" in os.environ else found


# --- Table 1 ----------------------------------------------------------------------------------------------------------

BETA = {"FedAvg K=10": 1.0, "FedZO K=10 P=20": 1.0, "FedCom 8 bit K=10": 0.25, "FedAvg+Top-k 10 % K=10": 0.2}
OURS = "DeComFL K=10 P=20"


@frames_of("table1")
def _(frame: pd.DataFrame) -> Frames:
    frame = lines(frame)
    # Of whatever scale, the numbers of clients follow from what FedAvg's messages cost in all and a client.
    fedavg = frame[frame.series == "FedAvg K=10"].iloc[-1]
    clients = round(fedavg.wire_bytes / (4 * fedavg.wire_scalars))
    sampled = round(fedavg.up_bytes / (4 * SMALL * fedavg["round"]))
    table = []
    for name in (*BETA, OURS):
        run = frame[frame.series == name]
        end = run[run["round"] == run["round"].max()]
        up, down = end.up_bytes / end["round"] / 4, (end.wire_bytes - end.up_bytes) / end["round"] / 4
        wanted = (sampled * 200, 2 * clients * 200) if name == OURS else (BETA[name] * sampled * SMALL, sampled * SMALL)
        row = {"algorithm": name}
        for way, sent, formula in (("uplink", up, wanted[0]), ("downlink", down, wanted[1])):
            row |= {f"{way}, measured": sent.mean(), f"{way}, formula": formula}
        table.append(row)
    a_round = [(2 + m / M) * 200 if name == OURS else (1 + BETA[name]) * SMALL * m / M for name in frame.series]
    return {"": frame.assign(table1_scalars=a_round * frame["round"]), "table": pd.DataFrame(table)}


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
        lost = bool(own.diverged.any() or not end <= limits("edge").risen * own.test_loss.min())
        accuracy = 0.1 if lost else own.test_accuracy[-max(1, len(own) // 10) :].mean()
        found.append((eta, name, accuracy, lost, own.examples.min()))
    return pd.DataFrame(found, columns=["eta", "estimator", "accuracy", "diverged", "examples"])


@frames_of("projection")
def _(frame: pd.DataFrame) -> Frames:
    own = at_equal_rounds(frame)
    cost = own[~own.diverged].pivot(index=["eta", "round"], columns="estimator", values="wire_bytes").dropna()
    cost["apart"] = (cost["zeroth order"] - cost["projection"]).abs()
    return {"final": finals(frame).rename(columns={"estimator": "series", "accuracy": "test_accuracy"}), "cost": cost}
