"""The edge between the laws and parts of other classes than the lab's: any value will do that has the fields.

A plan, record, reply or snapshot is read by its fields, vectors may be arrays, ``ValueError`` is a refusal, and what
the case says anyway may be left out. Behind the edge the laws and the lab's delivery see the lab's own values.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError
from decomfl_lab.laws.contract import Case, Implementation
from decomfl_lab.laws.register import LawBrokenError
from decomfl_lab.noise import Distribution, Op, reference
from decomfl_lab.noise.program import DISTRIBUTIONS, Code
from decomfl_lab.noise.reference import F32, Floats
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Held, Plan, Reply
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.records.record import History, RoundRecord
from decomfl_lab.records.seeds import StepSeed, draw_seeds
from decomfl_lab.replicas.replica import Replica, Snapshot


def fitted(implementation: Implementation) -> Implementation:
    """The same implementation, whose parts give and take the lab's values; among themselves they use their own."""

    def fit(edge: Any, make: Callable[..., Any], case: Case, *arguments: Any, **named: Any) -> Any:
        made = make(case, *arguments, **named)
        if isinstance(made, Server):
            made.replica = _replica(made.replica, case)  # which may be somebody else's
        return made if isinstance(made, Replica | Client | Server) else edge(made, case)

    outside: Any = copy.copy(implementation)
    for part, edge in _EDGES.items():
        setattr(outside, part, partial(fit, edge, getattr(implementation, part)))
    make: Any = implementation.backends
    outside.backends = lambda: {name: part if hasattr(part, "run") else _Slices(part) for name, part in make().items()}
    return cast("Implementation", outside)


def _asked(method: Callable[..., Any], *arguments: Any) -> Any:
    """What a method of somebody else's gives; a ``ValueError`` is a refusal as ``InputError`` is."""
    try:
        return method(*arguments)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(*error.args).with_traceback(error.__traceback__) from error


def _tensor(vector: Any) -> Tensor:
    return vector if isinstance(vector, Tensor) else torch.from_numpy(np.asarray(vector))


class _Outside:
    """A part of somebody else's, in a case."""

    def __init__(self, theirs: Any, case: Case) -> None:
        self.theirs, self.case = theirs, case

    round = property(lambda self: int(self.theirs.round))
    replica = property(lambda self: _replica(self.theirs.replica, self.case))


class _Replica(_Outside):
    """See ``contract.AnyReplica``."""

    def catch_up(self, records: Iterable[RoundRecord]) -> None:
        _asked(self.theirs.catch_up, records)

    def snapshot(self) -> Snapshot:
        theirs = self.theirs.snapshot()
        slots = self.case.rule.slots
        state = theirs.state if hasattr(theirs, "state") else {slot: getattr(theirs, slot) for slot in slots}
        return Snapshot(theirs.round, _tensor(theirs.x), {slot: _tensor(vector) for slot, vector in state.items()})

    def restore(self, snapshot: Snapshot) -> None:
        """Hand over a value of the class that the replica itself hands over."""
        theirs: Any = self.theirs.snapshot()
        fields: dict[str, Any] = {"x": snapshot.x, **snapshot.state}
        if isinstance(theirs.x, np.ndarray):
            fields = {name: vector.numpy() for name, vector in fields.items()}
        if hasattr(theirs, "state"):
            fields = {"x": fields.pop("x"), "state": fields}
        change: Any = replace if is_dataclass(theirs) else type(theirs)._replace
        self.theirs.restore(change(theirs, round=snapshot.round, **fields))


def _replica(replica: Any, case: Case) -> Any:
    return replica if replica is None or isinstance(replica, Replica) else _Replica(replica, case)


class _Client(_Outside):
    """See ``contract.AnyClient``."""

    run_seed: int | None = None
    id = property(lambda self: int(self.theirs.id))

    def report(self) -> Held:
        report = self.theirs.report() if hasattr(self.theirs, "report") else Held(self.id, self.replica.round)
        return Held(report.client, report.round)

    def handle(self, plan: Plan) -> Reply:
        reply = _asked(self.theirs.handle, plan)
        return reply if isinstance(reply, Reply) else Reply(reply.client, reply.round, reply.scalars)


