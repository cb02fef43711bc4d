"""The codec of all messages, and what it refuses."""

import math
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab import InputError, Momentum
from decomfl_lab.errors import shown
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.messages import (
    HEADER_BYTES,
    KINDS,
    ROUND_HEAD,
    SIGNS,
    Dense,
    Examples,
    Field,
    Held,
    Kind,
    Plan,
    Quantized,
    Reply,
    RunSeed,
    Sparse,
)
from decomfl_lab.protocol.server import Server, sample_clients
from decomfl_lab.protocol.wire import decode, encode, read
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import DerivedSeeds, Seeding, draw_seeds
from decomfl_lab.replicas.replica import Replica
from tests.cases import refuses, rows_of
from tests.fuzz.judge import MESSAGES, RUN_SEED, mended


def spliced(message: bytes, at: int, piece: bytes) -> bytes:
    """The message with a piece at a place of its body, under a right checksum."""
    at += HEADER_BYTES
    return mended(message[:at] + piece + message[at + len(piece) :])


HEADS = [(kind.whose, kind.layout, 0) for kind in Kind]
ROUND_HEADS = [("the message", ROUND_HEAD, place) for place in (0, 4)]
"""That of a plan, and that of its first record alone."""


def beyond(field: Field) -> list[Any]:
    """What a field may not be: numbers below and above, and values of other kinds."""
    if field.form in "fd":
        return [-0.5, np.nan, np.inf, -np.inf, "1", None, *([0.0] if field.above_zero else [])]
    if field.form.endswith("s"):
        return [b"", bytes(15), bytes(17), "0" * 16, None]
    allowed = field.whole_numbers
    return [allowed[0] - 1, allowed[-1] + 1, True, 1.5, np.nan, "1", None, 10**400]


def edges(field: Field) -> list[Any]:
    """The first and the last of what it may be."""
    if field.form in "fd":
        return [1e-30, 1e30]
    return [bytes(16)] if field.form.endswith("s") else [field.whole_numbers[0], field.whole_numbers[-1]]


def told(field: Field, whose: str, value: Any) -> str:
    return f"{field.name} of {whose} must {field.rule(value)}, got {shown(value)}"


def refusal(attempt: Callable[..., Any], *given: Any) -> str:
    with pytest.raises(InputError) as caught:
        attempt(*given)
    return str(caught.value)


def test_every_number_of_every_message_is_taken_at_its_bounds_and_refused_beyond_them() -> None:
    for whose, layout, _ in [*HEADS, *ROUND_HEADS]:
        usual = [edges(field)[0] for field in layout.fields]
        for n, field in enumerate(layout.fields):
            for value in edges(field):
                packed = layout.pack([*usual[:n], value, *usual[n + 1 :]], whose)
                assert layout.unpack_from(packed)[n] == pytest.approx(value)
            for value in beyond(field):
                assert refusal(layout.pack, [*usual[:n], value, *usual[n + 1 :]], whose) == told(field, whose, value)


def sayable(field: Field) -> Iterator[tuple[bytes, Any]]:
    """The bytes of what a message can say in a field and may not, and what they say."""
    numbers = (value for value in beyond(field) if type(value) in (int, float))
    for value in numbers if not field.form.endswith("s") else ():
        with suppress(struct.error, OverflowError):
            piece = struct.pack(f"<{field.form}", value)
            yield piece, *struct.unpack(f"<{field.form}", piece)


def test_no_message_with_a_number_beyond_its_bounds_is_read() -> None:
    tried = 0
    for message in MESSAGES:
        sent = encode(message)
        kind = Kind(sent[3])
        heads = {Kind.PLAN: ROUND_HEADS[:1], Kind.RECORDS: ROUND_HEADS[1:]}.get(kind, [(kind.whose, kind.layout, 0)])
        for whose, layout, first in heads:
            for n, field in enumerate(layout.fields):
                place = first + struct.calcsize("<" + "".join(own.form for own in layout.fields[:n]))
                for piece, value in sayable(field):
                    changed = spliced(sent, place, piece)
                    said = value & ~SIGNS if field.name == "seeding" else value
                    assert refusal(decode, changed, RUN_SEED) == told(field, whose, said)
                    tried += 1
    assert tried > 100


