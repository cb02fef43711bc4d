"""The server's end of the stream: it carries frames between a coordinator and clients who connect.

A client opens one bidirectional stream, says which client it is, and reads the *offer* (what the run is). Then it says
hello, and from there on answers every frame by exactly one. Frames are bytes; a stream is bound to one client, by the
certificate of the connection or else by a key of the client's own, with which every frame is sealed beside what is
random of the connection: frames of another client, another connection or another place in it are refused.

    exchange (the caller's thread)  ⇄  queue, call_soon_threadsafe  ⇄  grpc.aio (one thread for all clients)

Nothing grows: a client has at most ``MOST_UNANSWERED`` frames to answer, may send no other, and is cut where it does
not read; it may come back and say hello.

A client that is away is waited for once, until the exchange's deadline. From then on nobody waits for it, and no frame
is made for it, until it comes back and says hello.
"""

from __future__ import annotations

import asyncio
import collections
import json
import logging
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import grpc

from decomfl_lab.carriers.stream.certificates import Identity, client_name
from decomfl_lab.carriers.stream.connection import HALF_NONCE, OPTIONS, SERVICE, Link, Seal, require_address
from decomfl_lab.errors import InputError, require, shown
from decomfl_lab.federations.carrier import Take
from decomfl_lab.interrupts import idle
from decomfl_lab.protocol.session import Farewell, Frames

logger = logging.getLogger(__name__)

HELLO_SECONDS = 30.0
"""How long a client may take from its connection to its hello."""
WRITE_SECONDS, WRITE_BYTES = 30.0, 1e5
"""Seconds that a client may take for a frame, and the bytes that allow it one second more; else it is cut."""
MOST_UNHEARD = 4
"""A client that opens more connections without a hello loses the oldest of these."""
MOST_UNANSWERED = 8
"""A client that lets more frames wait for an answer is cut."""
GRACE_SECONDS = 2.0
"""How long the end of a connection may take when the server stops."""


