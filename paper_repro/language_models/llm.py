"""Language models fine-tuned to six tasks: the paper's Table 2, and its tables of settings (5) and of LoRA (6)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, product
from typing import Any

import pandas as pd

from decomfl_lab.protocol.wire import SCALAR_BYTES
from figures.finetuning import accuracies, round_costs
from figures.style import OKABE_ITO, method_styles
from paper_repro.language_models.language import pretraining
from paper_repro.language_models.llm_claims import (
    ADAPTED,
    FEDZO,
    FULL,
    P5,
    P10,
    SAMPLED,
    TABLE,
    TWO_WAY,
    M,
    claims,
    methods,
    one_by_one,
    printed_costs,
    results,
    task_title,
)
from paper_repro.pretraining.corpus import BATCH as LINES
from paper_repro.workflow import manifest, recorded
from paper_repro.workflow.data import missing, task_facts
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.report import Section, amount, caption, notes, settings
from paper_repro.workflow.runs import Job
from paper_repro.workflow.scales import SCALES, Scale, TaskTuning
from paper_repro.workflow.series import PATTERNS, configuration
from theory.notation.printed import LORA_PARAMETERS, PARAMETERS, ROUNDS

__all__ = ["claims", "jobs", "make", "settings_table", "wide_table"]

ALL, LORA_WORDS = "all parameters", "LoRA: rank 8, α = 8, Q and V"
_BEFORE = ("zero-shot", "calibrated", "most frequent")


# --- runs -------------------------------------------------------------------------------------------------------------


def jobs(options: Options) -> list[Job]:
    """A run for every cell; none where data or models are not available here."""
    if _missing(options.scale):
        return []
    size, pretrained = options.scale.llm, options.scale.pretrained
    found = []
    cells = chain.from_iterable(product([row], own, methods(row)) for row, own in size.settings.items())
    for row, task, series in cells:
        adapted, method = row.endswith(ADAPTED), methods(row)[series]
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
        found.append(Job(config, labels, f"{row} {task}: {series}", begins))
    return found


def _missing(scale: Scale) -> str:
    """What has to be done before the runs can be."""
    tasks = [task.removesuffix(TWO_WAY) for own in scale.llm.settings.values() for task in own]
    return missing(tasks, scale.llm.models.values(), scale.pretrained)


# --- tables -----------------------------------------------------------------------------------------------------------


def _shown(accuracy: str, sent: str) -> str:
    """Accuracy (bytes), which a line may end between but not within."""
    return " ".join(part.replace(" ", "\u00a0") for part in (accuracy, f"({sent})" if sent else "") if part)


def wide_table(cells: pd.DataFrame) -> pd.DataFrame:
    """The tables as the paper has them, in per cent: a line for what was measured here and one for the paper's."""
    lines: list[dict[str, Any]] = []
    for _, group in groupby(one_by_one(cells), key=lambda cell: (cell.row, cell.task)):
        own = list(group)
        first = own[0]
        tuned = ", LoRA" if first.row.endswith(ADAPTED) else ""
        before = (first.zero_shot, first.calibrated_zero_shot, first.majority)
        lines.append(
            {
                "task": task_title(first.task) + tuned,
                "model, rounds": f"{first.model}, {own[-1].rounds:,}",
                **{name: f"{100 * value:.1f}" for name, value in zip(_BEFORE, before, strict=True)},
            }
        )
        paper: dict[str, Any] = {"task": "the paper", "model, rounds": first.paper_model}
        for cell in own:
            sent = amount(cell.bytes) if cell.bytes else ""
            reached = f"{100 * cell.accuracy:.1f} ± {100 * cell.error:.1f}"
            lines[-1][cell.series] = "diverged" if cell.diverged else _shown(reached, sent)
            accuracy, cost = cell.printed_accuracy, cell.printed_bytes
            unit = methods(cell.row)[cell.series].unit
            sent = "" if math.isnan(cost) else f"{cost / unit:.2f} {'MB' if unit == 1e6 else 'TB'}"
            printed = _shown(f"{100 * accuracy:.2f}", sent)
            paper[cell.series] = None if math.isnan(accuracy) else printed
        lines.append(paper)
    return pd.DataFrame(lines, columns=["task", "model, rounds", *_BEFORE, *FULL])


def scale_words(scale: Scale) -> str:
    """The scale in a line, for captions and claims."""
    size = scale.llm
    models = ", ".join(
        model if scale.name == "full" else f"{model} for {paper}" for paper, model in size.models.items()
    )
    rounds = []
    for row, own in size.settings.items():
        numbers = sorted(each.rounds for each in own.values())
        ends = dict.fromkeys((numbers[0], numbers[-1]))  # once if they are the same
        rounds.append(f"{row} {' to '.join(f'{value:,}' for value in ends)}")
    return scale.words("llm", told=models, rounds=", ".join(rounds))


def _told(tunings: Mapping[str, TaskTuning]) -> str:
    """η and R of each task."""
    told = [f"{task_title(task)} {each.lr:g}, {each.rounds:,}" for task, each in tunings.items() if TWO_WAY not in task]
    return "; ".join(told).replace("e-0", "e-") or "not run"


