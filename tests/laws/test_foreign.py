"""The contract is complete: an implementation that shares no part with the lab's passes all laws that it supports."""

import re
from dataclasses import replace
from random import random
from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab import InputError, Momentum, Sgd, laws
from decomfl_lab.cli.main import main
from decomfl_lab.laws.contract import play
from decomfl_lab.laws.edge import fitted
from decomfl_lab.laws.faults.federation import AROUND, around
from decomfl_lab.laws.strategies import Support
from decomfl_lab.laws.worlds.world import SmallFederation, case_of
from decomfl_lab.noise import Distribution
from tests.laws.foreign import Client, Foreign, Replica, Vector

test_foreign = laws.pytest_suite(Foreign(), cases=8)
LACKED = {"keyed_client", "lean_client", "sync_client", "backends", "direction", "aggregate", "weighing_server"}


def test_it_is_tried_on_all_laws_but_those_of_parts_and_rules_that_it_lacks() -> None:
    outcomes = laws.verify(Foreign(), cases=1)
    others = [name for name, law in laws.LAWS.items() if LACKED & set(law.parts)]
    assert [outcome.law for outcome in outcomes if outcome.status == "not yours"] == others
    assert outcomes.broken == []


class _NeverBack(Client):
    def handle(self, plan: Any) -> Any:
        reply = super().handle(plan)
        self.replica.x = self.replica.x + 1
        return reply


class _Raises(Client):
    def handle(self, plan: Any) -> Any:
        return super().handle(plan) if not plan.records else {}["nothing"]


# Measures something else every time.
_AtTimes = type("_AtTimes", (Client,), {"scalar": lambda self, x, z: Client.scalar(self, x, z) + random()})
REBUILT, BACK = "rebuilt-client-equals-server", "revert-leaves-every-bit"


@pytest.mark.parametrize(
    ("client", "law", "says"),
    [
        (_NeverBack, BACK, r"differs  in round 0, model of client 0 after local updates and revert: of x, 1 of 1"),
        (_Raises, REBUILT, r"raised   KeyError: 'nothing' \(test_foreign.py line \d+\)\ncase "),
        (_AtTimes, "runs-repeat-from-one-seed", r"records of the second run"),
    ],
)
def test_a_faulty_client_is_caught_by_a_case_that_tells(client: Any, law: str, says: str) -> None:
    outcomes = laws.verify(Foreign(client), cases=60, laws=[law])
    assert outcomes.broken == [law]
    assert re.search(says, outcomes[0].counterexample), outcomes[0].counterexample


class _Unfinished(Client):
    def handle(self, plan: Any) -> Any:
        raise NotImplementedError


def test_what_a_client_does_not_offer_while_it_runs_is_skipped_with_the_place() -> None:
    (outcome,) = laws.verify(Foreign(_Unfinished), cases=5, laws=["replies-are-measurements"])
    assert outcome.status == "skipped"
    assert re.fullmatch(r"NotImplementedError \(test_foreign.py line \d+\)", outcome.counterexample)


CASE = case_of(SmallFederation(clients=2, rounds=2))


def test_behind_the_edge_named_tuples_of_arrays_are_values_of_the_labs() -> None:
    played = play(fitted(Foreign()), CASE, [laws.Participation((0, 1))])
    (record,) = played.records
    assert (type(record), record.distribution) == (laws.RoundRecord, Distribution.GAUSSIAN)
    held = played.clients[0].replica.snapshot()
    assert (type(held), type(held.x), list(held.state)) == (laws.Snapshot, torch.Tensor, ["momentum"])


class _NoNumbers(Foreign):
    """Its server accepts whatever it gets, and records what is no number."""

    def server(self, case: Any, *, with_model: bool = True) -> Any:
        made = super().server(case, with_model=with_model)
        right = made.aggregate

        def aggregate(replies: Any) -> Any:
            sound = [replace(reply, scalars=np.ones_like(reply.scalars)) for reply in replies]
            return right(sound)._replace(scalars=np.full((1, 1), np.nan, np.float32))

        made.aggregate = aggregate
        return made


class _Refuses(Client):
    def handle(self, plan: Any) -> Any:
        raise ValueError("not today")


def test_a_record_that_is_none_is_no_refusal_but_a_broken_law() -> None:
    (outcome,) = laws.verify(_NoNumbers(), cases=5, laws=["bad-replies-are-refused"])
    assert outcome.counterexample.startswith("differs  record of round 0: scalars of round 0 must be finite, got nan")


