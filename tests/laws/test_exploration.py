"""The search over states: what it reaches, and that planted faults are found by a short way."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.laws import FAULTS, Implementation, exploration
from decomfl_lab.laws.contract import Case
from decomfl_lab.laws.exploration import SCOPES, Scope, explore
from decomfl_lab.protocol.aggregation import Mean
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.messages import Reply
from decomfl_lab.protocol.policy import PullPolicy
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.records.record import RoundRecord
from tests.thorough import sampled

TWO = Scope(clients=2, rounds=3)
REACHED = {
    TWO: (855, 2875, 14),
    replace(TWO, keep=1, pulls=True): (835, 2911, 13),
    replace(TWO, tracking=Tracking.CLIENTS): (3863, 25535, 15),
    replace(TWO, keep=1, memory=2): (4071, 18264, 15),
    Scope(rounds=2, keep=1): (2653, 12394, 14),
    Scope(clients=1, rounds=2, session=True): (611, 2536, 17),
    Scope(Tracking.CLIENTS, clients=1, rounds=2, session=True): (963, 4052, 27),
}
"""States, transitions and depth: numbers that change with the protocol alone."""


@pytest.mark.parametrize("scope", sampled(REACHED, 3), ids=str)
def test_no_state_is_wrong_and_their_number_is_always_the_same(scope: Scope) -> None:
    found = explore(scope)
    assert not found.broken, found
    assert (found.states, found.transitions, found.depth) == REACHED[scope]


class Altered(Implementation):
    """The lab's implementation with another kind of server or delivery."""

    def __init__(self, server: type[Server] = Server, delivery: type[Delivery] = Delivery) -> None:
        self.kinds = server, delivery

    def delivery(self, case: Case, policy: PullPolicy | None = None, *, with_model: bool = True) -> Delivery:
        server, delivery = self.kinds
        made = super().delivery(case, policy, with_model=with_model)
        made.server.__class__, made.__class__ = server, delivery
        return made


class PrunesOneMore(Server):
    def _prune(self) -> None:
        self.history.prune(min(self.held) + 1)


class TakesTwice(Server):
    """A reply that comes twice counts twice."""

    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        arrived = list(replies)
        mean = Mean()([reply.scalars for reply in arrived])
        return super().aggregate({reply.client: replace(reply, scalars=mean) for reply in arrived}.values())


class KeepsHalf(Server):
    """A round that is refused has moved t_i of those whose replies came before the wrong one."""

    def check(self, reply: Reply) -> None:
        super().check(reply)
        if self.held:
            self.held[reply.client] = self.round


class TellsOnce(Delivery):
    """Believes that the run's seed, once sent, has come."""

    def open(self, chosen: Sequence[int], reports: Iterable[bytes] = ()) -> Iterator[tuple[int, list[bytes]]]:
        yield from list(super().open(chosen, reports))
        self.told.update(chosen)


class BelievesInPulls(Delivery):
    """Believes that a model, once sent, has come."""

    def open(self, chosen: Sequence[int], reports: Iterable[bytes] = ()) -> Iterator[tuple[int, list[bytes]]]:
        gone = [i for i in chosen if self.server.held[i] < self.server.history.start]
        yield from list(super().open(chosen, reports))
        for i in gone:
            self.server.note_dense_pull(i)


FOUND: dict[str, tuple[Implementation, Scope, str, int]] = {
    "a record pruned too early": (Altered(PrunesOneMore), TWO, "round 1, round 0 is needed", 5),
    "a reply taken twice": (Altered(TakesTwice), TWO, "the scalars of the record", 4),
    "a late reply": (FAULTS["any-reply-accepted"], TWO, "whether a reply of the round is among", 5),
    "a refusal that moves something": (Altered(KeepsHalf), TWO, "after it refused a reply", 7),
    "a seed told once": (Altered(delivery=TellsOnce), TWO, "run_seed must be given", 4),
    "a pull believed": (Altered(delivery=BelievesInPulls), replace(TWO, keep=1), "after its records", 10),
    "a record skipped": (FAULTS["round-skipped"], TWO, "the model of client", 8),
    "a gap accepted": (FAULTS["gap-accepted"], TWO, "the model of client", 8),
    "steps not reverted": (FAULTS["momentum-not-reverted"], TWO, "the model of client", 2),
    "a pull without state": (FAULTS["pull-without-state"], replace(TWO, keep=1), "the model of client", 9),
    "too many records": (FAULTS["queue-too-long"], replace(TWO, keep=1), "2 records are kept, 1 may be", 6),
}


