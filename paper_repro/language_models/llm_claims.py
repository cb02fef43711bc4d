"""The cells of the paper's tables of fine-tuning, in print and made here, and what the paper claims about them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import pandas as pd

from decomfl_lab.language.tasks import TASKS
from paper_repro.workflow.claims import UNTESTED, ClaimOutcome, Verdict, judged, limits
from paper_repro.workflow.measures import (
    TOLERANCE,
    binomial_error,
    verdict_of,
    verdict_of_gains,
    verdict_of_likeness,
)
from paper_repro.workflow.scales import SCALES, TASK_ROWS
from theory.notation.printed import (
    EXAMPLES,
    LORA,
    LORA_PARAMETERS,
    MOST_FREQUENT,
    PARAMETERS,
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

LIMITS = limits("llm")

_Columns = tuple[str, str]  # a column of results: the end of the row's name ("" or +LoRA), and the series


def claims(rows: pd.DataFrame, words: str) -> list[ClaimOutcome]:
    """The outcomes of the evaluations of the runs; without any only the paper's own arithmetic can be judged."""
    cells = results(rows)
    trained = [cell for cell in cells if not cell.diverged]
    ours = [cell for cell in trained if cell.series == P10]
    gains = {f"gain, {cell.name}": cell.gain[0] for cell in ours}
    first_order = list(_pairs(trained, [(("", "FedAvg"), ("", P10))]))
    sent = 2 * 4 * PARAMETERS["OPT-1.3B"] / 1e9
    near = abs(sent / LIMITS.gigabytes - 1) <= LIMITS.near
    # DeComFL's rounds in print over those that FedAvg's costs in print imply.
    size = SCALES["full"].llm
    ratios = {}
    for row, own in size.first_order.items():
        for task, tuning in own.items():
            if task in TASKS:  # the other reading of CB is none
                name = f"rounds of DeComFL / FedAvg, {task_title(task)}, {row}"
                ratios[name] = size.settings[row][task].rounds / tuning.rounds
    outcomes = [
        ClaimOutcome("llm.gain", verdict_of_gains([cell.gain for cell in ours]), gains),
        _five_points(trained),
        _alike(trained, "mezo", [(("", P10), ("", "MeZO"))]),
        _alike(trained, "fedzo", [(("", P10), ("", FEDZO)), ((ADAPTED, P5), (ADAPTED, FEDZO))], or_better=False),
        _alike(trained, "directions", [(("", P10), ("", P5)), ((ADAPTED, P10), (ADAPTED, P5))]),
        _alike(trained, "lora", [((ADAPTED, P10), ("", P10)), ((ADAPTED, P10), ("", "MeZO"))]),
        ClaimOutcome("llm.first-order", verdict_of_gains(_differences(first_order)), _told(first_order)),
        _saving(cells),
        _same_cost(rows, cells, "dimension-free", ("OPT-125M", "OPT-1.3B")),
        _same_cost(rows, cells, "peft", ("OPT-125M", "OPT-125M+LoRA")),
        _one_megabyte(cells),
        ClaimOutcome("llm.ten-gigabytes", verdict_of(near), {"gigabytes a round, both ways": sent}),
        ClaimOutcome("llm.rounds", verdict_of(max(ratios.values()) <= LIMITS.slightly), ratios),
        _printed_accuracies(),
        _printed_costs(cells),
        _lora_costs(cells),
    ]
    return judged("llm", words, outcomes)


# --- accuracy ---------------------------------------------------------------------------------------------------------


def _five_points(trained: Sequence[CellResult]) -> ClaimOutcome:
    verdict: Verdict = UNTESTED
    measured: dict[str, float | None] = {}
    for cell in trained:
        if (cell.row, cell.task, cell.series) == ("OPT-125M", "sst2", P10):
            gain, error = cell.gain
            measured = {"before": cell.start, "after": cell.accuracy, "gain": gain, "its standard error": error}
            holds = gain >= LIMITS.five and gain > TOLERANCE * error
            verdict = verdict_of(holds, tested=holds or gain < LIMITS.five - TOLERANCE * error)
    return ClaimOutcome("llm.five-points", verdict, measured)


