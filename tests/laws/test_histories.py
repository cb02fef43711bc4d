"""Histories of small federations, drawn by seeds or all of a scope: they end as they must, and faults are found."""

import contextlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.laws import Implementation
from decomfl_lab.laws.faults.federation import FAULTS as PLANTED
from decomfl_lab.laws.faults.federation import Wrong, instead, then
from decomfl_lab.laws.worlds import breadth_first_search, world
from decomfl_lab.laws.worlds.breadth_first_search import SCOPES, Scope, explore
from decomfl_lab.laws.worlds.random_search import Decisions, Search
from decomfl_lab.laws.worlds.world import SmallFederation
from decomfl_lab.protocol import session
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.session import Coordinator, Frames, Host
from decomfl_lab.records.seeds import Seeding
from tests.cases import sampled
from tests.laws.foreign import Foreign

# Drawn by seeds -------------------------------------------------------------------------------------------------------

QUICK = (*range(100), 638, 2593, 4686)
"""Among them one at least that each of the faults below spoils."""
HALVES = range(50_000), range(50_000, 100_000)
"""One for each process of ``make thorough``."""


@pytest.mark.parametrize(
    "seeds",
    [QUICK, *(pytest.param(half, marks=pytest.mark.thorough) for half in HALVES)],
    ids=["quick", *map(str, HALVES)],
)
def test_histories_end_with_equal_models_and_right_records(seeds: Iterable[int]) -> None:
    found = Search().search(seeds)
    assert found is None, found


@pytest.mark.parametrize("count", [20, pytest.param(3000, marks=pytest.mark.thorough)])
def test_histories_of_real_replicas_end_so_too(count: int) -> None:
    found = Search(Implementation()).search(range(count))
    assert found is None, found


def forgets_a_record(right: Any, server: Any, log: RunLog | None) -> None:
    if log is not None and len(log) > server.round:
        del log._starts[-1]
        log._file.truncate(log._starts[-1])
        log.chain = log._bytes_at(log._starts[-1] - 16, 16)
    right(log)


def logged_late(right: Any, server: Any, frames: Any, count: Any) -> None:
    late = vars(server).setdefault("late", [])

    def write() -> None:
        while late:
            RemoteFederation._write(server, late.pop())

    hidden = {"_write": late.append, "rebuilt": lambda: write() or RemoteFederation.rebuilt(server)}
    vars(server).update(hidden)  # they hide the methods
    right(frames, count)
    write()


def counted_twice(right: Any, own: Any, i: int, *rest: Any) -> Any:
    if i in own.replies:
        own.steps[i] += 2
    return right(i, *rest)


def counted_again(right: Any, own: Any, *of: Any) -> None:
    before = own.replies
    right(*of)
    own.replies |= {i: replace(reply, round=own.round) for i, reply in before.items() if own.round}


def earlier_steps(right: Any, own: Any, i: int, r: int) -> Any:
    steps, own.steps = own.steps, [max(0, n - 2) for n in own.steps]
    try:
        return right(i, r)
    finally:
        own.steps = steps


def without_room(right: Any, _: Any, entry: Any) -> None:
    with contextlib.suppress(InputError):
        right(entry)


def steps_of_logged_rounds(right: Any, server: Any) -> Any:
    known, steps = len(server.log) > server.round, list(server.coordinator.steps)
    loss = right()
    server.coordinator.steps = steps if known else server.coordinator.steps
    return loss


def in_vain(right: Any, own: Any) -> Any:
    sure = dict.fromkeys(own.asked, own.round)
    record = right()
    own._sure |= sure
    return record


def measured_twice(right: Any, host: Any, i: int, frame: bytes) -> Any:
    plan, found = right(i, frame)
    if plan is not None:
        host._answers.pop(i, None)  # so that the local steps go on, and are not taken again
    return plan, found


def without_places(host: Any, _: Any) -> None:
    for client in host.clients.values():
        client.steps_taken = 0


def believed(right: Any, host: Any, i: int, frame: bytes) -> Any:
    before = host.clients[i].steps_taken, host.replica.round
    found = right(i, frame)
    if before != (host.clients[i].steps_taken, host.replica.round):
        host._welcomed.add(i)
    return found


def without_seed(right: Any, _: Any) -> Any:
    tensors, values = right()
    return tensors, msgspec.structs.replace(values, told=[])


def setting(change: Callable[[Any], object]) -> Wrong:
    """What changes attributes before the right method is called."""

    def changed(right: Any, own: Any, *of: Any) -> Any:
        change(own)
        return right(*of)

    return changed


