"""The server: plans rounds, aggregates scalars, keeps the history; it needs no model.

Its ``Terms`` are what a run's rounds may be, which server and clients know before it starts; its ``PullPolicy`` says
whether who missed rounds is sent the records of these, or the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.noise import Distribution, derive_seed
from decomfl_lab.protocol.aggregation import Aggregation, Mean, Weights, weighed_mean
from decomfl_lab.protocol.messages import Held, Kind, Plan, Reply
from decomfl_lab.protocol.wire import encode
from decomfl_lab.records.record import History, RoundRecord, require_sound
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import POOL, Seeding, StepSeed, draw_seeds

if TYPE_CHECKING:
    from decomfl_lab.replicas.replica import Replica, Snapshot

# Every kind of random choice has a number, so that no two share a generator.
_SAMPLING = 1
DIRECTIONS = 2


class Tracking(StrEnum):
    """Who remembers which round a client holds."""

    SERVER = "server"  # the server: a number for each client
    CLIENTS = "clients"
    """Each client its own: it says so when it is sampled, and the server keeps nothing about anybody."""


@lru_cache(maxsize=64)
def sample_clients(seed: int, r: int, M: int, m: int) -> tuple[int, ...]:
    """C_r: m of M clients, or all of fewer, uniformly without replacement; a pure function of (seed, r), sorted."""
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_SAMPLING, r)))
    return tuple(sorted(int(i) for i in generator.choice(M, size=min(m, M), replace=False)))


@dataclass
class Server:
    """DeComFL's server, sans I/O: ``plan_round`` → replies → ``aggregate``; options of a run have its ranges.

    Source: [DeComFL, Algorithm 3; appendix "Reduce the Memory on the Server Side"].
    """

    M: int  # the number of clients
    m: int  # the number of clients sampled a round, 1..M
    K: int  # the number of local steps
    P: Schedule[int]  # the number of directions a step, a schedule over rounds
    eta: Schedule[float]  # the learning rate η, a schedule over rounds
    seed: int  # the seed from which everything random derives: directions and the sampled clients
    distribution: Distribution = Distribution.GAUSSIAN  # the distribution of the directions z
    replica: Replica | None = None  # the server's own model, or None: the algorithm does not need one
    seeding: Seeding = Seeding.PER_STEP  # how many seeds travel
    tracking: Tracking = Tracking.SERVER  # says who remembers t_i, the server or the clients
    # the most records that are kept, the newest; 0 for as many as someone may need. With ``tracking`` by the server
    # those are the records since min_i t_i; with tracking by the clients the server cannot know which are needed, and
    # forgets none.
    keep: int = 0
    pool: int = POOL  # the directions S of the pool, where they come from one (seeding POOL)
    # the rule that makes a round's scalars of the replies; m must be as many as it needs at least
    aggregation: Aggregation = Mean()  # noqa: RUF009
    history: History = field(default_factory=History)  # the records
    held: list[int] = field(default_factory=list)  # the round t_i of every client, empty if the clients track it
    weights: Weights = field(default_factory=Weights)  # what each client weighs in a round's mean
    # M_r, how many clients there are in a round, where some of the M join later; None for all M
    present: Schedule[int] | None = None

    def __post_init__(self) -> None:
        least = self.aggregation.least
        require(self.m >= least, "sampled clients m", f"be at least {least} for {self.aggregation}", self.m)
        if self.present is not None:
            first, *later = self.present.initial, *self.present.changes.values()
            require_int(f"clients in round 0, for {self.aggregation},", first, least, self.M)
            for number in later:
                require_int("clients in a later round", number, first, self.M)
        if self.tracking is Tracking.SERVER:
            self.held = self.held or [0] * self.M
        self._planned: dict[int, Plan] = {}

    @property
    def round(self) -> int:
        """r, the round to be planned or under way."""
        return self.history.end

    @property
    def run_seed(self) -> int:
        """The seed that every round's derive from: what clients are told once if no record carries seeds."""
        return derive_seed(self.seed, DIRECTIONS)

    @property
    def planned(self) -> Mapping[int, Plan]:
        """The plans of the round under way, none between two rounds."""
        return self._planned

    def sample(self) -> tuple[int, ...]:
        """C_r: m of M clients, uniformly without replacement."""
        return self.sampled(self.round)

    def sampled(self, r: int) -> tuple[int, ...]:
        """C_r of any round: m of the M_r clients that are there, or all of fewer."""
        return sample_clients(self.seed, r, self.M if self.present is None else self.present(r), self.m)

    def plan_round(
        self, participants: Sequence[int] | None = None, reports: Iterable[Held] | None = None
    ) -> dict[int, Plan]:
        """The plans of round r, one a sampled client, in the order of the clients' numbers.

        Args:
            participants: The clients that take part; None for ``sample``.
            reports: The round that each participant holds, where clients track it themselves.

        Raises:
            InputError: If a participant does not exist, stands twice, says nothing or nonsense of what it holds, or
                needs records that are gone.
        """
        participants = self.sample() if participants is None else participants
        require(len(set(participants)) == len(participants) > 0, "participants", "be distinct", participants)
        for client in participants:
            require_int("participant", client, 0, self.M - 1)
        held = self._held(participants, reports)
        self._planned = {client: self._plan(client, held[client]) for client in sorted(participants)}
        return dict(self._planned)

    def plan(self, client: int, r: int) -> Plan:
        """The plan of the round under way for one client, which holds round r; others keep theirs.

        InputError if there is no such client or round, or records that it needs are gone.
        """
        require_int("participant", client, 0, self.M - 1)
        require_int(f"round that client {client} holds", r, 0, self.round)
        self._planned[client] = self._plan(client, r)
        return self._planned[client]

    def _plan(self, client: int, r: int) -> Plan:
        if r < self.history.start:
            raise InputError(
                f"client {client} holds round {r}, but the oldest record kept is of round {self.history.start} "
                f"(history {self.keep}): it can only pull the model"
            )
        now, P = self.round, self.P(self.round)
        seeds = draw_seeds(self.seeding, self.run_seed, now, self.K, P, self.pool)  # once for all of a round
        return Plan(now, self.eta(now), P, self.distribution, seeds, self.history.since(r))

    def _held(self, participants: Sequence[int], reports: Iterable[Held] | None) -> Mapping[int, int]:
        """{i: t_i} of the participants: as the server has it tracked, or as they report."""
        if self.tracking is Tracking.SERVER:
            require(reports is None, "reports", "be left out where the server tracks the clients", reports)
            return {client: self.held[client] for client in participants}
        held: dict[int, int] = {}
        for report in reports or ():
            require(report.client in participants, "client of a report", f"be one of {participants}", report.client)
            same = held.setdefault(report.client, report.round) == report.round
            require(same, "client of a report", "say one round", report)
        silent = sorted(set(participants) - set(held))
        rule = "come from every participant: the clients track their rounds"
        require(not silent, "reports", rule, f"none of {silent}")
        for client, r in held.items():
            require_int(f"round that client {client} reports", r, 0, self.round)
        return held

    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        """Aggregate the replies of the planned round into its record, store it, and forget what nobody needs.

        A planned client whose reply never comes is left out of it and counted as still lagging. InputError if a reply
        is of another round, of a client not planned, doubled, of another shape, or not finite, of a client that has not
        said its number of examples where that is its weight, or there are fewer than the aggregation needs; nothing is
        stored then.
        """
        by_client: dict[int, Reply] = {}
        for reply in replies:
            self.check(reply)
            require(reply.client not in by_client, "client of a reply", "reply once", reply.client)
            by_client[reply.client] = reply
        require(bool(by_client), f"replies of round {self.round}", "number at least 1", 0)
        clients = sorted(by_client)
        plan = self._planned[clients[0]]
        answers = [by_client[client].scalars for client in clients]
        weights = self.weights.of(clients)
        scalars = self.aggregation(answers) if weights is None else weighed_mean(answers, weights)
        record = RoundRecord(plan.round, plan.eta, plan.distribution, plan.seeds, scalars)
        self.store(record, clients)
        return record

    def store(self, record: RoundRecord, answered: Iterable[int]) -> None:
        """Take the record of the present round, which these clients answered, and forget what nobody needs.

        InputError if it is of another round.
        """
        require(record.round == self.round, "round of the record", f"be {self.round}", record.round)
        if self.replica is not None:
            there = self.replica.round
            require(there == record.round, "round of the server's model", f"be {record.round}", there)
            self.replica.catch_up([record])
        self.history.append(record)
        if self.tracking is Tracking.SERVER:
            for client in answered:
                self.held[client] = record.round  # x_r; the record of round r is still to come to it
        self._prune()
        self._planned = {}

    def _prune(self) -> None:
        """Forget what nobody needs, and whatever is older than the last ``keep`` records."""
        if self.tracking is Tracking.SERVER:
            self.history.prune(min(self.held))  # whoever holds x_t still needs the records t, t + 1, ...
        if self.keep:
            self.history.prune(self.round - self.keep)

    def check(self, reply: Reply) -> None:
        """InputError unless the reply is one to a plan of the round under way, of its shape and type, and sound."""
        plan = self._planned.get(reply.client)
        if plan is None:
            raise InputError(
                f"client of a reply must be one planned for round {self.round} "
                f"({sorted(self._planned)}), got {reply.client}"
            )
        whose = f"round of client {reply.client}'s reply"
        require(reply.round == plan.round, whose, f"be {plan.round}", reply.round)
        form = reply.scalars.dtype, reply.scalars.shape
        if form != (np.dtype(self.aggregation.dtype), (plan.K, plan.P)):  # asked first, as the words take time
            rule = f"be {self.aggregation.dtype.__name__} of shape (K, P) = {(plan.K, plan.P)}"
            require(False, f"scalars of client {reply.client}", rule, form)
        name = f"scalars of client {reply.client} in round {plan.round}"
        hint = " (a smaller learning rate may help)"
        require_sound(name, reply.scalars, hint)
        self.weights.of([reply.client])

    def note_examples(self, client: int, n: int) -> None:
        """Remember how many examples ``client`` has, which is its weight; InputError as ``Weights.note``."""
        require_int("client", client, 0, self.M - 1)
        self.weights.note(client, n)

    def dense_model(self) -> Snapshot:
        """The server's model for a pull; InputError if it keeps none."""
        if self.replica is None:
            raise InputError("the server keeps no model, so there is none to pull")
        return self.replica.snapshot()

    def note_dense_pull(self, client: int) -> None:
        """Remember that ``client`` now holds the model of the present round."""
        require_int("client", client, 0, self.M - 1)
        if self.tracking is Tracking.SERVER:
            self.held[client] = self.round
        self._prune()


