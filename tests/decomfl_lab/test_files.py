"""Folders that one process at a time writes to: who is refused, who is named, and what a killed holder leaves."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError
from decomfl_lab.storage.files import LOCK_FILE, held, held_file, is_held, write_atomically
from tests.cases import refused

HOLDER = """
import sys, pathlib
from decomfl_lab.storage.files import held, held_file
path = pathlib.Path(sys.argv[2])
with held(path) if sys.argv[1] == "folder" else held_file(sys.argv[1], path):
    print("held", flush=True)
    sys.stdin.read()
"""
TINY = ["train", "--data", "digits", "--model", "logistic", "--clients", "4", "--sampled", "2", "--rounds", "3"]


@contextmanager
def holder(how: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds ``path`` until it is killed."""
    command = [sys.executable, "-c", HOLDER, how, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_and_told_who_holds_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with holder("folder", out) as process:
        for argv in (TINY, ["paper", "--only", "audit", "--scale", "smoke"]):
            words = refused(capsys, *argv, "--out", str(out))
            rule = f"out must be a folder that no other process writes to, got {out}, held by process {process.pid} on "
            assert words.startswith(f"decomfl: error: {rule}")
        assert [path.name for path in out.iterdir()] == [LOCK_FILE]
    assert main([*TINY, "--out", str(out)]) == 0
    assert not (out / LOCK_FILE).exists()


def test_a_killed_holder_leaves_no_lock_and_its_temporary_files_go(tmp_path: Path) -> None:
    with holder("folder", tmp_path) as process:
        (tmp_path / ".metrics.csv.0123456789ab.tmp").write_text("half")
        (tmp_path / ".notes.tmp").write_text("somebody's")
        process.kill()
        process.wait()
        assert (tmp_path / LOCK_FILE).exists()
        with held(tmp_path):
            with held(tmp_path):  # a holder may hold it again
                write_atomically(tmp_path / "file", "whole")
            assert {path.name for path in tmp_path.iterdir()} == {LOCK_FILE, ".notes.tmp", "file"}


def test_who_leaves_first_does_not_let_others_in(tmp_path: Path) -> None:
    first, second = held_file("log", tmp_path / "log", threads=True), held_file("log", tmp_path / "log", threads=True)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with ThreadPoolExecutor(1) as pool:
        assert (tmp_path / ".log.lock").exists()
        pool.submit(second.__exit__, None, None, None).result()
    assert list(tmp_path.iterdir()) == []


def test_who_waits_gets_the_folder_when_it_is_left(tmp_path: Path) -> None:
    with holder("folder", tmp_path) as process:
        assert process.stdin is not None
        process.stdin.close()
        with held(tmp_path, wait=30):
            pass
        assert process.wait() == 0


def test_two_processes_do_not_share_a_checkpoint_of_kappa(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kappa.safetensors"
    small = ["kappa", "--data", "digits", "--model", "logistic", "--train-steps", "1", "--examples", "50"]
    with holder("checkpoint", path) as process:
        words = refused(capsys, *small, "--checkpoint", str(path))
        assert f"checkpoint must be a file that no other process writes to, got {path}, held by process" in words
        assert str(process.pid) in words
        with held_file("checkpoint", tmp_path / "other"):
            pass
    path.write_text("")
    with (
        pytest.raises(InputError, match="checkpoint must be a file that can be written"),
        held_file("checkpoint", path / "x"),
    ):
        pass


@pytest.mark.parametrize("kind", ["symlink", "hardlink", "file", "dangling"])
def test_nothing_is_written_through_a_lock_that_is_none(kind: str, tmp_path: Path) -> None:
    out, precious = tmp_path / "out", tmp_path / "precious"
    out.mkdir()
    precious.write_text("diary of 1893")
    if kind == "symlink":
        (out / ".lock").symlink_to(precious)
    elif kind == "hardlink":
        (out / ".lock").hardlink_to(precious)
    elif kind == "file":
        shutil.copy(precious, out / ".lock")
    else:
        (out / ".lock").symlink_to(tmp_path / "nowhere")
    assert not is_held(out)
    with pytest.raises(InputError, match=r"\.lock must be a lock, .* got a link or somebody's file"), held(out):
        pass
    assert precious.read_text() == "diary of 1893"
    assert not (tmp_path / "nowhere").exists()
    if kind == "file":
        assert (out / ".lock").read_text() == "diary of 1893"


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "folder" / "full").mkdir(parents=True)
    with pytest.raises(InputError, match=r"cannot write .*folder: "):
        write_atomically(tmp_path / "folder", "text")  # where a folder stands that is not empty
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
