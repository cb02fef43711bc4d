"""A user's packages that are called as the lab's: commands have their own, a line says what is hidden; extras."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.cli.screen import LazyGroup
from decomfl_lab.errors import InputError
from decomfl_lab.installation import PACKAGES, ROOT, command_for

OWN = """
from theory import mine
def loss(outputs, targets): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a user who has a package ``theory``, a module ``hessian`` and a folder of pictures ``figures``."""
    (tmp_path / "theory").mkdir()
    (tmp_path / "theory" / "__init__.py").write_text("mine = 1\n")
    (tmp_path / "hessian.py").write_text("mine = 1\n")
    (tmp_path / "figures").mkdir()
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def _python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def test_commands_import_the_labs_own_packages(folder: Path) -> None:
    for line in ("check --help", "plot --help"):
        done = _python(folder, "-m", "decomfl_lab", *line.split())
        assert (done.returncode, done.stderr) == (0, ""), line


def test_one_line_says_what_a_users_packages_hide(folder: Path) -> None:
    done = _python(folder, "-c", "import decomfl_lab, theory; print(theory.mine)")
    assert done.stdout == "1\n"
    (line,) = done.stderr.splitlines()
    for path in (folder / "theory", folder / "hessian.py"):
        assert str(path) in line
    assert "figures" not in line  # pictures hide nothing
    assert _python(folder / "figures", "-c", "import decomfl_lab, theory; theory.statement").stderr == ""


def test_a_users_file_that_means_its_own_package_is_told_which_one_it_got(folder: Path) -> None:
    done = _python(folder, "-m", "decomfl_lab", "kappa", "--data", "digits", "--model", "mlp", "--loss", "own.py:loss")
    assert done.returncode == 2
    assert f"theory is the lab's package here, not {folder / 'theory' / '__init__.py'}: rename yours" in done.stderr


def test_a_command_whose_package_a_wheel_lacks_says_where_it_is() -> None:
    absent: Any = SimpleNamespace(name="bench", module="no_package_of_this_name.group")
    group = LazyGroup("decomfl", [absent])
    context = click.Context(group)
    assert group.list_commands(context) == []
    with pytest.raises(InputError, match="decomfl bench must be run in a clone of the project "):
        group.get_command(context, "bench")
    assert all((ROOT / package / "__init__.py").exists() for package in PACKAGES)


def test_what_lists_commands_lists_those_that_a_wheel_has(capsys: pytest.CaptureFixture[str], without: Any) -> None:
    without("benchmarks")
    for line in (["--help"], ["schema"], ["schema", "kappa"]):
        assert main(line) == 0
        assert "bench " not in capsys.readouterr().out


SOURCES = {
    "pip install 'decomfl-lab[llm]'": None,  # of an index
    f"pip install -e '{ROOT}[llm]'": {"url": "file:///x", "dir_info": {"editable": True}},
    "pip install 'decomfl-lab[llm] @ file:///x'": {"url": "file:///x", "dir_info": {}},
    "pip install 'decomfl-lab[llm] @ file:///d/w.whl'": {"url": "file:///d/w.whl", "archive_info": {}},
}


@pytest.mark.parametrize("command", SOURCES)
def test_an_extra_comes_from_where_the_lab_came(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = SOURCES[command] and json.dumps(SOURCES[command])
    distribution = SimpleNamespace(read_text=lambda name: told if name == "direct_url.json" else None)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: distribution)
    assert command_for("llm") == command
