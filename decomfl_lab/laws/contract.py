"""What the laws are about: a case to play, and an implementation that plays it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab import noise
from decomfl_lab.estimators.differences import ESTIMATORS
from decomfl_lab.noise import Backend, Distribution
from decomfl_lab.objectives.objective import Objective, Perturbable
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.messages import Plan
from decomfl_lab.protocol.policy import PullPolicy
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.protocol.wire import Ledger
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.replica import Replica, SyncReplica
from decomfl_lab.replicas.rules import GridSgd, UpdateRule

__all__ = ["Case", "Implementation", "Participation", "Played", "Wavy", "play"]


@dataclass(frozen=True)
class Participation:
    """Who is sampled in a round, and whose replies never arrive (never all of them)."""

    clients: tuple[int, ...]
    lost: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Case:
    """A small federation and its whole history of participation.

    Attributes:
        M: Clients.
        K: Local steps.
        P: Schedule of directions.
        eta: Schedule of learning rates.
        rule: Update rule.
        estimator: "forward" or "central".
        mu: Smoothing radius.
        distribution: Law of the directions.
        shapes: Shapes of the model's tensors.
        dtype: float32, float64, or what a LowPrecision rule says.
        seed: Of the server.
        rounds: Participation, round by round.
        seeding: How many seeds travel.
        tracking: Who remembers which round a client holds.
        keep: Records kept at most, 0 for as many as needed.
    """

    M: int
    K: int
    P: Schedule[int]
    eta: Schedule[float]
    rule: UpdateRule
    estimator: str
    mu: float
    distribution: Distribution
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    seed: int
    rounds: tuple[Participation, ...]
    seeding: Seeding = Seeding.PER_STEP
    tracking: Tracking = Tracking.SERVER
    keep: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each tensor."""
        return tuple(int(np.prod(shape)) for shape in self.shapes)

    @property
    def d(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    def initial(self) -> Tensor:
        """x_0, the same for server and clients."""
        values = np.random.default_rng(np.random.SeedSequence(self.seed)).standard_normal(self.d)
        x = torch.from_numpy(values).to(self.dtype)
        return self.rule.snap(x) if isinstance(self.rule, GridSgd) else x


class Wavy:
    """A bounded-slope loss that differs between clients and steps: f(x) = mean(sin(w x + b)) + mean(x²)/8."""

    def __init__(self, d: int, client: int) -> None:
        self.w = np.linspace(0.5, 2.0, d)
        self.client = client

    def __call__(self, x: Tensor, step: int) -> float:
        """See ``Objective``."""
        values = x.cpu().numpy().astype(np.float64)
        phase = 0.7 * self.client + 0.3 * step
        return float(np.mean(np.sin(self.w * values + phase)) + np.mean(values * values) / 8)


class Implementation:
    """Makes the parts of DeComFL that the laws test. Override what is yours; the defaults are the lab's.

    A server has ``plan_round``, ``aggregate``, ``dense_model``, ``note_dense_pull`` and the attributes of ``Server``
    that it is made with; a client has ``handle``, ``report``, ``run_seed`` (None until it is told) and a ``replica``
    with ``digest``, ``catch_up``, ``snapshot`` and ``restore``.
    """

    name = "decomfl_lab"

    def supports(self, case: Case) -> bool:  # noqa: ARG002
        """Whether the laws may be tried on this case; override it if you lack a rule, a dtype or a variant."""
        return True

    def backends(self) -> dict[str, Backend]:
        """Implementations of the noise stream, each with the contract of ``noise.Backend``."""
        return {name: noise.load_backend(name) for name in noise.available_backends()}

    def direction(self, seed: int, p: int, d: int, distribution: Distribution) -> NDArray[np.float32]:
        """z(seed, p) in R^d."""
        return noise.direction(seed, p, d, distribution=distribution)

    def replica(self, case: Case, *, per_tensor: bool = False) -> Replica:
        """A replica at round 0."""
        return Replica(case.initial(), case.rule, sizes=case.sizes if per_tensor else None)

    def client(self, case: Case, i: int, objective: Objective | None = None) -> Client:
        """Client i at round 0; every second one applies updates tensor by tensor."""
        objective = Wavy(case.d, i) if objective is None else objective
        replica = self.replica(case, per_tensor=i % 2 == 1)
        return Client(i, replica, objective, ESTIMATORS[case.estimator], case.mu)

    def keyed_client(self, case: Case, i: int, key: int) -> Client:
        """Client i with the private key that clients share and the server does not know."""
        client = self.client(case, i)
        client.replica.private_key = key
        return client

    def lean_client(self, case: Case, i: int, objective: Perturbable) -> Client:
        """Client i that forms x + μz a layer at a time."""
        return Client(i, self.replica(case), objective, ESTIMATORS[case.estimator], case.mu, lean=True)

    def sync_client(self, case: Case, i: int) -> Client:
        """Client i that corrects its model afterwards instead of reverting it; the case's rule is plain SGD."""
        right = self.client(case, i)
        return Client(i, SyncReplica(case.initial(), case.rule), right.objective, right.estimator, right.mu)

    def server(self, case: Case, *, with_model: bool = True) -> Server:
        """A server at round 0."""
        return Server(
            M=case.M,
            m=1,
            K=case.K,
            P=case.P,
            eta=case.eta,
            seed=case.seed,
            distribution=case.distribution,
            replica=self.replica(case) if with_model else None,
            seeding=case.seeding,
            tracking=case.tracking,
            keep=case.keep,
        )

    def ledger(self, case: Case) -> Ledger:
        """A ledger that encodes and counts."""
        return Ledger(case.M)

    def delivery(self, case: Case, policy: PullPolicy | None = None, *, with_model: bool = True) -> Delivery:
        """A delivery of a server at round 0."""
        return Delivery(self.server(case, with_model=with_model), policy=policy, ledger=self.ledger(case))


class AcrossDevices(Implementation):
    """The lab's own, with every second client on a device and everybody else on the CPU: the laws compare their bits.

    Where the device is the CPU itself, those clients have another backend: Triton's interpreter where it is switched
    on (TRITON_INTERPRET=1), else the reference.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        other = "triton" if "triton" in noise.available_backends() else "numpy"
        self.backend = None if device.type == "cuda" else other
        self.name = f"decomfl_lab, CPU and {self.backend or device.type}"

    def client(self, case: Case, i: int, objective: Objective | None = None) -> Client:
        """See ``Implementation.client``."""
        client = super().client(case, i, objective)
        if i % 2:
            x = case.initial().to(self.device)
            client.replica = Replica(x, case.rule, sizes=case.sizes, backend=self.backend)
        return client


@dataclass
class Played:
    """A federation after its history."""

    delivery: Delivery
    clients: list[Client]
    records: list[RoundRecord] = field(default_factory=list)

    @property
    def server(self) -> Server:
        """The server."""
        return self.delivery.server

    @property
    def ledger(self) -> Ledger:
        """What was sent."""
        return self.delivery.ledger

    def plans(self, participants: Sequence[int]) -> Iterator[tuple[Client, Plan]]:
        """The participants, each with the plan that it received."""
        reports = (
            [self.ledger.held(self.clients[i].report()) for i in participants] if self.delivery.wants_reports else ()
        )
        for i, messages in self.delivery.open(participants, reports):
            yield self.clients[i], receive(self.clients[i], messages)

    def plan_for(self, client: int) -> Plan:
        """A fresh plan for one client, with the records it lacks."""
        ((_, plan),) = self.plans([client])
        return plan

    def bring_up(self, client: int) -> None:
        """Let the client rebuild the present model."""
        self.clients[client].replica.catch_up(self.plan_for(client).records)

    def play_round(self, at: Participation, *, backwards: bool = False) -> None:
        """One round through the wire; ``backwards`` lets the replies arrive in reverse order."""
        arrived: list[bytes] = []
        for client, plan in self.plans(at.clients):
            reply = self.ledger.reply(client.handle(plan))
            if client.id not in at.lost:
                arrived.append(reply)
        self.records.append(self.delivery.close(reversed(arrived) if backwards else arrived))


def play(
    implementation: Implementation,
    case: Case,
    rounds: Iterable[Participation] | None = None,
    *,
    backwards: bool = False,
    policy: PullPolicy | None = None,
) -> Played:
    """Play the rounds of ``case`` (or the given ones)."""
    clients = [implementation.client(case, i) for i in range(case.M)]
    played = Played(implementation.delivery(case, policy), clients)
    for at in case.rounds if rounds is None else rounds:
        played.play_round(at, backwards=backwards)
    return played
