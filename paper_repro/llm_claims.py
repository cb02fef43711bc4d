"""What the paper claims about fine-tuning language models, with verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from decomfl_lab.language.tasks import TASKS
from paper_repro.claims import Claim, Verdict
from paper_repro.llm_cells import (
    ADAPTED,
    FEDZO,
    P5,
    P10,
    M,
    Result,
    methods,
    printed,
    printed_costs,
    results,
    task_title,
)
from paper_repro.measures import verdict_of_countings, verdict_of_gains, verdict_of_likeness
from paper_repro.scales import TASK_ROWS
from theory.printed import (
    EXAMPLES,
    LORA_PARAMETERS,
    MOST_FREQUENT,
    ROUNDS,
    agree,
    decomfl_megabytes,
    model_terabytes,
)

__all__ = ["claims"]

FIVE = 0.05
DRAMATIC = 100.0
"""What "dramatically lower" has to be at least."""

_Columns = tuple[str, str]
"""A column of results: the end of the row's name ("" or +LoRA), and the series."""


def claims(rows: pd.DataFrame, words: str) -> list[Claim]:
    """The statements, judged on the evaluations of the runs; without any only the paper's own arithmetic can be."""
    cells = results(rows)
    trained = [cell for cell in cells if not cell.diverged]
    return [
        _gain(trained, words),
        _five_points(trained, words),
        _alike(
            trained,
            words,
            id="llm.mezo",
            claim="DeComFL (P = 10) can match or even excel MeZO (judged: on no task less accurate)",
            source="Section 5, Table 2",
            pairs=[(("", P10), ("", "MeZO"))],
            or_better=True,
        ),
        _alike(
            trained,
            words,
            id="llm.fedzo",
            claim="With the same P, DeComFL and FedZO are almost the same in accuracy",
            source="Section 5, Table 2; LoRA table",
            pairs=[(("", P10), ("", FEDZO)), ((ADAPTED, P5), (ADAPTED, FEDZO))],
            or_better=False,
        ),
        _alike(
            trained,
            words,
            id="llm.directions",
            claim="P = 10 is at least as accurate as P = 5",
            source="LoRA table, last two columns",
            pairs=[(("", P10), ("", P5)), ((ADAPTED, P10), (ADAPTED, P5))],
            or_better=True,
        ),
        _alike(
            trained,
            words,
            id="llm.lora",
            claim="With LoRA, accuracy is comparable to that of full-parameter MeZO and DeComFL (judged: not below)",
            source="Appendix, LoRA table",
            pairs=[((ADAPTED, P10), ("", P10)), ((ADAPTED, P10), ("", "MeZO"))],
            or_better=True,
        ),
        _first_order(trained, words),
        _saving(cells, words),
        _same_cost(
            rows,
            cells,
            words,
            id="llm.dimension-free",
            claim="DeComFL's cost is the same for models of different sizes (judged: at equal rounds, to the byte)",
            source="Section 5, Table 2",
            pair=("OPT-125M", "OPT-1.3B"),
        ),
        _same_cost(
            rows,
            cells,
            words,
            id="llm.peft",
            claim="With LoRA DeComFL's cost stays the same if the rounds do (judged: at equal rounds, to the byte)",
            source="Appendix, LoRA table",
            pair=("OPT-125M", "OPT-125M+LoRA"),
        ),
        _printed_accuracies(words),
        _printed_costs(cells, words),
        _lora_costs(cells, words),
    ]


# --- accuracy ---------------------------------------------------------------------------------------------------------


def _gain(trained: Sequence[Result], words: str) -> Claim:
    gains = {cell.name: cell.gain for cell in trained if cell.series == P10}
    return Claim(
        id="llm.gain",
        claim="DeComFL (P = 10) lifts accuracy above zero-shot and calibrated zero-shot on every task",
        source="this project's: Table 2 does not say what the models know before",
        verdict=verdict_of_gains(list(gains.values())),
        measured={f"gain, {name}": value for name, (value, _) in gains.items()},
        scale=words,
    )


def _five_points(trained: Sequence[Result], words: str) -> Claim:
    verdict: Verdict = "not tested at this scale"
    measured: dict[str, float | None] = {}
    for cell in trained:
        if (cell.row, cell.task, cell.series) == ("OPT-125M", "sst2", P10):
            gain, error = cell.gain
            measured = {"before": cell.start, "after": cell.accuracy, "gain": gain, "its standard error": error}
            if gain >= FIVE and gain > 2 * error:
                verdict = "holds"
            elif gain < FIVE - 2 * error:
                verdict = "does not hold"
    return Claim(
        id="llm.five-points",
        claim="On SST-2 DeComFL (P = 10) gains at least 5 points over zero-shot and calibrated zero-shot",
        source="this project's, for small models",
        verdict=verdict,
        measured=measured,
        scale=words,
    )


def _pairs(trained: Sequence[Result], pairs: Sequence[tuple[_Columns, _Columns]]) -> Iterator[tuple[Result, Result]]:
    """Cells of the two columns for the same task and model."""
    found = {(cell.row, cell.task, cell.series): cell for cell in trained}
    for (end, series), (other_end, other) in pairs:
        for cell in trained:
            against = found.get((cell.paper_model + other_end, cell.task, other))
            if cell.row == cell.paper_model + end and cell.series == series and against is not None:
                yield cell, against


def _differences(pairs: Sequence[tuple[Result, Result]]) -> list[tuple[float, float]]:
    """Accuracy of the first less that of the second, with a standard error as of two sets of examples."""
    return [(a.accuracy - b.accuracy, (a.error**2 + b.error**2) ** 0.5) for a, b in pairs]


