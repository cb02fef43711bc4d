"""What both ends of the stream agree on: names, limits, addresses, and how frames are bound to a connection."""

import ipaddress
import struct
import zlib

from decomfl_lab.errors import InputError, require
from decomfl_lab.protocol.seals import NONCE_BYTES, Seal

SERVICE = "decomfl.Federation"
METHOD = f"/{SERVICE}/Join"
OFFER_BYTES = 1 << 20
"""The most bytes of what a server says of its run."""
HALF_NONCE = NONCE_BYTES // 2
"""Random bytes that each end of a connection brings into its nonce, so that neither can be made to repeat one."""
MOST_DEFLATED, STORED, FLUSHED = 1 << 16, 0xFFFF, b"\0\0\xff\xff"
OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),  # who vanished without a word is noticed in 40 seconds
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.bdp_probe", 0),  # pings that measure a bandwidth nobody needs
)


def require_address(argument: str, address: str, *, secured: bool) -> None:
    """InputError unless an address is HOST:PORT, and of this machine alone where there are no certificates."""
    host, _, port = address.rpartition(":")
    right = bool(host) and port.isascii() and port.isdigit() and int(port) < 1 << 16
    require(right, argument, "be HOST:PORT, as 127.0.0.1:8470", address)
    try:
        loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        loopback = host == "localhost"
    rule = "be of loopback (127.0.0.1) without certificates (--certificates DIR)"
    require(secured or loopback, argument, rule, address)


class Link:
    """One end of a connection: it makes of frames what travels, in order, and the other way round.

    What travels is deflated with what went before as context, which takes the repeated heads of messages away (raw
    deflate without the end mark of each flush, as RFC 7692 has it for WebSockets), and then sealed.
    """

    def __init__(self, seal: Seal | None, largest: int) -> None:
        """An end.

        Args:
            seal: It binds frames to the client and to this connection; None where certificates do.
            largest: The most bytes of a frame that comes.
        """
        self._seal, self._largest = seal, largest
        self._deflate = zlib.compressobj(1, zlib.DEFLATED, -9, 4)  # 10 kB of state
        self._inflate = zlib.decompressobj(-9)

    def close(self, frame: bytes) -> bytes:
        """What travels of a frame."""
        if len(frame) <= MOST_DEFLATED:
            packed = (self._deflate.compress(frame) + self._deflate.flush(zlib.Z_SYNC_FLUSH))[: -len(FLUSHED)]
        else:  # a model, which is stored as it is; a full flush forgets the context, for nothing refers across it
            pieces = [frame[at : at + STORED] for at in range(0, len(frame), STORED)]
            stored = [struct.pack("<BHH", 0, len(piece), len(piece) ^ STORED) + piece for piece in pieces]
            packed = b"".join([self._deflate.flush(zlib.Z_FULL_FLUSH), *stored, b"\0"])
        return packed if self._seal is None else self._seal.close(packed)

    def open(self, arrived: bytes) -> bytes:
        """The frame of what arrived; InputError if it is not the other end's next, or is too large."""
        packed = arrived if self._seal is None else self._seal.open(arrived)
        try:
            frame = self._inflate.decompress(packed + FLUSHED, self._largest + 1)
        except zlib.error as error:
            raise InputError(f"frame must be deflated as the other end does it, got {error}") from None
        require(not self._inflate.eof, "frame", "be deflated without an end, after which nothing is read", "an end")
        require(len(frame) <= self._largest, "frame", f"have at most {self._largest} bytes", "more")
        return frame
