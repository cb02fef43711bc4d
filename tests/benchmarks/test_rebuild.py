"""``decomfl bench rebuild``: shapes of rows; ``decomfl noise``: bits for other languages."""

import importlib
import json
import re

import numpy as np
import pytest

from decomfl_lab import noise
from decomfl_lab.cli.main import main
from decomfl_lab.noise import known_answers

rebuild = importlib.import_module("benchmarks.rebuild")


@pytest.mark.thorough
def test_rows_have_the_promised_fields(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--d", "5000", "--pairs", "1,40", "--workers", "1,2", "--distribution", "gaussian,rademacher"]
    assert main(["bench", "rebuild", *arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"][0]["rows"]
    assert len(rows) == 8
    wanted = {"distribution", "backend", "d", "pairs", "workers", "ns_per_element_pair", "ratio", "peak_models"}
    for row in rows:
        assert wanted <= set(row)
        assert row["backend"] == noise.cpu_backend()
        assert row["ns_per_element_pair"] > 0
        assert row["ratio"] == pytest.approx(row["plain_ns"] / row["ns_per_element_pair"])
        assert row["peak_models"] is None  # too small a model to tell


@pytest.mark.thorough
def test_peak_memory_of_a_large_model_is_the_model_and_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 MB, 40 missed directions: at most 5 % beside the model; the plain way needs two more models."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the plain way is timed once for all numbers of threads
    options = rebuild.RebuildOptions(d="10000000", pairs="40", workers="2", distribution="rademacher")
    (row,) = rebuild.rebuild.rows(options)
    if row.peak_models is None:
        pytest.skip("this system does not tell a process its peak memory")
    assert 0.95 < row.peak_models < 1.05
    assert row.plain_peak_models is not None
    assert row.plain_peak_models > 1.9


# decomfl noise -----------------------------------------------------------------------------------------------


def test_the_command_in_other_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["noise", "--key", "0xDEADBEEF12345678", "--direction", "3", "--first", "96", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["bits"][0] == "3ef2ee42"
    assert answer["key"] == "deadbeef12345678"
    assert main(["noise", "--first", "96", "--count", "2", "--values"]) == 0
    assert re.fullmatch(r"96 bf3da834 -0\.74\d+\n97 [0-9a-f]{8} \S+\n", capsys.readouterr().out)
    many = 70_000
    for backend in ([], ["--backend", "numpy"]):
        assert main(["noise", "--count", str(many), *backend]) == 0
        lines = capsys.readouterr().out.split()
        assert lines == [f"{word:08x}" for word in noise.direction(0, 0, many).view(np.uint32)]


def test_the_printed_vectors_have_the_known_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["noise", "--vectors"]) == 0
    printed = json.loads(capsys.readouterr().out)["directions"]
    for answer, own in zip(known_answers.KNOWN_ANSWERS, printed, strict=True):
        elements = own["bits"].split()
        assert [elements[j] for j in known_answers.POSITIONS] == list(answer.bits)
