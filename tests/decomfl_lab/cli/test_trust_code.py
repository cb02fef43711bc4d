"""Code that a file or a peer names is run only by ``--trust-code``: every door, with a module that leaves a mark."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch
from click.shell_completion import ShellComplete

import decomfl_lab as lab
from decomfl_lab.cli.main import application, main
from decomfl_lab.errors import InputError
from decomfl_lab.plugins import TORCH_LOSSES, code_in, named, require_trusted
from decomfl_lab.runs.configuration import TrainConfig, config_from_mapping
from decomfl_lab.runs.run import load_run
from decomfl_lab.storage.tables import text_beside
from hessian.trained_models import from_run, scale_of
from tests.cases import rows_of
from tests.decomfl_lab.carriers import stand_ins
from tests.decomfl_lab.carriers.stand_ins import standing_in
from tests.decomfl_lab.cli.test_commands import EVERY

MARKS = text_beside(__name__, "marks.txt")
PARTS = {"method": "Mine", "model": "model", "data": "data", "loss": "loss"}
SMALL = ["--rounds", "2", "--eval-every", "2", "--batch-size", "4"]


class Theirs:
    """A stranger's run, whose files name his code for all that can be named, and the mark that this leaves."""

    def __init__(self, folder: Path) -> None:
        self.code = folder / "theirs.py"
        self.mark, self.run = folder / "ran", folder / "run"
        self.names = {key: f"{self.code}:{part}" for key, part in PARTS.items()}
        self.flags = [word for key, name in self.names.items() if key != "method" for word in (f"--{key}", name)]

    def config(self, *keys: str) -> Path:
        """A configuration that names his code by these keys alone."""
        values = TrainConfig(rounds=2).to_dict() | {key: self.names[key] for key in keys}
        path = self.run.with_name("some.toml")
        path.write_text("".join(f"{key} = {values[key]!r}\n" for key in PARTS).replace('"', "'"))
        return path

    def is_refused(self, code: int, told: str, *keys: str) -> None:
        """Assert that nothing was run, and that the message names all of it."""
        assert not self.mark.exists()
        assert (code, told.count("\n")) == (2, 1)
        listed = dict(re.findall(r"(\w+) = '([^']*)'", told))
        assert listed == {key: self.names[key] for key in keys or PARTS}
        assert "say --trust-code (in Python trust_code=True)" in told


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    theirs = Theirs(tmp_path_factory.mktemp("theirs"))
    theirs.code.write_text(MARKS)
    assert main(["train", theirs.names["method"], *theirs.flags, *SMALL, "--out", str(theirs.run)]) == 0
    return theirs


@pytest.fixture
def theirs(made: Theirs, here: Path) -> Iterator[Theirs]:
    made.mark.unlink(missing_ok=True)
    yield made
    made.mark.unlink(missing_ok=True)


