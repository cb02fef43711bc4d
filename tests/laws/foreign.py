"""DeComFL written anew in numpy, for plain SGD in float32: nothing of the lab's but the values it exchanges."""

from __future__ import annotations

import hashlib
import math
import pickle
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from decomfl_lab import noise
from decomfl_lab.errors import InputError
from decomfl_lab.laws import Case, Implementation, Wavy
from decomfl_lab.protocol.messages import Held, Message, Plan, Reply
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.records.record import History, RoundRecord
from decomfl_lab.records.seeds import draw_seeds, stream_of
from decomfl_lab.replicas.replica import Snapshot
from decomfl_lab.replicas.rules import Sgd

Vector = np.ndarray[Any, Any]


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise InputError(message)


def _step(x: Vector, seed: Any, g: Vector, eta: float, distribution: Any) -> Vector:
    """x − (η/P) Σ_p g_p z_p, a rounded product and a rounded sum a direction."""
    for p, g_p in enumerate(g):
        z = noise.direction(*stream_of(seed, p), x.size, distribution=distribution, backend="numpy")
        x = x + np.float32(-eta / g.size * float(g_p)) * z
    return x


class Replica:
    def __init__(self, case: Case) -> None:
        self.round = 0
        self.x, self.of = case.initial().numpy(), case.stream_distribution

    def catch_up(self, records: Iterable[RoundRecord]) -> None:
        missed = [record for record in records if record.round >= self.round]
        _check([at.round - self.round for at in missed] == list(range(len(missed))), "a record is missing")
        for record in missed:
            for seed, g in zip(record.seeds, record.scalars, strict=True):
                self.x = _step(self.x, seed, g, record.eta, self.of)
            self.round += 1

    def snapshot(self) -> Snapshot:
        return Snapshot(self.round, torch.tensor(self.x), {})

    def restore(self, snapshot: Snapshot) -> None:
        self.round, self.x = snapshot.round, snapshot.x.numpy().copy()


class Client:
    run_seed: int | None = None

    def __init__(self, case: Case, i: int, loss: Any) -> None:
        self.id, self.replica, self.loss = i, Replica(case), loss
        self.central, self.mu, self.steps = case.estimator == "central", case.mu, 0

    def report(self) -> Held:
        return Held(self.id, self.replica.round)

    def _scalar(self, x: Vector, z: Vector) -> float:
        ends = (self.mu, -self.mu if self.central else 0.0)
        above, below = (self.loss(torch.from_numpy(x + np.float32(c) * z), self.steps) for c in ends)
        return float((above - below) / (ends[0] - ends[1]))

    def handle(self, plan: Plan) -> Reply:
        self.replica.catch_up(plan.records)
        _check(self.replica.round == plan.round, "records are missing")
        x, of, scalars = self.replica.x, self.replica.of, np.empty((plan.K, plan.P), np.float32)
        for k, seed in enumerate(plan.seeds):
            for p in range(plan.P):
                z = noise.direction(*stream_of(seed, p), x.size, distribution=of, backend="numpy")
                scalars[k, p] = self._scalar(x, z)
            x = _step(x, seed, scalars[k], plan.eta, of)
            self.steps += 1
        return Reply(self.id, plan.round, scalars)


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
        columns = np.stack(list(by_client.values())).astype(np.float64).reshape(len(by_client), -1).T
        mean = np.array([math.fsum(column) / len(by_client) for column in columns], np.float32)
        record = RoundRecord(plan.round, plan.eta, plan.distribution, plan.seeds, mean.reshape(plan.K, plan.P))
        self.history.append(record)
        if self.replica is not None:
            self.replica.catch_up([record])
        if self.held:
            self.held = [plan.round if i in by_client else r for i, r in enumerate(self.held)]
        self._forget()
        return record

    def _forget(self) -> None:
        self.history.prune(max(min(self.held, default=0), self.round - self.case.keep if self.case.keep else 0))

    def dense_model(self) -> Snapshot:
        assert self.replica is not None
        return self.replica.snapshot()

    def note_dense_pull(self, client: int) -> None:
        if self.held:
            self.held[client] = self.round
        self._forget()


class Foreign(Implementation):
    def supports(self, case: Case) -> bool:
        return case.rule == Sgd() and case.dtype == torch.float32 and case.estimator != "central-sign"

    def replica(self, case: Case, *, per_tensor: bool = False) -> Replica:
        return Replica(case)

    def client(self, case: Case, i: int, objective: Any = None) -> Client:
        return Client(case, i, Wavy(case.d, i) if objective is None else objective)

    def server(self, case: Case, *, with_model: bool = True) -> Server:  # type: ignore[override]
        return Server(case, with_model=with_model)

    def sample(self, seed: int, r: int, M: int, m: int) -> Sequence[int]:
        return random.Random(f"{seed} {r}").sample(range(M), m)

    def encode(self, message: Message) -> bytes:
        body = pickle.dumps(replace(message, loss=math.nan) if isinstance(message, Reply) else message)
        return hashlib.sha256(body).digest() + body

    def decode(self, message: bytes, run_seed: int | None = None) -> Message:
        _check(hashlib.sha256(message[32:]).digest() == message[:32], "the message is damaged")
        return pickle.loads(message[32:])  # type: ignore[no-any-return]
