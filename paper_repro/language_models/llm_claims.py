"""The cells of the paper's tables of fine-tuning, in print and made here, and what the paper claims about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, Final

import pandas as pd

from decomfl_lab.language.tasks import TASKS
from paper_repro.workflow.claims import ClaimOutcome
from paper_repro.workflow.expression import judged
from paper_repro.workflow.measures import binomial_error
from paper_repro.workflow.scales import SCALES, TASK_ROWS
from theory.notation.printed import (
    EXAMPLES,
    LORA,
    LORA_PARAMETERS,
    MOST_FREQUENT,
    RESULTS,
    ROUNDS,
    Cell,
    agree,
    decomfl_megabytes,
    model_terabytes,
)

__all__ = [
    "ADAPTED",
    "FEDZO",
    "FULL",
    "P5",
    "P10",
    "SAMPLED",
    "TABLE",
    "TWO_WAY",
    "M",
    "MethodColumn",
    "claims",
    "methods",
    "one_by_one",
    "printed",
    "printed_costs",
    "results",
    "task_title",
]

M, SAMPLED = 8, 2
TWO_WAY, ADAPTED = "-two-way", "+LoRA"
"""How a task's name ends in the authors' reading, and a row of the settings where LoRA is what is trained."""
FEDZO, P5, P10 = "FedZO", "DeComFL P=5", "DeComFL P=10"


@dataclass(frozen=True)
class MethodColumn:
    """A column of a table of results."""

    method: str  # the name of the method
    P: int  # the number of directions; 0 for first-order steps
    column: int | None  # its place in a row of the paper's table; None if it is not there
    unit: float  # the number of bytes in which the paper counts its costs


# Series, method and unit of its costs; P and the place in a row of the paper's tables, of all parameters and of LoRA.
_ROWS: Final[Sequence[tuple[str, str, float, tuple[int, int | None] | None, tuple[int, int | None] | None]]] = (
    ("FedAvg", "fedavg", 1e12, (0, 0), None),
    ("MeZO", "mezo", 1e12, (1, 1), (1, 0)),
    (FEDZO, "fedzo", 1e12, (10, 2), (5, 1)),
    (P5, "decomfl", 1e6, (5, None), (5, 2)),
    (P10, "decomfl", 1e6, (10, 3), (10, 3)),
)
FULL: Final = {name: MethodColumn(method, *own, unit) for name, method, unit, own, _ in _ROWS if own}
_LORA: Final = {name: MethodColumn(method, *own, unit) for name, method, unit, _, own in _ROWS if own}


def methods(row: str) -> Mapping[str, MethodColumn]:
    """The columns of the table in which a row of the settings (a model, or model+LoRA) has its results."""
    return _LORA if row.endswith(ADAPTED) else FULL


def printed(row: str, task: str, series: str) -> Cell | None:
    """The paper's cell, CB's also for its two-way reading; None if there is none."""
    column = methods(row)[series].column
    table = LORA if row.endswith(ADAPTED) else RESULTS[row]
    return None if column is None else table[TASK_ROWS[task]][column]


def printed_costs() -> list[tuple[str, str, str, int, float]]:
    """Row, task, column, rounds of the settings and bytes of every cell in print; FedAvg's rounds are not in print."""
    found = []
    for row, rounds in ROUNDS.items():
        for task in TASKS:
            for series, method in methods(row).items():
                cell = None if series == "FedAvg" else printed(row, task, series)
                if cell is not None and cell.cost is not None:
                    found.append((row, task, series, rounds[TASK_ROWS[task]], method.unit * cell.cost))
    return found


def task_title(task: str) -> str:
    """The task as people call it, and which reading."""
    title = TASKS[task.removesuffix(TWO_WAY)].title
    return f"{title}, read two ways" if task.endswith(TWO_WAY) else title


TABLE: Final = (
    *("row", "task", "series", "model", "examples", "majority", "rounds", "d", "zero_shot", "calibrated_zero_shot"),
    *("accuracy", "calibrated", "bytes", "error", "gain", "gain_error", "formula", "printed_accuracy", "printed_bytes"),
)
"""The columns of ``results`` that its table shows."""


