"""The search breadth first: how many states it reaches, and that planted faults are found by a short history."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.laws import FAULTS, Implementation, breadth, histories
from decomfl_lab.laws.breadth import SCOPES, Scope, delivery, explore
from decomfl_lab.laws.contract import Case
from decomfl_lab.laws.histories import Deliveries
from decomfl_lab.laws.world import SmallFederation
from decomfl_lab.protocol.aggregation import Mean
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.messages import Reply
from decomfl_lab.protocol.policy import PullPolicy
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import Seeding
from tests.thorough import sampled

TWO = delivery(2, 3, 2, Tracking.SERVER)
KEEP = delivery(2, 3, 2, Tracking.SERVER, 1)
SESSION = Scope(SmallFederation(1, 1, 1, None, 2, seeding=Seeding.PER_RUN), 2, session=True)
REACHED: dict[Scope, tuple[int, int]] = {
    replace(TWO, faults=1): (929, 109),
    replace(delivery(2, 3, 1, Tracking.SERVER, 1, pulls=True), faults=1): (960, 109),
    delivery(2, 3, 1, Tracking.CLIENTS): (1906, 208),
    delivery(3, 2, 1, Tracking.SERVER, 1): (1013, 104),
    replace(SESSION, faults=1): (378, 48),
}
"""States and histories: numbers that change with the protocol alone."""


@pytest.mark.parametrize("scope", sampled(REACHED, 3), ids=str)
def test_no_state_is_wrong_and_their_number_is_always_the_same(scope: Scope) -> None:
    found = explore(scope)
    assert not found.broken, found
    assert (found.states, found.histories) == REACHED[scope]


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
    "a record pruned too early": (Altered(PrunesOneMore), TWO, "round 1, round 0 is needed", 8),
    "a reply taken twice": (Altered(TakesTwice), TWO, "the scalars of the record", 8),
    "a late reply": (FAULTS["any-reply-accepted"], TWO, "the scalars of the record", 13),
    "a refusal that moves something": (Altered(KeepsHalf), TWO, "after it refused a reply", 13),
    "a seed told once": (Altered(delivery=TellsOnce), TWO, "run_seed must be given", 10),
    "a pull believed": (Altered(delivery=BelievesInPulls), KEEP, "which lost nothing, cannot take part", 23),
    "a record skipped": (FAULTS["round-skipped"], TWO, "the model of round", 16),
    "a gap accepted": (FAULTS["gap-accepted"], TWO, "the model of round", 24),
    "steps not reverted": (FAULTS["momentum-not-reverted"], TWO, "the model of round", 4),
    "a pull without state": (FAULTS["pull-without-state"], KEEP, "the model of round", 16),
    "too many records": (FAULTS["queue-too-long"], KEEP, "2 records are kept, 1 may be", 15),
}


@pytest.mark.parametrize("fault", FOUND)
def test_a_planted_fault_is_found_by_a_short_history(fault: str) -> None:
    implementation, scope, words, events = FOUND[fault]
    found = explore(scope, implementation)
    assert words in found.broken, found
    assert len(found.events) <= events, found


def test_a_server_that_forgets_after_a_crash_whom_it_served_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[[Any], tuple[Any, ...]] = Deliveries._knows

    def forgets(self: Any) -> tuple[Any, ...]:
        start, r, kept, held, *rest = right(self)
        return start, r, kept, (0,) * len(held), *rest

    monkeypatch.setattr(Deliveries, "_knows", forgets)
    found = explore(TWO)
    assert "is sent the model, though no record may be gone" in found.broken, found
    assert any("the server crashes and comes back" in event for event in found.events)


def test_a_client_that_takes_an_old_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def believes(client: Any, messages: Sequence[bytes], decode: Any) -> Any:
        if len(messages) > 2:  # a state vector, x and the plan
            client.replica.round = 0
        return receive(client, messages, decode)

    monkeypatch.setattr(histories, "receive", believes)
    found = explore(delivery(2, 3, 2, Tracking.SERVER, 1, pulls=True))
    assert "went back from round" in found.broken, found
    assert len(found.events) <= 30


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
    found = explore(SESSION, Altered(delivery=fault))
    assert "the digests of all clients at the end: {} is not" in found.broken, found
    assert any("client 0 gets refusal" in event for event in found.events), found


def test_the_command_prints_a_line_for_each_scope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scopes = delivery(2, 1, 1, Tracking.SERVER), replace(SESSION, faults=0)
    monkeypatch.setattr(breadth, "SCOPES", scopes)
    assert main(["verify", "--states"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("ok     delivery 2 clients, 1 round, 1 thing")
    assert second.startswith("ok     session  1 client, 2 rounds, 0 things")
    assert "states" in last
    monkeypatch.setattr(breadth, "SCOPES", scopes[:1])
    assert main(["verify", "--states", "--plant", "momentum-not-reverted", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert "client 1 gets" in row["events"][-1]


def test_the_scopes_of_the_command_have_three_clients_three_rounds_both_trackings_and_sessions() -> None:
    assert {(own.setting.clients, own.setting.rounds) for own in SCOPES if not own.session} >= {(2, 3), (3, 2)}
    assert {(own.setting.tracking, own.setting.keep) for own in SCOPES} == {
        (tracking, keep) for tracking in Tracking for keep in range(3)
    }
    assert {own.setting.tracking for own in SCOPES if own.session} == set(Tracking)
