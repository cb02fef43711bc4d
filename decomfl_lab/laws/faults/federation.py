"""Wrong implementations. Each has one planted fault of a kind that is easily made; the laws must catch all."""

import copy
import itertools
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from decomfl_lab import noise
from decomfl_lab.devices import on_host
from decomfl_lab.errors import InputError
from decomfl_lab.laws.contract import Case, Implementation
from decomfl_lab.laws.edge import ByInstruction, fitted
from decomfl_lab.noise import Distribution, Op, Program, reference
from decomfl_lab.noise.program import Code
from decomfl_lab.noise.reference import F32, Floats
from decomfl_lab.noise.spec import TILE
from decomfl_lab.objectives.objective import Objective, Perturbable
from decomfl_lab.protocol.aggregation import Aggregation, ClippedMean, Krum, Majority, Mean, TrimmedMean, Weights
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.ledger import Ledger, Traffic
from decomfl_lab.protocol.messages import HEADER_BYTES, Dense, Kind, Message, Plan, Reply
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.record import RoundRecord, ScalarArray
from decomfl_lab.records.seeds import DerivedSeeds, PooledSeeds, pooled
from decomfl_lab.replicas.pool_sums import PooledReplica
from decomfl_lab.replicas.rebuild import rebuild_
from decomfl_lab.replicas.replica import Replica, Snapshot, SyncReplica
from decomfl_lab.replicas.rules import GridSgd, Step, UpdateRule


class Planted(Implementation):
    """The lab's implementation with a fault."""

    def __init__(self, name: str, caught_by: str, wrong: Any = None, parts: frozenset[str] = frozenset()) -> None:
        self.name = name
        self.caught_by = caught_by  # the name of the law that is meant to catch it
        self.wrong = wrong  # the faulty class that takes the place of one of the lab's, if one does
        self.parts = parts  # those that may have it in them
        FAULTS[name] = self

    def _kind(self, right: type) -> Any:
        return self.wrong if right in getattr(self.wrong, "__bases__", ()) else right

    @property
    def replaced(self) -> frozenset[str]:
        """See ``Implementation.replaced``: what may have the faulty class in it, too."""
        return super().replaced | self.parts


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
    behind: dict[str, Planted] = {}
    for name in list(faults)[::10]:
        for alone, supports in NARROW.items():
            fault: Any = copy.copy(faults[name])
            fault.name, fault.supports = f"{name}, {alone}", supports
            if fault.name not in NOT_SHOWN:
                behind[fault.name] = fault
    return behind


Wrong = Callable[..., Any]
"""What is called instead of a method: with the right one, the part, and the arguments. Or a class with several."""
Row = tuple[str, type, str, Wrong, *tuple[Any, ...]]
"""The law that is to catch a fault, a class of the lab's, a method of it, what is wrong, and its first arguments."""


def plant(rows: Mapping[str, Row]) -> None:
    """Enter faults, each by its name."""
    for name, (caught_by, lab_class, method, called, *before) in rows.items():
        wrong = partial(called, *before) if before else called
        kind: Any = wrong
        if not isinstance(wrong, type):
            kind = type(name, (lab_class,), {method: instead(lab_class, method, wrong)})
        if lab_class is Planted:
            kind(name, caught_by)
        elif lab_class is ByInstruction:  # one more backend, which is wrong
            plant({name: (caught_by, Planted, "backends", lambda _, planted, kind=kind: {planted.name: kind()})})
        else:
            # Of replicas that synchronise one part alone may have the faulty class in it.
            sync = frozenset(("sync_client",))
            parts = frozenset(("replica", "client", "server", "weighing_server", "ledger"))
            Planted(name, caught_by, kind, sync if lab_class is SyncReplica else parts)


def instead(lab_class: type, method: str, wrong: Wrong) -> Any:
    """A method, or a property, that is wrong; inside of it the one that it has the name of is called too."""
    right: Any = getattr(lab_class, method)
    computed = isinstance(right, property)
    called: Any = right.fget if computed else right

    def wrong_one(part: Any, *arguments: Any, **named: Any) -> Any:
        return wrong(partial(called, part), part, *arguments, **named)

    return property(wrong_one) if computed else wrong_one


def then(act: Callable[[Any, Any], object]) -> Wrong:
    """What is right, and then something is done to the part, or to what came of it."""

    def wrong(right: Any, part: Any, *arguments: Any, **named: Any) -> Any:
        result = right(*arguments, **named)
        act(part, result)
        return result

    return wrong


