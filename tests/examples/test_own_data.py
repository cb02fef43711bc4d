"""``examples/own_data.py``: own data, model and loss from the command line, and everything that reads the run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from decomfl_lab.cli import main as cli

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = ["--data=own_data.py:clients", "--model=own_data.py:model", "--loss=own_data.py:loss"]


def test_a_run_on_ones_own_trains_resumes_replays_and_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLES)
    out = str(tmp_path / "run")
    for rounds in ("4", "6"):
        assert cli.main(["train", *OWN, "--rounds", rounds, "--sampled", "2", "--eval-every", "2", "--out", out]) == 0
    told = capsys.readouterr().out
    assert "own data: 1,000 examples of 10 clients, 100 held out" in told
    assert cli.main(["replay", out, "--measure", "3", "--trust-code"]) == 0
    assert "round 3 measured anew by 2 clients: the recorded scalars bit for bit" in capsys.readouterr().out
    assert cli.main(["kappa", out, *OWN, "--products", "8"]) == 0
    assert "loss 0." in capsys.readouterr().out
