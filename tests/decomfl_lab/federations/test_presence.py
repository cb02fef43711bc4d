"""Clients that are away: nobody plans for them, and the ledgers have what was really sent."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.session import Coordinator
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.pooled import PooledSgd
from tests.decomfl_lab.federations.direct import CASE, LAB, Direct, but, counted, host, remote, simulated

CASES = {
    "plain": CASE,
    "clients track": but(tracking=Tracking.CLIENTS),
    "seeds per run": but(seeding=Seeding.PER_RUN),
    "one record kept": but(keep=1),
    "pool": but(rule=PooledSgd(5, -24), seeding=Seeding.POOL),
}
HOURS = [{3}, {3}, {0, 3}, {2}, set(), {1, 2}, {3}, set()]
"""Who is away in each round."""


def with_absences(case=CASE, hours=HOURS, **options):
    """A federation whose clients are away in these rounds, after all of them."""
    elsewhere = remote(case, m=4, quorum=2, deadline=1e-3, **options)
    for away in hours:
        elsewhere.carrier.away = away
        elsewhere.advance()
    return elsewhere


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_ledgers_have_the_bytes_that_went_and_all_models_are_equal(case):
    elsewhere = with_absences(case)
    assert counted(elsewhere) == elsewhere.carrier.bytes
    assert set(elsewhere.rebuilt().values()) == {elsewhere.observer.digest()}
    assert counted(elsewhere) == elsewhere.carrier.bytes


def test_the_log_says_who_was_asked_and_a_round_is_the_mean_of_who_answered():
    elsewhere = with_absences()
    assert [set(range(4)) - set(entry.sampled) for entry in elsewhere.log.entries()] == HOURS
    assert all(entry.sampled == entry.answered for entry in elsewhere.log.entries())


def test_nothing_is_planned_or_counted_for_who_is_away_however_long():
    elsewhere = with_absences(hours=[{3}] * 20)
    assert elsewhere.ledger.down[3].bytes == elsewhere.ledger.up[3].bytes == 0
    elsewhere.carrier.away = set()
    elsewhere.advance()
    assert elsewhere.carrier.hosts[3].replica.round == 20


def _makes_all(open_round: Callable[..., object]) -> Callable[..., object]:
    return lambda self, chosen: (frames := open_round(self, chosen)) and (dict(frames), frames)[1]


def _counts_nothing_again(self: Coordinator, i: int) -> bytes:
    return self._frames[i] if i in self._frames else _frame(self, i)


_frame = Coordinator._frame


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("open", _makes_all(Coordinator.open)),  # frames that nobody is sent
        ("_frame", _counts_nothing_again),  # frames that are sent again
        ("_counted", lambda self, i: 0),  # answers twice
    ],
)
def test_a_ledger_that_counts_something_else_is_noticed(name, fault, monkeypatch):
    monkeypatch.setattr(Coordinator, name, fault)
    elsewhere = remote(m=4, quorum=2, deadline=1e-3)
    elsewhere.carrier.away = {3}
    elsewhere.advance()
    elsewhere.carrier.exchange(elsewhere.coordinator.open((0, 1)), lambda *_: b"", None)
    elsewhere.carrier.exchange(elsewhere.coordinator.open((0, 1)), elsewhere.coordinator.take, None)
    assert counted(elsewhere) != elsewhere.carrier.bytes


class Returns(Direct):
    """A client that was away comes back once the others have answered."""

    def exchange(self, frames, take, deadline):
        super().exchange(frames, take, deadline)
        for i in sorted(self.away):
            self.come(i, take)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_who_comes_back_in_the_middle_of_a_round_takes_part_in_it(case, lost, tmp_path):
    with RunLog.create(tmp_path / "run.dcl", {"run_seed": LAB.server(case).run_seed}) as log:
        carrier = Returns({i: host(case, i) for i in range(4)})
        elsewhere, here = remote(case, 4, carrier, quorum=2, deadline=1e-3), simulated(case, 4)
        elsewhere.log_to(log)
        for r in range(6):
            carrier.away = {r % 4}
            if lost:
                carrier.hosts[r % 4] = host(case, r % 4)
            elsewhere.advance(), here.advance()
        assert elsewhere.observer.digest() == here.observer.digest()
        assert counted(elsewhere) == carrier.bytes
        if case.tracking is Tracking.SERVER:
            assert elsewhere.ledger == here.ledger
        again = remote(case, 4)
        again.log_to(log)
        assert all(math.isnan(again.advance()) for _ in range(6))
        assert again.ledger == elsewhere.ledger


def test_who_has_lost_its_model_gets_all_that_it_lacks_with_its_plan():
    elsewhere = with_absences(hours=[set(), set()])
    carrier = elsewhere.carrier = Returns(elsewhere.carrier.hosts)
    carrier.hosts[3], carrier.away, before = host(CASE, 3), {3}, elsewhere.coordinator.session.up[3].messages
    elsewhere.advance()
    hellos = elsewhere.coordinator.session.up[3].messages - before
    assert (hellos, 3 in elsewhere.coordinator.replies) == (2, True)


def test_who_comes_back_in_the_middle_and_lacks_what_is_gone_is_sent_the_model_once():
    elsewhere = with_absences(but(keep=1), [set(), set(), {3}, {3}])
    carrier = elsewhere.carrier = Returns(elsewhere.carrier.hosts)
    carrier.hosts[3], carrier.away = host(CASE, 3), {3}
    elsewhere.advance()
    assert sorted(elsewhere.coordinator.replies) == [0, 1, 2, 3]


def test_who_comes_back_too_late_for_a_round_is_in_the_next():
    elsewhere = remote(m=4, quorum=2, deadline=1e-3)
    elsewhere.carrier.away = {3}
    elsewhere.advance()
    elsewhere.carrier.come(3, elsewhere.coordinator.take)
    assert (elsewhere.round, elsewhere.coordinator.replies.keys()) == (1, {0, 1, 2})
    elsewhere.advance()
    assert elsewhere.coordinator.replies.keys() == {0, 1, 2, 3}
    assert counted(elsewhere) == elsewhere.carrier.bytes


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_server_that_begins_again_has_the_same_ledger(case, tmp_path):
    with RunLog.create(tmp_path / "run.dcl", {"run_seed": LAB.server(case).run_seed}) as log:
        elsewhere, again = remote(case, 4, quorum=2, deadline=1e-3), remote(case, 4)
        elsewhere.log_to(log)
        for r, away in enumerate(HOURS):
            elsewhere.carrier.away = away
            if r % 3 == 1:
                elsewhere.carrier.hosts[r % 4] = host(case, r % 4)
                elsewhere.carrier.between = lambda i, answer, r=r: None if i == r % 4 else answer
            elsewhere.advance()
            elsewhere.carrier.between = lambda i, answer: answer
        again.log_to(log)
        for _ in HOURS:
            again.advance()
    assert again.ledger == elsewhere.ledger
    assert again.coordinator.session.bytes == 0


def test_a_quorum_is_of_the_sampled_clients_and_who_is_away_lacks():
    elsewhere = remote(m=4, quorum=3, patience=0.05)
    elsewhere.carrier.away = {0, 1}
    with pytest.raises(InputError, match=r"quorum of 3 must be reached in 0.05 s, got 2 of 4 replies in round 0"):
        elsewhere.advance()
    elsewhere.carrier.away = {0}
    elsewhere.advance()  # the round goes on with the replies that it has
    assert counted(elsewhere) == elsewhere.carrier.bytes
    assert elsewhere.ledger.down[1].messages == 1


def test_a_round_that_is_opened_again_is_logged_as_it_was_first_asked(tmp_path):
    case = CASES["clients track"]
    with RunLog.create(tmp_path / "run.dcl", {"run_seed": LAB.server(case).run_seed}) as log:
        elsewhere, again = remote(case, 4, quorum=3, patience=0.05), remote(case, 4)
        elsewhere.log_to(log)
        elsewhere.advance()
        carrier, planned = elsewhere.carrier, elsewhere.server
        carrier.between = lambda i, answer: None if i < 2 and planned.planned else answer
        with pytest.raises(InputError, match="quorum of 3"):
            elsewhere.advance()
        carrier.between, carrier.away, carrier.hosts[1] = lambda i, answer: answer, {0}, host(case, 1)
        elsewhere.advance()
        assert (log.entry(1).sampled, log.entry(1).answered) == ((0, 1, 2, 3), (1, 2, 3))
        again.log_to(log)
        again.advance(), again.advance()
    assert again.ledger == elsewhere.ledger
    assert counted(elsewhere) == carrier.bytes


class OneByOne(Direct):
    """A client comes at every call, three seconds later."""

    now = 0.0

    def exchange(self, frames, take, deadline):
        self.asked = [*getattr(self, "asked", []), deadline]
        self.now += 3
        i = min(i for i in frames if i in self.away)
        self.come(i, take)


def test_a_deadline_is_that_of_the_round_and_not_of_each_time_that_somebody_is_asked():
    case = but(CASE)
    carrier = OneByOne({i: host(case, i) for i in range(case.M)})
    carrier.away = set(range(4))
    elsewhere = remote(case, m=4, quorum=4, deadline=10.0, patience=60.0, carrier=carrier, clock=lambda: carrier.now)
    elsewhere.advance()
    assert carrier.asked == [10, 7, 4, 1]
    carrier.away, carrier.asked = set(range(4)), []
    elsewhere.deadline = 5.0
    elsewhere.advance()
    assert carrier.asked == [5, 2, 5, 5]  # it is over without a quorum, which is still waited for
