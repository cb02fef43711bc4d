"""The wire: a versioned binary codec for every message; ``ledger`` counts what it encodes.

Message = header (magic "DC", version, kind, body length u32, CRC-32 of the body), then the body; all
numbers little-endian. Seeds are 8 bytes, places in a pool 2, scalars and model elements 4 (8 for float64 models).
Scalars that are signs take a bit each, 1 for +1, from the lowest bit of a byte on; zeros fill up the last byte. How
many seeds a plan or a record carries stands in it (``Seeding``); one that carries none is read with the run's seed,
which has a message of its own.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import InputError, require
from decomfl_lab.noise import STREAM_VERSION, Distribution
from decomfl_lab.protocol.messages import (
    DIRECTIONS,
    HEADER_BYTES,
    KINDS,
    ROUND,
    ROUND_HEAD,
    SIGNS,
    STEPS,
    Dense,
    Kind,
    Layout,
    Message,
    Plan,
    Quantized,
    Refusal,
    Reply,
    Sparse,
)
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.record import RoundRecord, ScalarArray, require_sound
from decomfl_lab.records.seeds import DerivedSeeds, PooledSeeds, Seeding, StepSeed, draw_seeds

Content = TypeVar("Content")
Codec = Callable[[bytes, int | None], Message]

WIRE_VERSION = 2
MAX_BODY = 2**32 - 1
LONGEST_REFUSAL = 300
"""The bytes of a reason at most."""

HEADER = struct.Struct("<2sBBII")
_COUNT = struct.Struct("<I")

SEED_BYTES = 8
SCALAR_BYTES = 4

_SCALAR, _INDEX, _LEVEL, _SUM = np.dtype("<f4"), np.dtype("<u4"), np.dtype("i1"), np.dtype("<i4")
_DISTRIBUTIONS = tuple(Distribution)
_SEEDINGS = tuple(Seeding)
_KINDS = {kind.value: kind for kind in Kind}
_CLASSES: dict[Kind, Callable[..., Message]] = {kind: made for made, kind in KINDS.items()}
PLAN_BYTES = HEADER_BYTES + ROUND_HEAD.size + _COUNT.size
MAX_SCALARS = (MAX_BODY - Kind.REPLY.layout.size) // SCALAR_BYTES


class _Reader:
    """Takes pieces off a body; InputError where it ends too early or too late."""

    def __init__(self, message: bytes) -> None:
        if len(message) < HEADER.size:
            raise InputError(f"message is truncated: {len(message)} bytes, its header has {HEADER.size}")
        magic, version, kind, length, crc = HEADER.unpack_from(message)
        require(magic == b"DC", "magic of the message", "be b'DC'", magic)
        require(version == WIRE_VERSION, "version of the message", f"be {WIRE_VERSION}", version)
        require(kind in _KINDS, "kind of the message", f"be in 1..{len(Kind)}", kind)
        self.kind = _KINDS[kind]
        self.name = self.kind.name.lower()
        self.body = memoryview(message)[HEADER.size :]
        if len(self.body) != length:
            what = "truncated" if len(self.body) < length else "oversized"
            raise InputError(f"{self.name} message is {what}: body of {len(self.body)} bytes, header says {length}")
        checksum = zlib.crc32(self.body)
        require(checksum == crc, f"checksum of the {self.name} message", f"be {crc:08x}", f"{checksum:08x}")
        self.place = 0  # of the next byte in the body

    def take(self, count: int) -> int:
        """The place of the next ``count`` bytes, which are there."""
        start = self.place
        if start + count > len(self.body):
            raise InputError(f"{self.name} message is truncated inside its body at byte {start}")
        self.place += count
        return start

    def unpack(self, layout: struct.Struct | Layout) -> tuple[Any, ...]:
        return layout.unpack_from(self.body, self.take(layout.size))

    def seeds(self, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}Q", self.body, self.take(SEED_BYTES * count))

    def array(self, kind: np.dtype[Any], count: int) -> NDArray[Any]:
        """The next ``count`` numbers, all finite, in an array of their own, in the machine's byte order."""
        start = self.take(kind.itemsize * count)
        numbers = np.frombuffer(self.body, kind, count, start).astype(kind.newbyteorder("="))
        finite = kind.kind != "f" or bool(np.isfinite(numbers).all())
        require(finite, f"numbers of {self.kind.whose}", "be finite", numbers)
        return numbers

    def signs(self, K: int, P: int) -> NDArray[np.int8]:
        """The next K·P signs, (K, P), and the zeros that fill up their last byte."""
        size = scalar_bytes(K * P, np.int8)
        packed = np.frombuffer(self.body, np.uint8, size, self.take(size))
        bits = np.unpackbits(packed, bitorder="little").view(np.int8)
        require(not bits[K * P :].any(), f"bits after the signs of the {self.name} message", "be 0", "others")
        return (2 * bits[: K * P] - 1).reshape(K, P)

    @property
    def left(self) -> int:
        return len(self.body) - self.place

    def end(self) -> None:
        if self.left:
            raise InputError(f"{self.name} message is oversized: {self.left} bytes too many in its body")