@pytest.mark.parametrize("fault", FOUND)
def test_a_planted_fault_is_found_by_a_short_way(fault: str) -> None:
    implementation, scope, words, events = FOUND[fault]
    found = explore(scope, implementation)
    assert words in found.broken, found
    assert len(found.events) <= events, found


def test_a_server_that_forgets_after_a_crash_whom_it_served_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[[Any, int], int] = exploration._Search._restarted

    def forgets(self: Any, number: int) -> int:
        wrong = self.delivery_of[-1] = copy.deepcopy(self.delivery_of[number])
        wrong.server.held = [0] * len(wrong.server.held)
        return right(self, -1)

    monkeypatch.setattr(exploration._Search, "_restarted", forgets)
    found = explore(TWO)
    assert "is sent the model, though no record may be gone" in found.broken
    assert "the server crashes and comes back" in found.events


def test_a_client_that_takes_an_old_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def believes(client: Any, messages: Sequence[bytes], decode: Any) -> Any:
        if len(messages) > 2:  # a state vector, x and the plan
            client.replica.round = 0
        return receive(client, messages, decode)

    monkeypatch.setattr(exploration, "receive", believes)
    assert not explore(replace(TWO, keep=1)).broken  # no second pull is in three rounds
    found = explore(Scope(clients=2, keep=1, memory=2))
    assert "went back from round 3 to round 2" in found.broken
    assert len(found.events) == 12


class ForgetsRecords(Delivery):
    """A client that begins anew gets its plan without the records that it lacks."""

    def bring_up(self, i: int, r: int, ledger: Ledger) -> list[bytes]:
        return super().bring_up(i, self.server.round, ledger)


class KnowsOnlyHeld(Delivery):
    """A client that begins anew gets what it was believed to lack."""

    def bring_up(self, i: int, r: int, ledger: Ledger) -> list[bytes]:
        return super().bring_up(i, max(r, max(self.server.held)), ledger)


@pytest.mark.parametrize("fault", [ForgetsRecords, KnowsOnlyHeld])
def test_a_session_that_does_not_heal_who_lost_its_model_is_found(fault: type[Delivery]) -> None:
    found = explore(Scope(clients=1, rounds=3, session=True), Altered(delivery=fault))
    assert "cannot take part: new beginnings of client 0 must number 3 at most a round, got 4" in found.broken, found
    assert len(found.events) <= 14


def test_the_command_prints_a_line_for_each_scope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exploration, "SCOPES", (replace(TWO, rounds=1), replace(TWO, rounds=2)))
    assert main(["verify", "--states"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("ok     delivery 2 clients, 1 round, network of 1")
    assert second.startswith("ok     delivery 2 clients, 2 rounds, network of 1")
    assert "states" in last
    assert main(["verify", "--states", "--plant", "momentum-not-reverted", "--json"]) == 1
    assert [row["events"][-1] for row in json.loads(capsys.readouterr().out)] == [
        "client 0 gets the plan of round 0"
    ] * 2


def test_the_scopes_of_the_command_have_three_clients_and_four_rounds_and_both_trackings() -> None:
    assert {(scope.clients, scope.rounds) for scope in SCOPES} >= {(3, 4), (3, 3), (2, 4)}
    assert {(scope.tracking, scope.keep) for scope in SCOPES} == {(own, keep) for own in Tracking for keep in range(3)}
