"""What a delivery tells its policy of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.policy import Choice, PullPolicy
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import LowPrecision, Momentum, Sgd, UpdateRule


@pytest.mark.parametrize(
    ("rule", "dtype", "told"),
    [
        (Sgd(), torch.float32, {"d": 3, "vectors": 1, "bytes_per_element": 4}),
        (Momentum(0.9), torch.float64, {"d": 3, "vectors": 2, "bytes_per_element": 8}),
        (LowPrecision(Momentum(0.9)), torch.bfloat16, {"d": 3, "vectors": 2, "bytes_per_element": 4}),
    ],
)
def test_a_policy_is_told_what_a_pull_would_send(rule: UpdateRule, dtype: torch.dtype, told: dict[str, int]) -> None:
    seen: list[dict[str, int]] = []

    class Spy(PullPolicy):
        def choose(self, records: Any, **model: int) -> Choice:
            seen.append(model)
            return super().choose(records, **model)

    replica = Replica(torch.zeros(3, dtype=dtype), rule)
    server = Server(M=1, m=1, K=1, P=Schedule(1), eta=Schedule(0.1), seed=0, replica=replica)
    list(Delivery(server, policy=Spy()).open([0]))
    assert seen == [told]
