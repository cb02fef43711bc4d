"""Test vectors for other languages are those of this library, the same on every machine."""

import json
from pathlib import Path

import numpy as np
import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs.conformance import write_conformance
from decomfl_lab.runs.replay import replay

DIGESTS = {
    "run-adamm": "d47b5becdbb14cfdf7131fba6acdb0cc",
    "run-bfloat16": "49ac0165dcf1c86697d49252422d962a",
    "run-compensated": "062b1bd2902073c211527017a257f52e",
    "run-feedsign": "f1ee1495744dc76bfb9e5e2215572038",
    "run-float16": "3dbf280c90034a8426421dc5e9fcfea5",
    "run-grid": "91708ac43f4211ac5aec99f5fb9a9d03",
    "run-hiso": "eb952ca361cd2ca03bd6512abcdf31f0",
    "run-pool": "30e21b3754c8f6ce5f3f0442e3b2ca32",
    "run-private": "2b1565fbed8995c905211706dca63b5a",
    "run-sgd": "6d437320feba33ed548a1dfc38f9c5da",
    "run-sign": "b0fe19ff0ce0a5011c303a20e4e45d35",
    "run-sphere": "aa9ec4f34a829e368fbd631c727b0786",
    "run": "bc38d7aba2d325f2b6c26d7105eaee89",
}
RULES = {
    "sgd": "b74a699ddb2556e5d926de223b8ebc9f",
    "sgd with weight decay": "c009895c3e548f283b23050ad9db1612",
    "momentum": "731f4ec4eec2b231ac4948cb5a2e2153",
    "momentum of the paper": "b15b1f675a146f615ab7ad28c895644c",
    "sign": "ab94f1ce3fdf4db608b4f11635112c99",
    "adamm": "38ca2b96e5857ffe1e98224256e6cc2e",
    "hiso": "76baac69499819334d9968889ec5ff23",
    "grid": "9b9554fbd243728c46b83d4a530971fb",
    "bfloat16, stochastic": "265b584924043e8dffa2566c88fbc9c6",
    "bfloat16, compensated": "13996c4a6e554501efed6b985e2a1c19",
    "float16, stochastic": "ff577f70e221edccf47326556770feb6",
    "float16, nearest": "e47393ae51ab26111b9f2f771eb6ffcb",
}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    write_conformance(folder)
    return folder


def read(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_models_of_the_logs_are_the_same_on_every_machine(vectors: Path) -> None:
    found = {path.stem: read(path.with_suffix(".json"))["digest"] for path in sorted(vectors.glob("*.dcl"))}
    assert found == DIGESTS


def test_steps_of_the_rules_are_the_same_on_every_machine(vectors: Path) -> None:
    assert {own["name"]: own["digest"] for own in json.loads((vectors / "rules.json").read_text())} == RULES


def test_what_a_table_says_of_a_log_is_what_the_log_has(vectors: Path) -> None:
    for path in vectors.glob("*.dcl"):
        table = read(path.with_suffix(".json"))
        with RunLog.open(path, write=False) as log:
            assert log.header == json.loads(str(table["header"]))
            assert log.header["config"]["draws"] == log.header["start"]["by"] == "stream"
            for entry, said in zip(log.entries(), table["rounds"], strict=True):  # type: ignore[call-overload]
                record = entry.record
                bits = record.scalars.astype(np.float32).reshape(-1).view(np.uint32)
                assert said["scalars"].split() == [f"{word:08x}" for word in bits], path
                assert (said["digest"], said["seeding"]) == (entry.digest, record.seeding.value)
            assert said["chain"] == log.chain.hex()


def test_the_run_of_the_vectors_is_replayed_by_this_library(vectors: Path) -> None:
    found = replay(vectors / "run.dcl")
    assert found.agrees
    assert found.digest == read(vectors / "run.json")["digest"]


def test_the_readme_of_the_vectors_names_every_log(vectors: Path) -> None:
    text = (vectors / "README.md").read_text()
    assert all(f"`{path.name}`" in text for path in vectors.glob("*.dcl"))
    assert all(path.name in text for path in vectors.glob("*.json") if not path.with_suffix(".dcl").exists())


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--conformance", str(tmp_path / "new")]) == 0
    assert "README.md there says what each file is" in capsys.readouterr().out
    assert (tmp_path / "new" / "run.dcl").exists()


def test_vectors_of_the_stream_are_printed_alone(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["noise", "--vectors"]) == 0
    assert capsys.readouterr().out == (vectors / "stream.json").read_text()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["export"], "RUN and OUT must be given, unless --conformance is"),
        (["export", "run"], "RUN and OUT must be given, unless --conformance is"),
        (["export", "run", "--conformance", "new"], "run must be left out with --conformance, got 'run'"),
        (["export", "--conformance", "no/new"], "conformance must be a folder that can be written, got no/new"),
        (["export", "--conformance", "full"], "conformance must be a new or an empty folder, got 'full'"),
    ],
)
def test_a_wrong_call_gets_an_error(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/file").write_text("")
    assert main(words) == 2
    assert complaint in capsys.readouterr().err
