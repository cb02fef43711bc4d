"""What a replica is made with and refuses, whom it shares its vectors with, and how it is corrected."""

from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.errors import InputError
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.noise import Distribution
from decomfl_lab.replicas.replica import Replica, Snapshot, SyncReplica
from decomfl_lab.replicas.rules import AdaMM, GridSgd, LowPrecision, Momentum, Sgd, Step
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.preparation import Prepared
from tests.cases import refuses

STEP = Step(7, np.array([0.5, -2.0], np.float32), 0.1, Distribution.GAUSSIAN)


@pytest.mark.parametrize(
    ("snapshot", "message"),
    [
        (Snapshot(1, torch.zeros(4), {"momentum": torch.zeros(4)}), "snapshot must be of d=3 elements of"),
        (Snapshot(1, torch.zeros(3).double(), {"momentum": torch.zeros(3)}), "snapshot must be of d=3 elements of"),
        (Snapshot(1, torch.zeros(3), {}), "state of the snapshot must be {'momentum'}"),
    ],
)
def test_a_snapshot_of_another_kind_is_not_restored(snapshot: Snapshot, message: str) -> None:
    replica = Replica(torch.ones(3), Momentum(0.9))
    with pytest.raises(InputError, match=message):
        replica.restore(snapshot)
    assert (replica.round, replica.x.tolist()) == (0, [1, 1, 1])


@refuses(
    (lambda: Sgd(-0.1), "weight_decay must be finite and at least 0, got -0.1"),
    (lambda: Sgd(float("inf")), "weight_decay must be finite and at least 0, got inf"),
    (lambda: Momentum(1.0), r"momentum must be in \[0, 1\), got 1.0"),
    (lambda: Momentum(-0.1), r"momentum must be in \[0, 1\), got -0.1"),
    (lambda: Momentum(0.9, "mine"), "convention must be torch or paper, got 'mine'"),  # type: ignore[arg-type]
    (lambda: AdaMM(beta1=1.0), r"beta1 must be in \[0, 1\), got 1.0"),
    (lambda: AdaMM(beta2=1.0), r"beta2 must be in \[0, 1\), got 1.0"),
    (lambda: AdaMM(epsilon=0.0), "epsilon must be a finite number above 0, got 0.0"),
    (lambda: GridSgd(101), r"exponent must be an integer in -100..100, got 101"),
    (lambda: GridSgd(-101), r"exponent must be an integer in -100..100, got -101"),
    (lambda: LowPrecision(GridSgd()), "rule must be a float32 rule, got GridSgd"),
    (lambda: LowPrecision(Sgd(), rounding="up"), "rounding must be one of stochastic, compensated, nearest"),  # type: ignore[arg-type]
    (lambda: LowPrecision(Sgd(), "float8"), "dtype must be one of bfloat16, float16, got 'float8'"),  # type: ignore[arg-type]
    (lambda: Replica(torch.zeros(0), Sgd()), "x must be a non-empty vector, got"),
    (lambda: Replica(torch.zeros(2, 3), Sgd()), "x must be a non-empty vector, got"),
    (lambda: Replica(torch.zeros(()), Sgd()), "x must be a non-empty vector, got"),
    (lambda: Replica(torch.zeros(2).half(), Sgd()), "dtype of x must be float32 or float64"),
    (lambda: Replica(torch.zeros(2), LowPrecision(Sgd())), "dtype of x must be bfloat16"),
)
def test_rules_refuse_bad_numbers_and_vectors_by_name(make: Any) -> None:
    make()


def test_what_is_forgotten_takes_no_memory_until_it_is_restored() -> None:
    replica = Replica(torch.zeros(3), Momentum(0.9))
    before = replica.snapshot()
    replica.forget()
    assert replica.forgotten
    assert replica.x.is_meta
    assert all(vector.is_meta for vector in replica.state.values())
    replica.restore(before)
    assert not replica.forgotten
    assert replica.digest() == Replica(torch.zeros(3), Momentum(0.9)).digest()


def _replica() -> Replica:
    return Replica(torch.linspace(-1, 1, 9), Momentum(0.9))


def test_snapshots_and_clones_cost_nothing_until_somebody_steps() -> None:
    replica = _replica()
    snapshot, other = replica.snapshot(), replica.clone()
    assert snapshot.x is other.x is replica.x
    before = other.digest()
    replica.step_(STEP)
    assert snapshot.x is other.x is not replica.x
    assert (other.digest() == before) != (replica.digest() == before)
    own = replica.x
    replica.step_(STEP)  # copied once, and then written in place
    assert replica.x is own
    replica.restore(snapshot)
    assert replica.x is other.x


def _vectors(federation: DeComFLFederation) -> int:
    """How many vectors of d elements clients, server and observer hold."""
    replicas = [*(client.replica for client in federation.clients), federation.observer]
    replicas += [federation.base] if federation.base is not None else []
    return len({id(replica.x) for replica in replicas if not replica.forgotten})


@pytest.mark.parametrize(("rebuild", "most"), [("replay", 7), ("copy", 2)])
def test_clients_hold_a_model_for_each_round_that_somebody_is_at(rebuild: str, most: int) -> None:
    config = TrainConfig(
        data="digits", model="logistic", clients=60, sampled=5, batch_size=8, perturbations=2, local_steps=2,
        rebuild=rebuild, momentum=0.9,
    )  # fmt: skip
    federation = Prepared.of(config, load_dataset("digits")).federation()
    assert isinstance(federation, DeComFLFederation)
    assert _vectors(federation) <= 2
    for _ in range(6):
        federation.advance()
    assert {client.replica.round for client in federation.clients} == set(range(6))
    assert _vectors(federation) <= most


def test_a_pull_forgets_the_local_steps_that_were_to_be_corrected() -> None:
    server, client = Replica(torch.full((50,), 2.0), Sgd()), SyncReplica(torch.zeros(50), Sgd())
    own = Step(7, np.array([0.5, -2.0], np.float32), 0.1, Distribution.GAUSSIAN)
    client.step_(own)
    client.diverge([own])
    client.restore(server.snapshot())
    client.catch_up(())
    assert client.taken == ()
    assert torch.equal(client.x, server.x)
