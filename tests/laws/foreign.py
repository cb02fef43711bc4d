"""DeComFL written anew in numpy, for SGD and momentum: nothing of the lab's but directions and what is exchanged."""

import hashlib
import io
import math
import pickle
import random
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from decomfl_lab.errors import InputError
from decomfl_lab.laws import Case, Implementation, Wavy
from decomfl_lab.protocol.messages import Held, Message, Plan, Reply
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.records.record import History, RoundRecord
from decomfl_lab.records.seeds import draw_seeds
from decomfl_lab.replicas.replica import Snapshot
from decomfl_lab.replicas.rules import Momentum, Sgd

Vector = np.ndarray[Any, Any]


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise InputError(message)


class Replica:
    def __init__(self, case: Case) -> None:
        self.round, self.case = 0, case
        self.x = case.initial().numpy()
        self.m = np.zeros_like(self.x)

    def direction(self, seed: Any, p: int) -> Vector:
        return self.case.direction(seed, p).astype(self.x.dtype)

    def _plus(self, v: Vector, factor: float, seed: Any, g: Vector) -> Vector:
        """v + factor · (1/P) Σ_p g_p z_p, a rounded product and a rounded sum a direction."""
        for p, g_p in enumerate(g):
            v = v + v.dtype.type(np.float32(factor / g.size * float(g_p))) * self.direction(seed, p)
        return v

    def step(self, seed: Any, g: Vector, eta: float) -> None:
        rule, number = self.case.rule, self.x.dtype.type
        if isinstance(rule, Sgd):
            self.x = self._plus(self.x * number(1 - eta * rule.weight_decay), -eta, seed, g)
            return
        assert isinstance(rule, Momentum)
        weight = 1 - rule.beta if rule.convention == "paper" else 1.0
        decayed = self.m * number(rule.beta) + number(weight * rule.weight_decay) * self.x
        self.m = self._plus(decayed, weight, seed, g)
        self.x = self.x + number(-eta) * self.m

    def catch_up(self, records: Iterable[RoundRecord]) -> None:
        missed = [record for record in records if record.round >= self.round]
        _check([at.round - self.round for at in missed] == list(range(len(missed))), "a record is missing")
        for record in missed:
            for seed, g in zip(record.seeds, record.scalars, strict=True):
                self.step(seed, g, record.eta)
            self.round += 1

    def snapshot(self) -> Snapshot:
        state = {"momentum": torch.from_numpy(self.m)} if self.case.rule.slots else {}
        return Snapshot(self.round, torch.from_numpy(self.x), state)

    def restore(self, snapshot: Snapshot) -> None:
        self.round, self.x = snapshot.round, snapshot.x.numpy()
        self.m = snapshot.state["momentum"].numpy() if snapshot.state else self.m


class Client:
    """Measures and follows as it must; a bug overrides one of the methods below ``handle``."""

    run_seed: int | None = None
    model: type[Replica] = Replica

    def __init__(self, case: Case, i: int, loss: Any) -> None:
        self.case, self.id, self.replica, self.loss, self.steps = case, i, self.model(case), loss, 0
        self.plan: Any = None
        self.before: Any = None

    def report(self) -> Held:
        return Held(self.id, self.replica.round)

    def handle(self, plan: Plan) -> Reply:
        self.replica.catch_up(plan.records)
        _check(self.replica.round == plan.round, "records are missing")
        self.begin(plan)
        self.before, scalars = self.replica.snapshot(), np.empty((plan.K, plan.P), np.float32)
        for k, seed in enumerate(plan.seeds):
            x = self.x_of(k)
            for p in range(plan.P):
                scalars[k, p] = self.scalar(x, self.direction(k, p))
            taken, scalars[k] = scalars[k].copy(), self.sent(k, scalars[k])
            self.replica.step(seed, self.moves(taken), plan.eta)
            self.steps += 1
        self.replica.restore(self.before)
        return self.answer(Reply(self.id, plan.round, scalars))

    def begin(self, plan: Plan) -> None:
        self.plan = plan

    def x_of(self, k: int) -> Any:
        return torch.from_numpy(self.replica.x)

    def direction(self, k: int, p: int) -> Any:
        return torch.from_numpy(self.replica.direction(self.plan.seeds[k], p))

    def scalar(self, x: Any, z: Any) -> float:
        step, mu, behind = self.step(), self.case.mu, self.case.mu if self.case.estimator == "central" else 0.0
        return float((self.loss(x + mu * z, step) - self.loss(x - behind * z, step)) / (mu + behind))

    def step(self) -> int:
        return self.steps

    def sent(self, k: int, g: Any) -> Any:
        return g

    def moves(self, g: Any) -> Any:
        return g

    def answer(self, reply: Reply) -> Reply:
        return reply


