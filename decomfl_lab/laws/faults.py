"""Wrong implementations. Each has one planted fault of a kind that is easily made; the laws must catch all."""

from __future__ import annotations

import copy
import itertools
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from decomfl_lab import noise
from decomfl_lab.devices import on_host
from decomfl_lab.laws.contract import AnyClient, AnyServer, AnyWeighingServer, Case, Implementation
from decomfl_lab.laws.edge import ByInstruction
from decomfl_lab.noise import Backend, Distribution, Op, Program, reference
from decomfl_lab.noise.program import Code
from decomfl_lab.noise.spec import TILE
from decomfl_lab.objectives.objective import Objective, Perturbable
from decomfl_lab.protocol.aggregation import Aggregation, ClippedMean, Krum, Majority, Mean, TrimmedMean
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.messages import Held, Message, Plan, Reply
from decomfl_lab.protocol.server import Server
from decomfl_lab.protocol.weights import Weighting, Weights
from decomfl_lab.protocol.wire import HEADER_BYTES, Kind
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import DerivedSeeds, PooledSeeds, pooled
from decomfl_lab.replicas.making import kind_of
from decomfl_lab.replicas.pooled import PooledReplica
from decomfl_lab.replicas.rebuild import rebuild_
from decomfl_lab.replicas.replica import Replica, Snapshot, SyncReplica
from decomfl_lab.replicas.rules import GridSgd, Step

__all__ = ["FAULTS", "NARROW", "NOT_SHOWN", "Planted", "fault", "narrow"]

_F32 = NDArray[np.float32]
_F64 = NDArray[np.float64]
_Floats = _F32 | _F64


class Planted(Implementation):
    """The lab's implementation with a fault.

    Attributes:
        caught_by: Name of the law that is meant to catch it.
        wrong: The faulty class that takes the place of one of the lab's, if one does.
    """

    def __init__(self, name: str, caught_by: str, wrong: Any = None) -> None:
        self.name = name
        self.caught_by = caught_by
        self.wrong = wrong
        FAULTS[name] = self


FAULTS: dict[str, Planted] = {}
"""The planted faults by name, wrong implementations, each with the law that catches it."""


NARROW: dict[str, Callable[[Case], bool]] = {
    "central only": lambda case: case.estimator == "central",
    "projection only": lambda case: case.estimator == "projection",
    "float32 only": lambda case: case.dtype is torch.float32,
    "P = 1": lambda case: case.P.largest == 1,
    "K = 1": lambda case: case.K == 1,
}
"""What somebody may support alone, as a method ``supports`` that accepts nothing else."""

_NO_VOTES = "votes are signs, which nobody sends there"
NOT_SHOWN = {
    "revert-forgotten, K = 1": "a client takes no step after the last that it measures, and there is no other",
    "measured-after-the-step, projection only": "it is a fault of differences, which are not measured there",
    "nothing-from-the-second-step-on, K = 1": "there is no second step",
    "votes-have-weights, central only": _NO_VOTES,
    "votes-have-weights, projection only": _NO_VOTES,
}
"""The faults behind a narrow ``supports`` that no case can show there, each with the reason."""


def narrow(faults: Mapping[str, Planted]) -> dict[str, Planted]:
    """Every tenth of the faults behind each narrow ``supports``, but those that it hides, by "fault, what alone"."""
    found: dict[str, Planted] = {}
    for name in list(faults)[::10]:
        for alone, supports in NARROW.items():
            made: Any = copy.copy(faults[name])
            made.name, made.supports = f"{name}, {alone}", supports
            found |= {} if made.name in NOT_SHOWN else {made.name: made}
    return found


class _Faulty(Planted):
    """The lab's implementation with a client, server, replica or ledger exchanged for a faulty one."""

    def _kind(self, right: type) -> Any:
        return self.wrong if right in self.wrong.__bases__ else right

    def replica(self, case: Case, *, per_tensor: bool = False) -> Replica:
        return self._replica(case, per_tensor=per_tensor)

    def _replica(self, case: Case, *, per_tensor: bool = False) -> Replica:
        sizes = case.sizes if per_tensor else None
        made: Replica = self._kind(kind_of(case.rule))(case.initial(), case.rule, sizes=sizes)
        return made

    def client(self, case: Case, i: int, objective: Objective | None = None) -> Client:
        right: Any = super().client(case, i, objective)
        made: Client = self._kind(Client)(i, right.replica, right.objective, right.estimator, right.mu)
        return made

    def server(self, case: Case, *, with_model: bool = True) -> Server:
        right: Any = super().server(case, with_model=with_model)
        made: Server = self._kind(Server)(**{own.name: getattr(right, own.name) for own in fields(Server)})
        return made

    def weighing_server(self, case: Case) -> AnyWeighingServer:
        server: Any = super().weighing_server(case)
        server.weights = self._kind(Weights)(Weighting.EXAMPLES)
        return cast("AnyWeighingServer", server)

    def ledger(self, case: Case) -> Ledger:
        made: Ledger = self._kind(Ledger)(case.M)
        return made