# Clients ---------------------------------------------------------------------------------------------------------


def undone(only: type, undo: Callable[..., object], right: Any, client: Client, plan: Plan) -> Any:
    """What undoes local steps instead of the revert, of what was before these, and of these, where the rule is such."""
    if not isinstance(client.replica.rule, only):
        return right(plan)
    client.replica.catch_up(plan.records)
    client._taken.clear()
    before = client.replica.snapshot()
    reply = Reply(client.id, plan.round, *client.local_update(plan))
    undo(client.replica, before, client._taken[::-1])
    return reply


def by_arithmetic(replica: Replica, before: Snapshot, taken: Sequence[Step]) -> None:
    """Undoes the local steps by adding back what they subtracted, as eq. (sync) does in real arithmetic."""
    if replica.state:
        replica.restore(before)
        return
    for step in taken:
        replica.step_(replace(step, scalars=-on_host(step.scalars), last=True))


def all_but_the_maximum(replica: Replica, before: Snapshot, _: Sequence[Step]) -> None:
    """Brings back x and every state vector but ZO-AdaMM's maximum."""
    maximum = {slot: replica.state[slot] for slot in before.state if slot == "maximum"}
    replica.restore(replace(before, state={**before.state, **maximum}))


def all_but_the_first(replica: Replica, _: Snapshot, taken: Sequence[Step]) -> None:
    """Takes back all steps on the grid but the first."""
    for step in taken[:-1]:
        replica.step_back_(step)


def sent(change: Callable[[ScalarArray, Plan], Any], right: Any, _: Any, plan: Plan) -> Reply:
    """The reply with its scalars changed, which its local steps were taken by as they are."""
    reply: Reply = right(plan)
    return replace(reply, scalars=change(reply.scalars, plan).astype(reply.scalars.dtype))


def own_scalars(right: Any, client: Client, plan: Plan) -> Reply:
    """Updates the scale of its directions by its own scalars, instead of the averaged ones that come later."""
    reply: Reply = right(plan)
    if client.replica.rule.scaling:
        client.replica.step_(Step(plan.seeds[-1], reply.scalars[-1], plan.eta, plan.distribution))
    return reply


def lacking(_: Any, client: Client, plan: Plan) -> None:
    """Measures at the x that it has where a plan lacks records."""
    client.replica.catch_up(plan.records)
    client._taken.clear()


# Replicas --------------------------------------------------------------------------------------------------------


def without_the_second(_: Any, replica: Replica, records: Iterable[RoundRecord]) -> int:
    """Leaves out the second of the rounds that it missed."""
    missed = [record for record in records if record.round >= replica.round]
    for n, record in enumerate(missed):
        if n == 1:
            replica.round += 1
        else:
            replica.apply(record)
    return len(missed)


def without_decay(right: Any, replica: Replica) -> Any:
    """Leaves weight decay out, as all others do."""
    rule: Any = replica.rule
    if hasattr(rule, "weight_decay"):
        replica.rule = replace(rule, weight_decay=0.0)
    return right()


def over_a_gap(_: Any, replica: Replica, records: Iterable[RoundRecord]) -> int:
    """Applies a record of whatever round as if it were the next."""
    missed = [record for record in records if record.round >= replica.round]
    for record in missed:
        replica.round = record.round
        replica.apply(record)
    return len(missed)


def each_from_0(_: Any, replica: Replica, program: Program) -> None:
    """Starts every tensor at position 0 of the stream."""
    replica.own()
    cut = {name: vector.split(replica.sizes) for name, vector in {"x": replica.x, **replica.state}.items()}
    for n in range(len(replica.sizes)):
        rebuild_(program, [{name: parts[n] for name, parts in cut.items()}])


def sums_in_single(right: Any, replica: PooledReplica, records: Sequence[RoundRecord]) -> None:
    """Rounds the sums of a pool to float32 after every record."""
    for record in records:
        right([record])
        replica.state = {**replica.state, "sums": replica.state["sums"].float().to(torch.int32)}


def the_sum_beside(right: Any, replica: PooledReplica, records: Sequence[RoundRecord]) -> None:
    """Adds to the sum beside the one that was meant."""

    def moved(seeds: PooledSeeds) -> PooledSeeds:
        places = tuple(tuple((j + 1) % replica.rule.size for j in of_step) for of_step in seeds.places)
        return replace(seeds, places=places)

    right([replace(record, seeds=moved(pooled(record.seeds))) for record in records])


