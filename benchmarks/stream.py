"""The own stream on loopback: bytes a client-round as they are on the wire, and one server against many clients.

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
from pathlib import Path
from typing import Any

import numpy as np

from decomfl_lab.errors import InputError, require, require_int

__all__ = ["LoadRow", "WireRow", "load_rows", "loopback_counts", "wire_rows"]

K, P = 1, 20
RUN = bytes(16)
WARM, MOST_SECONDS = 5, 60.0
"""Rounds before what is measured, in which clients connect, and the seconds that a round may take."""
MODULE = "benchmarks.stream"
NAMESPACE = ("unshare", "--net", "--map-root-user")
UP, RUNNING, SET_FLAGS = 0x1, 0x40, 0x8914  # of Linux' network interfaces


@dataclass(frozen=True)
class WireRow:
    """What a client and the server send each other in a round.

    Attributes:
        secured: Whether by TLS, both sides with certificates; otherwise frames are sealed.
        pause: Seconds that a client takes for its answer.
        scalars: Scalars that travel, both ways.
        messages: Bytes of the protocol's messages.
        bytes: Bytes of all segments, with the headers of IP and TCP; None where they cannot be measured.
        segments: Their number.
    """

    secured: bool
    pause: float
    scalars: int
    messages: float
    bytes: float | None
    segments: float | None


@dataclass(frozen=True)
class LoadRow:
    """One server against many clients.

    Attributes:
        clients: Clients, all of which take part in every round.
        d: Parameters of the run's model.
        model: Whether the server has the model, to evaluate it.
        rounds: Rounds that were measured.
        rounds_per_second: Rounds a second.
        half: Resident bytes of the server in the middle of the rounds; None where the system does not tell.
        end: Resident bytes at their end.
    """

    clients: int
    d: int
    model: bool
    rounds: int
    rounds_per_second: float
    half: int | None
    end: int | None


def wire_rows(*, clients: int = 4, rounds: int = 100, pauses: Sequence[float] = (0.0, 0.1)) -> Iterator[WireRow]:
    """Measure the bytes, with seals and with TLS, of clients that answer at once and of some that take their time."""
    able = shutil.which(NAMESPACE[0]) and not subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode
    for secured in (False, True):
        for pause in pauses:
            asked = {"clients": clients, "rounds": rounds, "secured": secured, "pause": pause, "alone": bool(able)}
            found = _measured(asked, NAMESPACE if able else ())
            share = clients * rounds
            counted = [found[name] / share if able else None for name in ("bytes", "segments")]
            yield WireRow(secured, pause, found["scalars"] // share, found["messages"] / share, *counted)


def load_rows(sizes: Sequence[int], *, clients: int, rounds: int, processes: int = 2) -> Iterator[LoadRow]:
    """Measure the server against this many clients, for models of these sizes."""
    require_int("clients", clients, 1)
    require_int("rounds", rounds, 2)
    require_int("processes", processes, 1, clients)
    for model in (False, True):
        for d in sizes:
            asked = {"clients": clients, "rounds": rounds, "processes": processes, "d": d, "model": model}
            found = _measured(asked)
            yield LoadRow(clients, d, model, rounds, rounds / found["seconds"], found["half"], found["end"])


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


def _measured(asked: dict[str, Any], wrapper: Sequence[str] = ()) -> dict[str, Any]:
    command = [*wrapper, sys.executable, "-m", MODULE, "server", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    require(done.returncode == 0, "server of the benchmark", "end with its numbers", done.stderr[-500:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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
    """Be the server of so many stubs in so many processes, and say what was measured."""
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
            stub = subprocess.Popen([sys.executable, "-m", MODULE, "clients", json.dumps(asked)])
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
    """Be so many clients, which answer every plan by scalars of no meaning."""
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