class _FaultySync(Planted):
    """The lab's implementation with a replica that synchronises wrongly."""

    def sync_client(self, case: Case, i: int) -> Client:
        right: Any = super().sync_client(case, i)
        replica = self.wrong(case.initial(), case.rule)
        return Client(i, replica, right.objective, right.estimator, right.mu)


class _FaultyBackend(Planted):
    """The lab's implementation with one more backend, which is wrong."""

    def backends(self) -> dict[str, Backend]:
        return {self.name: self.wrong}


def fault(caught_by: str, right: type, method: str) -> Callable[[Callable[..., object]], None]:
    """Plant a function instead of a method of a class of the lab's; the fault has the function's name."""

    def plant(wrong: Callable[..., object]) -> None:
        name = wrong.__name__.replace("_", "-")
        computed = isinstance(getattr(right, method, None), property)
        kind: Any = type(wrong.__name__, (right,), {method: property(wrong) if computed else wrong})
        if right is Planted:
            kind(name, caught_by)
        elif right is ByInstruction:
            _FaultyBackend(name, caught_by, kind())
        else:
            (_FaultySync if right is SyncReplica else _Faulty)(name, caught_by, kind)

    return plant


_REBUILT = "rebuilt-client-equals-server"
_RECURSION = "replay-equals-the-written-out-recursion"
_REVERT = "revert-leaves-every-bit"
_PRUNING = "pruning-keeps-what-is-needed"
_LEDGER = "ledger-counts-what-is-sent"
_WIRE = "the-wire-keeps-every-bit"
_SAMPLING = "sampling-is-without-replacement"
_REPEATS = "runs-repeat-from-one-seed"
_PROGRAMS = "programs-agree-however-cut"
_WEIGHED = "records-are-weighed-by-examples"
_JOINS = "who-joins-equals-who-was-never-sampled"
_SYNC = "synchronised-clients-drift-within-their-roundings"


# Clients ---------------------------------------------------------------------------------------------------------


def _stepped(client: Client, plan: Plan) -> tuple[Snapshot, Reply]:
    """What was before the local steps, which are not taken back, and the answer."""
    client.replica.catch_up(plan.records)
    before = client.replica.snapshot()
    return before, Reply(client.id, plan.round, *client.local_update(plan))


@fault(_REVERT, Client, "handle")
def revert_forgotten(self: Client, plan: Plan) -> Reply:
    """Leaves the local steps in its replica."""
    return _stepped(self, plan)[1]


@fault(_REVERT, Client, "handle")
def momentum_not_reverted(self: Client, plan: Plan) -> Reply:
    """Brings back x alone."""
    before, reply = _stepped(self, plan)
    self.replica.x.copy_(before.x)
    return reply


@fault(_REVERT, Client, "handle")
def revert_by_arithmetic(self: Client, plan: Plan) -> Reply:
    """Undoes the local steps by adding back what they subtracted, as eq. (sync) does in real arithmetic."""
    before, reply = _stepped(self, plan)
    if self.replica.state:
        self.replica.restore(before)
        return reply
    for k in reversed(range(plan.K - 1)):
        self.replica.step_(Step(plan.seeds[k], -reply.scalars[k], plan.eta, plan.distribution))
    return reply


@fault(_REVERT, Client, "handle")
def maximum_not_reverted(self: Client, plan: Plan) -> Reply:
    """Brings back x and every state vector but ZO-AdaMM's maximum."""
    before, reply = _stepped(self, plan)
    kept = {slot: self.replica.state[slot] for slot in before.state if slot == "maximum"}
    self.replica.restore(replace(before, state={**before.state, **kept}))
    return reply


@fault(_REVERT, Client, "handle")
def grid_undone_in_part(self: Client, plan: Plan) -> Reply:
    """Takes back all steps on the grid but the first."""
    if not isinstance(self.replica.rule, GridSgd):
        return Client.handle(self, plan)
    self._taken.clear()
    _, reply = _stepped(self, plan)
    for step in reversed(self._taken[1:]):
        self.replica.step_back_(step)
    return reply