class StreamServer:
    """A carrier of frames (``federations.carrier.Carrier``) whose clients connect by gRPC."""

    def __init__(
        self,
        bind: str,
        offer: Mapping[str, Any],
        M: int,
        *,
        largest: int,
        identity: Identity | None = None,
        keys: Callable[[int], bytes] | None = None,
    ) -> None:
        """A server that listens.

        Args:
            bind: HOST:PORT; port 0 for a free one.
            offer: What a client is told of the run before it says hello, as JSON has it.
            M: Clients 0..M-1 may connect, each once.
            largest: The most bytes of a frame that a client sends.
            identity: The server's certificate; None for a server on loopback.
            keys: {client: key} where there are no certificates.

        Raises:
            InputError: If the address is not one to listen on, is taken, or is not of loopback without certificates.
        """
        require_address("bind", bind, secured=identity is not None)
        self.connected: dict[int, _Connection] = {}  # the clients that have said hello and are there
        self.waiting: set[int] = set()  # the clients that the exchange under way still waits for
        self.cut = 0  # how many connections were refused or cut
        self._missed: set[int] = set()  # who was away when an exchange had waited for as long as it may
        self._offer, self._M, self._largest, self._keys = json.dumps(offer).encode(), M, largest, keys
        self._arrived: _Arrivals = queue.SimpleQueue()
        started: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen(bind, identity, started)), daemon=True)
        self._thread.start()
        self.address = f"{bind.rpartition(':')[0]}:{started.result()}"  # HOST:PORT that it listens on

    def exchange(self, frames: Frames, take: Take, deadline: float | None = None) -> None:
        """Send each frame to its client, and hand what arrives to ``take`` until all are done or the time is over.

        Args:
            frames: {client: frame}; a client that is away gets nothing, and is waited for if it was here of late. If
                all are away, the first of them to come is.
            take: See ``Coordinator.take``: of a client and its answer (loss: NaN) it makes a further frame to it,
                nothing (empty: the answer is still to come) or None (done).
            deadline: Seconds; None for no end.
        """
        end = None if deadline is None else time.monotonic() + deadline
        self.waiting = set(frames)
        while not self._arrived.empty():  # who has come since says hello before anybody is asked
            self._hear(*self._arrived.get(), frames, take)
        for i in frames:
            if i in self.connected and i in self.waiting and i not in frames.sent:
                self._loop.call_soon_threadsafe(self.connected[i].send, frames[i])
        hoped_for = {i for i in self.waiting if i in self.connected or i not in self._missed}
        for_anybody = not hoped_for
        self.waiting = hoped_for or self.waiting
        while self.waiting and not frames.enough():
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                # What has arrived; else what arrives in time. While somebody is away, signals may end the wait.
                ready = not self._arrived.empty() or self.waiting <= self.connected.keys()
                with nullcontext() if ready else idle():
                    connection, frame = self._arrived.get(timeout=left)
            except queue.Empty:
                self._missed = set(range(self._M)) - self.connected.keys()
                break
            self._hear(connection, frame, frames, take)
            if for_anybody and connection.i in frames and connection.i in self.connected:
                for_anybody, self.waiting = False, self.waiting & self.connected.keys()
        self.waiting = set()

    def _hear(self, connection: _Connection, frame: bytes | None, frames: Frames, take: Take) -> None:
        """Take in what came over a connection, and send what is to be said to it."""
        i = connection.i
        if frame is None:
            if self.connected.get(i) is connection:
                del self.connected[i]
                logger.info("client %d has gone (%d of %d are here)", i, len(self.connected), self._M)
            return
        more = take(i, frame, float("nan"))
        if not connection.greeted and not isinstance(more, Farewell):  # this was its hello
            connection.greeted, self.connected[i] = True, connection
            self._missed.discard(i)
            logger.info("client %d is here (%d of %d)", i, len(self.connected), self._M)
        if more:
            self._loop.call_soon_threadsafe(connection.send, more)
        if isinstance(more, Farewell) or more is None:
            self.waiting.discard(i)
        elif more:
            self.waiting |= {i} & frames.keys()

    def close(self, *, over: bool = False) -> None:
        """End every connection; clients are told that the run is over, or else that the server may come back."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set_result, over)
            self._thread.join()

    # What follows runs in the thread of grpc.aio.

    async def _listen(self, bind: str, identity: Identity | None, started: Future[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[bool] = self._loop.create_future()
        self._open: dict[int, _Connection] = {}
        self._unheard: dict[int, list[asyncio.Timeout]] = collections.defaultdict(list)
        more = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", self._largest + 1024))
        server = grpc.aio.server(options=[*OPTIONS, *more], maximum_concurrent_rpcs=(MOST_UNHEARD + 2) * self._M + 64)
        join = grpc.stream_stream_rpc_method_handler(self._join)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Join": join})])
        try:
            if identity is None:
                port = server.add_insecure_port(bind)
            else:
                pair = [(identity.key, identity.certificate)]
                port = server.add_secure_port(bind, grpc.ssl_server_credentials(pair, identity.authority, True))
            await server.start()
        except RuntimeError:
            started.set_exception(InputError(f"bind must be an address of this machine that is free, got {bind}"))
            return
        started.set_result(port)
        over = await self._end
        for connection in self._open.values():
            connection.finish(None if over else _Cut(grpc.StatusCode.UNAVAILABLE, "the server was stopped"))
        await server.stop(GRACE_SECONDS)

    async def _join(self, _: Any, context: Any) -> None:
        """One client's stream, from its beginning to its end; whatever is wrong with it ends it alone."""
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(HELLO_SECONDS) as limit:
                connection, hello = await self._opened(context, limit)
            if hello is grpc.aio.EOF:
                logger.debug("a connection from %s has gone before its hello", context.peer())
                return
            hello = connection.link.unpack(hello)
            if earlier := self._open.get(connection.i):
                earlier.finish(_Cut(grpc.StatusCode.ABORTED, f"client {connection.i} connected anew"))
                self._arrived.put((earlier, None))  # the new one may yet be refused, and then nobody is there
            self._open[connection.i] = connection
            self._arrived.put((connection, hello))
            await connection.carry(context, self._arrived)
        except TimeoutError:
            await self._cut(context, connection, _Cut(grpc.StatusCode.DEADLINE_EXCEEDED, "a client must say hello"))
        except InputError as error:
            await self._cut(context, connection, _Cut(grpc.StatusCode.PERMISSION_DENIED, str(error)))
        except _Cut as cut:
            await self._cut(context, connection, cut)
        finally:
            if connection is not None and self._open.get(connection.i) is connection:
                del self._open[connection.i]
                self._arrived.put((connection, None))

    async def _cut(self, context: Any, connection: _Connection | None, cut: _Cut) -> None:
        if cut.code is not grpc.StatusCode.UNAVAILABLE:
            self.cut += 1
            who = f"a connection from {context.peer()}" if connection is None else f"client {connection.i}"
            logger.warning("%s is cut: %s", who, cut)
        await context.abort(cut.code, str(cut)[:300])

    async def _opened(self, context: Any, limit: asyncio.Timeout) -> tuple[_Connection, Any]:
        """The connection of a client that has read the offer, and what its hello arrived as."""
        metadata = dict(context.invocation_metadata() or ())
        named = re.fullmatch(r"client-(0|[1-9]\d{0,8})", str(metadata.get("client", "")), re.ASCII)
        if named is None or int(named[1]) >= self._M:
            raise InputError(f"client must be client-0..client-{self._M - 1}, got {shown(metadata.get('client'))}")
        i, nonce = int(named[1]), metadata.get("nonce-bin", b"")
        require(isinstance(nonce, bytes) and len(nonce) == HALF_NONCE, "nonce", f"have {HALF_NONCE} bytes", nonce)
        own_half = secrets.token_bytes(HALF_NONCE)
        seal = None if self._keys is None else Seal(self._keys(i), own_half + nonce, server=True)
        if seal is None:
            (name,) = context.auth_context().get("x509_common_name", [b""])
            whose = "be the one that its certificate names"
            require(name.decode(errors="replace") == client_name(i), "client", whose, client_name(i))
        connection = _Connection(i, Link(seal, self._largest), asyncio.get_running_loop().create_future())
        unheard = self._unheard[i]
        if len(unheard) == MOST_UNHEARD:  # only the newest can be that of a client that was started again
            unheard.pop(0).reschedule(asyncio.get_running_loop().time())
        unheard.append(limit)
        try:
            await context.write(own_half + connection.link.pack(self._offer))
            hello = await context.read()
        finally:
            if limit in unheard:
                unheard.remove(limit)
        return connection, hello


