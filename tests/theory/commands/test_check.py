"""``decomfl check`` and ``decomfl tightness``: answers, exit codes, and what they load."""

import json
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import theory
from decomfl_lab.cli import main as cli
from theory import Setting, statement
from theory.notation.symbols import LETTERS

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "my_bound.py")


def told(capsys: pytest.CaptureFixture[str], code: int, *argv: str) -> str:
    assert cli.main(list(argv)) == code
    return capsys.readouterr().out


def test_a_right_bound_holds(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, 0, "check", f"{EXAMPLE}:right", "--effort", "1")
    assert out.startswith("right: E f(x_R) − f* ≤ D(1 − ην)^R + Lηρ(φσ_G² + σ²)/(2mν) for η ≤ 1/(Lρ)\nholds on ")
    assert "waves left out: nu must have a value on every problem, got none on Waves, which has no spectrum\n" in out


def test_a_wrong_bound_fails_with_the_instance_and_the_lines_that_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, 1, "check", f"{EXAMPLE}:wrong", "--effort", "2", "--on", "quadratics")
    assert "\nfails:\nA small instance that refutes it, on quadratics, " in out
    assert "\nThe largest left/right of the search is " in out
    assert ": fails\n" in out
    *_, lines = out.partition("Three lines of Python repeat it:\n")
    exec(lines, {})
    assert capsys.readouterr().out.splitlines()[0] == out.splitlines()[3].strip()


@pytest.mark.parametrize("seed", range(1))
def test_the_constants_of_an_instance_are_accepted_as_they_are_printed(
    capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    out = told(capsys, 0, "tightness", "theorem-2", "--effort", "1", "--on", "quadratics", "--seed", str(seed))
    name = {letter: name for name, letter in LETTERS.items()}
    line = next(line for line in out.splitlines() if line.startswith("  d = "))
    typed = dict(each.split(" = ") for each in line.strip().split(", "))
    given = {name.get(letter, letter): float(value) for letter, value in typed.items()}
    constants = {key: int(value) if key in ("d", "m", "M", "P", "K", "R") else value for key, value in given.items()}
    known = {each.name for each in fields(Setting)} - {"alpha"}
    *_, lines = out.partition("Three lines of Python repeat it:\n")
    # The problem and the setting of the lines that repeat the check.
    setup, _, check = lines.strip().splitlines()
    seen: list[Any] = []
    names: dict[str, Any] = {}
    exec(setup, names)
    names["theory"] = SimpleNamespace(check=lambda _, *of: seen.extend(of))
    exec(check, {**names, "statement": None, "print": str})
    problem, setting = seen
    printed = replace(setting, **{key: value for key, value in constants.items() if key in known})
    assert printed == setting
    assert theory.check(statement("theorem-2"), problem, printed).holds
    eta = float(out.partition(" at η = ")[2].partition(":")[0])  # which stands beside the formula
    assert theory.check(statement("theorem-2"), problem, printed.at(eta)).holds


def test_json_has_the_instance(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(told(capsys, 1, "check", f"{EXAMPLE}:wrong", "--effort", "2", "--json"))
    (worst,) = [each for each in found["instances"] if each["holds"] is False]
    assert found["holds"] is False
    assert worst["ratio"] == pytest.approx(worst["left"] / worst["bound"]) == found["ratio"]
    assert worst["setting"]["L"] == 1.0
    assert "named('statement'" in worst["python"]
