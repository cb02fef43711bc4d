"""What liars send: each kind by its formula, the same in every repetition, recorded, replayed, refused elsewhere."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from decomfl_lab import InputError, Krum, Run, TrainConfig
from decomfl_lab.protocol.attacks import ATTACKS, Attack
from decomfl_lab.protocol.messages import Reply
from decomfl_lab.runs.preparation import movable
from tests.cases import refuses, rows_of, sampled

SMALL: dict[str, Any] = {
    "data": "digits", "model": "logistic", "clients": 8, "sampled": 7, "rounds": 4, "eval_every": 2, "batch_size": 16,
    "perturbations": 3, "lr": 0.01,
}  # fmt: skip


def replies(n: int = 7, r: int = 3, dtype: type = np.float32) -> list[Reply]:
    drawn = np.random.default_rng(5).normal(1.0, 2.0, (n, 2, 3))
    scalars = np.sign(drawn).astype(dtype) if dtype is np.int8 else drawn.astype(dtype)
    return [Reply(2 * i, r, own, 0.5) for i, own in enumerate(scalars)]


def lies(kind: str, scale: float = 0.0, f: int = 2, **options: Any) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """What the liars sent, what they measured, and what the honest ones sent, in float64."""
    attack, measured = Attack(kind, f, 0, scale), replies(**options)
    liars, sent = attack.liars(3, [reply.client for reply in measured]), attack(measured)
    assert len(liars) == f
    for before, after in zip(measured, sent, strict=True):
        assert (before.client, before.loss) == (after.client, after.loss)
        assert before.client in liars or after.scalars is before.scalars
        assert after.scalars.dtype == before.scalars.dtype
    own, honest = (
        np.stack([reply.scalars for reply in measured if (reply.client in liars) == lying]).astype(np.float64)
        for lying in (True, False)
    )
    return [reply.scalars for reply in sent if reply.client in liars], own, honest


@pytest.mark.parametrize("scale", [0.0, 3.0])
def test_each_kind_of_lie_is_its_formula(scale: float) -> None:
    def c(usual: float) -> float:
        return scale or usual

    said, own, honest = lies("sign", scale)
    mean, spread = honest.mean(axis=0), honest.std(axis=0)
    assert np.allclose(said, -c(1.0) * own)
    assert np.allclose(lies("scaled", scale)[0], c(100.0) * own)
    assert np.allclose(lies("constant", scale)[0], c(100.0))
    assert np.allclose(lies("inner-product", scale)[0], -c(1.0) * mean)
    assert np.allclose(lies("a-little", scale)[0], mean - c(1.5) * spread)


def test_gaussian_lies_are_of_the_size_said_and_independent_of_the_truth() -> None:
    said = np.stack([lies("gaussian", 0.0, n=400, f=200)[0]])
    assert abs(said.std() / 200 - 1) < 0.1
    assert abs(said.mean()) < 30
    assert len(np.unique(said)) == said.size


def test_a_trim_lie_is_just_beyond_the_honest_numbers_on_the_wrong_side() -> None:
    said, _, honest = lies("trim", 1.5)
    low, high, up = honest.min(axis=0), honest.max(axis=0), honest.mean(axis=0) > 0
    end = np.where(up, low, high)
    for each in said:
        assert np.where(up, each <= low + 1e-6, each >= high - 1e-6).all()
        share = np.where(abs(each) > abs(end), each / end, end / each)
        assert ((share >= 1 - 1e-6) & (share <= 1.5 + 1e-6)).all()
    assert not np.array_equal(*said)


def test_krum_takes_the_lie_that_is_made_for_it() -> None:
    attack, measured = Attack("krum", 2, 0), replies(9)
    liars = attack.liars(3, [reply.client for reply in measured])
    taken = Krum(2)([reply.scalars for reply in attack(measured)])
    honest = [reply.scalars for reply in measured if reply.client not in liars]
    assert not any(np.array_equal(taken, own) for own in honest)
    assert len(np.unique(abs(taken))) == 1


def test_lies_have_no_order_and_repeat_by_seed_and_round_alone() -> None:
    for kind in ATTACKS:
        attack, measured = Attack(kind, 2, 4), replies()
        there = {reply.client: reply.scalars.tobytes() for reply in attack(measured)}
        assert there == {reply.client: reply.scalars.tobytes() for reply in attack(measured[::-1])}
    answered = range(10)
    assert Attack("sign", 3, 0).liars(1, answered) == Attack("krum", 3, 0).liars(1, answered)
    assert len({Attack("sign", 3, seed).liars(r, answered) for seed in range(3) for r in range(3)}) > 6


def test_every_client_lies_as_often_as_any_other() -> None:
    counts = Counter(i for r in range(2000) for i in Attack("sign", 3, 0).liars(r, range(10)))
    assert min(counts.values()) > 600 - 5 * np.sqrt(2000 * 0.3 * 0.7)
    assert max(counts.values()) < 600 + 5 * np.sqrt(2000 * 0.3 * 0.7)


def test_a_lie_too_large_for_float32_is_the_largest_number_and_a_vote_is_a_vote() -> None:
    assert (np.stack(lies("constant", 1e300)[0]) == np.finfo(np.float32).max).all()
    said, own, _ = lies("sign", dtype=np.int8)
    assert np.array_equal(said, -own)
    assert set(np.unique(lies("gaussian", dtype=np.int8)[0])) == {-1, 1}


def test_liars_are_part_of_what_a_run_is_and_honest_runs_are_as_before() -> None:
    honest = TrainConfig("decomfl")
    assert not [name for name in honest.to_dict() if name.startswith("attack")]
    lying = honest.but(attack="sign", attackers=1)
    assert lying.identity("x0") not in {honest.identity("x0"), lying.but(attackers=2).identity("x0")}


@pytest.mark.parametrize("method", sampled(["feedsign", "baffle", "fedkseed", "hiso", "fzoo", "decomfl-projection"], 1))
def test_methods_of_scalars_have_liars_and_their_traffic_is_what_it_was(method: str) -> None:
    run = Run(TrainConfig().but(method, **SMALL, attack="sign", attackers=1))
    run.train()
    assert run.verify()
    assert run.check_traffic()


@refuses(*rows_of(__file__)["refused"])
def test_attacks_that_make_no_sense_are_refused(method: str, options: dict[str, Any]) -> None:
    Run(TrainConfig().but(method, **{name: own for name, own in SMALL.items() if name != "perturbations"}, **options))


def test_clients_in_other_processes_do_not_lie() -> None:
    run = Run(TrainConfig("decomfl", **SMALL, attack="sign", attackers=1))
    with pytest.raises(InputError, match="attack must be none where clients are in other processes, .*, got 'sign'"):
        movable(run.federation, run.config.method)
