"""A log that somebody has written anew, so that its chain is true, whatever it says."""

import json
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from decomfl_lab.protocol import log as logs
from decomfl_lab.protocol.log import LogEntry, RunLog
from decomfl_lab.runs.folder import LOG_FILE


def rewritten(
    folder: Path,
    path: Path,
    change: Callable[[LogEntry], LogEntry] = lambda entry: entry,
    *,
    version: int = logs.VERSION,
    **header: Any,
) -> Path:
    """The log of a folder with other entries, or with other values in its header, of which None drops a key."""
    with RunLog.open(folder / LOG_FILE, write=False) as log:
        said = {key: value for key, value in (log.header | header).items() if value is not None}
        bodies = [logs.body_of(change(entry)) for entry in log.entries()]
        path.write_bytes(chained(json.dumps(said, sort_keys=True).encode(), bodies, log.start, version))
    return path


RECORD = b"DC\x02\x04"
"""How a RECORDS message begins."""


def parted(content: bytes) -> tuple[bytes, list[bytes]]:
    """The text of a log's header, and the bodies of its entries."""
    length = struct.unpack_from("<I", content, 12)[0]
    at, bodies = 16 + length + logs.CHAIN, []
    while at < len(content):
        first = at + logs.ENTRY.size
        end = first + struct.unpack_from("<I", content, at + 4)[0]
        bodies.append(content[first:end])
        at = end + logs.CHAIN
    return content[16 : 16 + length], bodies


def chained(header: bytes, bodies: Iterable[bytes], start: bytes = b"", version: int = logs.VERSION) -> bytes:
    """The log of a header's text, x_0 where it is packed behind it, and the bodies of rounds 0, 1, ..."""
    first = logs.FILE.pack(logs.MAGIC, version, len(header)) + header + start
    pieces = [first, logs.chained(b"", first)]
    for r, body in enumerate(bodies):
        place = struct.pack("<II", r, len(body))
        entry = place + struct.pack("<I", zlib.crc32(place)) + body
        pieces += [entry, logs.chained(pieces[-1], entry)]
    return b"".join(pieces)


def with_record(body: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """An entry's body with another record, under a true length and checksum."""
    at = body.rindex(RECORD)
    record = change(body[at + 12 :])
    return body[:at] + RECORD + struct.pack("<II", len(record), zlib.crc32(record)) + record
