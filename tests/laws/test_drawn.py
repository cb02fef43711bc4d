"""Histories that seeds draw: they end as they must, and planted faults are found and made short."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.laws import Implementation, histories
from decomfl_lab.laws.drawn import Decisions, Search
from decomfl_lab.protocol import session
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.session import Coordinator, Frames, Host
from tests.laws.foreign import Foreign
from tests.thorough import sampled

QUICK = (*range(600), 638, 2593, 4686)
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


@pytest.mark.parametrize("count", [40, pytest.param(3000, marks=pytest.mark.thorough)])
def test_histories_of_real_replicas_end_so_too(count: int) -> None:
    found = Search(Implementation()).search(range(count))
    assert found is None, found


Fault = tuple[type, str, Callable[..., Callable[..., Any]], str]
FAULTS: dict[str, Fault] = {}


def fault(kind: type, name: str, broken: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a wrong method, which gets the right one first; ``broken`` is found in what is said of it."""

    def enter(wrong: Callable[..., Any]) -> Callable[..., Any]:
        right = getattr(kind, name)

        def planted(self: Any, *args: Any, **options: Any) -> Any:
            return wrong(right, self, *args, **options)

        FAULTS[wrong.__name__.replace("_", " ")] = kind, name, planted, broken
        return wrong

    return enter


RECORD = "the record of round"
FULL = "the round of the model of a server whose disk is full"
ENDS = "the server dies", "the server refuses", "the server ends"
MODEL = "how often a client is told that its model is wrong: 1 is not 0"


@fault(RemoteFederation, "log_to", MODEL)
def a_server_forgets_a_record_when_it_restarts(right: Any, self: Any, log: RunLog | None) -> None:
    if log is not None and len(log) > self.round:
        log.cut(len(log) - 1)
    right(self, log)


@fault(RunLog, "append", MODEL)
def a_record_is_not_on_the_disk_when_it_is_given_out(right: Any, self: Any, entry: Any, *, sync: bool = False) -> None:
    right(self, entry)


@fault(
    RemoteFederation, "_exchange", f"{MODEL}|rounds of entries must be in|{FULL}"
)  # by a client, a checkpoint, or a disk
def a_record_is_logged_after_the_next_round_was_opened(right: Any, self: Any, frames: Any, count: Any) -> None:
    late = vars(self).setdefault("late", [])

    def write() -> None:
        while late:
            RemoteFederation._write(self, late.pop())

    vars(self).update(_write=late.append, rebuilt=lambda: write() or RemoteFederation.rebuilt(self))  # hide the methods
    right(self, frames, count)
    write()


@fault(Coordinator, "_accept", "the local steps that the server counts")
def a_reply_that_comes_twice_counts_twice(right: Any, self: Any, i: int, *rest: Any) -> Any:
    if i in self.replies:
        self.steps[i] += 2
    return right(self, i, *rest)


@fault(Coordinator, "_accept", RECORD)
def a_reply_of_an_earlier_round_is_accepted(right: Any, self: Any, i: int, reply: Any, *rest: Any) -> Any:
    return right(self, i, dataclasses.replace(reply, round=self.round), *rest)


@fault(Coordinator, "_begin", RECORD)
def replies_of_the_round_before_count_again(right: Any, self: Any, chosen: Any) -> None:
    before = self.replies
    right(self, chosen)
    self.replies |= {i: dataclasses.replace(reply, round=self.round) for i, reply in before.items() if self.round}
    self.losses |= dict.fromkeys(self.replies, 0.0)


@fault(Coordinator, "_welcome", RECORD)
def a_welcome_has_the_local_steps_of_the_round_before(right: Any, self: Any, i: int, r: int) -> Any:
    steps, self.steps = self.steps, [max(0, n - 2) for n in self.steps]
    try:
        return right(self, i, r)
    finally:
        self.steps = steps


