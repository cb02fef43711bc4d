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

    def fit(edge: Any, make: Callable[..., Any], case: Case, *of: Any, **named: Any) -> Any:
        made = make(case, *of, **named)
        if isinstance(made, Server):
            made.replica = _replica(made.replica, case)  # which may be somebody else's
        return made if isinstance(made, Replica | Client | Server) else edge(made, case)

    outside: Any = copy.copy(implementation)
    for part, edge in _EDGES.items():
        setattr(outside, part, partial(fit, edge, getattr(implementation, part)))
    make: Any = implementation.backends
    outside.backends = lambda: {name: own if hasattr(own, "run") else _Slices(own) for name, own in make().items()}
    return cast("Implementation", outside)


def _asked(method: Callable[..., Any], *of: Any) -> Any:
    """What a method of somebody else's gives; a ``ValueError`` is a refusal as ``InputError`` is."""
    try:
        return method(*of)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(*error.args).with_traceback(error.__traceback__) from error


def _tensor(vector: Any) -> Tensor:
    return vector if isinstance(vector, Tensor) else torch.from_numpy(np.asarray(vector))


class _Outside:
    """A part of somebody else's, in a case."""

    def __init__(self, of: Any, case: Case) -> None:
        self.of, self.case = of, case

    round = property(lambda self: int(self.of.round))
    replica = property(lambda self: _replica(self.of.replica, self.case))


class _Replica(_Outside):
    """See ``contract.AnyReplica``."""

    def catch_up(self, records: Iterable[RoundRecord]) -> None:
        _asked(self.of.catch_up, records)

    def snapshot(self) -> Snapshot:
        found = self.of.snapshot()
        slots = self.case.rule.slots
        state = found.state if hasattr(found, "state") else {slot: getattr(found, slot) for slot in slots}
        return Snapshot(found.round, _tensor(found.x), {slot: _tensor(vector) for slot, vector in state.items()})

    def restore(self, snapshot: Snapshot) -> None:
        """Hand over a value of the class that the replica itself hands over."""
        own: Any = self.of.snapshot()
        given: dict[str, Any] = {"x": snapshot.x, **snapshot.state}
        if isinstance(own.x, np.ndarray):
            given = {name: vector.numpy() for name, vector in given.items()}
        if hasattr(own, "state"):
            given = {"x": given.pop("x"), "state": given}
        change: Any = replace if is_dataclass(own) else type(own)._replace
        self.of.restore(change(own, round=snapshot.round, **given))


def _replica(of: Any, case: Case) -> Any:
    return of if of is None or isinstance(of, Replica) else _Replica(of, case)


class _Client(_Outside):
    """See ``contract.AnyClient``."""

    run_seed: int | None = None
    id = property(lambda self: int(self.of.id))

    def report(self) -> Held:
        found = self.of.report() if hasattr(self.of, "report") else Held(self.id, self.replica.round)
        return Held(found.client, found.round)

    def handle(self, plan: Plan) -> Reply:
        reply = _asked(self.of.handle, plan)
        return reply if isinstance(reply, Reply) else Reply(reply.client, reply.round, reply.scalars)


class _Server(_Outside):
    """See ``contract.AnyServer``."""

    def __init__(self, of: Any, case: Case) -> None:
        super().__init__(of, case)
        self.tracking: Tracking = getattr(of, "tracking", case.tracking)
        self.run_seed: int = of.run_seed

    held = property(lambda self: self.of.held, lambda self, held: setattr(self.of, "held", held))

    @property
    def history(self) -> History:
        kept: Any = self.of.history
        return History(map(self._record, kept), self.of.round - len(kept)) if isinstance(kept, list) else kept

    @history.setter
    def history(self, history: History) -> None:
        if isinstance(self.of.history, list):
            self.of.history, self.of.round = list(history.since(history.start)), history.end
        else:
            self.of.history = history

    def plan_round(
        self, participants: Sequence[int] | None = None, reports: Iterable[Held] | None = None
    ) -> Mapping[int, Plan]:
        plans = dict(_asked(self.of.plan_round, participants, reports))
        for i, plan in plans.items():
            if not isinstance(plan, Plan):
                seeds = self._sent(plan.seeds, plan.round, plan.P)
                records = tuple(self._record(record) for record in plan.records)
                plans[i] = Plan(plan.round, plan.eta, plan.P, self._distribution(plan), seeds, records)
        return plans

    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        return self._record(_asked(self.of.aggregate, replies))

    def dense_model(self) -> Snapshot:
        return cast("Snapshot", self.of.dense_model() if hasattr(self.of, "dense_model") else self.replica.snapshot())

    def note_dense_pull(self, client: int) -> None:
        if self.tracking is Tracking.SERVER:
            self.of.note_dense_pull(client)

    def note_examples(self, client: int, n: int) -> None:
        _asked(self.of.note_examples, client, n)

    def _record(self, record: Any) -> RoundRecord:
        if isinstance(record, RoundRecord):
            return record
        seeds = self._sent(record.seeds, record.round, record.scalars.shape[-1])
        try:
            return RoundRecord(record.round, record.eta, self._distribution(record), seeds, record.scalars)
        except InputError as error:  # no refusal: it is there
            raise LawBrokenError(f"record of round {record.round}: {error}") from error

    def _distribution(self, of: Any) -> Distribution:
        return Distribution(getattr(of, "distribution", self.case.distribution))

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

    def directions(self, *at: Any) -> F32:
        """See ``noise.Backend``."""
        return reference.directions(*at)

    def tile_square_sums(self, *at: int) -> NDArray[np.float64]:
        """See ``noise.Backend``."""
        return reference.tile_square_sums(*at)

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
        r = registers[to]
        for n in range(begin, end):
            of = first, r.size, DISTRIBUTIONS[kind], float(scales[n])
            z = self.directions(int(code.keys[0]), p + n - begin, *of)
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

    def directions(self, key: int, direction: int, first: int, count: int, of: Distribution, scale: float) -> F32:  # noqa: ARG002
        return self.make(key, direction, first, count, of)

    def tile_square_sums(self, *at: int) -> NDArray[np.float64]:
        raise NotImplementedError("square sums of tiles are not offered")