def _message(kind: Kind, *head: Any, rest: bytes = b"") -> bytes:
    """The message of a kind, its body these numbers and what follows them."""
    body = kind.layout.pack(head, kind.whose) + rest
    require(len(body) <= MAX_BODY, "message body", f"be at most {MAX_BODY} bytes", len(body))
    return HEADER.pack(b"DC", WIRE_VERSION, kind, len(body), zlib.crc32(body)) + body


def require_sendable(K: int, P: int) -> None:
    """What a plan asks for must be answered in one message."""
    fit = K in STEPS.whole_numbers and P in DIRECTIONS.whole_numbers
    require(fit, "K and P", f"{STEPS.rule()} on the wire", (K, P))
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


def _round_head(head: Plan | RoundRecord) -> bytes:
    """What a plan and every record begin with, and their seeds."""
    signs = SIGNS if isinstance(head, RoundRecord) and head.scalars.dtype == np.int8 else 0
    codes = _DISTRIBUTIONS.index(head.distribution), STREAM_VERSION, _SEEDINGS.index(head.seeding) | signs
    # The seeds, or the places in the pool, as they travel, in the order of (k, p).
    sent: list[Any]
    kind = "Q"
    match head.seeds:
        case DerivedSeeds(root, _, derived):
            sent = [root] if derived is Seeding.PER_ROUND else []
        case PooledSeeds(_, _, pooled):
            sent = [place for step in pooled for place in step]
            kind = "H"
        case _:
            sent = []
            for seed in head.seeds:
                sent += seed if isinstance(seed, tuple) else [seed]
    form = head.eta, head.K, head.P, *codes
    ROUND.check(head.round, "the message")
    _form(*form)
    return ROUND_HEAD.pack_sound(head.round, *form) + struct.pack(f"<{len(sent)}{kind}", *sent)


@lru_cache(64)
def _form(eta: float, K: int, P: int, which: int, stream: int, seeding: int) -> tuple[Distribution, Seeding, bool]:
    """What a round's head says, checked; the rounds of a run mostly say the same."""
    signs, seeding = bool(seeding & SIGNS), seeding & ~SIGNS
    ROUND_HEAD.check((0, eta, K, P, which, stream, seeding), "the message")
    require_sendable(K, P)
    return _DISTRIBUTIONS[which], _SEEDINGS[seeding], signs


_Head = tuple[int, float, int, Distribution, Sequence[StepSeed], bool]
"""The round, η, P, the distribution, the seeds and whether the scalars are signs."""


def _read_round_head(reader: _Reader, run_seed: int | None) -> _Head:
    r, eta, K, P, *rest = reader.unpack(ROUND_HEAD)
    distribution, seeding, signs = _form(eta, K, P, *rest)
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
        parts += [_round_head(record), _sent_scalars(record.scalars)]
    return b"".join(parts)


def _read_records(reader: _Reader, run_seed: int | None) -> tuple[RoundRecord, ...]:
    heads: list[tuple[_Head, ScalarArray | None]] = []
    pieces = []
    for _ in range(*reader.unpack(_COUNT)):
        _, _, P, _, seeds, signs = head = _read_round_head(reader, run_seed)
        if signs:
            heads.append((head, reader.signs(len(seeds), P)))
            continue
        start = reader.take(SCALAR_BYTES * len(seeds) * P)
        heads.append((head, None))
        pieces.append(reader.body[start : reader.place])
    scalars, end = np.frombuffer(b"".join(pieces), _SCALAR).astype(np.float32), 0
    finite = bool(np.isfinite(scalars).all())  # of all at once; where some are not, the record itself says which
    make = RoundRecord.of_checked if finite else RoundRecord
    records = []
    for (r, eta, P, distribution, seeds, _), of_record in heads:
        if of_record is None:
            start, end = end, end + len(seeds) * P
            of_record = scalars[start:end].reshape(-1, P)
        records.append(make(r, eta, distribution, seeds, of_record))
    return tuple(records)


def encode(message: Message) -> bytes:
    """A message as bytes; the loss and the second differences of a reply do not travel.

    InputError if a number of it is none that the wire has, or all of it is too long.
    """
    kind = KINDS[type(message)]
    match message:
        case Plan():
            return _message(kind, rest=_round_head(message) + _records_body(message.records))
        case Reply(client, r, scalars):
            kind = Kind.SIGNS if scalars.dtype == np.int8 else Kind.REPLY
            return _message(kind, client, r, *scalars.shape, rest=_sent_scalars(scalars))
        case Dense(r, x):
            little = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("<"))
            return _message(kind, r, x.dtype.itemsize, x.size, rest=little.tobytes())
        case Quantized(r, bits, scale, signed):
            levels = signed.view(np.uint8)
            if bits <= 4:  # half a byte for an element, else a byte
                nibbles = np.resize(levels & 0xF, levels.size + levels.size % 2)
                levels = nibbles[::2] | nibbles[1::2] << 4
            return _message(kind, r, bits, scale, signed.size, rest=levels.tobytes())
        case Sparse(r, d, indices, values):
            pairs = indices.astype("<u4").tobytes() + values.astype("<f4").tobytes()
            return _message(kind, r, d, indices.size, rest=pairs)
        case PoolSums(r, exponent, sums):
            return _message(kind, r, exponent, sums.size, rest=sums.astype("<i4").tobytes())
        case Refusal(text, diverged):
            short = text.encode()[:LONGEST_REFUSAL].decode(errors="ignore").encode()  # no letter is cut
            return _message(kind, int(diverged), rest=short)
        case tuple():
            return _message(kind, rest=_records_body(message))
    return _message(kind, *vars(message).values())


