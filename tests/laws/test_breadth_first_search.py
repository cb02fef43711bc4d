"""The search breadth first: how many states it reaches, and that planted faults are found by a short history."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.laws import FAULTS, Implementation, breadth_first_search, histories
from decomfl_lab.laws.breadth_first_search import SCOPES, Scope, delivery, explore
from decomfl_lab.laws.contract import Case
from decomfl_lab.laws.faults import Wrong, instead
from decomfl_lab.laws.histories import Deliveries
from decomfl_lab.laws.world import SmallFederation
from decomfl_lab.protocol.aggregation import Mean
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.messages import Reply
from decomfl_lab.protocol.server import PullPolicy, Server, Tracking
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
    """The lab's implementation with another method of its server or its delivery."""

    def __init__(self, kind: type[Server | Delivery], method: str, wrong: Wrong) -> None:
        self.kind: Any = type("Other", (kind,), {method: instead(kind, method, wrong)})

    def delivery(self, case: Case, policy: PullPolicy | None = None, *, with_model: bool = True) -> Delivery:
        made = super().delivery(case, policy, with_model=with_model)
        altered: Any = made.server if issubclass(self.kind, Server) else made
        altered.__class__ = self.kind
        return made


def taken_twice(right: Any, _: Server, replies: Iterable[Reply]) -> Any:
    arrived = list(replies)
    mean = Mean()([reply.scalars for reply in arrived])
    return right({reply.client: replace(reply, scalars=mean) for reply in arrived}.values())


def kept_in_part(right: Any, server: Server, reply: Reply) -> None:
    """A round that is refused has moved t_i of those whose replies came before the wrong one."""
    right(reply)
    if server.held:
        server.held[reply.client] = server.round


def told_once(right: Any, own: Delivery, chosen: Sequence[int], reports: Iterable[bytes] = ()) -> Iterator[Any]:
    """The run's seed, once sent, is believed to have come."""
    yield from list(right(chosen, reports))
    own.told.update(chosen)


def pulls_believed(right: Any, own: Delivery, chosen: Sequence[int], reports: Iterable[bytes] = ()) -> Iterator[Any]:
    """A model, once sent, is believed to have come."""
    gone = [i for i in chosen if own.server.held[i] < own.server.history.start]
    yield from list(right(chosen, reports))
    for i in gone:
        own.server.note_dense_pull(i)


PRUNES_ONE_MORE = Altered(Server, "_prune", lambda _, server: server.history.prune(min(server.held) + 1))
FOUND: dict[str, tuple[Implementation, Scope, str, int]] = {
    "a record pruned too early": (PRUNES_ONE_MORE, TWO, "round 1, round 0 is needed", 8),
    "a reply taken twice": (Altered(Server, "aggregate", taken_twice), TWO, "the scalars of the record", 8),
    "a late reply": (FAULTS["any-reply-accepted"], TWO, "the scalars of the record", 13),
    "a refusal that moves something": (Altered(Server, "check", kept_in_part), TWO, "after it refused a reply", 13),
    "a seed told once": (Altered(Delivery, "open", told_once), TWO, "run_seed must be given", 10),
    "a pull believed": (Altered(Delivery, "open", pulls_believed), KEEP, "which lost nothing, cannot take part", 23),
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


REBUILDS: dict[str, Wrong] = {
    "without the records that it lacks": lambda right, own, i, r, ledger: right(i, own.server.round, ledger),
    "with those that it was believed to lack": lambda right, own, i, r, ledger: right(
        i, max(r, max(own.server.held)), ledger
    ),
}
"""What a client that begins anew is sent."""


@pytest.mark.parametrize("fault", REBUILDS)
def test_a_session_that_does_not_heal_who_lost_its_model_is_found(fault: str) -> None:
    found = explore(SESSION, Altered(Delivery, "bring_up", REBUILDS[fault]))
    assert "the digests of all clients at the end: {} is not" in found.broken, found
    assert any("client 0 gets refusal" in event for event in found.events), found


def test_the_command_prints_a_line_for_each_scope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scopes = delivery(2, 1, 1, Tracking.SERVER), replace(SESSION, faults=0)
    monkeypatch.setattr(breadth_first_search, "SCOPES", scopes)
    assert main(["verify", "--states"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("ok     delivery 2 clients, 1 round, 1 thing")
    assert second.startswith("ok     session  1 client, 2 rounds, 0 things")
    assert "states" in last
    monkeypatch.setattr(breadth_first_search, "SCOPES", scopes[:1])
    assert main(["verify", "--states", "--plant", "momentum-not-reverted", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert "client 1 gets" in row["events"][-1]


def test_the_scopes_of_the_command_have_three_clients_three_rounds_both_trackings_and_sessions() -> None:
    assert {(own.setting.clients, own.setting.rounds) for own in SCOPES if not own.session} >= {(2, 3), (3, 2)}
    assert {(own.setting.tracking, own.setting.keep) for own in SCOPES} == {
        (tracking, keep) for tracking in Tracking for keep in range(3)
    }
    assert {own.setting.tracking for own in SCOPES if own.session} == set(Tracking)
