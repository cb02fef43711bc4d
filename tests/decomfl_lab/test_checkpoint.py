"""Checkpoints: one checksum over the whole file, so that no changed bit of any part of it is ever used."""

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from decomfl_lab import InputError, TrainConfig
from decomfl_lab.runs.folder import CHECKPOINT_FILE, CONFIG_FILE
from decomfl_lab.runs.run import Run, load_run
from decomfl_lab.storage.checkpoint_file import read_checkpoint, write_checkpoint
from tests.cases import refused, refuses
from tests.fuzz.judge import mended

TENSORS = {"x": torch.linspace(-1, 1, 7), "état": torch.arange(6).view(2, 3), "none": torch.zeros(0)}
VALUES = {"rows": [{"loss": 0.1, "sha256": '"sha256":"' + "0" * 64 + '"'}], "run": {"seed": 2**63}, "é": None}
TINY = TrainConfig(data="digits", model="logistic", clients=4, sampled=2, rounds=4, eval_every=2, local_steps=2)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("checkpoint") / CHECKPOINT_FILE
    write_checkpoint(path, TENSORS, VALUES)
    return path, path.read_bytes()


def _flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_what_is_read_is_what_was_written(written: tuple[Path, bytes]) -> None:
    tensors, values = read_checkpoint(written[0])
    assert values == VALUES
    assert set(tensors) == set(TENSORS) == set(load_file(written[0]))  # still a file that anybody can read
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert all(tensors[name].dtype == TENSORS[name].dtype for name in TENSORS)


def test_a_damaged_run_is_neither_used_nor_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    Run(TINY).train(out=out)
    path = out / CHECKPOINT_FILE
    path.write_bytes(_flipped(path.read_bytes(), 8 * path.stat().st_size - 2))  # a high bit of the last number
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    for argv in (["train", "--config", str(out / "config.toml"), "--out", str(out)], ["kappa", str(out)]):
        said = refused(capsys, *argv)
        assert said.startswith("decomfl: error: checkpoint must be a whole file")
        assert str(path) in said
    assert before == {file.name: file.read_bytes() for file in out.iterdir()}


def test_an_edited_configuration_is_refused_by_name_and_says_what_to_do(tmp_path: Path) -> None:
    config = replace(TINY, momentum=0.9)
    Run(config).train(out=tmp_path)
    file = tmp_path / CONFIG_FILE
    file.write_text(file.read_text().replace("momentum = 0.9", "momentum = 0.8").replace("rounds = 4", "rounds = 9"))
    told = (
        r"config.toml must be as the run left it \(only rounds may differ\), got momentum = 0.8 for 0.9: put that back"
    )
    for goes_on in (lambda: load_run(tmp_path), lambda: Run(replace(config, rounds=5)).train(out=tmp_path)):
        with pytest.raises(InputError, match=told):
            goes_on()
    file.unlink()
    loaded = load_run(tmp_path)
    assert loaded.config == config
    assert any(parameter.abs().sum() > 0 for parameter in loaded.model.parameters())


@refuses(
    ({"sha256": "0" * 64}, "checkpoint must be a file of a run, got .*'decomfl'"),
    ({"decomfl": "{", "sha256": "0" * 64}, "checkpoint must be a file of a run, got .*Expecting"),
    ({"decomfl": "3", "sha256": "0" * 64}, "values of the checkpoint must be a JSON object, got 3"),
)
def test_a_file_with_the_right_checksum_that_is_no_runs_is_refused(metadata: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(mended(safetensors.torch.save({"x": torch.zeros(2)}, metadata)))
    read_checkpoint(tmp_path / "run")