def decode(message: bytes, run_seed: int | None = None) -> Message:
    """Inverse of ``encode``; the run's seed is for rounds whose seeds are not sent.

    InputError if the message is truncated, oversized, altered, inconsistent or holds non-finite numbers.
    """
    reader = _Reader(message)
    kind = reader.kind
    head = reader.unpack(kind.layout)
    kind.layout.check(head, kind.whose)
    content: Message
    match kind:
        case Kind.PLAN:
            r, eta, P, distribution, seeds, signs = _read_round_head(reader, run_seed)
            require(not signs, "scalars of the plan message", "be none", "signs")
            records = _read_records(reader, run_seed)
            rounds = [record.round for record in records]
            expected = list(range(r - len(records), r))
            require(rounds == expected, "records of the plan message", f"be of the rounds before {r}, in order", rounds)
            content = Plan(r, eta, P, distribution, seeds, records)
        case Kind.REPLY | Kind.SIGNS:
            client, r, K, P = head
            require_sendable(K, P)
            scalars = reader.signs(K, P) if kind is Kind.SIGNS else reader.array(_SCALAR, K * P).reshape(K, P)
            content = Reply(client, r, scalars)
        case Kind.VECTOR:
            r, width, count = head
            content = Dense(r, reader.array(np.dtype(f"<f{width}"), count))
        case Kind.RECORDS:
            content = _read_records(reader, run_seed)
        case Kind.QUANTIZED:
            r, bits, scale, size = head
            levels = reader.array(_LEVEL, size if bits > 4 else (size + 1) // 2)
            if bits <= 4:
                # Two elements a byte; shifts to the right keep the sign.
                halves = np.stack([levels << 4 >> 4, levels >> 4], axis=1).reshape(-1)
                same = bool((halves[size:] == halves[: halves.size - size]).all())
                require(same, "half byte after the levels", "repeat the first level", "another")
                levels = halves[:size]
            largest = 2 ** (bits - 1) - 1
            inside = bool((np.abs(levels.astype(np.int16)) <= largest).all())
            require(inside, "levels of the quantized message", f"be in -{largest}..{largest}", "others")
            content = Quantized(r, bits, scale, levels)
        case Kind.SPARSE:
            r, d, count = head
            indices = reader.array(_INDEX, count).astype(np.int64)
            content = Sparse(r, d, indices, reader.array(_SCALAR, count))
        case Kind.POOL:
            r, exponent, size = head
            content = PoolSums(r, exponent, reader.array(_SUM, size))
        case Kind.REFUSAL:
            require(reader.left <= LONGEST_REFUSAL, "text of the refusal", f"have {LONGEST_REFUSAL} bytes", reader.left)
            try:
                content = Refusal(str(reader.body[reader.take(reader.left) :], "utf-8"), bool(*head))
            except UnicodeDecodeError as error:
                why = f"{error.reason} at byte {error.start}"
                raise InputError(f"text of the refusal must be UTF-8, got {why}") from None
        case _:
            content = _CLASSES[kind](*head)
    reader.end()
    return content


def record_bytes(seeding: Seeding, K: int, P: int, dtype: Any = np.float32) -> int:
    """The bytes of a record in a message."""
    return ROUND_HEAD.size + seeding.bytes(K, P) + scalar_bytes(K * P, dtype)


def split_frame(frame: bytes) -> list[bytes]:
    """The messages that a frame consists of, one after the other; InputError if it ends inside of one."""
    messages, start = [], 0
    while start < len(frame):
        left = len(frame) - start
        require(left >= HEADER.size, "frame", "end with a whole message", f"{left} bytes more")
        end = start + HEADER.size + int(HEADER.unpack_from(frame, start)[3])
        require(end <= len(frame), "frame", "end with a whole message", f"{end - len(frame)} bytes less")
        messages.append(frame[start:end])
        start = end
    return messages


def read(kind: type[Content], message: bytes, run_seed: int | None = None, decode: Codec = decode) -> Content:
    """The message of this kind; InputError as ``decode``, or if it is another."""
    content = decode(message, run_seed)
    if not isinstance(content, kind):
        raise InputError(f"message must be a {kind.__name__}, got a {type(content).__name__}")
    return content


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
    update = message.x if isinstance(message, Dense) else message
    require(message.round == r, f"round of a {name} message", f"be {r}", message.round)
    require(update.size == d, f"elements of a {name} message", f"be d={d}", update.size)
    if not isinstance(update, np.ndarray):
        return update.dense()
    require(update.dtype == dtype, f"elements of a {name} message", f"be {np.dtype(dtype)}", str(update.dtype))
    return update
