"""The client: a state machine without transport, clock or global randomness."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab import noise
from decomfl_lab.errors import InputError, require_finite_positive
from decomfl_lab.messages import Plan, Reply
from decomfl_lab.objective import Objective
from decomfl_lab.replica import Replica
from decomfl_lab.rules import Step
from decomfl_lab.zo import Estimator

__all__ = ["Client"]


class Client:
    """Rebuilds, measures, reverts.

    Attributes:
        id: i.
        replica: x and optimizer state; between two calls of ``handle`` always those of a whole round.
        mu: Smoothing radius μ, rounded to float32.
        steps_taken: Local steps measured so far; picks the data sample of the next one.
    """

    def __init__(self, client_id: int, replica: Replica, objective: Objective, estimator: Estimator, mu: float) -> None:
        self.id = client_id
        self.replica = replica
        self.objective = objective
        self.estimator = estimator
        require_finite_positive("mu", mu)
        # The stream multiplies z by a float32: the divisor must be the same number as the step.
        self.mu = require_finite_positive("mu rounded to float32", float(np.float32(mu)))
        self.steps_taken = 0

    def handle(self, plan: Plan) -> Reply:
        """Rebuild x_r from the missed records, take the local steps, revert, and answer the scalars.

        Raises:
            InputError: If records are missing or the plan is of another round than the rebuilt model.

        Source: [DeComFL, Algorithm 4].
        """
        self.replica.catch_up(plan.records)
        if self.replica.round != plan.round:
            raise InputError(
                f"client {self.id} is at round {self.replica.round} after its records, "
                f"but the plan is of round {plan.round}"
            )
        before = self.replica.snapshot() if plan.K > 1 else None
        scalars, loss = self.local_update(plan)
        if before is not None:
            self.replica.restore(before)
        return Reply(self.id, plan.round, scalars, loss)

    def local_update(self, plan: Plan) -> tuple[NDArray[np.float32], float]:
        """ClientZOLocalUpdate without the revert: K measurements, with a step of x between each two.

            g_{i,r,p}^k ← estimator(f_i(· ; ξ), x_{i,r}^k, z_{r,p}^k),   x_{i,r}^{k+1} ← rule(x_{i,r}^k, g, z)

        The step after the last measurement would only be reverted, so it is not taken; for K = 1 nothing
        moves at all and no snapshot is needed.

        Returns:
            Scalars (K, P) float32 and the mean loss over the steps.
        """
        scalars = np.empty((plan.K, plan.P), dtype=np.float32)
        losses = []
        for k, seed in enumerate(plan.seeds):
            estimate = self.estimator(_LineProbe(self, seed, plan), plan.P, self.mu)
            scalars[k] = estimate.g
            losses.append(estimate.loss)
            self.steps_taken += 1
            if k + 1 < plan.K:
                self.replica.step_(Step(seed, scalars[k], plan.eta, plan.distribution))
        return scalars, float(np.mean(losses))


class _LineProbe:
    """probe(p, c) = f_i(x + c z_p), formed beside x: x itself is not touched, so nothing can drift."""

    def __init__(self, client: Client, seed: int, plan: Plan) -> None:
        self.client = client
        self.seed = seed
        self.plan = plan
        self.point: Tensor = client.replica.x.clone()

    def __call__(self, p: int, c: float) -> float:
        x = self.client.replica.x
        self.point.copy_(x)
        if c:
            noise.axpy(
                self.point.numpy(),
                self.seed,
                [c],
                d=x.numel(),
                first_p=p,
                distribution=self.plan.distribution,
            )
        return self.client.objective(self.point, self.client.steps_taken)