@fault(_REVERT, Client, "handle")
def state_of_own_scalars(self: Client, plan: Plan) -> Reply:
    """Updates the scale of its directions by its own scalars, instead of the averaged ones that come later."""
    reply = Client.handle(self, plan)
    if self.replica.rule.scaling:
        self.replica.step_(Step(plan.seeds[-1], reply.scalars[-1], plan.eta, plan.distribution))
    return reply


@fault(_REBUILT, Client, "handle")
def learning_rate_of_the_present(self: Client, plan: Plan) -> Reply:
    """Replays what it missed with the learning rate of the plan."""
    records = tuple(replace(record, eta=plan.eta) for record in plan.records)
    return Client.handle(self, replace(plan, records=records))


@fault(_REBUILT, Client, "_catch_up")
def lacking_records_not_missed(self: Client, plan: Plan) -> None:
    """Measures at the x that it has where a plan lacks records."""
    self.replica.catch_up(plan.records)
    self._taken.clear()


@fault("reply-order-does-not-matter", Server, "aggregate")
def client_order_changed(self: Server, replies: Iterable[Reply]) -> RoundRecord:
    """Adds the scalars in float32 in the order in which they arrive."""
    arrived = list(replies)
    if not arrived or arrived[0].scalars.dtype == np.int8:
        return Server.aggregate(self, arrived)
    total = np.zeros_like(arrived[0].scalars)
    for reply in arrived:
        total += reply.scalars
    mean = (total / np.float32(len(arrived))).astype(np.float32)
    return Server.aggregate(self, [replace(reply, scalars=mean) for reply in arrived])


# Replicas --------------------------------------------------------------------------------------------------------


@fault(_REBUILT, Replica, "catch_up")
def round_skipped(self: Replica, records: Iterable[RoundRecord]) -> int:
    """Leaves out the second of the rounds that it missed."""
    missed = [record for record in records if record.round >= self.round]
    for n, record in enumerate(missed):
        if n == 1:
            self.round += 1
        else:
            self.apply(record)
    return len(missed)


@fault("history-in-pieces-equals-in-one-go", Replica, "catch_up")
def rate_of_the_last_for_all(self: Replica, records: Iterable[RoundRecord]) -> int:
    """Replays a lag with the learning rate of its last round."""
    records = list(records)
    return Replica.catch_up(self, (replace(record, eta=records[-1].eta) for record in records))


@fault(_RECURSION, Replica, "_program")
def decay_forgotten(self: Replica) -> Program:
    """Leaves weight decay out, as all others do."""
    rule: Any = self.rule
    if hasattr(rule, "weight_decay"):
        self.rule = replace(rule, weight_decay=0.0)
    return Replica._program(self)


@fault(_RECURSION, Replica, "_real")
def steps_go_uphill(self: Replica, step: Step) -> Step:
    """Adds the estimate of the gradient, as all others do."""
    return replace(Replica._real(self, step), scalars=-on_host(step.scalars))


@fault(_RECURSION, Replica, "_real")
def scale_moves_within_a_round(self: Replica, step: Step) -> Step:
    """Updates the scale of directions in every local step, as all others do, so that clients measure along others."""
    return replace(Replica._real(self, step), last=True)


@fault("a-gap-is-refused", Replica, "catch_up")
def gap_accepted(self: Replica, records: Iterable[RoundRecord]) -> int:
    """Applies a record of whatever round as if it were the next."""
    missed = [record for record in records if record.round >= self.round]
    for record in missed:
        self.round = record.round
        self.apply(record)
    return len(missed)


@fault("clients-may-share-what-is-equal", Replica, "own")
def writes_to_shared_vectors(self: Replica) -> None:
    """Steps on in vectors that others hold too."""
    self._shared = False


@fault("whole-vector-equals-per-tensor", Replica, "_run")
def tensors_restart_the_stream(self: Replica, program: Program) -> None:
    """Starts every tensor at position 0 of the stream."""
    self.own()
    cut = {name: vector.split(self.sizes) for name, vector in {"x": self.x, **self.state}.items()}
    for n in range(len(self.sizes)):
        rebuild_(program, [{name: parts[n] for name, parts in cut.items()}])


