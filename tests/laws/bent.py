"""A client of forward differences that can be bent in one place: a method for each thing that it must do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from decomfl_lab.errors import InputError
from decomfl_lab.laws import Case, Implementation, Wavy
from decomfl_lab.protocol.messages import Held, Plan, Reply
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.rules import Momentum, Sgd


class Client:
    """Measures and follows as it must; a bug overrides one of the methods below ``handle``."""

    run_seed: int | None = None

    def __init__(self, case: Case, i: int, replica: Any, loss: Any) -> None:
        self.case, self.id, self.replica, self.loss, self.steps = case, i, replica, loss, 0
        self.plan: Any = None
        self.before: Any = None

    def report(self) -> Held:
        return Held(self.id, self.replica.round)

    def handle(self, plan: Plan) -> Reply:
        self.replica.catch_up(plan.records)
        if self.replica.round != plan.round:
            raise InputError("records are missing")
        self.begin(plan)
        self.before, g = self.replica.snapshot(), np.empty((plan.K, plan.P), np.float32)
        for k in range(plan.K):
            x = self.x_of(k)
            for p in range(plan.P):
                g[k, p] = self.scalar(x, self.direction(k, p))
            taken, g[k] = g[k].copy(), self.sent(k, g[k])
            step = RoundRecord(
                self.replica.round, plan.eta, plan.distribution, [plan.seeds[k]], self.moves(taken)[None]
            )
            self.replica.catch_up([step])
            self.steps += 1
        self.replica.restore(self.before)
        return self.answer(Reply(self.id, plan.round, g))

    def begin(self, plan: Plan) -> None:
        self.plan = plan

    def x_of(self, k: int) -> Any:
        return self.replica.snapshot().x

    def direction(self, k: int, p: int) -> Any:
        return torch.from_numpy(self.case.direction(self.plan.seeds[k], p))

    def scalar(self, x: Any, z: Any) -> float:
        step, mu = self.step(), self.case.mu
        return float((self.loss(x + mu * z, step) - self.loss(x, step)) / mu)

    def step(self) -> int:
        return self.steps

    def sent(self, k: int, g: Any) -> Any:
        return g

    def moves(self, g: Any) -> Any:
        return g

    def answer(self, reply: Reply) -> Reply:
        return reply


class Bent(Implementation):
    """The lab's own with clients of this kind, for plain rules and forward differences."""

    def __init__(self, kind: Callable[..., Client] = Client) -> None:
        self.kind = kind

    def supports(self, case: Case) -> bool:
        plain = isinstance(case.rule, Sgd | Momentum) and case.seeding is not Seeding.POOL
        return plain and case.estimator == "forward"

    def client(self, case: Case, i: int, objective: Any = None) -> Any:
        return self.kind(case, i, self.replica(case), Wavy(case.d, i) if objective is None else objective)
