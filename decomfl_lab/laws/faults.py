"""Wrong implementations. Each has one planted fault of a kind that is easily made; the laws must catch all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from decomfl_lab import noise
from decomfl_lab.client import Client
from decomfl_lab.laws.contract import Case, Implementation
from decomfl_lab.messages import Plan, Reply
from decomfl_lab.noise import Distribution, Program
from decomfl_lab.objective import Objective
from decomfl_lab.records import RoundRecord
from decomfl_lab.replica import Replica, Snapshot
from decomfl_lab.rules import Step
from decomfl_lab.server import Server
from decomfl_lab.wire import Ledger

__all__ = ["FAULTS"]

FAULTS: dict[str, Implementation] = {}


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
        scalars, loss = self.local_update(plan)
        if self.replica.state:
            self.replica.restore(before)
        else:
            for k in reversed(range(plan.K - 1)):
                step = Step(plan.seeds[k], -scalars[k], plan.eta, plan.distribution)
                self.replica.step_(step)
        return Reply(self.id, plan.round, scalars, loss)


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


class _TensorsRestart(Replica):
    """Starts every tensor at position 0 of the stream."""

    def _run(self, program: Program) -> None:
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
        self.history.prune(max(self.held))
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


class _AnyReply(Server):
    def _check(self, reply: Reply) -> None:
        if reply.client not in self._planned:
            super()._check(reply)


class _UplinkFree(Ledger):
    def reply(self, reply: Reply) -> bytes:
        message = super().reply(reply)
        self.up[reply.client].scalars -= reply.scalars.size
        return message


class _CollidingSeeds(Implementation):
    """Directions of one seed that come back after two."""

    name = "directions-repeat"

    def direction(self, seed: int, p: int, d: int, distribution: Distribution) -> NDArray[np.float32]:
        return noise.direction(seed, p // 2, d, distribution=distribution)


_Faulty("revert-forgotten", client=_NoRevert)
_Faulty("momentum-not-reverted", client=_NoStateRevert)
_Faulty("revert-by-arithmetic", client=_ArithmeticRevert)
_Faulty("learning-rate-of-the-present", client=_PresentLearningRate)
_Faulty("client-order-changed", server=_ArrivalOrder)
_Faulty("round-skipped", replica=_RoundSkipped)
_Faulty("gap-accepted", replica=_GapAccepted)
_Faulty("tensors-restart-the-stream", replica=_TensorsRestart)
_Faulty("pruned-too-far", server=_PrunedTooFar)
_Faulty("never-pruned", server=_NeverPruned)
_Faulty("pull-without-state", server=_PullWithoutState)
_Faulty("any-reply-accepted", server=_AnyReply)
_Faulty("uplink-not-counted", ledger=_UplinkFree)
FAULTS[_CollidingSeeds.name] = _CollidingSeeds()
