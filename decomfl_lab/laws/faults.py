"""Wrong implementations. Each has one planted fault of a kind that is easily made; the laws must catch all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decomfl_lab import noise
from decomfl_lab.laws.contract import Case, Implementation
from decomfl_lab.noise import Backend, Distribution, Op, Program, reference
from decomfl_lab.noise.program import DISTRIBUTIONS, Code
from decomfl_lab.noise.spec import TILE
from decomfl_lab.objectives.objective import Objective, Perturbable
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Held, Plan, Reply
from decomfl_lab.protocol.server import Server
from decomfl_lab.protocol.wire import Ledger
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import DerivedSeeds, Seeding, StepSeed
from decomfl_lab.replicas.replica import Replica, Snapshot, SyncReplica
from decomfl_lab.replicas.rules import GridSgd, Step

__all__ = ["FAULTS"]

FAULTS: dict[str, Implementation] = {}

_Floats = NDArray[np.float32] | NDArray[np.float64]


class _Faulty(Implementation):
    """The lab's implementation with a class of it exchanged for a faulty one."""

    def __init__(
        self,
        name: str,
        *,
        client: type[Client] = Client,
        server: type[Server] = Server,
        replica: type[Replica] = Replica,
        ledger: type[Ledger] = Ledger,
    ) -> None:
        self.name = name
        self._classes = (client, server, replica, ledger)
        FAULTS[name] = self

    def replica(self, case: Case, *, per_tensor: bool = False) -> Replica:
        return self._classes[2](case.initial(), case.rule, sizes=case.sizes if per_tensor else None)

    def client(self, case: Case, i: int, objective: Objective | None = None) -> Client:
        right = super().client(case, i, objective)
        return self._classes[0](i, right.replica, right.objective, right.estimator, right.mu)

    def server(self, case: Case, *, with_model: bool = True) -> Server:
        right = super().server(case, with_model=with_model)
        return self._classes[1](
            **{f.name: getattr(right, f.name) for f in dataclasses.fields(Server) if f.name not in ("history",)}
        )

    def ledger(self, case: Case) -> Ledger:
        return self._classes[3](case.M)


class _NoRevert(Client):
    def handle(self, plan: Plan) -> Reply:
        self.replica.catch_up(plan.records)
        return Reply(self.id, plan.round, *self.local_update(plan))


class _NoStateRevert(Client):
    def handle(self, plan: Plan) -> Reply:
        self.replica.catch_up(plan.records)
        before = self.replica.x.clone()
        reply = Reply(self.id, plan.round, *self.local_update(plan))
        self.replica.x.copy_(before)
        return reply


class _ArithmeticRevert(Client):
    """Undoes the local steps by adding back what they subtracted, as eq. (sync) does in real arithmetic."""

    def handle(self, plan: Plan) -> Reply:
        self.replica.catch_up(plan.records)
        before = self.replica.snapshot()
        scalars, loss, _ = self.local_update(plan)
        if self.replica.state:
            self.replica.restore(before)
        else:
            for k in reversed(range(plan.K - 1)):
                step = Step(plan.seeds[k], -scalars[k], plan.eta, plan.distribution)
                self.replica.step_(step)
        return Reply(self.id, plan.round, scalars, loss)


class _MaximumNotReverted(Client):
    """Brings back x and every state vector but ZO-AdaMM's maximum."""

    def handle(self, plan: Plan) -> Reply:
        self.replica.catch_up(plan.records)
        before = self.replica.snapshot()
        reply = Reply(self.id, plan.round, *self.local_update(plan))
        kept = {slot: self.replica.state[slot] for slot in before.state if slot == "maximum"}
        self.replica.restore(dataclasses.replace(before, state={**before.state, **kept}))
        return reply


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


class _WritesToShared(Replica):
    """Steps on in vectors that others hold too."""

    def own(self) -> None:
        self._shared = False


class _TensorsRestart(Replica):
    """Starts every tensor at position 0 of the stream."""

    def _run(self, program: Program) -> None:
        self.own()
        vectors = {"x": self.x, **self.state}
        cut = {name: vector.split(self.sizes) for name, vector in vectors.items()}
        for n in range(len(self.sizes)):
            memory = {name: parts[n].numpy() for name, parts in cut.items()}
            noise.run(program, memory, d=self.d)


class _ArrivalOrder(Server):
    """Adds the scalars in float32 in the order in which they arrive."""

    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        arrived = list(replies)
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


class _OtherSeeds(Server):
    """Plans rounds with other seeds than those that derive from the run's."""

    def seeds(self, right: Plan) -> Sequence[StepSeed]:
        raise NotImplementedError

    def plan_round(
        self, participants: Sequence[int] | None = None, reports: Iterable[Held] | None = None
    ) -> dict[int, Plan]:
        right = super().plan_round(participants, reports)
        self._planned = {i: dataclasses.replace(plan, seeds=self.seeds(plan)) for i, plan in right.items()}
        return dict(self._planned)


