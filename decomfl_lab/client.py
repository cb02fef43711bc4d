"""The client: a state machine without transport, clock or global randomness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decomfl_lab import noise
from decomfl_lab.engine import Engine, Line, Serial, Task
from decomfl_lab.errors import InputError, require_finite_positive
from decomfl_lab.messages import Held, Plan, Reply
from decomfl_lab.objective import Objective
from decomfl_lab.replica import Replica, SyncReplica
from decomfl_lab.rules import GridSgd, Step
from decomfl_lab.seeds import StepSeed, stream_of
from decomfl_lab.zo import Estimator, Point

__all__ = ["Client", "handle_all"]


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
        engine: Engine | None = None,
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
            engine: Evaluates the losses (lean clients do it themselves); None for ``engine.Serial``.
        """
        if lean and not hasattr(objective, "along"):
            raise InputError(f"lean clients need a Perturbable objective, got {objective!r}")
        self.lean = lean
        self.engine = Serial() if engine is None else engine
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
        self._catch_up(plan)
        by_arithmetic = isinstance(self.replica.rule, GridSgd)
        syncs = self.replica if isinstance(self.replica, SyncReplica) else None
        before = self.replica.snapshot() if plan.K > 1 and not by_arithmetic and syncs is None else None
        self._taken.clear()
        try:
            scalars, loss, curvature = self.local_update(plan)
        finally:  # whatever happens in between, the replica is that of a whole round again
            self.release()
            if before is not None:
                self.replica.restore(before)
            elif syncs is not None:  # or of a round and its local steps, to be corrected when the record comes
                syncs.diverge(self._taken)
            elif by_arithmetic:
                for step in reversed(self._taken):
                    self.replica.step_back_(step)
        return Reply(self.id, plan.round, scalars, loss, curvature)

    def _catch_up(self, plan: Plan) -> None:
        self.replica.catch_up(plan.records)
        if self.replica.round != plan.round:
            raise InputError(
                f"client {self.id} is at round {self.replica.round} after its records, "
                f"but the plan is of round {plan.round}"
            )

    def release(self) -> None:
        """Let engine and objective go of points of the size of the model."""
        self.engine.release()
        if hasattr(self.objective, "release"):
            self.objective.release()

    def local_update(self, plan: Plan) -> tuple[NDArray[np.float32], float, NDArray[np.float64] | None]:
        """ClientZOLocalUpdate without the revert: K measurements, with a step of x between each two.

            g_{i,r,p}^k ← estimator(f_i(· ; ξ), x_{i,r}^k, z_{r,p}^k),   x_{i,r}^{k+1} ← rule(x_{i,r}^k, g, z)

        The step after the last measurement would only be reverted, so it is not taken; for K = 1 nothing
        moves at all and no snapshot is needed.

        Returns:
            Scalars (K, P) float32, the mean loss over the steps and second differences (K, P), if they are measured.
        """
        scalars = np.empty((plan.K, plan.P), dtype=np.float32)
        losses = []
        curvatures = []
        for k, seed in enumerate(plan.seeds):
            line = self._line(seed, plan)
            points = self.estimator.points(plan.P, self.mu)
            values = self._values(line, points) if self.lean else self.engine.losses(line, points, [self._task])[0]
            slopes = self._slopes(line, plan.P) if self.estimator.wants_slopes else np.empty(0)
            estimate = self.estimator.combine(values, slopes, self.mu)
            scalars[k] = estimate.g
            losses.append(estimate.loss)
            if estimate.curvature is not None:
                curvatures.append(estimate.curvature)
            self.steps_taken += 1
            if k + 1 < plan.K:
                step = Step(seed, scalars[k], plan.eta, plan.distribution)
                self.replica.step_(step)
                self._taken.append(step)
        return scalars, float(np.mean(losses)), np.stack(curvatures) if curvatures else None

    def _line(self, seed: StepSeed, plan: Plan) -> Line:
        return Line(self.replica, self.replica.stream_seed(seed), plan.distribution)

    @property
    def _task(self) -> Task:
        return self.objective, self.steps_taken

    def _values(self, line: Line, points: Sequence[Point]) -> NDArray[np.float64]:
        """The losses, where the objective forms x + c z_p itself, a layer at a time."""
        perturbable: Any = self.objective
        step, law = self.steps_taken, line.distribution
        return np.array([perturbable.along(line.x, step, *stream_of(line.seed, p), c, law) for p, c in points])

    def _slopes(self, line: Line, P: int) -> NDArray[np.float64]:
        """⟨∇f_i(x), z_p⟩ for p = 0..P-1, summed in float64, from one backward pass."""
        if not hasattr(self.objective, "gradient"):
            raise InputError(f"gradient projection needs an objective with a gradient, got {self.objective!r}")
        wide = line.x if line.x.dtype == torch.float64 else line.x.float()
        gradient = self.objective.gradient(wide, self.steps_taken).double()
        streams = (stream_of(line.seed, p) for p in range(P))
        directions = (noise.direction(*stream, wide.numel(), distribution=line.distribution) for stream in streams)
        return np.array([float(gradient @ torch.from_numpy(z).double()) for z in directions])


def handle_all(clients: Sequence[Client], plans: Sequence[Plan]) -> list[Reply]:
    """``client.handle(plan)`` for each client, with the same replies; for K = 1 they measure together.

    Then all sampled clients are at the same x and along the same directions, so a point x + c z_p serves the data
    of all of them. Clients for whom that does not hold (lean ones, gradient projection) measure alone.
    """
    first, plan = clients[0], plans[0]

    def joins(client: Client, own: Plan) -> bool:
        alike = (client.engine is first.engine, client.estimator is first.estimator, client.mu == first.mu)
        same = own.K == 1 and own.seeds == plan.seeds and (own.P, own.distribution) == (plan.P, plan.distribution)
        alone = client.lean or client.estimator.wants_slopes or isinstance(client.replica, SyncReplica)
        able = type(client) is Client and not alone
        return all(alike) and same and able

    if not all(map(joins, clients, plans)):
        return [client.handle(own) for client, own in zip(clients, plans, strict=True)]
    for client, own in zip(clients, plans, strict=True):
        client._catch_up(own)
    lines = [client._line(plan.seeds[0], plan) for client in clients]
    if not all(line.seed == lines[0].seed and torch.equal(line.x, lines[0].x) for line in lines):
        return [client.handle(own) for client, own in zip(clients, plans, strict=True)]
    try:
        points = first.estimator.points(plan.P, first.mu)
        values = first.engine.losses(lines[0], points, [client._task for client in clients])
    finally:
        for client in clients:
            client.release()
    replies = []
    for client, own, found in zip(clients, plans, values, strict=True):
        estimate = client.estimator.combine(found, np.empty(0), client.mu)
        client.steps_taken += 1
        curvature = None if estimate.curvature is None else estimate.curvature[None]
        replies.append(Reply(client.id, own.round, estimate.g[None], estimate.loss, curvature))
    return replies
