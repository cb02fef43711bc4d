"""Ctrl-C and SIGTERM as a user sends them: real signals to real processes, what they say, and what they leave."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from decomfl_lab.interrupts import Interrupted, idle, interrupt, postponed, telling
from decomfl_lab.laws import LAWS
from decomfl_lab.runs.configuration import config_from_mapping, read_config
from decomfl_lab.runs.folder import CHECKPOINT_FILE, CONFIG_FILE
from decomfl_lab.runs.run import Run
from decomfl_lab.storage.checkpoint_file import read_checkpoint
from tests.cases import sampled

TALKATIVE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background it is ignored
from decomfl_lab import progress
progress.LINE_SECONDS = 0.0
from decomfl_lab.cli.main import main
main()
"""
TRAIN = "train --data digits --model logistic --clients 4 --sampled 2 --rounds 100000 --local-steps 2 --eval-every 3"
TOO_LONG = 300.0
"""Seconds after which a process that should have stopped is killed."""


@pytest.fixture(autouse=True)
def _sigint_is_heard() -> Iterator[None]:
    """Also where the tests run in the background of a shell, which ignores it for them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _stopped(
    command: str, number: int, when: Callable[[str], bool], *, stream: str = "stderr"
) -> tuple[int, list[str]]:
    """Exit code and lines on stderr of ``decomfl command``, to which the signal is sent at the first line ``when``."""
    process = subprocess.Popen(
        [sys.executable, "-c", TALKATIVE, *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    guard = threading.Timer(TOO_LONG, os.killpg, (process.pid, signal.SIGKILL))
    guard.start()
    lines = getattr(process, stream)
    before = ""
    for before in lines:
        if when(before):
            break
    os.kill(process.pid, number)
    _, errors = process.communicate()
    guard.cancel()
    assert "Traceback" not in errors
    return process.returncode, [*([before] if stream == "stderr" else []), *errors.splitlines()]


def _at_round(n: int) -> Callable[[str], bool]:
    return lambda line: f": {n}/" in line


@pytest.mark.parametrize(("number", "code"), sampled([(signal.SIGINT, 130), (signal.SIGTERM, 143)], 1))
def test_an_interrupted_run_is_saved_at_once_and_goes_on_to_the_same_bits(
    number: int, code: int, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    found, errors = _stopped(f"{TRAIN} --out {out}", number, _at_round(4))
    words = re.fullmatch(
        rf"decomfl: interrupted after round (\d+); saved in {out}; the same command goes on", errors[-1]
    )
    assert (found, words is not None) == (code, True), errors
    assert words is not None
    reached = int(words[1])
    assert 4 <= reached == read_checkpoint(out / CHECKPOINT_FILE)[1]["federation"]["round"]
    config = replace(config_from_mapping(read_config(out / CONFIG_FILE), "config"), rounds=reached + 4)
    resumed, whole = Run(config).train(out=out), Run(config).train(out=tmp_path / "whole")
    pd.testing.assert_frame_equal(resumed.drop(columns="seconds"), whole.drop(columns="seconds"), check_exact=True)
    states = [read_checkpoint(folder / CHECKPOINT_FILE) for folder in (out, tmp_path / "whole")]
    assert states[0][1]["federation"] == states[1][1]["federation"]
    assert all((states[0][0][name] == tensor).all() for name, tensor in states[1][0].items())


FIRST, SECOND = list(LAWS)[:2]
KAPPA = "kappa --data digits --model mlp --train-steps 1 --products 4000 --checkpoint FOLDER/k"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "stream", "begins", "told"),
    [
        (TRAIN, "stderr", r".*: 3/", r" after round \d+; nothing is kept without --out DIR"),
        (KAPPA, "stderr", "products: 3/", "; the products so far are in FOLDER/k; the same command goes on"),
        (
            f"verify --law {FIRST} --law {SECOND} --cases 60",
            "stdout",
            "ok",
            f"; 1 of the 1 laws tried so far held: {FIRST}",
        ),
    ],
)
def test_a_command_that_is_interrupted_says_what_is_kept(
    command: str, stream: str, begins: str, told: str, tmp_path: Path
) -> None:
    words = command.replace("FOLDER", str(tmp_path))
    code, errors = _stopped(words, signal.SIGINT, lambda line: bool(re.match(begins, line)), stream=stream)
    assert code == 130
    assert re.fullmatch(f"decomfl: interrupted{told}".replace("FOLDER", str(tmp_path)), errors[-1])


def test_a_first_signal_waits_and_a_second_does_not() -> None:
    with postponed() as came:
        os.kill(os.getpid(), signal.SIGINT)
        assert came == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        came.clear()
    with pytest.raises(KeyboardInterrupt), postponed():
        os.kill(os.getpid(), signal.SIGINT)  # nobody looks, so it comes at the end
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_innermost_words_are_said() -> None:
    with pytest.raises(Interrupted, match="^inner$") as found, telling(lambda: "outer"), telling(lambda: "inner"):
        interrupt(signal.SIGTERM, None)
    assert found.value.number == signal.SIGTERM
    with pytest.raises(ValueError, match="no signal"), telling(lambda: "outer"):
        raise ValueError("no signal")


def test_a_signal_that_was_held_back_ends_work_that_becomes_idle() -> None:
    def work() -> None:
        with postponed():
            signal.raise_signal(signal.SIGINT)
            with idle():
                pytest.fail("the signal is not seen")

    with pytest.raises(Interrupted):
        work()
    with idle():  # nothing is left of it
        pass