class _RoundForgotten(_OtherSeeds):
    """Step seeds derive from the run's seed alone where they are not sent."""

    def seeds(self, right: Plan) -> Sequence[StepSeed]:
        derived = isinstance(right.seeds, DerivedSeeds)
        return DerivedSeeds(self.run_seed, right.K, right.seeding) if derived else right.seeds


class _OneSeedForAll(_OtherSeeds):
    """The directions of a step have seeds of their own, all the same."""

    def seeds(self, right: Plan) -> Sequence[StepSeed]:
        if right.seeding is not Seeding.PER_DIRECTION:
            return right.seeds
        return tuple((seed[0],) * right.P for seed in right.seeds if isinstance(seed, tuple))


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


class _CollidingSeeds(Implementation):
    """Directions of one seed that come back after two."""

    name = "directions-repeat"

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


class _FaultyBackend(Implementation):
    """The lab's implementation with one more backend, which is wrong."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self._backend = backend
        FAULTS[name] = self

    def backends(self) -> dict[str, Backend]:
        return {self.name: self._backend}


class _KeyLost(Implementation):
    """Client 0 never got the private key."""

    name = "private-key-lost"

    def keyed_client(self, case: Case, i: int, key: int) -> Client:
        client = super().keyed_client(case, i, key)
        if i == 0:
            client.replica.private_key = None
        return client


class _NotCorrected(SyncReplica):
    """Applies the record on top of its own local steps."""

    def diverge(self, taken: Iterable[Step]) -> None:
        del taken


class _CorrectedInSingle(SyncReplica):
    """Rounds the corrections of a float64 model to float32."""

    def _correct(self, program: Program, own: Step, step: Step | None) -> None:
        self._sgd.emit_correction(program, self._real(own), step, wide=False)


class _FaultySync(Implementation):
    """The lab's implementation with a replica that synchronises wrongly."""

    def __init__(self, name: str, replica: type[SyncReplica]) -> None:
        self.name = name
        self._replica = replica
        FAULTS[name] = self

    def sync_client(self, case: Case, i: int) -> Client:
        right = super().sync_client(case, i)
        return Client(i, self._replica(case.initial(), case.rule), right.objective, right.estimator, right.mu)


class _OtherSide:
    """Lean perturbations by −c for c."""

    def __init__(self, right: Perturbable) -> None:
        self.right = right

    def __call__(self, x: torch.Tensor, step: int) -> float:
        return self.right(x, step)

    def along(self, x: torch.Tensor, step: int, seed: int, p: int, c: float, distribution: Distribution) -> float:
        return self.right.along(x, step, seed, p, -c, distribution)


class _LeanTheOtherWay(Implementation):
    """Lean clients that walk to x − μz."""

    name = "lean-the-other-way"

    def lean_client(self, case: Case, i: int, objective: Perturbable) -> Client:
        return super().lean_client(case, i, _OtherSide(objective))


_Faulty("revert-forgotten", client=_NoRevert)
_Faulty("momentum-not-reverted", client=_NoStateRevert)
_Faulty("revert-by-arithmetic", client=_ArithmeticRevert)
_Faulty("maximum-not-reverted", client=_MaximumNotReverted)
_Faulty("grid-undone-in-part", client=_GridUndoneInPart)
_Faulty("learning-rate-of-the-present", client=_PresentLearningRate)
_Faulty("client-order-changed", server=_ArrivalOrder)
_Faulty("round-skipped", replica=_RoundSkipped)
_Faulty("gap-accepted", replica=_GapAccepted)
_Faulty("writes-to-shared-vectors", replica=_WritesToShared)
_Faulty("tensors-restart-the-stream", replica=_TensorsRestart)
_Faulty("pruned-too-far", server=_PrunedTooFar)
_Faulty("never-pruned", server=_NeverPruned)
_Faulty("pull-without-state", server=_PullWithoutState)
_Faulty("model-decides", server=_ModelDecides)
_Faulty("round-forgotten-in-seeds", server=_RoundForgotten)
_Faulty("one-seed-for-all-directions", server=_OneSeedForAll)
_Faulty("report-ignored", server=_ReportIgnored)
_Faulty("queue-too-long", server=_QueueTooLong)
_Faulty("pull-not-counted", ledger=_PullFree)
_Faulty("any-reply-accepted", server=_AnyReply)
_Faulty("uplink-not-counted", ledger=_UplinkFree)
FAULTS[_CollidingSeeds.name] = _CollidingSeeds()
FAULTS[_KeyLost.name] = _KeyLost()
FAULTS[_LeanTheOtherWay.name] = _LeanTheOtherWay()
_FaultySync("own-steps-not-corrected", _NotCorrected)
_FaultySync("corrected-in-single", _CorrectedInSingle)
_FaultyBackend("fused-multiply-add", _Contracted())
_FaultyBackend("words-swapped", _WordsSwapped())
_FaultyBackend("tile-off-by-one", _TileOffByOne())
_FaultyBackend("high-word-forgotten", _HighWordForgotten())
_FaultyBackend("rounding-bits-repeat", _RoundingRepeats())
_FaultyBackend("squares-in-order", _SquaresInOrder())
