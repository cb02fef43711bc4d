"""Test vectors for other languages are those of this library, the same on every machine."""

import json
from pathlib import Path

import numpy as np
import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs.replay import replay
from tests.cases import refused, rows_of

ROWS = rows_of(__file__)


def read(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_models_of_the_logs_are_the_same_on_every_machine(vectors: Path) -> None:
    found = {path.stem: read(path.with_suffix(".json"))["digest"] for path in sorted(vectors.glob("*.dcl"))}
    assert found == ROWS["logs"]


def test_steps_of_the_rules_are_the_same_on_every_machine(vectors: Path) -> None:
    assert {own["name"]: own["digest"] for own in json.loads((vectors / "rules.json").read_text())} == ROWS["rules"]


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


@pytest.mark.parametrize(("words", "complaint"), ROWS["wrong"])
def test_a_wrong_call_gets_an_error(
    words: list[str],
    complaint: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("full").mkdir()
    Path("full/file").write_text("")
    assert complaint in refused(capsys, *words)
