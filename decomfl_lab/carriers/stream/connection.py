"""What both ends of the stream agree on: names, limits, addresses, and how frames are bound to a connection.

Where no channel is authenticated (mutual TLS), *seals* do that: keyed tags that bind frames to a run, a client, a
connection and their place in it.

    tag = BLAKE2b-64(key k_i, nonce ‖ direction ‖ n ‖ frame),   k_i = BLAKE2b-256(key of the run, run ‖ i)

n counts the frames of a direction since the connection was made, and the nonce is the connection's, so that a frame of
another client, run, connection or moment has another tag. Frames are not encrypted.
"""

import hashlib
import hmac
import ipaddress
import struct
import zlib

from decomfl_lab.errors import InputError, require

SERVICE = "decomfl.Federation"
METHOD = f"/{SERVICE}/Join"
OFFER_BYTES = 1 << 20
"""The most bytes of what a server says of its run."""
KEY_BYTES = 32
NONCE_BYTES = 16
TAG_BYTES = 8
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


def client_key(key: bytes, run: bytes, i: int) -> bytes:
    """k_i, 32 bytes, which says nothing of another client's; ``key`` is the run's, known to the server alone."""
    return hashlib.blake2b(run + struct.pack("<I", i), key=key, digest_size=KEY_BYTES).digest()


class Seal:
    """One end of a connection: it closes what it sends and opens what it gets, each in order."""

    def __init__(self, key: bytes, nonce: bytes, *, server: bool) -> None:
        """An end, of the server or not: of k_i (``client_key``) and 16 bytes that the server drew for it."""
        require(len(nonce) == NONCE_BYTES, "nonce of the connection", f"have {NONCE_BYTES} bytes", len(nonce))
        self._key, self._nonce, self._server = key, nonce, server
        self._closed = self._opened = 0

    def close(self, frame: bytes) -> bytes:
        """The frame with its tag in front."""
        self._closed += 1
        return self._tag(frame, self._closed, down=self._server) + frame

    def open(self, sealed: bytes) -> bytes:
        """The frame of the other end; InputError, and nothing has come, if its tag is not that of the next frame."""
        frame = sealed[TAG_BYTES:]
        wanted = self._tag(frame, self._opened + 1, down=not self._server)
        whole = hmac.compare_digest(sealed[:TAG_BYTES], wanted)
        require(whole, "tag of the frame", "be that of this connection's next frame", sealed[:TAG_BYTES].hex())
        self._opened += 1
        return frame

    def _tag(self, frame: bytes, n: int, *, down: bool) -> bytes:
        h = hashlib.blake2b(self._nonce + struct.pack("<?Q", down, n), key=self._key, digest_size=TAG_BYTES)
        h.update(frame)
        return h.digest()


class Link:
    """One end of a connection: it makes of frames what travels, in order, and the other way round.

    What travels is deflated with what went before as context, which takes the repeated heads of messages away (raw
    deflate without the end mark of each flush, as RFC 7692 has it for WebSockets), and then sealed.
    """

    def __init__(self, seal: Seal | None, largest: int) -> None:
        """An end, to which frames of at most ``largest`` bytes come.

        The seal binds frames to the client and to this connection; None where certificates do.
        """
        self._seal, self._largest = seal, largest
        # Fastest level, no header, a window of 2⁹ bytes and little memory: 10 kB of state a connection.
        self._deflate = zlib.compressobj(1, zlib.DEFLATED, wbits=-9, memLevel=4)
        self._inflate = zlib.decompressobj(wbits=-9)

    def pack(self, frame: bytes) -> bytes:
        """What travels of a frame."""
        if len(frame) <= MOST_DEFLATED:
            packed = (self._deflate.compress(frame) + self._deflate.flush(zlib.Z_SYNC_FLUSH))[: -len(FLUSHED)]
        else:  # a model, which is stored as it is; a full flush forgets the context, for nothing refers across it
            pieces = [frame[start : start + STORED] for start in range(0, len(frame), STORED)]
            stored = [struct.pack("<BHH", 0, len(piece), len(piece) ^ STORED) + piece for piece in pieces]
            packed = b"".join([self._deflate.flush(zlib.Z_FULL_FLUSH), *stored, b"\0"])
        return packed if self._seal is None else self._seal.close(packed)

    def unpack(self, arrived: bytes) -> bytes:
        """The frame of what arrived; InputError if it is not the other end's next, or is too large."""
        packed = arrived if self._seal is None else self._seal.open(arrived)
        try:
            frame = self._inflate.decompress(packed + FLUSHED, self._largest + 1)
        except zlib.error as error:
            raise InputError(f"frame must be deflated as the other end does it, got {error}") from None
        require(not self._inflate.eof, "frame", "be deflated without an end, after which nothing is read", "an end")
        require(len(frame) <= self._largest, "frame", f"have at most {self._largest} bytes", "more")
        return frame