# Servers, weights and ledgers -------------------------------------------------------------------------------------


def without_state(right: Any, _: Server) -> Snapshot:
    """Sends x and zeros for the optimizer's state."""
    model: Snapshot = right()
    return replace(model, state={slot: torch.zeros_like(v) for slot, v in model.state.items()})


def planned(wrong: Callable[[Server, Plan], Plan], right: Any, server: Server, *asked: Any) -> dict[int, Plan]:
    """The plans of a round, of which each is another."""
    server._planned = {i: wrong(server, plan) for i, plan in right(*asked).items()}
    return dict(server._planned)


def taken(
    types: Sequence[type], other: Callable[..., Any], right: Any, server: Server, replies: Iterable[Reply]
) -> Any:
    """Other scalars are taken for those of each reply, which are of these types."""
    arrived = list(replies)
    if arrived and arrived[0].scalars.dtype in types:
        return right([replace(reply, scalars=other(reply.scalars, server, arrived)) for reply in arrived])
    return right(arrived)


def reweighed(wrong: Callable[[Any], Any], right: Any, _: Weights, clients: Iterable[int]) -> tuple[int, ...] | None:
    """What is made of right weights, where clients are weighed."""
    weights = right(clients)
    return None if weights is None else wrong(weights)


def said_again(right: Any, weights: Weights, client: int, n: int) -> None:
    """Lets a client say another number of examples later."""
    weights.examples.pop(client, None)
    right(client, n)


def uncounted(
    kind: type, forget: Callable[..., Traffic], right: Any, ledger: Ledger, i: int, message: Any, *, upwards: bool
) -> Any:
    """Counts less than there is of messages of a kind."""
    counts = ledger.up if upwards else ledger.down
    if isinstance(message, kind):
        counts[i] = forget(counts[i], message)
    return right(i, message, upwards=upwards)


def earlier_sums(right: Any, ledger: Ledger, client: int, message: Any, *, upwards: bool) -> Any:
    """Sends the sums that the client before got, as if they were those of the round."""
    if isinstance(message, PoolSums):
        earlier = vars(ledger).get("earlier", np.zeros_like(message.values))
        vars(ledger)["earlier"] = message.values
        message = replace(message, values=earlier)
    return right(client, message, upwards=upwards)


# What else an implementation has ---------------------------------------------------------------------------------


_CLOCK = itertools.count()


def shared_batches(right: Any, planted: Planted, case: Case, i: int, objective: Objective | None = None) -> Any:
    """Goes on in its data where the client that was made before it is, as clients do that share a loader."""
    client = right(case, i, objective)
    before = vars(planted).get("before")
    if before is not None and before.id == i - 1:
        client.steps_taken = before.steps_taken
    vars(planted)["before"] = client
    return client


def in_half_precision(right: Any, _: Planted, message: Message) -> Any:
    """Sends the scalars of a reply with 16 bits."""
    if isinstance(message, Reply) and message.scalars.dtype == np.float32:
        with np.errstate(over="ignore"):
            half = message.scalars.astype(np.float16).astype(np.float32)
        message = replace(message, scalars=half)
    return right(message)


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


def one_after_another(_: Any, __: Planted, ___: Aggregation, replies: Sequence[Any]) -> Any:
    """Adds float32 numbers one after another, whatever the rule."""
    total = np.zeros_like(replies[0])
    with np.errstate(over="ignore", invalid="ignore"):
        for reply in replies:
            total += reply
    return total / np.float32(len(replies))


def _by(kind: type, wrong: Callable[[Any, Sequence[Any]], Any]) -> Wrong:
    """Rules of one kind aggregate otherwise."""
    return lambda right, _, rule, replies: (wrong if isinstance(rule, kind) else right)(rule, replies)


def few_neighbours(_: Krum, replies: Sequence[Any]) -> Any:
    """Asks for the one nearest neighbour, which liars are to each other."""
    wide = [reply.astype(np.float64) for reply in replies]
    near = [min(float(np.abs(a - b).max()) for b in (*wide[:i], *wide[i + 1 :])) for i, a in enumerate(wide)]
    return replies[min(range(len(near)), key=lambda i: (near[i], -i))]


def by_coordinates(rule: Krum, replies: Sequence[Any]) -> Any:
    """Chooses a client anew for every scalar."""
    columns = np.stack(replies).reshape(len(replies), -1, 1, 1)
    return np.array([rule(list(column)) for column in columns.swapaxes(0, 1)]).reshape(replies[0].shape)


