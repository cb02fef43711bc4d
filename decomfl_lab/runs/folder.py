"""The folder of a run: its files, the columns of its table, and what can be said of it without torch."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decomfl_lab.checkpoint import read_values
from decomfl_lab.errors import InputError, require
from decomfl_lab.files import LOCK_FILE, is_held
from decomfl_lab.runs.config import read_config

__all__ = [
    "CHECKPOINT_FILE",
    "COLUMNS",
    "CONFIG_FILE",
    "LOG_FILE",
    "METRICS",
    "METRICS_FILE",
    "Found",
    "found_runs",
    "looked_at",
    "read_rows",
]

METRICS_FILE = "metrics.csv"
CHECKPOINT_FILE = "checkpoint.safetensors"
CONFIG_FILE = "config.toml"
LOG_FILE = "run.dcl"

_EVERY = {
    "round": "The number of rounds completed.",
    "test_accuracy": "The share of held-out examples that are classified right; empty where there are no classes.",
    "test_loss": "The mean loss on the held-out examples.",
    "train_loss": "The mean loss of the clients' batches over the rounds since the last row.",
    "wire_scalars": "The bytes a client sent and got so far, divided by 4, mean over all clients.",
    "wire_bytes": "The bytes that all clients together sent and got so far.",
    "up_bytes": "Those of wire_bytes that went from clients to the server.",
    "gradient_scalars": "The scalars g, or numbers of a model's update, that were sent so far, both ways.",
    "model_pulls": "How often the server sent its model in place of the records that a client had missed.",
    "seconds": "The seconds of training so far, without evaluations.",
}
_SOME = {
    "calibrated_accuracy": "The accuracy with each class's score relative to a prompt without content (with task).",
    "drift": "The largest difference of a client's rebuilt model from the global one, as a share (revert sync).",
    "hessian_trace": "The estimate of tr H from the rounds since the last row (log_kappa; as all that follow).",
    "hessian_trace_stderr": "The standard error of hessian_trace.",
    "hessian_frobenius": "The estimate of the Frobenius norm of H.",
    "kappa_low": "The lower end of a bracket of κ for an H of any sign.",
    "kappa_high": "The upper end of that bracket.",
    "kappa_high_psd": "The upper end for an H without negative eigenvalues.",
}
METRICS = tuple(_EVERY)
"""The columns that every run's table has."""
COLUMNS: Mapping[str, str] = _EVERY | _SOME
"""What the columns of metrics.csv mean; "whitened_" before a name says that it is of DHD, with scaled directions."""


@dataclass(frozen=True)
class Found:
    """What a folder says of its run.

    Attributes:
        folder: The folder.
        state: finished; interrupted, to be resumed by the same command; running, in a process that holds the folder;
            damaged, where a file is not as it was written; diverged, where rows are later than the checkpoint; or "no
            checkpoint", where a run diverged before it had one, or it was not kept (with its log the run can go on).
        config: The configuration, as plain values; empty where nothing says it.
        rows: The rows of metrics.csv, in order.
        round: The number of rounds that can be resumed from, or of the last row.
        d: The number of parameters; None without a checkpoint.
        trouble: What is damaged; empty if nothing.
    """

    folder: Path
    state: str
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, float]]
    round: int
    d: int | None = None
    trouble: str = ""

    @property
    def last(self) -> Mapping[str, float]:
        """The last row; empty if there is none."""
        return self.rows[-1] if self.rows else {}


def found_runs(folders: Sequence[Path]) -> list[Found]:
    """The runs in these folders and below, in the order of their names.

    Raises:
        InputError: If one of them is no folder.
    """
    for folder in folders:
        require(folder.is_dir(), "folder", "be a folder that exists", str(folder))
    below = {path.resolve(): path for folder in folders for path in _below(folder)}
    return [looked_at(path) for path in sorted(below.values())]


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        holds = {CONFIG_FILE, METRICS_FILE} <= {*files} or CHECKPOINT_FILE in files
        if holds or (LOCK_FILE in files and is_held(Path(place))):
            folders.clear()
            yield Path(place)
        folders[:] = [name for name in folders if not name.startswith(".")]


def looked_at(folder: Path) -> Found:
    """What the folder says of its run; damage is said, and not raised."""
    running, config = is_held(folder), {}
    try:
        config = read_config(folder / CONFIG_FILE) if (folder / CONFIG_FILE).exists() else {}
        rows = read_rows(folder / METRICS_FILE)
        if not (folder / CHECKPOINT_FILE).exists():
            done = int(rows[-1]["round"]) if rows else 0
            return Found(folder, "running" if running else "no checkpoint", config, rows, done)
        shapes, saved = read_values(folder / CHECKPOINT_FILE)
        config, done, (d,) = saved["config"], int(saved["federation"]["round"]), shapes["x"]
        later = bool(rows) and rows[-1]["round"] > done
        state = "diverged" if later else "finished" if done >= config["rounds"] else "interrupted"
        return Found(folder, "running" if running else state, config, rows or saved["rows"], done, d)
    except (InputError, KeyError, TypeError, ValueError) as error:
        told = str(error) if isinstance(error, InputError) else f"the files of {folder} must be those of a run"
        return Found(folder, "damaged", config, [], 0, trouble=told)


def read_rows(path: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv, NaN where a cell is empty; none without the file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [{name: _number(cell) for name, cell in row.items()} for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path} must be a file that can be read ({error.strerror})") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} must be a table of numbers, as a run writes it ({error})") from None


def _number(cell: str) -> float:
    number = float(cell or math.nan)
    return int(cell) if cell.isdecimal() else number
