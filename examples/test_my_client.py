"""Your own client under the laws: `pytest examples/test_my_client.py`."""

import numpy as np
import torch

from decomfl_lab import laws, noise
from decomfl_lab.protocol.messages import Held, Reply
from decomfl_lab.records.seeds import stream_of
from decomfl_lab.replicas.rules import Step


class MyClient:
    def __init__(self, i, replica, loss, mu):
        self.id, self.replica, self.loss, self.mu, self.run_seed = i, replica, loss, mu, None

    def report(self):
        return Held(self.id, self.replica.round)

    def handle(self, plan):
        self.replica.catch_up(plan.records)
        before, scalars = self.replica.snapshot(), np.empty((plan.K, plan.P), np.float32)
        for k, seed in enumerate(plan.seeds):
            x, of = self.replica.snapshot().x, self.replica.stream_distribution(plan.distribution)
            for p in range(plan.P):
                z = torch.from_numpy(noise.direction(*stream_of(seed, p), x.numel(), distribution=of))
                scalars[k, p] = (self.loss(x + self.mu * z, k) - self.loss(x, k)) / self.mu
            self.replica.step_(Step(seed, scalars[k], plan.eta, plan.distribution))
        self.replica.restore(before)
        return Reply(self.id, plan.round, scalars)


class Mine(laws.Implementation):
    def supports(self, case):
        return case.estimator == "forward" and not case.rule.scaling and case.dtype in (torch.float32, torch.float64)

    def client(self, case, i, objective=None):
        return MyClient(i, self.replica(case), objective or laws.Wavy(case.d, i), case.mu)


test_laws = laws.pytest_suite(Mine(), cases=25)
