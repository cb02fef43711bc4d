"""FedZO: clients that send models trained by zeroth-order steps of their own."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from decomfl_lab.engines.base import Engine, Serial
from decomfl_lab.errors import DivergedError, require_int
from decomfl_lab.estimators.differences import Estimator
from decomfl_lab.noise import Distribution, derive_seed
from decomfl_lab.objectives.objective import Objective
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Plan
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Step, UpdateRule

__all__ = ["FedZOClient"]


_OWN_DIRECTIONS = 7


class FedZOClient:
    """K local zeroth-order steps, each along P directions of the client's own.

        x ← rule(x, g, z),   g_p = estimator(f_i(· ; ξ), x, z_p),   z of seeds that no other client has

    The optimizer's state begins anew each round.

    Source: Fang, Yu, Jiang, Shi, Jones and Zhou, "Communication-efficient stochastic zeroth-order optimization
    for federated learning" (FedZO), IEEE TSP 2022, Algorithm 1.
    """

    def __init__(
        self,
        client_id: int,
        objective: Objective,
        estimator: Estimator,
        *,
        rule: UpdateRule,
        P: int,
        mu: float,
        seed: int,
        distribution: Distribution = Distribution.GAUSSIAN,
        engine: Engine | None = None,
    ) -> None:
        self.engine = Serial() if engine is None else engine
        self.id = client_id
        self.objective = objective
        self.estimator = estimator
        self.rule = rule
        self.P = require_int("perturbations P", P, 1)
        self.mu = mu
        self.seed = seed
        self.distribution = distribution
        self.steps_taken = 0

    def train(self, x: Tensor, eta: float, K: int) -> tuple[Tensor, float]:
        """See ``Trainer``."""
        replica = Replica(x, self.rule)
        walker = Client(self.id, replica, self.objective, self.estimator, self.mu, engine=self.engine)
        walker.steps_taken = self.steps_taken
        steps = range(self.steps_taken, self.steps_taken + K)
        seeds = tuple(derive_seed(self.seed, _OWN_DIRECTIONS, self.id, step) for step in steps)
        plan = Plan(0, eta, self.P, self.distribution, seeds)
        scalars, loss, _ = walker.local_update(plan)
        walker.release()
        if not np.isfinite(scalars).all():
            raise DivergedError(f"scalars of client {self.id}")
        replica.step_(Step(seeds[-1], scalars[-1], eta, self.distribution))  # local_update leaves the last to us
        self.steps_taken = walker.steps_taken
        return replica.x, loss