DOORS: dict[str, Callable[[Path], list[str]]] = {
    "replay and measure": lambda run: ["replay", str(run / "run.dcl"), "--measure", "1"],
    "export": lambda run: ["export", str(run), "weights.safetensors"],
    "kappa of a run": lambda run: ["kappa", str(run), "--products", "5"],
    "kappa of a checkpoint": lambda run: ["kappa", str(run / "checkpoint.safetensors"), "--products", "5"],
    "kappa by a run's scale": lambda run: ["kappa", "--data", "digits", "--model", "logistic", "--whiten", str(run)],
    "train from a file": lambda run: ["train", "--config", str(run / "config.toml")],
    "train on in a folder by its file": lambda run: ["train", f"--config={run}/config.toml", "--out", str(run)],
}
IN_PYTHON: dict[str, Callable[..., Any]] = {
    "load": lab.load,
    "load_run": load_run,
    "replay": lambda run, **more: lab.replay(run, measure=[1], **more),
    "from_run": from_run,
    "scale_of": scale_of,
    "a mapping": lambda run, **more: config_from_mapping(
        lab.runs.configuration.read_config(run / "config.toml"), "it", **more
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_command_runs_it_with_the_flag(door: str, theirs: Theirs) -> None:
    run = Path(shutil.copytree(theirs.run, "copy"))
    code = main([*DOORS[door](run), "--trust-code"])
    assert theirs.mark.exists()
    assert code == (2 if "scale" in door else 0)  # no method here scales directions


@pytest.mark.parametrize("door", IN_PYTHON)
def test_python_runs_it_only_if_it_is_told_to(door: str, theirs: Theirs) -> None:
    with pytest.raises(InputError) as refused:
        IN_PYTHON[door](theirs.run)
    theirs.is_refused(2, f"{refused.value}\n")
    if door == "scale_of":
        with pytest.raises(InputError, match="must be a run that scales"):
            scale_of(theirs.run, trust_code=True)
    else:
        IN_PYTHON[door](theirs.run, trust_code=True)
    assert theirs.mark.exists()


def test_names_on_the_command_line_are_ones_own_and_win_over_the_files(theirs: Theirs) -> None:
    every = str(theirs.config(*PARTS))
    instead = ["--model", "logistic", "--data", "digits", "--loss", "cross-entropy"]
    assert main(["train", "decomfl", "--config", every, *instead, *SMALL]) == 0
    assert not theirs.mark.exists()
    assert main(["train", theirs.names["method"], "--config", every, *theirs.flags, *SMALL]) == 0
    assert theirs.mark.exists()


def test_a_replay_needs_the_code_of_data_and_loss_only_to_measure(
    theirs: Theirs, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["replay", str(theirs.run)])
    theirs.is_refused(code, capsys.readouterr().err, "method", "model")
    plain = ["--model", "logistic", "--data", "digits", "--loss", theirs.names["loss"]]
    assert main(["train", "decomfl", *plain, *SMALL, "--clients", "2", "--sampled", "1", "--out", "named"]) == 0
    theirs.mark.unlink()
    assert main(["replay", "named"]) == 0
    assert not theirs.mark.exists()


def test_objects_that_are_given_are_what_is_used(theirs: Theirs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "decomfl", *theirs.flags, *SMALL, "--out", "run"]) == 0
    theirs.mark.unlink()
    torch.manual_seed(0)
    model, clients = torch.nn.Linear(3, 2), [(torch.ones(4, 3), torch.zeros(4).long())] * 2
    assert lab.replay("run", model).agrees
    with pytest.raises(InputError, match=r"got loss = '.*theirs.py:loss': .*, or give loss yourself"):
        lab.load("run", model, clients=clients, test=(torch.ones(2, 3), torch.zeros(2).long()))
    assert not theirs.mark.exists()
    capsys.readouterr()
    assert main(["kappa", "run", "--products", "5", *theirs.flags[:4]]) == 2
    theirs.is_refused(2, capsys.readouterr().err, "loss")
    assert main(["kappa", "run", "--products", "5", *theirs.flags]) == 0
    assert main(["kappa", "run", "--products", "5", "--lr", "1", "--task", "sst2"]) == 2


def test_a_run_goes_on_by_the_names_of_its_command_line(theirs: Theirs) -> None:
    run = shutil.copytree(theirs.run, "copy")
    longer = ["--rounds", "3", *SMALL[2:], "--out", str(run)]
    assert main(["train", theirs.names["method"], *theirs.flags, *longer]) == 0
    assert load_run(Path(run), trust_code=True).round == 3


@pytest.mark.parametrize("held", ["checkpoint.safetensors", "run.dcl"])
def test_a_folder_that_another_run_would_go_on_in_runs_nothing(
    held: str, theirs: Theirs, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(theirs.run, "copy")
    if held == "run.dcl":
        Path("copy/checkpoint.safetensors").unlink()
    assert main(["train", "--data", "digits", "--model", "logistic", *SMALL, "--out", "copy"]) == 2
    assert "method in run copy must be decomfl, got" in capsys.readouterr().err
    with pytest.raises(InputError, match="method in .* must be decomfl, got .*theirs.py:Mine"):
        lab.train(torch.nn.Linear(3, 2), clients=[(torch.ones(4, 3), torch.zeros(4).long())] * 2, out="copy")
    assert not theirs.mark.exists()


@pytest.mark.parametrize("file", ["config.toml", "run.dcl"])
def test_a_file_that_was_put_beside_a_run_runs_nothing(
    file: str, theirs: Theirs, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = ["train", "--data", "digits", "--model", "logistic", *SMALL, "--out", "mine"]
    assert main(mine) == 0
    shutil.copy(theirs.run / file, "mine")
    capsys.readouterr()
    assert main([*mine, "--rounds", "3"]) == 2
    assert "must be decomfl, got '" in capsys.readouterr().err
    assert main(["kappa", "mine", "--products", "5"]) == (2 if file == "config.toml" else 0)
    assert main(["replay", "mine"]) == (2 if file == "run.dcl" else 0)
    assert not theirs.mark.exists()


def test_a_run_in_hand_is_neither_saved_nor_loaded_by_their_code(theirs: Theirs) -> None:
    run = lab.Run(TrainConfig(data="digits", model="logistic", clients=2, sampled=1, rounds=1))
    folder = shutil.copytree(theirs.run, "copy")
    for act in (run.load, run.save):
        with pytest.raises(InputError, match="method in run copy must be decomfl, got '"):
            act(folder)
    assert not theirs.mark.exists()


def test_the_completion_of_a_shell_runs_nothing(theirs: Theirs) -> None:
    shell = ShellComplete(application(), {}, "decomfl", "_DECOMFL_COMPLETE")
    with pytest.raises(InputError, match="must name no code"):
        shell.get_completions(["train", "--config", str(theirs.run / "config.toml")], "--r")
    assert not theirs.mark.exists()


def test_a_servers_offer_runs_nothing(
    theirs: Theirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pytest.importorskip("decomfl_lab.carriers.stream.client", reason="the extra stream is not installed")
    offered = {"config": TrainConfig(clients=2, sampled=2).to_dict() | theirs.names, "run": 32 * "0", "x0": 32 * "0"}
    monkeypatch.setattr(client, "StreamClient", lambda *_, **__: SimpleNamespace(offer=lambda: offered))
    Path("key").write_text("00" * 32)
    join = ["join", "127.0.0.1:1", "--client", "0", "--key", "key"]
    for more in ([], ["--config", str(theirs.run / "config.toml")]):
        code = main([*join, *more])
        theirs.is_refused(code, capsys.readouterr().err)
        assert main([*join, *more, "--trust-code"]) == 2
        assert "digest of x_0 must be" in capsys.readouterr().err
        assert theirs.mark.exists()
        theirs.mark.unlink()


def test_a_job_of_nvflare_runs_nothing_but_where_the_site_says_so(
    theirs: Theirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = (theirs.run / "config.toml").read_text()
    with standing_in("decomfl_lab.carriers.nvflare", stand_ins.nvflare()) as nvflare:
        with pytest.raises(InputError) as refused:
            nvflare.run_of(job)
        theirs.is_refused(2, f"{refused.value}\n")
        assert str(refused.value).startswith("the job, without DECOMFL_TRUST_CODE=1, must name no code")
        monkeypatch.setenv(nvflare.TRUST, "1")
        nvflare.run_of(job)
    assert theirs.mark.exists()


def test_only_whole_names_of_torchs_losses_are_free() -> None:
    for name in TORCH_LOSSES:
        assert named("loss", name).__module__.startswith("torch.nn.")
        assert code_in({"loss": name}) == {}
    walks = ["torch.nn.functional:torch.os.system", "torch.nn.modules.module:os.system", "torch:load", "torch.hub:load"]
    others = ["torch.nn.functional:mse_loss.__globals__", "torch.nn:Module", "torch.nn:MSELoss.__init__"]
    for name in [*walks, *others]:
        assert code_in({"loss": name}) == {"loss": name}
    assert code_in({"model": "torch.nn:MSELoss", "data": "torch.nn.functional:mse_loss"}).keys() == {"model", "data"}


@pytest.mark.parametrize("before", ["", "auc=own <lambda>,"])
def test_a_measure_that_a_file_names_is_code_too(
    before: str, theirs: Theirs, capsys: pytest.CaptureFixture[str]
) -> None:
    path = theirs.config()
    path.write_text(f"{path.read_text()}metrics = '{before}f1={theirs.code}:loss'\nclients = 2\n")
    assert main(["train", "--config", str(path)]) == 2
    told = capsys.readouterr().err
    assert re.search(r"must name no code, .* metrics = '.*f1=.*theirs.py:loss': .*--trust-code", told)
    assert not theirs.mark.exists()


def test_whatever_key_names_code_is_refused_and_shown_as_one_line() -> None:
    with pytest.raises(InputError) as refused:
        require_trusted({"a\x1b[2K\nb": "os:system", "later": "a\n.py:b"}, "it", ["other:name"])
    assert "got a\\x1b[2K\\nb = 'os:system', later = 'a\\n.py:b': read" in str(refused.value)


# A walk over all commands: every path that one takes is given a stranger's files, or said to be only written to.
PATHS = rows_of(__file__)


def test_the_walk_has_every_path_of_every_command() -> None:
    found = {
        f"{path.split()[1]} {param.name}"
        for path, command in EVERY
        for param in command.params
        if isinstance(param.type, click.Path)
    }
    assert found == PATHS["read"].keys() | PATHS["left"].keys()


@pytest.mark.parametrize("file", ["", "config.toml", "checkpoint.safetensors", "run.dcl"])
@pytest.mark.parametrize("path", PATHS["read"])
def test_no_command_runs_what_a_strangers_files_name(path: str, file: str, theirs: Theirs) -> None:
    command, *words = PATHS["read"][path].format(path=Path("copy", file)).split()
    if command == "serve":
        pytest.importorskip("grpc", reason="the extra stream is not installed")
    shutil.copytree(theirs.run, "copy")
    code = main([command, *words])
    assert not theirs.mark.exists()
    assert code == 2 or (command, file) in (("runs", ""), ("plot", ""))


def test_a_loss_of_torchs_opens_no_door_to_the_current_folder(theirs: Theirs, here: Path) -> None:
    named("loss", "torch.nn.functional:mse_loss")
    named("loss", "torch.nn:MSELoss")
    assert str(here) not in sys.path
    named("loss", "math:fsum")
    assert str(here) in sys.path
    assert not theirs.mark.exists()
