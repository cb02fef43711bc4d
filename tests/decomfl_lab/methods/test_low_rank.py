"""Runs along low-rank directions: what they agree upon, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decomfl_lab import noise
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.errors import InputError
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.noise import Distribution, LowRank
from decomfl_lab.records.seeds import stream_of
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Sgd, Step
from decomfl_lab.runs.config import TrainConfig
from decomfl_lab.runs.prepared import build_federation

SHAPES = ((32, 64), (32,), (10, 32), (10,))
TAKING = [name for name, method in METHODS.items() if "rank" in method.options()]


def config(method: str = "decomfl", **changes: object) -> TrainConfig:
    settings = {"model": "mlp", "data": "digits", "clients": 4, "sampled": 2, "batch_size": 16, "seed": 3}
    own = {"perturbations": 3, "distribution": "low-rank", "rank": 2}
    return TrainConfig(**settings).but(method, **own | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", TAKING)
def test_every_method_along_random_directions_takes_them(method: str) -> None:
    options = {
        "perturbations": 2 if method == "fzoo" else 1,
        "rank": 1,
        "local_steps": 1,
        "weight_decay": 0.0,
        "momentum": 0.0,
    }
    known = METHODS[method].options()
    own = {name: value for name, value in options.items() if name in known}
    federation, _, layout = build_federation(config(method, **own), load_dataset("digits"))
    before = federation.x.clone()
    for _ in range(2):
        federation.advance()
    assert not torch.equal(federation.x, before)
    first = (federation.x - before)[: layout.sizes[0]].view(layout.shapes[0])
    assert min(first.shape) > 10
    assert int(torch.linalg.matrix_rank(first, rtol=1e-3)) <= 4  # 2 rounds, 2 directions or 2 clients of own ones


def test_a_step_is_the_sum_of_products_of_factors_with_the_models_shapes() -> None:
    of, x = LowRank(SHAPES, 2), torch.zeros(sum(int(np.prod(shape)) for shape in SHAPES))
    replica = Replica(x, Sgd(), low_rank=of)
    replica.step_(Step(7, np.array([2.0, -4.0], np.float32), 0.5, Distribution.LOW_RANK))
    z = [noise.direction(*stream_of(7, p), of.d, distribution=of, backend="numpy") for p in range(2)]
    assert replica.x.numpy().tobytes() == (np.float32(0.0) - np.float32(0.5) * z[0] + z[1]).tobytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 0}, "rank r must be an integer of at least 1, got 0"),
        ({"distribution": "sphere"}, "rank r must be 1 unless distribution is low-rank, got 2"),
        ({"log_kappa": True}, "distribution for log_kappa must be gaussian or sphere .*, got 'low-rank'"),
    ],
)
def test_options_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(**changes)


def test_a_replica_that_was_not_told_the_shapes_refuses_low_rank_records_and_is_unchanged() -> None:
    replica = Replica(torch.ones(6), Sgd())
    with pytest.raises(InputError, match="low_rank of a replica must be given for low-rank directions, got None"):
        replica.step_(Step(7, np.ones(1, np.float32), 0.5, Distribution.LOW_RANK))
    assert torch.equal(replica.x, torch.ones(6))
    with pytest.raises(InputError, match="elements of the shapes of a LowRank must be d=6, got 5"):
        Replica(torch.ones(6), Sgd(), low_rank=LowRank(((5,),)))
