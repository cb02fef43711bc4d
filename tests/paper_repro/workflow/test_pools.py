"""Runners at once: each key is computed once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from joblib.externals.loky import process_executor

from decomfl_lab.errors import InputError
from decomfl_lab.runs.told import Progress
from paper_repro.workflow.runs import DONE_FILE, TURN_FILE, pool_of, run_all

RUNS = 4


@dataclass
class Told:
    """Work that says in a file that it was begun; it fails, takes its time, or waits for company, if told to."""

    name: str
    seconds: float = 0.0
    wrong: bool = False
    shared: bool = False  # it ends when two processes have begun something

    @property
    def title(self) -> str:
        return self.name

    def key(self) -> str:
        return self.name

    def cost(self) -> float:
        return float(not self.wrong)

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        if self.wrong:
            until(lambda: len(told(folder.parent)) == RUNS)  # the others come first
            raise InputError(f"{self.name} must be right, got wrong")
        with (folder.parent / "told.txt").open("a") as file:
            file.write(f"{self.name} {os.getpid()}\n")
        if self.shared:
            until(lambda: len({process for _, process in told(folder.parent)}) == 2)
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            time.sleep(0.05)
            report(Progress(1, 1, 0.0, 0.0, 0.0))
        return "ended well"

    def result(self, folder: Path, ended: str) -> tuple[pd.DataFrame, dict[str, Any]]:
        return pd.DataFrame({"name": [self.name]}), {"ended": ended}


def works(seconds: float = 0.0, *, shared: bool = False) -> list[Told]:
    return [Told(f"run-{n}", seconds, shared=shared) for n in range(RUNS)]


def told(root: Path) -> list[tuple[str, str]]:
    """The name of every work that was done, and the process that did it."""
    path = root / "told.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted((name, process) for name, process in map(str.split, lines))


def runner(root: Path, seconds: float = 0.0) -> subprocess.Popen[str]:
    """Another command that does the same works in the same folder, one at a time; without seconds, shared ones."""
    program = "import sys, pathlib, runpy; at = runpy.run_path(sys.argv[1]); at['another'](*sys.argv[2:])"
    return subprocess.Popen([sys.executable, "-c", program, __file__, str(root), str(seconds)], text=True)


def another(root: str, seconds: str) -> None:
    run_all(works(float(seconds), shared=not float(seconds)), Path(root), n_jobs=1)


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.thorough
def test_two_runners_at_once_compute_each_key_once_and_share_them(tmp_path: Path) -> None:
    with runner(tmp_path) as other:
        until(lambda: told(tmp_path))
        results = run_all(works(shared=True), tmp_path, n_jobs=1)
    assert other.returncode == 0
    assert [name for name, _ in told(tmp_path)] == [f"run-{n}" for n in range(RUNS)]
    assert {process for _, process in told(tmp_path)} == {str(other.pid), str(os.getpid())}
    assert [result and result[1] for result in results] == [{"ended": "ended well"}] * RUNS
    assert not list(tmp_path.glob(f"*{TURN_FILE}-*"))


@pytest.mark.thorough
def test_what_a_killed_runner_had_begun_is_done_by_the_other_and_its_turn_ends(tmp_path: Path) -> None:
    with runner(tmp_path, 60.0) as other:
        until(lambda: told(tmp_path))
        other.send_signal(signal.SIGKILL)
    assert len(list(tmp_path.glob(f"{TURN_FILE}-*"))) == 1
    run_all(works(), tmp_path, n_jobs=1)
    assert sorted(path.parent.name for path in tmp_path.glob(f"*/{DONE_FILE}")) == [f"run-{n}" for n in range(RUNS)]
    assert not list(tmp_path.glob(f"{TURN_FILE}-*"))


def test_a_pool_whose_process_is_renewed_warns_of_nothing_also_where_warnings_are_errors() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pool_of(1):
            pass
        # What loky's thread says then, which ends by it where it is an error, and all results with it.
        warnings.warn(_renewed(), UserWarning, stacklevel=1)


def _renewed() -> str:
    """The beginning of the warning, as the installed loky has it."""
    source = Path(process_executor.__file__).read_text(encoding="utf-8")
    found = re.search(r'"(A worker stopped while some jobs were given[^"]*)"', source)
    assert found is not None
    return found[1]


@pytest.mark.thorough
def test_processes_compute_elsewhere_and_bring_errors_back(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^bad must be right, got wrong$"):
        run_all([*works(), Told("bad", wrong=True)], tmp_path, n_jobs=2)
    names, processes = zip(*told(tmp_path), strict=True)
    assert list(names) == [f"run-{n}" for n in range(RUNS)]
    assert str(os.getpid()) not in processes
    assert not list(tmp_path.glob(f"{TURN_FILE}-*"))
