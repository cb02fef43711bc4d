"""The board: all methods in one race on each problem, and the claims of DeComFL's successors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from decomfl_lab.errors import require
from decomfl_lab.methods.registry import METHODS
from paper_repro.studies.board_runs import FOLLOWS, LINES, RULE, BoardWork, absent
from paper_repro.studies.drawings import line_styles, races, ranking
from paper_repro.workflow.claims import UNTESTED, ClaimOutcome, Verdict, judged, limits
from paper_repro.workflow.measures import TOLERANCE, numbers, verdict_of
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.report import Section, amount, caption, notes
from paper_repro.workflow.scales import BOARD_COMMON, BoardScale, Scale

__all__ = ["Ratio", "claims", "ends", "jobs", "make", "scale_words", "shown", "summary"]

LIMITS: Final = limits("board")
_WAYS: Final = ("up", "down")
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


def jobs(options: Options) -> list[BoardWork]:
    """Every line of the board, or those asked for, on every problem that can be had here, or those asked for."""
    size = options.scale.board
    left_out = absent(size)
    for problem in options.problems:
        require(problem not in left_out, "problem", f"be available here ({left_out.get(problem)})", problem)
    problems = [name for name in options.problems or size.races if name not in left_out]
    return [BoardWork(size, problem, line) for problem in problems for line in options.lines or LINES]


def scale_words(scale: Scale) -> str:
    """The scale in a line."""
    size = scale.board
    told = "; ".join(f"{problem} {race}" for problem, race in size.races.items())
    seeds, tuned = (", ".join(map(str, own)) for own in (size.seeds, size.tuning_seeds))
    return f"{scale.words(named=False)}: {told}; seeds {seeds}, η chosen on {tuned}"


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
    size, words = options.scale.board, scale_words(options.scale)
    frame = drawn(rows, size)
    methods = zip(rows["line"], rows["method"], strict=True)
    styles = line_styles({line: METHODS[method].gradients for line, method in methods})
    data = "; ".join(dict.fromkeys(str(facts["data"]) for facts in provenance if "data" in facts))

    told = {"scale": words, "data": data, "seeds": ", ".join(map(str, size.seeds))}
    everything = list(dict.fromkeys(frame["problem"]))
    last = everything[-1]
    title = "What the target takes"
    figures = {
        "board": ranking(
            frame[frame["problem"] == last],
            styles,
            title=title,
            caption=caption("board", race=size.races[last], **{**told, "data": data.split("; ")[-1]}),
        ),
        "board-all": races(frame, styles, title=f"{title}, problem by problem", caption=caption("board-all", **told)),
    }
    table = summary(rows)
    left_out = [f"{problem} is left out: {why}." for problem, why in absent(size).items() if problem not in everything]
    common = ", ".join(f"{name} {value:g}" for name, value in BOARD_COMMON.items())
    section = Section(
        id="board",
        figure=figures["board"],
        notes=[RULE, *notes("board", common=common, missed=size.missed), *left_out],
        table=shown(table),
        facts={"scale": words},
        more_figures={"Every problem, by bytes and by forward passes": figures["board-all"]},
    )
    tables = {"board": table, "board-curves": rows}
    return Made(section=section, claims=claims(rows, words), figures=figures, tables=tables)


def drawn(rows: pd.DataFrame, size: BoardScale) -> pd.DataFrame:
    """The rows as the figure wants them."""
    frame = spent(rows).rename(columns={"test_accuracy": "accuracy", "test_loss": "loss"})
    of = {problem: size.races[problem] for problem in dict.fromkeys(frame["problem"])}
    by = {problem: "accuracy" if race.loss is None else "loss" for problem, race in of.items()}
    target = {problem: race.accuracy if race.loss is None else race.loss for problem, race in of.items()}
    return frame.assign(by=frame["problem"].map(by), target=frame["problem"].map(target))


# --- claims -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """How many times more one line spends than another: the geometric mean over problems, with its interval."""

    value: float  # exp of the mean over problems of the difference of mean logarithms
    low: float  # ``TOLERANCE`` standard errors below, on the logarithmic scale; errors are those over seeds
    high: float  # the same above
    by: Mapping[str, float]  # {problem: the ratio there}

    @classmethod
    def of(cls, runs: pd.DataFrame, column: str, more: str, less: str) -> Ratio | None:
        """The ratio of ``more`` to ``less`` over the problems on which both get there with every seed.

        None where there is no such problem, or fewer than two seeds of one of them.
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
        if not logs:
            return None
        mean, error = float(np.mean(list(logs.values()))), math.sqrt(variance) / len(logs)
        low, high = (math.exp(mean + sign * TOLERANCE * error) for sign in (-1, 1))
        return cls(math.exp(mean), low, high, {problem: math.exp(value) for problem, value in logs.items()})

    def at_least(self, bound: float) -> Verdict:
        """Whether it is surely at least the bound, surely below, or neither."""
        return verdict_of(self.low >= bound, tested=self.low >= bound or self.high < bound)

    def measured(self, name: str) -> dict[str, float]:
        """What the verdict tells of it."""
        whole = {name: self.value, f"{name}, from": self.low, f"{name}, to": self.high}
        return whole | {f"{name}, {problem}": value for problem, value in self.by.items()}


def claims(rows: pd.DataFrame, words: str) -> list[ClaimOutcome]:
    """The claims of the successors; not tested where a method, or every seed of it, is missing."""
    runs = ends(rows)
    signs = runs[runs["line"] == "FeedSign"]
    bits = {f"bits a direction, {way}": signs[f"{way}_bits"] for way in _WAYS}
    one_bit = all(bool((own == LIMITS.bits).all()) for own in bits.values())
    sent = {name: float(own.max()) for name, own in bits.items() if len(own)}
    sent |= {f"bytes a round with heads, {way}": float(signs[f"round_{way}"].max()) for way in _WAYS if len(signs)}
    pool = runs[runs["line"] == "FedKSeed"]
    small = {
        "bytes of a client's round": float((pool["round_up"] + pool["round_down"]).max()),
        "bytes of a client that comes back": float(pool["back_bytes"].max()),
    }
    within = max(small.values()) < LIMITS.round_bytes
    outcomes = [
        _ratio("hiso", Ratio.of(runs, "round", "DeComFL", "HiSo"), "rounds, DeComFL / HiSo", 1.0),
        _ratio(
            "fzoo", Ratio.of(runs, "passes", "MeZO", ONE_CLIENT), f"forward passes, MeZO / {ONE_CLIENT}", LIMITS.passes
        ),
        ClaimOutcome("board.feedsign", verdict_of(one_bit, tested=len(signs) > 0), numbers(sent)),
        ClaimOutcome("board.fedkseed", verdict_of(within, tested=len(pool) > 0), numbers(small)),
    ]
    return judged("board", words, outcomes)


def _ratio(name: str, ratio: Ratio | None, told: str, bound: float) -> ClaimOutcome:
    if ratio is None:
        return ClaimOutcome(f"board.{name}", UNTESTED)
    return ClaimOutcome(f"board.{name}", ratio.at_least(bound), ratio.measured(told))
