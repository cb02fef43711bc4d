"""``decomfl bench stream``: bytes of a client-round as they are on the wire, and one server against many clients.

Clients are stubs in other processes, which answer without computing; the server is a process of its own, without a
model or with one that follows every record, as that of ``decomfl serve``.

Bytes are those that the loopback interface of a network namespace of its own counts (/proc/net/dev): every segment
with its IP and TCP headers, acknowledgements, HTTP/2 and TLS included, and no foreign ones. Memory is resident memory
(VmRSS, /proc/self/status), in the middle and at the end of the rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import resource
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mould import BenchmarkRow, benchmark, column, numbers
from benchmarks.ways.clock import apart
from decomfl_lab.children import environment
from decomfl_lab.errors import InputError, require, require_int, require_possible
from decomfl_lab.options import option

__all__ = ["LoadRow", "StreamOptions", "WireRow", "load_rows", "loopback_counts", "stream", "wire_rows"]

K, P = 1, 20
RUN = bytes(16)
WARM, MOST_SECONDS = 5, 60.0
"""Rounds before what is measured, in which clients connect, and the seconds that a round may take."""
WIRED, PAUSES = 4, (0.0, 0.1)
"""Clients whose bytes are counted, and the seconds that they take for an answer."""
MODULE = "benchmarks.stream"
NAMESPACE = ("unshare", "--net", "--map-root-user")
UP, RUNNING, SET_FLAGS = 0x1, 0x40, 0x8914  # of Linux' network interfaces


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """The options of ``decomfl bench stream``."""

    clients: int = option(1000, "Number of clients of the server that is put under load.")
    d: str = option("1e4,1e7", "Model sizes d of that server's run.")
    rounds: int = option(20, "Rounds of the load; bytes are of 100 rounds.")


@dataclass(frozen=True, kw_only=True)
class WireRow(BenchmarkRow):
    """What a client and the server send each other in a round."""

    title = "A client-round of the stream, both ways"
    secured: bool  # whether by TLS, both sides with certificates; otherwise frames are sealed
    security: str = column("security")
    pause: float = column("answer after", "{pause:g} s", "After 40 ms a client acknowledges the plan by itself.")
    scalars: int = column("scalars")
    messages: float = column("messages", "{messages:.0f} B", "The protocol's messages alone.")
    bytes: float | None = column(
        "on the wire", "{bytes:.0f} B", "All segments with IP, TCP and TLS (Linux, unshare --net)."
    )
    segments: float | None = column("segments", ".2f")


@dataclass(frozen=True, kw_only=True)
class LoadRow(BenchmarkRow):
    """One server against many clients, all of which take part in every round."""

    title = "One server on loopback, {rounds} rounds"
    server: str = column("server")
    clients: int = column("clients", ",")
    d: int = column("d", ",")
    model: bool  # whether the server has the model, to evaluate it
    rounds: int
    rounds_per_second: float = column("rounds a second", ".2f")
    half: int | None  # resident bytes of the server in the middle of the rounds
    end: int | None
    half_mb: float | None = column("MB half way", ".1f", "Memory of the whole process, libraries included.")
    end_mb: float | None = column("MB at the end", ".1f")


@benchmark()
def stream(options: StreamOptions) -> Iterator[WireRow | LoadRow]:
    """Measure bytes on the wire, and the load of a server.

    Bytes are those of a client-round; the server has many clients on loopback, K·P = 20.

    Bytes are those of every segment on a loopback interface of its own, the headers of IP and TCP, acknowledgements
    and TLS included. Under load all clients take part in every round and answer without computing; the server has no
    model, as the algorithm has it, or one that follows every record, as that of decomfl serve.
    """
    require_int("rounds", options.rounds, 2)
    require_possible(
        "clients and rounds", (options.clients, options.rounds), operations=1e5 * options.clients * options.rounds
    )
    sizes = numbers("d", options.d)
    for size in sizes:
        require_possible("d", require_int("d", size, 1), memory=4 * size)
    yield from wire_rows()
    yield from load_rows(sizes, clients=options.clients, rounds=options.rounds)


def wire_rows(*, rounds: int = 100) -> Iterator[WireRow]:
    """Measure the bytes, with seals and with TLS, of clients that answer at once and of some that take their time."""
    able = bool(shutil.which(NAMESPACE[0])) and not subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode
    for secured, pause in product((False, True), PAUSES):
        asked = {"clients": WIRED, "rounds": rounds, "secured": secured, "pause": pause, "alone": able}
        found = apart("the bytes on the wire", MODULE, "server", json.dumps(asked), within=NAMESPACE if able else ())
        share = WIRED * rounds
        yield WireRow(
            secured=secured,
            security="mutual TLS" if secured else "keyed tags",
            pause=pause,
            scalars=found["scalars"] // share,
            messages=found["messages"] / share,
            bytes=found["bytes"] / share if able else None,
            segments=found["segments"] / share if able else None,
        )


def load_rows(sizes: Sequence[int], *, clients: int, rounds: int) -> Iterator[LoadRow]:
    """Measure the server against this many clients, for models of these sizes."""
    require_int("clients", clients, 1)
    for model, d in product((False, True), sizes):
        asked = {"clients": clients, "rounds": rounds, "processes": min(2, clients), "d": d, "model": model}
        found = apart("a server under load", MODULE, "server", json.dumps(asked))
        half, end = found["half"], found["end"]
        yield LoadRow(
            server="with a model" if model else "without a model",
            clients=clients,
            d=d,
            model=model,
            rounds=rounds,
            rounds_per_second=rounds / found["seconds"],
            half=half,
            end=end,
            half_mb=half and 1e-6 * half,
            end_mb=end and 1e-6 * end,
        )


def loopback_counts() -> tuple[int, int]:
    """Bytes and segments that the loopback interface has carried, IP's and TCP's headers included."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            bytes_, segments = counts.split()[:2]
            return int(bytes_), int(segments)
    raise InputError("loopback must be among the interfaces of /proc/net/dev, got none")


