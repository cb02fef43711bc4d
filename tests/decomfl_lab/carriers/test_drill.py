"""The drill: real processes, killed, end with the simulator's bits; and models that differ are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import decomfl_lab.carriers.commands.drill as drill
from decomfl_lab.cli.main import main

SMALL = ["--rounds", "30"]


@pytest.mark.engine
@pytest.mark.parametrize("engine", drill.ENGINES)
def test_five_models_have_the_simulators_bits_after_a_client_and_the_server_were_killed(
    engine: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("nvflare", reason="drills take minutes: make engines has them, where all engines are installed")
    assert main(["drill", engine, *SMALL, "--out", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert set(found["digests"].values()) == {found["simulated"]}
    assert len(found["digests"]) == 5
    assert err.count("killed") == (1 if engine == "nvflare" else 2)  # a job is killed with all of its sites


@pytest.mark.parametrize("wrong", [{"client 3": "0" * 32}, {}])
def test_a_model_that_differs_or_is_missing_is_told(
    wrong: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(drill, "_simulated", lambda config: ("a" * 32, 0.5))
    digests = dict.fromkeys(["server", "client 0", "client 1", "client 2"], "a" * 32) | wrong
    monkeypatch.setitem(drill.ENGINES, "stream", lambda config, folder: digests)
    assert main(["drill", "--out", str(tmp_path)]) == 1
    assert "4 of 5 models have the bits" in capsys.readouterr().out


def test_what_cannot_be_drilled_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    for more, words in [
        (["steam"], "engine must be one of stream, ray, nvflare, got 'steam' (did you mean stream?)"),
        (["--rounds", "2"], "rounds must be an integer of at least 3, got 2"),
        (["--out", str(tmp_path)], f"out must be an empty folder, got {tmp_path}"),
    ]:
        assert main(["drill", *more]) == 2
        assert words in capsys.readouterr().err
