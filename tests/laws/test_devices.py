"""The laws hold across devices: every second client on another one, or by another backend, with the same bits."""

from typing import Any

import pytest
import torch

from decomfl_lab.laws import LAWS
from decomfl_lab.laws.check import check_law
from decomfl_lab.laws.contract import AcrossDevices, Case
from decomfl_lab.replicas.replica import Replica
from tests.thorough import sampled

ACROSS = (
    "rebuilt-client-equals-server",
    "replay-equals-the-written-out-recursion",
    "revert-leaves-every-bit",
    "dense-pull-equals-replay",
)
"""Laws that compare clients with the server."""


@pytest.mark.parametrize("name", sampled(ACROSS, 2))
def test_clients_on_another_device_have_the_bits_of_the_others(name: str) -> None:
    outcome = check_law(LAWS[name], AcrossDevices(torch.device("cpu")), cases=40, seed=2)
    assert outcome.passed, outcome.counterexample


def test_another_device_that_rounds_otherwise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Off(AcrossDevices):
        def client(self, case: Case, i: int, objective: Any = None) -> Any:
            client = super().client(case, i, objective)
            if i % 2:
                client.replica = Replica(case.initial() * (1 + 2**-20), case.rule)
            return client

    assert not check_law(LAWS[ACROSS[0]], Off(torch.device("cpu")), cases=40, seed=2, shrink=False).passed