@fault(_RECURSION, PooledReplica, "_apply_all")
def sums_in_single(self: PooledReplica, records: Sequence[RoundRecord]) -> None:
    """Rounds the sums of a pool to float32 after every record."""
    for record in records:
        PooledReplica._apply_all(self, [record])
        self.state = {**self.state, "sums": self.state["sums"].float().to(torch.int32)}


@fault(_RECURSION, PooledReplica, "_apply_all")
def place_off_by_one(self: PooledReplica, records: Sequence[RoundRecord]) -> None:
    """Adds to the sum beside the one that was meant."""

    def moved(seeds: PooledSeeds) -> PooledSeeds:
        return replace(seeds, places=tuple(tuple((j + 1) % self.rule.size for j in own) for own in seeds.places))

    PooledReplica._apply_all(self, [replace(record, seeds=moved(pooled(record.seeds))) for record in records])


# Servers ---------------------------------------------------------------------------------------------------------


@fault(_PRUNING, Server, "aggregate")
def pruned_too_far(self: Server, replies: Iterable[Reply]) -> RoundRecord:
    """Forgets what only the client that is furthest on has."""
    record = Server.aggregate(self, replies)
    self.history.prune(max(self.held, default=self.round))
    return record


@fault(_PRUNING, Server, "aggregate")
def never_pruned(self: Server, replies: Iterable[Reply]) -> RoundRecord:
    """Keeps every record."""
    start = self.history.start
    kept = self.history.since(start)
    record = Server.aggregate(self, replies)
    self.history = type(self.history)((*kept, record), start)
    return record


@fault("dense-pull-equals-replay", Server, "dense_model")
def pull_without_state(self: Server) -> Snapshot:
    """Sends x and zeros for the optimizer's state."""
    right = Server.dense_model(self)
    return replace(right, state={slot: torch.zeros_like(v) for slot, v in right.state.items()})


@fault("any-order-of-events-keeps-the-bits", Server, "note_dense_pull")
def pull_prunes_for_all(self: Server, client: int) -> None:
    """Forgets all records when one client has pulled the model."""
    Server.note_dense_pull(self, client)
    self.history.prune(self.round)


def _replanned(server: Server, asked: Sequence[Any], wrong: Callable[[Plan], Plan]) -> dict[int, Plan]:
    server._planned = {i: wrong(plan) for i, plan in Server.plan_round(server, *asked).items()}
    return dict(server._planned)


@fault(_RECURSION, Server, "plan_round")
def rate_of_the_round_before(self: Server, *asked: Any) -> dict[int, Plan]:
    """Plans a round with the learning rate of the one before."""
    return _replanned(self, asked, lambda right: replace(right, eta=self.eta(max(self.round - 1, 0))))


@fault("the-server-needs-no-model", Server, "aggregate")
def model_decides(self: Server, replies: Iterable[Reply]) -> RoundRecord:
    """Halves every scalar where it keeps no model."""
    arrived = list(replies)
    if self.replica is None and self.aggregation.dtype is np.float32:
        half = np.float32(0.5)
        arrived = [replace(reply, scalars=half * reply.scalars) for reply in arrived]
    return Server.aggregate(self, arrived)


@fault("fewer-seeds-give-the-same-models", Server, "plan_round")
def round_forgotten_in_seeds(self: Server, *asked: Any) -> dict[int, Plan]:
    """Step seeds derive from the run's seed alone where they are not sent."""

    def wrong(right: Plan) -> Plan:
        derived = isinstance(right.seeds, DerivedSeeds)
        return replace(right, seeds=DerivedSeeds(self.run_seed, right.K, right.seeding)) if derived else right

    return _replanned(self, asked, wrong)


@fault("each-direction-can-have-its-seed", Server, "plan_round")
def one_seed_for_all_directions(self: Server, *asked: Any) -> dict[int, Plan]:
    """The directions of a step have seeds of their own, all the same."""

    def wrong(right: Plan) -> Plan:
        own = tuple((seed[0],) * right.P for seed in right.seeds if isinstance(seed, tuple))
        return replace(right, seeds=own or right.seeds)

    return _replanned(self, asked, wrong)


@fault("clients-can-track-their-round", Server, "_held")
def report_ignored(self: Server, participants: Sequence[int], reports: Iterable[Held] | None) -> Mapping[int, int]:
    """Sends everybody everything from the start."""
    return dict.fromkeys(Server._held(self, participants, reports), self.history.start)


