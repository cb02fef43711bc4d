"""``decomfl runs``: the runs in folders, side by side."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decomfl_lab.cli.command import command
from decomfl_lab.errors import brief, printable
from decomfl_lab.options import option
from decomfl_lab.runs.folder import COLUMNS, FoundRun, found_runs
from decomfl_lab.storage.json_values import print_json

SHOWN = ("folder", "method", "data", "model", "d", "K", "P", "η", "rounds", "accuracy", "loss", "kB/client", "state")


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """The options of ``decomfl runs``."""

    folders: tuple[Path, ...] = option((), "", argument=True)
    sort: str = option("folder", f"The column to sort by: {', '.join(SHOWN)}.", choices=tuple(SHOWN))
    columns: bool = option(False, "Say what the columns of metrics.csv are.")
    as_json: bool = option(False, "Print one JSON list on stdout.", flag="--json")


@command
def runs(options: RunsOptions) -> None:
    """List the runs in folders: settings, state and last values.

    FOLDERS are searched, with all folders in them; without any, the folder runs, or else the one you are in. A run is
    finished; interrupted (the same command goes on); running; diverged; without a checkpoint; or damaged.

      decomfl runs
      decomfl runs runs/a runs/b --sort accuracy
      decomfl runs --columns              what the columns of metrics.csv are

    K are local steps, P directions, η the learning rate, d parameters; kB/client is what a client sent and
    received, mean over all.
    """
    if options.columns:
        width = max(map(len, COLUMNS))
        if options.as_json:
            print_json(COLUMNS)
        else:
            print("\n".join(f"{k:<{width}}  {v}" for k, v in COLUMNS.items()))
        return
    listed = found_runs(where(options.folders))
    listed.sort(key=lambda run: _place(_row(run)[options.sort]))
    rows = list(map(_row, listed))
    if options.as_json:
        print_json([row | {"remark": run.remark} for row, run in zip(rows, listed, strict=True)])
    else:
        table = [SHOWN, *(tuple(map(_cell, row, row.values())) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in table)
        print("\n".join(lines) if rows else "no runs here; decomfl train --out runs/first makes one")
    for run in listed:
        if run.trouble:
            print(f"damaged: {printable(run.trouble)}", file=sys.stderr)
        if run.remark:
            print(printable(f"{run.folder}: {run.remark}"), file=sys.stderr)


def where(folders: Sequence[Path]) -> list[Path]:
    """The folders that were named, or else runs, or else the one we are in."""
    return list(folders) or [Path("runs") if Path("runs").is_dir() else Path()]


def _row(run: FoundRun) -> dict[str, Any]:
    """The row of a run, None where something is not known."""
    config, last = run.config, run.last
    accuracy, loss, sent = (last.get(name, math.nan) for name in ("test_accuracy", "test_loss", "wire_scalars"))
    # The rule and the lie too, where there is another than usual, as they tell runs apart.
    shown = map(config.get, ("method", "aggregation", "attack"))
    cells = {
        "folder": str(run.folder),
        "method": ", ".join(str(value) for value in shown if value not in (None, "mean", "none")) or None,
        "data": config.get("task") or config.get("data"),
        "model": config.get("model"),
        "d": run.d,
        "K": config.get("local_steps"),
        "P": config.get("perturbations"),
        "η": config.get("lr"),
        "rounds": [run.round, config.get("rounds")],
        "accuracy": accuracy,
        "loss": loss,
        "kB/client": 4 * sent / 1e3,
        "state": run.state,
    }
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in cells.items()}


def _place(value: Any) -> tuple[int, float, str]:
    """Where a value comes in its column: numbers, then words, then what is not known."""
    first = value[0] if isinstance(value, list) and value else value
    is_number = isinstance(first, int | float)
    return 2 * (first is None) + (isinstance(first, str)), first if is_number else 0.0, str(first)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "rounds":
        return "/".join("?" if part is None else brief(printable(str(part))) for part in value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else brief(printable(str(value)))
