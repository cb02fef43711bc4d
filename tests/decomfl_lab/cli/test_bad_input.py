"""Bad input to any command is one line that names the argument, the rule and the value; nothing is begun or written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decomfl_lab.checkpoint import read_checkpoint, write_checkpoint
from decomfl_lab.cli.lazy import Contribution
from decomfl_lab.cli.main import application, main
from decomfl_lab.errors import MOST_OPERATIONS, InputError, require_int, require_possible
from decomfl_lab.files import require_writable
from decomfl_lab.runs import building

HUGE, LONG = str(2**70), "1" * 5000
RUN = "train --data digits --model logistic"
CASES = [
    (f"{RUN} --threads 100000", "threads must be an integer in 1..1024, got 100000"),
    (f"{RUN} --rounds 1{'0' * 20}", "rounds R must be an integer in 1..9223372036854775807, got 1"),
    (f"{RUN} --rounds 1000000000000", "rounds R, sampled m, local_steps K and perturbations P must ask for at most"),
    (f"{RUN} --local-steps 1000000000000", "K and P must be 1 to 65535 on the wire, got (1000000000000, 20)"),
    (f"{RUN} --perturbations {HUGE}", "perturbations P must be an integer in 1.."),
    (f"{RUN} --batch-size {HUGE}", "batch_size B must be an integer in 1.."),
    (f"{RUN} --rounds {LONG}", "Invalid value for '--rounds'"),
    (f"{RUN} --seed -1", "seed must be an integer in 0..18446744073709551615, got -1"),
    (f"{RUN} --lr nan", "lr η must be a finite number above 0, got nan"),
    (f"{RUN} --lr 1e400", "lr η must be a finite number above 0, got inf"),
    (f"{RUN} --lr-schedule ,", "lr_schedule must be ROUND=VALUE pieces joined by commas, got ''"),
    (f"{RUN} --lr-schedule 1=2=3", "lr_schedule must be ROUND=VALUE pieces joined by commas, got '1=2=3'"),
    (f"{RUN} --beta2 nan", "beta2 must be left out with Momentum("),
    (f"{RUN} --epsilon -1", "epsilon must be left out with Momentum("),
    (f"{RUN} --rule sign --momentum 0.5", "momentum must be left out with SignSgd("),
    (f"{RUN} --clip -1", "clip must be left out with Mean("),
    (f"{RUN} --tolerated 5", "tolerated must be left out with Mean("),
    (f"{RUN} --out /proc/x", "out must be a folder that can be written, got /proc/x (No such file or directory)"),
    (f"{RUN} --out file", "out must be a folder that can be written, got file (File exists)"),
    (f"{RUN} --out ", "--out must not be empty, got ''"),
    ("verify --cases 1000000000000", "cases must ask for at most 1e+15 operations"),
    (f"{RUN} --data a\0b", "--data must have no NUL character"),
    ("train --config folder", "config must be a readable TOML file, got folder (Is a directory)"),
    ("train --config twice.toml", "config must be valid TOML, got twice.toml"),
    ("train --config digits.toml", "config must be valid TOML, got digits.toml"),
    ("train --config binary", "config must be valid TOML, got binary"),
    ("train --config list.toml", "lr in config list.toml must be of type float, got [1]"),
    ("noise --key xyz", "key must be a hexadecimal number of at most 16 digits, got 'xyz'"),
    ("noise --key -1", "key must be a hexadecimal number of at most 16 digits, got '-1'"),
    (f"noise --first {HUGE}", "first must be an integer in 0..9223372036854775807, got 1180591620717411303424"),
    ("noise --count 100000000000000", "count must ask for at most 1e+15 operations"),
    ("noise --count 1000000000000 --json", "count must fit into the"),
    ("noise --distribution sphere --d 1000000000000000", "d must ask for at most 1e+15 operations"),
    ("noise --direction -1", "direction must be an integer in 0..4294967295, got -1"),
    ("noise --distribution low-rank", "rademacher, as only version 0.1 of decomfl-lab has low-rank directions, got"),
    ("bound --theorem 2 --L 1 --kappa 5 --d 1e308", "d must be an integer in 1.."),
    (f"bound --theorem {LONG}", "Invalid value for '--theorem'"),
    ("bound --statement variance --L 1 --d 9 --a nan", "a must be a finite number of at least 0, got nan"),
    ("bound --theorem 1 --L 1 --d 9 --a 1", "a must be left out for a statement without it, got 1.0"),
    ("stepsize --theorem 1 --L 1 --d 9 --sigma inf", "sigma must be a finite number of at least 0, got inf"),
    ("check theorem-1 --effort 1000000000000", "effort must ask for at most 1e+15 operations"),
    ("certificates certs --clients 1000000000000", "clients M must be an integer in 1..100000, got 1000000000000"),
    ("certificates /proc/x", "DIR must be a folder that can be written, got /proc/x (No such file or directory)"),
    ("replay nowhere --save /proc/x", "save must be a file that can be written, got '/proc/x' (No such file"),
    ("bench rebuild --d 1e14 --pairs 1", "d must fit into the"),
    ("bench rebuild --d 9 --pairs 1e15", "d and pairs must ask for at most 1e+15 operations"),
    ("bench rebuild --csv folder", "csv must be a file that can be written, got 'folder' (a folder)"),
    ("bench round --repeats 1000000000000", "batch, clients, P and repeats must ask for at most 1e+15 operations"),
    (f"kappa {'x' * 5000}", "(File name too long)"),
    (f"train --data {'x' * 5000}:f", "data must be module:function that can be imported, got 'xxx"),
    (f"train --config {'x' * 5000}", "config must be a readable TOML file, got xxx"),
    (f"verify --target {'x' * 5000}.py:f", "target must be module:function that can be imported, got 'xxx"),
    (f"certificates {'x' * 5000}", "DIR must be a folder that can be written, got xxx"),
    (f"{RUN} --lr-schedule {'x' * 5000}", "lr_schedule must be ROUND=VALUE pieces joined by commas, got 'xxx"),
    ("train --data sys:exit", "data must run without an error, got 'sys:exit' (SystemExit: )"),
    ("train --data exits.py:f", "that can be imported, got 'exits.py:f' (SystemExit: 0, exits.py line 1)"),
    ("train --data mine.py:f --model mine.py:exits", "run without an error, got 'mine.py:exits' (SystemExit"),
    ("train --data mine.py:f --model mine.py:net --loss mine.py:stops", "must take the examples of"),
    ("kappa --threads 100000 --data digits --model mlp", "threads must be an integer in 1..1024, got 100000"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with files of all sorts."""
    here = tmp_path / "here"  # beside it is the cache of the libraries
    (here / "folder").mkdir(parents=True)
    monkeypatch.chdir(here)
    code = "import sys, torch\nexits = sys.exit\ndef net(): return torch.nn.Linear(3, 2)\n"
    code += "def stops(outputs, targets): sys.exit(0)\n"
    code += "def f(): return [(torch.ones(4, 3), torch.zeros(4).long())], (torch.ones(4, 3), torch.zeros(4).long())\n"
    texts = {"exits.py": "raise SystemExit(0)", "mine.py": code}
    texts |= {"file": "", "twice.toml": "rounds=1\nrounds=2", "digits.toml": f"seed={LONG}", "list.toml": "lr=[1]"}
    for name, text in texts.items():
        (here / name).write_text(text)
    (here / "binary").write_bytes(bytes(range(256)))
    return here