def results(rows: pd.DataFrame) -> pd.DataFrame:
    """The cells made here, from the evaluations of all runs with the labels of their jobs; none of no rows.

    Returns:
        Columns row, task and series; model, which stands for the paper's, and trained, the same with +LoRA where that
        is trained; paper_model; examples and majority, the number of test examples and the share of the most frequent
        class; rounds; d, the parameters trained, as FedZO's models are counted (NaN if it has sent none); zero_shot,
        calibrated_zero_shot and start, the better of the two; accuracy after the last round (NaN for a run that
        diverged) with its binomial error, and calibrated; gain, the accuracy over start, with its error as of two sets
        of examples, though it is one; bytes that one client and the server exchanged, both ways, and a_round; formula,
        the paper's arithmetic of costs, R·P·12 bytes or R·(m/M)·8d; what is printed, NaN where nothing is; and whether
        it learnt: got above all that needs no training by two standard errors.
    """
    d: dict[str, float] = {}
    for name, own in rows.groupby("row", sort=False) if len(rows) else ():
        sent = own[(own.series == FEDZO) & (own["round"] > 0)]  # the numbers that its m clients get and send
        scalars = sent.gradient_scalars / (2 * SAMPLED * sent["round"])
        d[str(name)] = math.nan if sent.empty else float(scalars.iloc[-1])
    cells: list[dict[str, Any]] = []
    for (row, task, series), run in rows.groupby(["row", "task", "series"], sort=False) if len(rows) else ():
        first, last, method = run.iloc[0], run.iloc[-1], methods(str(row))[str(series)]
        lost, n, rounds = bool(last["diverged"]), int(last["examples"]), int(last["round"])
        accuracy = math.nan if lost else float(last["test_accuracy"])
        start = max(float(first["test_accuracy"]), float(first["calibrated_accuracy"]))
        error, sent_bytes = binomial_error(accuracy, n), 4 * float(last["wire_scalars"])
        formula = {"mezo": math.nan, "decomfl": 1e6 * decomfl_megabytes(rounds, method.P)}
        cell = printed(str(row), str(task), str(series))
        trained = str(last["model"]) + (ADAPTED if str(row).endswith(ADAPTED) else "")
        cells.append(
            {
                "row": row,
                "task": task,
                "series": series,
                "model": str(last["model"]),
                "trained": trained,
                "name": f"{task_title(str(task))}, {trained}",
                "paper_model": str(row).removesuffix(ADAPTED),
                "examples": n,
                "majority": float(last["majority"]),
                "rounds": rounds,
                "d": d[str(row)],
                "zero_shot": float(first["test_accuracy"]),
                "calibrated_zero_shot": float(first["calibrated_accuracy"]),
                "start": start,
                "accuracy": accuracy,
                "calibrated": math.nan if lost else float(last["calibrated_accuracy"]),
                "diverged": lost,
                "bytes": sent_bytes,
                "a_round": sent_bytes / rounds if rounds else math.nan,
                "error": error,
                "gain": accuracy - start,
                "gain_error": math.hypot(error, binomial_error(start, n)),
                "learnt": accuracy - max(start, float(last["majority"])) > 2 * error,
                "formula": formula.get(method.method, 1e12 * model_terabytes(rounds, d[str(row)])),
                "printed_accuracy": math.nan if cell is None else cell.accuracy / 100,
                "printed_bytes": math.nan if cell is None or cell.cost is None else method.unit * cell.cost,
                "ours": method.method == "decomfl" and rounds > 0,
                "by_length": -rounds,
            }
        )
    more = ("trained", "name", "paper_model", "start", "diverged", "a_round", "learnt", "ours", "by_length")
    return pd.DataFrame(cells, columns=None if cells else [*TABLE, *more])


def one_by_one(cells: pd.DataFrame) -> list[Any]:
    """The cells, with columns as attributes."""
    return list(cells.itertuples())


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(rows: pd.DataFrame, words: str) -> list[ClaimOutcome]:
    """The outcomes of the evaluations of the runs; without any only the paper's own arithmetic can be judged."""
    cells = results(rows)
    frames = {
        "": pd.DataFrame(),
        "cells": cells,
        "pairs": _pairs(cells),
        "rounds": _rounds(),
        "printed": _printed_accuracies(),
        "costs": _printed_costs(),
        "same": _same_cost(rows, cells),
    }
    return judged("llm", words, frames)


