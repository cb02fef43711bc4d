"""The folder of a run: its files, the columns of its table, and what can be said of it without torch."""

import csv
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decomfl_lab.checkpoint import read_values
from decomfl_lab.errors import InputError, require
from decomfl_lab.files import LOCK_FILE, is_held, require_plain
from decomfl_lab.outside import Header, SavedRun, read_as, require_rows
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs.configuration import TrainConfig, read_config
from decomfl_lab.tables import table_beside

METRICS_FILE = "metrics.csv"
CHECKPOINT_FILE = "checkpoint.safetensors"
CONFIG_FILE = "config.toml"
LOG_FILE = "run.dcl"
PROVENANCE_FILE = "provenance.json"

Row = Mapping[str, float]

_WRITTEN = table_beside(__name__, "columns.toml")
METRICS = tuple(_WRITTEN["every"])
"""The columns that every run's table has."""
COLUMNS: Mapping[str, str] = _WRITTEN["every"] | _WRITTEN["some"]
"""What the columns of metrics.csv mean; "whitened_" before a name says that it is of DHD, with scaled directions."""


def further(config: TrainConfig) -> list[str]:
    """The columns of what a run measures on the held-out examples beside accuracy and loss."""
    return ["calibrated_accuracy"] * bool(config.task) + [f"test_{name}" for name in config.measures]


@dataclass(frozen=True)
class FoundRun:
    """What a folder says of its run."""

    folder: Path  # the folder
    # finished; interrupted, to be resumed by the same command; running, in a process that holds the folder; damaged,
    # where a file is not as it was written; diverged, where rows are later than the checkpoint; or "no checkpoint",
    # where a run diverged before it had one, or it was not kept (with its log the run can go on)
    state: str
    config: Mapping[str, Any]  # the configuration, as plain values; empty where nothing says it
    # the evaluations, in order: those of the checkpoint, where there is one, and those of metrics.csv after it
    rows: Sequence[Mapping[str, float]]
    round: int  # the number of rounds that can be resumed from, or of the last row
    d: int | None = None  # the number of parameters; None without a checkpoint
    trouble: str = ""  # what is damaged; empty if nothing
    # where metrics.csv says other numbers than the checkpoint, which has the rows; or why nobody knows
    remark: str = ""

    @property
    def last(self) -> Mapping[str, float]:
        """The last row; empty if there is none."""
        return self.rows[-1] if self.rows else {}


def found_runs(folders: Sequence[Path]) -> list[FoundRun]:
    """The runs in these folders and below, in the order of their names.

    Raises:
        InputError: If one of them is no folder.
    """
    for folder in folders:
        require(folder.is_dir(), "folder", "be a folder that exists", str(folder))
    below: dict[Path, Path] = {}
    for folder in folders:
        reports: set[Path] = set()
        for place, names, files in os.walk(folder):
            path = Path(place)
            holds = {CONFIG_FILE, METRICS_FILE} <= {*files} or CHECKPOINT_FILE in files
            locked = not holds and LOCK_FILE in files and is_held(path)
            if locked and names:  # a report that is being made, and holds those of its folders that are not of runs
                reports.add(path)
            # A run that has just begun has a lock alone.
            elif holds or (locked and path.parent not in reports):
                names.clear()
                below[path.resolve()] = path
            names[:] = [name for name in names if not name.startswith(".")]
    return [looked_at(path) for path in sorted(below.values())]