RECORD = "the record of round"
FULL = "the round of the model of a server whose disk is full"
ENDS = "the server dies", "the server refuses", "the server ends"
MODEL = "how often a client is told that its model is wrong: 1 is not 0"
KNOWN = "what a server knows that follows the log"
LATE = f"{MODEL}|rounds of entries must be in|{FULL}"  # by a client, a checkpoint, or a disk
WAITS = "the server waits until"
END = "the digests of all clients at the end"
Remote = RemoteFederation
FAULTS: dict[str, tuple[type, str, Wrong, str]] = {
    "a server forgets a record when it restarts": (Remote, "log_to", forgets_a_record, MODEL),
    "a record is not on the disk when it is given out": (
        RunLog, "append", lambda right, _, entry, **sync: right(entry), MODEL
    ),
    "a record is logged after the next round was opened": (Remote, "_exchange", logged_late, LATE),
    "a reply that comes twice counts twice": (
        Coordinator, "_accept", counted_twice, "the local steps that the server counts"
    ),
    "a reply of an earlier round is accepted": (Coordinator, "_accept", lambda right, own, i, reply, *rest: (
        right(i, replace(reply, round=own.round), *rest)
    ), RECORD),
    "replies of the round before count again": (Coordinator, "_begin", counted_again, RECORD),
    "a welcome has the local steps of the round before": (Coordinator, "_welcome", earlier_steps, RECORD),
    "who comes back is told a record too few": (Delivery, "bring_up", lambda right, own, i, r, ledger: (
        right(i, min(r + 1, own.server.round), ledger)
    ), END),
    "a quorum is one reply fewer": (
        Remote, "__init__", then(lambda own, _: vars(own).update(quorum=max(1, own.quorum - 1))), "no quorum of"
    ),
    "refused clients count in the quorum": (Remote, "_exchange", lambda right, own, frames, count: (
        right(frames, lambda: count() + len(own.coordinator.refused))
    ), "no quorum of|replies of round . must number at least 1"),
    "a round goes on though the disk is full": (
        Remote, "_write", without_room, f"a client held a model of round .* but the log|{FULL}"
    ),
    "x moves before the round is in the log": (Remote, "_write", lambda right, server, entry: (
        server.observer.catch_up([entry.record]), right(entry)
    ), FULL),
    "digests are not looked at": (
        Coordinator, "_agrees", lambda _, own, hello: bool(hello.round <= own.round), f"{RECORD}|{END}"
    ),
    "a checkpoint has no local steps": (
        Remote, "load", then(lambda own, _: vars(own.coordinator).update(steps=[0] * own.server.M)), RECORD
    ),
    "the local steps of logged rounds are not counted": (Remote, "advance", steps_of_logged_rounds, RECORD),
    "who measured in vain is not told": (Coordinator, "close", in_vain, RECORD),
    "a plan that comes twice is measured twice": (Host, "_read", measured_twice, RECORD),
    "a host comes back without its answers": (
        Host, "load", then(lambda host, _: vars(host).update(_answers={})), RECORD
    ),
    "a host comes back without its places in the data": (Host, "load", then(without_places), RECORD),
    "a late welcome is believed": (Host, "_read", believed, RECORD),
    "answers are counted twice": (Coordinator, "_counted", lambda *_: 0, "the bytes that both ledgers count"),
    "a checkpoint does not have who knows the seed": (Remote, "save", without_seed, KNOWN),
    "the log says that all were asked": (Remote, "_write", lambda right, own, entry: right(
        replace(entry, sampled=own.coordinator.chosen) if entry.held is None else entry
    ), KNOWN),
    "the log says that everybody held the first model": (Remote, "_write", lambda right, _, entry: right(
        replace(entry, held=entry.held and (0,) * len(entry.held))
    ), KNOWN),
    "a round that is opened again has lost its replies": (
        Coordinator, "_begin", setting(lambda own: vars(own).update(replies={})), KNOWN
    ),
    "a round that is opened again has lost what its clients held": (
        Coordinator, "_begin", setting(lambda own: vars(own).update(_invited={})), "KeyError"
    ),
    "a round with a quorum waits for another deadline": (
        Frames, "without", lambda right, _, done, enough: right(done, lambda: False), WAITS
    ),
    "a round forgets its deadline": (
        Remote, "_exchange", setting(lambda own: vars(own).update(deadline=own.deadline and 50.0)), WAITS
    ),
    "a round goes on before its deadline": (
        Remote, "_exchange", setting(lambda own: vars(own).update(deadline=0.5)), "who is there and is not waited for"
    ),
}  # fmt: skip
"""A class, its method, what is done instead, and what is said of it."""


def planted(monkeypatch: pytest.MonkeyPatch, kind: type, attribute: str, wrong: Any) -> Search:
    monkeypatch.setattr(kind, attribute, instead(kind, attribute, wrong))
    return Search()


@pytest.mark.parametrize("name", sampled(FAULTS, 2))
def test_a_planted_fault_is_found_and_made_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted(monkeypatch, *FAULTS[name][:3]).search(range(8000))
    assert found is not None
    assert re.search(FAULTS[name][-1], found.broken), found
    assert len(found.events) <= 60, found


