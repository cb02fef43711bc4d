"""The log that a run leaves, and the model that it alone gives again."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import decomfl_lab as lab
from decomfl_lab.cli.main import main
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.protocol.log import LogEntry, RunLog
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.folder import CHECKPOINT_FILE, LOG_FILE
from decomfl_lab.runs.run import Run, load_run
from tests.cases import refuses, rows_of
from tests.decomfl_lab.runs.rewritten import rewritten
from tests.decomfl_lab.runs.variants import SMALL

TINY = SMALL.but(clients=5, rounds=7, eval_every=3, local_steps=2, perturbations=3, lr=0.01)
x = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
PAIRS = [(x[n : n + 20], (x[n : n + 20, 0] > 0).long()) for n in (0, 20, 40)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    Run(TINY).train(out=folder)
    return folder


def _entries(path: Path) -> list[LogEntry]:
    with RunLog.open(path, write=False) as log:
        return list(log.entries())


def _liar(r: int, factor: float) -> Callable[[LogEntry], LogEntry]:
    """One scalar of round r is another one."""

    def change(entry: LogEntry) -> LogEntry:
        scalars = entry.record.scalars.copy()
        scalars[1, 2] *= factor if entry.record.round == r else 1
        return replace(entry, record=replace(entry.record, scalars=scalars))

    return change


def test_a_run_logs_who_took_part_and_what_came_of_it(out: Path) -> None:
    found = load_run(out).federation
    assert isinstance(found, DeComFLFederation)
    entries = _entries(out / LOG_FILE)
    kept = found.server.history.since(found.server.history.start)
    assert tuple(entry.record for entry in entries)[found.server.history.start :] == kept
    assert [entry.digest is not None for entry in entries] == [False, False, True, False, False, True, True]
    assert entries[-1].digest == found.observer.digest()
    assert all(entry.sampled == entry.answered and len(entry.sampled) == 2 for entry in entries)
    last = {i: entry.record.round for entry in entries for i in entry.answered}
    assert [last.get(i, 0) for i in range(5)] == found.server.held


@pytest.mark.parametrize("changes", [{}, {"lr": 0.02}])
def test_a_log_that_lacks_rounds_or_is_of_another_run_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    Run(TINY).train(out=tmp_path / "a")
    Run(replace(TINY, rounds=5, **changes)).train(out=tmp_path / "b")
    (tmp_path / "a" / LOG_FILE).write_bytes((tmp_path / "b" / LOG_FILE).read_bytes())
    told = (
        "which differs in lr" if changes else "log .* must have the 7 rounds of the run, got 5: put a copy of it back"
    )
    with pytest.raises(lab.InputError, match=told):
        Run(replace(TINY, rounds=8)).train(out=tmp_path / "a")


@pytest.mark.parametrize("factor", [1.05, -1.0, 100.0, 1e30])
def test_a_wrong_scalar_with_a_true_chain_is_caught_by_the_digest_and_by_measuring(
    factor: float, out: Path, tmp_path: Path
) -> None:
    found = lab.replay(rewritten(out, tmp_path / LOG_FILE, _liar(4, factor)), measure=[3, 4])
    assert [each.agrees for each in found.compared] == [True, True, False, False]
    assert [each.agrees for each in found.measured] == [True, False]
    assert str(found).startswith("the model does NOT agree: after 6 rounds its bits are not")
    assert "more than rounding explains: NOT what was recorded" in str(found.measured[1])


@pytest.mark.parametrize(
    ("changes", "named"), [({"eta": 0.02}, ("eta",)), ({"seeds": (1, 2)}, ("seeds",)), ({"scalars": None}, ("shape",))]
)
def test_a_record_that_the_configuration_does_not_give_is_named(
    changes: dict[str, Any], named: tuple[str, ...], out: Path, tmp_path: Path
) -> None:
    given = {name: np.ones((2, 1), np.float32) if value is None else value for name, value in changes.items()}

    def change(entry: LogEntry) -> LogEntry:
        return replace(entry, record=replace(entry.record, **given)) if entry.record.round == 2 else entry

    found = lab.replay(rewritten(out, tmp_path / LOG_FILE, change), measure=[2])
    assert (found.measured[0].others, found.measured[0].agrees, found.agrees) == (named, False, False)


def test_a_number_of_examples_that_the_data_do_not_have_is_named(tmp_path: Path) -> None:
    Run(TINY.but(weighting="examples")).train(out=tmp_path / "true")
    more = rewritten(tmp_path / "true", tmp_path / LOG_FILE, lambda entry: replace(entry, examples=(9, 9)))
    (found,) = lab.replay(more, measure=[2]).measured
    assert (found.others, found.agrees) == (("numbers of examples",), False)


def test_a_module_of_ones_own_is_given_again_to_replay_and_the_data_to_measure(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    trained = lab.train(model, clients=PAIRS, sampled=2, rounds=4, batch_size=8, out=tmp_path)
    for given, told in (
        ({}, r"replay\('.*', model=model\)"),
        ({"model": model, "measure": [1]}, "clients=clients, test"),
    ):
        with pytest.raises(lab.InputError, match=rf"must be given again, as lab\.{told}" if given == {} else told):
            lab.replay(tmp_path, **given)  # type: ignore[arg-type]
    assert lab.replay(tmp_path, model, clients=PAIRS, measure=[3]).agrees
    with pytest.raises(lab.InputError, match="data must be those of the log"):
        lab.replay(tmp_path, model, clients=PAIRS[:2], measure=[3])
    again = lab.replay(tmp_path, model).model
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), trained.model.parameters(), strict=True))
    assert not lab.replay(tmp_path, nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))).agrees


def same_function(one: nn.Module, other: nn.Module, inputs: torch.Tensor) -> bool:
    states = one.state_dict(), other.state_dict()
    equal = all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    return equal and states[0].keys() == states[1].keys() and torch.equal(one.eval()(inputs), other.eval()(inputs))


@pytest.mark.parametrize("joined", [{}, {3: 1}], ids=["all at once", "one joins"])
def test_a_replay_with_the_data_has_the_statistics_of_batchnorm_too(joined: dict[int, int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, test = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)), (x[:7], (x[:7, 0] > 0).long())
    trained = lab.train(model, clients=PAIRS, test=test, rounds=6, sampled=2, lr=0.1, joined=joined, out=tmp_path)
    for more in ({}, {"measure": [5]}):
        found = lab.replay(tmp_path, model, clients=PAIRS, test=test, **more)  # type: ignore[arg-type]
        assert (found.agrees, found.remark) == (True, "")
        assert same_function(found.model, trained.model, x)
        assert same_function(found.model, lab.load(tmp_path, model, clients=PAIRS, test=test).model, x)
    with pytest.raises(lab.InputError, match="data must be those of the log"):
        lab.replay(tmp_path, model, clients=PAIRS, test=PAIRS[0])
    with pytest.raises(lab.InputError, match="test must be left out, or given with clients, got 'tuple'"):
        lab.replay(tmp_path, model, test=test)
    alone = lab.replay(tmp_path, model)
    assert alone.agrees
    assert str(alone).splitlines()[1].startswith("parameters only, no BatchNorm statistics: lab.replay makes them of")
    assert torch.equal(alone.model(x), trained.as_trained(x))
    for rows in (x, x[:1]):
        with pytest.raises(lab.InputError, match="BatchNorm must have statistics in eval mode: give lab.replay the"):
            copy.deepcopy(alone.model).eval()(rows)


def test_the_loss_is_asked_for_where_it_says_how_clients_bring_their_examples(tmp_path: Path) -> None:
    class Net(nn.Sequential):
        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            out: torch.Tensor = super().forward(x)
            return out if y is None else nn.functional.cross_entropy(out, y)

    def loss(model: nn.Module, batch: Any) -> Any:
        return model(**batch)

    torch.manual_seed(0)
    model = Net(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    clients = [{"x": inputs, "y": targets} for inputs, targets in PAIRS]
    trained = lab.train(model, loss, clients, rounds=2, out=tmp_path)
    with pytest.raises(lab.InputError, match="loss must be given with clients, as it says what form batches have"):
        lab.replay(tmp_path, model, clients=clients)
    assert same_function(lab.replay(tmp_path, model, loss, clients).model, trained.model, x)


def test_the_command_saves_the_statistics_where_the_data_are_here_and_says_where_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainConfig(data="digits", model="resnet8-bn", clients=2, sampled=1, rounds=2, batch_size=4, lr=0.01)
    Run(config).train(out=tmp_path)
    saved = tmp_path / "m.safetensors"
    assert main(["replay", str(tmp_path), "--save", str(saved)]) == 0
    assert "parameters only" not in capsys.readouterr().out
    whole = load_run(tmp_path).model.state_dict()
    assert whole.keys() == load_file(saved).keys()
    assert all(torch.equal(whole[name], tensor) for name, tensor in load_file(saved).items())
    other = rewritten(tmp_path, tmp_path / "other", data="0" * 16)
    assert main(["replay", str(other), "--save", str(saved)]) == 0
    said = capsys.readouterr().out
    assert "parameters only, no BatchNorm statistics: data must be those of the log" in said
    assert not any("running" in name for name in load_file(saved))
    assert main(["replay", str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["remark"].startswith("parameters only")


def test_frozen_normalisation_needs_the_data_to_be_replayed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    trained = lab.train(model, clients=PAIRS, rounds=3, batchnorm="frozen", out=tmp_path)
    with pytest.raises(lab.InputError, match="clients must be given again"):
        lab.replay(tmp_path, model)
    again = lab.replay(tmp_path, model, clients=PAIRS)
    assert again.agrees
    assert torch.equal(again.model(x), trained.model(x))


@refuses(*rows_of(__file__)["refused"])
def test_rounds_and_tolerances_that_are_none_are_refused(wrong: Any, out: Path) -> None:
    lab.replay(out, **wrong)  # type: ignore[arg-type]


def test_the_command_says_it_in_words_in_json_and_by_its_exit_code(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(out), "--measure", "2,6", "--save", str(tmp_path / "m.safetensors")]) == 0
    said = capsys.readouterr().out
    assert "after 7 of 7 rounds is rebuilt, bit for bit: x_0 and 3 digests of the log agree, the last after" in said
    assert "round 6 measured anew by 2 clients: the recorded scalars bit for bit\n" in said
    assert all(
        torch.equal(tensor, load_run(out).model.state_dict()[name])
        for name, tensor in load_file(tmp_path / "m.safetensors").items()
    )
    forged = str(rewritten(out, tmp_path / LOG_FILE, _liar(4, -1.0)))
    assert main(["replay", forged, "--json", "--save", str(tmp_path / "wrong")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["agrees"], [each["agrees"] for each in found["compared"]]) == (False, [True, True, False, False])
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize(
    ("header", "change", "told"),
    [
        ({"x0": "0" * 32}, lambda entry: entry, r"x_0 of .*run\.dcl must have the digest"),
        ({"stream": 99}, lambda entry: entry, r"stream of .*run\.dcl must be 1, got 99"),
        ({"data": "0" * 16}, lambda entry: entry, "out must be empty or hold the same run .*differs in the examples"),
        ({}, lambda entry: replace(entry, digest="0" * 32), r"model after round 2 of .* must have the digest 0000"),
        (
            {},
            lambda entry: replace(entry, sampled=(0,), answered=(0,)),
            r"wire_bytes of round 3 in .*csv must be \d+, as",
        ),
    ],
)
def test_a_log_that_is_not_that_of_the_folders_rows_is_refused_and_left_alone(
    header: dict[str, Any], change: Callable[[LogEntry], LogEntry], told: str, out: Path, tmp_path: Path
) -> None:
    shutil.copytree(out, tmp_path / "run")
    (tmp_path / "run" / CHECKPOINT_FILE).unlink()
    entries = {2: change}
    rewritten(out, tmp_path / "run" / LOG_FILE, lambda own: entries.get(own.record.round, lambda e: e)(own), **header)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(lab.InputError, match=told):
        Run(TINY).train(out=tmp_path / "run")
    with pytest.raises(lab.InputError, match="rounds must be at least the 7 of the run|differs in the examples"):
        Run(TINY.but(rounds=6)).train(out=tmp_path / "run")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}


def test_the_folder_of_a_run_without_a_log_says_who_keeps_one(tmp_path: Path) -> None:
    Run(TrainConfig("fedcom", data="digits", model="logistic", clients=2, sampled=1, rounds=1)).train(out=tmp_path)
    with pytest.raises(lab.InputError, match=r"^folder must have a log run\.dcl, as where clients send scalars; "):
        lab.replay(tmp_path)
