"""Both sides of a session: what they take of what comes off the wire, what they refuse, and how it is told."""

from functools import cache
from itertools import product
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest

from decomfl_lab.errors import InputError, quoted
from decomfl_lab.protocol.messages import Ask, Examples, Hello, Message, Plan, Refusal, Reply, Sent, Welcome
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.session import Coordinator, Farewell, Host
from decomfl_lab.protocol.wire import decode, encode, read, split_frame
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.pool_sums import PooledSgd
from decomfl_lab.storage.checkpoint_file import read_checkpoint, write_checkpoint
from tests.cases import sampled
from tests.decomfl_lab.federations.direct import CASE, LAB, RUN, Direct, but, counted, host, remote, simulated

CASES = {"plain": CASE, "pooled": but(rule=PooledSgd(5, -24), seeding=Seeding.POOL)}
ASTRAY = [(0, 2), (0, 1, 3), (0, 0, 1), (0, 1, 1), (1, 0), (0, 2, 1), (2, 1, 0), (1, 1), (2, 4), (2, 2, 3), (1, 3, 2)]
"""Rounds of records that do not follow one another."""


@cache
def history(kind: str) -> tuple[RoundRecord, ...]:
    """The records of five rounds."""
    return simulated(but(CASES[kind], tracking=Tracking.CLIENTS), rounds=5).server.history.since(0)


def records(*rounds: int, kind: str = "plain") -> tuple[RoundRecord, ...]:
    """Those of these rounds."""
    return tuple(history(kind)[r] for r in rounds)


def kept(own: Host, folder: Path) -> tuple[object, object]:
    """All that the host would go on from."""
    own.save(folder / "host")
    tensors, values = read_checkpoint(folder / "host")
    return {name: vector.tolist() for name, vector in tensors.items()}, values


@pytest.mark.parametrize(("kind", "held", "rounds"), sampled(product(CASES, (0, 2), ASTRAY), 14))
def test_records_that_do_not_follow_one_another_are_refused_and_change_nothing(
    kind: str, held: int, rounds: tuple[int, ...], tmp_path: Path
) -> None:
    own = host(CASES[kind], 0)
    own.handle({0: encode(Welcome(0, 0)) + encode(records(*range(held), kind=kind))})
    before = kept(own, tmp_path)
    for welcome in (b"", encode(Welcome(held, 6)), encode(Welcome(0, 0))):
        (said,) = split_frame(own.handle({0: welcome + encode(records(*rounds, kind=kind)) + encode(Ask())})[0])
        assert read(Refusal, said).text.startswith("records must follow one another, got")
        assert kept(own, tmp_path) == before
    own.handle({0: encode(records(*range(5), kind=kind))})
    assert own.replica.round == 5


def test_records_that_are_known_already_and_records_that_come_too_early_are_left_out() -> None:
    own, whole = host(CASE, 0), host(CASE, 0)
    whole.handle({0: encode(records(0, 1, 2, 3))})
    own.handle({0: encode(records(0, 1))})
    for rounds, reached in (((0, 1), 2), ((3, 4), 2), ((1, 2), 3), ((0, 1, 2, 3), 4)):
        answer = own.handle({0: encode(records(*rounds)) + encode(Ask())})[0]
        assert read(Hello, answer).round == reached
    assert own.hello(0) == whole.hello(0)


@pytest.mark.parametrize("rounds", [(2,), (4,), (1, 3), (3, 2), (3, 3), (2, 2, 3), (1, 3, 3), (2, 1, 3), (0, 1, 2)])
def test_a_plans_records_are_those_of_the_rounds_before_it_in_order(rounds: tuple[int, ...]) -> None:
    seeds = history("plain")[4].seeds
    for n in range(5):
        plan = Plan(4, 0.1, 3, CASE.distribution, seeds, records(*range(n, 4)))
        assert decode(encode(plan)) == plan
    with pytest.raises(InputError, match="records of the plan message must be of the rounds before 4, in order"):
        decode(encode(Plan(4, 0.1, 3, CASE.distribution, seeds, records(*rounds))))


@pytest.mark.parametrize(("holds", "healed"), [(0, 0), (1, 0), (2, 0), (3, 1)])
def test_without_a_digest_a_client_is_believed_unless_it_is_ahead(holds: int, healed: int) -> None:
    own, client = Coordinator(LAB.delivery(CASE), RUN), host(CASE, 0)
    for record in records(0, 1):
        own.delivery.server.store(record, ())
    client.replica.catch_up(records(*range(holds)))
    own.open((0, 1))
    own.take(0, client.hello(0))
    assert own.healed == healed


@pytest.mark.parametrize(("options", "asked"), [({}, False), ({"check_every": 0}, False), ({"check_every": 1}, True)])
def test_a_client_that_is_known_is_asked_for_its_digest_only_if_that_was_said(
    options: dict[str, int], asked: bool
) -> None:
    delivery, client = LAB.delivery(CASE), host(CASE, 0)
    own = Coordinator(delivery, RUN, digest=lambda: str(delivery.server.replica.digest()), **options)
    for _ in range(2):
        first = frame = own.open((0,))[0]
        while frame:
            frame = own.take(0, client.handle({0: frame})[0]) or b""
        own.close()
    kinds = [type(decode(message, delivery.server.run_seed)) for message in split_frame(first)]
    assert (Ask in kinds) is asked


