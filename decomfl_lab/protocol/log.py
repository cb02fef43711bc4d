"""The write-ahead log of a run: an entry a round, from which server, clients and model can be had again.

    file  = magic (8 bytes), version u32, length u32, header (JSON), perhaps x_0, chain_0
    entry = round u32, length u32, CRC-32 of these 8 bytes, body (length bytes), chain_{r+1}

    chain_0 = BLAKE2b-128(all before it),    chain_{r+1} = BLAKE2b-128(chain_r ‖ the entry before its chain value)

All numbers are little-endian; docs/run-log.md has the body too. The chain ties each entry to the header and to all
entries before it, so that none can be changed, moved, added or left out in the middle unseen. A file that ends inside
of its last entry is what a killed writer leaves: that entry is cut. Nothing here needs torch.
"""

import contextlib
import errno
import hashlib
import io
import json
import logging
import os
import struct
import tempfile
import weakref
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import IO, Any, Self

from decomfl_lab.errors import InputError, plural, require, require_int
from decomfl_lab.protocol.wire import encode, read
from decomfl_lab.records.record import History, RoundRecord
from decomfl_lab.storage.files import held_file, require_plain, write_atomically

MAGIC = b"\x89DCLOG\r\n"
"""A file that went through a change of line endings has another one."""
VERSION = 2
"""The version that is written; a log of version 1 is read, too, and lacks what the header says of x_0."""
GROUPED = 3
"""The version of a log with ``groups`` in its header, which a reader of version 2 would pass over."""
_NAMELESS = "a nameless log"
FILE = struct.Struct("<8sII")  # magic, version, bytes of the header
ENTRY = struct.Struct("<III")  # round, bytes of the body, CRC-32 of the 8 bytes before it
_BODY = struct.Struct("<IIB16s")  # sampled, answered, flags, digest
_HELD, _DIGEST, _EXAMPLES = 1, 2, 4
CHAIN = 16

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LogEntry:
    """What is logged of a round."""

    record: RoundRecord  # the round's record
    sampled: tuple[int, ...]  # the clients that were asked, in the order in which they were
    answered: tuple[int, ...]  # the clients whose scalars are in the record's mean
    # The round that each sampled client reported to hold, where clients track that themselves; else None.
    held: tuple[int, ...] | None = None
    # ``Replica.digest`` of the server's model after the round, where it was computed; else None.
    digest: str | None = None
    # The number of examples of each client that answered, where they weigh that in the mean; else None.
    examples: tuple[int, ...] | None = None

    def require_sound(self, M: int) -> None:
        """InputError unless it can be of a round of M clients: each sampled once, some answered, none ahead."""
        asked, came, r = self.sampled, self.answered, self.record.round
        once = 0 < len(asked) == len({*asked}) and all(i < M for i in asked)
        require(once, f"sampled clients of round {r}", f"be some of 0..{M - 1}, each once", asked)
        rule = f"be some of {asked}, each once"
        require(0 < len(came) == len({*came} & {*asked}), f"clients that answered in round {r}", rule, came)
        require(max(self.held or (0,)) <= r, f"rounds held in round {r}", f"be at most {r}", self.held)
        require(min(self.examples or (1,)) > 0, f"numbers of examples in round {r}", "be at least 1", self.examples)


def body_of(entry: LogEntry) -> bytes:
    """The bytes between an entry's head and its chain value; ``RunLog.entries`` is the inverse."""
    held, examples = entry.held or (), entry.examples or ()
    flags = _HELD * (entry.held is not None) | _DIGEST * (entry.digest is not None)
    flags |= _EXAMPLES * (entry.examples is not None)
    head = _BODY.pack(len(entry.sampled), len(entry.answered), flags, bytes.fromhex(entry.digest or 32 * "0"))
    numbers = (*entry.sampled, *entry.answered, *held, *examples)
    return head + struct.pack(f"<{len(numbers)}I", *numbers) + encode((entry.record,))


