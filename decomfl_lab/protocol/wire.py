"""The wire: a versioned binary codec for every message, and the ledger that counts what it encodes.

Message = header (magic "DC", version, kind, body length u32, CRC-32 of the body), then the body; all
numbers little-endian. Seeds are 8 bytes, places in a pool 2, scalars and model elements 4 (8 for float64 models).
Scalars that are signs take a bit each, 1 for +1, from the lowest bit of a byte on; zeros fill up the last byte. How
many seeds a plan or a record carries stands in it (``Seeding``); one that carries none is read with the run's seed,
which has a message of its own.
"""

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.noise import STREAM_VERSION, Distribution
from decomfl_lab.noise.spec import LOW_RANK_CODE, NO_LOW_RANK
from decomfl_lab.protocol.compression import QuantizedVector, SparseVector
from decomfl_lab.protocol.messages import (
    Ask,
    Dense,
    Examples,
    Held,
    Hello,
    Message,
    Plan,
    Quantized,
    Refusal,
    Reply,
    RunSeed,
    Sparse,
    Welcome,
)
from decomfl_lab.protocol.weights import MOST_EXAMPLES
from decomfl_lab.records.pool import FINEST, PoolSums
from decomfl_lab.records.record import RoundRecord, ScalarArray, require_sound
from decomfl_lab.records.seeds import LARGEST_POOL, DerivedSeeds, PooledSeeds, Seeding, StepSeed, draw_seeds, seeding_of

Content = TypeVar("Content")
Codec = Callable[[bytes, int | None], Message]

WIRE_VERSION = 2
MAX_BODY = 2**32 - 1
LONGEST_REFUSAL = 300
"""The bytes of a reason at most."""

_HEADER = struct.Struct("<2sBBII")
_ROUND = struct.Struct("<IdHHBBB")  # round, eta, K, P, distribution, stream version, seeding and whether signs follow
_COUNT = struct.Struct("<I")

HEADER_BYTES = _HEADER.size
INDEX_BYTES = 4
SEED_BYTES = 8
SCALAR_BYTES = 4
_MOST_INDEXED = 2 ** (8 * INDEX_BYTES)

_SCALAR, _INDEX, _LEVEL, _SUM = np.dtype("<f4"), np.dtype("<u4"), np.dtype("i1"), np.dtype("<i4")
_DISTRIBUTIONS = tuple(Distribution)
_SEEDINGS = tuple(Seeding)
_SIGNS = 0x80
"""Added to the seeding of a record whose scalars are signs."""


class Kind(IntEnum):
    """The kinds of messages, each with the numbers that its body begins with."""

    head: struct.Struct

    def __new__(cls, number: int, head: str) -> Self:
        """A kind by its number on the wire, and the layout of these numbers."""
        own = int.__new__(cls, number)
        own._value_, own.head = number, struct.Struct(f"<{head}")
        return own

    PLAN = 1, ""  # a round's head, then records
    REPLY = 2, "IIHH"  # client, round, K, P; then scalars
    VECTOR = 3, "IBQ"  # round, bytes an element, elements; then these
    RECORDS = 4, ""  # each has a round's head
    QUANTIZED = 5, "IBfQ"  # round, bits, scale, elements; then their levels
    SPARSE = 6, "IQQ"  # round, elements, of them sent; then their places, and these
    HELD = 7, "II"
    SEED = 8, "Q"
    HELLO = 9, "I16sI16s"
    WELCOME = 10, "IQ"
    ASK = 11, ""
    REFUSAL = 12, "B"  # diverged; then the text
    SIGNS = 13, "IIHH"  # as a reply
    POOL = 14, "IbQ"  # round, exponent, sums; then these
    EXAMPLES = 15, "II"

    @property
    def least(self) -> int:
        """The bytes of a message of this kind, without what follows its first numbers."""
        return HEADER_BYTES + self.head.size


_KINDS = {kind.value: kind for kind in Kind}
PLAN_BYTES = HEADER_BYTES + _ROUND.size + _COUNT.size
MAX_SCALARS = (MAX_BODY - Kind.REPLY.head.size) // SCALAR_BYTES

_PLAIN: dict[Kind, Callable[..., Message]] = {
    Kind.HELD: Held,
    Kind.SEED: RunSeed,
    Kind.HELLO: Hello,
    Kind.WELCOME: Welcome,
    Kind.ASK: Ask,
}
"""The messages that are their fields, one after the other."""
_KIND_OF: dict[Any, Kind] = {made: kind for kind, made in _PLAIN.items()}


