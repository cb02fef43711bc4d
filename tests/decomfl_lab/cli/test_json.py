"""What commands print and where it goes, of every command; none runs what is called like a library."""

import json
import math
import os
import re
import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import click
import pytest

from decomfl_lab.cli.main import application, main
from decomfl_lab.json_values import plain, print_json
from decomfl_lab.processes import environment
from decomfl_lab.runs.configuration import TrainConfig
from tests.decomfl_lab.carriers.killed import over_stream
from tests.decomfl_lab.cli.test_screens import EVERY
from tests.tables import rows_of

ROOT = Path(__file__).parents[3]
PACKAGES = ("decomfl_lab", "hessian", "theory", "figures", "paper_repro", "benchmarks")
SOURCES = {path: path.read_text("utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
WITH_JSON = [path.removeprefix("decomfl ") for path, own in EVERY if any("--json" in each.opts for each in own.params)]
TINY = "--data digits --model logistic --rounds 2 --eval-every 2 --clients 4 --sampled 2 --perturbations 2"
ROWS = rows_of(__file__)
LINES = {name: line.format(ROOT=ROOT) for name, line in ROWS["lines"].items()}
"""A line of each command that needs a moment; the others are in ``ELSEWHERE``."""
ELSEWHERE = ROWS["elsewhere"]
"""What the others need."""
SLOW = {"check": pytest.mark.thorough}
DECOMFL = [sys.executable, "-P", "-m", "decomfl_lab"]
FULL = Path("/dev/full")
NO_ROOM = "decomfl: error: there must be room for what is printed and written, got none (No space left on device)\n"
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


def told(text: str) -> Any:
    """The value; an AssertionError where it is no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _of(line: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([*line.split(), "--json"]) == 0
    return told(capsys.readouterr().out)


def test_every_command_with_the_flag_is_in_a_table() -> None:
    assert {path.split()[0] for path in WITH_JSON} - {*LINES, *ELSEWHERE} == {"train"}
    assert {*LINES, *ELSEWHERE} <= {path.split()[0] for path in WITH_JSON}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json") / "run"
    assert main(["train", *TINY.split(), "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in LINES])
def test_each_command_prints_one_value(name: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(run.parent)
    assert _of(f"{name} {LINES[name]}", capsys)


def test_train_prints_configuration_table_and_what_was_rebuilt(run: Path, capsys: Any) -> None:
    trained = _of(f"train {TINY} --out {run}", capsys)
    assert trained["rebuilt"] == {"clients": 4, "equal": 4}
    assert trained["config"]["rounds"] == trained["metrics"][-1]["round"] == 2


def test_no_command_prints_json_in_another_way() -> None:
    asked = {path: text for path, text in SOURCES.items() if "as_json" in text}
    assert len(asked) >= len(LINES)
    assert [str(path) for path, text in asked.items() if re.search(r"json\.dumps|print\(.*to_json", text)] == []


def test_a_value_becomes_json_wherever_it_hides(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": math.inf, "κ": (1.5, [-math.inf, {"b": math.nan}]), "text": "a\u202eb\x1b[2J\U000e0001"}
    print_json(value)
    out = capsys.readouterr().out
    assert told(out) == {"a": None, "κ": [1.5, [None, {"b": None}]], "text": value["text"]}
    assert out.rstrip("\n").isprintable()
    assert "κ" in out
    assert plain(value)["κ"][1] == [None, {"b": None}]
    with pytest.raises(AssertionError, match="Infinity is no JSON"):
        told(json.dumps(value))


@needs_full
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in LINES])
@pytest.mark.parametrize("more", [[], ["--json"], ["--help"]], ids=" ".join)
def test_a_full_disk_is_a_line_and_exit_code_2(
    name: str, more: list[str], run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(run.parent)
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([name, *LINES[name].split(), *more]) == 2
        full.flush()  # what is left goes nowhere
    assert capsys.readouterr().err.endswith(NO_ROOM)


@needs_full
@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["bound", *LINES["bound"].split()], ["train", *TINY.split()]]
)
def test_nothing_is_said_of_it_once_more_when_the_process_ends(words: list[str]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run([*DECOMFL, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("decomfl: error"), done.stderr.endswith(NO_ROOM)) == (2, 1, True)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("name", ["bound", "runs"])
def test_letters_that_an_encoding_lacks_are_escaped(name: str, encoding: str, run: Path) -> None:
    own = os.environ | {"PYTHONIOENCODING": encoding}
    words = [*DECOMFL, name, *LINES[name].split()]
    plain, as_json = (
        subprocess.run([*words, *more], cwd=run.parent, env=own, capture_output=True) for more in ([], ["--json"])
    )
    assert (plain.returncode, plain.stderr, as_json.returncode, as_json.stderr) == (0, b"", 0, b"")
    assert len(plain.stdout.decode(encoding)) > 100
    assert told(as_json.stdout.decode(encoding))


@pytest.mark.parametrize("words", [["bound", *LINES["bound"].split()], ["noise", "--d", "100000", "--count", "100000"]])
def test_a_reader_who_goes_away_is_no_error(words: list[str]) -> None:
    with subprocess.Popen([*DECOMFL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


# A folder of files that are called like libraries ---------------------------------------------------------------------


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
    starts = r"sys\.executable|get_context\(|ray\.init\("
    found = {path for path, text in SOURCES.items() if re.search(starts, text)}
    assert len(found) >= 4
    assert {path for path in found if not re.search(r"=environment\(|safely\(\)", SOURCES[path])} == set()
