"""A folder of files that are called like libraries: no command runs one, nor does any process that it starts."""

import re
import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest

from decomfl_lab.children import environment
from decomfl_lab.cli.main import application
from decomfl_lab.runs.configuration import TrainConfig
from tests.decomfl_lab.carriers.killed import over_stream
from tests.decomfl_lab.cli.test_json import DECOMFL, LINES, ROOT, TINY

PACKAGES = ("decomfl_lab", "hessian", "theory", "figures", "paper_repro", "benchmarks")
MINE = """
import torch
def model(): torch.manual_seed(0); return torch.nn.Linear(3, 2)
def data(): return [(torch.ones(4, 3), torch.zeros(4).long())] * 3, (torch.ones(2, 3), torch.zeros(2).long())
"""
OWN = "--data mine:data --model mine.py:model --batch-size 4"
WALK = {
    **LINES,
    "train": f"{OWN} --clients 3 --sampled 2 --rounds 2",
    "bench": "coverage --seeds 1 --spectra flat",
    "export": "run weights.safetensors",
    "findings": "--write .",
    "paper": "--only fig2 --scale smoke --jobs 2 --out out",
    "plot": "run --y loss",
    **dict.fromkeys(("join", "schema", "serve", "tightness"), "--help"),  # hours, or see below
}
QUICK = ("bench", "train", "pool")
POOL = """
from decomfl_lab.processes import Processes
import math
calls = iter([(n, math.sqrt, (n * n,)) for n in range(4)])
if __name__ == "__main__":
    with Processes(2) as processes:
        assert sorted(processes.results(lambda: next(calls, None))) == [(n, n) for n in range(4)]
"""
"""What `decomfl paper` has its runs computed by."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a file for every library, which leaves a mark when it is run, a module of the user's, and a run."""
    folder = tmp_path_factory.mktemp("current")
    _run(folder, [*DECOMFL, "train", *TINY.split(), "--out", "run"])
    (folder / "mine.py").write_text(MINE)
    for name in {*sys.stdlib_module_names, *packages_distributions()} - {*PACKAGES, "tests"}:
        if name.isidentifier() and PathFinder.find_spec(name):  # others are of other systems
            (folder / f"{name}.py").write_text(f"print({name!r}, file=open({str(folder / 'ran')!r}, 'a'))\n")
    return folder


def _run(folder: Path, words: list[str], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _marks(folder: Path) -> str:
    mark = folder / "ran"
    found = mark.read_text() if mark.exists() else ""
    mark.unlink(missing_ok=True)
    return found


def test_the_walk_has_every_command() -> None:
    app = application()
    assert isinstance(app, click.Group)
    assert app.commands.keys() == WALK.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in [*WALK, "pool"]]
)
def test_no_command_runs_what_is_called_like_a_library(name: str, folder: Path) -> None:
    _run(folder, [sys.executable, "-P", "-c", POOL] if name == "pool" else [*DECOMFL, name, *WALK[name].split()])
    assert _marks(folder) == ""


@pytest.mark.thorough
def test_no_server_or_client_runs_what_is_called_like_a_library(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the extra stream is not installed")
    config = TrainConfig(data="mine:data", model="mine.py:model", clients=3, sampled=2, rounds=30, batch_size=4)
    assert len(set(over_stream(config, tmp_path, folder).values())) == 1
    assert _marks(folder) == ""


def test_a_process_that_is_started_otherwise_is_noticed(folder: Path) -> None:
    _run(folder, [sys.executable, "-c", "import joblib"])
    assert "joblib" in _marks(folder)
    _run(folder, [sys.executable, "-c", "import sys; sys.path.append(''); import mine"], env=environment())
    assert _marks(folder) == ""


def test_every_place_that_starts_python_says_so() -> None:
    """Whoever names the interpreter gives it the environment, and whoever has a library start it does so ``safely``."""
    sources = {path: path.read_text("utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    starts = r"sys\.executable|get_context\(|ray\.init\("
    found = {path for path, text in sources.items() if re.search(starts, text)}
    assert len(found) >= 4
    assert {path for path in found if not re.search(r"=environment\(|safely\(\)", sources[path])} == set()
