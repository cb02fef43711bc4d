"""``decomfl train``: one run of any method on any model and data set."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer

from decomfl_lab.cli.flags import flag, with_flags
from decomfl_lab.cli.progress import RunBar
from decomfl_lab.errors import require_int
from decomfl_lab.methods.decomfl import DeComFLFederation
from decomfl_lab.methods.federation import Federation
from decomfl_lab.runs.config import TrainConfig, config_from_mapping, is_schedule, parse_schedule, read_config
from decomfl_lab.runs.training import dataset_of, provenance
from decomfl_lab.runs.training import train as run

__all__ = ["train"]


def _config_flags() -> Iterator[inspect.Parameter]:
    """One flag for each field of TrainConfig, help from the field."""
    for field in dataclasses.fields(TrainConfig):
        kind = str if is_schedule(field) else type(field.default)
        shown = "none" if is_schedule(field) else str(field.default)
        yield flag(field.name, kind, help=f"{field.metadata['help']} [default: {shown}]", show_default=False)


def _train(
    flags: dict[str, Any],
    *,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of these flags as keys (flags win over it).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for metrics.csv, config.toml, provenance.json and a checkpoint; resumes. "
            "Ctrl-C saves the round under way, twice does not wait for it."
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="Where models and data are and losses are computed: cpu, cuda (a GPU) or auto (a GPU where there is "
            "one). Records give the same bits on each. [default: cpu]",
            show_default=False,
        ),
    ] = "cpu",
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
    dataset = dataset_of(run_config, device)
    rebuilt: list[bool] = []

    def compare(federation: Federation) -> None:
        """Whether each lagging client, brought up to date, has the bits of the model that is evaluated.

        As many replays as M/m rounds make; so not where they are spared (rebuild copy).
        """
        replays = run_config.rebuild == "replay" and run_config.revert == "snapshot"
        if isinstance(federation, DeComFLFederation) and replays:
            expected = federation.observer.digest()
            rebuilt.extend(digest == expected for digest in federation.rebuilt().values())

    with RunBar(f"{run_config.method} K={run_config.local_steps} P={run_config.perturbations}") as bar:
        rows = run(run_config, dataset=dataset, out=out, on_round=bar.update, on_start=_tell_start, on_end=compare)
    facts = provenance(dataset)
    if as_json:
        result = {"config": run_config.to_dict(), "provenance": facts, "metrics": _records(rows)}
        if rebuilt:
            result["rebuilt"] = {"clients": len(rebuilt), "equal": sum(rebuilt)}
        print(json.dumps(result))
    else:
        print(_table(rows))
        print("\n".join(_summary(rows, run_config.clients, rebuilt)))
        print(f"data: {facts['data']}; seed {run_config.seed}; code {facts['code']}")
        if out is not None:
            print(f"written to {out}", file=sys.stderr)


def _tell_start(row: dict[str, float]) -> None:
    """What a task's model can do before it is trained, as soon as it is known (the table has it too)."""
    plain, calibrated = row["test_accuracy"], row["calibrated_accuracy"]
    print(f"zero-shot accuracy {plain:.4f}, calibrated {calibrated:.4f}", file=sys.stderr, flush=True)


def _summary(rows: pd.DataFrame, clients: int, rebuilt: list[bool]) -> Iterator[str]:
    """What a run came to, in lines."""
    first, last = rows.iloc[0], rows.iloc[-1]
    if first["round"] == 0:
        gain = 100 * (last.test_accuracy - first.test_accuracy)
        yield f"accuracy: {first.test_accuracy:.4f} zero-shot, {last.test_accuracy:.4f} now ({gain:+.1f} points)"
    up, down = (1e-3 * count / clients for count in (last.up_bytes, last.wire_bytes - last.up_bytes))
    yield f"wire: {up + down:,.2f} kB a client, {up:,.2f} of them up (mean over the {clients})"
    if rebuilt:
        equal = f"{sum(rebuilt)} of {len(rebuilt)} clients"
        yield f"rebuilt: {equal}, brought up to date by the records they missed, hold the global model bit for bit"


def _records(rows: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """The rows for JSON, which has no NaN: null where nothing was measured."""
    return rows.astype(object).where(rows.notna(), None).to_dict("records")


def _table(rows: pd.DataFrame) -> str:
    columns = ["round", "train_loss", "test_loss", "test_accuracy", "calibrated_accuracy", "wire_scalars", "drift"]
    shown = rows[[column for column in [*columns, "seconds"] if column in rows]]  # some only where they are measured
    return shown.rename(columns={"wire_scalars": "scalars/client"}).to_string(
        index=False, float_format=lambda v: f"{v:.4g}" if abs(v) < 1000 else f"{v:.0f}"
    )


train = with_flags(_train, list(_config_flags()))