@pytest.mark.thorough
def test_a_round_without_an_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_few(right: Any, own: Delivery, i: int, r: int, ledger: Any) -> Any:
        return right(i, min(r + bool(own.server.planned), own.server.round), ledger)

    monkeypatch.setattr(session, "MOST_WELCOMES", 10**9)
    monkeypatch.setattr(world, "PATIENCE", 1e9)
    found = planted(monkeypatch, Delivery, "bring_up", too_few).search(range(500))
    assert found is not None
    assert "there is no end" in found.broken


def test_a_client_that_begins_anew_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    another_x = Decisions(given={"stranger": [1]})
    assert Search().broken(another_x) == ""
    for_ever = setting(lambda own: own._welcomes.clear())
    search = planted(monkeypatch, Coordinator, "_greet", for_ever)
    assert "client 0 begins anew for ever" in search.broken(Decisions(given={"stranger": [1]}))


def test_a_target_whose_clients_are_not_the_labs_has_no_sessions() -> None:
    with pytest.raises(NotImplementedError, match="sessions are the lab's, of its own server and clients"):
        Search(Foreign())


def test_a_short_history_reads_as_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    own = planted(monkeypatch, *FAULTS["a server forgets a record when it restarts"][:3])
    found = own.search(range(4000))
    assert found is not None
    told = [event.partition("s  ")[2] for event in found.events]
    dies = next(n for n, event in enumerate(told) if event.startswith(ENDS))
    records, logged = ([event for event in told if words in event] for words in ("has a record of", "is in the log"))
    assert len(logged) == len(records) - 1
    assert told[dies + 1] == "the server is started again"
    assert told[-1].startswith("the server gets hello")
    assert own.broken(Decisions(found.seed))
    assert str(found).endswith(f"decomfl verify --histories 1 --seed {found.seed}")


def test_the_command_plays_histories_and_prints_one_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--histories", "20"]) == 0
    assert capsys.readouterr().out.startswith("ok     20 histories from seed 0 (")
    planted(monkeypatch, *FAULTS[name := "answers are counted twice"][:3])
    assert main(["verify", "--histories", "20", "--seed", "7", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)["found"]
    assert (said["seed"], FAULTS[name][-1] in said["broken"]) == (7, True)
    assert main(["verify", "--histories", "0"]) == 2


def test_a_reply_measured_on_other_bits_is_not_repeated_once_the_model_is_right() -> None:
    # Two clients share a process: one is told that the model is wrong, after the other has measured it.
    assert Search().search([87326]) is None


# All of a scope, breadth first ----------------------------------------------------------------------------------------

ONE = Scope(SmallFederation(1, 1, 1, None, 2, seeding=Seeding.PER_RUN), 2)
KEEP = Scope(SmallFederation(2, 1, 1, None, 2, keep=1, seeding=Seeding.PER_RUN), 1)
REACHED: dict[Scope, tuple[int, int]] = {
    replace(ONE, faults=1): (355, 48),
    Scope(replace(ONE.setting, tracking=Tracking.CLIENTS), 1): (623, 84),
    Scope(SmallFederation(2, 2, 2, 10.0, 2, check_every=1), 1): (1307, 87),
}
"""States and histories: numbers that change with the protocol alone."""


@pytest.mark.parametrize("scope", sampled(REACHED, 2), ids=str)
def test_no_state_is_wrong_and_their_number_is_always_the_same(scope: Scope) -> None:
    found = explore(scope)
    assert not found.broken, found
    assert (found.states, found.histories) == REACHED[scope]


TWO = Scope(SmallFederation(2, 2, 1, 10.0, 2), 1)


@pytest.mark.parametrize(
    ("fault", "scope", "words"),
    [("round-skipped", TWO, "the model of round 2"), ("pull-without-state", KEEP, "its model is wrong")],
)
def test_a_planted_fault_is_found_by_a_short_history(fault: str, scope: Scope, words: str) -> None:
    found = explore(scope, PLANTED[fault])
    assert words in found.broken, found
    assert len(found.events) <= 33, found


def test_a_session_that_does_not_heal_who_lost_its_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, *FAULTS["who comes back is told a record too few"][:3])
    found = explore(ONE)
    assert "the digests of all clients at the end: {} is not" in found.broken, found


def test_the_command_prints_a_line_for_each_scope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scopes = replace(ONE, faults=0), KEEP
    monkeypatch.setattr(breadth_first_search, "SCOPES", scopes)
    assert main(["verify", "--states"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("ok     1 client, 2 rounds, 0 things")
    assert second.startswith("ok     2 clients, 2 rounds, 1 thing")
    assert "states" in last
    assert main(["verify", "--states", "--plant", "pull-without-state", "--json"]) == 1
    _, row = json.loads(capsys.readouterr().out)
    assert "gets" in row["events"][-1]


def test_the_scopes_of_the_command_have_both_trackings_and_bounded_histories() -> None:
    assert {(own.setting.tracking, own.setting.keep) for own in SCOPES} == {
        (tracking, keep) for tracking in Tracking for keep in range(2)
    }