class _Reader:
    """Takes pieces off a body; InputError where it ends too early or too late."""

    def __init__(self, message: bytes) -> None:
        if len(message) < _HEADER.size:
            raise InputError(f"message is truncated: {len(message)} bytes, its header has {_HEADER.size}")
        magic, version, found, length, crc = _HEADER.unpack_from(message)
        require(magic == b"DC", "magic of the message", "be b'DC'", magic)
        require(version == WIRE_VERSION, "version of the message", f"be {WIRE_VERSION}", version)
        require(found in _KINDS, "kind of the message", f"be in 1..{len(Kind)}", found)
        self.kind = _KINDS[found]
        self.name = self.kind.name.lower()
        self.body = memoryview(message)[_HEADER.size :]
        if len(self.body) != length:
            what = "truncated" if len(self.body) < length else "oversized"
            raise InputError(f"{self.name} message is {what}: body of {len(self.body)} bytes, header says {length}")
        found = zlib.crc32(self.body)
        require(found == crc, f"checksum of the {self.name} message", f"be {crc:08x}", f"{found:08x}")
        self.at = 0

    def take(self, count: int) -> int:
        """The place of the next ``count`` bytes, which are there."""
        at = self.at
        if at + count > len(self.body):
            raise InputError(f"{self.name} message is truncated inside its body at byte {at}")
        self.at += count
        return at

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack_from(self.body, self.take(layout.size))

    def seeds(self, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}Q", self.body, self.take(SEED_BYTES * count))

    def array(self, kind: np.dtype[Any], count: int) -> NDArray[Any]:
        """The next ``count`` numbers, in an array of their own, in the machine's byte order."""
        at = self.take(kind.itemsize * count)
        return np.frombuffer(self.body, kind, count, at).astype(kind.newbyteorder("="))

    def signs(self, K: int, P: int) -> NDArray[np.int8]:
        """The next K·P signs, (K, P), and the zeros that fill up their last byte."""
        size = scalar_bytes(K * P, np.int8)
        at = self.take(size)
        bits = np.unpackbits(np.frombuffer(self.body, np.uint8, size, at), bitorder="little").view(np.int8)
        require(not bits[K * P :].any(), f"bits after the signs of the {self.name} message", "be 0", "others")
        return (2 * bits[: K * P] - 1).reshape(K, P)

    @property
    def left(self) -> int:
        return len(self.body) - self.at

    def end(self) -> None:
        if self.left:
            raise InputError(f"{self.name} message is oversized: {self.left} bytes too many in its body")


def _message(kind: Kind, *head: Any, rest: bytes = b"") -> bytes:
    """The message of a kind, its body these numbers and what follows them."""
    body = kind.head.pack(*head) + rest
    require(len(body) <= MAX_BODY, "message body", f"be at most {MAX_BODY} bytes", len(body))
    return _HEADER.pack(b"DC", WIRE_VERSION, kind, len(body), zlib.crc32(body)) + body


def require_sendable(K: int, P: int) -> None:
    """What a plan asks for must be answered in one message."""
    require(0 < K <= 0xFFFF and 0 < P <= 0xFFFF, "K and P", "be 1 to 65535 on the wire", (K, P))
    require(K * P <= MAX_SCALARS, "K·P", f"be at most {MAX_SCALARS}, which fit into a reply", K * P)


def scalar_bytes(count: int, dtype: Any) -> int:
    """The bytes of so many scalars of this type, float32 or int8, in a message."""
    return (count + 7) // 8 if dtype == np.int8 else SCALAR_BYTES * count


def _sent_scalars(scalars: ScalarArray) -> bytes:
    """The scalars as they travel, in the order of (k, p)."""
    if scalars.dtype != np.int8:
        return scalars.astype("<f4").tobytes()
    require_sound("signs", scalars)
    return np.packbits(scalars.reshape(-1) > 0, bitorder="little").tobytes()


def _round_head(
    r: int, eta: float, P: int, distribution: Distribution, seeds: Sequence[StepSeed], signs: int = 0
) -> bytes:
    K, seeding = len(seeds), seeding_of(seeds, P)
    require_sendable(K, P)
    places = _DISTRIBUTIONS.index(distribution), STREAM_VERSION, _SEEDINGS.index(seeding) | signs
    # The seeds, or the places in the pool, as they travel, in the order of (k, p).
    sent: list[Any]
    kind = "Q"
    match seeds:
        case DerivedSeeds(root, _, derived):
            sent = [root] if derived is Seeding.PER_ROUND else []
        case PooledSeeds(_, _, pooled):
            sent, kind = [place for step in pooled for place in step], "H"
        case _:
            each: Any = seeds
            sent = [own for seed in each for own in ((seed,) if isinstance(seed, int) else seed)]
    return _ROUND.pack(r, eta, K, P, *places) + struct.pack(f"<{len(sent)}{kind}", *sent)


