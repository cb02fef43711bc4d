"""A client's end of the stream: connect, say hello, answer frames, come back."""

import json
import logging
import queue
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from decomfl_lab.carriers.stream.certificates import Identity, client_name
from decomfl_lab.carriers.stream.connection import HALF_NONCE, METHOD, OFFER_BYTES, OPTIONS, Link, Seal, require_address
from decomfl_lab.errors import InputError, quoted, require, shown

logger = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 0.2, 15.0
"""Seconds before the second attempt to connect, and the most between two; each wait is twice the one before."""
FINAL = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED}
"""Answers of a server after which nothing is gained by coming back."""
UNTRUSTED = {
    "certificate has expired": "be valid now",
    "certificate is not yet valid": "be valid now",
    "unable to get local issuer": "be of the authority in ca.crt",
    "certificate signature failure": "be of the authority in ca.crt",
    "self signed certificate": "be of the authority in ca.crt",
    "self-signed certificate": "be of the authority in ca.crt",
    "unsupported certificate purpose": "be a server's",
    "is not in peer certificate": "have the name in the address",
    "Hostname Verification Check failed": "have the name in the address",
    "SSL_ERROR_SSL": "be one that ca.crt vouches for",
}
"""Words of the library where the other end is not the one that is to be trusted, and the rule that its certificate
breaks."""


class StreamClient:
    """One client of a run, as its connections to the server see it."""

    def __init__(
        self, address: str, i: int, *, identity: Identity | None = None, key: bytes | None = None, patience: float = 60
    ) -> None:
        """A client that is not connected yet.

        Args:
            address: HOST:PORT of the server.
            i: The client's number.
            identity: Its certificate; None on loopback.
            key: Its key where there are no certificates.
            patience: Seconds without a server after which it gives up.

        Raises:
            InputError: If the address is none, or is not of loopback without certificates.
        """
        require_address("address", address, secured=identity is not None)
        self.address, self.i, self.patience = address, i, patience
        self._identity, self._key = identity, key
        self._random = random.Random()  # when it comes back is all that depends on it

    def offer(self) -> dict[str, Any]:
        """What the server says of its run; InputError as ``serve``."""
        of_run: dict[str, Any] = self._persist(lambda offer, _: offer, OFFER_BYTES)
        return of_run

    def serve(
        self, run: str, hello: Callable[[], bytes], answer: Callable[[bytes], bytes], *, largest: int = 1 << 22
    ) -> None:
        """Answer frames, over as many connections as it takes, until the server says that the run is over.

        ``run`` is the run's identity, as ``offer`` has it, ``hello`` what the client says first on a connection,
        ``largest`` the most bytes of a frame that the server sends. InputError if the server refuses the client, offers
        another run, or cannot be reached for ``patience`` seconds.
        """

        def work(offer: dict[str, Any], connection: Connection) -> None:
            require(offer.get("run") == run, f"run of the server at {self.address}", f"be {run}", offer.get("run"))
            connection.send(hello())
            logger.info("connected to %s as client %d", self.address, self.i)
            for frame in connection:
                connection.send(answer(frame))

        self._persist(work, max(largest, OFFER_BYTES))

    def _persist(self, work: "Callable[[dict[str, Any], Connection], Any]", largest: int) -> Any:
        """What the work on a connection gives; it is done again on a new one where that breaks."""
        last_reached, wait = time.monotonic(), FIRST_WAIT
        while True:
            try:
                with self.connected(largest) as (offer, connection):
                    try:
                        return work(offer, connection)
                    finally:
                        last_reached, wait = time.monotonic(), FIRST_WAIT
            except grpc.RpcError as error:
                code, words = error.code(), quoted(str(error.details()))
                if code in FINAL:
                    raise InputError(f"server at {self.address} must take client {self.i}, got {words}") from None
                rules = [rule for cause, rule in UNTRUSTED.items() if cause in words]
                if rules and code is grpc.StatusCode.UNAVAILABLE:
                    whose = f"certificate of the server at {self.address}"
                    raise InputError(f"{whose} must {rules[0]}, got {words}") from None
                left = last_reached + self.patience - time.monotonic()
                if left <= 0:
                    if self._identity is not None:
                        self._identity.check(client_name(self.i))  # it may have expired since
                    rule = f"be reached within {self.patience:g} s"
                    raise InputError(f"server at {self.address} must {rule}, got {code.name}: {words}") from None
                level = logging.INFO if wait == FIRST_WAIT else logging.DEBUG  # a line an outage
                logger.log(level, "no connection to %s (%s); trying for %.0f s", self.address, code.name, left)
                logger.debug("%s", words)
                time.sleep(min(left, wait * self._random.uniform(0.5, 1.0)))
                wait = min(2 * wait, LONGEST_WAIT)

    @contextmanager
    def connected(self, largest: int) -> "Iterator[tuple[dict[str, Any], Connection]]":
        """A new connection and what the server offers on it."""
        more = (
            ("grpc.max_receive_message_length", largest + largest // 1000 + 1024),
            ("grpc.use_local_subchannel_pool", 1),
        )
        if self._identity is None:
            channel = grpc.insecure_channel(self.address, [*OPTIONS, *more])
        else:
            identity = self._identity
            proof = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
            channel = grpc.secure_channel(self.address, proof, [*OPTIONS, *more])
        nonce = secrets.token_bytes(HALF_NONCE)
        outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with channel:
            call = channel.stream_stream(METHOD)(
                iter(outbox.get, None), metadata=(("client", client_name(self.i)), ("nonce-bin", nonce))
            )
            try:
                first = next(call, b"")
                both = first[:HALF_NONCE] + nonce
                seal = None if self._key is None else Seal(self._key, both, server=False)
                connection = Connection(call, outbox, Link(seal, largest))
                try:
                    text = connection.link.unpack(first[HALF_NONCE:])
                except InputError as error:
                    if self._key is None:
                        raise
                    rule = f"be the one that the server at {self.address} has for client {self.i}"
                    raise InputError(f"key must {rule}, got another: {error}") from None
                try:
                    offer = json.loads(text)
                except (ValueError, RecursionError):
                    offer = None
                if not isinstance(offer, dict):
                    raise InputError(f"offer of the server must be a JSON object, got {shown(text)}")
                yield offer, connection
            finally:
                outbox.put(None)
                call.cancel()


class Connection:
    """A connection of a client: frames that come, until the run is over, and frames that go."""

    def __init__(self, call: Iterator[bytes], outbox: queue.SimpleQueue[bytes | None], link: Link) -> None:
        self._call, self.outbox, self.link = call, outbox, link  # what is put into the outbox travels as it is

    def send(self, frame: bytes) -> None:
        """Send a frame."""
        self.outbox.put(self.link.pack(frame))

    def __iter__(self) -> Iterator[bytes]:
        return map(self.link.unpack, self._call)
