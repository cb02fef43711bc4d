"""What every command says of itself fits a screen and completes in a shell; the command line starts at once."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from benchmarks.group import bench
from decomfl_lab.cli.main import JOBS, application, main
from decomfl_lab.cli.screen import LINES, Contribution, lines_of
from decomfl_lab.cli.train import FIRST, train
from tests.cases import rows_of


def _walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    loaded = command.load() if isinstance(command, Contribution) else command
    yield path, loaded
    if isinstance(loaded, click.Group):
        context = click.Context(loaded, info_name=path)
        for name in loaded.list_commands(context):
            found = loaded.get_command(context, name)
            assert found is not None
            yield from _walk(found, f"{path} {name}")


EVERY = list(_walk(application(), "decomfl"))


def _screen(path: str, capsys: pytest.CaptureFixture[str], flag: str = "--help") -> str:
    assert main([*path.split()[1:], flag]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("path", [path for path, _ in EVERY])
def test_a_help_has_at_most_sixty_lines(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(_screen(path, capsys)) <= LINES


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_all_of_the_help_has_every_option(
    path: str, command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _screen(path, capsys, "--help-all")
    shown = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    assert [each.opts[-1] for each in shown if f"  {each.opts[0]}" not in found] == []


def test_without_arguments_it_shows_the_jobs_and_a_whole_line_for_every_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"{job:<28} decomfl {words}\n" in out for job, words in JOBS.items())
    for name, command in application().commands.items():
        assert f"  {name:<12}  {command.get_short_help_str(1000)}\n" in out


@pytest.mark.parametrize(("typed", "completed"), rows_of(__file__)["completed"])
def test_a_shell_completes_names_without_torch(typed: str, completed: str) -> None:
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_DECOMFL_COMPLETE": "bash_complete"}
    code = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
        "from decomfl_lab.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True)
    assert done.stdout.split() == [f"plain,{completed}", "False"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--show-completion", shell]) == 0
    assert f"_DECOMFL_COMPLETE={shell}_complete" in capsys.readouterr().out


@pytest.mark.parametrize(("argv", "added"), rows_of(__file__)["screens"])
def test_the_digits_are_what_a_command_line_trains_that_names_nothing(argv: list[str], added: bool) -> None:
    context = click.Context(train, info_name="decomfl train")
    train.parse_args(context, list(argv))
    words = [*context._protected_args, *context.args]
    given = {word.partition("=")[0] for word in argv}
    assert all(
        (name in words and words[words.index(name) + 1] == FIRST[name]) == added for name in FIRST if name not in given
    )
    assert words[0] == ("fedavg" if "fedavg" in argv else "decomfl")


# It starts at once, and is whole --------------------------------------------------------------------------------------


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
    named = {value.partition(".")[0] for group in groups for value in group.values()}
    assert named - SHIPPED == {"benchmarks"}  # of which a wheel's list of commands says nothing
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders - SHIPPED == {"benchmarks", "tests"}
    assert {path.parent.name for path in ROOT.glob("*/py.typed")} >= SHIPPED  # else all of it is Any to an editor


def test_what_is_asked_of_torch_is_asked_everywhere_alike() -> None:
    (wanted,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert f"pip install --no-cache-dir torch=={wanted} " in (ROOT / "Dockerfile").read_text()
    assert "--constraint constraints.txt" in (ROOT / "environment.yml").read_text()


def test_a_broken_module_of_a_layer_is_no_bad_input() -> None:
    entry = EntryPoint("broken", "decomfl_lab.cli.main:no_such_thing", "decomfl.commands")
    with pytest.raises(AttributeError, match="no_such_thing"):
        Contribution(entry).load()