@dataclass(frozen=True)
class Terms:
    """All of a plan or a record but its scalars, as a function of the round."""

    K: int  # the number of local steps
    P: Schedule[int]  # the number of directions a step, a schedule over rounds
    eta: Schedule[float] | None  # the learning rate η, a schedule over rounds; None where only the records have it
    distribution: Distribution  # the distribution of the directions z
    seeding: Seeding  # how many seeds travel
    run_seed: int  # the seed that every round's derive from
    dtype: type[np.float32] | type[np.int8]  # the type of a record's scalars, float32 or int8 for signs
    pool: int = POOL  # the directions S of the pool, where they come from one
    weighs: bool = False  # whether clients say how many examples they have, which is what they weigh

    @classmethod
    def of(cls, server: Server) -> Self:
        """The terms that a server made of the same configuration would keep."""
        rest = server.run_seed, server.aggregation.dtype, server.pool, server.weights.wanted
        return cls(server.K, server.P, server.eta, server.distribution, server.seeding, *rest)

    def seeds(self, r: int) -> Sequence[StepSeed]:
        """The seeds of round r."""
        return draw_seeds(self.seeding, self.run_seed, r, self.K, self.P(r), self.pool)

    def check(self, head: Plan | RoundRecord) -> None:
        """InputError that names what of a plan or a record is not as agreed."""
        r = head.round
        whose = f"of the {'plan' if isinstance(head, Plan) else 'record'} of round {r}"
        agreed: dict[str, tuple[Any, Any]] = {
            "K and P": ((head.K, head.P), (self.K, self.P(r))),
            "eta": (head.eta, head.eta if self.eta is None else self.eta(r)),
            "distribution": (head.distribution, self.distribution),
            "seeding": (head.seeding, self.seeding),
        }
        if isinstance(head, RoundRecord):
            agreed["type of the scalars"] = head.scalars.dtype, np.dtype(self.dtype)
        for name, (found, wanted) in agreed.items():
            require(found == wanted, f"{name} {whose}", f"be {wanted}, as in the run's configuration", found)
        same = head.seeds == self.seeds(r)
        require(same, f"seeds {whose}", "be those that derive from the run's seed", "others")