@fault(Delivery, "bring_up", "the digests of all clients at the end")
def who_comes_back_is_told_a_record_too_few(right: Any, self: Any, i: int, r: int, ledger: Any) -> Any:
    return right(self, i, min(r + 1, self.server.round), ledger)


@fault(RemoteFederation, "__init__", "no quorum of")
def a_quorum_is_one_reply_fewer(right: Any, self: Any, *args: Any, **options: Any) -> None:
    right(self, *args, **options)
    self.quorum = max(1, self.quorum - 1)


@fault(RemoteFederation, "_exchange", "no quorum of|replies of round . must number at least 1")
def refused_clients_count_in_the_quorum(right: Any, self: Any, frames: Any, count: Any) -> None:
    right(self, frames, lambda: count() + len(self.coordinator.refused))


@fault(
    RemoteFederation,
    "_write",
    "a client held a model of round .* but the log|the round of the model of a server whose disk is full",
)
def a_round_goes_on_though_the_disk_is_full(right: Any, self: Any, entry: Any) -> None:
    with contextlib.suppress(InputError):
        right(self, entry)


@fault(RemoteFederation, "_write", FULL)
def x_moves_before_the_round_is_in_the_log(right: Any, self: Any, entry: Any) -> None:
    self.observer.catch_up([entry.record])
    right(self, entry)


@fault(Coordinator, "_agrees", f"{RECORD}|the digests of all clients at the end")
def digests_are_not_looked_at(right: Any, self: Any, hello: Any) -> bool:
    return bool(hello.round <= self.round)


@fault(RemoteFederation, "load", RECORD)
def a_checkpoint_has_no_local_steps(right: Any, self: Any, saved: Any) -> None:
    right(self, saved)
    self.coordinator.steps = [0] * self.server.M


@fault(RemoteFederation, "advance", RECORD)
def the_local_steps_of_logged_rounds_are_not_counted(right: Any, self: Any) -> Any:
    known, steps = len(self.log) > self.round, list(self.coordinator.steps)
    loss = right(self)
    self.coordinator.steps = steps if known else self.coordinator.steps
    return loss


@fault(Coordinator, "close", RECORD)
def who_measured_in_vain_is_not_told(right: Any, self: Any) -> Any:
    sure = dict.fromkeys(self.asked, self.round)
    record = right(self)
    self._sure |= sure
    return record


@fault(Host, "_is_known", RECORD)
def a_plan_that_comes_twice_is_measured_twice(right: Any, self: Any, i: int, plan: Any) -> bool:
    self._answers.pop(i, None)  # so that the local steps go on, and are not taken again
    return False


@fault(Host, "load", RECORD)
def a_host_comes_back_without_its_answers(right: Any, self: Any, path: Any) -> None:
    right(self, path)
    self._answers = {}


@fault(Host, "load", RECORD)
def a_host_comes_back_without_its_places_in_the_data(right: Any, self: Any, path: Any) -> None:
    right(self, path)
    for client in self.clients.values():
        client.steps_taken = 0


@fault(Host, "_read", RECORD)
def a_late_welcome_is_believed(right: Any, self: Any, i: int, frame: bytes) -> Any:
    before = self.clients[i].steps_taken, self.replica.round
    found = right(self, i, frame)
    if before != (self.clients[i].steps_taken, self.replica.round):
        self._welcomed.add(i)
    return found


@fault(Coordinator, "_counted", "the bytes that both ledgers count")
def answers_are_counted_twice(right: Any, self: Any, i: int) -> int:
    return 0


KNOWN = "what a server knows that follows the log"


@fault(RemoteFederation, "save", KNOWN)
def a_checkpoint_does_not_have_who_knows_the_seed(right: Any, self: Any) -> Any:
    tensors, values = right(self)
    return tensors, values | {"told": []}


@fault(RemoteFederation, "_write", KNOWN)
def the_log_says_that_all_were_asked(right: Any, self: Any, entry: Any) -> None:
    right(self, dataclasses.replace(entry, sampled=self.coordinator.chosen) if entry.held is None else entry)


