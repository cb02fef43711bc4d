"""x_0 from the log alone: drawn by the stream, or in the file; and what a log may not say of it."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import decomfl_lab as lab
from decomfl_lab.cli.main import main
from decomfl_lab.models import initialisers
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.replicas.start import made_again
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.folder import LOG_FILE
from decomfl_lab.runs.run import Run
from decomfl_lab.storage.outside import Header, StartInFile, read_as
from tests.cases import refuses
from tests.decomfl_lab.runs.rewritten import rewritten
from tests.decomfl_lab.runs.test_replay import PAIRS

TINY = TrainConfig(data="digits", model="mlp", clients=4, sampled=2, rounds=3, perturbations=2, lr=0.01)


def own(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(6, 2)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    Run(TINY).train(out=folder)
    return folder


def test_a_log_says_how_each_tensor_of_x_0_was_drawn(out: Path) -> None:
    with RunLog.open(out / LOG_FILE, write=False) as log:
        assert log.version == 2
        start = log.header["start"]
    assert (start["by"], start["key"]) == ("stream", "0000000000000000")
    assert [tensor["shape"] for tensor in start["tensors"]] == [[32, 64], [32], [10, 32], [10]]
    assert {(tensor["draw"], tensor["scale"]) for tensor in start["tensors"][:2]} == {("uniform", 0.125)}


def test_a_replay_takes_x_0_from_the_log_and_not_from_the_code(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A later version that draws otherwise.
    monkeypatch.setattr(initialisers, "uniform", lambda _: initialisers.constant(0.5))
    assert lab.replay(out).agrees


def test_another_scale_in_the_log_is_noticed(out: Path, tmp_path: Path) -> None:
    with RunLog.open(out / LOG_FILE, write=False) as log:
        start = log.header["start"]
    start["tensors"][2]["scale"] *= 1.001
    found = lab.replay(rewritten(out, tmp_path / "log", start=start))
    assert not found.agrees
    assert "x_0 is not the run's" in str(found)


def test_x_0_in_the_file_is_enough_for_a_model_of_ones_own_and_is_under_the_seal(tmp_path: Path) -> None:
    lab.train(own(1), nn.functional.cross_entropy, PAIRS, rounds=3, lr=0.01, log_start=True, out=tmp_path / "a")
    lab.train(own(1), nn.functional.cross_entropy, PAIRS, rounds=3, lr=0.01, out=tmp_path / "b")
    assert lab.replay(tmp_path / "a", own(2)).agrees  # other weights: the file has those of then
    assert not lab.replay(tmp_path / "b", own(2)).agrees
    assert lab.replay(tmp_path / "b", own(1)).agrees
    file = tmp_path / "a" / LOG_FILE
    assert file.stat().st_size < (tmp_path / "b" / LOG_FILE).stat().st_size + 150
    with pytest.raises(lab.InputError, match="model must have d = 14, as x_0 in the log, got 35"):
        lab.replay(tmp_path / "a", nn.Linear(6, 5))
    content = bytearray(file.read_bytes())
    with RunLog.open(file, write=False) as log:
        content[content.index(log.start) + 7] ^= 1
    file.write_bytes(content)
    with pytest.raises(lab.InputError, match="whose header was changed or cut"):
        lab.replay(tmp_path / "a", own(1))


def test_a_log_of_version_1_is_replayed_as_torch_drew_it(tmp_path: Path) -> None:
    Run(TINY.but(draws="libraries")).train(out=tmp_path)
    with RunLog.open(tmp_path / LOG_FILE, write=False) as log:
        assert log.header["start"] == {"by": "libraries"}
        config = {key: value for key, value in log.header["config"].items() if key != "draws"}
    old = rewritten(tmp_path, tmp_path / "old", version=1, start=None, config=config)
    assert old.read_bytes()[8] == 1
    assert lab.replay(old).agrees
    assert not lab.replay(rewritten(tmp_path, tmp_path / "new", config=config | {"draws": "stream"})).agrees


PACKED = zlib.compress(np.zeros(4, np.float32).tobytes())
TENSOR = {"shape": [4], "draw": "uniform", "scale": 1.0}
HEADER = {"config": {}, "data": "", "shape": [2], "dtype": "float32", "classes": 2, "d": 4, "x0": 32 * "0", "stream": 1}
STREAM = {"by": "stream", "key": 16 * "0", "tensors": [TENSOR]}


@refuses(
    (STREAM | {"tensors": [TENSOR | {"shape": [4] * 17}]}, r"shape in the header must be a list of length <= 16"),
    ({"by": "file", "bytes": 9, "dtype": []}, r"start.dtype in the header must be"),
    ({"by": "file", "bytes": 9, "dtype": "int8"}, "start.dtype in the header must be"),
    ({"by": "file", "bytes": 9, "dtype": "float64"}, "x_0 in the log must unpack to 32 bytes, got 16"),
)
def test_what_says_nothing_of_x_0_is_refused_by_name(start: Any) -> None:
    """Beside what every reader refuses (``tests/docs/hostile.json``)."""
    made_again(read_as(Header, HEADER | {"start": start}, "header").start, PACKED, 4)


@pytest.mark.parametrize("packed", [b"", PACKED[:-1], PACKED + b"x", b"nonsense", zlib.compress(bytes(17))])
def test_x_0_that_does_not_unpack_to_d_numbers_is_refused(packed: bytes) -> None:
    with pytest.raises(lab.InputError, match="x_0 in the log must unpack to 16 bytes"):
        made_again(StartInFile("float32", len(packed)), packed, 4)


def test_a_run_of_an_earlier_version_goes_on_by_its_own_file_as_it_was_begun(tmp_path: Path) -> None:
    out, whole = tmp_path / "run", tmp_path / "whole"
    old = TINY.but(draws="libraries", eval_every=1)
    Run(old.but(rounds=2)).train(out=out)
    Run(old).train(out=whole)
    (out / "checkpoint.safetensors").unlink()  # as in the folder of a recorded run
    content = (out / "config.toml").read_text()
    (out / "config.toml").write_text(content.replace('draws = "libraries"\n', "").replace("rounds = 2", "rounds = 3"))
    assert main(["train", "--config", str(out / "config.toml"), "--out", str(out)]) == 0
    assert lab.replay(out).digest == lab.replay(whole).digest
    assert 'draws = "libraries"' in (out / "config.toml").read_text()


def test_a_new_run_in_a_folder_that_holds_no_run_is_drawn_by_the_stream(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('data = "digits"\nmodel = "mlp"\nclients = 4\nsampled = 2\nrounds = 1\n')
    assert main(["train", "--config", str(tmp_path / "config.toml"), "--out", str(tmp_path)]) == 0
    assert 'draws = "stream"' in (tmp_path / "config.toml").read_text()
