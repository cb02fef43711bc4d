"""Wrong implementations. Each has one planted fault of a kind that is easily made; the laws must catch all."""

from __future__ import annotations

import dataclasses
import itertools
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from decomfl_lab import noise
from decomfl_lab.estimators.differences import ESTIMATORS, Estimate, Estimator, Point, Values
from decomfl_lab.laws.contract import AnyClient, AnyServer, Case, Implementation
from decomfl_lab.noise import Backend, Distribution, Op, Program, reference
from decomfl_lab.noise.program import DISTRIBUTIONS, Code
from decomfl_lab.noise.spec import TILE
from decomfl_lab.objectives.objective import Objective, Perturbable
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Held, Message, Plan, Reply
from decomfl_lab.protocol.server import Server
from decomfl_lab.protocol.wire import HEADER_BYTES, Ledger
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import DerivedSeeds
from decomfl_lab.replicas.rebuild import rebuild_
from decomfl_lab.replicas.replica import Replica, Snapshot, SyncReplica
from decomfl_lab.replicas.rules import GridSgd, Sgd, Step

__all__ = ["FAULTS", "Planted"]

_Floats = NDArray[np.float32] | NDArray[np.float64]


class Planted(Implementation):
    """The lab's implementation with a fault.

    Attributes:
        caught_by: Name of the law that is meant to catch it.
    """

    def __init__(self, name: str, caught_by: str) -> None:
        self.name = name
        self.caught_by = caught_by
        FAULTS[name] = self


FAULTS: dict[str, Planted] = {}


class _Faulty(Planted):
    """The lab's implementation with a class of it exchanged for a faulty one."""

    def __init__(
        self,
        name: str,
        caught_by: str,
        *,
        client: type[Client] = Client,
        server: type[Server] = Server,
        replica: type[Replica] = Replica,
        ledger: type[Ledger] = Ledger,
    ) -> None:
        super().__init__(name, caught_by)
        self._client, self._server, self._replica, self._ledger = client, server, replica, ledger

    def replica(self, case: Case, *, per_tensor: bool = False) -> Replica:
        return self._replica(case.initial(), case.rule, sizes=case.sizes if per_tensor else None)

    def client(self, case: Case, i: int, objective: Objective | None = None) -> Client:
        right: Any = super().client(case, i, objective)
        return self._client(i, right.replica, right.objective, right.estimator, right.mu)

    def server(self, case: Case, *, with_model: bool = True) -> Server:
        right: Any = super().server(case, with_model=with_model)
        return self._server(**{f.name: getattr(right, f.name) for f in dataclasses.fields(Server)})

    def ledger(self, case: Case) -> Ledger:
        return self._ledger(case.M)


class _NoRevert(Client):
    """Leaves the local steps in its replica."""

    def handle(self, plan: Plan) -> Reply:
        self.replica.catch_up(plan.records)
        before = self.replica.snapshot()
        reply = Reply(self.id, plan.round, *self.local_update(plan))
        self.revert(before, plan, reply)
        return reply

    def revert(self, before: Snapshot, plan: Plan, reply: Reply) -> None:
        pass


class _NoStateRevert(_NoRevert):
    """Brings back x alone."""

    def revert(self, before: Snapshot, *_: object) -> None:
        self.replica.x.copy_(before.x)


class _ArithmeticRevert(_NoRevert):
    """Undoes the local steps by adding back what they subtracted, as eq. (sync) does in real arithmetic."""

    def revert(self, before: Snapshot, plan: Plan, reply: Reply) -> None:
        if self.replica.state:
            self.replica.restore(before)
            return
        for k in reversed(range(plan.K - 1)):
            self.replica.step_(Step(plan.seeds[k], -reply.scalars[k], plan.eta, plan.distribution))


class _MaximumNotReverted(_NoRevert):
    """Brings back x and every state vector but ZO-AdaMM's maximum."""

    def revert(self, before: Snapshot, *_: object) -> None:
        kept = {slot: self.replica.state[slot] for slot in before.state if slot == "maximum"}
        self.replica.restore(dataclasses.replace(before, state={**before.state, **kept}))


