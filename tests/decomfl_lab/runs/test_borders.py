"""What a run says, keeps and refuses at its borders: other people's files, a log that was cut, numbers out of range."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import decomfl_lab as lab
from decomfl_lab.cli.main import main
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs.folder import CONFIG_FILE, LOG_FILE, METRICS_FILE
from decomfl_lab.runs.run import Run
from decomfl_lab.storage.provenance import PROVENANCE_FILE
from tests.cases import rows_of
from tests.decomfl_lab.runs.test_replay import PAIRS
from tests.decomfl_lab.runs.variants import SMALL


def test_a_batch_of_a_clients_whole_data_is_said(capsys: Any) -> None:
    command = ["train", "--data", "digits", "--model", "logistic", "--rounds", "1", "--clients", "100"]
    assert main([*command, "--batch-size", "999999"]) == 0
    assert "; a batch is a client's whole data, 13 examples;" in capsys.readouterr().out
    assert main([*command, "--batch-size", "13"]) == 0
    assert "whole data" not in capsys.readouterr().out


def test_other_things_in_the_folder_of_a_new_run_are_told_of_and_left_alone(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "photos").mkdir()
    Run(SMALL).train(out=tmp_path)
    assert f"{tmp_path} has other things in it, which are left alone: notes.txt, photos" in caplog.text
    assert (tmp_path / "notes.txt").read_text() == "precious"


FOREIGN = [
    (CONFIG_FILE, 'title = "a site"\n'),
    (METRICS_FILE, "name,price\ntea,3\n"),
    (METRICS_FILE, "my notes\n"),
    (PROVENANCE_FILE, '{"who": "me"}'),
    (LOG_FILE, "a log of something else"),
]


@pytest.mark.parametrize(("name", "text"), FOREIGN)
def test_a_file_of_somebody_else_with_a_name_of_ours_is_not_replaced(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(lab.InputError):
        Run(SMALL).train(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == text


def test_a_log_that_was_cut_is_not_told_to_be_the_whole_run(tmp_path: Path, capsys: Any) -> None:
    Run(SMALL).train(out=tmp_path)
    whole = (tmp_path / LOG_FILE).read_bytes()
    assert "the log ends before" not in str(lab.replay(tmp_path))
    (tmp_path / "cut.dcl").write_bytes(whole[:-20])
    assert main(["replay", str(tmp_path / "cut.dcl")]) == 0
    told = capsys.readouterr().out
    assert "after 3 of 3 rounds is rebuilt: " in told  # and not: bit for bit, as round 3 has no digest
    assert "rounds 3 to 3 have no digest, so they are not checked" in told
    assert "the log ends before the 4 rounds that the run was to have" in told


def test_a_run_that_is_saved_at_last_has_its_log(tmp_path: Path) -> None:
    model = torch.nn.Linear(6, 2)
    run = lab.train(model, cross_entropy, PAIRS, rounds=2)
    run.more(1)
    run.save(tmp_path / "a")
    found = lab.replay(tmp_path / "a", model)
    assert (found.round, found.rounds) == (3, 3)
    run.more(1, out=tmp_path / "later")
    assert lab.replay(tmp_path / "later", model).rounds == 4


@pytest.mark.parametrize(("change", "told"), rows_of(__file__)["rows"])
def test_records_of_another_run_than_the_log_says_do_not_agree(
    change: dict[str, Any], told: str, tmp_path: Path, capsys: Any
) -> None:
    Run(SMALL).train(out=tmp_path)
    with RunLog.open(tmp_path / LOG_FILE) as log:
        log.rewrite(tmp_path / LOG_FILE, {**log.header, "config": log.header["config"] | change})
    assert main(["replay", str(tmp_path / LOG_FILE)]) == 1
    assert f"; but NOT the records of this run: {told}" in capsys.readouterr().out