@pytest.mark.parametrize(("argv", "message"), CASES, ids=[argv[:60] for argv, _ in CASES])
def test_bad_input_is_one_line_before_anything_is_begun_or_written(
    argv: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = sorted(folder.rglob("*"))
    assert main(argv.split(" ")) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert message in told.err
    assert len(told.err) < 600
    assert sorted(folder.rglob("*")) == there


def _commands(command: click.Command | None) -> Iterator[click.Command]:
    """Every command below, loaded."""
    command = command.load() if isinstance(command, Contribution) else command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from _commands(command.get_command(context, name))
    elif command is not None:
        yield command


def _numeric(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and not option.is_flag and option.type.name.lower() != "text"


TEXTS = st.text() | st.floats().map(str) | st.integers().map(str) | st.sampled_from([HUGE, LONG, "٣", "1e400", "-0"])


@pytest.fixture(scope="module")
def options() -> list[tuple[click.Command, click.Parameter]]:
    return [(command, each) for command in _commands(application()) for each in command.params if _numeric(each)]


@given(data=st.data(), text=TEXTS)
@settings(max_examples=200)
def test_no_text_for_a_number_is_more_than_refused(
    data: st.DataObject, text: str, options: list[tuple[click.Command, click.Parameter]]
) -> None:
    command, option = data.draw(st.sampled_from(options))
    with contextlib.suppress(click.ClickException):  # whatever else is raised is a fault
        option.type_cast_value(click.Context(command), (text,) if option.multiple else text)


NUMBERS = "--rounds --clients --sampled --batch-size --local-steps --perturbations --lr --mu --momentum --grid --seed"


@given(option=st.sampled_from(NUMBERS.split()), text=TEXTS)
@example("--lr", "1e-320")
@settings(max_examples=40)
def test_no_number_makes_a_run_fail_otherwise_than_in_a_line(option: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "dataset_of", lambda *_: (_ for _ in ()).throw(InputError("here the data are loaded")))
        assert main(["train", option, text]) == 2


@given(name=st.sampled_from(["first", "direction", "d", "key"]), text=TEXTS)
@settings(max_examples=20)
def test_no_number_makes_noise_fail_otherwise_than_in_a_line(name: str, text: str) -> None:
    assert main(["noise", "--count", "2", f"--{name}", text]) in (0, 2)


def test_what_fits_is_possible_and_a_little_more_is_refused_with_the_estimate() -> None:
    require_possible("d", 1, operations=MOST_OPERATIONS, memory=1)
    with pytest.raises(InputError, match=r"^d must ask for .* \(this takes 1e\+15 or more\), got 1$"):
        require_possible("d", 1, operations=1.001 * MOST_OPERATIONS)
    with pytest.raises(InputError, match=r"^d must fit into the \d+ GB of memory here \(this takes 1000000000 GB"):
        require_possible("d", 1, memory=1e18)


def test_whole_numbers_fit_64_bits() -> None:
    assert require_int("K", 2**63 - 1, 0) == 2**63 - 1
    with pytest.raises(InputError, match=r"^K must be an integer in 0\.\.9223372036854775807, got 92233720368547758"):
        require_int("K", 2**63, 0)
    with pytest.raises(InputError, match="got int with an integer of thousands of digits"):
        require_int("K", 10**5000, 0)


def test_trying_a_file_leaves_nothing_and_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    require_writable("csv", tmp_path / "old")
    require_writable("csv", tmp_path / "new" / "folder" / "file")
    with pytest.raises(InputError, match="csv must be a file that can be written, got .* \\(Not a directory\\)"):
        require_writable("csv", tmp_path / "old" / "file")
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_checkpoint_with_a_renamed_key_is_named_and_what_it_lacks(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "file", {}, {"outer": {"renamed": 1}})
    tensors, values = read_checkpoint(tmp_path / "file")
    for found, name in ((tensors, "x"), (values, "run"), (values["outer"], "round")):
        with pytest.raises(InputError, match=f"checkpoint must have '{name}' in it, got .*file without"):
            found[name]
