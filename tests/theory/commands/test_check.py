"""``decomfl check`` and ``decomfl tightness``: answers, exit codes, and what they load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decomfl_lab.cli import main as cli

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "my_bound.py")


def told(capsys: pytest.CaptureFixture[str], code: int, *argv: str) -> str:
    assert cli.main(list(argv)) == code
    return capsys.readouterr().out


def test_a_right_bound_holds(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, 0, "check", f"{EXAMPLE}:right", "--effort", "2")
    assert out.startswith("right: E f(x_R) − f* ≤ D(1 − ην)^R + Lηρ(φσ_G² + σ²)/(2mν) for η ≤ 1/(Lρ)\nholds on ")
    assert "waves left out: nu must have a value on every problem, got none on Waves, which has no spectrum\n" in out


def test_a_wrong_bound_fails_with_the_instance_and_the_lines_that_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, 1, "check", f"{EXAMPLE}:wrong", "--effort", "2", "--on", "quadratics")
    assert "\nfails:\nA small instance that refutes it, on quadratics, " in out
    assert "\nThe largest left/right of the search is " in out
    assert ": fails\n" in out
    *_, lines = out.partition("Three lines of Python repeat it:\n")
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == out.splitlines()[3].strip()


def test_json_has_the_instance(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(told(capsys, 1, "check", f"{EXAMPLE}:wrong", "--effort", "2", "--json"))
    (worst,) = [each for each in found["instances"] if each["holds"] is False]
    assert found["holds"] is False
    assert worst["ratio"] == pytest.approx(worst["left"] / worst["bound"]) == found["ratio"]
    assert worst["setting"]["L"] == 1.0
    assert "named('statement'" in worst["python"]


@pytest.mark.thorough
def test_tightness_has_a_row_a_class_and_shows_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, 0, "tightness", "theorem-1-single", "--effort", "2", "--on", "quadratics")
    for title in ("quadratics, D alone", "quadratics, σ alone", "quadratics, σ_G alone", "quadratics, μ alone"):
        assert title in out
    assert "0.57" in out
    assert "statement = theory.statement('theorem-1-single', 'corrected')" in out
    assert "afresh" not in out
    assert "afresh" in told(capsys, 0, "tightness", "theorem-1-single", "--effort", "1", "--on", "piecewise")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["check", "theorem-9"],
            "statement must be one of 26 names, got 'theorem-9' (did you mean theorem-2?): theorem-1,",
        ),
        (["check", "theorem-1", "--variant", "mine"], "variant must be one of stated, corrected"),
        (["check", "theorem-1", "--on", "cubics"], "--on must be one of quadratics, waves, piecewise, got 'cubics'"),
        (["check", "theorem-1", "--effort", "0"], "effort must be an integer of at least 1"),
        (
            ["check", "nowhere.py:right"],
            "statement must be module:function that can be imported, got 'nowhere.py:right'",
        ),
        (["tightness", f"{EXAMPLE}:left"], "statement must be module:function that can be imported"),
        (
            ["check", f"{EXAMPLE}:nu"],
            f"statement '{EXAMPLE}:nu' must make a theory.statements.statement.Statement, got",
        ),
    ],
)
def test_what_cannot_be_checked_is_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith(f"decomfl: error: {message}")
