"""Every command: its help, its exit code, what it prints and where to, what it loads, and whose code it runs."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from decomfl_lab.cli import train as training
from decomfl_lab.cli.main import JOBS, application, main
from decomfl_lab.cli.screen import LINES, lines_of
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.processes import environment
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.runs.configuration import TrainConfig, config_from_mapping, read_config
from decomfl_lab.storage.json_values import plain, print_json
from tests.cases import rows_of
from tests.decomfl_lab.carriers.killed import over_stream
from tests.decomfl_lab.cli.golden import walk
from tests.decomfl_lab.runs.variants import OTHERS, VARIANTS

ROWS = rows_of(__file__)
ROOT = Path(__file__).parents[3]
PACKAGES = ("decomfl_lab", "hessian", "theory", "figures", "paper_repro", "benchmarks")
SOURCES = {path: path.read_text("utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
DECOMFL = [sys.executable, "-P", "-m", "decomfl_lab"]
TINY = "--data digits --model logistic --rounds 2 --eval-every 2 --clients 4 --sampled 2 --perturbations 2"


EVERY = list(walk(application(), "decomfl"))

# What a command says of itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[path for path, _ in EVERY])
def test_a_help_has_at_most_sixty_lines_and_all_of_it_has_every_option(
    path: str, command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path.split()[1:], "--help"]) == 0
    assert lines_of(capsys.readouterr().out) <= LINES
    assert main([*path.split()[1:], "--help-all"]) == 0
    found = capsys.readouterr().out
    shown = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    assert [each.opts[-1] for each in shown if f"  {each.opts[0]}" not in found] == []


def test_every_help_is_the_golden_one() -> None:
    golden = Path(__file__).with_name("help.txt").read_text(encoding="utf-8")
    words = [sys.executable, "-m", "tests.decomfl_lab.cli.golden"]
    done = subprocess.run(words, cwd=ROOT, env=environment({"PYTHONUTF8": "1"}), capture_output=True, check=True)
    assert done.stdout.decode() == golden, "make golden, and read the diff"


def test_without_arguments_it_shows_the_jobs_and_a_whole_line_for_every_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"{job:<28} decomfl {words}\n" in out for job, words in JOBS.items())
    for path, command in EVERY:
        _, *words = path.split()
        assert len(words) != 1 or f"  {words[0]:<12}  {command.get_short_help_str(1000)}\n" in out


def test_the_examples_of_the_help_of_train_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    examples = [line.split("  ")[0].split() for line in lines if line.startswith("decomfl train")]
    assert len(examples) == 6
    for _, *argv in examples:
        needs_more = {"--help", "run.toml"} & set(argv)
        quick = ["--rounds", "1", "--test-examples", "10", "--sampled", "1", "--batch-size", "8"]
        assert needs_more or main([*argv, *quick]) == 0, argv


@pytest.mark.parametrize(("argv", "added"), ROWS["screens"])
def test_the_digits_are_what_a_command_line_trains_that_names_nothing(argv: list[str], added: bool) -> None:
    context = click.Context(training.train, info_name="decomfl train")
    training.train.parse_args(context, list(argv))
    words, first = [*context._protected_args, *context.args], training.FIRST
    given = {word.partition("=")[0] for word in argv}
    there = [name in words and words[words.index(name) + 1] == first[name] for name in first if name not in given]
    assert {*there} == {added}
    assert words[0] == ("fedavg" if "fedavg" in argv else "decomfl")


# The flags of train ---------------------------------------------------------------------------------------------------


def flags_of(variant: dict[str, Any]) -> Iterator[str]:
    """A variant of a run as flags; an empty schedule has none."""
    for name, value in variant.items():
        if isinstance(value, dict):
            value = ",".join(f"{r}={each}" for r, each in value.items())
        if value != "":
            yield f"--{name.replace('_', '-')}"
            yield from () if value is True else (str(value),)


BY_NAME = [*({"method": method} for method in METHODS), *({"seeds": seeding.value} for seeding in Seeding)]
AGENT = {"method": "mezo"}
"""One agent alone, which has no cohort."""


@pytest.mark.parametrize("variant", [*BY_NAME, *VARIANTS, *(each for each in OTHERS if "clients" not in each)], ids=str)
def test_flags_of_every_method_and_variant_make_its_configuration(variant: dict[str, Any]) -> None:
    given: list[Any] = []

    def train(*own: Any) -> None:
        given.extend(own)

    cohort = {} if variant == AGENT else {"clients": 4, "sampled": 2}
    run = {"data": "digits", "model": "logistic", "rounds": 4, "eval_every": 2, **cohort, **variant}
    group = training.TrainGroup("train", training.TrainOptions, train)
    group.main([*flags_of(run)], standalone_mode=False)
    method, options, flags = given
    assert training.prepared(method, options.place, flags).config == TrainConfig(**run)


def test_of_fewer_clients_than_are_usually_sampled_all_are() -> None:
    assert [TrainConfig(clients=M).sampled for M in (1, 4, 9, 10, 11)] == [1, 4, 9, 10, 10]


def test_configuration_round_trips_through_toml(tmp_path: Path) -> None:
    config = TrainConfig(lr_schedule={5: 0.1}, perturbation_schedule={7: 40}, seed=2**63, lr=1e-7)
    path = tmp_path / "c.toml"
    path.write_text(config.to_toml())
    assert config_from_mapping(read_config(path), "c.toml") == config
    assert config.fingerprint(data="a", code="b") != config.fingerprint(data="a", code="c")


# What commands print, and where it goes -------------------------------------------------------------------------------


LINE = {name: line.format(ROOT=ROOT) for name, line in ROWS["lines"].items()}
"""A line of each command that needs a moment; the others are in ``ELSEWHERE``."""
ELSEWHERE = ROWS["elsewhere"]
"""What the others need."""
NO_ROOM = "decomfl: error: there must be room for what is printed and written, got none (No space left on device)\n"
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")


def told(text: str) -> Any:
    """The value; an AssertionError where it is no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json") / "run"
    assert main(["train", *TINY.split(), "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name == "check")) for name in LINE]
)
def test_each_command_prints_one_value_of_json(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(run.parent)
    assert main([name, *LINE[name].split(), "--json"]) == 0
    assert told(capsys.readouterr().out)


def test_train_prints_configuration_table_and_what_was_rebuilt(run: Path, capsys: Any) -> None:
    assert main(["train", *TINY.split(), "--out", str(run), "--json"]) == 0
    trained = told(capsys.readouterr().out)
    assert trained["rebuilt"] == {"clients": 4, "equal": 4}
    assert trained["config"]["rounds"] == trained["metrics"][-1]["round"] == 2


def test_every_command_with_the_flag_is_in_a_table_and_prints_in_this_way_alone() -> None:
    with_json = {path.split()[1] for path, own in EVERY if any("--json" in each.opts for each in own.params)}
    assert with_json - {*LINE, *ELSEWHERE} == {"train"}
    assert {*LINE, *ELSEWHERE} <= with_json
    asked = {path: text for path, text in SOURCES.items() if "as_json" in text}
    assert len(asked) >= len(LINE)
    assert [str(path) for path, text in asked.items() if re.search(r"json\.dumps|print\(.*to_json", text)] == []


def test_a_value_becomes_json_wherever_it_hides(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": math.inf, "κ": (1.5, [-math.inf, {"b": math.nan}]), "text": "a\u202eb\x1b[2J\U000e0001"}
    print_json(value)
    out = capsys.readouterr().out
    assert told(out) == {"a": None, "κ": [1.5, [None, {"b": None}]], "text": value["text"]}
    assert out.rstrip("\n").isprintable()
    assert "κ" in out
    assert plain(value)["κ"][1] == [None, {"b": None}]


@needs_full
@pytest.mark.parametrize("more", [[], ["--json"], ["--help"]], ids=" ".join)
def test_a_full_disk_is_a_line_and_exit_code_2(more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["bound", *LINE["bound"].split(), *more]) == 2
        full.flush()  # what is left goes nowhere
    assert capsys.readouterr().err.endswith(NO_ROOM)


@needs_full
def test_nothing_is_said_of_it_once_more_when_the_process_ends() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*DECOMFL, "bound", *LINE["bound"].split()], stdout=full, stderr=-1, text=True)
    assert (done.returncode, done.stderr.count("decomfl: error"), done.stderr.endswith(NO_ROOM)) == (2, 1, True)


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_letters_that_an_encoding_lacks_are_escaped(more: list[str]) -> None:
    own = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*DECOMFL, "bound", *LINE["bound"].split(), *more], env=own, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.decode("ascii")) > 100
    assert not more or told(done.stdout.decode("ascii"))


