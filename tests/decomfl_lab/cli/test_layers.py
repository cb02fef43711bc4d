"""Commands and figures of layers that are not installed, as with the wheel: not offered, and refused by name."""

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
@pytest.mark.parametrize(
    ("argv", "offered"), [([], "decomfl kappa --data digits --model mlp"), (["bench", "rebuild"], "Time rebuilds")]
)
def test_what_is_not_installed_is_not_offered(
    argv: list[str], offered: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--help"]) == 0
    out = capsys.readouterr().out
    assert (offered in out, "Usage: decomfl" in out) == (True, True)
    assert not re.search(r"--plot|decomfl paper|\n  paper ", out)


def test_what_is_installed_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert re.search(r"decomfl paper --scale smoke.*\n  paper ", capsys.readouterr().out, re.DOTALL)
    assert main(["bench", "rebuild", "--help"]) == 0
    assert "--plot" in capsys.readouterr().out


@pytest.mark.usefixtures("_wheel")
def test_the_picture_of_kappa_needs_no_layer_that_only_a_checkout_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = "--data digits --model logistic --train-steps 1 --examples 50 --products 12 --density-products 0"
    assert main(["kappa", *argv.split(), "--plot", str(tmp_path / "k.png")]) == 0
    assert (tmp_path / "k.png").exists()
    assert "figures" not in capsys.readouterr().err


@pytest.mark.usefixtures("_wheel")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("paper --only fig2", "paper must be asked of a checkout of the project"),
        ("bench rebuild --plot k.png", "plot k.png must be asked of a checkout of the project"),
    ],
)
def test_asked_for_anyway_it_says_what_is_missing(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"decomfl: error: {message}")
    assert re.search(r"`make setup`.* without the layer nowhere_(paper_repro|figures)\n$", error)


def test_a_broken_module_of_an_installed_layer_is_no_missing_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("broken", "decomfl_lab.cli.main:no_such_thing", "decomfl.commands")
    monkeypatch.setattr(layers, "entry_points", lambda **_: EntryPoints([entry]))
    with pytest.raises(AttributeError, match="no_such_thing"):
        layers.load("decomfl.commands", "broken", "it")
