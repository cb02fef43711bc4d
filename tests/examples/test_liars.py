"""``examples/liars.py`` runs as it stands: a liar makes the mean useless and moves no other rule far."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "liars.py"


@pytest.mark.thorough
def test_one_liar_of_ten_ruins_the_mean_alone() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), "digits", "80"], capture_output=True, text=True, check=True)
    lines = re.findall(r"^(\w+)\(.*\), (nobody lies|one liar): accuracy ([\d.]+)$", done.stdout, re.M)
    found = {(rule, who): float(accuracy) for rule, who, accuracy in lines}
    honest = found["Mean", "nobody lies"]
    assert honest > 0.6
    assert found["Mean", "one liar"] < honest - 0.2
    assert min(found["Majority", who] for who in ("nobody lies", "one liar")) > honest - 0.2
    for rule in ("Median", "TrimmedMean", "ClippedMean"):
        assert min(found[rule, who] for who in ("nobody lies", "one liar")) > honest - 0.1, rule