@fault("a-bounded-history-is-enough", Server, "_prune")
def queue_too_long(self: Server) -> None:
    """Keeps one record more than it may."""
    self.history.prune(self.round - self.keep - 1 if self.keep else 0)


@fault("bad-replies-are-refused", Server, "check")
def any_reply_accepted(self: Server, reply: Reply) -> None:
    """Looks only at who answers."""
    if reply.client not in self._planned:
        Server.check(self, reply)


@fault("bad-replies-are-refused", Server, "aggregate")
def votes_have_weights(self: Server, replies: Iterable[Reply]) -> RoundRecord:
    """Adds up what is sent instead of signs: who says 100 has a hundred votes."""
    arrived = list(replies)
    if arrived and arrived[0].scalars.dtype == np.int8:
        said = np.where(np.sum([reply.scalars for reply in arrived], axis=0) >= 0, 1, -1).astype(np.int8)
        arrived = [replace(reply, scalars=said) for reply in arrived]
    return Server.aggregate(self, arrived)


@fault(_WEIGHED, Weights, "of")
def weights_ignored(self: Weights, clients: Iterable[int]) -> tuple[int, ...] | None:
    """Gives every client the same weight, whatever it has said."""
    right = Weights.of(self, clients)
    return None if right is None else (1,) * len(right)


@fault(_WEIGHED, Weights, "of")
def weights_of_the_next_client(self: Weights, clients: Iterable[int]) -> tuple[int, ...] | None:
    """Gives each client the weight of the one that stands after it among those that answered."""
    right = Weights.of(self, clients)
    return None if right is None else (*right[1:], *right[:1])


@fault(_WEIGHED, Weights, "of")
def silent_clients_count_once(self: Weights, clients: Iterable[int]) -> tuple[int, ...] | None:
    """Takes a client that has not said how many examples it has for one that has one."""
    return tuple(self.examples.get(client, 1) for client in clients) if self.wanted else None


@fault("a-client-counts-as-its-examples", Weights, "of")
def weights_are_roots(self: Weights, clients: Iterable[int]) -> tuple[int, ...] | None:
    """Weighs clients by the square roots of their examples."""
    right = Weights.of(self, clients)
    return None if right is None else tuple(map(math.isqrt, right))


@fault(_WEIGHED, Weights, "note")
def numbers_may_change(self: Weights, client: int, n: int) -> None:
    """Lets a client say another number of examples later."""
    self.examples.pop(client, None)
    Weights.note(self, client, n)


@fault(_WEIGHED, Weights, "note")
def any_number_of_examples(self: Weights, client: int, n: int) -> None:
    """Takes whatever number a client says first."""
    if self.examples.setdefault(client, n) != n:
        Weights.note(self, client, n)


@fault(_WEIGHED, Server, "aggregate")
def divided_by_the_number_of_clients(self: Server, replies: Iterable[Reply]) -> RoundRecord:
    """Divides the weighed sum by how many clients answered."""
    arrived = list(replies)
    if weights := self.weights.of(reply.client for reply in arrived):
        much = np.float32(sum(weights) / len(weights))
        arrived = [replace(reply, scalars=much * reply.scalars) for reply in arrived]
    return Server.aggregate(self, arrived)


# Ledgers ---------------------------------------------------------------------------------------------------------


@fault("pulling-or-replaying-is-a-matter-of-cost", Ledger, "vector")
def pull_not_counted(self: Ledger, client: int, r: int, x: _Floats, *, upwards: bool) -> bytes:
    """Counts no element of a model that is sent."""
    message = Ledger.vector(self, client, r, x, upwards=upwards)
    self.down[client].scalars -= x.size
    return message


@fault(_LEDGER, Ledger, "reply")
def uplink_not_counted(self: Ledger, reply: Reply) -> bytes:
    """Counts no scalar of a reply."""
    message = Ledger.reply(self, reply)
    self.up[reply.client].scalars -= reply.scalars.size
    return message


@fault(_LEDGER, Ledger, "reply")
def header_not_counted(self: Ledger, reply: Reply) -> bytes:
    """Counts a reply without its header."""
    message = Ledger.reply(self, reply)
    self.up[reply.client].bytes -= HEADER_BYTES
    return message


@fault(_REBUILT, Ledger, "pool")
def sums_of_an_earlier_round(self: Ledger, client: int, sums: PoolSums) -> bytes:
    """Sends the sums that the client before got, as if they were those of the round."""
    earlier = vars(self).get("earlier", np.zeros_like(sums.values))
    vars(self)["earlier"] = sums.values
    return Ledger.pool(self, client, replace(sums, values=earlier))