@lru_cache(64)
def _form(K: int, P: int, which: int, stream: int, seeding: int) -> tuple[Distribution, Seeding, bool]:
    """What a round's head says, checked; the rounds of a run mostly say the same."""
    require(stream == STREAM_VERSION, "stream version of the message", f"be {STREAM_VERSION}", stream)
    rule = f"be below {len(_DISTRIBUTIONS)}" + (f", {NO_LOW_RANK}" if which == LOW_RANK_CODE else "")
    require(which < len(_DISTRIBUTIONS), "distribution of the message", rule, which)
    signs, seeding = bool(seeding & _SIGNS), seeding & ~_SIGNS
    require(seeding < len(_SEEDINGS), "seeding of the message", f"be below {len(_SEEDINGS)}", seeding)
    require_sendable(K, P)
    return _DISTRIBUTIONS[which], _SEEDINGS[seeding], signs


_Head = tuple[int, float, int, Distribution, Sequence[StepSeed], bool]
"""The round, η, P, the distribution, the seeds and whether the scalars are signs."""


def _read_round_head(reader: _Reader, run_seed: int | None) -> _Head:
    r, eta, K, P, *rest = reader.unpack(_ROUND)
    distribution, seeding, signs = _form(K, P, *rest)
    require(0 < eta < math.inf, "eta of the message", "be a finite number above 0", eta)
    if seeding.needs_run_seed and run_seed is None:
        raise InputError(f"run_seed must be given to read round {r}, whose seeds are not sent ({seeding})")
    seeds: Sequence[StepSeed]
    match seeding:
        case Seeding.PER_DIRECTION:
            sent = reader.seeds(K * P)
            seeds = tuple(sent[k * P : (k + 1) * P] for k in range(K))
        case Seeding.PER_STEP:
            seeds = reader.seeds(K)
        case Seeding.PER_ROUND:
            seeds = DerivedSeeds(reader.seeds(1)[0], K)
        case Seeding.PER_RUN:
            seeds = draw_seeds(seeding, cast("int", run_seed), r, K, P)
        case Seeding.POOL:
            places = struct.unpack_from(f"<{K * P}H", reader.body, reader.take(2 * K * P))
            seeds = PooledSeeds(cast("int", run_seed), r, tuple(places[k * P : (k + 1) * P] for k in range(K)))
    return r, eta, P, distribution, seeds, signs


def _records_body(records: tuple[RoundRecord, ...]) -> bytes:
    parts = [_COUNT.pack(len(records))]
    for record in records:
        signs = _SIGNS if record.scalars.dtype == np.int8 else 0
        parts.append(_round_head(record.round, record.eta, record.P, record.distribution, record.seeds, signs))
        parts.append(_sent_scalars(record.scalars))
    return b"".join(parts)


def _read_records(reader: _Reader, run_seed: int | None) -> tuple[RoundRecord, ...]:
    heads: list[tuple[_Head, ScalarArray | None]] = []
    pieces = []
    for _ in range(*reader.unpack(_COUNT)):
        _, _, P, _, seeds, signs = head = _read_round_head(reader, run_seed)
        if signs:
            heads.append((head, reader.signs(len(seeds), P)))
            continue
        at = reader.take(SCALAR_BYTES * len(seeds) * P)
        heads.append((head, None))
        pieces.append(reader.body[at : reader.at])
    scalars, end = np.frombuffer(b"".join(pieces), _SCALAR).astype(np.float32), 0
    finite = bool(np.isfinite(scalars).all())  # of all at once; where some are not, the record itself says which
    make = RoundRecord.of_checked if finite else RoundRecord
    records = []
    for (r, eta, P, distribution, seeds, _), own in heads:
        if own is None:
            start, end = end, end + len(seeds) * P
            own = scalars[start:end].reshape(-1, P)
        records.append(make(r, eta, distribution, seeds, own))
    return tuple(records)


