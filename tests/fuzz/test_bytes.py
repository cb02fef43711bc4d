"""Any bytes whatever are a message or an InputError; ``make fuzz`` puts ten million more to the same judge."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decomfl_lab.noise import Distribution
from decomfl_lab.protocol import wire
from decomfl_lab.protocol.messages import HEADER_BYTES, Kind
from decomfl_lab.records.seeds import Seeding
from tests.cases import sampled
from tests.fuzz.judge import SAMPLES, STREAMS, judge, judge_with_memory, mended, split

_LARGEST = b"\xff" * 8
_PIECES = [b"\0", b"\xff", b"\xff\xff", b"\0\0\xc0\x7f", _LARGEST]  # the fourth is NaN
_MENDING = st.sampled_from(("no", "header", "header", "counts"))


def _edited(stream: bytes, which: int, place: int, piece: bytes, how: str, mending: str) -> bytes:
    messages = list(split(stream)) if stream[:2] == b"DC" else [stream]
    which %= len(messages)
    message = messages[which]
    at = place % (len(message) + 1)
    end = at if how == "insert" else at + len(piece)
    messages[which] = message[:at] + (b"" if how == "remove" else piece) + message[end:]
    if mending != "no":
        messages[which] = mended(messages[which], counts=mending == "counts")
    return b"".join(messages)


_EDITS = st.tuples(
    st.integers(0, 2),
    st.integers(0, 250),
    st.sampled_from(_PIECES) | st.binary(min_size=1, max_size=9),
    st.sampled_from(("write over", "insert", "remove")),
    _MENDING,
)


@settings(max_examples=100)
@given(st.sampled_from(STREAMS), st.lists(_EDITS, min_size=1, max_size=3))
def test_any_bytes_are_a_message_or_an_input_error_and_take_little_memory(stream: bytes, edits: list[Any]) -> None:
    for edit in edits:
        stream = _edited(stream, *edit)
    judge_with_memory(stream)


def test_no_piece_at_any_place_of_any_sample_is_too_much() -> None:
    for stream in STREAMS[:-1]:
        for which, message in enumerate(split(stream)):
            for place in range(HEADER_BYTES, len(message) + 1):
                for piece in _PIECES[place % 2 :: 2]:
                    judged = judge_with_memory if piece is _LARGEST else judge
                    judged(_edited(stream, which, place, piece, "write over", "header"))


@pytest.mark.parametrize("stream", STREAMS, ids=range(len(STREAMS)))
def test_what_damage_begins_with_is_accepted(stream: bytes) -> None:
    assert judge(stream)
    assert b"".join(map(mended, split(stream))) == stream if stream[:2] == b"DC" else mended(stream) == stream


def test_every_kind_has_a_sample_that_damage_begins_with() -> None:
    assert {sample[3] for sample in SAMPLES} == set(Kind)


def _take_without_limit(reader: Any, count: int) -> int:
    reader.place += count
    return int(reader.place - count)


def _room_for_what_it_says(reader: Any, kind: np.dtype[Any], count: int) -> Any:
    np.zeros(min(count, 2**28), kind)
    return _ARRAY(reader, kind, count)


def _any_size(message: Any, *known: Any) -> Any:
    return message.x if hasattr(message, "x") else message.dense()


def _any_form(eta: float, K: int, P: int, which: int, stream: int, seeding: int) -> Any:
    return tuple(Distribution)[which % 3], tuple(Seeding)[seeding % len(Seeding)], False


def _signs_and_anything(reader: Any, K: int, P: int) -> Any:
    size = -(-K * P // 8)
    bits = np.unpackbits(np.frombuffer(reader.body, np.uint8, size, reader.take(size)), bitorder="little")
    return (2 * bits[: K * P].view(np.int8) - 1).reshape(K, P)


_ARRAY = wire._Reader.array
PLANTED: dict[str, tuple[str, Callable[..., Any]]] = {
    "no look at the end of a body": ("protocol.wire._Reader.end", lambda reader: None),
    "no look at the length of a piece": ("protocol.wire._Reader.take", _take_without_limit),
    "room is made for what a message says": ("protocol.wire._Reader.array", _room_for_what_it_says),
    "an update of size 1 is broadcast": ("protocol.wire.vector_of", _any_size),
    "a model of another round is taken": ("protocol.delivery.vector_of", _any_size),
    "a round of any form": ("protocol.wire._form", _any_form),
    "signs with anything after them": ("protocol.wire._Reader.signs", _signs_and_anything),
    "indices anywhere": ("protocol.messages.Sparse.__post_init__", lambda message: None),
    "an error says all of a value": ("errors.shown", lambda value: 20 * repr(value)),
}


@pytest.mark.parametrize("name", sampled(PLANTED, 3))
def test_a_planted_fault_of_a_decoder_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, fault = PLANTED[name]
    monkeypatch.setattr(f"decomfl_lab.{place}", fault)
    with pytest.raises((AssertionError, LookupError, MemoryError, ValueError, struct.error)) as found:
        test_no_piece_at_any_place_of_any_sample_is_too_much()
    assert found.type is not wire.InputError
