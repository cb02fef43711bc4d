"""``module:function`` of a user: found in the current folder, called, and refused in one line."""

import json
import sys
from pathlib import Path

import pytest
from torch import nn

from decomfl_lab.errors import InputError
from decomfl_lab.plugins import is_own, made, named
from decomfl_lab.storage.tables import text_beside
from tests.cases import refuses, rows_of

OWN = text_beside(__name__, "own_plugin.txt")


@pytest.fixture(autouse=True)
def _own_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "own_things.py").write_text(OWN)
    (here / "own_neighbour.py").write_text("WIDTH = 3")
    (here / "own_broken.py").write_text("x = 1\ny = z\n")
    for name in ("own_things", "own_neighbour", "own_broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_class_or_function_is_called_and_an_object_of_the_kind_is_taken_as_it_is() -> None:
    assert made("model", "own_things:Net", nn.Module) is not made("model", "own_things:Net", nn.Module)
    assert made("model", "own_things:net", nn.Module) is named("model", "own_things:net")
    assert made("data", "own_things:rows", object) == [1, 2]
    assert named("loss", "torch.nn.functional:mse_loss") is nn.functional.mse_loss
    assert isinstance(named("model", "own_things:net.weight"), nn.Parameter)


@refuses(*rows_of(__file__)["refused"])
def test_what_cannot_be_made_is_named_in_one_line(target: str) -> None:
    made("model", target, nn.Module)


def test_a_file_is_named_by_its_path_and_hides_no_module(here: Path) -> None:
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "json.py").write_text("rows = [3]")
    assert named("data", "elsewhere/json.py:rows") == [3]
    assert sys.modules["json"] is json
    assert is_own(f"{here}/elsewhere/json.py:rows")
    assert not is_own("elsewhere/json.py")
    with pytest.raises(InputError, match=r"^data must be module:function that can be imported, got 'none.py:rows' \("):
        named("data", "none.py:rows")
    with pytest.raises(InputError, match=r"NameError: name 'z' is not defined, own_broken.py line 2"):
        named("data", "own_broken.py:x")
