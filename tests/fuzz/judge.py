"""What every decoder must do with any bytes: return a message, or raise an InputError of one short line."""

import dataclasses
import os
import re
import stat
import struct
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from decomfl_lab import InputError, Majority, Mean, Momentum
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol import delivery, wire
from decomfl_lab.protocol.aggregation import Aggregation
from decomfl_lab.protocol.messages import (
    HEADER_BYTES,
    Ask,
    Dense,
    Examples,
    Held,
    Hello,
    Kind,
    Message,
    Plan,
    Quantized,
    Refusal,
    Reply,
    RunSeed,
    Sparse,
    Welcome,
    quantize,
)
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding, draw_seeds
from decomfl_lab.replicas.pool_sums import PooledSgd
from decomfl_lab.replicas.registry import make_replica
from decomfl_lab.replicas.rules import UpdateRule
from decomfl_lab.storage import checkpoint_file

T = TypeVar("T")

D, ROUND, RUN_SEED = 7, 3, 77
LONGEST_ERROR = 300
MULTIPLE, FIXED = 256, 2**18
"""A decoder may allocate MULTIPLE times the bytes of the message and of the receiver's model, and FIXED beside."""

VOTES = np.array([[1, -1, 1], [1, 1, -1]], np.int8)


def _record(r: int, seeding: Seeding) -> RoundRecord:
    return RoundRecord(r, 0.1, Distribution.SPHERE, draw_seeds(seeding, RUN_SEED, r, 1, 2), np.ones((1, 2), np.float32))


def _voted(r: int) -> RoundRecord:
    return RoundRecord(r, 0.1, Distribution.SPHERE, draw_seeds(Seeding.PER_ROUND, RUN_SEED, r, 2, 3), VOTES)


def _plan(seeding: Seeding) -> Plan:
    seeds = draw_seeds(seeding, RUN_SEED, ROUND, 2, 3)
    return Plan(ROUND, 0.1, 3, Distribution.GAUSSIAN, seeds, (_record(ROUND - 1, seeding),))


X = np.linspace(-1, 1, D, dtype=np.float32)
SUMS = np.array([1 << 30, 0, -7], np.int32)
MESSAGES: tuple[Message, ...] = (
    *map(_plan, Seeding),
    *(tuple(_record(r, seeding) for r in range(3)) for seeding in Seeding),
    Reply(1, 0, np.full((2, 3), 0.5, np.float32)),
    Held(1, 0),
    Examples(1, 99),
    RunSeed(RUN_SEED),
    *(Dense(ROUND, x) for x in (X, X[:1], X.astype(np.float64))),
    *(quantize(ROUND, X[:size], bits, (1,)) for size in (1, D) for bits in (3, 8)),
    *(Sparse(ROUND, d, np.arange(min(d, 2)), X[: min(d, 2)]) for d in (1, D)),
    PoolSums(ROUND, -30, SUMS),
    Hello(1, bytes(range(16)), ROUND, bytes(16)),
    Welcome(ROUND, 4),
    Ask(),
    *(Refusal(text, diverged) for text in ("", "μ must be above 0") for diverged in (False, True)),
    Reply(1, 0, VOTES),
    Plan(ROUND, 0.1, 3, Distribution.GAUSSIAN, (5,), tuple(_voted(r) for r in (1, 2))),
    (_voted(0), _record(1, Seeding.PER_STEP), _voted(2)),
)  # one at least of every kind


def _checkpoint() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        checkpoint_file.write_checkpoint(path, {"x": torch.from_numpy(X)}, {"round": 3, "held": [1, 2]})
        return path.read_bytes()


SAMPLES = [wire.encode(message) for message in MESSAGES]
PLANS, TOLD = SAMPLES[: len(Seeding)], wire.encode(RunSeed(RUN_SEED))
MODEL, POOLED = wire.encode(Dense(ROUND, X)), wire.encode(PoolSums(ROUND, -30, SUMS))
STREAMS = [*SAMPLES, MODEL + PLANS[0], TOLD + PLANS[3], 2 * MODEL + PLANS[1], TOLD + POOLED + PLANS[4], _checkpoint()]


def split(stream: bytes) -> Iterator[bytes]:
    """Messages that stand one after another, each as long as its header says."""
    while stream:
        end = HEADER_BYTES + int.from_bytes(stream[4:8], "little")
        yield stream[:end]
        stream = stream[end:]