def loopback_up() -> None:
    """Bring the loopback interface of a new network namespace up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", UP | RUNNING))


def _key(i: int) -> bytes:
    return struct.pack("<I28x", i)


def _server(
    *,
    clients: int,
    rounds: int,
    processes: int = 1,
    secured: bool = False,
    pause: float = 0.0,
    alone: bool = False,
    d: int = 1,
    model: bool = False,
) -> dict[str, Any]:
    """Be the server of ``clients`` stubs in ``processes`` processes, and say what was measured."""
    from decomfl_lab.carriers.stream.certificates import make_certificates, read_identity
    from decomfl_lab.carriers.stream.server import StreamServer
    from decomfl_lab.protocol.delivery import Delivery
    from decomfl_lab.protocol.server import Server
    from decomfl_lab.protocol.session import Coordinator
    from decomfl_lab.records.schedules import Schedule
    from decomfl_lab.records.seeds import Seeding
    from decomfl_lab.runs.memory import resident_bytes

    if alone:
        loopback_up()
    _open_many_files()
    state = Server(clients, clients, K, Schedule(P), Schedule(1e-3), seed=0, seeding=Seeding.PER_RUN)
    coordinator = Coordinator(Delivery(state), RUN)
    replica = _replica(d) if model else None
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if secured:
            make_certificates(Path(folder), clients)
        proof: dict[str, Any] = {"identity": read_identity(Path(folder), "server")} if secured else {"keys": _key}
        server = StreamServer("127.0.0.1:0", {"run": RUN.hex()}, clients, largest=2000, **proof)
        stack.callback(server.close)
        for n in range(processes):
            own = range(n, clients, processes)
            asked = {"address": server.address, "ids": list(own), "pause": pause, "folder": folder * secured}
            stub = subprocess.Popen([sys.executable, "-m", MODULE, "clients", json.dumps(asked)], env=environment())
            stack.callback(stub.wait)
            stack.callback(stub.terminate)

        def round_() -> None:
            server.exchange(coordinator.open(state.sample()), coordinator.take, MOST_SECONDS)
            there = len(coordinator.replies)
            require(there == clients, "replies", f"be those of all {clients} clients in {MOST_SECONDS:g} s", there)
            record = coordinator.close()
            if replica is not None:
                replica.apply(record)

        for _ in range(WARM):
            round_()
        sent, counted, began = coordinator.delivery.ledger.bytes, loopback_counts(), time.monotonic()
        scalars, half = coordinator.delivery.ledger.scalars, resident_bytes()
        for r in range(rounds):
            round_()
            half = resident_bytes() if r == rounds // 2 else half
        seconds, after = time.monotonic() - began, loopback_counts()
        ledger = coordinator.delivery.ledger
        found = {
            "seconds": seconds,
            "messages": ledger.bytes - sent,
            "scalars": ledger.scalars - scalars,
            "bytes": after[0] - counted[0],
            "segments": after[1] - counted[1],
            "half": half,
            "end": resident_bytes(),
        }
        server.close(over=True)
    return found


def _replica(d: int) -> Any:
    import torch

    from decomfl_lab.replicas.replica import Replica
    from decomfl_lab.replicas.rules import Sgd

    return Replica(torch.zeros(d), Sgd())


def _open_many_files() -> None:
    """Let this process, and those that it starts, have as many connections as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _clients(*, address: str, ids: list[int], pause: float, folder: str) -> None:
    """Be the clients ``ids``, which answer every plan by scalars of no meaning."""
    await asyncio.gather(*(_client(address, i, pause, folder) for i in ids))


async def _client(address: str, i: int, pause: float, folder: str) -> None:
    import grpc

    from decomfl_lab.carriers.stream.certificates import client_name, read_identity
    from decomfl_lab.carriers.stream.connection import HALF_NONCE, METHOD, OPTIONS, Link
    from decomfl_lab.protocol.messages import Hello, Plan, Reply
    from decomfl_lab.protocol.seals import Seal
    from decomfl_lab.protocol.wire import decode, encode, split_frame

    options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    if folder:
        own = read_identity(Path(folder), client_name(i))
        proof = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        channel = grpc.aio.secure_channel(address, proof, options)
    else:
        channel = grpc.aio.insecure_channel(address, options)
    nonce, rng = secrets.token_bytes(HALF_NONCE), np.random.default_rng(i)
    async with channel:
        call = channel.stream_stream(METHOD)(metadata=(("client", client_name(i)), ("nonce-bin", nonce)))
        first = await call.read()
        link = Link(None if folder else Seal(_key(i), first[:HALF_NONCE] + nonce, server=False), 1 << 20)
        link.open(first[HALF_NONCE:])
        await call.write(link.close(encode(Hello(i, RUN, 0, bytes(16)))))
        while (came := await call.read()) is not grpc.aio.EOF:
            last = decode(split_frame(link.open(came))[-1], 0)
            assert isinstance(last, Plan)
            await asyncio.sleep(pause)
            scalars = rng.standard_normal((K, P), dtype=np.float32)
            await call.write(link.close(encode(Reply(i, last.round, scalars))))


if __name__ == "__main__":
    role, given = sys.argv[1], json.loads(sys.argv[2])
    if role == "server":
        print(json.dumps(_server(**given)))
    else:
        asyncio.run(_clients(**given))