def _read_plan(reader: _Reader, run_seed: int | None) -> Plan:
    r, eta, P, distribution, seeds, signs = _read_round_head(reader, run_seed)
    require(not signs, "scalars of the plan message", "be none", "signs")
    records = _read_records(reader, run_seed)
    rounds = [record.round for record in records]
    expected = list(range(r - len(records), r))
    require(rounds == expected, "records of the plan message", f"be of the rounds before {r}, in order", rounds)
    return Plan(r, eta, P, distribution, seeds, records)


def _read_quantized(reader: _Reader, r: int, bits: int, scale: float, size: int) -> Quantized:
    require(2 <= bits <= 8, "bits of the quantized message", "be 2 to 8", bits)
    require(bool(np.isfinite(scale)) and scale >= 0, "scale of the quantized message", "be finite, 0 or more", scale)
    if bits > 4:
        levels = reader.array(_LEVEL, size)
    else:
        pairs = reader.array(_LEVEL, (size + 1) // 2)
        levels = np.stack([pairs << 4 >> 4, pairs >> 4], axis=1).reshape(-1)  # shifts to the right keep the sign
        same = bool((levels[size:] == levels[: levels.size - size]).all())
        require(same, "half byte after the levels", "repeat the first level", "another")
        levels = levels[:size]
    largest = 2 ** (bits - 1) - 1
    inside = bool((np.abs(levels.astype(np.int16)) <= largest).all())
    require(inside, "levels of the quantized message", f"be in -{largest}..{largest}", "others")
    return Quantized(r, QuantizedVector(bits, scale, levels))


def _read_refusal(reader: _Reader, diverged: int) -> Refusal:
    require(diverged in (0, 1), "diverged in the refusal", "be 0 or 1", diverged)
    require(reader.left <= LONGEST_REFUSAL, "text of the refusal", f"have {LONGEST_REFUSAL} bytes", reader.left)
    try:
        return Refusal(str(reader.body[reader.take(reader.left) :], "utf-8"), bool(diverged))
    except UnicodeDecodeError as error:
        raise InputError(f"text of the refusal must be UTF-8, got {error.reason} at byte {error.start}") from None


def encode(message: Message) -> bytes:
    """A message as bytes; the loss and the second differences of a reply do not travel."""
    if (kind := _KIND_OF.get(type(message))) is not None:
        return _message(kind, *vars(message).values())
    match message:
        case Plan(r, eta, P, distribution, seeds, records):
            return _message(Kind.PLAN, rest=_round_head(r, eta, P, distribution, seeds) + _records_body(records))
        case Reply(client, r, scalars):
            K, P = scalars.shape
            require_sendable(K, P)
            kind = Kind.SIGNS if scalars.dtype == np.int8 else Kind.REPLY
            return _message(kind, client, r, K, P, rest=_sent_scalars(scalars))
        case Examples(client, n):
            require_int(f"examples of client {client}", n, 1, MOST_EXAMPLES)
            return _message(Kind.EXAMPLES, client, n)
        case Dense(r, x):
            little = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("<"))
            return _message(Kind.VECTOR, r, x.dtype.itemsize, x.size, rest=little.tobytes())
        case Quantized(r, QuantizedVector(bits, scale, signed)):
            levels = signed.view(np.uint8)
            if bits <= 4:  # half a byte for an element, else a byte
                nibbles = np.resize(levels & 0xF, levels.size + levels.size % 2)
                levels = nibbles[::2] | nibbles[1::2] << 4
            return _message(Kind.QUANTIZED, r, bits, scale, signed.size, rest=levels.tobytes())
        case Sparse(r, SparseVector(d, indices, values)):
            require(d <= _MOST_INDEXED, "d of a sparse message", "be at most 2^32", d)
            pairs = indices.astype("<u4").tobytes() + values.astype("<f4").tobytes()
            return _message(Kind.SPARSE, r, d, indices.size, rest=pairs)
        case PoolSums(r, exponent, sums):
            return _message(Kind.POOL, r, exponent, sums.size, rest=sums.astype("<i4").tobytes())
        case Refusal(text, diverged):
            short = text.encode()[:LONGEST_REFUSAL].decode(errors="ignore").encode()  # no letter is cut
            return _message(Kind.REFUSAL, diverged, rest=short)
        case records:
            return _message(Kind.RECORDS, rest=_records_body(cast("tuple[RoundRecord, ...]", records)))


