"""What a client reports beside its scalars."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decomfl_lab import InputError, Sgd
from decomfl_lab.estimators.differences import forward
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Held, Plan
from decomfl_lab.replicas.replica import Replica


def test_the_reported_loss_is_the_mean_over_all_local_steps() -> None:
    client = Client(3, Replica(torch.zeros(4), Sgd()), lambda x, step: float(10**step), forward, 0.5)
    reply = client.handle(Plan(0, 0.1, 2, Distribution.GAUSSIAN, (1, 2, 3)))
    assert reply.loss == pytest.approx((1 + 10 + 100) / 3)
    assert (client.steps_taken, client.report()) == (3, Held(3, 0))
    assert not reply.scalars.any()


def test_a_client_refuses_a_plan_of_a_round_that_its_records_do_not_reach() -> None:
    client = Client(3, Replica(torch.zeros(4), Sgd()), lambda x, step: 0.0, forward, 0.5)
    with pytest.raises(InputError, match="client 3 is at round 0 after its records, but the plan is of round 2"):
        client.handle(Plan(2, 0.1, 1, Distribution.GAUSSIAN, (1,)))


def test_a_client_that_fails_half_way_is_back_where_it_was() -> None:
    def loss(x: torch.Tensor, step: int) -> float:
        if step == 1:
            raise RuntimeError("out of data")
        return float(x.sum())

    client = Client(0, Replica(torch.ones(4), Sgd()), loss, forward, 0.5)
    with pytest.raises(RuntimeError, match="out of data"):
        client.handle(Plan(0, 0.1, 2, Distribution.GAUSSIAN, (1, 2)))
    assert np.array_equal(client.replica.x, np.ones(4))
