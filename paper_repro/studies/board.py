"""The board: all methods in one race on each problem, and the claims of DeComFL's successors."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd

from decomfl_lab.errors import require
from decomfl_lab.methods.registry import METHODS
from figures.studies import line_styles, races, ranking
from paper_repro.studies import board_runs
from paper_repro.studies.board_runs import FOLLOWS, LINES, RULE, absent
from paper_repro.workflow.claims import ClaimOutcome
from paper_repro.workflow.expression import judged
from paper_repro.workflow.measures import TOLERANCE
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import amount, caption, notes
from paper_repro.workflow.runs import Work
from paper_repro.workflow.series import BOARD

ONE_CLIENT: Final = "FZOO, one client"
"""The line that is compared with MeZO, whose one agent takes all passes; with m clients a round m agents take them."""
SPENT: Final[Mapping[str, str]] = {
    "round": "rounds",
    "up": "bytes up a client",
    "down": "bytes down a client",
    "passes": "forward passes",
    "back_passes": "backward passes",
    "seconds": "seconds",
}
"""What a run has spent when it reaches the target: columns of ``ends``, and their headings."""


def jobs(options: Options) -> list[Work]:
    """Every line of the board, or those asked for, on every problem that can be had here, or those asked for."""
    size = options.scale.board
    left_out = absent(size)
    for problem in options.problems:
        require(problem not in left_out, "problem", f"be available here ({left_out.get(problem)})", problem)
    problems = [name for name in options.problems or size.races if name not in left_out]
    return [board_runs.races(size, problem, line) for problem in problems for line in options.lines or LINES]


# --- what is made of the rows -----------------------------------------------------------------------------------------


def spent(rows: pd.DataFrame) -> pd.DataFrame:
    """The evaluations of the table's runs, with what had been spent: the columns of ``SPENT``, and both ways' bytes."""
    runs = rows[rows["what"] == "evaluation"]
    client_rounds = runs["round"] * runs["m"]
    return runs.assign(
        up=runs["up_bytes"] / runs["M"],
        down=(runs["wire_bytes"] - runs["up_bytes"]) / runs["M"],
        client_bytes=runs["wire_bytes"] / runs["M"],
        passes=client_rounds * runs["forward"],
        back_passes=client_rounds * runs["backward"],
        reached=runs["ended"] == "reached",
    )


def ends(rows: pd.DataFrame) -> pd.DataFrame:
    """The last evaluation of each of the table's runs."""
    ordered = spent(rows).sort_values("round")
    return ordered.groupby(["problem", "line", "seed"], sort=False).tail(1)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each problem and line, by the bytes that it took.

    Returns:
        Columns problem, line, eta, candidates, seeds, reached (how many of them); of each column of ``SPENT`` the mean
        over the seeds and, as ``±``, its standard error (NaN unless all got there; of one seed no error); pace,
        kept_bytes, back_bytes, back_seconds, and replayable with the reason.
    """
    table = []
    for (problem, line), own in ends(rows).groupby(["problem", "line"], sort=False):
        first, there = own.iloc[0], bool(own["reached"].all())
        row = {"problem": problem, "line": line, "eta": first["eta"], "candidates": first["candidates"]}
        row |= {"seeds": len(own), "reached": int(own["reached"].sum())}
        for column in SPENT:
            row[column] = own[column].mean() if there else math.nan
            row[f"{column} ±"] = own[column].sem(ddof=1) if there and len(own) > 1 else math.nan
        row |= {name: first[name] for name in ("pace", "kept_bytes", "back_bytes", "back_seconds")}
        rebuilt = "" if first["exact"] else " (NOT: the rebuilt model differs)"
        row["replayable"] = FOLLOWS[str(first["follows"])] + rebuilt
        table.append(row)
    found = pd.DataFrame(table)
    places = {name: n for n, name in enumerate(dict.fromkeys(rows["problem"]))}
    spent_bytes = (found["up"] + found["down"]).fillna(math.inf)
    order = np.lexsort((spent_bytes, found["problem"].map(places)))
    return found.iloc[order].reset_index(drop=True)


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """``summary`` for readers: numbers with their errors, bytes in units."""
    found = pd.DataFrame({"problem": table["problem"], "method": table["line"], "η": table["eta"]})
    found["η tried"] = table["candidates"]
    found["reached"] = [f"{some} of {all_}" for some, all_ in zip(table["reached"], table["seeds"], strict=True)]
    for column, heading in SPENT.items():
        text = amount if heading.startswith("bytes") else _number
        cells = []
        for value, error in zip(table[column], table[f"{column} ±"], strict=True):
            share = f" ± {100 * error / value:.0f} %" if error > 0 and value else ""
            cells.append("–" if math.isnan(value) else text(value) + share)
        found[heading] = cells
    found["pace"] = table["pace"].map(lambda pace: "–" if math.isnan(pace) else f"{pace:.2f}")
    found["a client keeps"] = table["kept_bytes"].map(amount)
    back = zip(table["back_bytes"], table["back_seconds"], strict=True)
    found["back after missed rounds"] = [f"{amount(size)}, {1e3 * seconds:.3g} ms" for size, seconds in back]
    found["replayable"] = table["replayable"]
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The races, the table and the verdicts."""
    size, words = options.scale.board, options.scale.words("board", named=False)
    frame = spent(rows).rename(columns={"test_accuracy": "accuracy", "test_loss": "loss"})
    # What a race is decided by, and how much of it.
    of = {problem: size.races[problem] for problem in dict.fromkeys(frame["problem"])}
    by = {problem: "accuracy" if race.loss is None else "loss" for problem, race in of.items()}
    target = {problem: race.accuracy if race.loss is None else race.loss for problem, race in of.items()}
    frame = frame.assign(by=frame["problem"].map(by), target=frame["problem"].map(target))
    methods = zip(rows["line"], rows["method"], strict=True)
    styles = line_styles({line: METHODS[method].gradients for line, method in methods})
    data = "; ".join(dict.fromkeys(str(facts["data"]) for facts in provenance if "data" in facts))

    told = {"scale": words, "data": data, "seeds": ", ".join(map(str, size.seeds))}
    everything = list(dict.fromkeys(frame["problem"]))
    last = everything[-1]
    title = "What the target takes"
    figures = {
        "board": partial(
            ranking,
            frame[frame["problem"] == last],
            styles,
            title=title,
            caption=caption("board", race=size.races[last], **{**told, "data": data.split("; ")[-1]}),
        ),
        "board-all": partial(
            races, frame, styles, title=f"{title}, problem by problem", caption=caption("board-all", **told)
        ),
    }
    table = summary(rows)
    left_out = [f"{problem} is left out: {why}." for problem, why in absent(size).items() if problem not in everything]
    common = ", ".join(f"{name} {value:g}" for name, value in BOARD["common"].items())
    return made(
        "board",
        claims(rows, words),
        figures,
        {"board": table, "board-curves": rows},
        more=["Every problem, by bytes and by forward passes"],
        notes=[RULE, *notes("board", common=common, missed=size.missed), *left_out],
        table=shown(table),
        facts={"scale": words},
    )