def the_other_way(right: Any, _: Planted, case: Case, i: int, objective: Perturbable) -> Any:
    """Lean clients that walk to x − μz."""
    other: Any = copy.copy(objective)
    other.along = lambda x, step, seed, p, c, law: objective.along(x, step, seed, p, -c, law)
    return right(case, i, other)


# Backends --------------------------------------------------------------------------------------------------------


def swapped_words(right: Any, _: ByInstruction, key: int, direction: int, first: int, count: int, *rest: Any) -> Any:
    """Words 2 and 3 of a tile change places."""
    tiles = -(-(first + count) // TILE) - first // TILE
    z = right(key, direction, first // TILE * TILE, tiles * TILE, *rest)
    swapped = z.reshape(tiles, 4, 32)[:, [0, 1, 3, 2]].reshape(-1)
    return swapped[first % TILE :][:count]


def same_rounding_bits(right: Any, _: ByInstruction, code: Code, *rest: Any) -> Any:
    """All vectors of a step are rounded with the same random bits."""
    if code.table[0, 0] == Op.NARROW_RANDOMLY:
        table = code.table.copy()
        table[0, 3] = 0
        code = replace(code, table=table)
    return right(code, *rest)


class _DoubleWithinAProgram(ByInstruction):
    """Rounds to float32 at the end of a program, not after every instruction."""

    def run(self, code: Code, memory: Sequence[Floats], first: int, scales: F32, *, store: bool = True) -> int:
        wide = [vector.astype(np.float64) for vector in memory]
        broken = super().run(code, wide, first, scales)
        if store:
            self.assign(memory, wide)
        return broken

    def instruction(self, code: Code, registers: Sequence[Floats], first: int, scales: F32) -> int:
        if code.table[0, 0] not in (Op.NARROW, Op.NARROW_RANDOMLY):
            return super().instruction(code, registers, first, scales)
        single = [np.empty(r.size, np.float32) for r in registers]
        self.assign(single, registers)
        broken = super().instruction(code, single, first, scales)
        self.assign(registers, single)
        return broken

    def assign(self, targets: Sequence[Floats], sources: Sequence[Floats]) -> None:
        with np.errstate(all="ignore"):
            for target, source in zip(targets, sources, strict=True):
                target[:] = source


def in_order(_: Any, __: ByInstruction, key: int, direction: int, first_tile: int, tiles: int, d: int) -> Any:
    """The squares of a tile are added one after another, not by halves."""
    z = reference.directions(key, direction, first_tile * TILE, tiles * TILE, Distribution.GAUSSIAN, 1.0)
    squares = z.astype(np.float64) ** 2
    squares[max(d - first_tile * TILE, 0) :] = 0.0
    return np.add.accumulate(squares.reshape(tiles, TILE), axis=1)[:, -1]


# All of them -----------------------------------------------------------------------------------------------------


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
_REFUSED = "bad-replies-are-refused"
_HONEST = "liars-stay-within-the-honest-range"
_CLIPPED = "clipped-means-keep-the-norm"

plant({
    # Leaves the local steps in its replica.
    "revert-forgotten": (_REVERT, Client, "handle", undone, UpdateRule, lambda *_: None),
    # Brings back x alone.
    "momentum-not-reverted": (_REVERT, Client, "handle", undone, UpdateRule, (
        lambda replica, before, _: replica.x.copy_(before.x)
    )),
    "revert-by-arithmetic": (_REVERT, Client, "handle", undone, UpdateRule, by_arithmetic),
    "maximum-not-reverted": (_REVERT, Client, "handle", undone, UpdateRule, all_but_the_maximum),
    "grid-undone-in-part": (_REVERT, Client, "handle", undone, GridSgd, all_but_the_first),
    "state-of-own-scalars": (_REVERT, Client, "handle", own_scalars),
    # Replays what it missed with the learning rate of the plan.
    "learning-rate-of-the-present": (_REBUILT, Client, "handle", lambda right, _, plan: right(
        replace(plan, records=tuple(replace(record, eta=plan.eta) for record in plan.records))
    )),
    "lacking-records-not-missed": (_REBUILT, Client, "_catch_up", lacking),
    # Adds the scalars in float32 in the order in which they arrive.
    "client-order-changed": ("reply-order-does-not-matter", Server, "aggregate", taken, (np.float32,), (
        lambda _, __, arrived: sum(reply.scalars for reply in arrived) / np.float32(len(arrived))
    )),
    "round-skipped": (_REBUILT, Replica, "catch_up", without_the_second),
    # Replays a lag with the learning rate of its last round.
    "rate-of-the-last-for-all": ("history-in-pieces-equals-in-one-go", Replica, "catch_up", lambda right, _, records: (
        right([replace(record, eta=records[-1].eta) for record in records])
    )),
    "decay-forgotten": (_RECURSION, Replica, "_program", without_decay),
    # Adds the estimate of the gradient, as all others do.
    "steps-go-uphill": (_RECURSION, Replica, "_real", lambda right, _, step: replace(
        right(step), scalars=-on_host(step.scalars)
    )),
    # Updates the scale of directions in every local step, as all others do, so that clients measure along others.
    "scale-moves-within-a-round": (_RECURSION, Replica, "_real", lambda right, _, step: replace(
        right(step), last=True
    )),
    "gap-accepted": ("a-gap-is-refused", Replica, "catch_up", over_a_gap),
    # Steps on in vectors that others hold too.
    "writes-to-shared-vectors": ("clients-may-share-what-is-equal", Replica, "own", (
        lambda _, replica: setattr(replica, "_shared", False)
    )),
    "tensors-restart-the-stream": ("whole-vector-equals-per-tensor", Replica, "_run", each_from_0),
    "sums-in-single": (_RECURSION, PooledReplica, "_apply_all", sums_in_single),
    "place-off-by-one": (_RECURSION, PooledReplica, "_apply_all", the_sum_beside),
    # Forgets what only the client that is furthest on has.
    "pruned-too-far": (_PRUNING, Server, "aggregate", then(
        lambda server, _: server.history.prune(max(server.held, default=server.round))
    )),
    # Keeps every record.
    "never-pruned": (_PRUNING, Server, "_prune", lambda *_: None),
    "pull-without-state": ("dense-pull-equals-replay", Server, "dense_model", without_state),
    # Forgets all records when one client has pulled the model.
    "pull-prunes-for-all": ("any-order-of-events-keeps-the-bits", Server, "note_dense_pull", then(
        lambda server, _: server.history.prune(server.round)
    )),
    # Plans a round with the learning rate of the one before.
    "rate-of-the-round-before": (_RECURSION, Server, "plan_round", planned, (
        lambda server, plan: replace(plan, eta=server.eta(max(server.round - 1, 0)))
    )),
    # Halves every scalar where it keeps no model.
    "model-decides": ("the-server-needs-no-model", Server, "aggregate", taken, (np.float32,), (
        lambda g, server, _: np.float32(0.5) * g if server.replica is None else g
    )),
    # Step seeds derive from the run's seed alone where they are not sent.
    "round-forgotten-in-seeds": ("fewer-seeds-give-the-same-models", Server, "plan_round", planned, (
        lambda server, plan: replace(plan, seeds=DerivedSeeds(server.run_seed, plan.K, plan.seeding))
        if isinstance(plan.seeds, DerivedSeeds) else plan
    )),
    # The directions of a step have seeds of their own, all the same.
    "one-seed-for-all-directions": ("each-direction-can-have-its-seed", Server, "plan_round", planned, (
        lambda _, plan: replace(
            plan, seeds=tuple(seed[:1] * plan.P for seed in plan.seeds if isinstance(seed, tuple)) or plan.seeds
        )
    )),
    # Sends everybody everything from the start.
    "report-ignored": ("clients-can-track-their-round", Server, "_held", lambda right, server, *asked: dict.fromkeys(
        right(*asked), server.history.start
    )),
    # Keeps one record more than it may.
    "queue-too-long": ("a-bounded-history-is-enough", Server, "_prune", lambda _, server: server.history.prune(
        server.round - server.keep - 1 if server.keep else 0
    )),
    # Looks only at who answers.
    "any-reply-accepted": (_REFUSED, Server, "check", lambda right, server, reply: (
        None if reply.client in server._planned else right(reply)
    )),
    # Adds up what is sent instead of signs: who says 100 has a hundred votes.
    "votes-have-weights": (_REFUSED, Server, "aggregate", taken, (np.int8,), (
        lambda _, __, arrived: np.int8(2) * (np.sum([reply.scalars for reply in arrived], axis=0) >= 0) - np.int8(1)
    )),
    # Gives every client the same weight, whatever it has said.
    "weights-ignored": (_WEIGHED, Weights, "of", reweighed, lambda weights: (1,) * len(weights)),
    # Gives each client the weight of the one that stands after it among those that answered.
    "weights-of-the-next-client": (_WEIGHED, Weights, "of", reweighed, lambda weights: (*weights[1:], *weights[:1])),
    # Takes a client that has not said how many examples it has for one that has one.
    "silent-clients-count-once": (_WEIGHED, Weights, "of", lambda _, weights, clients: (
        tuple(weights.examples.get(client, 1) for client in clients) if weights.wanted else None
    )),
    # Weighs clients by the square roots of their examples.
    "weights-are-roots": ("a-client-counts-as-its-examples", Weights, "of", reweighed, (
        lambda weights: tuple(map(math.isqrt, weights))
    )),
    "numbers-may-change": (_WEIGHED, Weights, "note", said_again),
    # Takes whatever number a client says first.
    "any-number-of-examples": (_WEIGHED, Weights, "note", lambda right, weights, client, n: (
        None if weights.examples.setdefault(client, n) == n else right(client, n)
    )),
    # Divides the weighed sum by how many clients answered.
    "divided-by-the-number-of-clients": (_WEIGHED, Server, "aggregate", taken, (np.float32,), (
        lambda g, server, arrived: np.float32(np.mean(server.weights.of(own.client for own in arrived) or (1,))) * g
    )),
    # Counts no element of a model that is sent.
    "pull-not-counted": ("pulling-or-replaying-is-a-matter-of-cost", Ledger, "sent", uncounted, Dense, (
        lambda counts, model: replace(counts, scalars=counts.scalars - model.x.size)
    )),
    # Counts no scalar of a reply.
    "uplink-not-counted": (_LEDGER, Ledger, "sent", uncounted, Reply, (
        lambda counts, reply: replace(counts, scalars=counts.scalars - reply.scalars.size)
    )),
    # Counts a reply without its header.
    "header-not-counted": (_LEDGER, Ledger, "sent", uncounted, Reply, (
        lambda counts, _: replace(counts, bytes=counts.bytes - HEADER_BYTES)
    )),
    "sums-of-an-earlier-round": (_REBUILT, Ledger, "sent", earlier_sums),
    "seed-of-the-clock": (_REPEATS, Planted, "server", then(lambda _, server: setattr(server, "seed", next(_CLOCK)))),
    "seed-ignored": (_REPEATS, Planted, "server", then(lambda _, server: setattr(server, "seed", 0))),
    # Draws other seeds where there is another number of clients.
    "seeds-of-so-many-clients": (_JOINS, Server, "run_seed", lambda _, server: noise.derive_seed(
        server.seed, server.M
    )),
    "batches-shared-in-a-process": (_JOINS, Planted, "client", shared_batches),
    "scalars-in-half-precision": (_WIRE, Planted, "encode", in_half_precision),
    "padding-leaks": (_WIRE, Planted, "encode", _LeakingPadding),
    # Believes every body, whatever its header's checksum says.
    "checksum-ignored": (_WIRE, Planted, "decode", lambda right, _, message, *seed: right(_resealed(message), *seed)),
    # Samples a client more than once.
    "sampled-with-replacement": (_SAMPLING, Planted, "sample", lambda _, __, seed, r, M, m: sorted(
        np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(r,))).choice(M, size=(m,)).tolist()
    )),
    # Samples the clients of round 0 in every round.
    "same-clients-every-round": (_SAMPLING, Planted, "sample", lambda right, _, seed, __, M, m: right(seed, 0, M, m)),
    "added-in-order-of-arrival": ("aggregates-have-no-order", Planted, "aggregate", one_after_another),
    # Divides what is left of a trimmed mean by the number of all clients.
    "trimmed-but-divided-by-all": ("agreement-is-kept", Planted, "aggregate", _by(TrimmedMean, lambda rule, replies: (
        rule(replies) * np.float32(1 - 2 * rule.tolerated / len(replies))
    ))),
    # Drops 2f of the largest numbers and none of the smallest.
    "trimmed-above-alone": (_HONEST, Planted, "aggregate", _by(TrimmedMean, lambda rule, replies: (
        Mean()(list(np.sort(replies, axis=0)[: len(replies) - 2 * rule.tolerated]))
    ))),
    "krum-content-with-few-neighbours": (
        "liars-move-aggregates-by-the-honest-spread", Planted, "aggregate", _by(Krum, few_neighbours)
    ),
    "krum-by-coordinates": ("krum-takes-one-reply-whole", Planted, "aggregate", _by(Krum, by_coordinates)),
    # Gives a tied vote to the client that was heard last.
    "ties-go-to-the-last": ("votes-are-counted", Planted, "aggregate", _by(Majority, lambda _, replies: (
        np.sign(2 * np.sum(replies, axis=0) + replies[-1]).astype(np.int8)
    ))),
    # Counts a liar, who is heard last, as often as all the others together.
    "the-last-has-a-casting-vote": (_HONEST, Planted, "aggregate", _by(Majority, lambda _, replies: (
        np.sign(np.sum(replies, axis=0) + len(replies) * replies[-1]).astype(np.int8)
    ))),
    # Clips every scalar to c, not the norm of all.
    "clipped-by-coordinates": (_CLIPPED, Planted, "aggregate", _by(ClippedMean, lambda rule, replies: (
        Mean()([np.clip(reply, -rule.clip, rule.clip).astype(np.float32) for reply in replies])
        if rule.clip else rule(replies)
    ))),
    # Clips to the mean of the norms, which one liar makes what it likes.
    "clipped-to-the-mean-norm": (_CLIPPED, Planted, "aggregate", _by(ClippedMean, lambda rule, replies: ClippedMean(
        rule.clip or float(np.mean([np.linalg.norm(reply.astype(np.float64)) for reply in replies]))
    )(replies))),
    # Directions of one seed that come back after two.
    "directions-repeat": ("streams-are-functions-of-their-counters", Planted, "direction", (
        lambda right, _, seed, p, d, distribution: right(seed, p // 2, d, distribution)
    )),
    # Client 0 never got the private key.
    "private-key-lost": ("private-keys-hide-the-directions", Planted, "keyed_client", (
        lambda right, _, case, i, key: right(case, i, key if i else None)
    )),
    "lean-the-other-way": ("lean-clients-are-like-others", Planted, "lean_client", the_other_way),
    # Applies the record on top of its own local steps.
    "own-steps-not-corrected": (_SYNC, SyncReplica, "diverge", lambda _, __, taken: None),  # noqa: ARG005
    # Rounds the corrections of a float64 model to float32.
    "corrected-in-single": (_SYNC, SyncReplica, "_correct", lambda _, replica, program, own, step: (
        replica.rule.emit_correction(program, replica._real(own), step, wide=False)
    )),
    # The product is not rounded before the sum.
    "fused-multiply-add": (_PROGRAMS, ByInstruction, "add", lambda _, __, r, c, z: (
        np.copyto(r, np.longdouble(c) * z.astype(np.longdouble) + r, casting="unsafe")
    )),
    "words-swapped": ("known-answers-are-given", ByInstruction, "directions", swapped_words),
    # A slice that does not begin where a tile begins gets the next tile's numbers.
    "tile-off-by-one": ("slices-and-backends-agree", ByInstruction, "directions", (
        lambda right, _, key, direction, first, *of: right(key, direction, first + TILE * (first % TILE > 0), *of)
    )),
    # The second word of the counter stays 0: directions repeat after 2^34 elements.
    "high-word-forgotten": ("far-slices-agree", ByInstruction, "directions", (
        lambda right, _, key, direction, first, *of: right(key, direction, first % (4 << 32), *of)
    )),
    "rounding-bits-repeat": (_PROGRAMS, ByInstruction, "instruction", same_rounding_bits),
    "double-within-a-program": ("one-instruction-at-a-time-agrees", ByInstruction, "run", _DoubleWithinAProgram),
    "squares-in-order": ("square-sums-agree", ByInstruction, "tile_square_sums", in_order),
})  # fmt: skip


# Around somebody's own parts -----------------------------------------------------------------------------------


class AroundFault(NamedTuple):
    """A fault that can be put around a client, a replica or a server of anybody's: what it makes is spoiled.

    So whoever wrote that part sees which laws would notice the like in his code.
    """

    part: str  # the method of ``Implementation`` that makes the part
    caught_by: str  # the name of the law that is meant to catch it
    method: str  # the method of that part which is spoiled
    spoil: Wrong  # what is called instead


def _nudged(snapshot: Snapshot) -> Snapshot:
    x = snapshot.x.clone()
    x[0] += 1
    return replace(snapshot, x=x)


def not_reverted(right: Any, client: Any, plan: Plan) -> Any:
    reply = right(plan)
    if plan.K > 1:
        client.replica.restore(_nudged(client.replica.snapshot()))
    return reply


def answered(right: Any, client: Any, plan: Plan) -> Any:
    try:
        return right(plan)
    except InputError:
        return Reply(client.id, plan.round, np.zeros((plan.K, plan.P), np.float32))


def skipped_over(right: Any, replica: Any, records: Iterable[RoundRecord]) -> None:
    records = list(records)
    try:
        right(records)
    except InputError:
        for record in records:
            replica.restore(replace(replica.snapshot(), round=record.round))
            right([record])


def again(right: Any, replica: Any, records: Iterable[RoundRecord]) -> None:
    records = list(records)
    if records and records[0].round < replica.round:  # the first one once more, and then as it should be
        present = replica.round
        replica.restore(replace(replica.snapshot(), round=records[0].round))
        right(records[:1])
        replica.restore(replace(replica.snapshot(), round=present))
    right(records)


def forgotten(right: Any, server: Any, replies: Iterable[Reply]) -> Any:
    record = right(replies)
    history: Any = copy.copy(server.history)
    history.prune(server.round)
    server.history = history
    return record


def left_out(right: Any, server: Any, replies: Iterable[Reply]) -> Any:
    replies = list(replies)
    try:
        return right(replies)
    except InputError:
        good = [reply for reply in replies if reply.round == server.round and np.isfinite(reply.scalars).all()]
        return right(list({reply.client: reply for reply in good}.values()))


AROUND = {
    "the-model-is-not-reverted": AroundFault("client", "revert-leaves-every-bit", "handle", not_reverted),
    "what-was-missed-is-skipped": AroundFault("client", _REBUILT, "handle", lambda right, _, plan: right(
        replace(plan, records=(
            *(replace(record, scalars=np.zeros_like(record.scalars)) for record in plan.records[:-1]),
            *plan.records[-1:],
        ))
    )),
    "a-plan-that-lacks-records-is-answered": AroundFault("client", _REBUILT, "handle", answered),
    "scalars-depend-on-chance": AroundFault(
        "client", "runs-repeat-from-one-seed", "handle", partial(
            sent, lambda g, _: g * np.random.default_rng().uniform(0.5, 1.5)
        )
    ),
    "a-gap-is-skipped-over": AroundFault("replica", "a-gap-is-refused", "catch_up", skipped_over),
    "a-record-that-is-known-is-applied-again": AroundFault(
        "replica", "history-in-pieces-equals-in-one-go", "catch_up", again
    ),
    "another-model-is-handed-out": AroundFault(
        "server", "dense-pull-equals-replay", "dense_model", lambda right, _: _nudged(right())
    ),
    "the-first-reply-is-taken": AroundFault("server", "reply-order-does-not-matter", "aggregate", partial(
        taken, (np.float32, np.int8), lambda _, __, arrived: arrived[0].scalars
    )),
    "records-are-forgotten-too-early": AroundFault("server", "pruning-keeps-what-is-needed", "aggregate", forgotten),
    "a-bad-reply-is-left-out-in-silence": AroundFault("server", "bad-replies-are-refused", "aggregate", left_out),
}  # fmt: skip
"""The faults by name."""


class _Spoiled:
    """A part with one method that is another; whatever else it has is the part's."""

    def __init__(self, part: Any, fault: AroundFault) -> None:
        vars(self).update(_of=part, _fault=fault)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._of, name)
        return partial(self._fault.spoil, attribute, self._of) if name == self._fault.method else attribute

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._of, name, value)


def around(target: Implementation) -> tuple[dict[str, Any], dict[str, str]]:
    """The target with each fault, by its name, and the faults that cannot be put there, with the reason."""
    planted: dict[str, Any] = {}
    left: dict[str, str] = {}
    for name, fault in AROUND.items():
        if fault.part not in target.replaced:
            left[name] = f"the {fault.part} is the lab's"
            continue
        planted[name] = spoiled = cast("Any", copy.copy(target))
        spoiled.caught_by = fault.caught_by
        setattr(spoiled, fault.part, partial(_spoiled, getattr(fitted(target), fault.part), fault))
    return planted, left


def _spoiled(make: Callable[..., Any], fault: AroundFault, *arguments: Any, **named: Any) -> _Spoiled:
    return _Spoiled(make(*arguments, **named), fault)