def _pairs(cells: pd.DataFrame) -> pd.DataFrame:
    """Every two cells of one task and model: their difference in accuracy, as of two sets of examples, and in bytes."""
    told = []
    for a, b in permutations(one_by_one(cells), 2):
        if (a.task, a.paper_model) != (b.task, b.paper_model):
            continue
        across = "" if a.row == b.row else f" − {b.trained}"
        told.append(
            {
                "pair": " − ".join(each.series + each.row.removeprefix(each.paper_model) for each in (a, b)),
                "told": f"{a.series} − {b.series}, {a.name}{across}",
                "trained": a.trained,
                "whole": not (a.diverged or b.diverged),
                "learnt": a.learnt or b.learnt,
                "difference": a.accuracy - b.accuracy,
                "error": (a.error**2 + b.error**2) ** 0.5,
                "counted": a.rounds > 0 and b.rounds > 0 and b.bytes > 0,
                "ratio": a.a_round / b.a_round if b.bytes else math.nan,
            }
        )
    columns = ("pair", "told", "trained", "whole", "learnt", "difference", "error", "counted", "ratio")
    return pd.DataFrame(told, columns=columns)


def _rounds() -> pd.DataFrame:
    """DeComFL's rounds in print over those that FedAvg's costs in print imply."""
    size = SCALES["full"].llm
    told = []
    for row, own in size.first_order.items():
        for task, tuning in own.items():
            if task in TASKS:  # the other reading of CB is none
                ratio = size.settings[row][task].rounds / tuning.rounds
                told.append({"name": f"{task_title(task)}, {row}", "ratio": ratio})
    return pd.DataFrame(told)


def _printed_accuracies() -> pd.DataFrame:
    """The paper's cells of DeComFL against always the same answer."""
    told = []
    for row, task in product(ROUNDS, TASKS):
        always = 100 * MOST_FREQUENT[TASK_ROWS[task]] / EXAMPLES[TASK_ROWS[task]]
        for series, method in methods(row).items():
            cell = printed(row, task, series) if method.method == "decomfl" else None
            if cell is not None:
                below = always - cell.accuracy
                told.append({"name": f"{task_title(task)}, {row}, {series}", "below": below, "is_below": below >= 0})
    return pd.DataFrame(told)


def _printed_costs() -> pd.DataFrame:
    """The paper's costs in print, in MB against DeComFL's formula, in bytes against what LoRA's numbers need."""
    told = []
    for row, task, series, R, cost in printed_costs():
        ours = methods(row)[series].method == "decomfl"
        formula = decomfl_megabytes(R, methods(row)[series].P)
        told.append(
            {
                "row": row,
                "series": series,
                "name": f"{task_title(task)}, {row}",
                "ours": ours,
                "printed": cost / 1e6,
                "formula": formula,
                "off": ours and not agree(cost / 1e6, formula),
                "printed_bytes": cost,
                "bytes": 1e12 * model_terabytes(R, LORA_PARAMETERS),
            }
        )
    return pd.DataFrame(told)


def _same_cost(rows: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Bytes a client of DeComFL in two rows of the settings, task by task, at the last round that both evaluated."""
    known = {cell.row: cell for cell in one_by_one(cells)}
    found: list[dict[str, Any]] = []
    ours = rows[rows.series == P10] if len(rows) else pd.DataFrame(columns=["task", "row", "round", "wire_bytes"])
    for (task, runs), (one, other) in product(ours.groupby("task", sort=False), permutations(known, 2)):
        a, b = (runs[runs["row"] == row].set_index("round").wire_bytes / M for row in (one, other))
        if r := max(set(a.index) & set(b.index), default=0):
            row = {"one": one, "other": other, "task": task, "title": task_title(str(task)), "r": int(r)}
            for side, name, own in (("one", one, a), ("other", other, b)):
                row |= {f"{side}_bytes": float(own[r]), f"{side}_trained": known[name].trained}
                row |= {f"{side}_d": known[name].d}
            found.append({**row, "apart": abs(a[r] - b[r])})
    names = ("one", "other", "task", "title", "r", "apart")
    sides = [f"{side}_{what}" for side in ("one", "other") for what in ("bytes", "trained", "d")]
    table = pd.DataFrame(found, columns=[*names, *sides]).sort_values(["r", "task"])
    # Of the tasks that were trained for longest one tells its bytes.
    return table.assign(longest=~table.duplicated(["one", "other"], keep="last"))
