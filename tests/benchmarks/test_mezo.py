"""``decomfl bench mezo``: what its rows say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decomfl_lab.cli.main import main
from tests.decomfl_lab.language.tiny import save_opt, transformers


@pytest.mark.parametrize("model", ["opt-0.3m", "mine"])
def test_rows_hang_together(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers()
    place = model if model != "mine" else str(save_opt(tmp_path / model))
    arguments = ["--model", place, "--vocabulary", "300", "--batch-size", "2", "--repeats", "1", "--json"]
    code, told = main(["bench", "mezo", *arguments]), capsys.readouterr()
    assert code == 0, told.err
    (table,) = json.loads(told.out)["tables"]
    assert [row["way"] for row in table["rows"]] == ["in place", "decomfl_lab.optim", "decomfl_lab.optim, log"]
    for row in table["rows"]:
        assert row["model"] == model
        assert row["ratio"] == pytest.approx(table["rows"][0]["seconds"] / row["seconds"])