# What else an implementation has ---------------------------------------------------------------------------------


_CLOCK = itertools.count()


@fault(_REPEATS, Planted, "server")
def seed_of_the_clock(self: Planted, case: Case, *, with_model: bool = True) -> AnyServer:
    """Has another seed every time."""
    server: Any = Implementation.server(self, case, with_model=with_model)
    server.seed = next(_CLOCK)
    return cast("AnyServer", server)


@fault(_REPEATS, Planted, "server")
def seed_ignored(self: Planted, case: Case, *, with_model: bool = True) -> AnyServer:
    """Has the same seed in every run."""
    server: Any = Implementation.server(self, case, with_model=with_model)
    server.seed = 0
    return cast("AnyServer", server)


@fault(_JOINS, Server, "run_seed")
def seeds_of_so_many_clients(self: Server) -> int:
    """Draws other seeds where there is another number of clients."""
    return noise.derive_seed(self.seed, self.M)


@fault(_JOINS, Planted, "client")
def batches_shared_in_a_process(self: Planted, case: Case, i: int, objective: Objective | None = None) -> AnyClient:
    """Goes on in its data where the client that was made before it is, as clients do that share a loader."""
    client: Any = Implementation.client(self, case, i, objective)
    before = vars(self).get("before")
    if before is not None and before.id == i - 1:
        client.steps_taken = before.steps_taken
    vars(self)["before"] = client
    return cast("AnyClient", client)


@fault(_WIRE, Planted, "encode")
def scalars_in_half_precision(self: Planted, message: Message) -> bytes:
    """Sends the scalars of a reply with 16 bits."""
    if isinstance(message, Reply) and message.scalars.dtype == np.float32:
        with np.errstate(over="ignore"):
            half = message.scalars.astype(np.float16).astype(np.float32)
        message = replace(message, scalars=half)
    return Implementation.encode(self, message)


def _resealed(message: bytes) -> bytes:
    """The message with the checksum of its body."""
    return message[: HEADER_BYTES - 4] + struct.pack("<I", zlib.crc32(message[HEADER_BYTES:])) + message[HEADER_BYTES:]


class _LeakingPadding(Planted):
    """Fills the last byte of signs up with that of a loss, which is not to be sent, and reads whatever is there."""

    def encode(self, message: Message) -> bytes:
        sent = super().encode(message)
        if not isinstance(message, Reply) or sent[3] != Kind.SIGNS or message.loss >= 0:
            return sent
        return _resealed(sent[:-1] + bytes([sent[-1] | 0xFF & ~(0xFF >> -message.scalars.size % 8)]))

    def decode(self, message: bytes, run_seed: int | None = None) -> Message:
        if message[3:4] == bytes([Kind.SIGNS]):
            K, P = struct.unpack_from("<HH", message, HEADER_BYTES + 8)
            message = _resealed(message[:-1] + bytes([message[-1] & 0xFF >> -K * P % 8]))
        return super().decode(message, run_seed)


_LeakingPadding("padding-leaks", _WIRE)


@fault(_WIRE, Planted, "decode")
def checksum_ignored(self: Planted, message: bytes, run_seed: int | None = None) -> Message:
    """Believes every body, whatever its header's checksum says."""
    return Implementation.decode(self, _resealed(message), run_seed)


@fault(_SAMPLING, Planted, "sample")
def sampled_with_replacement(_: Planted, seed: int, r: int, M: int, m: int) -> Sequence[int]:
    """Samples a client more than once."""
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(r,)))
    return tuple(sorted(int(i) for i in generator.choice(M, size=m)))


@fault(_SAMPLING, Planted, "sample")
def same_clients_every_round(self: Planted, seed: int, _: int, M: int, m: int) -> Sequence[int]:
    """Samples the clients of round 0 in every round."""
    return Implementation.sample(self, seed, 0, M, m)


@fault("aggregates-have-no-order", Planted, "aggregate")
def added_in_order_of_arrival(_: Planted, rule: Aggregation, replies: Sequence[Any]) -> Any:
    """Adds float32 numbers one after another, whatever the rule."""
    del rule
    total = np.zeros_like(replies[0])
    with np.errstate(over="ignore", invalid="ignore"):
        for reply in replies:
            total += reply
    return total / np.float32(len(replies))