def test_a_reader_who_goes_away_is_no_error() -> None:
    words = [*DECOMFL, "noise", "--d", "100000", "--count", "100000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


# A command starts at once, and completes in a shell -------------------------------------------------------------------


HEAVY = ("hypothesis", "matplotlib", "numba", "pandas", "scipy", "sympy", "torch", "transformers")
AT_ONCE = f"""
import atexit, sys
atexit.register(lambda: print(*{{*{HEAVY}}} & {{*sys.modules}}, file=sys.stderr))
from decomfl_lab.cli.main import main
for words in (["--version"], ["--help"], ["bench", "--help"], ["noise", "--help"]):
    assert main(words) == 0
main()
"""


@pytest.mark.parametrize(("typed", "completed"), ROWS["completed"])
def test_a_shell_completes_names(typed: str, completed: str) -> None:
    *words, last = typed.split()[1:]
    shell = ShellComplete(application(), {}, "decomfl", "_DECOMFL_COMPLETE")
    assert [each.value for each in shell.get_completions(words, last)] == [completed]


def test_nothing_heavy_is_loaded_for_a_help_or_a_completion() -> None:
    typed, completed = ROWS["completed"][-1]
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_DECOMFL_COMPLETE": "bash_complete"}
    done = subprocess.run([sys.executable, "-c", AT_ONCE], env=os.environ | asked, capture_output=True, text=True)
    assert done.stderr.split() == []
    assert done.stdout.split()[-1] == f"plain,{completed}"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--show-completion", shell]) == 0
    assert f"_DECOMFL_COMPLETE={shell}_complete" in capsys.readouterr().out


# A folder of files that are called like libraries ---------------------------------------------------------------------


MINE = """
import torch
def model(): torch.manual_seed(0); return torch.nn.Linear(3, 2)
def data(): return [(torch.ones(4, 3), torch.zeros(4).long())] * 3, (torch.ones(2, 3), torch.zeros(2).long())
"""
OWN = "--data mine:data --model mine.py:model --batch-size 4"
WALK = {
    **LINE,
    "train": f"{OWN} --clients 3 --sampled 2 --rounds 2",
    "bench": "coverage --seeds 1 --spectra flat",
    "export": "run weights.safetensors",
    "findings": "--write .",
    "paper": "--only fig2 --scale smoke --jobs 2 --out out",
    "plot": "run --y loss",
    **dict.fromkeys(("join", "schema", "serve", "tightness"), "--help"),  # hours, or see below
}
POOL = """
from decomfl_lab.processes import Processes
import math
calls = iter([(n, math.sqrt, (n * n,)) for n in range(4)])
if __name__ == "__main__":
    with Processes(2) as processes:
        assert sorted(processes.results(lambda: next(calls, None))) == [(n, n) for n in range(4)]
"""
"""What `decomfl paper` has its runs computed by."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a file for every library, which leaves a mark when it is run, a module of the user's, and a run."""
    folder = tmp_path_factory.mktemp("current")
    assert main(["train", *TINY.split(), "--out", str(folder / "run")]) == 0
    (folder / "mine.py").write_text(MINE)
    for name in {*sys.stdlib_module_names, *packages_distributions()} - {*PACKAGES, "tests"}:
        if name.isidentifier() and PathFinder.find_spec(name):  # others are of other systems
            (folder / f"{name}.py").write_text(f"print({name!r}, file=open({str(folder / 'ran')!r}, 'a'))\n")
    return folder


def _marks(folder: Path, words: list[str], env: dict[str, str] | None = None) -> str:
    """The libraries of the folder that a process there has run."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    mark = folder / "ran"
    found = mark.read_text() if mark.exists() else ""
    mark.unlink(missing_ok=True)
    return found


def test_the_walk_has_every_command() -> None:
    app = application()
    assert app.entries.keys() == WALK.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name != "train")) for name in [*WALK, "pool"]]
)
def test_no_command_runs_what_is_called_like_a_library(name: str, folder: Path) -> None:
    words = [sys.executable, "-P", "-c", POOL] if name == "pool" else [*DECOMFL, name, *WALK[name].split()]
    assert _marks(folder, words) == ""


@pytest.mark.thorough
def test_no_server_or_client_runs_what_is_called_like_a_library(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the extra stream is not installed")
    config = TrainConfig(data="mine:data", model="mine.py:model", clients=3, sampled=2, rounds=30, batch_size=4)
    assert len(set(over_stream(config, tmp_path, folder).values())) == 1
    assert not (folder / "ran").exists()


def test_a_process_that_is_started_otherwise_is_noticed(folder: Path) -> None:
    assert "joblib" in _marks(folder, [sys.executable, "-c", "import joblib"])
    code = "import sys; sys.path.append(''); import mine"
    assert _marks(folder, [sys.executable, "-c", code], environment()) == ""


def test_every_place_that_starts_python_says_so() -> None:
    """Whoever names the interpreter gives it the environment, and whoever has a library start it does so ``safely``."""
    starts = r"sys\.executable|get_context\(|ray\.init\("
    found = {path for path, text in SOURCES.items() if re.search(starts, text)}
    assert len(found) >= 4
    assert {path for path in found if not re.search(r"=environment\(|safely\(\)", SOURCES[path])} == set()