def test_a_refusal_keeps_its_name_and_place() -> None:
    (outcome,) = laws.verify(Foreign(_Refuses), cases=5, laws=["revert-leaves-every-bit"])
    assert outcome.counterexample.startswith("raised   ValueError: not today (test_foreign.py line ")


def test_what_a_part_refuses_is_not_tried_with_the_labs() -> None:
    class Signs(laws.Implementation):
        def direction(self, seed: int, p: int, d: int, distribution: Any) -> Any:
            if distribution is not Distribution.RADEMACHER:
                raise NotImplementedError("signs alone")
            return -super().direction(seed, p, d, distribution)

        def backends(self) -> Any:
            return {"signs": lambda seed, p, first, count, of: self.direction(seed, p, first + count, of)[first:]}

    names = ["streams-are-functions-of-their-counters", "known-answers-are-given", "square-sums-agree"]
    outcomes = laws.verify(Signs(), cases=20, laws=names)
    assert [outcome.status for outcome in outcomes] == ["holds", "broken", "skipped"]
    assert outcomes[0].cases == 20


def test_a_rule_without_weight_decay_is_simpler_than_another_rule() -> None:
    class Plain(laws.Implementation):
        def supports(self, case: Any) -> bool:
            return case.rule == Sgd() or case.rule == Momentum(0.5)

    case = Support(Plain()).fitted(replace(CASE, rule=Momentum(0.5, weight_decay=0.1)))
    assert case is not None
    assert case.rule == Momentum(0.5)


# Whoever has noise and arithmetic of his own --------------------------------------------------------------------------


class OwnReplica(Replica):
    """With torch's generator, and sums in another order."""

    def direction(self, seed: Any, p: int) -> Vector:
        generator = torch.Generator().manual_seed((seed ^ seed >> 32) + 7919 * p & 0xFFFFFFFF)
        return torch.randn(self.x.size, generator=generator).numpy()

    def step(self, seed: Any, g: Vector, eta: float) -> None:
        z = np.stack([self.direction(seed, p) for p in range(g.size)])
        self.x = self.x - np.float32(eta) * (g / np.float32(g.size)) @ z


class OwnClient(Client):
    model = OwnReplica


class Own(laws.Implementation):
    own = True

    def supports(self, case: laws.Case) -> bool:
        plain = case.rule == Sgd() and case.dtype == torch.float32 and case.estimator in ("forward", "central")
        return plain and case.seeding is not laws.Seeding.PER_DIRECTION

    def client(self, case: laws.Case, i: int, objective: Any = None) -> Any:
        return OwnClient(case, i, objective)

    def replica(self, case: laws.Case, *, per_tensor: bool = False) -> Any:
        return OwnReplica(case)


class WithServer(Own):
    def server(self, case: laws.Case, *, with_model: bool = True) -> Any:
        return super().server(case, with_model=with_model)


def test_own_noise_and_arithmetic_keep_the_laws_and_those_of_the_labs_stream_are_named() -> None:
    found = laws.verify(Own(), cases=6)
    assert (found.broken, found.tried) == ([], 15), found
    left = {own.law for own in found if "the lab's stream and arithmetic" in own.counterexample}
    assert left == {"replies-are-measurements", "replay-equals-the-written-out-recursion"}


def test_without_own_the_same_code_is_measured_by_the_labs_stream() -> None:
    class Theirs(Own):
        own = False

    law = "replay-equals-the-written-out-recursion"
    assert laws.verify(Theirs(), cases=6, laws=[law]).broken
    assert not laws.verify(Theirs(own=True), cases=6, laws=[law]).tried
    with pytest.raises(InputError, match="own must be of who makes the client, and the replica or the server, got"):
        laws.verify(laws.Implementation(own=True))


def test_every_fault_around_somebodys_parts_is_caught_by_its_law() -> None:
    table = laws.planted(WithServer())
    assert table.keys() == AROUND.keys()
    assert {next(iter(row.values())).status for row in table.values()} == {"broken"}


def test_faults_of_parts_that_are_the_labs_are_named_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    planted, left = around(Own())
    assert {AROUND[name].part for name in planted} == {"client", "replica"}
    assert set(left.values()) == {"the server is the lab's"}
    target = ["verify", "--target", f"{__file__}:Own", "--law", "a-gap-is-refused", "--plant"]
    assert main([*target, "all"]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 faults are caught" in out
    assert "not tried: the-first-reply-is-taken, where the server is the lab's" in out
    assert [main([*target, name]) for name in ("the-first-reply-is-taken", "a-gap-is-skipped-over")] == [2, 1]
