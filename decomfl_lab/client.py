"""The client: a state machine without transport, clock or global randomness."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab import noise
from decomfl_lab.errors import InputError, require_finite_positive
from decomfl_lab.messages import Held, Plan, Reply
from decomfl_lab.noise import Program
from decomfl_lab.objective import Objective
from decomfl_lab.rebuild import rebuild_
from decomfl_lab.replica import Replica, SyncReplica
from decomfl_lab.rules import GridSgd, Step
from decomfl_lab.seeds import StepSeed, stream_of
from decomfl_lab.zo import Estimator

__all__ = ["Client"]


class Client:
    """Rebuilds, measures, reverts.

    Attributes:
        id: i.
        replica: x and optimizer state; between two calls of ``handle`` always those of a whole round.
        mu: Smoothing radius μ, rounded to float32.
        steps_taken: Local steps measured so far; picks the data sample of the next one.
        run_seed: The run's seed once the client has been told it (seeds per run), else None.
    """

    run_seed: int | None = None

    def __init__(
        self,
        client_id: int,
        replica: Replica,
        objective: Objective,
        estimator: Estimator,
        mu: float,
        *,
        lean: bool = False,
    ) -> None:
        """A client at the replica's round.

        Args:
            client_id: i.
            replica: x and optimizer state.
            objective: f_i.
            estimator: From values of f_i to scalars.
            mu: Smoothing radius μ.
            lean: Never form x + μz as a whole: the objective (a ``Perturbable``) forms a layer at a time, and the
                memory beside the replica is the largest layer's instead of the model's.
        """
        if lean and (not hasattr(objective, "along") or replica.x.dtype not in (torch.float32, torch.float64)):
            raise InputError(f"lean clients need a Perturbable objective and 32 or 64 bits, got {replica.x.dtype}")
        self.lean = lean
        self.id = client_id
        self.replica = replica
        self.objective = objective
        self.estimator = estimator
        require_finite_positive("mu", mu)
        # The stream multiplies z by a float32: the divisor must be the same number as the step.
        self.mu = require_finite_positive("mu rounded to float32", float(np.float32(mu)))
        self.steps_taken = 0
        self._taken: list[Step] = []  # local steps of this round that the replica has taken

    def report(self) -> Held:
        """What the server must know if it tracks nobody: the round that this client holds."""
        return Held(self.id, self.replica.round)

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
        by_arithmetic = isinstance(self.replica.rule, GridSgd)
        syncs = self.replica if isinstance(self.replica, SyncReplica) else None
        before = self.replica.snapshot() if plan.K > 1 and not by_arithmetic and syncs is None else None
        self._taken.clear()
        try:
            scalars, loss = self.local_update(plan)
        finally:  # whatever happens in between, the replica is that of a whole round again
            if hasattr(self.objective, "release"):
                self.objective.release()
            if before is not None:
                self.replica.restore(before)
            elif syncs is not None:  # or of a round and its local steps, to be corrected when the record comes
                syncs.diverge(self._taken)
            elif by_arithmetic:
                for step in reversed(self._taken):
                    self.replica.step_back_(step)
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
        x = self.replica.x
        wide = x.dtype if x.dtype == torch.float64 else torch.float32
        point = x if self.lean else torch.empty_like(x, dtype=wide)  # one for all local steps
        for k, seed in enumerate(plan.seeds):
            estimate = self.estimator(_LineProbe(self, seed, plan, point), plan.P, self.mu)
            scalars[k] = estimate.g
            losses.append(estimate.loss)
            self.steps_taken += 1
            if k + 1 < plan.K:
                step = Step(seed, scalars[k], plan.eta, plan.distribution)
                self.replica.step_(step)
                self._taken.append(step)
        return scalars, float(np.mean(losses))


class _LineProbe:
    """probe(p, c) = f_i(x + c z_p), formed beside x: x itself is not touched, so nothing can drift.

    A 16-bit x is perturbed and evaluated in float32: its own grid is too coarse for a step of μ.
    """

    def __init__(self, client: Client, seed: StepSeed, plan: Plan, point: Tensor) -> None:
        self.client = client
        self.seed = client.replica.stream_seed(seed)
        self.plan = plan
        self.point = point
        self._gradient: Tensor | None = None  # of this step, once it is asked for

    def __call__(self, p: int, c: float) -> float:
        replica, objective, step = self.client.replica, self.client.objective, self.client.steps_taken
        seed, first = stream_of(self.seed, p)
        if self.client.lean:
            perturbable: Any = objective
            loss: float = perturbable.along(replica.x, step, seed, first, c, self.plan.distribution)
            return loss
        self.point.copy_(replica.x)
        if c:
            program = Program(["x"])
            program.noise("x", seed, [c], self.plan.distribution, first=first)
            rebuild_(program, [{"x": self.point}], backend=replica.backend, workers=replica.workers)
        return objective(self.point, step)

    def slope(self, p: int) -> float:
        """⟨∇f_i(x), z_p⟩, summed in float64."""
        replica = self.client.replica
        if self._gradient is None:
            objective = self.client.objective
            if not hasattr(objective, "gradient"):
                raise InputError(f"gradient projection needs an objective with a gradient, got {objective!r}")
            self.point.copy_(replica.x)
            self._gradient = objective.gradient(self.point, self.client.steps_taken).double()
        z = noise.direction(*stream_of(self.seed, p), replica.d, distribution=self.plan.distribution)
        return float(self._gradient @ torch.from_numpy(z).double())
