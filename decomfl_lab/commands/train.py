"""``decomfl train``: one run of any method on any model and data set."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer

from decomfl_lab.commands.progress import RunBar
from decomfl_lab.config import TrainConfig, config_from_mapping, is_schedule, parse_schedule, read_config
from decomfl_lab.data import load_dataset
from decomfl_lab.errors import require_int
from decomfl_lab.training import provenance
from decomfl_lab.training import train as run

__all__ = ["train"]

Command = Callable[..., None]


def _with_config_flags(command: Command) -> Command:
    """Give ``command(config_values, ...)`` one flag for each field of TrainConfig, help from the field."""
    own = inspect.signature(command, eval_str=True)
    flags = []
    for field in dataclasses.fields(TrainConfig):
        kind = str if is_schedule(field) else type(field.default)
        shown = "none" if is_schedule(field) else str(field.default)
        option = typer.Option(help=f"{field.metadata['help']} [default: {shown}]", show_default=False)
        flags.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind | None, option],
            )
        )
    kept = [p for p in own.parameters.values() if p.name != "flags"]

    def wrapper(**values: Any) -> None:
        names = {flag.name for flag in flags}
        given = {k: v for k, v in values.items() if k in names and v is not None}
        command(given, **{k: v for k, v in values.items() if k not in names})

    wrapper.__signature__ = inspect.Signature([*flags, *kept])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in (*flags, *kept)}
    wrapper.__doc__ = command.__doc__
    wrapper.__name__ = command.__name__
    return wrapper


def _train(
    flags: dict[str, Any],
    *,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of these flags as keys (flags win over it).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for metrics.csv, config.toml, provenance.json and a checkpoint; resumes."),
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads of torch. [default: 1]", show_default=False)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Train one model with one method and print its evaluations.

    Every run repeats bit for bit from --seed. With --out an interrupted run resumes, and a finished one can
    be prolonged with a larger --rounds. Underscores in TOML keys: local_steps = 4.
    """
    values = read_config(config) if config is not None else {}
    for name, text in flags.items():
        values[name] = parse_schedule(name, text) if name.endswith("_schedule") else text
    run_config = config_from_mapping(values, f"config {config}" if config else "the flags")
    torch.set_num_threads(require_int("threads", threads, 1))
    dataset = load_dataset(run_config.data)
    with RunBar(f"{run_config.method} K={run_config.local_steps} P={run_config.perturbations}") as bar:
        rows = run(run_config, dataset=dataset, out=out, on_round=bar.update)
    facts = provenance(dataset)
    if as_json:
        result = {"config": run_config.to_dict(), "provenance": facts, "metrics": rows.to_dict("records")}
        print(json.dumps(result))
    else:
        print(_table(rows))
        print(f"data: {facts['data']}; seed {run_config.seed}; code {facts['code']}")
        if out is not None:
            print(f"written to {out}", file=sys.stderr)


def _table(rows: pd.DataFrame) -> str:
    columns = ["round", "train_loss", "test_loss", "test_accuracy", "wire_scalars", "drift", "seconds"]
    shown = rows[[column for column in columns if column in rows]]  # drift: only where replicas do
    return shown.rename(columns={"wire_scalars": "scalars/client"}).to_string(
        index=False, float_format=lambda v: f"{v:.4g}" if abs(v) < 1000 else f"{v:.0f}"
    )


train = _with_config_flags(_train)