class _GridUndoneInPart(Client):
    """Takes back all steps on the grid but the first."""

    def handle(self, plan: Plan) -> Reply:
        if not isinstance(self.replica.rule, GridSgd):
            return super().handle(plan)
        self.replica.catch_up(plan.records)
        self._taken.clear()
        reply = Reply(self.id, plan.round, *self.local_update(plan))
        for step in reversed(self._taken[1:]):
            self.replica.step_back_(step)
        return reply


class _PresentLearningRate(Client):
    def handle(self, plan: Plan) -> Reply:
        records = tuple(dataclasses.replace(record, eta=plan.eta) for record in plan.records)
        return super().handle(dataclasses.replace(plan, records=records))


class _RoundSkipped(Replica):
    def catch_up(self, records: Iterable[RoundRecord]) -> int:
        missed = [record for record in records if record.round >= self.round]
        for n, record in enumerate(missed):
            if n == 1:
                self.round += 1
            else:
                self.apply(record)
        return len(missed)


class _GapAccepted(Replica):
    def catch_up(self, records: Iterable[RoundRecord]) -> int:
        missed = [record for record in records if record.round >= self.round]
        for record in missed:
            self.round = record.round
            self.apply(record)
        return len(missed)


class _RateOfTheLast(Replica):
    """Replays a lag with the learning rate of its last round."""

    def catch_up(self, records: Iterable[RoundRecord]) -> int:
        records = list(records)
        return super().catch_up(dataclasses.replace(record, eta=records[-1].eta) for record in records)


class _DecayForgotten(Replica):
    """Leaves weight decay out, as all others do."""

    def _program(self) -> Program:
        rule: Any = self.rule
        if hasattr(rule, "weight_decay"):
            self.rule = dataclasses.replace(rule, weight_decay=0.0)
        return super()._program()


class _WritesToShared(Replica):
    """Steps on in vectors that others hold too."""

    def own(self) -> None:
        self._shared = False


class _TensorsRestart(Replica):
    """Starts every tensor at position 0 of the stream."""

    def _run(self, program: Program) -> None:
        self.own()
        cut = {name: vector.split(self.sizes) for name, vector in {"x": self.x, **self.state}.items()}
        for n in range(len(self.sizes)):
            rebuild_(program, [{name: parts[n] for name, parts in cut.items()}])


class _ArrivalOrder(Server):
    """Adds the scalars in float32 in the order in which they arrive."""

    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        arrived = list(replies)
        if not arrived:
            return super().aggregate(arrived)
        total = np.zeros_like(arrived[0].scalars)
        for reply in arrived:
            total += reply.scalars
        mean = (total / np.float32(len(arrived))).astype(np.float32)
        return super().aggregate([dataclasses.replace(reply, scalars=mean) for reply in arrived])


class _PrunedTooFar(Server):
    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        record = super().aggregate(replies)
        self.history.prune(max(self.held, default=self.round))
        return record


class _NeverPruned(Server):
    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        kept = self.history.since(self.history.start)
        start = self.history.start
        record = super().aggregate(replies)
        self.history = type(self.history)((*kept, record), start)
        return record


class _PullWithoutState(Server):
    def dense_model(self) -> Snapshot:
        right = super().dense_model()
        return dataclasses.replace(right, state={slot: torch.zeros_like(v) for slot, v in right.state.items()})


class _ModelDecides(Server):
    """Halves every scalar where it keeps no model."""

    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        arrived = list(replies)
        if self.replica is None:
            half = np.float32(0.5)
            arrived = [dataclasses.replace(reply, scalars=half * reply.scalars) for reply in arrived]
        return super().aggregate(arrived)


class _PullPrunesForAll(Server):
    """Forgets all records when one client has pulled the model."""

    def note_dense_pull(self, client: int) -> None:
        super().note_dense_pull(client)
        self.history.prune(self.round)


class _OtherPlans(Server):
    """Plans rounds otherwise."""

    def wrong(self, right: Plan) -> Plan:
        raise NotImplementedError

    def plan_round(
        self, participants: Sequence[int] | None = None, reports: Iterable[Held] | None = None
    ) -> dict[int, Plan]:
        plans = super().plan_round(participants, reports)
        self._planned = {i: self.wrong(plan) for i, plan in plans.items()}
        return dict(self._planned)