class _Server(_Outside):
    """See ``contract.AnyServer``."""

    def __init__(self, theirs: Any, case: Case) -> None:
        super().__init__(theirs, case)
        self.tracking: Tracking = getattr(theirs, "tracking", case.tracking)
        self.run_seed: int = theirs.run_seed

    held = property(lambda self: self.theirs.held, lambda self, held: setattr(self.theirs, "held", held))

    @property
    def history(self) -> History:
        history: Any = self.theirs.history
        if isinstance(history, list):  # of records, up to the server's round
            return History(map(self._record, history), self.theirs.round - len(history))
        return history  # type: ignore[no-any-return]

    @history.setter
    def history(self, history: History) -> None:
        if isinstance(self.theirs.history, list):
            self.theirs.history, self.theirs.round = list(history.since(history.start)), history.end
        else:
            self.theirs.history = history

    def plan_round(
        self, participants: Sequence[int] | None = None, reports: Iterable[Held] | None = None
    ) -> Mapping[int, Plan]:
        plans = dict(_asked(self.theirs.plan_round, participants, reports))
        for i, plan in plans.items():
            if not isinstance(plan, Plan):
                seeds = self._sent(plan.seeds, plan.round, plan.P)
                records = tuple(self._record(record) for record in plan.records)
                plans[i] = Plan(plan.round, plan.eta, plan.P, self._distribution(plan), seeds, records)
        return plans

    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        return self._record(_asked(self.theirs.aggregate, replies))

    def dense_model(self) -> Snapshot:
        model = self.theirs.dense_model if hasattr(self.theirs, "dense_model") else self.replica.snapshot
        return cast("Snapshot", model())

    def note_dense_pull(self, client: int) -> None:
        if self.tracking is Tracking.SERVER:
            self.theirs.note_dense_pull(client)

    def note_examples(self, client: int, n: int) -> None:
        _asked(self.theirs.note_examples, client, n)

    def _record(self, record: Any) -> RoundRecord:
        if isinstance(record, RoundRecord):
            return record
        seeds = self._sent(record.seeds, record.round, record.scalars.shape[-1])
        try:
            return RoundRecord(record.round, record.eta, self._distribution(record), seeds, record.scalars)
        except InputError as error:  # no refusal: it is there
            raise LawBrokenError(f"record of round {record.round}: {error}") from error

    def _distribution(self, head: Any) -> Distribution:
        return Distribution(getattr(head, "distribution", self.case.distribution))

    def _sent(self, seeds: Sequence[StepSeed], r: int, P: int) -> Sequence[StepSeed]:
        """The seeds in the form in which they are sent, if that form says the same."""
        form = draw_seeds(self.case.seeding, self.run_seed, r, self.case.K, P, self.case.pool)
        return form if list(form) == list(seeds) else tuple(seeds)


_EDGES: dict[str, Any] = {
    "replica": _replica,
    "server": _Server,
    "weighing_server": _Server,
    **dict.fromkeys(("client", "keyed_client", "lean_client", "sync_client"), _Client),
}
"""What is put around each part that has values to hand over."""


class ByInstruction:
    """A backend that hands every instruction to the reference, but for what is overridden."""

    def directions(self, *arguments: Any) -> F32:
        """See ``noise.Backend``."""
        return reference.directions(*arguments)

    def tile_square_sums(self, *arguments: int) -> NDArray[np.float64]:
        """See ``noise.Backend``."""
        return reference.tile_square_sums(*arguments)

    def run(self, code: Code, memory: Sequence[Floats], first: int, scales: F32, *, store: bool = True) -> int:
        """See ``noise.Backend``."""
        registers = [vector if store else vector.copy() for vector in memory]
        registers.append(np.zeros_like(registers[0]))  # the scratch lives on from one instruction to the next
        broken = 0
        for n in range(len(code.keys)):
            one = slice(n, n + 1)
            single = replace(code, table=code.table[one], keys=code.keys[one], values=code.values[one])
            broken += self.instruction(single, registers, first, scales)
        return broken

    def instruction(self, code: Code, registers: Sequence[Floats], first: int, scales: F32) -> int:
        """Run a program of one instruction; how many limits were broken."""
        op, to, _, p, begin, end, kind = (int(entry) for entry in code.table[0])
        if op != Op.NOISE:
            return reference.run(code, registers, first, scales)
        r, key, distribution = registers[to], int(code.keys[0]), DISTRIBUTIONS[kind]
        for n in range(begin, end):
            z = self.directions(key, p + n - begin, first, r.size, distribution, float(scales[n]))
            self.add(r, code.coefficients[n], z)
        return 0

    def add(self, r: Floats, c: np.float32, z: F32) -> None:
        """R ← r + c z."""
        number: Any = r.dtype.type
        r += number(c) * z.astype(r.dtype)


class _Slices(ByInstruction):
    """Of a function that makes slices of directions."""

    def __init__(self, make: Callable[..., F32]) -> None:
        self.make = make

    def directions(self, key: int, p: int, first: int, count: int, kind: Distribution, scale: float) -> F32:  # noqa: ARG002
        return self.make(key, p, first, count, kind)

    def tile_square_sums(self, *arguments: int) -> NDArray[np.float64]:
        raise NotImplementedError("square sums of tiles are not offered")
