"""The algorithm of ``examples/decomfl.py``, which shares no part with the lab, with clients that can be bent."""

import hashlib
import io
import math
import pickle
import random
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from decomfl_lab.errors import InputError
from decomfl_lab.laws import Case, Implementation, Wavy
from decomfl_lab.protocol.messages import Message, Reply
from decomfl_lab.replicas.rules import Momentum, Sgd
from examples import decomfl

sys.modules["decomfl"] = decomfl  # whoever runs the examples is in their folder
from examples.verify_decomfl import OneFile  # noqa: E402

Vector = np.ndarray[Any, Any]


class Replica(decomfl.Replica):  # type: ignore[misc]
    """In float64 too, with weight decay, and with all distributions of the lab's directions."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.initial().numpy(), getattr(case.rule, "beta", 0.0))
        self.case, self.weight = case, 1 - self.beta if getattr(case.rule, "convention", "") == "paper" else 1.0
        self.beta = self.x.dtype.type(self.beta)

    def direction(self, seed: Any, p: int) -> Vector:
        return self.case.direction(seed, p).astype(self.x.dtype)

    def step(self, seed: Any, g: Vector, eta: float) -> None:
        rule, number = self.case.rule, self.x.dtype.type
        if isinstance(rule, Sgd):
            self.x = self.plus(self.x * number(1 - eta * rule.weight_decay), -eta, seed, g)
            return
        assert isinstance(rule, Momentum)
        decayed = self.momentum * self.beta + number(self.weight * rule.weight_decay) * self.x
        self.momentum = self.plus(decayed, self.weight, seed, g)
        self.x = self.x + number(-eta) * self.momentum


class Client(decomfl.Client):  # type: ignore[misc]
    """Measures and follows as it must; a bug overrides one of the methods below ``local_step``."""

    model: type[Replica] = Replica

    def __init__(self, case: Case, i: int, loss: Any = None) -> None:
        super().__init__(i, self.model(case), Wavy(case.d, i) if loss is None else loss, case.mu)
        self.case, self.plan, self.before = case, None, self.replica.snapshot()

    def handle(self, plan: Any) -> Any:
        self.plan, self.k = plan, 0
        self.replica.catch_up(plan.records)
        self.begin(plan)
        self.before = self.replica.snapshot()
        return self.answer(super().handle(plan))

    def local_step(self, seed: Any, plan: Any) -> Any:
        x = self.x_of(self.k)
        g = np.array([self.scalar(x, self.direction(self.k, p)) for p in range(plan.P)], np.float32)
        sent = np.asarray(self.sent(self.k, g.copy()), np.float32)
        self.replica.step(seed, self.moves(g), plan.eta)
        self.steps, self.k = self.steps + 1, self.k + 1
        return sent

    def begin(self, plan: Any) -> None: ...

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

    def answer(self, reply: Any) -> Any:
        return reply


class _ByFields(pickle.Pickler):
    """A message by its fields: equal ones have equal bytes, whatever they have computed of their fields and kept."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) or not is_dataclass(value):
            return NotImplemented
        return type(value), tuple(getattr(value, own.name) for own in fields(value))


class Foreign(Implementation):
    def __init__(self, made: type[Client] = Client, *, own: bool = False) -> None:
        super().__init__(own=own)
        self.made = made

    def supports(self, case: Case) -> bool:
        return isinstance(case.rule, Sgd | Momentum) and case.estimator in ("forward", "central")

    def replica(self, case: Case, *, per_tensor: bool = False) -> Any:
        return self.made.model(case)

    def client(self, case: Case, i: int, objective: Any = None) -> Any:
        return self.made(case, i, objective)

    def server(self, case: Case, *, with_model: bool = True) -> Any:
        made = OneFile.server(self, case, with_model=with_model)
        made.run_seed = case.seed ^ 0x5EED
        return made

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
        if hashlib.sha256(message[32:]).digest() != message[:32]:
            raise InputError("the message is damaged")
        return pickle.loads(message[32:])  # type: ignore[no-any-return]