class _RateOfTheRoundBefore(_OtherPlans):
    """Plans a round with the learning rate of the one before."""

    def wrong(self, right: Plan) -> Plan:
        return dataclasses.replace(right, eta=self.eta(max(self.round - 1, 0)))


class _RoundForgotten(_OtherPlans):
    """Step seeds derive from the run's seed alone where they are not sent."""

    def wrong(self, right: Plan) -> Plan:
        derived = isinstance(right.seeds, DerivedSeeds)
        seeds = DerivedSeeds(self.run_seed, right.K, right.seeding) if derived else right.seeds
        return dataclasses.replace(right, seeds=seeds)


class _OneSeedForAll(_OtherPlans):
    """The directions of a step have seeds of their own, all the same."""

    def wrong(self, right: Plan) -> Plan:
        own = tuple((seed[0],) * right.P for seed in right.seeds if isinstance(seed, tuple))
        return dataclasses.replace(right, seeds=own or right.seeds)


class _ReportIgnored(Server):
    """Sends everybody everything from the start."""

    def _held(self, participants: Sequence[int], reports: Iterable[Held] | None) -> Mapping[int, int]:
        return dict.fromkeys(super()._held(participants, reports), self.history.start)


class _QueueTooLong(Server):
    """Keeps one record more than it may."""

    def _prune(self) -> None:
        self.history.prune(self.round - self.keep - 1 if self.keep else 0)


class _AnyReply(Server):
    def _check(self, reply: Reply) -> None:
        if reply.client not in self._planned:
            super()._check(reply)


class _UplinkFree(Ledger):
    def reply(self, reply: Reply) -> bytes:
        message = super().reply(reply)
        self.up[reply.client].scalars -= reply.scalars.size
        return message


class _PullFree(Ledger):
    def vector(self, client: int, r: int, x: _Floats, *, upwards: bool) -> bytes:
        message = super().vector(client, r, x, upwards=upwards)
        self.down[client].scalars -= x.size
        return message


class _BytesForgotten(Ledger):
    """Counts a reply without its header."""

    def reply(self, reply: Reply) -> bytes:
        message = super().reply(reply)
        self.up[reply.client].bytes -= HEADER_BYTES
        return message


class _Estimating(Planted):
    """The lab's implementation with one more way to take central differences, which is wrong."""

    def __init__(self, name: str, caught_by: str, central: Estimator) -> None:
        super().__init__(name, caught_by)
        self._estimators = {"forward": ESTIMATORS["forward"], "central": central}

    def client(self, case: Case, i: int, objective: Objective | None = None) -> Client:
        right: Any = super().client(case, i, objective)
        return Client(i, right.replica, right.objective, self._estimators[case.estimator], right.mu)


class _DividedByMu:
    """Divides the central difference by μ in the place of 2μ."""

    wants_slopes = False

    def points(self, P: int, mu: float) -> list[Point]:
        return ESTIMATORS["central"].points(P, mu)

    def combine(self, values: Values, slopes: Values, mu: float) -> Estimate:
        return ESTIMATORS["central"].combine(values, slopes, mu / 2)


class _OtherServerSeed(Planted):
    """A server whose seed is not that of the run."""

    def __init__(self, name: str, seeds: Iterator[int]) -> None:
        super().__init__(name, "runs-repeat-from-one-seed")
        self._seeds = seeds

    def server(self, case: Case, *, with_model: bool = True) -> AnyServer:
        server: Any = super().server(case, with_model=with_model)
        server.seed = next(self._seeds)
        return cast("AnyServer", server)


class _HalfPrecision(Planted):
    """Sends the scalars of a reply with 16 bits."""

    def encode(self, message: Message) -> bytes:
        if isinstance(message, Reply):
            with np.errstate(over="ignore"):
                half = message.scalars.astype(np.float16).astype(np.float32)
            message = dataclasses.replace(message, scalars=half)
        return super().encode(message)


class _ChecksumIgnored(Planted):
    """Believes every body, whatever its header's checksum says."""

    def decode(self, message: bytes, run_seed: int | None = None) -> Message:
        head, body = message[: HEADER_BYTES - 4], message[HEADER_BYTES:]
        return super().decode(head + struct.pack("<I", zlib.crc32(body)) + body, run_seed)