def mended(message: bytes, *, counts: bool = False) -> bytes:
    """The message, or checkpoint, with header, length and checksum made right, and ``counts`` of elements, too."""
    if message[:2] != b"DC":
        json = re.match(rb".{8}.*\} *", message, re.DOTALL)
        size = struct.pack("<Q", json.end() - 8 if json else 0)
        blank = checkpoint_file.CHECKSUM.sub(b'"sha256":"%s"' % checkpoint_file.BLANK.encode(), size + message[8:])
        digest = checkpoint_file.hashlib.sha256(blank).hexdigest().encode()
        return blank.replace(checkpoint_file.BLANK.encode(), digest, 1)
    kinds = list(Kind)
    kind = kinds[(message[3] - 1) % len(kinds)] if len(message) > 3 else kinds[0]
    body = message[HEADER_BYTES:]
    if counts and kind.each:  # its last number says how many elements follow
        head = kind.layout.size
        body = body[: head - 8] + struct.pack("<Q", max(0, len(body) - head) // kind.each) + body[head:]
    return wire.HEADER.pack(b"DC", wire.WIRE_VERSION, kind, len(body), zlib.crc32(body)) + body


def outcome(call: Callable[..., T], *arguments: Any) -> T | None:
    """What it returns, None where it refuses; whatever else it raises is a finding."""
    text = ""
    try:
        return call(*arguments)
    except InputError as error:
        text = str(error)
    assert 0 < len(text) <= LONGEST_ERROR, f"an error of {len(text)} characters"
    assert "\n" not in text, "an error of more than one line"
    return None


class Receiver:
    """What ``receive`` knows of a client."""

    id = 4

    def __init__(self, rule: UpdateRule) -> None:
        self.run_seed: int | None = None
        self.replica = make_replica(torch.zeros(D), rule)


_receiver = cache(Receiver)


class Content:
    """Bytes instead of a plain file."""

    def __init__(self, content: bytes) -> None:
        self.read_bytes = lambda: content
        self.stat = lambda: os.stat_result((stat.S_IFREG, *[0] * 9))


def judge(stream: bytes, *, decoders_alone: bool = False) -> int:
    """How many messages are decoded, and steps after that taken; an exception is a finding.

    Args:
        stream: Messages, one after another, or a checkpoint.
        decoders_alone: Whether what server and client do with the messages is left out, which takes longer.
    """
    if stream[:2] != b"DC":
        found = outcome(checkpoint_file.read_checkpoint, Content(stream))  # type: ignore[arg-type]
        return found is not None
    accepted = 0
    messages = list(split(stream))
    frame = outcome(wire.split_frame, stream)
    assert frame is None or frame == messages, "a frame is cut otherwise than its messages' lengths say"
    decoded = [outcome(wire.decode, message, RUN_SEED) for message in messages]
    for message, content in zip(messages, decoded, strict=True):
        if content is not None:
            accepted += 1
            assert wire.encode(content) == message, "what was decoded is encoded otherwise"
            accepted += 0 if decoders_alone else _used(message, content)
    if decoders_alone or not any(isinstance(content, Plan) for content in decoded):
        return accepted
    pooled = any(isinstance(content, PoolSums) for content in decoded)
    client = _receiver(PooledSgd(SUMS.size) if pooled else Momentum(0.5))
    before = client.replica.snapshot()
    plan = outcome(delivery.receive, client, messages)  # type: ignore[arg-type]
    if plan is None:
        same = client.replica.x is before.x and client.replica.round == before.round and client.run_seed is None
        assert same, "a client was changed by messages that it refused"
        return accepted
    _receiver.cache_clear()  # the next stream gets a client that has read nothing
    models = [content for content in decoded if isinstance(content, Dense | PoolSums)]
    assert all(model.round == plan.round for model in models), "a model of another round was taken"
    assert client.replica.round == (plan.round if models else before.round)
    assert torch.isfinite(client.replica.x).all()
    return accepted + 1


def _used(message: bytes, content: Message) -> int:
    """Put a message to what is done with it next."""
    match content:
        case Dense() | Quantized() | Sparse():
            v = outcome(wire.vector_of, content, ROUND, D)
            if v is not None:
                assert v.shape == (D,), f"{v.shape} instead of {D} elements"
                assert content.round == ROUND, "another round"
                assert np.isfinite(v).all()
            return v is not None
        case Reply():
            rule: Aggregation = Majority() if content.scalars.dtype == np.int8 else Mean()
            server = Server(M=2, m=2, K=2, P=Schedule(3), eta=Schedule(0.1), seed=1, aggregation=rule)
            server.plan_round()
            return outcome(delivery.Delivery(server).close, [message]) is not None
        case Held():
            tracked = Server(M=2, m=1, K=2, P=Schedule(3), eta=Schedule(0.1), seed=1, tracking=Tracking.CLIENTS)
            return outcome(lambda: list(delivery.Delivery(tracked).open((1,), [message]))) is not None
        case Plan() | tuple():
            records = content.records if isinstance(content, Plan) else content
            assert all(dataclasses.replace(record) == record for record in records)
    return 0


@cache
def _warm() -> None:
    """What is loaded at its first use is no decoder's."""
    for stream in STREAMS:
        judge(stream)


def judge_with_memory(stream: bytes) -> None:
    """``judge``, and AssertionError where its peak of memory is more than the message and the receiver's d allow."""
    _warm()
    tracemalloc.start()
    try:
        judge(stream)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    most = MULTIPLE * (len(stream) + 8 * D) + FIXED
    assert peak <= most, f"{peak} bytes were allocated for a message of {len(stream)}, {most} may be"
