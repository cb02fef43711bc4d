"""The command line starts at once and is whole: what is listed is not loaded, has its own help, and is installed."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from benchmarks.group import bench
from decomfl_lab.cli.main import application
from decomfl_lab.cli.screen import Contribution

HEAVY = ("hypothesis", "matplotlib", "numba", "pandas", "scipy", "sympy", "torch", "transformers")
COMMAND = "from decomfl_lab.cli.main import main; assert main({}) == 0"


def _contributions() -> Iterator[tuple[str, Contribution]]:
    for group in (application(), bench):
        for name, command in group.commands.items():
            assert isinstance(command, Contribution)
            yield f"{group.name} {name}", command


@pytest.mark.parametrize(
    "program",
    [
        "import decomfl_lab",
        *(COMMAND.format(argv) for argv in (["--version"], ["--help"], ["bench", "--help"], ["noise", "--help"])),
    ],
)
def test_nothing_heavy_is_loaded(program: str) -> None:
    asked = f"{program}; import sys; print(*set({HEAVY}) & set(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stderr.split() == []


@pytest.mark.parametrize(("name", "command"), list(_contributions()))
def test_a_line_of_help_is_that_of_the_command_itself(name: str, command: Contribution) -> None:
    assert command.get_short_help_str(200) == command.load().get_short_help_str(200) != "", name


def test_a_help_that_only_running_the_source_tells_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import click\nwhat = 'made'\nmaking = click.Command('making', help=f'Is {what}.')\n"
    (tmp_path / "own_commands.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Contribution(EntryPoint("making", "own_commands:making", "own")).get_short_help_str() == "Is made."


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


def test_a_broken_module_of_a_layer_is_no_bad_input() -> None:
    entry = EntryPoint("broken", "decomfl_lab.cli.main:no_such_thing", "decomfl.commands")
    with pytest.raises(AttributeError, match="no_such_thing"):
        Contribution(entry).load()
