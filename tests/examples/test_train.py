"""``examples/train.py`` and ``examples/my_method.py`` are short and run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from decomfl_lab.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"


def _printed(name: str, *args: str) -> str:
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


LONGER = {"decomfl.py": 300, "verify_decomfl.py": 75}
"""The whole algorithm, and all parts of it under the laws."""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_has_hardly_more_than_forty_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGER.get(path.name, 42)


@pytest.mark.thorough
def test_ones_own_model_learns_from_scalars_and_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    out = _printed("train.py", str(tmp_path / "run"))
    accuracies = [float(line.split()[1]) for line in out.splitlines() if re.match(r" +\d+ ", line)]
    assert accuracies[0] < 0.9 < accuracies[-1]
    assert "rebuilt: 10 of 10 clients" in out
    assert re.search(r"after 120 rounds: accuracy 0\.9", out)
    assert (tmp_path / "run" / "run.png").stat().st_size > 10_000


def test_a_method_of_ones_own_clips_what_its_clients_send() -> None:
    out = _printed("my_method.py")
    losses = dict(re.findall(r"c = ([\d.]+): loss ([\d.]+); rebuilt: 10 of 10", out))
    assert float(losses["1.0"]) < float(losses["0.01"])


def test_the_command_that_the_method_of_ones_own_names_is_kept_resumed_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = re.search(r"``decomfl (train .*?)``", (EXAMPLES / "my_method.py").read_text(encoding="utf-8"))
    assert said is not None
    monkeypatch.syspath_prepend(EXAMPLES)
    for rounds in ("1", "2"):
        assert main([*said[1].split(), "--clients", "10", "--rounds", rounds, "--out", str(tmp_path)]) == 0
    assert main(["replay", str(tmp_path), "--trust-code"]) == 0