@dataclass(frozen=True)
class PullPolicy:
    """Send whatever is there sooner.

        replay: bytes(records) / bandwidth + pairs · d · ns · 10⁻⁹,    pull: bytes(model and state) / bandwidth

    Numbers are given, not measured on the way, so that a run repeats.
    """

    bandwidth: float = 12.5e6  # the bytes a second of the link to a client
    # The nanoseconds that a client needs for one element and missed direction (``decomfl bench rebuild`` measures it).
    replay_ns: float = 1.0

    def pulls(self, records: Sequence[RoundRecord], *, d: int, vectors: int, bytes_per_element: int) -> bool:
        """Whether a client that lacks ``records`` is sent the model.

        Args:
            records: The records that it missed.
            d: The number of parameters.
            vectors: 1 + the number of the rule's state vectors: a pull needs all of them.
            bytes_per_element: The size of a number that is sent, 4 or 8.
        """
        pairs = sum(record.scalars.size for record in records)
        replay_bytes = len(encode(tuple(records))) if records else 0
        pull_bytes = vectors * (Kind.VECTOR.bytes() + bytes_per_element * d)
        replay_seconds = replay_bytes / self.bandwidth + pairs * d * self.replay_ns * 1e-9
        return pull_bytes / self.bandwidth < replay_seconds
