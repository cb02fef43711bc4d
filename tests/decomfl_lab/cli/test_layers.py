"""The installed package has all that its help lists."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from decomfl_lab.cli import layers

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SHIPPED = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])


def test_every_entry_point_is_of_a_folder_that_the_wheel_has() -> None:
    groups = [PROJECT["project"]["scripts"], *PROJECT["project"]["entry-points"].values()]
    assert {value.partition(".")[0] for group in groups for value in group.values()} <= SHIPPED
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders - SHIPPED == {"tests"}
    assert {path.parent.name for path in ROOT.glob("*/py.typed")} == SHIPPED  # else all of it is Any to an editor


def test_what_is_asked_of_torch_is_asked_everywhere_alike() -> None:
    (wanted,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert f"pip install --no-cache-dir torch=={wanted} " in (ROOT / "Dockerfile").read_text()
    assert "--constraint constraints.txt" in (ROOT / "environment.yml").read_text()


def test_a_broken_module_of_a_layer_is_no_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("broken", "decomfl_lab.cli.main:no_such_thing", "decomfl.commands")
    monkeypatch.setattr(layers, "entry_points", lambda **_: EntryPoints([entry]))
    with pytest.raises(AttributeError, match="no_such_thing"):
        layers.load("decomfl.commands", "broken")