def looked_at(folder: Path) -> FoundRun:
    """What the folder says of its run; damage is said, and not raised."""
    running, config = is_held(folder), {}
    try:
        config = read_config(folder / CONFIG_FILE, plain=True) if (folder / CONFIG_FILE).exists() else {}
        if not (folder / CHECKPOINT_FILE).exists():
            rows = read_rows(folder / METRICS_FILE)
            done = int(rows[-1]["round"]) if rows else 0
            remark = "" if table_is_sound(folder) else f"{METRICS_FILE} was changed, and nothing else has its numbers"
            return FoundRun(folder, "running" if running else "no checkpoint", config, rows, done, remark=remark)
        shapes, saved = read_saved_values(folder / CHECKPOINT_FILE)
        config, done, (d,) = saved["config"], saved["federation"]["round"], shapes["x"]
        table, remark = compared(folder, saved["rows"])
        later = [row for row in table if row["round"] > done]
        state = "diverged" if later else "finished" if done >= config["rounds"] else "interrupted"
        return FoundRun(
            folder, "running" if running else state, config, [*saved["rows"], *later], done, d, remark=remark
        )
    except (InputError, LookupError, TypeError, ValueError) as error:
        told = str(error) if isinstance(error, InputError) else f"the files of {folder} must be those of a run"
        return FoundRun(folder, "damaged", config, [], 0, trouble=told)


def open_log(path: Path, *, end: int | None = None, write: bool = True) -> RunLog:
    """``RunLog.open`` of a run's log; InputError also where its header is not that of a run."""
    log = RunLog.open(path, end=end, write=write)
    try:
        read_as(Header, log.header, f"header of the log {path}")
    except InputError:
        log.close()
        raise
    return log


def read_saved_values(path: Path) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """The shapes of the tensors and the values in the checkpoint of a run; InputError if they are not those of one."""
    shapes, saved = read_values(path)
    read_as(SavedRun, saved, f"checkpoint {path}")
    return shapes, saved


def read_rows(path: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv, NaN where a cell is empty; none without the file.

    Raises:
        InputError: If it cannot be read, or the rows cannot be evaluations of one run.
    """
    try:
        with require_plain(path).open(encoding="utf-8", newline="") as file:
            cells = list(csv.reader(file, strict=True))
        numbers = [[int(cell) if cell.isdecimal() else float(cell or math.nan) for cell in row] for row in cells[1:]]
        rows = [dict(zip(cells[0], row, strict=True)) for row in numbers]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path} must be a file that can be read ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path} must be a table of numbers, as a run writes it ({error})") from None
    known = not cells or "round" in cells[0]
    require(known, str(path), "be a table of numbers, as a run writes it", cells[:1])
    require_rows(rows, str(path))
    return rows


def table_is_sound(folder: Path) -> bool:
    """Whether there is a metrics.csv, as the run left it: by the digest in provenance.json, if a version wrote one."""
    try:
        read_rows(folder / METRICS_FILE)
        said = json.loads(require_plain(folder / PROVENANCE_FILE).read_text(encoding="utf-8")).get("metrics_sha256")
        return said in (None, hashlib.sha256((folder / METRICS_FILE).read_bytes()).hexdigest())
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def compared(folder: Path, rows: Sequence[Row], *, rel_tol: float = 0.0) -> tuple[Sequence[Row], str]:
    """The rows of metrics.csv, and in words where they are not those that the run has; empty where they are.

    Args:
        folder: The folder of the run.
        rows: The rows that the run has.
        rel_tol: How far apart numbers may be, relative to them.
    """
    try:
        table = read_rows(folder / METRICS_FILE)
    except InputError as error:
        return (), str(error)
    known = {row["round"]: row for row in rows}
    found = [
        f"{name} = {own[name]:.6g} for {right:.6g} in round {own['round']}"
        for own in table
        for name, right in known.get(own["round"], {}).items()
        if name in own and not _alike(own[name], right, rel_tol)
    ]
    more = f" and {len(found) - 1} more" * (len(found) > 1)
    return table, f"{METRICS_FILE} says {found[0]}{more}" if found else ""


def _alike(a: float, b: float, rel_tol: float) -> bool:
    """Whether two cells agree; accuracies near 0 may differ by an example or two where ``rel_tol`` is not 0."""
    return math.isclose(a, b, rel_tol=rel_tol, abs_tol=5 * rel_tol) or (math.isnan(a) and math.isnan(b))
