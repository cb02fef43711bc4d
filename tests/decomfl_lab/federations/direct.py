"""A federation whose clients are hosts in this process, each behind a carrier that can lose them."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from decomfl_lab.federations.carrier import Take
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.laws.contract import Case, Implementation
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.server import Terms
from decomfl_lab.protocol.session import Frames, Host
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.rules import Momentum

LAB = Implementation()
RUN = bytes(range(16))
CASE = Case(
    M=4, K=2, P=Schedule(3), eta=Schedule(0.1), rule=Momentum(0.9), estimator="central", mu=2.0**-8,
    distribution=Distribution.GAUSSIAN, shapes=((5,),), dtype=torch.float32, seed=1, rounds=(),
)  # fmt: skip


def host(case: Case, *ids: int, run: bytes = RUN) -> Host:
    """A host of new clients."""
    return Host({i: LAB.client(case, i) for i in ids}, run, Terms.of(LAB.server(case)))


class Direct:
    """Calls hosts, but those of clients that are away; ``between`` makes of an answer what arrives, None for nothing.

    Attributes:
        away: The clients that are away.
        bytes: {(client, whether upwards): bytes of the frames that went}.
    """

    def __init__(self, hosts: Mapping[int, Host]) -> None:
        self.hosts = dict(hosts)
        self.between: Callable[[int, bytes], bytes | None] = lambda i, answer: answer
        self.away: set[int] = set()
        self.bytes: Counter[tuple[int, bool]] = Counter()

    def exchange(self, frames: Frames, take: Take, deadline: float | None) -> None:
        for i in frames:
            if i not in self.away:
                self.talk(i, frames[i], take)

    def talk(self, i: int, frame: bytes | None, take: Take) -> None:
        """Carry a frame to a client, and all that is said then."""
        while frame:
            self.bytes[i, False] += len(frame)
            answer: bytes | None = self.hosts[i].handle({i: frame})[i]
            if answer and (answer := self.between(i, answer)) is None:
                break
            self.bytes[i, True] += len(answer)
            frame = take(i, answer, self.hosts[i].losses.get(i, float("nan")))

    def come(self, i: int, take: Take) -> None:
        """Client i comes back and says hello."""
        self.away.discard(i)
        hello = self.hosts[i].hello(i)
        self.bytes[i, True] += len(hello)
        self.talk(i, take(i, hello, float("nan")), take)

    def close(self) -> None:
        self.hosts.clear()


def remote(case: Case = CASE, m: int = 3, carrier: Direct | None = None, **options: Any) -> RemoteFederation:
    """Clients elsewhere."""
    delivery = LAB.delivery(case)
    delivery.server.m = m
    carrier = carrier or Direct({i: host(case, i) for i in range(case.M)})
    return RemoteFederation(delivery, LAB.replica(case), carrier, RUN, **options)


def simulated(case: Case = CASE, m: int = 3, rounds: int = 0) -> DeComFLFederation:
    """The same run in the simulator, after so many rounds."""
    delivery = LAB.delivery(case)
    delivery.server.m = m
    federation = DeComFLFederation(delivery, [LAB.client(case, i) for i in range(case.M)], LAB.replica(case))
    for _ in range(rounds):
        federation.advance()
    return federation


def counted(elsewhere: RemoteFederation) -> Counter[tuple[int, bool]]:
    """What the ledgers of the run and of the session say together: {(client, whether upwards): bytes}."""
    found: Counter[tuple[int, bool]] = Counter()
    for ledger in (elsewhere.ledger, elsewhere.coordinator.session):
        for i in range(ledger.M):
            found[i, False] += ledger.down[i].bytes
            found[i, True] += ledger.up[i].bytes
    return +found


def but(case: Case = CASE, **changes: Any) -> Case:
    """The case with changes."""
    return dataclasses.replace(case, **changes)
