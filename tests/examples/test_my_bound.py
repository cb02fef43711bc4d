"""The example of a bound of one's own runs as it stands, and says which bounds hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_bound.py"


def test_the_example_says_that_its_bound_holds_and_that_the_one_without_rho_fails() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True, cwd=EXAMPLE.parents[1]
    )
    answers = [line.rsplit(": ", 1)[1] for line in done.stdout.splitlines() if "ratio" in line]
    assert answers == ["holds", "fails"]
