"""The command line starts at once: what is listed is not loaded, and has the help that it would have if it were."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from benchmarks.group import bench
from decomfl_lab.cli.lazy import Contribution
from decomfl_lab.cli.main import application

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