@fault("agreement-is-kept", Planted, "aggregate")
def trimmed_but_divided_by_all(_: Planted, rule: Aggregation, replies: Sequence[Any]) -> Any:
    """Divides what is left of a trimmed mean by the number of all clients."""
    left = 1 - 2 * rule.tolerated / len(replies) if isinstance(rule, TrimmedMean) else 1.0
    return rule(replies) * np.float32(left)


@fault("liars-stay-within-the-honest-range", Planted, "aggregate")
def trimmed_above_alone(_: Planted, rule: Aggregation, replies: Sequence[Any]) -> Any:
    """Drops 2f of the largest numbers and none of the smallest."""
    if not isinstance(rule, TrimmedMean):
        return rule(replies)
    return Mean()(list(np.sort(replies, axis=0)[: len(replies) - 2 * rule.tolerated]))


@fault("liars-move-aggregates-by-the-honest-spread", Planted, "aggregate")
def krum_content_with_few_neighbours(_: Planted, rule: Aggregation, replies: Sequence[Any]) -> Any:
    """Krum that asks for the one nearest neighbour, which liars are to each other."""
    if not isinstance(rule, Krum):
        return rule(replies)
    wide = [reply.astype(np.float64) for reply in replies]
    near = [min(float(np.abs(a - b).max()) for b in (*wide[:i], *wide[i + 1 :])) for i, a in enumerate(wide)]
    return replies[min(range(len(near)), key=lambda i: (near[i], -i))]


@fault("krum-takes-one-reply-whole", Planted, "aggregate")
def krum_by_coordinates(_: Planted, rule: Aggregation, replies: Sequence[Any]) -> Any:
    """Chooses a client anew for every scalar."""
    if not isinstance(rule, Krum):
        return rule(replies)
    columns = np.stack(replies).reshape(len(replies), -1, 1, 1)
    return np.array([rule(list(column)) for column in columns.swapaxes(0, 1)]).reshape(replies[0].shape)


@fault("votes-are-counted", Planted, "aggregate")
def ties_go_to_the_last(_: Planted, rule: Aggregation, replies: Sequence[Any]) -> Any:
    """Gives a tied vote to the client that was heard last."""
    if not isinstance(rule, Majority):
        return rule(replies)
    return np.sign(2 * np.sum(replies, axis=0) + replies[-1]).astype(np.int8)


@fault("liars-stay-within-the-honest-range", Planted, "aggregate")
def the_last_has_a_casting_vote(_: Planted, rule: Aggregation, replies: Sequence[Any]) -> Any:
    """Counts a liar, who is heard last, as often as all the others together."""
    if not isinstance(rule, Majority):
        return rule(replies)
    return np.sign(np.sum(replies, axis=0) + len(replies) * replies[-1]).astype(np.int8)


@fault("clipped-means-keep-the-norm", Planted, "aggregate")
def clipped_by_coordinates(_: Planted, rule: Aggregation, replies: Sequence[Any]) -> Any:
    """Clips every scalar to c, not the norm of all."""
    if not isinstance(rule, ClippedMean) or not rule.clip:
        return rule(replies)
    return Mean()([np.clip(reply, -rule.clip, rule.clip).astype(np.float32) for reply in replies])


@fault("clipped-means-keep-the-norm", Planted, "aggregate")
def clipped_to_the_mean_norm(_: Planted, rule: Aggregation, replies: Sequence[Any]) -> Any:
    """Clips to the mean of the norms, which one liar makes what it likes."""
    if not isinstance(rule, ClippedMean) or rule.clip:
        return rule(replies)
    return ClippedMean(float(np.mean([np.linalg.norm(reply.astype(np.float64)) for reply in replies])))(replies)