def _batches(settings: Mapping[str, Mapping[str, TaskTuning]]) -> str:
    """B, and of which tasks where it is not the same for all."""
    of: dict[str, int] = {}
    for row in settings.values():
        of |= {task_title(task): each.batch_size for task, each in row.items() if TWO_WAY not in task}
    if len(set(of.values())) == 1:
        return str(next(iter(of.values())))
    return "; ".join(f"{', '.join(t for t in of if of[t] == B)}: {B}" for B in dict.fromkeys(of.values()))


def _models_words(scale: Scale) -> str:
    """What stands for the paper's models."""
    told = []
    for size in scale.llm.models.values():
        if own := scale.pretrained.get(size):
            read = LINES * own.verdicts
            reviews = f" and {read:,} lines of film reviews (IMDb) with their verdicts" if read else ""
            told.append(f"{size}: {own.tokens:,} tokens of text{reviews}")
    if not told:
        return "The models are the paper's, from the hub."
    return (
        "The models are small ones of OPT's architecture, pretrained here (examples/pretrain.py) on public text that "
        f"no task is made of ({'; '.join(told)}): the numbers beside the paper's are those of other models."
    )


def settings_table(scale: Scale) -> pd.DataFrame:
    """What was run, beside what the paper's text (its table of settings) and the authors' scripts have."""
    size, full = scale.llm, SCALES["full"].llm
    told = size.told(
        models=tuple(size.models.values()),
        papers={row: _told(own) for row, own in full.settings.items()},
        tuned={row: _told(size.settings.get(row, {})) for row in full.settings},
        first={row: _told(size.first_order.get(row, {})) for row in full.first_order},
        M=M,
        m=SAMPLED,
        batches=_batches(size.settings),
        first_order_batches=_batches(size.first_order),
        tokens=size.max_length or 2047,
        examples=size.test_examples or "the validation set",
    )
    return settings("llm", told)


def engine_words() -> str:
    """What the paper's most rounds of OPT-1.3B cost a client on the wires of the engines that were measured."""
    manifest.check(recorded.RESULTS / "engines.json")
    found = json.loads((recorded.RESULTS / "engines.json").read_text(encoding="utf-8"))
    P = 10  # the paper's directions
    fewer, R = 2 * SCALAR_BYTES * (found["directions"] - P), max(ROUNDS["OPT-1.3B"].values())
    shown = [
        f"{row['engine']} {row['bytes']:,} bytes ({1e-6 * R * (row['bytes'] - fewer):.2f} MB)" for row in found["rows"]
    ]
    return (
        f"Bytes by engine, beside the paper's “about 1 MB”. {found['about']} In brackets: the same with P = {P}, by "
        f"which {fewer} bytes fewer travel, for the paper's {R:,} rounds of OPT-1.3B. By {', by '.join(shown)}. "
        f"Measured on {found['date']} ({found['machine']})."
    )


# --- the part ---------------------------------------------------------------------------------------------------------


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The tables, a picture of accuracies and one of costs, and the verdicts."""
    words = scale_words(options.scale)
    beside = settings_table(options.scale)
    if rows.empty:
        nothing = Section(
            id="llm",
            settings=beside,
            notes=[f"Not computed: {_missing(options.scale) or 'no rows'}.", engine_words()],
        )
        return Made(section=nothing, claims=claims(rows, words))
    cells = results(rows)
    styles = method_styles(list(FULL))
    styles = {**styles, P5: replace(styles[P5], color=OKABE_ITO[5])}
    # Bytes a client and round: measured, and the paper's cells at the d that is trained.
    made = cells[(cells.bytes > 0) & (cells.series != "FedAvg")]
    ours = [(cell.series, cell.d, cell.a_round, False) for cell in one_by_one(made)]
    theirs = [
        (series, LORA_PARAMETERS if row.endswith(ADAPTED) else PARAMETERS[row], cost / R, True)
        for row, _, series, R, cost in printed_costs()
    ]
    costs = pd.DataFrame([*ours, *theirs], columns=["series", "d", "bytes", "printed"])
    of_model = ["" if cell.paper_model == "OPT-125M" else f" ({cell.model})" for cell in one_by_one(cells)]
    points = cells.assign(
        panel=cells.task.map(task_title) + of_model,
        tuned=[LORA_WORDS if row.endswith(ADAPTED) else ALL for row in cells["row"]],
        printed=cells.printed_accuracy,
    )
    figures = {
        "llm": accuracies(
            points,
            styles,
            title="Accuracy after fine-tuning, and before",
            caption=caption("llm", scale=words),
        ),
        "llm-costs": round_costs(
            costs,
            {FEDZO: (0.0, 8 * SAMPLED / M), P5: (60.0, 0.0), P10: (120.0, 0.0)},
            styles,
            title="What a client sends and gets in a round, against what is trained",
            caption=caption("llm-costs", d=LORA_PARAMETERS, scale=words),
        ),
    }
    section = Section(
        id="llm",
        figure=figures["llm"],
        settings=beside,
        notes=[_models_words(options.scale), *notes("llm"), engine_words()],
        table=wide_table(cells),
        facts={
            "data": "; ".join(dict.fromkeys(str(each["data"]).rsplit("; ", 1)[0] for each in provenance)),
            "training time": f"{rows.groupby(['row', 'task', 'series']).seconds.max().sum() / 60:.1f} core-minutes",
        },
        more_figures={"Bytes of one client in a round": figures["llm-costs"]},
    )
    tables = {"llm": cells[list(TABLE)], "llm-curves": rows}
    return Made(section=section, claims=claims(rows, words), figures=figures, tables=tables)