def _pairs(
    trained: Sequence[CellResult], pairs: Sequence[tuple[_Columns, _Columns]]
) -> Iterator[tuple[CellResult, CellResult]]:
    """Cells of the two columns for the same task and model."""
    found = {(cell.row, cell.task, cell.series): cell for cell in trained}
    for (end, series), (other_end, other) in pairs:
        for cell in trained:
            against = found.get((cell.paper_model + other_end, cell.task, other))
            if cell.row == cell.paper_model + end and cell.series == series and against is not None:
                yield cell, against


def _differences(pairs: Sequence[tuple[CellResult, CellResult]]) -> list[tuple[float, float]]:
    """Accuracy of the first less that of the second, with a standard error as of two sets of examples."""
    return [(a.accuracy - b.accuracy, (a.error**2 + b.error**2) ** 0.5) for a, b in pairs]


def _told(pairs: Sequence[tuple[CellResult, CellResult]]) -> dict[str, float | None]:
    return {
        f"{a.series} − {b.series}, {a.name}" + ("" if a.row == b.row else f" − {b.trained}"): value
        for (a, b), (value, _) in zip(pairs, _differences(pairs), strict=True)
    }


def _alike(
    trained: Sequence[CellResult], name: str, pairs: Sequence[tuple[_Columns, _Columns]], *, or_better: bool = True
) -> ClaimOutcome:
    """A statement that one column is like another, judged on the tasks on which either of them has learnt something."""
    found = list(_pairs(trained, pairs))
    judged = [(a, b) for a, b in found if a.learnt or b.learnt]
    verdict = verdict_of_likeness(_differences(judged), or_better=or_better)
    measured = {"pairs of cells": len(found), "judged: something was learnt": len(judged), **_told(judged)}
    return ClaimOutcome(f"llm.{name}", verdict, measured)


def _printed_accuracies() -> ClaimOutcome:
    """The paper's cells of DeComFL against always the same answer; no run is needed."""
    accuracies = []
    for row, task in product(ROUNDS, TASKS):
        ours = [series for series, method in methods(row).items() if method.method == "decomfl"]
        cells = {series: printed(row, task, series) for series in ours}
        accuracies += [(row, task, series, cell.accuracy) for series, cell in cells.items() if cell is not None]
    below: dict[str, float | None] = {}
    for row, task, series, accuracy in accuracies:
        name = TASK_ROWS[task]
        always = 100 * MOST_FREQUENT[name] / EXAMPLES[name]
        if accuracy <= always:
            below[f"{task_title(task)}, {row}, {series}: below by"] = always - accuracy
    measured = {"cells": len(accuracies), "cells below": len(below), **below}
    return ClaimOutcome("llm.printed-accuracies", verdict_of(not below), measured)


# --- cost -------------------------------------------------------------------------------------------------------------


def _saving(cells: Sequence[CellResult]) -> ClaimOutcome:
    """FedZO's bytes a round over DeComFL's with the same P."""
    found = [
        (a, b)
        for a, b in _pairs(cells, [(("", FEDZO), ("", P10)), ((ADAPTED, FEDZO), (ADAPTED, P5))])
        if a.rounds and b.rounds
    ]
    least: dict[str, float] = {}
    for a, b in found:
        ratio = (a.bytes / a.rounds) / (b.bytes / b.rounds)
        least[a.trained] = min(ratio, least.get(a.trained, ratio))
    verdict = verdict_of(min(least.values()) >= LIMITS.dramatic) if least else UNTESTED
    measured = {f"FedZO / DeComFL, {model}, least of its tasks": ratio for model, ratio in least.items()}
    return ClaimOutcome("llm.saving", verdict, {**measured, "as printed for OPT-125M and SST-2": 0.75e12 / 0.36e6})