# --- claims -----------------------------------------------------------------------------------------------------------


def ratio(runs: pd.DataFrame, column: str, more: str, less: str, told: str) -> pd.DataFrame:
    """How many times more one line spends than another, over the problems on which both get there with every seed.

    Returns:
        A row for the geometric mean over problems (``whole``), with its ends ``TOLERANCE`` standard errors over seeds
        below and above, on the logarithmic scale; and one for each problem. None where there is no such problem, or
        fewer than two seeds of one.
    """
    logs: dict[str, float] = {}
    variance = 0.0
    for problem, own in runs.groupby("problem", sort=False):
        both = [own[own["line"] == line] for line in (more, less)]
        if any(len(each) < 2 or not each["reached"].all() for each in both):
            continue
        spent_logs = [np.log(each[column].to_numpy(dtype=float)) for each in both]
        logs[str(problem)] = float(spent_logs[0].mean() - spent_logs[1].mean())
        variance += sum(float(each.var(ddof=1)) / len(each) for each in spent_logs)
    rows = [{"whole": False, "problem": problem, "value": math.exp(value)} for problem, value in logs.items()]
    if logs:
        mean, error = float(np.mean(list(logs.values()))), math.sqrt(variance) / len(logs)
        low, high = (math.exp(mean + sign * TOLERANCE * error) for sign in (-1, 1))
        rows.append({"whole": True, "value": math.exp(mean), "low": low, "high": high})
    return pd.DataFrame(rows, columns=["whole", "problem", "value", "low", "high"]).assign(told=told)


def claims(rows: pd.DataFrame, words: str) -> list[ClaimOutcome]:
    """The claims of the successors; not tested where a method, or every seed of it, is missing."""
    runs = ends(rows)
    ratios = [
        ratio(runs, "round", "DeComFL", "HiSo", "rounds, DeComFL / HiSo"),
        ratio(runs, "passes", "MeZO", ONE_CLIENT, f"forward passes, MeZO / {ONE_CLIENT}"),
    ]
    sent = runs.assign(round_both=runs["round_up"] + runs["round_down"])
    counted = ("round_up", "round_down", "round_both", "back_bytes", "up_bits", "down_bits")
    return judged("board", words, {"": sent.astype(dict.fromkeys(counted, float)), "ratios": pd.concat(ratios)})
