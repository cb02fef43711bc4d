"""What commands print and where it goes: of ``--json`` JSON, which no terminal acts upon; of every command."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.json_values import plain, print_json
from tests.decomfl_lab.cli.test_screens import EVERY
from tests.tables import rows_of

ROOT = Path(__file__).parents[3]
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
    known = {*LINES, *ELSEWHERE, "train"}
    assert {path.split()[0] for path in WITH_JSON} == known
    assert known - {*LINES, *ELSEWHERE} == {"train"}


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
    packages = ("decomfl_lab", "hessian", "theory", "figures", "paper_repro", "benchmarks")
    sources = {path: path.read_text("utf-8") for package in packages for path in (ROOT / package).rglob("*.py")}
    asked = {path: text for path, text in sources.items() if "as_json" in text}
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