def test_a_message_of_a_class_that_is_declared_has_its_fields_in_their_order() -> None:
    plain = {kind: made for made, kind in KINDS.items()}
    for kind in (Kind.HELD, Kind.EXAMPLES, Kind.SEED, Kind.HELLO, Kind.WELCOME, Kind.ASK):
        assert [field.name for field in kind.layout.fields] == [own.name for own in fields(plain[kind])]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_numbers_of_a_body_that_are_not_finite_are_refused(value: float) -> None:
    two = np.array([0.0, value])
    sparse = Sparse(6, 4, np.array([1, 2]), two.astype(np.float32))
    for message in (Dense(6, two), Dense(6, two.astype(np.float32)), sparse):
        assert re.match("numbers of the (vector|sparse) message must be finite", refusal(decode, encode(message)))
    assert "numbers of the reply message must be finite" in refusal(
        decode, encode(Reply(7, 2, two.astype(np.float32)[:, None]))
    )


SERVER = Server(M=1, m=1, K=1, P=Schedule(1), eta=Schedule(0.1), seed=0)
FEW = encode(Sparse(0, 4, np.array([1]), np.ones(1, np.float32)))
K_OR_P = r"[KP] of the message must be in 1\.\.65535, got 65536"


@refuses(
    (lambda client: read(Reply, FEW), "message must be a Reply, got a Sparse"),
    (lambda client: decode(FEW[:11]), "message is truncated: 11 bytes, its header has 12"),
    (lambda client: decode(FEW[:3] + b"c" + FEW[4:]), r"kind of the message must be in 1\.\.\d+, got 99"),
    (lambda client: Delivery(SERVER).close([encode(Held(0, 0))]), "message must be a Reply, got a Held"),
    (lambda client: receive(client, [encode(Held(0, 0))]), "messages to client 4 must be its own, got a Held"),
    (lambda client: receive(client, [encode(RunSeed(1))]), "messages to client 4 must end with a plan, got none"),
    (lambda client: encode(Plan(0, 0.1, 65536, Distribution.GAUSSIAN, (1,))), K_OR_P),
    (lambda client: encode(Plan(0, 0.1, 1, Distribution.GAUSSIAN, (1,) * 65536)), K_OR_P),
    (lambda client: receive(client, []), "messages to client 4 must end with a plan, got none"),
    (lambda client: receive(client, [b"DC"]), "message is truncated: 2 bytes"),
)
def test_a_message_of_other_methods_or_sides_or_of_more_than_the_wire_can_say_is_refused(attempt: Any) -> None:
    attempt(SimpleNamespace(id=4, run_seed=None, replica=Replica(torch.zeros(3), Momentum(0.5))))


def test_a_plan_of_more_scalars_than_a_reply_can_carry_is_refused() -> None:
    few = Plan(0, 0.1, 1, Distribution.GAUSSIAN, DerivedSeeds(1, 65535))
    message = spliced(encode(few), 14, b"\xff\xff")
    assert len(message) == 43
    with pytest.raises(InputError, match="K·P must be at most 1073741820, which fit into a reply, got 4294836225"):
        decode(message)


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (3, 3), (2, 100), (1, 0xFFFF)])
def test_signs_take_a_bit_each_and_come_back_as_signs(shape: tuple[int, int]) -> None:
    signs = np.random.default_rng(0).choice(np.array([-1, 1], np.int8), shape)
    size = math.ceil(signs.size / 8)
    reply = encode(Reply(7, 3, signs))
    record = RoundRecord(3, 0.1, Distribution.SPHERE, draw_seeds(Seeding.PER_RUN, 77, 3, *shape), signs)
    assert (len(reply), len(encode((record,)))) == (12 + 12 + size, 12 + 4 + 19 + size)
    back = read(Reply, reply).scalars
    assert (back.tobytes(), back.dtype, back.shape) == (signs.tobytes(), np.int8, shape)
    assert decode(encode((record,)), 77) == (record,)