def decode(message: bytes, run_seed: int | None = None) -> Message:
    """Inverse of ``encode``.

    Args:
        message: What ``encode`` made.
        run_seed: The run's seed, for rounds whose seeds are not sent.

    Raises:
        InputError: If it is truncated, oversized, altered, inconsistent or holds non-finite numbers.
    """
    reader = _Reader(message)
    head = reader.unpack(reader.kind.head)
    found: Message
    match reader.kind:
        case Kind.PLAN:
            found = _read_plan(reader, run_seed)
        case Kind.REPLY | Kind.SIGNS:
            client, r, K, P = head
            require_sendable(K, P)
            scalars = reader.signs(K, P) if reader.kind is Kind.SIGNS else reader.array(_SCALAR, K * P).reshape(K, P)
            require_sound(f"scalars of client {client} in round {r}", scalars)
            found = Reply(client, r, scalars)
        case Kind.EXAMPLES:
            client, n = head
            found = Examples(client, require_int(f"examples of client {client}", n, 1, MOST_EXAMPLES))
        case Kind.VECTOR:
            r, width, count = head
            require(width in (4, 8), "bytes an element of the model", "be 4 or 8", width)
            x = reader.array(np.dtype(f"<f{width}"), count)
            require(bool(np.isfinite(x).all()), f"model of round {r}", "be finite", x)
            found = Dense(r, x)
        case Kind.RECORDS:
            found = _read_records(reader, run_seed)
        case Kind.QUANTIZED:
            found = _read_quantized(reader, *head)
        case Kind.SPARSE:
            r, d, count = head
            require(d <= _MOST_INDEXED, "d of a sparse message", "be at most 2^32", d)
            indices = reader.array(_INDEX, count).astype(np.int64)
            values = reader.array(_SCALAR, count)
            require(bool(np.isfinite(values).all()), f"update of round {r}", "be finite", values)
            found = Sparse(r, SparseVector(d, indices, values))
        case Kind.POOL:
            r, exponent, size = head
            require(FINEST <= exponent <= 0, "exponent of the pool message", f"be in {FINEST}..0", exponent)
            require(1 <= size <= LARGEST_POOL, "sums of the pool message", f"number 1..{LARGEST_POOL}", size)
            found = PoolSums(r, exponent, reader.array(_SUM, size))
        case Kind.REFUSAL:
            found = _read_refusal(reader, *head)
        case kind:
            found = _PLAIN[kind](*head)
    reader.end()
    return found


def record_bytes(seeding: Seeding, K: int, P: int, dtype: Any = np.float32) -> int:
    """The bytes of a record in a message."""
    return _ROUND.size + seeding.bytes(K, P) + scalar_bytes(K * P, dtype)


def pool_bytes(S: int) -> int:
    """The bytes of the message with the sums of a pool."""
    return Kind.POOL.least + SCALAR_BYTES * S


def split_frame(frame: bytes) -> list[bytes]:
    """The messages that a frame consists of, one after the other; InputError if it ends inside of one."""
    messages, at = [], 0
    while at < len(frame):
        require(len(frame) - at >= _HEADER.size, "frame", "end with a whole message", f"{len(frame) - at} bytes more")
        end = at + _HEADER.size + int(_HEADER.unpack_from(frame, at)[3])
        require(end <= len(frame), "frame", "end with a whole message", f"{end - len(frame)} bytes less")
        messages.append(frame[at:end])
        at = end
    return messages


def read(kind: type[Content], message: bytes, run_seed: int | None = None, decode: Codec = decode) -> Content:
    """The message of this kind; InputError as ``decode``, or if it is another."""
    found = decode(message, run_seed)
    if not isinstance(found, kind):
        raise InputError(f"message must be a {kind.__name__}, got a {type(found).__name__}")
    return found


def vector_of(message: Dense | Quantized | Sparse, r: int, d: int, dtype: Any = np.float32) -> NDArray[Any]:
    """The vector (d,) in a message, float32 or float64, once the message is known to be one that the receiver awaits.

    Args:
        message: The message; of a compressed one nothing as large as d is made before it is checked.
        r: The round that the receiver is in.
        d: The elements of its model.
        dtype: The elements' type in a dense message; compressed ones hold float32.

    Raises:
        InputError: If the message is of another round, size or type.
    """
    name = type(message).__name__
    update = message.x if isinstance(message, Dense) else message.update
    require(message.round == r, f"round of a {name} message", f"be {r}", message.round)
    require(update.size == d, f"elements of a {name} message", f"be d={d}", update.size)
    if not isinstance(update, np.ndarray):
        return update.dense()
    require(update.dtype == dtype, f"elements of a {name} message", f"be {np.dtype(dtype)}", str(update.dtype))
    return update