def chained(chain: bytes, entry: bytes) -> bytes:
    """The chain value after an entry, of that before it."""
    return hashlib.blake2b(chain + entry, digest_size=CHAIN).digest()


class RunLog(contextlib.AbstractContextManager["RunLog"]):
    """A run's log, in a file that no other process writes to: it is held while it is open for writing.

    Where a file system has no locks, and where this process opens it twice, whoever finds that another has written to
    it stops: its end is looked at before every write.
    """

    def __init__(self, file: IO[bytes], path: Path | None) -> None:
        """The log in an open file, as far as its first entry; see ``create`` and ``open``."""
        self._file = file
        self.name = _NAMELESS if path is None else str(path)  # the file, as errors call it
        self._place = None if path is None else Path(self.name).absolute()  # this process may go to another folder
        self._closing = contextlib.ExitStack()
        size = file.seek(0, os.SEEK_END)
        begin = self._bytes_at(0, FILE.size)
        magic = begin[: len(MAGIC)]
        require(magic == MAGIC, "log", f"begin with {MAGIC!r}, as run.dcl does, in {self.name}", magic)
        _, version, length = FILE.unpack(begin) if len(begin) == FILE.size else (magic, VERSION, 0)
        require(1 <= version <= GROUPED, f"version of the log {self.name}", f"be 1 to {GROUPED}", version)
        self.version = version  # the version of the file
        text = file.read(min(length, size))
        try:
            # JSON has no NaN and no Infinity, whatever Python makes of these words.
            header = json.loads(text, parse_constant=lambda word: require(False, "header", "be JSON", word))
        except (ValueError, RecursionError):
            header = None
        start = header.get("start") if isinstance(header, dict) and version > 1 else None
        count = start.get("bytes", 0) if isinstance(start, dict) else 0
        # the bytes of x_0, compressed, where the header's ``start`` says how many there are; else none
        self.start = file.read(min(count, size) if isinstance(count, int) and count >= 0 else 0)
        # the chain value after the last entry, which stands for the header and all entries
        self.chain = file.read(CHAIN)
        if chained(b"", begin + text + self.start) != self.chain:
            raise InputError(
                f"log must be as it was written, got {self.name}, whose header was changed or cut: put a copy of the "
                "file back"
            )
        seed = header.get("run_seed") if isinstance(header, dict) else None
        require_int(f"run_seed in the header of the log {self.name}", seed, 0, 2**64 - 1)
        grouped = bool(header.get("groups"))
        rule = f"be there in version {GROUPED}, and in no other"
        require(grouped == (version == GROUPED), f"groups in the header of the log {self.name}", rule, version)
        # what the run is: plain values, of which ``run_seed`` is needed to read records without seeds
        self.header: dict[str, Any] = header
        self.starts = array("Q", [file.tell()])  # of each entry, and the end of the last one

    @classmethod
    def create(cls, path: Path | None, header: Mapping[str, Any], start: bytes = b"") -> Self:
        """An empty log in the file ``path``, which is replaced; in a nameless temporary file for None.

        Args:
            path: The file.
            header: What the run is; where x_0 is in the file, ``header["start"]["bytes"]`` is its length there.
            start: x_0 as it is to stand there, compressed.

        Raises:
            InputError: If the file cannot be written, or the header lacks a ``run_seed`` of 64 bits.
        """
        require_int("run_seed in the header of a log", header.get("run_seed"), 0, 2**64 - 1)
        begin = beginning(GROUPED if header.get("groups") else VERSION, header, start)
        with contextlib.ExitStack() as opened:
            if path is None:
                file: IO[bytes] = opened.enter_context(tempfile.TemporaryFile(buffering=0))
                file.write(begin)
            else:
                opened.enter_context(cls._hold(path))
                write_atomically(path, begin)
                file = opened.enter_context(path.open("r+b", buffering=0))
            return cls(file, path)._closed_with(opened)

    @classmethod
    def open(cls, path: Path, *, end: int | None = None, write: bool = True) -> Self:
        """The log in a file, every byte of which is checked.

        Args:
            path: The file.
            end: The round from which on entries are cut, whatever they are; None to keep all.
            write: Whether it can be appended to, and what is cut goes from the file too; else the file stays as it is.

        Raises:
            InputError: If it cannot be read, is no log, or was changed; it names the file, and the round where it can.
                A HeldError if another process writes to it.
        """
        with contextlib.ExitStack() as opened:
            try:
                require_plain(path)
                if write:
                    opened.enter_context(cls._hold(path))
                file = opened.enter_context(path.open("r+b" if write else "rb", buffering=0))
            except OSError as error:
                raise InputError(f"log must be a file that can be read, got {path} ({error.strerror})") from None
            log = cls(file, path)
            log._read(end)
            return log._closed_with(opened)

    @staticmethod
    def _hold(path: Path) -> contextlib.AbstractContextManager[None]:
        """Inside, no other process writes to the log; a world without a disk has its own."""
        return held_file("log", path, threads=True)

    def _closed_with(self, opened: contextlib.ExitStack) -> Self:
        """Leave what was opened at ``close``, or with the log itself."""
        self._closing = opened.pop_all()
        weakref.finalize(self, self._closing.close)
        return self

    def _read(self, end: int | None) -> None:
        """Find the entries up to round ``end``, and cut the file after them where it is written to."""
        size = self._file.seek(0, os.SEEK_END)
        while (start := self.starts[-1]) < size and (end is None or len(self) < end):
            head = self._bytes_at(start, ENTRY.size)
            r, length, crc = ENTRY.unpack(head) if len(head) == ENTRY.size else (0, 0, 0)
            sound = len(head) == ENTRY.size and zlib.crc32(head[:8]) == crc
            stop = start + ENTRY.size + length + CHAIN if sound else size
            whole = self._bytes_at(start, stop - start) if stop <= size else b""
            in_place = sound and stop <= size and r == len(self)
            follows = in_place and chained(self.chain, whole[:-CHAIN]) == whole[-CHAIN:]
            mended = self._mended(r, whole) if sound and stop == size and not follows else None
            if mended is not None:
                logger.warning(f"{self.name} ends in a digest of round {r} that was not written whole; it is mended")
                if self._writable:
                    self._file.seek(start)
                    self._file.write(mended)
                else:  # the file stays as it is
                    self._file = io.BytesIO(self._bytes_at(0, start) + mended)
                whole, follows = mended, True
            if follows:
                self.starts.append(stop)
                self.chain = whole[-CHAIN:]
                continue
            # A killed writer leaves a part of the last entry, a machine without power perhaps zeros in its place.
            blank = stop == size and not any(whole[-CHAIN:] if sound else whole)
            if not (len(head) < ENTRY.size or stop > size or blank):
                raise InputError(
                    f"log must be as it was written, got {self.name}, whose entry of round {len(self)} was changed or "
                    "moved: put a copy of the file back"
                )
            logger.warning(
                f"{self.name} ends in {size - start} bytes of round {len(self)}, which was not written whole; they are "
                f"{'cut' if self._writable else 'left out'}"
            )
            break
        if self._writable and self.starts[-1] < size:
            self._file.truncate(self.starts[-1])

    @property
    def _writable(self) -> bool:
        return "+" in getattr(self._file, "mode", "rb")  # one in memory has none

    def _mended(self, r: int, entry: bytes) -> bytes | None:
        """The last entry, where its writer was killed while it put a digest there; None where it was changed otherwise.

        Of the new entry, with the digest, there is a beginning then, and of the old one the rest.
        """
        if r != len(self) or len(entry) < ENTRY.size + _BODY.size + CHAIN:
            return None
        body, chain = entry[:-CHAIN], entry[-CHAIN:]
        sampled, answered, flags, _ = _BODY.unpack_from(body, ENTRY.size)
        unsigned = bytearray(body)
        _BODY.pack_into(unsigned, ENTRY.size, sampled, answered, flags & ~_DIGEST, bytes(16))
        old, new = chained(self.chain, bytes(unsigned)), chained(self.chain, body)
        if chain == old:
            return bytes(unsigned) + old
        return body + new if any(chain == new[:n] + old[n:] for n in range(1, CHAIN)) else None

    def _bytes_at(self, start: int, count: int) -> bytes:
        self._file.seek(start)
        return self._file.read(count)

    def __len__(self) -> int:
        """The number of rounds logged."""
        return len(self.starts) - 1

    def append(self, entry: LogEntry, *, sync: bool = False) -> None:
        """Add the entry of round ``len(self)``.

        Args:
            entry: The entry.
            sync: Whether to return only once it is on the disk, so that not even a loss of power can take it away.

        Raises:
            InputError: If it is of another round, somebody else wrote to the file, or it cannot be written; the log is
                as before then.
        """
        require(entry.record.round == len(self), "round of the appended entry", f"be {len(self)}", entry.record.round)
        self._write(len(self), entry, sync=sync)

    def sign(self, digest: str, *, sync: bool = False) -> None:
        """Have the digest of the model after the last round in its entry; errors as ``append``.

        The entry is as long as before, so a full disk has the room, and there is no moment without it.
        """
        self._write(len(self) - 1, replace(self.entry(len(self) - 1), digest=digest), sync=sync)

    def _write(self, r: int, entry: LogEntry, *, sync: bool) -> None:
        """Have the entry of round r, which is the last one or the next, in the file."""
        body = body_of(entry)
        place = struct.pack("<II", r, len(body))
        content = place + struct.pack("<I", zlib.crc32(place)) + body
        start = self.starts[r]
        try:
            self._require_own_end()
            chain = chained(self._bytes_at(start - CHAIN, CHAIN), content)
            content += chain
            before = self._bytes_at(start, len(content))
            try:
                self._file.seek(start)
                if self._file.write(content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if sync:
                    self.sync()
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.seek(start)
                    self._file.write(before)
                    self._file.truncate(start + len(before))
                raise
        except OSError as error:
            raise InputError(f"cannot write {self.name}: {error.strerror or error}") from error
        self.starts[r + 1 :] = array("Q", [start + len(content)])
        self.chain = chain

    def _require_own_end(self) -> None:
        """InputError where somebody else wrote to the file, put another in its place or took it away."""
        if not self._writable:
            return
        end = self.starts[-1]
        same = self._file.seek(0, os.SEEK_END) == end and self._bytes_at(end - CHAIN, CHAIN) == self.chain
        if not (same and self._has_its_name()):
            raise InputError(
                f"log {self.name} must be as it was left here, after {plural(len(self), 'round')}, as one process "
                "alone writes to it, got one that somebody else has written to"
            )

    def sync(self) -> None:
        """Return once all of it is on the disk, where it has a name there by which anybody could find it again."""
        if self.name != _NAMELESS:
            os.fsync(self._file.fileno())

    def rewrite(self, path: Path, header: Mapping[str, Any]) -> None:
        """Say another thing of the run, and the same of its rounds, in the file, which is replaced whole.

        InputError if the file cannot be written; the log is as before then.
        """
        self._require_own_end()
        pieces = [beginning(self.version, header, self.start)]
        for start, stop in pairwise(self.starts):
            entry = self._bytes_at(start, stop - CHAIN - start)
            pieces.append(entry + chained(pieces[-1][-CHAIN:], entry))
        write_atomically(path, b"".join(pieces))
        self._file.close()
        self._file = self._closing.enter_context(path.open("r+b", buffering=0))
        self.header, self.chain = dict(header), pieces[-1][-CHAIN:]
        self.starts = array("Q", accumulate(map(len, pieces)))

    def _has_its_name(self) -> bool:
        """Whether the file that is written to is still the one of its name; a world without a disk answers itself."""
        if self._place is None:
            return True
        return self._place.exists() and os.path.samestat(os.fstat(self._file.fileno()), self._place.stat())

    def entry(self, r: int) -> LogEntry:
        """The entry of round r; InputError if there is none."""
        require(0 <= r < len(self), "round of an entry", f"be in 0..{len(self) - 1}", r)
        return next(self.entries(r, r + 1))

    def entries(self, first: int = 0, end: int | None = None) -> Iterator[LogEntry]:
        """The entries of rounds first, ..., end − 1 (None: to the last one), read from where they are.

        InputError if there are no such rounds, or a record is not one.
        """
        end = len(self) if end is None else end
        require(0 <= first <= end <= len(self), "rounds of entries", f"be in 0..{len(self)}", (first, end))
        for r in range(first, end):
            start, stop = self.starts[r] + ENTRY.size, self.starts[r + 1] - CHAIN
            try:
                body = self._bytes_at(start, stop - start)
                run_seed = self.header["run_seed"]
                sampled, answered, flags, digest = _BODY.unpack_from(body)
                has_held, has_digest, has_examples = (bool(flags & flag) for flag in (_HELD, _DIGEST, _EXAMPLES))
                counts = sampled, answered, sampled * has_held, answered * has_examples
                numbers = iter(struct.unpack_from(f"<{sum(counts)}I", body, _BODY.size))
                records = read(tuple, body[_BODY.size + 4 * sum(counts) :], run_seed)
                require(len(records) == 1, "records of the entry", "be 1", len(records))
                asked, came, held, examples = (tuple(islice(numbers, count)) for count in counts)
                found = LogEntry(
                    records[0],
                    asked,
                    came,
                    held if has_held else None,
                    digest.hex() if has_digest else None,
                    examples if has_examples else None,
                )
                require(found.record.round == r, "record", f"be of round {r}", found.record.round)
            except (struct.error, ValueError) as error:
                why = "it ends too early" if isinstance(error, struct.error) else error
                raise InputError(f"entry of round {r} in {self.name} must be one that can be read: {why}") from None
            yield found

    def records(self, first: int, end: int | None = None) -> tuple[RoundRecord, ...]:
        """The records of rounds first, ..., end − 1 (None: to the last one); errors as ``entries``."""
        return tuple(entry.record for entry in self.entries(first, end))

    def content(self) -> bytes:
        """The file up to its last entry."""
        return self._bytes_at(0, self.starts[-1])

    def close(self) -> None:
        """Close the file, and let others write to it."""
        self._closing.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def beginning(version: int, header: Mapping[str, Any], start: bytes) -> bytes:
    """All that stands before the first entry, the chain value last."""
    text = json.dumps(dict(header), sort_keys=True).encode()
    whole = FILE.pack(MAGIC, version, len(text)) + text + start
    return whole + chained(b"", whole)


class ArchivedHistory(History):
    """All records from round 0 on: the newest in memory, the older ones in a log, which whoever appends here writes."""

    def __init__(self, log: RunLog, window: int = 1000, *, end: int | None = None) -> None:
        """The history of the rounds of a log before ``end``, None for all; ``window`` records are kept in memory.

        There are more of them where the log lacks them yet. InputError if its newest records cannot be read.
        """
        self.log, self.window = log, window
        end = len(log) if end is None else end
        self._first = max(end - window, 0)
        super().__init__()
        self._records = list(log.records(self._first, end))

    @property
    def end(self) -> int:
        return self._first + len(self._records)

    def __len__(self) -> int:
        return self.end

    def append(self, record: RoundRecord) -> None:
        """See ``History.append``; the oldest record in memory goes if the log has it."""
        super().append(record)
        if len(self._records) > self.window and self._first < len(self.log):
            del self._records[0]
            self._first += 1

    def since(self, r: int) -> tuple[RoundRecord, ...]:
        """See ``History.since``: none is ever gone."""
        require(0 <= r <= self.end, "first round wanted", f"be in 0..{self.end}", r)
        older = self.log.records(r, self._first) if r < self._first else ()
        return (*older, *self._records[max(r - self._first, 0) :])

    def prune(self, r: int) -> None:
        """Forget nothing: what nobody needs today is what a client that lost its model needs tomorrow."""
