"""What is refused is told to the other side, with the reason; and a peer's words are shown as quoted text."""

from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest

from decomfl_lab.errors import InputError, quoted
from decomfl_lab.protocol.messages import Ask, Examples, Hello, Message, Refusal, Reply, Sent
from decomfl_lab.protocol.session import Farewell
from decomfl_lab.protocol.wire import encode, read
from tests.decomfl_lab.federations.direct import CASE, RUN, Direct, counted, host, remote

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