def _same_cost(rows: pd.DataFrame, cells: Sequence[CellResult], name: str, pair: tuple[str, str]) -> ClaimOutcome:
    """Bytes of DeComFL in two rows of the settings, at the last round at which both were evaluated."""
    ours = rows[rows.series == P10] if len(rows) else pd.DataFrame(columns=["task", "row", "round", "wire_bytes"])
    found: list[tuple[int, str, float, float]] = []
    for task, runs in ours.groupby("task", sort=False):
        a, b = (
            {int(r): float(count) for r, count in zip(own["round"], own.wire_bytes, strict=True)}
            for own in (runs[runs["row"] == row] for row in pair)
        )
        r = max(a.keys() & b.keys(), default=0)
        if r:
            found.append((r, str(task), a[r] / M, b[r] / M))
    measured: dict[str, float | None] = {}
    if found:
        r, task, *counts = max(found)
        trained = {cell.row: cell.trained for cell in cells}
        measured["tasks compared"] = len(found)
        measured |= {
            f"bytes a client in {r} rounds of {task_title(task)}, {trained[row]}": count
            for row, count in zip(pair, counts, strict=True)
        }
        measured |= {f"d, {cell.trained}": None if math.isnan(cell.d) else cell.d for cell in cells if cell.row in pair}
    verdict = verdict_of(all(a == b for _, _, a, b in found)) if found else UNTESTED
    return ClaimOutcome(f"llm.{name}", verdict, measured)


def _one_megabyte(cells: Sequence[CellResult]) -> ClaimOutcome:
    """Bytes a round measured here, for as many rounds as the paper takes at most to fine-tune OPT-1.3B."""
    a_round = [cell.bytes / cell.rounds for cell in cells if cell.series == P10 and cell.rounds]
    if not a_round:
        return ClaimOutcome("llm.one-megabyte")
    rounds = max(ROUNDS["OPT-1.3B"].values())
    sent = max(a_round) * rounds
    measured = {"bytes a client and round here, at most": max(a_round), "rounds": rounds, "megabytes": sent / 1e6}
    return ClaimOutcome("llm.one-megabyte", verdict_of(sent <= LIMITS.megabytes * 1e6), measured)


def _printed_costs(cells: Sequence[CellResult]) -> ClaimOutcome:
    """The paper's cells of DeComFL against its formula, and the ledger against it."""
    costs = [cost for cost in printed_costs() if methods(cost[0])[cost[2]].method == "decomfl"]
    off: dict[str, float | None] = {}
    for row, task, series, R, cost in costs:
        computed = decomfl_megabytes(R, methods(row)[series].P)
        if not agree(cost / 1e6, computed):
            name = f"{task_title(task)}, {row}, MB"
            off |= {f"{name}: printed": cost / 1e6, f"{name}: by the formula": computed}
    measured: dict[str, float | None] = {"cells": len(costs), "cells that are off": len(off) // 2, **off}
    ours = [cell for cell in cells if methods(cell.row)[cell.series].method == "decomfl" and cell.rounds]
    if ours:
        longest = max(ours, key=lambda cell: cell.rounds)
        measured[f"bytes sent here / by the formula, {longest.rounds} rounds"] = longest.bytes / longest.formula
    return ClaimOutcome("llm.printed-costs", verdict_of(not off), measured)


def _lora_costs(cells: Sequence[CellResult]) -> ClaimOutcome:
    """FedZO's printed costs with LoRA over what LoRA's numbers need, and what LoRA sends here."""
    ratios = [
        cost / (1e12 * model_terabytes(R, LORA_PARAMETERS))
        for row, _, series, R, cost in printed_costs()
        if row.endswith(ADAPTED) and series == FEDZO
    ]
    measured: dict[str, float | None] = {
        "printed / for LoRA's numbers, least": min(ratios),
        "printed / for LoRA's numbers, most": max(ratios),
    }
    a_round = {cell.row: cell.bytes / cell.rounds for cell in cells if cell.series == FEDZO and cell.rounds}
    if {"OPT-125M", "OPT-125M" + ADAPTED} <= set(a_round):
        measured["FedZO's bytes a round here, LoRA / all parameters"] = (
            a_round["OPT-125M" + ADAPTED] / a_round["OPT-125M"]
        )
    near = all(abs(ratio - 1) < LIMITS.lora for ratio in ratios)
    return ClaimOutcome("llm.lora-costs", verdict_of(near), measured)
