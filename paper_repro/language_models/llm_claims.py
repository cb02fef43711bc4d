"""What the paper claims about fine-tuning language models, with verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import pandas as pd

from decomfl_lab.language.tasks import TASKS
from paper_repro.language_models.llm_cells import (
    ADAPTED,
    FEDZO,
    P5,
    P10,
    CellResult,
    M,
    methods,
    printed,
    printed_costs,
    results,
    task_title,
)
from paper_repro.workflow.claims import UNTESTED, ClaimOutcome, Verdict, judged, limits
from paper_repro.workflow.measures import TOLERANCE, verdict_of, verdict_of_gains, verdict_of_likeness
from paper_repro.workflow.scales import SCALES, TASK_ROWS
from theory.notation.printed import (
    EXAMPLES,
    LORA_PARAMETERS,
    MOST_FREQUENT,
    PARAMETERS,
    ROUNDS,
    agree,
    decomfl_megabytes,
    model_terabytes,
)

__all__ = ["claims"]

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
