"""What the laws are about: a case to play, and an implementation that plays it."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab import noise
from decomfl_lab.engines.base import wide_dtype
from decomfl_lab.estimators.differences import ESTIMATORS, Estimator
from decomfl_lab.laws.register import Model, bits
from decomfl_lab.noise import Backend, Distribution
from decomfl_lab.objectives.objective import Objective, Perturbable
from decomfl_lab.protocol import wire
from decomfl_lab.protocol.aggregation import Aggregation, Majority, Mean, Weighting, Weights
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.messages import Held, Message, Plan, Reply
from decomfl_lab.protocol.server import PullPolicy, Server, Tracking
from decomfl_lab.records.record import History, RoundRecord, ScalarArray
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import POOL, Seeding, StepSeed, keyed, stream_of
from decomfl_lab.replicas.registry import kind_of, make_replica
from decomfl_lab.replicas.replica import Snapshot, SyncReplica
from decomfl_lab.replicas.rules import Sgd, UpdateRule


@dataclass(frozen=True)
class Participation:
    """Who is sampled in a round, and whose replies never arrive (never all of them)."""

    clients: tuple[int, ...]
    lost: frozenset[int] = frozenset()

    def __str__(self) -> str:
        lost = f"; the replies of {', '.join(map(str, sorted(self.lost)))} are lost" if self.lost else ""
        return f"clients {', '.join(map(str, self.clients))} take part{lost}"


@dataclass(frozen=True)
class PlainCase:
    """A small federation and its whole history of participation: what every case has."""

    M: int  # number of clients
    K: int  # number of local steps a round
    P: Schedule[int]  # number of directions a local step, a schedule over rounds
    eta: Schedule[float]  # learning rate η, a schedule over rounds
    mu: float  # smoothing radius μ, a power of two
    distribution: Distribution  # distribution of the directions
    shapes: tuple[tuple[int, ...], ...]  # shapes of the model's tensors, () for a number
    seed: int  # seed of the server, which directions and sampling derive from
    rounds: tuple[Participation, ...]  # participation, round by round

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each tensor."""
        return tuple(int(np.prod(shape)) for shape in self.shapes)

    @property
    def d(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    def direction(self, seed: StepSeed, p: int, key: int | None = None) -> NDArray[np.float32]:
        """z_{r,p}^k, shape (d,): direction p of a local step, by the seed that a plan or a record has for the step.

        With a private key it is made of the seed's keyed hash.
        """
        return noise.direction(*stream_of(keyed(seed, key), p), self.d, distribution=self.distribution)


@dataclass(frozen=True)
class Case(PlainCase):
    """A federation in a variant: how replicas move, what scalars are, what is sent and what is kept."""

    rule: UpdateRule  # update rule
    # what the scalars are: a difference, "forward" or "central"; "projection", the slopes ⟨∇f(x), z⟩ of an objective
    # that has ``value_and_gradient``; or "central-sign", int8 signs, of which the majority's is the round's
    # ("forward-sign" is not drawn, but a method may have it)
    estimator: str
    dtype: torch.dtype  # float32, float64, or what a LowPrecision rule says
    seeding: Seeding = Seeding.PER_STEP  # how many seeds travel
    tracking: Tracking = Tracking.SERVER  # who remembers which round a client holds
    keep: int = 0  # largest number of records that the server keeps, 0 for as many as needed

    @property
    def signs(self) -> bool:
        """Whether scalars are int8 signs."""
        return self.estimator.endswith("-sign")

    @property
    def aggregation(self) -> Aggregation:
        """What makes a round's scalars of the clients'."""
        return Majority() if self.signs else Mean()

    @property
    def pool(self) -> int:
        """Directions S of the pool, where they come from one."""
        return self.rule.pool or POOL

    def initial(self) -> Tensor:
        """x_0, the same for server and clients."""
        values = np.random.default_rng(np.random.SeedSequence(self.seed)).standard_normal(self.d)
        x = torch.from_numpy(values).to(self.dtype)
        return self.rule.begin(x)


class Wavy:
    """A loss that shows where it was measured: another x, local step or client gives visibly another slope.

        f_{i,t}(x) = 1/3 Σ_n sin(s_n ⟨a_n, x⟩ + φ_n(i, t)) / s_n,    s = (4, 16, 64),    n = 1..3

    for client i and its local step t, with unit vectors a_n whose elements are all about 1/√d. Slopes are at most 1, so
    rounds of any learning rate stay where numbers are of order 1; the curvature along a_n is up to s_n/3, so a local
    step that was left out turns the slope; and the phases φ_n of no two pairs (i, t) are the same.
    """

    scales = np.array([4.0, 16.0, 64.0])
    """s_n, shape (3,)."""

    def __init__(self, d: int, client: int) -> None:
        self.client = client
        self.waves = _waves(d)
        """s_n a_n, shape (3, d), float64."""

    def phases(self, step: int) -> NDArray[np.float64]:
        """φ_n(i, t), shape (3,); irrational multiples, so that no client's phases are another's some steps later."""
        return np.array([1.0, 2.0, 3.0]) * (math.sqrt(2) * self.client + math.sqrt(3) * step)

    def values(self, points: NDArray[np.float64], step: int) -> Any:
        """F at each of ``points`` (n, d), in float64; shape (n,)."""
        return np.sin(points @ self.waves.T + self.phases(step)) @ (1 / (3 * self.scales))

    def gradient(self, x: NDArray[np.float64], step: int) -> Any:
        """∇f(x) in float64; shape (d,)."""
        return np.cos(self.waves @ x + self.phases(step)) / (3 * self.scales) @ self.waves

    def __call__(self, x: Tensor | NDArray[Any], step: int) -> float:
        """See ``Objective``; x may be an array, too."""
        return float(self.values(_wide(x)[None], step)[0])

    def value_and_gradient(self, x: Tensor, step: int) -> tuple[float, Tensor]:
        """f_i(x; ξ) and ∇f_i(x; ξ), shape (d,); the gradient of a 16-bit x is in float32."""
        return self(x, step), torch.from_numpy(self.gradient(_wide(x), step)).to(x.device, wide_dtype(x))

    def along(self, x: Tensor, step: int, seed: int, p: int, c: float, distribution: Distribution) -> float:
        """See ``Perturbable``: x + c z is formed in float32, or in float64 where x is of float64."""
        x = torch.as_tensor(x)
        z = torch.from_numpy(noise.direction(seed, p, x.numel(), distribution=distribution))
        return self(x.cpu().to(wide_dtype(x)) + c * z, step)


def _wide(x: Tensor | NDArray[Any]) -> NDArray[np.float64]:
    return torch.as_tensor(x).detach().cpu().double().numpy()


@lru_cache(maxsize=64)
def _waves(d: int) -> Any:
    """The rows s_n a_n: cosines of incommensurable frequencies, so that no element is 0 and no two rows are alike."""
    a = np.cos(np.outer([1.0, math.sqrt(2), math.sqrt(5)], np.arange(d)))
    a += np.sign(a)  # no element is small
    return Wavy.scales[:, None] * a / np.linalg.norm(a, axis=1, keepdims=True)


class AnyReplica(Protocol):
    """What the laws, the delivery and a restart use of a replica: x and the optimizer's state after whole rounds."""

    @property
    def round(self) -> int:
        """The number of records applied."""

    def catch_up(self, records: Iterable[RoundRecord]) -> object:
        """Apply the records of rounds ≥ ``round`` in order, skip older ones; InputError, and no change, at a gap.

        A record has ``round``, ``eta``, ``seeds`` (one entry a local step) and ``scalars``, shape (K, P).
        """

    def snapshot(self) -> Snapshot:
        """Snapshot(round, x, state={slot: vector}), with each of ``case.rule.slots``, which no later step changes.

        Of another class (a named tuple or a dataclass) it may have the slots as fields instead of ``state``.
        """

    def restore(self, snapshot: Snapshot) -> None:
        """Be what the snapshot says, and leave the snapshot's vectors as they are ever after."""


class AnyClient(Protocol):
    """What is used of a client.

    Attributes:
        run_seed: None until a delivery writes the run's seed here (only where seeds are sent per run).
    """

    run_seed: int | None

    @property
    def id(self) -> int:
        """The client's number i."""

    @property
    def replica(self) -> AnyReplica:
        """Its model, of a whole round whenever ``handle`` is not running."""

    def report(self) -> Held:
        """The round that the client holds, Held(id, replica.round) (only where clients track it); may be left out."""

    def handle(self, plan: Plan) -> Reply:
        """Rebuild x_r from the plan's records, measure K·P scalars, be at x_r again; InputError if records lack.

        1. catch up with ``plan.records``; InputError unless the model is then of ``plan.round``;
        2. for each of the K entries of ``plan.seeds``: measure P = ``plan.P`` scalars, then step by these own scalars
           with η = ``plan.eta``;
        3. take the local steps back, momentum too, to the bit (a snapshot does), and answer
           Reply(id, plan.round, scalars), with a float32 array of shape (K, P) (int8 for signs).
        """


class AnyServer(Protocol):
    """What is used of a server.

    Attributes:
        history: The records that are kept, in a ``records.record.History`` or, oldest first, in a list. A restart
            writes it, and beside a list ``round``.
        held: The round that each client holds, empty where clients track it; a restart writes it.
    """

    history: History
    held: list[int]

    @property
    def round(self) -> int:
        """The round to be planned or under way."""

    @property
    def run_seed(self) -> int:
        """The seed that every round's derive from."""

    @property
    def tracking(self) -> Tracking:
        """Who remembers which round a client holds; may be left out."""

    @property
    def replica(self) -> AnyReplica | None:
        """The server's model, None where it is made without one."""

    def plan_round(
        self, participants: Sequence[int] | None = None, reports: Iterable[Held] | None = None
    ) -> Mapping[int, Plan]:
        """A plan for each participant; InputError for participants or reports that cannot be served.

        Where records are gone that a client lacks, the error names the client, its round and the oldest record's. Plans
        and records of another class than the lab's may leave the distribution out, and list the seeds of the local
        steps however few of them travel.

        Plan(round, eta, P, case.distribution, seeds, records), whose seeds are those of
        ``decomfl_lab.records.seeds.draw_seeds(case.seeding, run_seed, round, case.K, P)``.
        """

    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        """The round's record, stored and applied; InputError, and nothing stored, for a bad reply or none.

        RoundRecord(round, eta, distribution, seeds, scalars), whose scalars are the mean of the replies', rounded once,
        so that their order does not matter (the majority's signs for "central-sign").
        """

    def dense_model(self) -> Snapshot:
        """The server's model; may be left out where it is the replica's snapshot."""

    def note_dense_pull(self, client: int) -> None:
        """Remember that a client now holds the model of the present round (only where the server tracks clients)."""


class AnyWeighingServer(AnyServer, Protocol):
    """What is used of a server that weighs clients by their examples."""

    def note_examples(self, client: int, n: int) -> None:
        """Remember that a client has n examples, its weight.

        InputError, and nothing remembered, for a client that does not exist, and unless n is in 1..2^29 − 1 and the
        same as before. ``aggregate`` refuses the replies of a client of which there is no number.
        """


class Implementation:
    """Makes the parts of DeComFL that the laws test. Override what is yours; the rest is the lab's.

    ``decomfl verify --target-template`` prints a file that has every part, with what the laws use of it and the
    formulas that it has to keep: ``AnyClient``, ``AnyReplica`` and ``AnyServer`` say the same of what the parts make.
    Nothing else of them is used. They are handed the lab's values (``Plan``, ``Reply``, ``Held``, ``RoundRecord``,
    ``Snapshot``). What they hand over may be of any class with the same fields (``laws.edge``): vectors may be arrays,
    and a bad value is answered by ``InputError`` or another ``ValueError``.

    A part that raises ``NotImplementedError`` is not offered: the lab's takes its place, and a law that is about it
    alone is skipped. ``supports`` says which cases there is an implementation of; the laws' cases are drawn from these.
    A law that uses no part of yours is not counted.

    Attributes:
        name: What it is called.
        skips: {law: reason} for laws of which ``supports`` accepts no case: they are skipped, not reported.
        own: Whether noise and arithmetic are yours, so that your own server is the truth: replicas are then compared
            with it and with each other, and laws that compare with the lab's stream are left out, each by name.
        rule: An aggregation of the user's own, of which the laws of every rule are asked in place of the lab's.
        simplest: {field: value} of what is tried first where a counter-example is simplified, its rule or estimator.
    """

    name = "decomfl_lab"
    skips: Mapping[str, str] = {}
    simplest: Mapping[str, Any] = {}
    rule: Aggregation | None = None
    own = False

    def __init__(self, *, own: bool = False) -> None:
        self.own = own or self.own

    def __init_subclass__(cls) -> None:
        cls.name = cls.__dict__.get("name", cls.__name__)

    def supports(self, case: Case) -> bool:  # noqa: ARG002
        """Whether the laws may be tried on this case; override it if you lack a rule, a dtype or a variant."""
        return True

    def measured_by(self, case: Case) -> Estimator:
        """What makes a client's scalars of its losses, or slopes; local steps are taken by the scalars that are sent.

        Override it if clients send something else of what they measure than the case says, as clipped scalars.
        """
        return ESTIMATORS[case.estimator]

    @property
    def replaced(self) -> frozenset[str]:
        """The parts that are not the lab's."""
        return frozenset(part for part in PARTS if getattr(getattr(self, part), "__func__", None) is not PARTS[part])

    @property
    def offered(self) -> frozenset[str]:
        """The parts that are tested: those that are not the lab's, and on the lab's own implementation all."""
        return frozenset(PARTS) if type(self) is Implementation else self.replaced

    def backends(self) -> dict[str, Backend]:
        """Implementations of the noise stream, each with the contract of ``noise.Backend``.

        Or a function of (seed, p, first, count, distribution) that makes elements first.. of a direction: the reference
        then does the rest of a program.
        """
        return {name: noise.load_backend(name) for name in noise.available_backends()}

    def direction(self, seed: int, p: int, d: int, distribution: Distribution) -> NDArray[np.float32]:
        """z(seed, p) in R^d."""
        return noise.direction(seed, p, d, distribution=distribution)

    def sample(self, seed: int, r: int, M: int, m: int) -> Sequence[int]:
        """C_r: the m of M clients that a server of this seed samples in round r."""
        return Server(M, m, K=1, P=Schedule(1), eta=Schedule(0.1), seed=seed, history=History(start=r)).sample()

    def aggregate(self, rule: Aggregation, replies: Sequence[ScalarArray]) -> ScalarArray:
        """A round's scalars of the clients', by one of the rules of ``protocol.aggregation``."""
        return cast("ScalarArray", rule(replies))

    def encode(self, message: Message) -> bytes:
        """Any message as bytes."""
        return wire.encode(message)

    def decode(self, message: bytes, run_seed: int | None = None) -> Message:
        """Inverse of ``encode``; ``run_seed`` is there for plans and records that carry no seeds.

        Raises:
            InputError: If the message is damaged.
        """
        return wire.decode(message, run_seed)

    def replica(self, case: Case, *, per_tensor: bool = False) -> AnyReplica:
        """A replica at round 0, at ``case.initial()``; ``per_tensor`` ones apply updates tensor by tensor."""
        return cast("AnyReplica", self._replica(case, per_tensor=per_tensor))

    def _replica(self, case: Case, *, per_tensor: bool = False) -> Any:
        """The lab's, of which the lab's client and server want more than a replica has by the contract."""
        return self._kind(kind_of(case.rule))(case.initial(), case.rule, sizes=case.sizes if per_tensor else None)

    def _kind(self, right: type) -> Any:
        """The class that is made in place of one of the lab's, which a planted fault exchanges."""
        return right

    def client(self, case: Case, i: int, objective: Objective | None = None) -> AnyClient:
        """Client i at round 0, with the loss ``objective``, or ``Wavy(case.d, i)``.

        Of the lab's every second one applies updates tensor by tensor.
        """
        loss = Wavy(case.d, i) if objective is None else objective
        replica = self._replica(case, per_tensor=i % 2 == 1)
        return cast("AnyClient", self._kind(Client)(i, replica, loss, self.measured_by(case), case.mu))

    def keyed_client(self, case: Case, i: int, key: int) -> AnyClient:
        """Client i with the private key that clients share and the server does not know.

        It measures, and follows the records, along z_p = ``case.direction(seed, p, key)``.
        """
        client: Any = self.client(case, i)
        client.replica.private_key = key
        return cast("AnyClient", client)

    def lean_client(self, case: Case, i: int, objective: Perturbable) -> AnyClient:
        """Client i that forms x + μz a layer at a time, by ``objective.along(x, step, seed, p, c, distribution)``."""
        return Client(i, self._replica(case), objective, self.measured_by(case), case.mu, lean=True)

    def sync_client(self, case: Case, i: int) -> AnyClient:
        """Client i that corrects its model afterwards instead of reverting it; the case's rule is plain SGD."""
        replica = self._kind(SyncReplica)(case.initial(), case.rule)
        return Client(i, replica, Wavy(case.d, i), self.measured_by(case), case.mu)

    def server(self, case: Case, *, with_model: bool = True) -> AnyServer:
        """A server at round 0; where the model is the sums of a pool, without it the lab's keeps these alone.

        Where noise and arithmetic are yours it has a replica of yours.
        """
        replica: Any = None
        if with_model:
            replica = self.replica(case) if self.own else self._replica(case)
        elif case.rule.pool:
            replica = make_replica(case.initial().to("meta"), case.rule)
        options = ("M", "K", "P", "eta", "seed", "distribution", "seeding", "tracking", "keep", "aggregation", "pool")
        values = {name: getattr(case, name) for name in options}
        # m, how many a server would sample, is no matter: laws name the participants of every round.
        return cast("AnyServer", self._kind(Server)(m=1, replica=replica, **values))

    def weighing_server(self, case: Case) -> AnyWeighingServer:
        """A server at round 0 whose records are Σ_i n_i g_i / Σ_i n_i; the case's scalars are no signs.

        The sum is exact and rounded once to float64, then divided, then rounded to float32. The numbers n_i come by
        ``note_examples`` (``laws.AnyWeighingServer``).
        """
        server: Any = self.server(case)
        server.weights = self._kind(Weights)(Weighting.EXAMPLES)
        return cast("AnyWeighingServer", server)

    def ledger(self, case: Case) -> Ledger:
        """A ledger that encodes and counts."""
        return cast("Ledger", self._kind(Ledger)(case.M, encode=self.encode))

    def delivery(self, case: Case, policy: PullPolicy | None = None, *, with_model: bool = True) -> Delivery:
        """The lab's delivery of a server at round 0, by this codec."""
        server: Any = self.server(case, with_model=with_model)
        return Delivery(server, policy=policy, ledger=self.ledger(case), decode=self.decode)


PARTS: dict[str, Any] = {
    name: part
    for name, part in vars(Implementation).items()
    if callable(part) and not name.startswith("_") and name not in ("supports", "measured_by")
}
"""The methods of ``Implementation`` that make something, by their names."""


class RefusedError(NotImplementedError):
    """An implementation's ``supports`` refuses a case."""


def variant(implementation: Implementation, case: Case, **changes: Any) -> Case:
    """The case with these changes; the law is not tried on it if the implementation does not support that."""
    changed = replace(case, **changes)
    if changed.rule.pool is not None and changed.seeding is not Seeding.POOL:  # its seeds no longer come from a pool
        changed = replace(changed, rule=Sgd())
    if not implementation.supports(changed):
        asked = ", ".join(f"{name} = {value}" for name, value in changes.items())
        raise RefusedError(f"{implementation.name}.supports refuses {asked}")
    return changed


def bytes_missed(case: Case, t: int, r: int) -> int:
    """The bytes of the records of rounds t..r-1 in a message."""
    pairs = [case.K * case.P(q) for q in range(t, r)]
    scalars = [-(-pair // 8) if case.signs else 4 * pair for pair in pairs]
    return 19 * len(pairs) + sum(scalars) + sum(case.seeding.bytes(case.K, case.P(q)) for q in range(t, r))


def sums_or(case: Case, t: int, r: int) -> tuple[int, int]:
    """Scalars and seeds that bring a client from round t to r: those of the records, or the sums where that is less."""
    if case.rule.pool is not None and 12 + 13 + 4 * case.pool < bytes_missed(case, t, r):
        return case.pool, 0
    return sum(case.K * case.P(q) for q in range(t, r)), sum(case.seeding.sent(case.K, case.P(q)) for q in range(t, r))


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

    offered = frozenset(PARTS)  # every law is about these devices

    def client(self, case: Case, i: int, objective: Objective | None = None) -> AnyClient:
        client: Any = super().client(case, i, objective)
        if i % 2:
            x = case.initial().to(self.device)
            client.replica = make_replica(x, case.rule, sizes=case.sizes, backend=self.backend)
        return cast("AnyClient", client)


def model_of(replica: AnyReplica | None) -> Model:
    """All bits of x and of the optimizer's state."""
    assert replica is not None
    snapshot = replica.snapshot()
    return Model((name, bits(vector)) for name, vector in {"x": snapshot.x, **snapshot.state}.items())


class RoundWatch:
    """Who looks on while rounds are played; what is not overridden does nothing."""

    def replied(self, client: AnyClient, plan: Plan, reply: Reply) -> None:
        """This is the client's answer to the plan, which may yet be lost."""

    def closed(self, record: RoundRecord) -> None:
        """The round has this record."""


@dataclass
class Played:
    """A federation after its history."""

    delivery: Delivery  # it carries the messages
    clients: list[AnyClient]  # all clients
    records: list[RoundRecord] = field(default_factory=list)  # the records of the rounds so far
    # The bytes that went down to and up from each client: [down, up].
    carried: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    # What went to and came from each client, by the number of the round, as counted here, and of the client.
    heard: dict[tuple[int, int], tuple[Plan, Reply]] = field(default_factory=dict)
    watch: RoundWatch = field(default_factory=RoundWatch)  # who looks on

    @property
    def server(self) -> AnyServer:
        """The server."""
        return self.delivery.server

    @property
    def ledger(self) -> Ledger:
        """What was sent."""
        return self.delivery.ledger

    @property
    def server_model(self) -> Model:
        """The server's model."""
        return model_of(self.server.replica)

    def model_after(self, client: int) -> Model:
        """The client's model after it has caught up with the present."""
        self.bring_up(client)
        return model_of(self.clients[client].replica)

    def plans(self, participants: Sequence[int]) -> Iterator[tuple[AnyClient, Plan]]:
        """The participants, each with the plan that it received."""
        reports = []
        for i in participants if self.delivery.wants_reports else ():
            report = self.clients[i].report()
            reports.append(self.ledger.sent(report.client, report, upwards=True))
            self.carried[i][1] += len(reports[-1])
        for i, messages in self.delivery.open(participants, reports):
            self.carried[i][0] += sum(map(len, messages))
            client: Any = self.clients[i]
            yield client, receive(client, messages, self.delivery.decode)

    def plan_for(self, client: int) -> Plan:
        """A fresh plan for one client, with the records it lacks."""
        ((_, plan),) = self.plans([client])
        return plan

    def bring_up(self, client: int) -> None:
        """Let the client rebuild the present model."""
        self.clients[client].replica.catch_up(self.plan_for(client).records)

    def play_round(self, round_: Participation, *, backwards: bool = False) -> None:
        """One round through the wire; ``backwards`` lets the replies arrive in reverse order."""
        arrived: list[bytes] = []
        for client, plan in self.plans(round_.clients):
            answer = client.handle(plan)
            self.watch.replied(client, plan, answer)
            self.heard[len(self.records), client.id] = plan, replace(answer, scalars=answer.scalars.copy())
            reply = self.ledger.sent(answer.client, answer, upwards=True)
            self.carried[client.id][1] += len(reply)
            if client.id not in round_.lost:
                arrived.append(reply)
        self.records.append(self.delivery.close(reversed(arrived) if backwards else arrived))
        self.watch.closed(self.records[-1])


def play(
    implementation: Implementation,
    case: Case,
    rounds: Iterable[Participation] | None = None,
    *,
    clients: Iterable[AnyClient] | None = None,
    backwards: bool = False,
    policy: PullPolicy | None = None,
    with_model: bool = True,
    watch: RoundWatch | None = None,
) -> Played:
    """Play the rounds of ``case`` (or the given ones) with its clients (or the given ones)."""
    made = (implementation.client(case, i) for i in range(case.M)) if clients is None else clients
    delivery = implementation.delivery(case, policy, with_model=with_model)
    played = Played(delivery, list(made), watch=watch or RoundWatch())
    for round_ in case.rounds if rounds is None else rounds:
        played.play_round(round_, backwards=backwards)
    return played
