"""The closed forms of communication against the ledger of real exchanges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decomfl_lab.laws.contract import Case, Implementation, Participation, play
from decomfl_lab.noise import Distribution
from decomfl_lab.rules import Sgd
from decomfl_lab.schedules import Schedule
from decomfl_lab.server import sample_clients
from decomfl_lab.wire import Ledger
from theory import communication


@pytest.mark.parametrize(("M", "m", "K", "P", "R"), [(6, 2, 2, 3, 12), (4, 4, 1, 2, 5), (10, 1, 1, 1, 20)])
def test_expected_wire_bytes_are_the_ledgers_mean(M: int, m: int, K: int, P: int, R: int) -> None:
    totals = []
    for seed in range(60):
        rounds = tuple(Participation(sample_clients(seed, r, M, m)) for r in range(R))
        case = Case(
            M=M, K=K, P=Schedule(P), eta=Schedule(0.01), rule=Sgd(), estimator="central", mu=0.1,
            distribution=Distribution.RADEMACHER, shapes=((3,),), dtype=torch.float64, seed=seed, rounds=rounds,
        )  # fmt: skip
        totals.append(play(Implementation(), case).ledger.bytes / M)
    expected = communication.wire_bytes_decomfl(R, M=M, m=m, K=K, P=P)
    error = np.std(totals, ddof=1) / np.sqrt(len(totals))
    assert abs(np.mean(totals) - expected) <= 4 * error + 1e-9


def test_fedavg_bytes_are_exact() -> None:
    ledger = Ledger(4)
    x = np.zeros(50, np.float32)
    for r in range(3):
        for i in sample_clients(0, r, 4, 2):
            ledger.vector(i, r, x, upwards=False)
            ledger.vector(i, r, x, upwards=True)
    assert ledger.bytes / 4 == communication.wire_bytes_fedavg(3, M=4, m=2, d=50)


def test_countings_of_the_paper_match_its_words() -> None:
    # Table 1 at m/M = 0.1: 2.1 KP a round for DeComFL, 0.2 d for FedAvg.
    assert communication.table1_scalars_decomfl(1, M=100, m=10, K=1, P=20) == pytest.approx(42.0)
    assert communication.table1_scalars_fedavg(1, M=100, m=10, d=28_938) == pytest.approx(5787.6)
    # The plotted axis: index·K·P and index·d, index 0 after the first round.
    assert communication.plotted_scalars_decomfl(220, K=1, P=20) == 4380
    assert communication.plotted_scalars_fedavg(5, d=28_938) == 115_752