@fault("streams-are-functions-of-their-counters", Planted, "direction")
def directions_repeat(_: Planted, seed: int, p: int, d: int, distribution: Distribution) -> _F32:
    """Directions of one seed that come back after two."""
    return noise.direction(seed, p // 2, d, distribution=distribution)


@fault("private-keys-hide-the-directions", Planted, "keyed_client")
def private_key_lost(self: Planted, case: Case, i: int, key: int) -> AnyClient:
    """Client 0 never got the private key."""
    client: Any = Implementation.keyed_client(self, case, i, key)
    if i == 0:
        client.replica.private_key = None
    return cast("AnyClient", client)


@fault("lean-clients-are-like-others", Planted, "lean_client")
def lean_the_other_way(self: Planted, case: Case, i: int, objective: Perturbable) -> AnyClient:
    """Lean clients that walk to x − μz."""
    other: Any = copy.copy(objective)
    other.along = lambda x, step, seed, p, c, law: objective.along(x, step, seed, p, -c, law)
    return Implementation.lean_client(self, case, i, other)


@fault(_SYNC, SyncReplica, "diverge")
def own_steps_not_corrected(_: SyncReplica, taken: Iterable[Step]) -> None:
    """Applies the record on top of its own local steps."""
    del taken


@fault(_SYNC, SyncReplica, "_correct")
def corrected_in_single(self: SyncReplica, program: Program, own: Step, step: Step | None) -> None:
    """Rounds the corrections of a float64 model to float32."""
    self.rule.emit_correction(program, self._real(own), step, wide=False)


# Backends --------------------------------------------------------------------------------------------------------


@fault(_PROGRAMS, ByInstruction, "add")
def fused_multiply_add(_: ByInstruction, r: _Floats, c: np.float32, z: _F32) -> None:
    """The product is not rounded before the sum."""
    r[:] = (np.longdouble(c) * z.astype(np.longdouble) + r).astype(r.dtype)


@fault("known-answers-are-given", ByInstruction, "directions")
def words_swapped(_: ByInstruction, key: int, direction: int, first: int, count: int, *of: Any) -> _F32:
    """Words 2 and 3 of a tile change places."""
    tiles = -(-(first + count) // TILE) - first // TILE
    z = reference.directions(key, direction, first // TILE * TILE, tiles * TILE, *of)
    swapped = z.reshape(tiles, 4, 32)[:, [0, 1, 3, 2]].reshape(-1)
    return swapped[first % TILE :][:count]


@fault("slices-and-backends-agree", ByInstruction, "directions")
def tile_off_by_one(_: ByInstruction, key: int, direction: int, first: int, *of: Any) -> _F32:
    """A slice that does not begin where a tile begins gets the next tile's numbers."""
    return reference.directions(key, direction, first + (TILE if first % TILE else 0), *of)


@fault("far-slices-agree", ByInstruction, "directions")
def high_word_forgotten(_: ByInstruction, key: int, direction: int, first: int, *of: Any) -> _F32:
    """The second word of the counter stays 0: directions repeat after 2^34 elements."""
    return reference.directions(key, direction, first % (4 << 32), *of)


@fault(_PROGRAMS, ByInstruction, "instruction")
def rounding_bits_repeat(self: ByInstruction, code: Code, *of: Any) -> int:
    """All vectors of a step are rounded with the same random bits."""
    if code.table[0, 0] == Op.NARROW_RANDOMLY:
        table = code.table.copy()
        table[0, 3] = 0
        code = replace(code, table=table)
    return ByInstruction.instruction(self, code, *of)


class _DoubleWithinAProgram(ByInstruction):
    """Rounds to float32 at the end of a program, not after every instruction."""

    def run(self, code: Code, memory: Sequence[_Floats], first: int, scales: _F32, *, store: bool = True) -> int:
        wide = [vector.astype(np.float64) for vector in memory]
        broken = super().run(code, wide, first, scales)
        if store:
            self.assign(memory, wide)
        return broken

    def instruction(self, code: Code, registers: Sequence[_Floats], first: int, scales: _F32) -> int:
        if code.table[0, 0] not in (Op.NARROW, Op.NARROW_RANDOMLY):
            return super().instruction(code, registers, first, scales)
        single = [np.empty(r.size, np.float32) for r in registers]
        self.assign(single, registers)
        broken = super().instruction(code, single, first, scales)
        self.assign(registers, single)
        return broken

    def assign(self, to: Sequence[_Floats], of: Sequence[_Floats]) -> None:
        with np.errstate(all="ignore"):
            for own, other in zip(to, of, strict=True):
                own[:] = other


_FaultyBackend("double-within-a-program", "one-instruction-at-a-time-agrees", _DoubleWithinAProgram())


@fault("square-sums-agree", ByInstruction, "tile_square_sums")
def squares_in_order(_: ByInstruction, key: int, direction: int, first_tile: int, tiles: int, d: int) -> _F64:
    """The squares of a tile are added one after another, not by halves."""
    z = reference.directions(key, direction, first_tile * TILE, tiles * TILE, Distribution.GAUSSIAN, 1.0)
    squares = z.astype(np.float64) ** 2
    squares[max(d - first_tile * TILE, 0) :] = 0.0
    sums: _F64 = np.add.accumulate(squares.reshape(tiles, TILE), axis=1)[:, -1]
    return sums
