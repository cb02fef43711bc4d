"""Language models fine-tuned to six tasks: the paper's Table 2, and its tables of settings (5) and of LoRA (6)."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pandas as pd

from decomfl_lab.language.corpus import BATCH as LINES
from decomfl_lab.language.tasks import TASKS
from decomfl_lab.protocol.wire import SCALAR_BYTES
from figures.finetuning import accuracies, round_costs
from figures.style import OKABE_ITO, method_styles
from paper_repro.language_models.language import pretraining
from paper_repro.workflow import manifest, recordings
from paper_repro.workflow.data import missing, task_facts
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import amount, caption, notes, printed, settings
from paper_repro.workflow.runs import Job
from paper_repro.workflow.scales import SCALES, TASK_ROWS, Scale, TaskTuning
from paper_repro.workflow.series import PATTERNS, configuration
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome
from paper_repro.workflow.verdicts.claim_verdicts import judged
from paper_repro.workflow.verdicts.measures import binomial_error
from theory.notation.printed import (
    EXAMPLES,
    LORA,
    LORA_PARAMETERS,
    MOST_FREQUENT,
    PARAMETERS,
    RESULTS,
    ROUNDS,
    agree,
    decomfl_megabytes,
    model_terabytes,
)

M, SAMPLED = 8, 2
TWO_WAY, ADAPTED = "-two-way", "+LoRA"
"""How a task's name ends in the authors' reading, and a row of the settings where LoRA is what is trained."""
FEDZO, P5, P10 = "FedZO", "DeComFL P=5", "DeComFL P=10"
ALL, LORA_WORDS = "all parameters", "LoRA: rank 8, α = 8, Q and V"
_BEFORE = ("zero-shot", "calibrated", "most frequent")


FULL, _LORA = printed("llm"), printed("lora")
"""{series: its column of the paper's tables of results}: method, the unit in bytes of its costs, P, place in a row."""


def methods(row: str) -> Mapping[str, SimpleNamespace]:
    """The columns of the table in which a row of the settings (a model, or model+LoRA) has its results."""
    return _LORA if row.endswith(ADAPTED) else FULL


def task_title(task: str) -> str:
    """The task as people call it, and which reading."""
    title = TASKS[task.removesuffix(TWO_WAY)].title
    return f"{title}, read two ways" if task.endswith(TWO_WAY) else title


# --- runs -------------------------------------------------------------------------------------------------------------


def jobs(options: Options) -> list[Job]:
    """A run for every cell; none where data or models are not available here."""
    if _missing(options.scale):
        return []
    size, pretrained = options.scale.llm, options.scale.pretrained
    runs = []
    cells = [(row, *cell) for row, tasks in size.settings.items() for cell in product(tasks, methods(row).items())]
    for row, task, (series, method) in cells:
        adapted = row.endswith(ADAPTED)
        tuning = (size.first_order if series == "FedAvg" else size.settings).get(row, {}).get(task)
        # What has no tuning is not run, and of P = 5 where all parameters are trained some tasks are enough.
        if tuning is None or (series == P5 and not adapted and task not in size.five):
            continue
        alone = {"estimator": "central", "batch_size": size.mezo_batch} if method.method == "mezo" else {}
        config = configuration(
            PATTERNS["llm"],
            {**vars(size), **tuning._asdict()},
            model=size.models[row.removesuffix(ADAPTED)],
            task=task.removesuffix(TWO_WAY),
            cb_two_way=task.endswith(TWO_WAY),
            max_length=0 if task == "sst2" else size.max_length,
            tune="lora" if adapted else "full",
            perturbations=method.P or 1,
            **alone,
        ).but(method.method)
        facts = task_facts(config.task)
        labels = {
            "row": row,
            "task": task,
            "series": series,
            "model": config.model,
            "examples": min(config.test_examples or facts.test, facts.test),
            "majority": facts.majority,
        }
        begins = pretraining(pretrained[config.model]) if config.model in pretrained else None
        runs.append(Job(config, labels, f"{row} {task}: {series}", begins))
    return runs


def _missing(scale: Scale) -> str:
    """What has to be done before the runs can be."""
    tasks = [task.removesuffix(TWO_WAY) for settings in scale.llm.settings.values() for task in settings]
    return missing(tasks, scale.llm.models.values(), scale.pretrained)


# --- cells ------------------------------------------------------------------------------------------------------------

TABLE: Final = (
    *("row", "task", "series", "model", "examples", "majority", "rounds", "d", "zero_shot", "calibrated_zero_shot"),
    *("accuracy", "calibrated", "bytes", "error", "gain", "gain_error", "formula", "printed_accuracy", "printed_bytes"),
)
"""The columns of ``results`` that its table shows."""
_MORE: Final = ("trained", "name", "paper_model", "start", "diverged", "a_round", "learnt", "ours", "by_length")


def in_print() -> pd.DataFrame:
    """The paper's cells: row, task, series, name; accuracy and that of always the same answer, in per cent; rounds.

    Also the cost in bytes (NaN where none is in print), DeComFL's formula in MB, and whether it is DeComFL's.
    """
    cells = []
    for row, task in product(ROUNDS, TASKS):
        task_row = TASK_ROWS[task]
        table = LORA if row.endswith(ADAPTED) else RESULTS[row]
        for series, method in methods(row).items():
            if method.column < 0:
                continue
            cell, R = table[task_row][method.column], ROUNDS[row][task_row]
            cells.append(
                {
                    "row": row,
                    "task": task,
                    "series": series,
                    "name": f"{task_title(task)}, {row}",
                    "accuracy": cell.accuracy,
                    "always": 100 * MOST_FREQUENT[task_row] / EXAMPLES[task_row],
                    "rounds": R,
                    "cost": math.nan if cell.cost is None else method.unit * cell.cost,
                    "formula": decomfl_megabytes(R, method.P),
                    "ours": method.method == "decomfl",
                }
            )
    return pd.DataFrame(cells)


def _costs() -> pd.DataFrame:
    """The cells with costs in print; FedAvg's rounds are not in print."""
    cells = in_print()
    return cells[cells.cost.notna() & (cells.series != "FedAvg")]


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
    if rows.empty:
        return pd.DataFrame(columns=[*TABLE, *_MORE])
    keys = ["row", "task", "series"]
    first, last = (runs.set_index(keys) for runs in (rows.groupby(keys).head(1), rows.groupby(keys).tail(1)))
    last = last.loc[first.index]
    of_fedzo = rows[(rows.series == FEDZO) & (rows["round"] > 0)].groupby("row").tail(1).set_index("row")
    d = of_fedzo.gradient_scalars / (2 * SAMPLED * of_fedzo["round"])  # the numbers that its m clients get and send
    diverged = last.diverged.astype(bool)
    cells = pd.DataFrame(
        {
            "model": last.model,
            "examples": last.examples.astype(int),
            "majority": last.majority,
            "rounds": last["round"].astype(int),
            "zero_shot": first.test_accuracy,
            "calibrated_zero_shot": first.calibrated_accuracy,
            "start": first[["test_accuracy", "calibrated_accuracy"]].max(axis=1),
            "accuracy": last.test_accuracy.mask(diverged),
            "calibrated": last.calibrated_accuracy.mask(diverged),
            "diverged": diverged,
            "bytes": 4 * last.wire_scalars,
        }
    ).reset_index()
    adapted = cells["row"].str.endswith(ADAPTED)
    cells["d"] = cells["row"].map(d)
    cells["trained"] = cells.model + np.where(adapted, ADAPTED, "")
    cells["name"] = cells.task.map(task_title) + ", " + cells.trained
    cells["paper_model"] = cells["row"].str.removesuffix(ADAPTED)
    error, at_start = (
        np.array([binomial_error(a, n) for a, n in zip(cells[name], cells.examples, strict=True)])
        for name in ("accuracy", "start")
    )
    cells = cells.assign(error=error, gain=cells.accuracy - cells.start, gain_error=np.hypot(error, at_start))
    cells["learnt"] = cells.accuracy - cells[["start", "majority"]].max(axis=1) > 2 * error
    cells["a_round"] = (cells.bytes / cells.rounds).where(cells.rounds > 0)
    formula, ours = [], []
    for row, series, R, d_of_row in cells[["row", "series", "rounds", "d"]].itertuples(index=False):
        method = methods(row)[series]
        ours.append(method.method == "decomfl" and R > 0)
        if method.method == "decomfl":
            formula.append(1e6 * decomfl_megabytes(R, method.P))
        else:
            formula.append(math.nan if method.method == "mezo" else 1e12 * model_terabytes(R, d_of_row))
    cells = cells.assign(formula=formula, ours=ours, by_length=-cells.rounds)
    paper = in_print().set_index(keys)[["accuracy", "cost"]]
    of_task = [*zip(cells["row"], cells.task.str.removesuffix(TWO_WAY), cells.series, strict=True)]
    paper = paper.reindex(pd.MultiIndex.from_tuples(of_task))
    return cells.assign(printed_accuracy=paper.accuracy.to_numpy() / 100, printed_bytes=paper.cost.to_numpy())


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(rows: pd.DataFrame, words: str) -> list[ClaimOutcome]:
    """The outcomes of the evaluations of the runs; without any only the paper's own arithmetic can be judged."""
    cells, costs, paper = results(rows), _costs(), in_print()
    paper = paper[paper.ours].assign(name=paper.name + ", " + paper.series, below=paper.always - paper.accuracy)
    off = np.array([not agree(cost, formula) for cost, formula in zip(costs.cost / 1e6, costs.formula, strict=True)])
    size = SCALES["full"].llm
    rounds = []  # FedAvg's rounds here to ours, by task and model
    for row, tunings in size.first_order.items():
        for task, tuning in tunings.items():
            if task in TASKS:  # the other reading of CB is none
                ratio = size.settings[row][task].rounds / tuning.rounds
                rounds.append({"name": f"{task_title(task)}, {row}", "ratio": ratio})
    # Every two cells of one task and model: their difference in accuracy, as of two sets of examples, and in bytes.
    column = cells.series + cells["row"].str.extract(r"(\+.*)$")[0].fillna("")
    placed = cells.assign(place=range(len(cells)), column=column)
    both = placed.merge(placed, on=["task", "paper_model"], suffixes=("", "_b"))
    both = both[both.place != both.place_b]
    across = np.where(both["row"] == both.row_b, "", " − " + both.trained_b)
    pairs = both.assign(
        pair=both.column + " − " + both.column_b,
        told=both.series + " − " + both.series_b + ", " + both.name + across,
        whole=~(both.diverged.astype(bool) | both.diverged_b.astype(bool)),
        learnt=both.learnt.astype(bool) | both.learnt_b.astype(bool),
        difference=both.accuracy - both.accuracy_b,
        error=(both.error**2 + both.error_b**2) ** 0.5,
        counted=(both.rounds > 0) & (both.rounds_b > 0) & (both.bytes_b > 0),
        ratio=both.a_round / both.a_round_b,
    )
    # Bytes a client of DeComFL in two rows of the settings, task by task, at the last round that both evaluated.
    columns = ["row", "task", "round", "wire_bytes"]
    ours = rows.loc[rows.series == P10, columns] if len(rows) else pd.DataFrame(columns=columns)
    ours = ours.assign(bytes=ours.wire_bytes / M)
    ours = ours.merge(cells.drop_duplicates("row", keep="last")[["row", "trained", "d"]], on="row")
    same = ours.merge(ours, on=["task", "round"], suffixes=("_one", "_other"))
    same = same[(same.row_one != same.row_other) & (same["round"] > 0)].sort_values("round")
    same = same.drop_duplicates(["task", "row_one", "row_other"], keep="last").sort_values(["round", "task"])
    sides = {f"{what}_{side}": f"{side}_{what}" for side in ("one", "other") for what in ("bytes", "trained", "d")}
    same = same.rename(columns={**sides, "row_one": "one", "row_other": "other", "round": "r"})
    frames = {
        "": pd.DataFrame(),
        "cells": cells,
        "pairs": pairs,
        # DeComFL's rounds in print over those that FedAvg's costs in print imply.
        "rounds": pd.DataFrame(rounds),
        # The paper's cells of DeComFL against always the same answer.
        "printed": paper.assign(is_below=paper.below >= 0),
        # Its costs in MB against DeComFL's formula, and in bytes against what LoRA's numbers need.
        "costs": costs.assign(
            printed=costs.cost / 1e6,
            off=costs.ours & off,
            printed_bytes=costs.cost,
            bytes=[1e12 * model_terabytes(R, LORA_PARAMETERS) for R in costs.rounds],
        ),
        # Of the tasks that were trained for longest one tells its bytes.
        "same": same.assign(
            title=same.task.map(task_title),
            apart=(same.one_bytes - same.other_bytes).abs(),
            longest=~same.duplicated(["one", "other"], keep="last"),
        ),
    }
    return judged("llm", words, frames)


# --- tables -----------------------------------------------------------------------------------------------------------


def _shown(accuracy: str, sent: str) -> str:
    """Accuracy (bytes), which a line may end between but not within."""
    return " ".join(part.replace(" ", "\u00a0") for part in (accuracy, f"({sent})" if sent else "") if part)


def wide_table(cells: pd.DataFrame) -> pd.DataFrame:
    """The tables as the paper has them, in per cent: a line for what was measured here and one for the paper's."""
    lines: list[dict[str, Any]] = []
    for (row, task), of_task in cells.groupby(["row", "task"], sort=False):
        first, adapted = of_task.iloc[0], str(row).endswith(ADAPTED)
        measured = {
            "task": task_title(str(task)) + (", LoRA" if adapted else ""),
            "model, rounds": f"{first.model}, {of_task.rounds.iloc[-1]:,}",
        }
        before = (first.zero_shot, first.calibrated_zero_shot, first.majority)
        measured |= {name: f"{100 * value:.1f}" for name, value in zip(_BEFORE, before, strict=True)}
        paper: dict[str, Any] = {"task": "the paper", "model, rounds": first.paper_model}
        for cell in of_task.to_dict("records"):
            series, accuracy, cost = cell["series"], cell["printed_accuracy"], cell["printed_bytes"]
            reached = f"{100 * cell['accuracy']:.1f} ± {100 * cell['error']:.1f}"
            sent = amount(cell["bytes"]) if cell["bytes"] else ""
            measured[series] = "diverged" if cell["diverged"] else _shown(reached, sent)
            unit = methods(str(row))[series].unit
            sent = "" if math.isnan(cost) else f"{cost / unit:.2f} {'MB' if unit == 1e6 else 'TB'}"
            paper[series] = None if math.isnan(accuracy) else _shown(f"{100 * accuracy:.2f}", sent)
        lines += [measured, paper]
    return pd.DataFrame(lines, columns=["task", "model, rounds", *_BEFORE, *FULL])


def scale_words(scale: Scale) -> str:
    """The scale in a line, for captions and claims."""
    size = scale.llm
    models = ", ".join(
        model if scale.name == "full" else f"{model} for {paper}" for paper, model in size.models.items()
    )
    rounds = []
    for row, tunings in size.settings.items():
        numbers = sorted(each.rounds for each in tunings.values())
        ends = dict.fromkeys((numbers[0], numbers[-1]))  # once if they are the same
        rounds.append(f"{row} {' to '.join(f'{value:,}' for value in ends)}")
    return scale.words("llm", told=models, rounds=", ".join(rounds))


def _told(tunings: Mapping[str, TaskTuning]) -> str:
    """η and R of each task."""
    texts = []
    for task, tuning in tunings.items():
        texts += [] if TWO_WAY in task else [f"{task_title(task)} {tuning.lr:g}, {tuning.rounds:,}"]
    return "; ".join(texts).replace("e-0", "e-") or "not run"


def _batches(settings: Mapping[str, Mapping[str, TaskTuning]]) -> str:
    """B, and of which tasks where it is not the same for all."""
    by_task: dict[str, int] = {}
    for row in settings.values():
        by_task |= {task_title(task): tuning.batch_size for task, tuning in row.items() if TWO_WAY not in task}
    if len(set(by_task.values())) == 1:
        return str(next(iter(by_task.values())))
    texts = []
    for B in dict.fromkeys(by_task.values()):
        texts.append(f"{', '.join(task for task in by_task if by_task[task] == B)}: {B}")
    return "; ".join(texts)


def settings_table(scale: Scale) -> pd.DataFrame:
    """What was run, beside what the paper's text (its table of settings) and the authors' scripts have."""
    size, full = scale.llm, SCALES["full"].llm
    texts = size.told(
        models=tuple(size.models.values()),
        papers={row: _told(tunings) for row, tunings in full.settings.items()},
        tuned={row: _told(size.settings.get(row, {})) for row in full.settings},
        first={row: _told(size.first_order.get(row, {})) for row in full.first_order},
        M=M,
        m=SAMPLED,
        batches=_batches(size.settings),
        first_order_batches=_batches(size.first_order),
        tokens=size.max_length or 2047,
        examples=size.test_examples or "the validation set",
    )
    return settings("llm", texts)


def engine_words() -> str:
    """What the paper's most rounds of OPT-1.3B cost a client on the wires of the engines that were measured."""
    manifest.check(recordings.RESULTS / "engines.json")
    record = json.loads((recordings.RESULTS / "engines.json").read_text(encoding="utf-8"))
    P = 10  # the paper's directions
    fewer, R = 2 * SCALAR_BYTES * (record["directions"] - P), max(ROUNDS["OPT-1.3B"].values())
    shown = [
        f"{row['engine']} {row['bytes']:,} bytes ({1e-6 * R * (row['bytes'] - fewer):.2f} MB)" for row in record["rows"]
    ]
    return caption("llm-engines", **record, P=P, fewer=fewer, R=R, engines=", by ".join(shown))


# --- the part ---------------------------------------------------------------------------------------------------------


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The tables, a picture of accuracies and one of costs, and the verdicts."""
    words = scale_words(options.scale)
    beside = settings_table(options.scale)
    if rows.empty:
        nothing = f"Not computed: {_missing(options.scale) or 'no rows'}."
        return made("llm", claims(rows, words), settings=beside, notes=[nothing, engine_words()])
    cells = results(rows)
    # What stands for the paper's models.
    recipes = []
    for size in options.scale.llm.models.values():
        if recipe := options.scale.pretrained.get(size):
            read = LINES * recipe.verdicts
            reviews = f" and {read:,} lines of film reviews (IMDb) with their verdicts" if read else ""
            recipes.append(f"{size}: {recipe.tokens:,} tokens of text{reviews}")
    models = "The models are the paper's, from the hub."
    if recipes:
        models = caption("llm-models", told="; ".join(recipes))
    styles = method_styles(list(FULL))
    styles = {**styles, P5: replace(styles[P5], color=OKABE_ITO[5])}
    # Bytes a client and round: measured, and the paper's cells at the d that is trained.
    sending = cells[(cells.bytes > 0) & (cells.series != "FedAvg")]
    costs = _costs()
    d = costs["row"].map({**PARAMETERS, **{row: LORA_PARAMETERS for row in ROUNDS if row.endswith(ADAPTED)}})
    costs = costs.assign(bytes=costs.cost / costs.rounds, d=d, printed=True)
    costs = pd.concat([sending.assign(bytes=sending.a_round, printed=False), costs])
    points = cells.assign(
        panel=cells.task.map(task_title) + np.where(cells.paper_model == "OPT-125M", "", " (" + cells.model + ")"),
        tuned=np.where(cells["row"].str.endswith(ADAPTED), LORA_WORDS, ALL),
        printed=cells.printed_accuracy,
    )
    figures = {
        "llm": partial(
            accuracies,
            points,
            styles,
            title="Accuracy after fine-tuning, and before",
            caption=caption("llm", scale=words),
        ),
        "llm-costs": partial(
            round_costs,
            costs,
            {FEDZO: (0.0, 8 * SAMPLED / M), P5: (60.0, 0.0), P10: (120.0, 0.0)},
            styles,
            title="What a client sends and gets in a round, against what is trained",
            caption=caption("llm-costs", d=LORA_PARAMETERS, scale=words),
        ),
    }
    return made(
        "llm",
        claims(rows, words),
        figures,
        {"llm": cells[list(TABLE)], "llm-curves": rows},
        more=["Bytes of one client in a round"],
        settings=beside,
        notes=[models, *notes("llm"), engine_words()],
        table=wide_table(cells),
        facts={
            "data": "; ".join(dict.fromkeys(str(each["data"]).rsplit("; ", 1)[0] for each in provenance)),
            "training time": f"{rows.groupby(['row', 'task', 'series']).seconds.max().sum() / 60:.1f} core-minutes",
        },
    )
