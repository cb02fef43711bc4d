"""Seals: keyed tags that bind frames to a run, a client, a connection and their place in it.

    tag = BLAKE2b-64(key k_i, nonce ‖ direction ‖ n ‖ frame),   k_i = BLAKE2b-256(key of the run, run ‖ i)

n counts the frames of a direction since the connection was made, and the nonce is the connection's, so that a frame of
another client, run, connection or moment has another tag. Frames are not encrypted. Where a channel is authenticated
already (mutual TLS) no seal is needed.
"""

import hashlib
import hmac
import struct

from decomfl_lab.errors import require

KEY_BYTES = 32
NONCE_BYTES = 16
TAG_BYTES = 8


def client_key(key: bytes, run: bytes, i: int) -> bytes:
    """k_i, 32 bytes, which says nothing of another client's; ``key`` is the run's, known to the server alone."""
    return hashlib.blake2b(run + struct.pack("<I", i), key=key, digest_size=KEY_BYTES).digest()


class Seal:
    """One end of a connection: it closes what it sends and opens what it gets, each in order."""

    def __init__(self, key: bytes, nonce: bytes, *, server: bool) -> None:
        """An end.

        Args:
            key: k_i, see ``client_key``.
            nonce: The connection's, 16 bytes that the server drew for it.
            server: Whether this is the server's end.
        """
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