class _Cut(Exception):  # noqa: N818
    """A connection ends, and why."""

    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code = code


class _Connection:
    """A client's stream; all but ``i`` and ``greeted`` belongs to the thread of grpc.aio."""

    def __init__(self, i: int, link: Link, fate: asyncio.Future[_Cut | None]) -> None:
        self.i, self.greeted = i, False
        self.link, self._fate = link, fate
        self._outbox: asyncio.Queue[bytes | _Cut] = asyncio.Queue()
        self._unanswered = 0

    def send(self, frame: bytes) -> None:
        """Send a frame, and cut the connection after a farewell; whoever lets too many wait for an answer is cut."""
        if self._unanswered == MOST_UNANSWERED:
            words = f"client {self.i} must answer, got {MOST_UNANSWERED} frames without an answer"
            self.finish(_Cut(grpc.StatusCode.RESOURCE_EXHAUSTED, words))
        else:
            self._unanswered += 1
            self._outbox.put_nowait(frame)
            if isinstance(frame, Farewell):
                self._outbox.put_nowait(_Cut(grpc.StatusCode.PERMISSION_DENIED, frame.reason))

    def finish(self, cut: _Cut | None) -> None:
        """End it, because the run is over, or else by force."""
        if not self._fate.done():
            self._fate.set_result(cut)  # no exception: asyncio complains of one that nobody waits for any longer

    async def carry(self, context: Any, arrived: _Arrivals) -> None:
        """Send and read until the end."""
        tasks = {asyncio.ensure_future(self._write(context)), asyncio.ensure_future(self._read(context, arrived))}
        try:
            ends: set[asyncio.Future[Any]] = {*tasks, self._fate}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                if (cut := future.result()) is not None:
                    raise cut
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _write(self, context: Any) -> None:
        """Send the frames of the outbox as they come; _Cut where the client does not read them in time."""
        while True:
            frame = await self._outbox.get()
            if isinstance(frame, _Cut):
                raise frame
            goes = self.link.pack(frame)
            try:
                async with asyncio.timeout(WRITE_SECONDS + len(goes) / WRITE_BYTES):
                    await context.write(goes)
            except TimeoutError:
                raise _Cut(grpc.StatusCode.RESOURCE_EXHAUSTED, f"client {self.i} must read what it is sent") from None

    async def _read(self, context: Any, arrived: _Arrivals) -> None:
        while (came := await context.read()) is not grpc.aio.EOF:
            frame = self.link.unpack(came)
            require(self._unanswered > 0, f"frames of client {self.i}", "answer one each", "one unasked")
            self._unanswered -= 1
            arrived.put((self, frame))


_Arrivals = queue.SimpleQueue[tuple[_Connection, bytes | None]]
"""What came from whom; None where the connection has ended."""