class Server:
    def __init__(self, case: Case, *, with_model: bool) -> None:
        self.case, self.tracking, self.run_seed = case, case.tracking, case.seed ^ 0x5EED
        self.replica = Replica(case) if with_model else None
        self.history = History()
        self.held = [0] * case.M if case.tracking is Tracking.SERVER else []
        self.planned: dict[int, Plan] = {}

    @property
    def round(self) -> int:
        return self.history.end

    def plan_round(self, participants: Sequence[int], reports: Iterable[Held] | None = None) -> dict[int, Plan]:
        case, r, start = self.case, self.round, self.history.start
        held = dict(enumerate(self.held)) or {report.client: report.round for report in reports or ()}
        seeds = draw_seeds(case.seeding, self.run_seed, r, case.K, case.P(r))
        self.planned = {}
        for i in participants:
            _check(i in held and held[i] <= r, f"client {i} says nothing or nonsense of its round")
            _check(held[i] >= start, f"client {i} is at round {held[i]}, the records begin at {start}")
            records = self.history.since(held[i])
            self.planned[i] = Plan(r, case.eta(r), case.P(r), case.distribution, seeds, records)
        return self.planned

    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        by_client: dict[int, Vector] = {}
        for reply in replies:
            plan = self.planned.get(reply.client)
            _check(plan is not None and reply.client not in by_client, "a reply is foreign or doubled")
            assert plan is not None
            _check(reply.round == plan.round and reply.scalars.shape == (plan.K, plan.P), "a reply does not fit")
            _check(reply.scalars.dtype == np.float32, "scalars are no float32 numbers")
            _check(bool(np.isfinite(reply.scalars).all()), "scalars are not finite")
            by_client[reply.client] = reply.scalars
        _check(bool(by_client), "there is no reply")
        plan = self.planned[next(iter(by_client))]
        mean = self.mean(by_client).reshape(plan.K, plan.P)
        record = RoundRecord(plan.round, plan.eta, plan.distribution, plan.seeds, mean)
        self.history.append(record)
        if self.replica is not None:
            self.replica.catch_up([record])
        if self.held:
            self.held = [plan.round if i in by_client else r for i, r in enumerate(self.held)]
        self._forget()
        return record

    def mean(self, by_client: dict[int, Vector]) -> Vector:
        columns = np.stack(list(by_client.values())).astype(np.float64).reshape(len(by_client), -1).T
        return np.array([math.fsum(column) / len(by_client) for column in columns], np.float32)

    def _forget(self) -> None:
        self.history.prune(max(min(self.held, default=0), self.round - self.case.keep if self.case.keep else 0))

    def dense_model(self) -> Snapshot:
        assert self.replica is not None
        return self.replica.snapshot()

    def note_dense_pull(self, client: int) -> None:
        if self.held:
            self.held[client] = self.round
        self._forget()


class WeighingServer(Server):
    def __init__(self, case: Case) -> None:
        super().__init__(case, with_model=True)
        self.examples: dict[int, int] = {}

    def note_examples(self, client: int, n: int) -> None:
        _check(0 <= client < self.case.M and 0 < n < 2**29, "a client or a number of examples that is none")
        _check(self.examples.setdefault(client, n) == n, "another number of examples than before")

    def mean(self, by_client: dict[int, Vector]) -> Vector:
        _check(by_client.keys() <= self.examples.keys(), "a client has not said how many examples it has")
        terms = np.stack([self.examples[i] * g.astype(np.float64).reshape(-1) for i, g in by_client.items()])
        total = sum(self.examples[i] for i in by_client)
        return np.array([math.fsum(column) / total for column in terms.T], np.float32)


class _ByFields(pickle.Pickler):
    """A message by its fields: equal ones have equal bytes, whatever they have computed of their fields and kept."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) or not is_dataclass(value):
            return NotImplemented
        return type(value), tuple(getattr(value, own.name) for own in fields(value))


class Foreign(Implementation):
    def supports(self, case: Case) -> bool:
        return isinstance(case.rule, Sgd | Momentum) and case.estimator in ("forward", "central")

    def replica(self, case: Case, *, per_tensor: bool = False) -> Replica:
        return Replica(case)

    def client(self, case: Case, i: int, objective: Any = None) -> Client:
        return Client(case, i, Wavy(case.d, i) if objective is None else objective)

    def server(self, case: Case, *, with_model: bool = True) -> Server:  # type: ignore[override]
        return Server(case, with_model=with_model)

    def sample(self, seed: int, r: int, M: int, m: int) -> Sequence[int]:
        return random.Random(f"{seed} {r}").sample(range(M), m)

    def encode(self, message: Message) -> bytes:
        written = io.BytesIO()
        pickler = _ByFields(written)
        pickler.fast = True  # bytes do not depend either on which of the equal parts of a message are one object
        pickler.dump(replace(message, loss=math.nan) if isinstance(message, Reply) else message)
        body = written.getvalue()
        return hashlib.sha256(body).digest() + body

    def decode(self, message: bytes, run_seed: int | None = None) -> Message:
        _check(hashlib.sha256(message[32:]).digest() == message[:32], "the message is damaged")
        return pickle.loads(message[32:])  # type: ignore[no-any-return]