# Known answers: what is drawn, and the bytes of every message ---------------------------------------------------------
# Stored runs and other implementations rest on these numbers: a change of any is a new version, not a repair.


G = np.array([[1.5, -2.0, 0.25]], np.float32)
ROUND, ETA = "03000000", "9a9999999999a93f"  # 3 and 0.05
BEFORE = "020000009a9999999999b93f01000300"  # round 2, eta 0.1, K = 1, P = 3
SCALARS = "0000c03f000000c00000803e"
PLANS = rows_of(__file__)["plans"]


@pytest.mark.parametrize("seeding", Seeding)
def test_plans_have_these_bytes(seeding: Seeding) -> None:
    record = RoundRecord(2, 0.1, Distribution.SPHERE, draw_seeds(seeding, 77, 2, 1, 3), G)
    plan = Plan(3, 0.05, 3, Distribution.RADEMACHER, draw_seeds(seeding, 77, 3, 1, 3), (record,))
    header, seeds, recorded = PLANS[seeding.value]
    assert encode(plan).hex() == header + ROUND + ETA + "01000300" + seeds + "01000000" + BEFORE + recorded + SCALARS


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (Reply(7, 3, G), "44430202180000004e68b975070000000300000001000300" + SCALARS),
        (
            Reply(7, 3, np.array([[1, -1, 1], [1, -1, -1], [1, 1, 1]], np.int8)),
            "4443020d0e000000d12c33c2070000000300000003000300cd01",
        ),
        (Held(7, 41), "4443020708000000c436ddb20700000029000000"),
        (Examples(7, 99), "4443020f080000009d8e74460700000063000000"),
        (
            PoolSums(3, -30, np.array([1, -2], np.int32)),
            "4443020e150000003229420a03000000e2020000000000000001000000feffffff",
        ),
        (RunSeed(77), "44430208080000005508bad74d00000000000000"),
        (Dense(3, G[0]), "4443020319000000349db2fb03000000040300000000000000" + SCALARS),
        (
            Dense(3, G[0].astype(np.float64)),
            "44430203250000009f66f1db03000000080300000000000000000000000000f83f00000000000000c0000000000000d03f",
        ),
        (
            Sparse(3, 9, np.array([1, 8]), np.array([1.5, -2], np.float32)),
            "4443020624000000e6203ac4030000000900000000000000020000000000000001000000080000000000c03f000000c0",
        ),
        *(
            (Quantized(3, bits, 0.5, np.array([1, -7, 3], np.int8)), wanted)
            for bits, wanted in rows_of(__file__)["quantized"]
        ),
    ],
)
def test_other_messages_have_these_bytes(message: Any, wanted: str) -> None:
    assert encode(message).hex() == wanted
    back: Any = decode(bytes.fromhex(wanted))
    assert encode(back).hex() == wanted
    told = [(value, getattr(back, name)) for name, value in vars(message).items() if name != "loss"]
    assert all(repr(before) == repr(after) for before, after in told)


def test_a_seed_gives_these_directions_and_these_clients() -> None:
    server = Server(5, 2, 1, Schedule(1), Schedule(0.1), seed=11)
    assert server.run_seed == 5122542365940345359
    assert [sample_clients(11, r, 9, 4) for r in range(3)] == [(0, 2, 7, 8), (0, 1, 3, 7), (2, 4, 5, 7)]
    assert draw_seeds(Seeding.PER_STEP, 77, 3, 1, 3) == (0x2CD4487073EA09D7,)
