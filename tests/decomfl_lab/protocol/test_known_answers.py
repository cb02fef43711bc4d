"""Known answers: what is drawn from a seed, and the bytes of every message, are what they were.

Stored runs and other implementations rest on these numbers: a change of any is a new version, not a repair.
"""

from typing import Any

import numpy as np
import pytest

from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.messages import Dense, Examples, Held, Plan, Quantized, Reply, RunSeed, Sparse
from decomfl_lab.protocol.server import Server, sample_clients
from decomfl_lab.protocol.wire import decode, encode
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding, draw_seeds
from tests.tables import rows_of

G = np.array([[1.5, -2.0, 0.25]], np.float32)
ROUND, ETA = "03000000", "9a9999999999a93f"  # 3 and 0.05
RECORD = "020000009a9999999999b93f01000300"  # round 2, eta 0.1, K = 1, P = 3
SCALARS = "0000c03f000000c00000803e"
PLANS = rows_of(__file__)["plans"]


@pytest.mark.parametrize("seeding", Seeding)
def test_plans_have_these_bytes(seeding: Seeding) -> None:
    record = RoundRecord(2, 0.1, Distribution.SPHERE, draw_seeds(seeding, 77, 2, 1, 3), G)
    plan = Plan(3, 0.05, 3, Distribution.RADEMACHER, draw_seeds(seeding, 77, 3, 1, 3), (record,))
    header, seeds, recorded = PLANS[seeding.value]
    assert encode(plan).hex() == header + ROUND + ETA + "01000300" + seeds + "01000000" + RECORD + recorded + SCALARS


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (Reply(7, 3, G), "44430202180000004e68b975070000000300000001000300" + SCALARS),
        (
            Reply(7, 3, np.array([[1, -1, 1], [1, -1, -1], [1, 1, 1]], np.int8)),
            "4443020d0e000000d12c33c2070000000300000003000300cd01",
        ),
        (Held(7, 41), "4443020708000000c436ddb20700000029000000"),
        (Examples(7, 99), "4443020f080000009d8e74460700000063000000"),
        (
            PoolSums(3, -30, np.array([1, -2], np.int32)),
            "4443020e150000003229420a03000000e2020000000000000001000000feffffff",
        ),
        (RunSeed(77), "44430208080000005508bad74d00000000000000"),
        (Dense(3, G[0]), "4443020319000000349db2fb03000000040300000000000000" + SCALARS),
        (
            Dense(3, G[0].astype(np.float64)),
            "44430203250000009f66f1db03000000080300000000000000000000000000f83f00000000000000c0000000000000d03f",
        ),
        (
            Sparse(3, 9, np.array([1, 8]), np.array([1.5, -2], np.float32)),
            "4443020624000000e6203ac4030000000900000000000000020000000000000001000000080000000000c03f000000c0",
        ),
        *(
            (Quantized(3, bits, 0.5, np.array([1, -7, 3], np.int8)), wanted)
            for bits, wanted in rows_of(__file__)["quantized"]
        ),
    ],
)
def test_other_messages_have_these_bytes(message: Any, wanted: str) -> None:
    assert encode(message).hex() == wanted
    back: Any = decode(bytes.fromhex(wanted))
    assert encode(back).hex() == wanted
    told = [(value, getattr(back, name)) for name, value in vars(message).items() if name != "loss"]
    assert all(repr(before) == repr(after) for before, after in told)


def test_a_seed_gives_these_directions_and_these_clients() -> None:
    server = Server(5, 2, 1, Schedule(1), Schedule(0.1), seed=11)
    assert server.run_seed == 5122542365940345359
    assert [sample_clients(11, r, 9, 4) for r in range(3)] == [(0, 2, 7, 8), (0, 1, 3, 7), (2, 4, 5, 7)]
    assert draw_seeds(Seeding.PER_STEP, 77, 3, 1, 3) == (0x2CD4487073EA09D7,)
