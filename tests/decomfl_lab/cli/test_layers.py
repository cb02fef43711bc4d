"""Commands of layers that are not installed, as with the wheel: not offered, and refused by name."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path

import pytest

from decomfl_lab.cli import layers
from decomfl_lab.cli.main import main

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
SHIPPED = tuple(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])


@pytest.fixture
def _wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry points as the wheel has them: those of folders that it does not ship lead nowhere."""

    def found(**which: str) -> EntryPoints:
        return EntryPoints(
            entry
            if entry.module.partition(".")[0] in SHIPPED
            else EntryPoint(entry.name, f"nowhere_{entry.value}", entry.group)
            for entry in entry_points(**which)
        )

    monkeypatch.setattr(layers, "entry_points", found)


@pytest.mark.usefixtures("_wheel")
def test_what_is_not_installed_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"decomfl kappa --data digits --model mlp.*\n  plot ", out, re.DOTALL)
    assert not re.search(r"decomfl paper|\n  paper ", out)


def test_what_is_installed_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert re.search(r"decomfl paper --scale smoke.*\n  paper ", capsys.readouterr().out, re.DOTALL)


@pytest.mark.usefixtures("_wheel")
def test_the_picture_of_kappa_needs_no_layer_that_only_a_checkout_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = "--data digits --model logistic --train-steps 1 --examples 50 --products 12 --density-products 0"
    assert main(["kappa", *argv.split(), "--plot", str(tmp_path / "k.png")]) == 0
    assert (tmp_path / "k.png").exists()
    assert "figures" not in capsys.readouterr().err


@pytest.mark.usefixtures("_wheel")
def test_asked_for_anyway_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "--only", "fig2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("decomfl: error: paper must be asked of a checkout of the project")
    assert re.search(r"`make setup`.* without the layer nowhere_paper_repro\n$", error)


def test_a_broken_module_of_an_installed_layer_is_no_missing_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("broken", "decomfl_lab.cli.main:no_such_thing", "decomfl.commands")
    monkeypatch.setattr(layers, "entry_points", lambda **_: EntryPoints([entry]))
    with pytest.raises(AttributeError, match="no_such_thing"):
        layers.load("decomfl.commands", "broken", "it")
