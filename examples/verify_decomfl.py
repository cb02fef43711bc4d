"""The algorithm in one file under the laws: `decomfl verify --target verify_decomfl:OneFile`, in this folder."""

import decomfl
import torch

import decomfl_lab as lab
from decomfl_lab import laws


class Server(decomfl.Server):
    def plan_round(self, participants, reports=None):
        self.P, self.eta = self.case.P(self.round), self.case.eta(self.round)  # functions of the round
        return super().plan_round(participants, reports)


class LeanClient(decomfl.Client):
    def value(self, seed, p, c):
        seed, p = (seed[p], 0) if isinstance(seed, tuple) else (seed, p)
        return self.loss.along(self.replica.x, self.steps, seed, p, c, self.replica.distribution)


class OneFile(laws.Implementation):
    def supports(self, case):
        plain = case.rule == lab.Sgd() or (isinstance(case.rule, lab.Momentum) and not case.rule.weight_decay)
        drawn = case.distribution in ("gaussian", "rademacher") and case.seeding is not laws.Seeding.POOL
        return plain and drawn and case.estimator == "forward" and case.dtype == torch.float32

    def replica(self, case, *, per_tensor=False, key=None):
        made = decomfl.Replica(case.initial().numpy(), getattr(case.rule, "beta", 0.0), case.distribution, key)
        made.weight = 1.0 if getattr(case.rule, "convention", "") == "torch" else made.weight
        return made

    def client(self, case, i, objective=None, key=None, kind=decomfl.Client):
        return kind(i, self.replica(case, key=key), objective or laws.Wavy(case.d, i), case.mu)

    def keyed_client(self, case, i, key):
        return self.client(case, i, key=key)

    def lean_client(self, case, i, objective):
        return self.client(case, i, objective, kind=LeanClient)

    def server(self, case, *, with_model=True):
        made = Server(case.M, 1, case.K, 1, 0.0, case.seed, self.replica(case) if with_model else None)
        made.case, made.keep, made.seed_each = case, case.keep, case.seeding is laws.Seeding.PER_DIRECTION
        made.held = made.held if case.tracking is laws.Tracking.SERVER else []
        return made

    def weighing_server(self, case):
        made = self.server(case)
        made.n = [None] * case.M
        return made

    def backends(self):
        def slices(seed, p, first, count, distribution):
            if distribution not in ("gaussian", "rademacher"):
                raise NotImplementedError(f"{distribution} directions are not offered")
            return decomfl.direction(seed, p, first, count, distribution)

        return {"one file": slices}

    def direction(self, seed, p, d, distribution):
        return self.backends()["one file"](seed, p, 0, d, distribution)

    def sample(self, seed, r, M, m):
        server = decomfl.Server(M, m, 1, 1, 0.1, seed)
        server.round = r
        return server.sample()

    def aggregate(self, rule, replies):
        rules = {lab.Mean: decomfl.mean, lab.Median: decomfl.median}
        if type(rule) not in rules:
            raise NotImplementedError(f"{rule} is not offered")
        return decomfl.combine(replies, [1] * len(replies), rules[type(rule)])
