"""Replicas of equal bits share their vectors until one of them steps on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.federations.in_process import DeComFLFederation
from decomfl_lab.noise import Distribution
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Momentum, Step
from decomfl_lab.runs.config import TrainConfig
from decomfl_lab.runs.prepared import build_federation

STEP = Step(7, np.ones(2, dtype=np.float32), 0.1, Distribution.GAUSSIAN)


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
    replica.restore(snapshot)
    assert replica.x is other.x


@pytest.mark.parametrize(("which", "equal"), [("x", False), ("state", False), ("round", False), ("nothing", True)])
def test_only_equal_bits_are_shared(which: str, equal: bool) -> None:
    one, other = _replica(), _replica()
    one.step_(STEP)
    other.step_(STEP)
    if which == "x":
        other.x[other.x == other.x[3]] *= 1 + 2**-23
    if which == "state":
        other.state["momentum"][0] = float(np.nextafter(np.float32(other.state["momentum"][0]), np.float32(9)))
    other.round += which == "round"
    assert one.share(other) == equal
    assert (one.x is other.x) == equal


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
    federation, _, _ = build_federation(config, load_dataset("digits"))
    assert isinstance(federation, DeComFLFederation)
    assert _vectors(federation) <= 2
    for _ in range(6):
        federation.advance()
    assert {client.replica.round for client in federation.clients} == set(range(6))
    assert _vectors(federation) <= most
