"""The codec of all messages, and what it refuses."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.compression import SparseVector
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.messages import Dense, Held, Plan, Reply, RunSeed
from decomfl_lab.protocol.server import Server
from decomfl_lab.protocol.wire import HEADER_BYTES, Ledger, decode, encode, encode_sparse, kind_of
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.schedules import Schedule

PLAN = Plan(3, 0.1, 2, Distribution.GAUSSIAN, (1, 2))
RECORD = RoundRecord(2, 0.1, Distribution.SPHERE, (5,), np.ones((1, 3), np.float32))
STREAM = 17  # place of the stream's version in a round's head


def _with(message: bytes, at: int, value: int) -> bytes:
    body = message[HEADER_BYTES:]
    body = body[:at] + bytes([value]) + body[at + 1 :]
    return message[:4] + struct.pack("<II", len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize("message", [PLAN, Held(3, 7), RunSeed(2**64 - 1), (RECORD,), ()])
def test_a_message_comes_back_as_it_was(message: Any) -> None:
    assert decode(encode(message)) == message


def test_scalars_and_models_come_back_with_their_bits() -> None:
    x = np.array([[1.5, -0.0], [1e-40, 3e38]], np.float32)
    reply, dense = decode(encode(Reply(1, 2, x))), decode(encode(Dense(4, x.reshape(-1))))
    assert isinstance(reply, Reply)
    assert isinstance(dense, Dense)
    assert (reply.client, reply.round, reply.scalars.tobytes()) == (1, 2, x.tobytes())
    assert (dense.round, dense.x.tobytes()) == (4, x.tobytes())


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_of_the_stream_is_refused_older_ones_too(version: int) -> None:
    with pytest.raises(InputError, match=f"stream version of the message must be 1, got {version}"):
        decode(_with(encode(PLAN), STREAM, version))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_that_is_not_finite_is_refused(value: float, dtype: type) -> None:
    with pytest.raises(InputError, match="model of round 6 must be finite"):
        decode(encode(Dense(6, np.array([0.0, value], dtype))))


def test_a_message_of_other_methods_is_refused_by_kind() -> None:
    sparse = encode_sparse(0, SparseVector(4, np.array([1]), np.ones(1, np.float32)))
    with pytest.raises(InputError, match="kind of the message must be one of DeComFL's, got sparse"):
        decode(sparse)
    with pytest.raises(InputError, match="message is truncated: 11 bytes, its header has 12"):
        kind_of(sparse[:11])
    with pytest.raises(InputError, match=r"kind of the message must be in 1\.\.8, got 9"):
        kind_of(sparse[:3] + b"\x09" + sparse[4:])


def test_a_message_to_the_wrong_side_is_refused() -> None:
    server = Server(M=1, m=1, K=1, P=Schedule(1), eta=Schedule(0.1), seed=0)
    with pytest.raises(InputError, match="message to the server must be a Reply, got a Held"):
        Delivery(server).close([encode(Held(0, 0))])

    class Client:
        id, run_seed = 4, None

    with pytest.raises(InputError, match="messages to client 4 must be its own, got a Held"):
        receive(Client(), [encode(Held(0, 0))])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="messages to client 4 must end with a plan, got none"):
        receive(Client(), [encode(RunSeed(1))])  # type: ignore[arg-type]


def test_the_ledger_counts_by_the_codec_that_it_is_given() -> None:
    ledger = Ledger(2, encode=lambda message: b"seven b")
    ledger.held(Held(1, 0))
    ledger.run_seed(1, 5)
    assert (ledger.up[1].bytes, ledger.down[1].bytes, ledger.down[1].seeds, ledger.bytes) == (7, 7, 1, 14)
    assert (ledger.up[0].messages, ledger.up[1].messages, ledger.bytes_up) == (0, 1, 7)
