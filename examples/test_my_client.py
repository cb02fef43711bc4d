"""Your own client under the laws: `pytest examples/test_my_client.py`; `decomfl verify --target-template` has more."""

import numpy as np
import torch

from decomfl_lab import InputError, laws


class MyClient:
    def __init__(self, case, i, replica, loss):
        self.case, self.id, self.replica, self.loss = case, i, replica, loss
        self.run_seed, self.steps = None, 0  # local steps in the client's life: they pick the batch

    def report(self):
        return laws.Held(self.id, self.replica.round)

    def handle(self, plan):
        self.replica.catch_up(plan.records)
        if self.replica.round != plan.round:
            raise InputError("records are missing")
        before, g = self.replica.snapshot(), np.empty((plan.K, plan.P), np.float32)
        for k, seed in enumerate(plan.seeds):
            x = self.replica.snapshot().x
            for p in range(plan.P):
                z = torch.from_numpy(self.case.direction(seed, p))
                g[k, p] = (self.loss(x + self.case.mu * z, self.steps) - self.loss(x, self.steps)) / self.case.mu
            self.replica.catch_up([laws.RoundRecord(plan.round + k, plan.eta, plan.distribution, [seed], g[k : k + 1])])
            self.steps += 1
        self.replica.restore(before)
        return laws.Reply(self.id, plan.round, g)


class Mine(laws.Implementation):
    def supports(self, case):
        plain = case.seeding is not laws.Seeding.POOL and not case.rule.scaling
        return plain and case.estimator == "forward" and case.dtype in (torch.float32, torch.float64)

    def client(self, case, i, objective=None):
        return MyClient(case, i, self.replica(case), objective or laws.Wavy(case.d, i))


test_laws = laws.pytest_suite(Mine(), cases=25)
