"""``make device``: a row for every part, also of one that fails or takes too long, and commands that there are."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
import torch

from benchmarks import card
from decomfl_lab.cli.main import application


def test_a_part_that_fails_or_takes_too_long_has_a_row_and_others_go_on() -> None:
    def python(code: str) -> list[str]:
        return ["-c", f"import sys; {code}"]

    parts = {
        "right": python("import json; print(json.dumps(sys.argv[1:]))"),
        "wrong": python("print('half a row'); sys.exit('a rule was broken')"),
        "slow": python("import time; time.sleep(60)"),
        "late": python("1"),
    }
    right, wrong, slow, late = card.measured(parts, "cuda:1", 5.0)
    assert (right["exit"], right["found"]) == (0, ["--device", "cuda:1"])
    assert (wrong["exit"], wrong["found"]) == (1, None)
    assert "half a row" in wrong["said"]
    assert "a rule was broken" in wrong["said"]
    assert slow["exit"] is late["exit"] is None
    assert "the time was over after" in slow["said"]
    assert late["said"] == "the time was over after 0 s"


def test_rows_are_written_with_their_provenance_as_parts_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "device.json"
    own = {"one": ["-c", "print(1)"], "two": ["-c", "import nowhere"]}
    monkeypatch.setattr(card, "PARTS", {"cpu": own})
    assert card.main(["--device", "cpu", "--out", str(out)]) == 1
    record = json.loads(out.read_text())
    assert [(row["part"], row["exit"], row["found"]) for row in record["parts"]] == [("one", 0, 1), ("two", 1, None)]
    assert {"device", "date", "machine", "code", "torch"} <= record.keys()
    assert "FAILED: " in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        card.main(["--device", "cpu", "--minutes", "0"])
    assert refused.value.code == 2
    assert "minutes must be a finite number above 0, got 0.0" in capsys.readouterr().err


@pytest.mark.parametrize("kind", card.PARTS)
def test_every_part_is_a_command_with_options_that_there_are(kind: str) -> None:
    for words in card.PARTS[kind].values():
        assert words[0] == "-m"
        command: click.Command | None = application()
        rest = [*words[2:], "--device", "cpu"]
        if words[1] == "decomfl_lab":
            while isinstance(command, click.Group):
                _, command, rest = command.resolve_command(click.Context(command), rest)
            assert command is not None
            command.make_context("part", rest)


def test_the_large_net_is_one_that_kappa_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 8 * card._WIDTH**2 == 999_939_200
    monkeypatch.setattr(card, "_WIDTH", 8)
    net, (x, y) = card.billion(), card.inputs()
    assert sum(p.numel() for p in net.parameters()) == 8**3
    assert torch.nn.functional.cross_entropy(net(x), y).isfinite()
    prompts, classes = card.prompts()
    assert (len(prompts), set(classes.tolist())) == (32, {0, 1})
