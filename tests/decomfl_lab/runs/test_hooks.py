"""Hooks: what they are given, that they change nothing, fail without a loss and stop a run; loggers, and stand-ins."""

import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import decomfl_lab as lab
from decomfl_lab.cli.main import main
from decomfl_lab.errors import HookError, InputError
from decomfl_lab.runs.hooks import LOGGERS, logger_of

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 6, generator=G), torch.randint(3, (60,), generator=G)
CLIENTS = list(zip(X.split(20), Y.split(20), strict=True))
WEIGHT = torch.randn(3, 6, generator=G)


def train(rounds: int = 5, **options: Any) -> lab.Run:
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.copy_(WEIGHT)
        model.bias.zero_()
    usual = {"lr": 0.05, "eval_every": 2, "test": (X, Y)}
    return lab.train(model, cross_entropy, CLIENTS, rounds=rounds, **usual | options)


def test_a_hook_is_given_every_round_with_evaluations_where_there_are_any() -> None:
    seen: list[lab.Round] = []
    run = train(on_round=seen.append, lr_schedule={3: 0.02})
    assert [at.round for at in seen] == [1, 2, 3, 4, 5]
    assert [math.isfinite(at.test_accuracy) for at in seen] == [False, True, False, True, True]
    assert [at.lr for at in seen] == [0.05, 0.05, 0.05, 0.02, 0.02]
    last = seen[-1]
    assert (last.rounds, last.up_bytes, last.down_bytes) == (5, run.traffic.up_bytes, run.traffic.down_bytes)
    assert last.test_accuracy == run.metrics.test_accuracy.iloc[-1]
    assert sum(at.train_loss for at in seen[:2]) / 2 == pytest.approx(run.metrics.train_loss.iloc[0])
    assert {*seen[0].values()} == {"train_loss", "up_bytes", "down_bytes", "lr", "seconds"}
    assert {*last.values()} == {*seen[0].values(), "test_accuracy", "test_loss"}


def test_a_hook_is_given_the_measures_of_ones_own() -> None:
    seen: list[lab.Round] = []
    run = train(on_round=seen.append, metrics={"n": lambda outputs, targets: len(outputs)})
    assert [dict(at.measures) for at in seen] == [{}, {"test_n": 60}, {}, {"test_n": 60}, {"test_n": 60}]
    assert seen[-1].values()["test_n"] == 60
    assert "test_n 60" in repr(run)


def test_hooks_are_called_in_their_order_and_by_more_too() -> None:
    seen: list[tuple[str, int]] = []
    first, second = (lambda at, name=name: seen.append((name, at.round)) for name in "ab")
    run = train(2, on_round=[first, second])
    run.more(1, on_round=second)
    assert seen == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("b", 3)]


def disturbing(at: lab.Round) -> None:
    """All that a careless hook may do."""
    torch.manual_seed(at.round)
    torch.rand(3)
    with torch.no_grad():
        for p in at.model.parameters():
            p.zero_()
    table = at.metrics
    table["train_loss"] = 0.0
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)


@pytest.mark.parametrize("method", ["decomfl", "fedavg"])
def test_a_hook_that_does_what_it_likes_changes_no_bit(method: str) -> None:
    threads = torch.get_num_threads()
    disturbed, alone = train(method=method, on_round=disturbing), train(method=method)
    assert torch.equal(disturbed.federation.x, alone.federation.x)
    assert disturbed.metrics.drop(columns="seconds").equals(alone.metrics.drop(columns="seconds"))
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, threads)
    assert torch.is_grad_enabled()


def test_a_hook_that_reaches_the_run_itself_and_changes_it_is_found_out() -> None:
    run = train(2)
    with pytest.raises(HookError, match="hook .*<lambda> must leave the run as it is, but changed it after round 3"):
        run.more(2, on_round=lambda at: run.federation.x.mul_(2))
    changed = "must leave the run as it is, but changed it"
    with pytest.raises(HookError, match=changed):
        run.more(2, on_round=lambda at: run.federation.advance())
    inputs = X.clone()  # of one client, whose tensors are not copied
    with pytest.raises(HookError, match=changed):
        lab.train(nn.Linear(6, 3), cross_entropy, [(inputs, Y)], rounds=3, on_round=lambda at: inputs.zero_())


def failing(at: lab.Round) -> None:
    if at.round == 3:
        raise OSError("the disk is\nfull")


@pytest.mark.parametrize("method", ["decomfl", "fedavg"])
def test_a_hook_that_fails_loses_nothing(method: str, tmp_path: Path) -> None:
    saved = rf"hook failing failed after round 3 with OSError: the disk is\\nfull; the run is saved in {tmp_path}"
    with pytest.raises(HookError, match=saved) as found:
        train(out=tmp_path, method=method, on_round=failing)
    assert isinstance(found.value.__cause__, OSError)
    assert found.value.run.round == 3
    with pytest.raises(HookError, match="the run up to there is the error's attribute run") as found:
        train(method=method, on_round=failing)
    assert torch.equal(found.value.run.more(2).federation.x, train(method=method).federation.x)


def test_what_is_no_hook_is_refused_before_anything_is_trained() -> None:
    for wrong in (3, "print", [print, None]):
        with pytest.raises(
            InputError, match="on_round must be a function of a round, or a list of such functions, got"
        ):
            train(on_round=wrong)


class Kept:
    """A hook that can be closed."""

    closed = 0

    def __call__(self, at: lab.Round) -> None:
        if at.round == 2:
            raise RuntimeError("enough")

    def close(self) -> None:
        self.closed += 1
        raise OSError("gone")


def test_hooks_are_closed_in_whatever_way_a_run_ends(caplog: pytest.LogCaptureFixture) -> None:
    hook = Kept()
    with pytest.raises(HookError, match="hook Kept failed after round 2 with RuntimeError: enough"):
        train(on_round=hook)
    assert hook.closed == 1
    assert "hook Kept could not be closed: gone" in caplog.text


def test_a_tracker_gets_the_configuration_and_every_round(in_place_of: Callable[..., None]) -> None:
    library = Mock()
    in_place_of("wandb", library)
    hook = lab.WandB("p", name="first")
    run = train(2, on_round=hook)
    assert library.init.call_args.kwargs == {"config": run.config.to_dict(), "project": "p", "name": "first"}
    assert [told.kwargs for told in library.log.call_args_list] == [{"step": 1}, {"step": 2}]
    (values,) = library.log.call_args.args
    assert values["test_accuracy"] == run.metrics.test_accuracy.iloc[-1]
    library.finish.assert_called_once_with()
    run.more(1, on_round=hook)
    assert library.log.call_args.kwargs == {"step": 3}


def test_tensorboard_gets_a_number_for_each_name_and_round(in_place_of: Callable[..., None], tmp_path: Path) -> None:
    library = Mock()
    in_place_of("torch.utils.tensorboard", library)
    args = ["--data", "digits", "--model", "logistic", "--rounds", "2", "--eval-every", "2"]
    assert main(["train", *args, "--log-to", f"tensorboard:{tmp_path}"]) == 0
    library.SummaryWriter.assert_called_once_with(str(tmp_path))
    writer = library.SummaryWriter.return_value
    said = [told.args for told in writer.add_scalar.call_args_list]
    assert [step for name, _, step in said if name == "test_accuracy"] == [2]
    assert [step for name, _, step in said if name == "train_loss"] == [1, 2]
    writer.close.assert_called_once_with()


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_that_is_not_installed_says_its_extra(name: str) -> None:
    if find_spec(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(InputError, match=rf"logger {name} needs the extra {name}: pip install "):
        logger_of(f"{name}:here")
