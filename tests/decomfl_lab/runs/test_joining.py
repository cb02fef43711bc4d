"""Clients that join a saved run: the same bits as if they had been there from the start and never been sampled."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import decomfl_lab as lab
from decomfl_lab.errors import InputError
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.protocol.log import RunLog
from tests.cases import rows_of, sampled
from tests.decomfl_lab.runs.variants import HELD, OPTIONS, PAIRS, net

model = pytest.fixture(net)


def _train(model: nn.Module, M: int = 3, **options: Any) -> lab.Run:
    return lab.train(model, clients=PAIRS[:M], test=HELD, **OPTIONS | {"rounds": 5} | options)


def _load(folder: Path, model: nn.Module, M: int = 5) -> lab.Run:
    return lab.load(folder, model, clients=PAIRS[:M], test=HELD)


def _state(run: lab.Run) -> tuple[Any, ...]:
    tensors, values = run.federation.save()
    return {name: tensor.tolist() for name, tensor in tensors.items()}, values


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            *({"method": name} for name, kind in METHODS.items() if not kind.alone),
            *rows_of(__file__)["options"],
        ],
        4,
    ),
    ids=str,
)
def test_a_client_that_joins_equals_one_that_was_there_and_never_sampled(
    options: dict[str, Any], model: nn.Module, tmp_path: Path
) -> None:
    few = {**options, "sampled": 3} if "sampled" in options else options
    _train(model, out=tmp_path / "run", **few)
    run = _load(tmp_path / "run", model).more(6)
    there = _train(model, 5, joined={5: 2}, rounds=11, out=tmp_path / "there", **options)
    assert _state(run) == _state(there)
    assert run.config == there.config
    assert (tmp_path / "run" / "config.toml").read_text() == (tmp_path / "there" / "config.toml").read_text()
    again = _load(tmp_path / "run", model).more(2)
    assert _state(again) == _state(there.more(2))
    assert again.federation.ledger.down[4].messages > 0


def test_before_they_joined_the_others_were_sampled_and_the_log_says_so(model: nn.Module, tmp_path: Path) -> None:
    _train(model, out=tmp_path)
    entries = list(RunLog.open(tmp_path / "run.dcl").entries())
    _load(tmp_path, model).more(20)
    log = RunLog.open(tmp_path / "run.dcl")
    assert [entry.record for entry in log.entries(0, 5)] == [entry.record for entry in entries]
    assert {i for entry in log.entries(5) for i in entry.sampled} == {0, 1, 2, 3, 4}
    assert log.header["config"]["joined"] == {"5": 2}
    assert lab.replay(tmp_path, model, clients=PAIRS, test=HELD, measure=[3, 8, 20]).agrees


def test_clients_join_one_after_the_other(model: nn.Module, tmp_path: Path) -> None:
    _train(model, out=tmp_path)
    _load(tmp_path, model, 4).more(4)
    run = _load(tmp_path, model, 5).more(4)
    assert run.config.joined == {5: 1, 9: 1}
    assert _state(run) == _state(_train(model, 5, joined={5: 1, 9: 1}, rounds=13))


def test_a_run_whose_checkpoint_is_gone_goes_on_by_its_log_with_those_who_joined(
    model: nn.Module, tmp_path: Path
) -> None:
    _train(model, out=tmp_path, rounds=6)
    whole = _load(tmp_path, model).more(6)
    (tmp_path / "checkpoint.safetensors").unlink()
    with pytest.raises(InputError, match=r"in which a run was saved; the call of lab\.train.* goes on from its log"):
        _load(tmp_path, model)
    way = r"joined; its 5 clients came by joined={6: 2} \(--joined 6=2\)"
    with pytest.raises(InputError, match=way):
        _train(model, 5, rounds=12, out=tmp_path)
    again = _train(model, 5, joined={6: 2}, rounds=12, out=tmp_path)
    there = _train(model, 5, joined={6: 2}, rounds=12)
    for other in (again, there):
        assert _state(other) == _state(whole)
        assert other.metrics.drop(columns="seconds").equals(whole.metrics.drop(columns="seconds"))


def test_before_clients_join_a_mean_is_over_those_that_are_there(model: nn.Module) -> None:
    rows = _train(model, 5, joined={6: 2}, rounds=12).metrics
    assert list(rows.wire_scalars * 4 * [3, 3, 5, 5]) == list(rows.wire_bytes)


def test_fewer_clients_other_data_and_other_weights_are_refused(model: nn.Module, tmp_path: Path) -> None:
    _train(model, out=tmp_path)
    for clients in (PAIRS[:2], [PAIRS[1], PAIRS[0], *PAIRS[2:]], [*PAIRS[:2], *PAIRS[3:]]):
        with pytest.raises(InputError, match="got one of other data; clients, test and their order must be"):
            lab.load(tmp_path, model, clients=clients, test=HELD)
    with pytest.raises(InputError, match=r"differs in clients; clients more join by lab\.load"):
        _train(model, 4, out=tmp_path)
    _train(model, method="mezo", out=tmp_path / "alone", sampled=None)
    with pytest.raises(InputError, match="clients must be those of then for mezo, which is one agent, got more"):
        _load(tmp_path / "alone", model)
    _train(model, out=tmp_path / "long", sampled=3)
    with pytest.raises(InputError, match=r"model must have its weights of then \(x_0\), as 2 clients more begin there"):
        _load(tmp_path / "long", nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)))


@pytest.mark.parametrize("log", [True, False])
def test_weights_are_compared_by_the_log_or_else_by_the_records(log: bool, model: nn.Module, tmp_path: Path) -> None:
    options = {"sampled": 3, "tracking": "clients", "rounds": 5}
    run = _train(model, **options, out=tmp_path if log else None)
    run.save(tmp_path)
    other = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    with pytest.raises(InputError, match="model must have its weights of then"):
        _load(tmp_path, other)
    whole = _train(model, 5, **options | {"joined": {5: 2}, "rounds": 7, "sampled": 5})
    assert _state(_load(tmp_path, model).more(2)) == _state(whole)


def test_records_that_are_gone_come_from_the_log_or_a_model_from_the_server(model: nn.Module, tmp_path: Path) -> None:
    for name, options in {"none": {}, "model": {"server_model": True}}.items():
        run = _train(model, sampled=3, **options)
        run.save(tmp_path / name)
        (tmp_path / name / "run.dcl").unlink()
        assert run.federation.server.history.start > 0
    with pytest.raises(InputError, match=r"run.dcl must be there, or the server keep a model: clients that join need"):
        _load(tmp_path / "none", model)
    run = _load(tmp_path / "model", model).more(3)
    assert run.federation.pulls == 2
    assert run.verify()
