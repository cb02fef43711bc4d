"""Replicas that are corrected instead of reverted."""

from __future__ import annotations

import numpy as np
import torch

from decomfl_lab.noise import Distribution
from decomfl_lab.replicas.replica import Replica, SyncReplica
from decomfl_lab.replicas.rules import Sgd, Step


def test_a_pull_forgets_the_local_steps_that_were_to_be_corrected() -> None:
    server, client = Replica(torch.full((50,), 2.0), Sgd()), SyncReplica(torch.zeros(50), Sgd())
    own = Step(7, np.array([0.5, -2.0], np.float32), 0.1, Distribution.GAUSSIAN)
    client.step_(own)
    client.diverge([own])
    client.restore(server.snapshot())
    client.catch_up(())
    assert client.taken == ()
    assert torch.equal(client.x, server.x)