class _WithReplacement(Planted):
    """Samples a client more than once."""

    def sample(self, seed: int, r: int, M: int, m: int) -> Sequence[int]:
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(r,)))
        return tuple(sorted(int(i) for i in generator.choice(M, size=m)))


class _SameEveryRound(Planted):
    """Samples the clients of round 0 in every round."""

    def sample(self, seed: int, r: int, M: int, m: int) -> Sequence[int]:
        del r
        return super().sample(seed, 0, M, m)


class _CollidingSeeds(Planted):
    """Directions of one seed that come back after two."""

    def direction(self, seed: int, p: int, d: int, distribution: Distribution) -> NDArray[np.float32]:
        return noise.direction(seed, p // 2, d, distribution=distribution)


class _ByInstruction:
    """A backend that hands every instruction to the reference, but for what a fault overrides."""

    def directions(
        self, key: int, direction: int, first: int, count: int, distribution: Distribution, scale: float
    ) -> NDArray[np.float32]:
        return reference.directions(key, direction, first, count, distribution, scale)

    def tile_square_sums(self, key: int, direction: int, first_tile: int, tiles: int, d: int) -> NDArray[np.float64]:
        return reference.tile_square_sums(key, direction, first_tile, tiles, d)

    def run(
        self, code: Code, memory: Sequence[_Floats], first: int, scales: NDArray[np.float32], *, store: bool = True
    ) -> int:
        registers = [vector if store else vector.copy() for vector in memory]
        registers.append(np.zeros_like(registers[0]))  # the scratch lives on from one instruction to the next
        broken = 0
        for n in range(len(code.keys)):
            single = dataclasses.replace(
                code, table=code.table[n : n + 1], keys=code.keys[n : n + 1], values=code.values[n : n + 1]
            )
            broken += self.instruction(single, registers, first, scales)
        return broken

    def instruction(self, code: Code, registers: Sequence[_Floats], first: int, scales: NDArray[np.float32]) -> int:
        op, to, _, p, begin, end, kind = (int(entry) for entry in code.table[0])
        if op != Op.NOISE:
            return reference.run(code, registers, first, scales)
        r = registers[to]
        for n in range(begin, end):
            z = self.directions(int(code.keys[0]), p + n - begin, first, r.size, DISTRIBUTIONS[kind], float(scales[n]))
            self.add(r, code.coefficients[n], z)
        return 0

    def add(self, r: _Floats, c: np.float32, z: NDArray[np.float32]) -> None:
        number: Any = r.dtype.type
        r += number(c) * z.astype(r.dtype)


class _Contracted(_ByInstruction):
    """A fused multiply-add: the product is not rounded before the sum."""

    def add(self, r: _Floats, c: np.float32, z: NDArray[np.float32]) -> None:
        r[:] = (np.longdouble(c) * z.astype(np.longdouble) + r).astype(r.dtype)


class _WordsSwapped(_ByInstruction):
    """Words 2 and 3 of a tile change places."""

    def directions(
        self, key: int, direction: int, first: int, count: int, distribution: Distribution, scale: float
    ) -> NDArray[np.float32]:
        tiles = -(-(first + count) // TILE) - first // TILE
        z = reference.directions(key, direction, first // TILE * TILE, tiles * TILE, distribution, scale)
        swapped = z.reshape(tiles, 4, 32)[:, [0, 1, 3, 2]].reshape(-1)
        return swapped[first % TILE :][:count]


class _TileOffByOne(_ByInstruction):
    """A slice that does not begin where a tile begins gets the next tile's numbers."""

    def directions(
        self, key: int, direction: int, first: int, count: int, distribution: Distribution, scale: float
    ) -> NDArray[np.float32]:
        first += TILE if first % TILE else 0
        return reference.directions(key, direction, first, count, distribution, scale)


class _HighWordForgotten(_ByInstruction):
    """The second word of the counter stays 0: directions repeat after 2^34 elements."""

    def directions(
        self, key: int, direction: int, first: int, count: int, distribution: Distribution, scale: float
    ) -> NDArray[np.float32]:
        return reference.directions(key, direction, first % (4 << 32), count, distribution, scale)


class _RoundingRepeats(_ByInstruction):
    """All vectors of a step are rounded with the same random bits."""

    def instruction(self, code: Code, registers: Sequence[_Floats], first: int, scales: NDArray[np.float32]) -> int:
        if code.table[0, 0] == Op.NARROW_RANDOMLY:
            table = code.table.copy()
            table[0, 3] = 0
            code = dataclasses.replace(code, table=table)
        return super().instruction(code, registers, first, scales)


class _SquaresInOrder(_ByInstruction):
    """The squares of a tile are added one after another, not by halves."""

    def tile_square_sums(self, key: int, direction: int, first_tile: int, tiles: int, d: int) -> NDArray[np.float64]:
        z = reference.directions(key, direction, first_tile * TILE, tiles * TILE, Distribution.GAUSSIAN, 1.0)
        squares = z.astype(np.float64) ** 2
        squares[max(d - first_tile * TILE, 0) :] = 0.0
        sums: NDArray[np.float64] = np.add.accumulate(squares.reshape(tiles, TILE), axis=1)[:, -1]
        return sums


class _DoubleWithinAProgram(_ByInstruction):
    """Rounds to float32 at the end of a program, not after every instruction."""

    def run(
        self, code: Code, memory: Sequence[_Floats], first: int, scales: NDArray[np.float32], *, store: bool = True
    ) -> int:
        wide = [vector.astype(np.float64) for vector in memory]
        broken = super().run(code, wide, first, scales)
        if store:
            self.assign(memory, wide)
        return broken

    def instruction(self, code: Code, registers: Sequence[_Floats], first: int, scales: NDArray[np.float32]) -> int:
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


class _FaultyBackend(Planted):
    """The lab's implementation with one more backend, which is wrong."""

    def __init__(self, name: str, caught_by: str, backend: Backend) -> None:
        super().__init__(name, caught_by)
        self._backend = backend

    def backends(self) -> dict[str, Backend]:
        return {self.name: self._backend}


class _KeyLost(Planted):
    """Client 0 never got the private key."""

    def keyed_client(self, case: Case, i: int, key: int) -> AnyClient:
        client: Any = super().keyed_client(case, i, key)
        if i == 0:
            client.replica.private_key = None
        return cast("AnyClient", client)


class _NotCorrected(SyncReplica):
    """Applies the record on top of its own local steps."""

    def diverge(self, taken: Iterable[Step]) -> None:
        del taken


class _CorrectedInSingle(SyncReplica):
    """Rounds the corrections of a float64 model to float32."""

    def _correct(self, program: Program, own: Step, step: Step | None) -> None:
        cast("Sgd", self.rule).emit_correction(program, self._real(own), step, wide=False)


class _FaultySync(Planted):
    """The lab's implementation with a replica that synchronises wrongly."""

    def __init__(self, name: str, replica: type[SyncReplica]) -> None:
        super().__init__(name, "synchronised-clients-drift-within-their-roundings")
        self._replica = replica

    def sync_client(self, case: Case, i: int) -> Client:
        right: Any = super().sync_client(case, i)
        return Client(i, self._replica(case.initial(), case.rule), right.objective, right.estimator, right.mu)


class _OtherSide:
    """Lean perturbations by −c for c."""

    def __init__(self, right: Perturbable) -> None:
        self.right = right

    def __call__(self, x: torch.Tensor, step: int) -> float:
        return self.right(x, step)

    def along(
        self, x: torch.Tensor, step: int, seed: int, p: int, c: float, distribution: Distribution
    ) -> float | torch.Tensor:
        return self.right.along(x, step, seed, p, -c, distribution)


class _LeanTheOtherWay(Planted):
    """Lean clients that walk to x − μz."""

    def lean_client(self, case: Case, i: int, objective: Perturbable) -> AnyClient:
        return super().lean_client(case, i, _OtherSide(objective))


_REBUILT = "rebuilt-client-equals-server"
_RECURSION = "replay-equals-the-written-out-recursion"
_REVERT = "revert-leaves-every-bit"
_PRUNING = "pruning-keeps-what-is-needed"
_LEDGER = "ledger-counts-what-is-sent"
_WIRE = "the-wire-keeps-every-bit"
_SAMPLING = "sampling-is-without-replacement"
_PROGRAMS = "programs-agree-however-cut"

_Faulty("revert-forgotten", _REVERT, client=_NoRevert)
_Faulty("momentum-not-reverted", _REVERT, client=_NoStateRevert)
_Faulty("revert-by-arithmetic", _REVERT, client=_ArithmeticRevert)
_Faulty("maximum-not-reverted", _REVERT, client=_MaximumNotReverted)
_Faulty("grid-undone-in-part", _REVERT, client=_GridUndoneInPart)
_Faulty("learning-rate-of-the-present", _REBUILT, client=_PresentLearningRate)
_Faulty("client-order-changed", "reply-order-does-not-matter", server=_ArrivalOrder)
_Faulty("round-skipped", _REBUILT, replica=_RoundSkipped)
_Faulty("rate-of-the-last-for-all", "history-in-pieces-equals-in-one-go", replica=_RateOfTheLast)
_Faulty("decay-forgotten", _RECURSION, replica=_DecayForgotten)
_Faulty("gap-accepted", "a-gap-is-refused", replica=_GapAccepted)
_Faulty("writes-to-shared-vectors", "clients-may-share-what-is-equal", replica=_WritesToShared)
_Faulty("tensors-restart-the-stream", "whole-vector-equals-per-tensor", replica=_TensorsRestart)
_Faulty("pruned-too-far", _PRUNING, server=_PrunedTooFar)
_Faulty("never-pruned", _PRUNING, server=_NeverPruned)
_Faulty("pull-without-state", "dense-pull-equals-replay", server=_PullWithoutState)
_Faulty("pull-prunes-for-all", "any-order-of-events-keeps-the-bits", server=_PullPrunesForAll)
_Faulty("rate-of-the-round-before", _RECURSION, server=_RateOfTheRoundBefore)
_Faulty("model-decides", "the-server-needs-no-model", server=_ModelDecides)
_Faulty("round-forgotten-in-seeds", "fewer-seeds-give-the-same-models", server=_RoundForgotten)
_Faulty("one-seed-for-all-directions", "each-direction-can-have-its-seed", server=_OneSeedForAll)
_Faulty("report-ignored", "clients-can-track-their-round", server=_ReportIgnored)
_Faulty("queue-too-long", "a-bounded-history-is-enough", server=_QueueTooLong)
_Faulty("any-reply-accepted", "bad-replies-are-refused", server=_AnyReply)
_Faulty("pull-not-counted", "pulling-or-replaying-is-a-matter-of-cost", ledger=_PullFree)
_Faulty("uplink-not-counted", _LEDGER, ledger=_UplinkFree)
_Faulty("header-not-counted", _LEDGER, ledger=_BytesForgotten)
_Estimating("central-divided-by-mu", "scalars-of-a-linear-loss", _DividedByMu())
_Estimating("forward-for-central", "scalars-of-a-quadratic", ESTIMATORS["forward"])
_OtherServerSeed("seed-of-the-clock", itertools.count())
_OtherServerSeed("seed-ignored", itertools.repeat(0))
_HalfPrecision("scalars-in-half-precision", _WIRE)
_ChecksumIgnored("checksum-ignored", _WIRE)
_WithReplacement("sampled-with-replacement", _SAMPLING)
_SameEveryRound("same-clients-every-round", _SAMPLING)
_CollidingSeeds("directions-repeat", "streams-are-functions-of-their-counters")
_KeyLost("private-key-lost", "private-keys-hide-the-directions")
_LeanTheOtherWay("lean-the-other-way", "lean-clients-are-like-others")
_FaultySync("own-steps-not-corrected", _NotCorrected)
_FaultySync("corrected-in-single", _CorrectedInSingle)
_FaultyBackend("fused-multiply-add", _PROGRAMS, _Contracted())
_FaultyBackend("words-swapped", "known-answers-are-given", _WordsSwapped())
_FaultyBackend("tile-off-by-one", "slices-and-backends-agree", _TileOffByOne())
_FaultyBackend("high-word-forgotten", "far-slices-agree", _HighWordForgotten())
_FaultyBackend("rounding-bits-repeat", _PROGRAMS, _RoundingRepeats())
_FaultyBackend("double-within-a-program", "one-instruction-at-a-time-agrees", _DoubleWithinAProgram())
_FaultyBackend("squares-in-order", "square-sums-agree", _SquaresInOrder())
