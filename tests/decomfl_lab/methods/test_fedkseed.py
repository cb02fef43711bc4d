"""FedKSeed: the same model whatever was missed, for no more bytes than S sums."""

from typing import Any, cast

import numpy as np
import pytest

import decomfl_lab as lab
from decomfl_lab.errors import InputError
from decomfl_lab.laws.contract import Participation, play
from decomfl_lab.protocol.delivery import receive
from decomfl_lab.protocol.messages import Reply
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.pool_sums import PooledSgd
from tests.cases import refused
from tests.decomfl_lab.federations.direct import CASE, LAB, but

SMALL = {"data": "digits", "model": "logistic", "clients": 4, "sampled": 1, "rounds": 5, "eval_every": 5}
POOLED = but(CASE, rule=PooledSgd(5, -24), seeding=Seeding.POOL)


def method(**options: object) -> lab.FedKSeed:
    return lab.FedKSeed(**{"lr": 0.01, "perturbations": 3} | options)


def test_the_closed_form_is_that_of_its_pool() -> None:
    run = lab.Run(lab.TrainConfig(method(pool=16), **SMALL))
    found = run.check_traffic()
    assert found
    sent = found.sent.down_bytes
    others = [method(pool=16 + n, **more) for n, more in ((1, {}), (-1, {}), (0, {"perturbations": 4}))]
    assert [own for own in others if own.traffic(run.config.cohort, 1).down_bytes == pytest.approx(sent)] == []


def newcomer(missed: int, S: int) -> tuple[int, int]:
    """Bytes and scalars of what a client that was never there gets, by the ledger, after so many rounds."""
    rounds = (Participation((0,)),) * missed
    case = but(POOLED, M=2, rule=PooledSgd(S), P=Schedule(20), K=1, eta=Schedule(1e-4), rounds=rounds)
    played = play(LAB, case, with_model=False)
    assert played.model_after(1) == played.model_after(0)
    return played.ledger.down[1].bytes, played.ledger.down[1].scalars


def test_a_newcomer_after_a_hundred_rounds_gets_one_pool() -> None:
    plan = 12 + 19 + 2 * 20 + 4
    told = 12 + 8
    assert newcomer(100, 1024) == (told + plan + 25 + 4 * 1024, 1024)
    assert newcomer(20, 1024) == (told + plan + 20 * (19 + 6 * 20), 20 * 20)


@pytest.mark.parametrize(
    ("options", "kept"),
    [  # sums of 25 + 4S bytes, records of 19 + 6KP
        ({"pool": 16, "perturbations": 3}, 2),  # 89 and 37
        ({"pool": 24, "perturbations": 3}, 3),  # 121 and 37
        ({"pool": 24, "perturbations": 3, "local_steps": 2}, 2),  # 121 and 55
        ({"pool": 31, "perturbations": 3}, 4),  # 149 and 37: one byte more than four records
        ({"pool": 24, "perturbations": 3, "perturbation_schedule": {2: 1, 4: 9}}, 4),  # 121 and 25, the shortest
        ({"pool": 1, "perturbations": 9}, 1),  # 29 and 73: the newest at least
        ({"pool": 1024, "perturbations": 20}, 29),  # 4121 and 139
    ],
)
def test_the_server_keeps_as_many_records_as_are_no_longer_than_the_sums(options: dict[str, Any], kept: int) -> None:
    server = cast("Any", lab.Run(lab.TrainConfig(method(**options), **SMALL)).federation).server
    assert server.keep == kept
    plan = server.plan_round()
    for _ in range(2 * kept + 1):  # somebody was never there, and may need them all
        plan = server.plan_round([0])
        server.aggregate([Reply(0, server.round, np.ones((plan[0].K, plan[0].P), np.float32))])
    assert len(server.history) == kept


def test_sums_of_another_round_or_to_another_rule_are_refused_and_change_nothing() -> None:
    delivery, pooled = LAB.delivery(POOLED), LAB.client(POOLED, 0)
    plain = LAB.client(but(seeding=Seeding.POOL), 0)
    ((_, messages),) = delivery.open([0])
    for client, r, message in ((pooled, 1, "round of a pool's sums must be 0, got 1"), (plain, 0, "PooledSgd rule")):
        sums = delivery.ledger.sent(0, PoolSums(r, -24, np.ones(5, np.int32)), upwards=False)
        before = client.replica.snapshot()
        with pytest.raises(InputError, match=message):
            receive(client, [sums, *messages])
        assert client.replica.round == 0
        assert client.replica.snapshot().x is before.x
        assert client.run_seed is None


def test_a_grid_that_is_too_fine_ends_the_run_with_an_error_that_says_what_helps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["--data", "digits", "--model", "logistic", "--rounds", "3", "--clients", "2", "--sampled", "1"]
    error = refused(capsys, "train", "fedkseed", *small, "--pool", "1", "--pool-exponent", "-60")
    assert "largest sum of the pool must be at most" in error
    assert "a coarser grid (pool_exponent)" in error


def test_what_a_pool_has_no_use_for_is_no_option() -> None:
    for name in ("seeds", "rule", "history", "server_model", "pull", "revert"):
        with pytest.raises(InputError, match="option of fedkseed must be one of"):
            lab.FedKSeed(**{name: 1})