def _told(pairs: Sequence[tuple[Result, Result]]) -> dict[str, float | None]:
    return {
        f"{a.series} − {b.series}, {a.name}" + ("" if a.row == b.row else f" − {b.row}"): value
        for (a, b), (value, _) in zip(pairs, _differences(pairs), strict=True)
    }


def _alike(
    trained: Sequence[Result],
    words: str,
    *,
    id: str,  # noqa: A002 (of Claim)
    claim: str,
    source: str,
    pairs: Sequence[tuple[_Columns, _Columns]],
    or_better: bool,
) -> Claim:
    """A statement that one column is like another, judged on the tasks on which either of them has learnt something."""
    found = list(_pairs(trained, pairs))
    judged = [(a, b) for a, b in found if a.learnt or b.learnt]
    return Claim(
        id=id,
        claim=claim,
        source=source,
        verdict=verdict_of_likeness(_differences(judged), or_better=or_better),
        measured={"pairs of cells": len(found), "judged: something was learnt": len(judged), **_told(judged)},
        scale=words,
    )


def _first_order(trained: Sequence[Result], words: str) -> Claim:
    found = list(_pairs(trained, [(("", "FedAvg"), ("", P10))]))
    return Claim(
        id="llm.first-order",
        claim="FedAvg with first-order steps is more accurate than DeComFL (all cells but SST-2 of OPT-1.3B)",
        source="Table 2",
        verdict=verdict_of_gains(_differences(found)),
        measured=_told(found),
        scale=words,
    )


def _printed_accuracies(words: str) -> Claim:
    """The paper's cells of DeComFL against always the same answer; no run is needed."""
    cells = [
        (row, task, series, printed(row, task, series))
        for row in ROUNDS
        for task in TASKS
        for series, method in methods(row).items()
        if method.method == "decomfl"
    ]
    accuracies = [(row, task, series, cell.accuracy) for row, task, series, cell in cells if cell is not None]
    below: dict[str, float | None] = {}
    for row, task, series, accuracy in accuracies:
        name = TASK_ROWS[task]
        always = 100 * MOST_FREQUENT[name] / EXAMPLES[name]
        if accuracy <= always:
            below[f"{task_title(task)}, {row}, {series}: below by"] = always - accuracy
    return Claim(
        id="llm.printed-accuracies",
        claim="Every accuracy in print of DeComFL is above that of always the most frequent answer (in points)",
        source="this project's reading of Table 2 and the LoRA table",
        verdict=verdict_of_countings([not below]),
        measured={"cells": len(accuracies), "cells below": len(below), **below},
        scale=words,
    )


# --- cost -------------------------------------------------------------------------------------------------------------


def _saving(cells: Sequence[Result], words: str) -> Claim:
    """FedZO's bytes a round over DeComFL's with the same P."""
    found = [
        (a, b)
        for a, b in _pairs(cells, [(("", FEDZO), ("", P10)), ((ADAPTED, FEDZO), (ADAPTED, P5))])
        if a.rounds and b.rounds
    ]
    least: dict[str, float] = {}
    for a, b in found:
        ratio = (a.bytes / a.rounds) / (b.bytes / b.rounds)
        least[a.row] = min(ratio, least.get(a.row, ratio))
    return Claim(
        id="llm.saving",
        claim=f"DeComFL's cost is dramatically lower than FedZO's (judged: {DRAMATIC:g} times, at equal rounds and P)",
        source="Section 5, Table 2",
        verdict=verdict_of_countings([min(least.values()) >= DRAMATIC]) if least else "not tested at this scale",
        measured={
            **{f"FedZO / DeComFL, {row}, least of its tasks": ratio for row, ratio in least.items()},
            "as printed for OPT-125M and SST-2": 0.75e12 / 0.36e6,
        },
        scale=words,
    )


def _same_cost(
    rows: pd.DataFrame,
    cells: Sequence[Result],
    words: str,
    *,
    id: str,  # noqa: A002 (of Claim)
    claim: str,
    source: str,
    pair: tuple[str, str],
) -> Claim:
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
        measured["tasks compared"] = len(found)
        measured |= {
            f"bytes a client in {r} rounds of {task_title(task)}, {row}": count
            for row, count in zip(pair, counts, strict=True)
        }
        measured |= {f"d, {cell.row}": None if math.isnan(cell.d) else cell.d for cell in cells if cell.row in pair}
    return Claim(
        id=id,
        claim=claim,
        source=source,
        verdict=verdict_of_countings([all(a == b for _, _, a, b in found)]) if found else "not tested at this scale",
        measured=measured,
        scale=words,
    )


def _printed_costs(cells: Sequence[Result], words: str) -> Claim:
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
    return Claim(
        id="llm.printed-costs",
        claim="DeComFL's costs in print are R·P·12 bytes for the rounds of the settings, in every cell",
        source="Tables 2 and 5, LoRA table",
        verdict=verdict_of_countings([not off]),
        measured=measured,
        scale=words,
    )


def _lora_costs(cells: Sequence[Result], words: str) -> Claim:
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
    return Claim(
        id="llm.lora-costs",
        claim="FedZO communicates 0.11 to 0.66 TB with LoRA (judged: within a tenth of R·(m/M)·8d with LoRA's d)",
        source="Appendix, LoRA table",
        verdict=verdict_of_countings([all(abs(ratio - 1) < 0.1 for ratio in ratios)]),
        measured=measured,
        scale=words,
    )
