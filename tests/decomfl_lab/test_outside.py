"""What comes from outside is read into types before anything is made of it: log headers, checkpoints, tables."""

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

import decomfl_lab as lab
from decomfl_lab.cli.main import main
from decomfl_lab.models.registry import build_model
from decomfl_lab.protocol import log as logs
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.folder import CHECKPOINT_FILE, LOG_FILE, METRICS_FILE, PROVENANCE_FILE, looked_at, read_rows
from decomfl_lab.runs.run import Run
from decomfl_lab.storage.checkpoint_file import read_values
from decomfl_lab.storage.outside import require_rows
from figures.command import curves_of

TINY = TrainConfig(data="digits", model="logistic", clients=4, sampled=2, rounds=6, eval_every=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    Run(TINY).train(out=folder)
    return folder


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def without_time(folder: Path) -> list[dict[str, float]]:
    return [
        {name: value for name, value in row.items() if name != "seconds"} for row in read_rows(folder / METRICS_FILE)
    ]


def changed_table(folder: Path, name: str, value: float) -> None:
    """The last row says another thing."""
    head, *rows = (folder / METRICS_FILE).read_text().splitlines()
    cells = rows[-1].split(",")
    cells[head.split(",").index(name)] = str(value)
    (folder / METRICS_FILE).write_text("\n".join([head, *rows[:-1], ",".join(cells)]) + "\n")


CHANGED = {"test_accuracy": 0.9999, "train_loss": 0.001, "wire_bytes": 10**9}


@pytest.mark.parametrize("name", CHANGED)
def test_a_table_that_disagrees_with_the_checkpoint_is_said_and_made_anew(
    name: str, out: Path, whole: Path, capsys: Any, caplog: Any
) -> None:
    changed_table(out, name, CHANGED[name])
    assert main(["runs", str(out), "--json"]) == 0
    told = capsys.readouterr()
    assert f"metrics.csv says {name} = {CHANGED[name]:.6g} for" in told.err
    (row,) = json.loads(told.out)
    assert row["accuracy"] == looked_at(whole).last["test_accuracy"] != 0.9999
    assert curves_of([looked_at(out)]).equals(curves_of([looked_at(whole)]))  # what plot draws
    Run(TINY).train(out=out)
    assert f"metrics.csv says {name}" in caplog.text
    assert read_rows(out / METRICS_FILE) == read_rows(whole / METRICS_FILE)


@pytest.mark.parametrize(
    "content", ["", "round\nthree\n", "round,wire_bytes\n3\n", "\x00", "round\n3,4\n", "\ufeffround\n", '"']
)
def test_a_table_that_is_none_is_made_anew_from_the_checkpoint_or_the_log(
    content: str, out: Path, whole: Path, capsys: Any
) -> None:
    (out / METRICS_FILE).write_text(content)
    assert looked_at(out).last == looked_at(whole).last
    for name in (CHECKPOINT_FILE, PROVENANCE_FILE):
        (out / name).unlink()
    before = (out / LOG_FILE).read_bytes()
    Run(TINY).train(out=out)
    assert (out / LOG_FILE).read_bytes() == before
    found, right = without_time(out), without_time(whole)
    assert [row.pop("train_loss") for row in right] != [row.pop("train_loss") for row in found]
    assert found == right


@pytest.mark.parametrize("name", CHANGED)
def test_without_a_checkpoint_a_changed_table_is_noticed_and_evaluated_anew(
    name: str, out: Path, whole: Path, caplog: Any, capsys: Any
) -> None:
    changed_table(out, name, CHANGED[name])
    (out / CHECKPOINT_FILE).unlink()
    assert main(["runs", str(out)]) == 0
    assert "metrics.csv was changed, and nothing else has its numbers" in capsys.readouterr().err
    assert list(Run(TINY).train(out=out).train_loss.isna()) == [True] * 3
    assert "train_loss and seconds, which nothing else has, are not known" in caplog.text
    found, right = without_time(out), without_time(whole)
    assert all(math.isnan(row.pop("train_loss")) and right[n].pop("train_loss") > 0 for n, row in enumerate(found))
    assert found == right


def test_an_accuracy_that_somebody_also_gave_a_digest_is_evaluated_anew(out: Path, whole: Path, caplog: Any) -> None:
    changed_table(out, "test_accuracy", 0.9999)
    facts = json.loads((out / PROVENANCE_FILE).read_text())
    facts["metrics_sha256"] = hashlib.sha256((out / METRICS_FILE).read_bytes()).hexdigest()
    (out / PROVENANCE_FILE).write_text(json.dumps(facts))
    (out / CHECKPOINT_FILE).unlink()
    Run(TINY).train(out=out)
    assert "the model was evaluated anew, and metrics.csv says test_accuracy = 0.9999 for" in caplog.text
    assert without_time(out) == without_time(whole)


@pytest.mark.parametrize("model", ["logistic", "gpt-tiny"])
def test_classes_that_would_fill_the_memory_are_refused_before_it_is_taken(
    model: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunLog.open(out / LOG_FILE, write=False) as log:
        header = log.header
    header |= {"classes": 2**24, "start": {"by": "libraries"}, "config": header["config"] | {"model": model}}
    (out / LOG_FILE).write_bytes(logs.beginning(2, header, b""))
    monkeypatch.setattr("decomfl_lab.runs.preparation.build_model", None)  # nothing is built
    with pytest.raises(lab.InputError, match=r"model must have d = 650|images|shape"):
        lab.replay(out / LOG_FILE)


def test_a_model_that_no_machine_can_hold_is_refused_with_its_size() -> None:
    with pytest.raises(lab.InputError, match=r"parameters d of logistic must fit into the \d+ GB of memory here"):
        build_model("logistic", seed=0, in_shape=(1, 8, 8), classes=2**40)


def test_rows_of_a_run_are_read_with_all_that_they_say(whole: Path) -> None:
    rows = read_values(whole / CHECKPOINT_FILE)[1]["rows"]
    require_rows(rows, "rows")
    for name in ("round", "wire_bytes", "up_bytes", "gradient_scalars", "model_pulls"):
        with pytest.raises(lab.InputError, match=f"{name} in rows must be a whole number"):
            require_rows([rows[0] | {name: -1}], "rows")
    with pytest.raises(lab.InputError, match="norm in rows must be a number of at least 0, got -1"):
        require_rows([rows[0] | {"norm": -1.0}], "rows")
    require_rows([{name: value for name, value in rows[0].items() if name != "norm"}], "rows of earlier code")
