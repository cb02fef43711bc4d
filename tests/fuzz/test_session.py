"""Whatever frames come, a host and a coordinator answer or refuse them, and what they refuse changes nothing."""

import random

import numpy as np
import pytest

from decomfl_lab.protocol.messages import Ask, Dense, Hello, Message, Plan, Refusal, Reply, RunSeed, Welcome
from decomfl_lab.protocol.server import Terms
from decomfl_lab.protocol.session import Host
from decomfl_lab.protocol.wire import decode, encode, split_frame
from decomfl_lab.records.record import RoundRecord
from tests.decomfl_lab.federations.direct import CASE, LAB, RUN, host, remote
from tests.fuzz.judge import LONGEST_ERROR, SAMPLES, mended

FRAMES = 400
BIG = np.full((CASE.K, 3), 3e38, np.float32)


def _record(r: int) -> RoundRecord:
    terms = Terms.of(LAB.server(CASE))  # type: ignore[arg-type]
    return RoundRecord(r, 0.1, CASE.distribution, terms.seeds(r), BIG if r == 3 else np.ones((CASE.K, 3), np.float32))


def _message(chance: random.Random) -> Message:
    r, first = chance.choice((0, 1, 2, 5, 2**32 - 1)), chance.randrange(3)
    records = tuple(map(_record, range(first, chance.randrange(first, 6))))
    seeds = Terms.of(LAB.server(CASE)).seeds(r)  # type: ignore[arg-type]
    x = np.ones(chance.choice((1, 4, 5, 6)), chance.choice(("f4", "f8")))
    return chance.choice((
        Plan(r, 0.1, 3, CASE.distribution, seeds),
        Plan(first + len(records), 0.1, 3, CASE.distribution, _record(first + len(records)).seeds, records),
        records, records[::2], Dense(r, x), Dense(r, x), Welcome(r, chance.choice((0, 7, 2**64 - 1))), Welcome(0, 0),
        Ask(), Refusal("no"), RunSeed(Terms.of(LAB.server(CASE)).run_seed), RunSeed(7),  # type: ignore[arg-type]
        Hello(chance.choice((3, 0)), RUN, r, bytes(16)),
        Reply(chance.choice((3, 0)), r, chance.choice((BIG, BIG[:1]))),
    ))  # fmt: skip


def _frame(chance: random.Random) -> bytes:
    """Messages that a peer could send, some of them damaged behind a right checksum, and bytes that are none."""
    pieces = [encode(_message(chance)) for _ in range(chance.randint(1, 4))]
    if chance.random() < 0.3:
        at = chance.randrange(len(pieces))
        damaged = bytearray(chance.choice((pieces[at], chance.choice(SAMPLES))))
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        pieces[at] = mended(bytes(damaged)) if chance.random() < 0.8 else bytes(damaged)
    return b"".join(pieces)


def _state(own: Host) -> object:
    steps = {i: client.steps_taken for i, client in own.clients.items()}
    return own.replica.digest(), own.replica.round, steps, dict(own.answers), set(own.welcomed)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a loss at infinite parameters
def test_a_host_answers_or_refuses_any_frame_and_is_not_changed_by_what_it_refuses() -> None:
    chance, own, served = random.Random(4), host(CASE, 0, 1), 0  # of most seeds fewer frames are served
    for n in range(FRAMES):
        if n % 10 == 0:
            own = host(CASE, 0, 1)
        before, frame = _state(own), encode(Welcome(0, 0)) * chance.randrange(2) + _frame(chance)
        answer = own.handle({0: frame})[0]
        said = [decode(message) for message in split_frame(answer)]
        if said and isinstance(said[0], Refusal) and not said[0].diverged:
            assert len(said[0].text) <= LONGEST_ERROR
            assert _state(own) == before, frame
        served += any(isinstance(message, Reply) for message in said)
    assert served > 4


def test_a_coordinator_takes_or_refuses_any_frame_and_a_liar_harms_himself_alone() -> None:
    chance, elsewhere = random.Random(2), remote(m=4, check_every=0)
    session, accepted = elsewhere.coordinator, 0
    for n in range(FRAMES):
        if n % 10 == 0:
            session.open(elsewhere.delivery.server.sample())
        others = session.steps.copy(), list(elsewhere.server.held), elsewhere.observer.digest()
        session.take(3, _frame(chance))
        assert (session.steps, elsewhere.server.held, elsewhere.observer.digest()) == others
        assert session.replies.keys() | session.refused.keys() <= {3}
        accepted += 3 in session.replies
    assert accepted
    before = elsewhere.round
    elsewhere.advance()
    assert elsewhere.round == before + 1