FORGED = {
    "a client that is no number": lambda _, values: values.update(steps={"first": 1}),
    "an answer that is no bytes": lambda _, values: values.update(answers={"0": [1, "zz"]}),
    "a shorter model": lambda tensors, _: tensors.update(x=tensors["x"][:1].clone()),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_host_does_not_go_on_from_a_forged_file(name: str, tmp_path: Path) -> None:
    own = host(CASE, 0)
    before = kept(own, tmp_path)
    tensors, values = map(dict, read_checkpoint(tmp_path / "host"))
    FORGED[name](tensors, values)
    write_checkpoint(tmp_path / "forged", tensors, values)
    with pytest.raises(InputError, match="forged must|in the checkpoint .*forged must"):
        own.load(tmp_path / "forged")
    assert kept(own, tmp_path) == before


# What is refused is told, and a peer's words are quoted ---------------------------------------------------------------


HOSTILE = {
    "a forged line": "x\x1b[2K\rround 0: FORGED\nround 1: client 0 has gone",
    "another direction": "\u202eDEGROF\u2066",
    "lines of Unicode": "a\u2028b\x85c",
    "a bell and a sequence of one byte": "\x07\x9b31m\0",
    "far too long": 300 * "long ",
}
TEXTS = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
DIGEST = bytes(16)


def is_one_short_line(line: str) -> bool:
    return line.isprintable() and len(line) < 450


def test_the_message_with_a_text_is_the_refusal():
    _, sums, records = get_args(Message)
    kinds = [*Sent.__subclasses__(), sums]
    found = {(kind, name) for kind in kinds for name, type_ in get_type_hints(kind).items() if type_ is str}
    assert found == {(Refusal, "text")}
    assert get_origin(records) is tuple


@TEXTS
def test_a_peers_words_are_quoted_on_both_sides(text, caplog):
    elsewhere = remote(quorum=3, patience=0.05)
    elsewhere.carrier.between = lambda i, answer: encode(Refusal(text))
    with pytest.raises(InputError) as refused:
        elsewhere.advance()
    assert host(CASE, 0).handle({0: encode(Refusal(text))}) == {0: b""}
    said = quoted(read(Refusal, encode(Refusal(text))).text)
    assert f"client {elsewhere.coordinator.chosen[0]}: it says: {said}" in str(refused.value)
    lines = [record.getMessage() for record in caplog.records]
    assert sum(said in line for line in lines) == 4
    assert all(map(is_one_short_line, [*lines, *elsewhere.coordinator.refused.values()]))
    assert str(refused.value).isprintable()


@TEXTS
def test_an_error_is_one_line_of_printable_characters_whatever_stands_in_it(text):
    assert str(InputError(f"got {text}")).isprintable()
    assert is_one_short_line(quoted(text))


LIES = {
    "a damaged frame": (b"DC", "frame must end with a whole message"),
    "another's reply": (encode(Reply(9, 0, np.ones((2, 3), np.float32))), "client of a reply must be"),
    "another shape": (encode(Reply(0, 0, np.ones((1, 3), np.float32))), "scalars of client 0 must be"),
    "another's number of examples": (encode(Examples(9, 5)), "client of a number of examples must be"),
    "a message to clients": (encode(Ask()), "message of client 0 must be a hello or a reply"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_who_answers_otherwise_than_agreed_is_told_why_once_a_round(lie):
    frame, why = lie
    session, told = remote(m=4, check_every=0).coordinator, host(CASE, 0)
    dict(session.open(range(4)))
    answer = session.take(0, frame)
    assert read(Refusal, answer).text == session.refused[0]
    assert not isinstance(answer, Farewell)
    assert session.refused[0].startswith(why)
    assert told.handle({0: answer}) == {0: b""}
    assert session.take(0, b"") is None
    assert session.take(0, frame) is None


STRANGERS = {
    "another's name": Hello(1, RUN, 0, DIGEST),
    "nobody's name": Hello(2**32 - 1, RUN, 0, DIGEST),
    "another run": Hello(0, bytes(16), 0, DIGEST),
    "another run in another's name": Hello(3, bytes(16), 7, DIGEST),
}


@pytest.mark.parametrize("phase", ["ask", "open", "finish"])
@pytest.mark.parametrize("hello", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_told_why_and_let_go_as_often_as_it_comes(hello, phase):
    session = remote(m=4).coordinator
    session.finish() if phase == "finish" else getattr(session, phase)(range(4))
    for _ in range(2):
        answer = session.take(0, encode(hello))
        assert isinstance(answer, Farewell)
        assert read(Refusal, answer).text == answer.reason == session.refused[0]


def test_a_liar_without_end_is_answered_once_and_the_round_ends():
    elsewhere = remote(m=4, quorum=3, deadline=1e-3)
    elsewhere.carrier.between = lambda i, answer: b"DC" if i == 0 else answer
    elsewhere.advance()
    assert sorted(elsewhere.coordinator.replies) == [1, 2, 3]
    assert counted(elsewhere) == elsewhere.carrier.bytes


class Damaging(Direct):
    """Its frames to client 0 arrive damaged."""

    def talk(self, i, frame, take):
        super().talk(i, frame[:-1] if i == 0 and frame else frame, take)


def test_a_client_that_refuses_says_why_and_the_server_does_not_argue(caplog):
    elsewhere = remote(m=4, quorum=3, deadline=1e-3, carrier=Damaging({i: host(CASE, i) for i in range(4)}))
    elsewhere.advance()
    assert elsewhere.coordinator.refused[0].startswith('it says: "frame must end with a whole message, got')
    assert len([1 for record in caplog.records if "client 0 refuses" in record.getMessage()]) == 2
