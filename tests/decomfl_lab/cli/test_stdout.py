"""Where the text of a command goes: to a full disk, into an encoding without our letters, to a reader who goes away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decomfl_lab.cli.main import main
from tests.decomfl_lab.cli.test_json import LINES, SLOW, TINY, told

FULL = Path("/dev/full")
DECOMFL = [sys.executable, "-c", "from decomfl_lab.cli.main import main; main()"]
NO_ROOM = "decomfl: error: there must be room for what is printed and written, got none (No space left on device)\n"
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stdout") / "run"
    assert main(["train", *TINY.split(), "--out", str(folder)]) == 0
    return folder


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
