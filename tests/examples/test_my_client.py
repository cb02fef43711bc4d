"""The example of an own client: it keeps the laws, and pytest finds a test a law in it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from decomfl_lab import laws

EXAMPLE = Path(__file__).parents[2] / "examples" / "test_my_client.py"


def test_it_keeps_the_laws_that_it_is_tried_on() -> None:
    outcomes = laws.verify(runpy.run_path(str(EXAMPLE))["Mine"](), cases=5)
    assert outcomes.broken == []
    assert sum(outcome.status == "holds" for outcome in outcomes) >= 13


@pytest.mark.thorough
def test_pytest_finds_a_test_for_every_law() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=EXAMPLE.parents[1])
    names = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert names == [f"test_laws[{name}]" for name in laws.LAWS]
