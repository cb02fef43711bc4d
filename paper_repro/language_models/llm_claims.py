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
from paper_repro.workflow.measures import (
    binomial_error,
)
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
    "TWO_WAY",
    "CellResult",
    "M",
    "MethodColumn",
    "claims",
    "methods",
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
    unit: float = 1e12  # the number of bytes in which the paper counts its costs


FULL: Final[Mapping[str, MethodColumn]] = {
    "FedAvg": MethodColumn("fedavg", 0, 0),
    "MeZO": MethodColumn("mezo", 1, 1),
    FEDZO: MethodColumn("fedzo", 10, 2),
    P5: MethodColumn("decomfl", 5, None, 1e6),
    P10: MethodColumn("decomfl", 10, 3, 1e6),
}
_LORA: Final[Mapping[str, MethodColumn]] = {
    "MeZO": MethodColumn("mezo", 1, 0),
    FEDZO: MethodColumn("fedzo", 5, 1),
    P5: MethodColumn("decomfl", 5, 2, 1e6),
    P10: MethodColumn("decomfl", 10, 3, 1e6),
}


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


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """A cell made here, from the evaluations of one run."""

    row: str  # the row of the table of settings: the paper's model, with +LoRA where that is trained
    task: str  # the task, or its two-way reading
    series: str  # the column of the table
    model: str  # the model that stands for the paper's
    examples: int  # the number of test examples
    majority: float  # the share of the most frequent class
    rounds: int  # the number R of rounds
    d: float  # the number of parameters trained, as FedZO's models are counted; NaN if it has sent none
    zero_shot: float  # the accuracy in round 0
    calibrated_zero_shot: float  # the calibrated accuracy in round 0
    accuracy: float  # the accuracy after the last round; NaN for a run that diverged
    calibrated: float  # the calibrated accuracy after the last round
    bytes: float  # the bytes that one client and the server exchanged, both ways, by the ledger

    @property
    def name(self) -> str:
        """Task and what was trained."""
        return f"{task_title(self.task)}, {self.trained}"

    @property
    def trained(self) -> str:
        """The model that was trained, which the paper's may not be, with +LoRA where that is trained."""
        return self.model + (ADAPTED if self.row.endswith(ADAPTED) else "")

    @property
    def paper_model(self) -> str:
        """The paper's model."""
        return self.row.removesuffix(ADAPTED)

    @property
    def diverged(self) -> bool:
        """Whether there is no accuracy."""
        return math.isnan(self.accuracy)

    @property
    def start(self) -> float:
        """The better of the two accuracies in round 0: a gain over it is a gain."""
        return max(self.zero_shot, self.calibrated_zero_shot)

    @property
    def error(self) -> float:
        """Binomial standard error of the accuracy."""
        return binomial_error(self.accuracy, self.examples)

    @property
    def gain(self) -> tuple[float, float]:
        """Accuracy over ``start``, and its standard error as of two sets of examples, though it is one."""
        return self.accuracy - self.start, math.hypot(self.error, binomial_error(self.start, self.examples))

    @property
    def learnt(self) -> bool:
        """Whether it got above all that needs no training by two standard errors."""
        return self.accuracy - max(self.start, self.majority) > 2 * self.error

    @property
    def formula(self) -> float:
        """The paper's arithmetic of costs for R and d: R·P·12 bytes or R·(m/M)·8d; NaN for MeZO."""
        method = methods(self.row)[self.series]
        if method.method == "mezo":
            return math.nan
        if method.method == "decomfl":
            return 1e6 * decomfl_megabytes(self.rounds, method.P)
        return 1e12 * model_terabytes(self.rounds, self.d)

    @property
    def printed(self) -> tuple[float, float]:
        """The paper's accuracy and bytes, NaN where it has none."""
        cell = printed(self.row, self.task, self.series)
        if cell is None:
            return math.nan, math.nan
        unit = methods(self.row)[self.series].unit
        return cell.accuracy / 100, math.nan if cell.cost is None else unit * cell.cost

    def columns(self) -> dict[str, Any]:
        """All of it, for a table."""
        gain, gain_error = self.gain
        accuracy, cost = self.printed
        return {
            **vars(self),
            "error": self.error,
            "gain": gain,
            "gain_error": gain_error,
            "formula": self.formula,
            "printed_accuracy": accuracy,
            "printed_bytes": cost,
        }