@fault(RemoteFederation, "_write", KNOWN)
def the_log_says_that_everybody_held_the_first_model(right: Any, self: Any, entry: Any) -> None:
    right(self, dataclasses.replace(entry, held=entry.held and (0,) * len(entry.held)))


@fault(Coordinator, "_begin", KNOWN)
def a_round_that_is_opened_again_has_lost_its_replies(right: Any, self: Any, chosen: Any) -> None:
    self.replies, self.losses = {}, {}
    right(self, chosen)


@fault(Coordinator, "_begin", "KeyError")
def a_round_that_is_opened_again_has_lost_what_its_clients_held(right: Any, self: Any, chosen: Any) -> None:
    self._invited = {}
    right(self, chosen)


@fault(Frames, "without", "the server waits until")
def a_round_with_a_quorum_waits_for_another_deadline(right: Any, self: Any, done: Any, enough: Any) -> Frames:
    return right(self, done, lambda: False)


@fault(RemoteFederation, "_exchange", "the server waits until")
def a_round_forgets_its_deadline(right: Any, self: Any, frames: Any, count: Any) -> None:
    self.deadline = self.deadline and 50.0
    right(self, frames, count)


@fault(RemoteFederation, "_exchange", "who is there and is not waited for")
def a_round_goes_on_before_its_deadline(right: Any, self: Any, frames: Any, count: Any) -> None:
    self.deadline = 0.5
    right(self, frames, count)


def planted(name: str, monkeypatch: pytest.MonkeyPatch) -> Search:
    kind, attribute, wrong, _ = FAULTS[name]
    monkeypatch.setattr(kind, attribute, wrong)
    return Search()


@pytest.mark.parametrize("name", sampled(FAULTS, 4))
def test_a_planted_fault_is_found_and_made_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted(name, monkeypatch).search(range(8000))
    assert found is not None
    assert re.search(FAULTS[name][-1], found.broken), found
    assert len(found.events) <= 60, found


def test_a_round_without_an_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Delivery.bring_up

    def too_few(self: Delivery, i: int, r: int, ledger: Any) -> Any:
        return right(self, i, min(r + bool(self.server.planned), self.server.round), ledger)

    monkeypatch.setattr(Delivery, "bring_up", too_few)
    monkeypatch.setattr(session, "MOST_WELCOMES", 10**9)
    monkeypatch.setattr(histories, "PATIENCE", 1e9)
    found = Search().search(range(500))
    assert found is not None
    assert "there is no end" in found.broken


def test_a_client_that_begins_anew_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    another_x = Decisions(given={"stranger": [1]})
    assert Search().broken(another_x) == ""
    right = Coordinator._greet

    def for_ever(self: Coordinator, *of: Any) -> Any:
        self._welcomes.clear()
        return right(self, *of)

    monkeypatch.setattr(Coordinator, "_greet", for_ever)
    assert "client 0 begins anew for ever" in Search().broken(Decisions(given={"stranger": [1]}))


def test_a_target_without_sessions_is_played_by_its_messages() -> None:
    found = Search(Foreign()).search(range(100))
    assert found is None, found
    rots = Decisions(given={"setting": [*[0] * 11, 2], "rot": [1]})  # whose replicas need not let their bits be changed
    assert Search(Foreign()).broken(rots) == ""


def test_a_short_history_reads_as_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    own = planted("a server forgets a record when it restarts", monkeypatch)
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
    kind, attribute, wrong, broken = FAULTS["answers are counted twice"]
    monkeypatch.setattr(kind, attribute, wrong)
    assert main(["verify", "--histories", "20", "--seed", "7", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)["found"]
    assert (said["seed"], broken in said["broken"]) == (7, True)
    assert main(["verify", "--histories", "0"]) == 2


def test_a_reply_measured_on_other_bits_is_not_repeated_once_the_model_is_right() -> None:
    # Two clients share a process: one is told that the model is wrong, after the other has measured it.
    assert Search().search([87326]) is None
