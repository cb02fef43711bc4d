"""Many runs on one machine or a cluster: cached by fingerprint, resumed, shown while they go."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import pandas as pd
import torch

from decomfl_lab.commands.progress import RunBars
from decomfl_lab.config import FIRST_ORDER, TrainConfig
from decomfl_lab.data import load_dataset
from decomfl_lab.errors import DivergedError, InputError
from decomfl_lab.files import write_atomically
from decomfl_lab.schedules import Schedule
from decomfl_lab.training import METRICS_FILE, PROVENANCE_FILE, Progress, code_version, provenance, train

__all__ = ["Job", "run_all"]

DONE_FILE = "done"
DIVERGED = "diverged"
PROGRESS_FILE = "progress.json"
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """One run of a figure.

    Attributes:
        config: What to run.
        labels: Columns to add to its rows (reading, panel, series, ...).
        title: Name of its progress bar.
    """

    config: TrainConfig
    labels: Mapping[str, Any]
    title: str


def _folder(job: Job, root: Path) -> Path:
    key = job.config.fingerprint(data=load_dataset(job.config.data).digest, code=code_version())
    return root / key


def _execute(config: TrainConfig, folder: Path) -> None:
    """Run one job in this process; its folder ends with ``DONE_FILE``, written last."""
    torch.set_num_threads(1)
    dataset = load_dataset(config.data)
    shown = 0.0

    def report(at: Progress) -> None:
        nonlocal shown
        if time.monotonic() - shown > POLL_SECONDS or at.round == at.rounds:
            shown = time.monotonic()
            write_atomically(folder / PROGRESS_FILE, json.dumps(vars(at)))

    try:
        train(config, dataset=dataset, out=folder, on_round=report)
    except DivergedError as error:  # a result too: the rows up to there are kept
        write_atomically(folder / PROVENANCE_FILE, json.dumps(provenance(dataset), indent=1, ensure_ascii=False))
        write_atomically(folder / DONE_FILE, f"{DIVERGED}: {error}\n")
    else:
        write_atomically(folder / DONE_FILE, f"{config.rounds} rounds\n")


class _Watcher(threading.Thread):
    """Shows the progress files of the running jobs."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        super().__init__(daemon=True)
        self._folders = folders
        self._over = threading.Event()
        self._seen: dict[str, int] = {}

    def run(self) -> None:
        with RunBars() as bars:
            while not self._over.wait(POLL_SECONDS):
                for title, folder in self._folders.items():
                    self._show(bars, title, folder)

    def _show(self, bars: RunBars, title: str, folder: Path) -> None:
        try:
            at = Progress(**json.loads((folder / PROGRESS_FILE).read_text()))
        except (OSError, ValueError):
            return  # not begun yet
        if at.round != self._seen.get(title):
            self._seen[title] = at.round
            bars.update(title, at)
            if at.round == at.rounds:
                bars.remove(title)

    def stop(self) -> None:
        self._over.set()
        self.join()


def run_all(jobs: Sequence[Job], root: Path, *, n_jobs: int) -> list[tuple[pd.DataFrame, dict[str, Any]]]:
    """Run every job that has no result yet, ``n_jobs`` at a time, and gather all.

    Args:
        jobs: What to run; the same configuration twice is run once.
        root: Folder of results, one sub-folder a fingerprint of (configuration, seed, data, code).
        n_jobs: Processes.

    Returns:
        For each job its evaluations with its labels, seed and whether the run diverged (then they end there, and
        there may be none), and its provenance.

    Raises:
        InputError: If the folder cannot be written, or a run failed.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out must be a folder that can be written, got {root} ({error.strerror})") from None
    folders = [_folder(job, root) for job in jobs]
    todo = {folder: job for job, folder in zip(jobs, folders, strict=True) if not (folder / DONE_FILE).exists()}
    watcher = _Watcher({job.title: folder for folder, job in todo.items()})
    if todo:
        watcher.start()
        try:
            # The longest first, so that the processes end together.
            ordered = sorted(todo.items(), key=lambda item: -_cost(item[1].config))
            joblib.Parallel(n_jobs=n_jobs)(joblib.delayed(_execute)(job.config, folder) for folder, job in ordered)
        finally:
            watcher.stop()
    results = []
    for job, folder in zip(jobs, folders, strict=True):
        ended = (folder / DONE_FILE).read_text(encoding="utf-8")
        labels = {**job.labels, "seed": job.config.seed, "diverged": ended.startswith(DIVERGED)}
        rows = pd.read_csv(folder / METRICS_FILE).assign(**labels)
        results.append((rows, json.loads((folder / PROVENANCE_FILE).read_text(encoding="utf-8"))))
    return results


_COSTS = {"cnn-fashion": 6.0}
"""What a forward pass takes, in passes of the MNIST CNN."""


def _cost(config: TrainConfig) -> float:
    """Forward passes of a run, roughly, in examples of the MNIST CNN."""
    steps = config.rounds * config.local_steps * config.sampled * config.batch_size * _COSTS.get(config.model, 1.0)
    if config.method in FIRST_ORDER or config.method == "decomfl-projection":
        return 3 * steps
    P = Schedule(config.perturbations, config.perturbation_schedule)
    directions = sum(P(r) for r in range(config.rounds)) / config.rounds
    return directions * (2 if config.estimator == "central" else 1) * steps