def results(rows: pd.DataFrame) -> list[CellResult]:
    """The cells, from the evaluations of all runs with the labels of their jobs."""
    if rows.empty:
        return []
    # d, from the numbers that FedZO's m clients get and send a round; NaN if it sent none.
    d: dict[str, float] = {}
    for name, own in rows.groupby("row", sort=False):
        sent = own[(own.series == FEDZO) & (own["round"] > 0)]
        scalars = sent.gradient_scalars / (2 * SAMPLED * sent["round"])
        d[str(name)] = math.nan if sent.empty else float(scalars.iloc[-1])
    cells = []
    for (row, task, series), run in rows.groupby(["row", "task", "series"], sort=False):
        first, last = run.iloc[0], run.iloc[-1]
        lost = bool(last["diverged"])
        cells.append(
            CellResult(
                row=str(row),
                task=str(task),
                series=str(series),
                model=str(last["model"]),
                examples=int(last["examples"]),
                majority=float(last["majority"]),
                rounds=int(last["round"]),
                d=d[str(row)],
                zero_shot=float(first["test_accuracy"]),
                calibrated_zero_shot=float(first["calibrated_accuracy"]),
                accuracy=math.nan if lost else float(last["test_accuracy"]),
                calibrated=math.nan if lost else float(last["calibrated_accuracy"]),
                bytes=4 * float(last["wire_scalars"]),
            )
        )
    return cells


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(rows: pd.DataFrame, words: str) -> list[ClaimOutcome]:
    """The outcomes of the evaluations of the runs; without any only the paper's own arithmetic can be judged."""
    cells = results(rows)
    frames = {
        "": pd.DataFrame(),
        "cells": _cells_frame(cells),
        "pairs": _pairs(cells),
        "rounds": _rounds(),
        "printed": _printed_accuracies(),
        "costs": _printed_costs(),
        "same": _same_cost(rows, cells),
    }
    return judged("llm", words, frames)


def _cells_frame(cells: Sequence[CellResult]) -> pd.DataFrame:
    """A row for each cell, with what the claims ask of it."""
    told = []
    for cell in cells:
        more = {name: getattr(cell, name) for name in ("name", "trained", "start", "learnt", "diverged")}
        ours = methods(cell.row)[cell.series].method == "decomfl" and cell.rounds > 0
        a_round = cell.bytes / cell.rounds if cell.rounds else math.nan
        told.append({**cell.columns(), **more, "ours": ours, "a_round": a_round, "by_length": -cell.rounds})
    columns = [*CellResult.__dataclass_fields__, "gain", "gain_error", "formula", "name", "start", "diverged", "ours"]
    return pd.DataFrame(told, columns=None if told else [*columns, "a_round", "by_length"])


def _pairs(cells: Sequence[CellResult]) -> pd.DataFrame:
    """Every two cells of one task and model: their difference in accuracy, as of two sets of examples, and in bytes."""
    told = []
    for a, b in permutations(cells, 2):
        if (a.task, a.paper_model) != (b.task, b.paper_model):
            continue
        counted = bool(a.rounds and b.rounds and b.bytes)
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
                "counted": counted,
                "ratio": (a.bytes / a.rounds) / (b.bytes / b.rounds) if counted else math.nan,
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


def _same_cost(rows: pd.DataFrame, cells: Sequence[CellResult]) -> pd.DataFrame:
    """Bytes a client of DeComFL in two rows of the settings, task by task, at the last round that both evaluated."""
    known = {cell.row: cell for cell in cells}
    found: list[dict[str, Any]] = []
    ours = rows[rows.series == P10] if len(rows) else pd.DataFrame(columns=["task", "row", "round", "wire_bytes"])
    for (task, runs), (one, other) in product(ours.groupby("task", sort=False), permutations(known, 2)):
        a, b = (runs[runs["row"] == row].set_index("round").wire_bytes / M for row in (one, other))
        if r := max(set(a.index) & set(b.index), default=0):
            row = {"one": one, "other": other, "task": task, "title": task_title(str(task)), "r": int(r)}
            row |= {"one_bytes": float(a[r]), "other_bytes": float(b[r]), "apart": abs(a[r] - b[r])}
            row |= {"one_trained": known[one].trained, "other_trained": known[other].trained}
            found.append({**row, "one_d": known[one].d, "other_d": known[other].d})
    columns = [
        "one",
        "other",
        "task",
        "title",
        "r",
        "one_bytes",
        "other_bytes",
        "apart",
        "one_trained",
        "other_trained",
    ]
    table = pd.DataFrame(found, columns=[*columns, "one_d", "other_d"]).sort_values(["r", "task"])
    # Of the tasks that were trained for longest one tells its bytes.
    return table.assign(longest=~table.duplicated(["one", "other"], keep="last"))
