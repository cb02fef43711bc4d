"""An implementation with noise and arithmetic of its own: torch's generator, and x moved in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from decomfl_lab import InputError, Sgd, laws
from decomfl_lab.noise import Distribution


def noise(seed: int, p: int, d: int) -> Tensor:
    """z_p of a step, of torch's generator, which keeps 32 bits of a seed."""
    return torch.randn(d, generator=torch.Generator().manual_seed((seed ^ (seed >> 32)) + 7919 * p & 0xFFFFFFFF))


class Model:
    def __init__(self, case: laws.Case) -> None:
        self.round, self.x = 0, case.initial().clone()

    def step(self, seed: int, g: Any, eta: float) -> None:
        for p, scalar in enumerate(g):
            self.x.add_(noise(seed, p, self.x.numel()), alpha=-eta * float(scalar) / len(g))

    def catch_up(self, records: Iterable[laws.RoundRecord]) -> None:
        pending = [record for record in records if record.round >= self.round]
        if [record.round for record in pending] != [*range(self.round, self.round + len(pending))]:
            raise InputError(f"records must begin at round {self.round}")
        for record in pending:
            for seed, g in zip(record.seeds, record.scalars, strict=True):
                self.step(seed, g, record.eta)
            self.round += 1

    def snapshot(self) -> laws.Snapshot:
        return laws.Snapshot(self.round, self.x.clone(), {})

    def restore(self, snapshot: laws.Snapshot) -> None:
        self.round, self.x = snapshot.round, snapshot.x.clone()


class Client:
    run_seed: int | None = None

    def __init__(self, case: laws.Case, i: int, objective: laws.Objective) -> None:
        self.id, self.case, self.objective, self.replica, self.steps = i, case, objective, Model(case), 0

    def report(self) -> laws.Held:
        return laws.Held(self.id, self.replica.round)

    def handle(self, plan: laws.Plan) -> laws.Reply:
        self.replica.catch_up(plan.records)
        if self.replica.round != plan.round:
            raise InputError(f"records up to round {plan.round} lack")
        before, scalars = self.replica.snapshot(), torch.zeros(plan.K, plan.P)
        for k, seed in enumerate(plan.seeds):
            x, mu = self.replica.x.clone(), self.case.mu
            for p in range(plan.P):
                z = noise(seed, p, x.numel())  # type: ignore[arg-type]
                ends = [float(self.objective(x + s * z, self.steps)) for s in (mu, 0.0)]
                scalars[k, p] = (ends[0] - ends[1]) / mu
            self.replica.step(seed, scalars[k].numpy(), plan.eta)  # type: ignore[arg-type]
            self.steps += 1
        self.replica.restore(before)
        return laws.Reply(self.id, plan.round, scalars.numpy())


class Own(laws.Implementation):
    own = True

    def supports(self, case: laws.Case) -> bool:
        plain = case.rule == Sgd() and case.dtype == torch.float32 and case.estimator == "forward"
        return plain and case.seeding is not laws.Seeding.PER_DIRECTION and case.distribution is Distribution.GAUSSIAN

    def client(self, case: laws.Case, i: int, objective: laws.Objective | None = None) -> Any:
        return Client(case, i, laws.Wavy(case.d, i) if objective is None else objective)

    def replica(self, case: laws.Case, *, per_tensor: bool = False) -> Any:
        return Model(case)
