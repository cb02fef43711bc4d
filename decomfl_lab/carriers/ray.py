"""Clients as actors of Ray, on this machine or over the nodes of a cluster.

A simulation distributes itself by the method that it simulates. Each actor is a host of some clients with the one model
that they share; between it and the server's side travel the frames of the session, which are seeds and scalars, and the
losses for the log. An actor that dies is made anew at x_0 and gets back by records what it has lost, to the bit.
"""

import logging
import math
import os
import socket
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.federations.carrier import MakeHost, Take
from decomfl_lab.installation import without_extra
from decomfl_lab.processes import safely
from decomfl_lab.protocol.session import Frames, Host

MOST_DEATHS = 3
"""How often an actor is made anew while one round is exchanged."""
LONG = 86400.0
"""A deadline above this many seconds is none to Ray."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ray:
    """Clients in actors of Ray, client i in actor i mod N; who sends what is the same to the bit for every N."""

    workers: int = 4  # the number N of actors
    # the address of a Ray that is running ("auto" for this machine's), whose nodes then share the work; None for the
    # environment's RAY_ADDRESS, or without it for one of this process
    address: str | None = None

    def __post_init__(self) -> None:
        require_int("workers", self.workers, 1)

    def carrier(self, make: MakeHost, M: int) -> "Actors":
        """The actors of M clients; InputError if Ray is not there, or the clients cannot be sent to another process."""
        connect(self.workers, self.address)
        return Actors(make, M, self.workers)


def connect(cpus: int | None, address: str | None = None) -> None:
    """Connect this process to Ray until it ends or ``ray.shutdown()``, unless it is connected already.

    Args:
        cpus: The number of CPUs of a Ray of this process; None for all.
        address: The address of one that is running; None for the environment's RAY_ADDRESS, if it has one.

    Raises:
        InputError: If Ray is not installed, or there is none at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        without_extra("Ray", "ray", error)
    if ray.is_initialized():
        return
    address = address or os.environ.get("RAY_ADDRESS")
    started = {} if address else {"num_cpus": cpus, "include_dashboard": False}
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():  # Ray waits for minutes where nobody listens
            socket.create_connection((host, int(port)), timeout=10.0).close()
        with safely():
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **started)
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise InputError(f"address must be that of a Ray that is running, got {address!r} ({why})") from None


class _Actor:
    """What runs in an actor: a host, made when it is first wanted, so that its errors reach who wants it."""

    def __init__(self, make: MakeHost, ids: Iterable[int], threads: int) -> None:
        self._make, self._ids, self._threads = make, ids, threads

    @cached_property
    def host(self) -> Host:
        import torch

        torch.set_num_threads(self._threads)
        return self._make(self._ids)

    def handle(self, frames: Mapping[int, bytes]) -> dict[int, tuple[bytes, float]]:
        """{i: answer and loss} to {i: frame}."""
        answers = self.host.handle(frames)
        return {i: (answer, self.host.losses.get(i, math.nan)) for i, answer in answers.items()}

    def hello(self, ids: Iterable[int]) -> dict[int, tuple[bytes, float]]:
        """What these clients say where an actor has taken the place of one that has died."""
        return {i: (self.host.hello(i), math.nan) for i in ids}


class Actors:
    """The ``Carrier`` of frames to actors."""

    def __init__(self, make: MakeHost, M: int, workers: int) -> None:
        """At most ``workers`` actors for M clients, in the Ray that this process is connected to."""
        import ray

        try:
            self._make = ray.put(make)  # with the data, once for all actors of a node
        except TypeError as error:
            why = str(error).partition("\n")[0]
            raise InputError(f"model and loss must be such that pickle can carry them to actors, got {why}") from None
        self._M = M
        self.actors: list[Any] = []  # the handles of the actors; client i is in number i mod their number
        self._end = weakref.finalize(self, _end, self.actors)
        count = min(workers, M)
        self.actors += [self._made(range(n, M, count)) for n in range(count)]

    def _made(self, ids: Sequence[int]) -> Any:
        import ray
        import torch

        kind = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_Actor)
        return kind.remote(self._make, ids, torch.get_num_threads())

    def exchange(self, frames: Frames, take: Take, deadline: float | None) -> None:
        """See ``Carrier``; what ``take`` returns for clients of one actor goes to it together.

        An actor that has died is never away: the one in its place says hello at once. InputError if an actor dies again
        and again, or a client's data or model are of no use there.
        """
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        end = math.inf if deadline is None else time.monotonic() + deadline
        waiting: dict[Any, tuple[int, Iterable[int]]] = {}
        deaths: Counter[int] = Counter()

        def send(n: int, asked: Mapping[int, bytes]) -> None:
            waiting[self.actors[n].handle.remote(asked)] = n, asked

        N = len(self.actors)
        for n in sorted({i % N for i in frames}):
            send(n, {i: frames[i] for i in frames if i % N == n})
        while waiting:
            left = end - time.monotonic()
            answered, _ = ray.wait(list(waiting), timeout=None if left > LONG else max(0.0, left))
            if not answered:
                return
            n, asked = waiting.pop(answered[0])
            try:
                answers = ray.get(answered[0])
            except RayTaskError as error:
                raise error.cause if isinstance(error.cause, InputError) else error from None
            except RayActorError as error:
                deaths[n] += 1
                why = str(error).partition("\n")[0]
                require(deaths[n] <= MOST_DEATHS, f"deaths of actor {n}", f"number {MOST_DEATHS} at most a round", why)
                logger.warning("actor %d has died and is made anew: %s", n, why)
                self.actors[n] = self._made(range(n, self._M, N))
                waiting[self.actors[n].hello.remote(list(asked))] = n, asked
                continue
            more = {i: take(i, *answer) for i, answer in answers.items()}
            if again := {i: frame for i, frame in more.items() if frame}:
                send(n, again)

    def close(self) -> None:
        """See ``Carrier``; it is called where nobody holds the carrier any more."""
        self._end()


def _end(actors: Sequence[Any]) -> None:
    import ray
    from ray.exceptions import ActorHandleNotFoundError

    if ray.is_initialized():
        for actor in actors:
            with suppress(ActorHandleNotFoundError):  # its session has ended, and it with it
                ray.kill(actor)
