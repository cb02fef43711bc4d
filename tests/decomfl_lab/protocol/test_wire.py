"""The codec of all messages, and what it refuses."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab import InputError, Momentum
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.compression import QuantizedVector, SparseVector
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.messages import Dense, Held, Plan, Quantized, Reply, RunSeed, Sparse
from decomfl_lab.protocol.server import Server
from decomfl_lab.protocol.wire import HEADER_BYTES, decode, encode, read, vector_of
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import DerivedSeeds, Seeding, draw_seeds
from decomfl_lab.replicas.replica import Replica
from tests.fuzz.judge import mended
from tests.refusals import refuses
from tests.tables import rows_of

PLAN = Plan(3, 0.1, 2, Distribution.GAUSSIAN, (1, 2))
RECORD = RoundRecord(2, 0.1, Distribution.SPHERE, (5,), np.ones((1, 3), np.float32))


def spliced(message: bytes, at: int, piece: bytes) -> bytes:
    """The message with a piece at a place of its body, under a right checksum."""
    at += HEADER_BYTES
    return mended(message[:at] + piece + message[at + len(piece) :])


@refuses(*rows_of(__file__)["refused"])
def test_the_first_number_beyond_what_a_plan_may_say_is_refused(at: int, value: int) -> None:
    decode(spliced(encode(PLAN), at, bytes([value])))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_that_is_not_finite_is_refused(value: float, dtype: type) -> None:
    with pytest.raises(InputError, match="model of round 6 must be finite"):
        decode(encode(Dense(6, np.array([0.0, value], dtype))))


SERVER = Server(M=1, m=1, K=1, P=Schedule(1), eta=Schedule(0.1), seed=0)
FEW = encode(Sparse(0, SparseVector(4, np.array([1]), np.ones(1, np.float32))))
MANY = SparseVector(2**32 + 1, np.array([1]), np.ones(1, np.float32))
K_AND_P = "K and P must be 1 to 65535 on the wire"
TOO_MANY = r"d of a sparse message must be at most 2\^32, got 4294967297"


@refuses(
    (lambda client: read(Reply, FEW), "message must be a Reply, got a Sparse"),
    (lambda client: decode(FEW[:11]), "message is truncated: 11 bytes, its header has 12"),
    (lambda client: decode(FEW[:3] + b"c" + FEW[4:]), r"kind of the message must be in 1\.\.\d+, got 99"),
    (lambda client: Delivery(SERVER).close([encode(Held(0, 0))]), "message must be a Reply, got a Held"),
    (lambda client: receive(client, [encode(Held(0, 0))]), "messages to client 4 must be its own, got a Held"),
    (lambda client: receive(client, [encode(RunSeed(1))]), "messages to client 4 must end with a plan, got none"),
    (lambda client: encode(Sparse(0, MANY)), TOO_MANY),
    (lambda client: decode(spliced(encode(Sparse(0, SPARSE)), 4, b"\1")), TOO_MANY),
    (lambda client: encode(Reply(0, 0, np.zeros((1, 65536), np.float32))), K_AND_P),
    (lambda client: encode(Reply(0, 0, np.zeros((65536, 1), np.float32))), K_AND_P),
    (lambda client: encode(Plan(0, 0.1, 65536, Distribution.GAUSSIAN, (1,))), K_AND_P),
    (lambda client: encode(Plan(0, 0.1, 1, Distribution.GAUSSIAN, (1,) * 65536)), K_AND_P),
    (lambda client: receive(client, []), "messages to client 4 must end with a plan, got none"),
    (lambda client: receive(client, [b"DC"]), "message is truncated: 2 bytes"),
    (lambda client: receive(client, [b"DC\x02\x63" + bytes(8)]), r"kind of the message must be in 1\.\.\d+, got 99"),
)
def test_a_message_of_other_methods_or_sides_or_of_more_than_the_wire_can_say_is_refused(attempt: Any) -> None:
    attempt(_Client())


@pytest.mark.parametrize("shape", [(1, 65535), (65535, 1)])
def test_as_many_steps_or_directions_as_the_wire_can_say_come_back(shape: tuple[int, int]) -> None:
    back = decode(encode(Reply(0, 0, np.zeros(shape, np.float32))))
    assert isinstance(back, Reply)
    assert back.scalars.shape == shape
    plan = Plan(0, 0.1, shape[1], Distribution.GAUSSIAN, (1,) * shape[0])
    assert decode(encode(plan)) == plan


@pytest.mark.parametrize("scale", [np.nan, np.inf, -0.5])
def test_a_scale_that_is_no_size_is_refused(scale: float) -> None:
    v = QuantizedVector(4, scale, np.zeros(3, np.int8))
    with pytest.raises(InputError, match="scale of the quantized message must be finite, 0 or more, got"):
        decode(encode(Quantized(0, v)))


SPARSE = SparseVector(2**32, np.array([1]), np.ones(1, np.float32))


@refuses(
    (Dense(4, np.ones(3, np.float32)), "round of a Dense message must be 5, got 4"),
    (Dense(5, np.ones(1, np.float32)), "elements of a Dense message must be d=3, got 1"),
    (Dense(5, np.ones(3)), "elements of a Dense message must be float32, got 'float64'"),
    (Sparse(5, SPARSE), "elements of a Sparse message must be d=3, got 4294967296"),
    (Quantized(5, QuantizedVector(8, 1.0, np.ones(1, np.int8))), "elements of a Quantized message must be d=3, got 1"),
)
def test_a_vector_of_another_round_size_or_type_is_refused_before_it_is_made(message: Any) -> None:
    vector_of(message, 5, 3)


def test_a_plan_of_more_scalars_than_a_reply_can_carry_is_refused() -> None:
    few = Plan(0, 0.1, 1, Distribution.GAUSSIAN, DerivedSeeds(1, 65535))
    message = spliced(encode(few), 14, b"\xff\xff")
    assert len(message) == 43
    with pytest.raises(InputError, match="K·P must be at most 1073741820, which fit into a reply, got 4294836225"):
        decode(message)


SIGNS = np.array([[1, -1, 1], [-1, -1, 1]], np.int8)


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


def test_bits_after_the_last_sign_are_refused() -> None:
    for message in (Reply(7, 3, SIGNS), (RoundRecord(3, 0.1, Distribution.SPHERE, (5, 6), SIGNS),)):
        sent = encode(message)  # type: ignore[arg-type]
        for bit in (6, 7):
            with pytest.raises(InputError, match=r"bits after the signs of the (signs|records) message must be 0"):
                decode(mended(sent[:-1] + bytes([sent[-1] | 1 << bit])))


class _Client:
    id, run_seed = 4, None

    def __init__(self) -> None:
        self.replica = Replica(torch.zeros(3), Momentum(0.5))


@pytest.mark.parametrize(
    ("vectors", "wrong"),
    [
        ([Dense(2, np.ones(3, np.float32))], "round of a Dense message must be 3, got 2"),
        ([Dense(3, np.ones(1, np.float32))], "elements of a Dense message must be d=3, got 1"),
        ([Dense(3, np.ones(3))], "elements of a Dense message must be float32, got 'float64'"),
        ([Dense(3, np.ones(3, np.float32))] * 3, "vectors of the model to client 4 must be 1 or 2, got 3"),
    ],
)
def test_a_model_that_is_not_the_clients_is_refused_and_leaves_it_as_it_was(vectors: list[Dense], wrong: str) -> None:
    client: Any = _Client()
    with pytest.raises(InputError, match=wrong):
        receive(client, map(encode, [RunSeed(1), *vectors, PLAN]))
    assert (client.run_seed, client.replica.round, client.replica.x.tolist()) == (None, 0, [0, 0, 0])
