"""The client: a state machine without transport, clock or global randomness; ``delivery`` and ``session`` drive it."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.devices import on_host
from decomfl_lab.engines.base import Engine, Line, SampleLoss, Serial
from decomfl_lab.errors import InputError, require_finite_positive
from decomfl_lab.estimators.differences import Estimator, ScalarEstimate, Values, fetched
from decomfl_lab.estimators.resolution import Resolution
from decomfl_lab.objectives.objective import Objective, examples_of
from decomfl_lab.protocol.messages import Examples, Held, Plan, Reply
from decomfl_lab.records.record import ScalarArray
from decomfl_lab.records.seeds import StepSeed, stream_of
from decomfl_lab.replicas.rebuild import project
from decomfl_lab.replicas.replica import Replica, step_together_
from decomfl_lab.replicas.rules import Step


class Client:
    """Rebuilds, measures, reverts."""

    run_seed: int | None = None  # the run's seed once the client has been told it (seeds per run), else None
    # it sees what the client measures, to tell whether that is rounding; None for nobody
    resolution: Resolution | None = None

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
            client_id: The client's number i.
            replica: x and optimizer state.
            objective: The client's loss f_i.
            estimator: It makes scalars of values of f_i.
            mu: Smoothing radius μ.
            lean: Whether x + μz is never formed as a whole: the objective (a ``Perturbable``) forms a layer at a time,
                and the memory beside the replica is the largest layer's instead of the model's. The rule may not scale
                directions.
            engine: It evaluates the losses (lean clients do it themselves); None for ``engines.base.Serial``.
        """
        if lean and not hasattr(objective, "along"):
            raise InputError(f"lean clients need a Perturbable objective, got {objective!r}")
        if lean and replica.rule.scaling:
            raise InputError(f"lean clients need a rule of directions that are not scaled, got {replica.rule}")
        self.lean = lean
        self.engine = Serial() if engine is None else engine
        self.id = client_id  # the client's number i
        self.replica = replica  # x and optimizer state; between two calls of ``handle`` always those of a whole round
        self.objective = objective
        self.estimator = estimator
        require_finite_positive("mu", mu)
        # The stream multiplies z by a float32: the divisor must be the same number as the step.
        # smoothing radius μ, rounded to float32
        self.mu = require_finite_positive("mu rounded to float32", float(np.float32(mu)))
        self.steps_taken = 0  # local steps measured so far; picks the data sample of the next one
        self._taken: list[Step] = []  # local steps of this round that the replica has taken

    def report(self) -> Held:
        """What the server must know if it tracks nobody: the round that this client holds."""
        return Held(self.id, self.replica.round)

    def examples(self) -> Examples:
        """What the server must know where clients are weighed by it: how many examples this client has."""
        return Examples(self.id, examples_of(self.objective))

    def handle(self, plan: Plan) -> Reply:
        """Rebuild x_r from the missed records, take the local steps, revert, and answer the scalars.

        Raises:
            InputError: If records are missing or the plan is of another round than the rebuilt model.

        Source: [DeComFL, Algorithm 4].
        """
        return _handle([self], [plan])[0]

    def _catch_up(self, plan: Plan) -> None:
        self.replica.catch_up(plan.records)
        self._taken.clear()
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

    def local_update(self, plan: Plan) -> "Update":
        """ClientZOLocalUpdate without the revert: K measurements, with a step of x between each two.

            g_{i,r,p}^k ← estimator(f_i(· ; ξ), x_{i,r}^k, z_{r,p}^k),   x_{i,r}^{k+1} ← rule(x_{i,r}^k, g, z)

        The step after the last measurement would only be reverted, so it is not taken; for K = 1 nothing
        moves at all and no snapshot is needed.
        """
        return _local_updates([self], [plan])[0]

    def _line(self, seed: StepSeed, plan: Plan) -> Line:
        return Line(self.replica, self.replica.stream_seed(seed), plan.distribution)

    @property
    def _sample(self) -> SampleLoss:
        return self.objective, self.steps_taken


Update = tuple[ScalarArray, float, NDArray[np.float64] | None]
"""The scalars (K, P), the mean loss over the steps and second differences (K, P), if they are measured."""


def _local_updates(clients: Sequence[Client], plans: Sequence[Plan]) -> list[Update]:
    """``local_update`` of each client, step by step together: along the same directions, from models of their own."""
    first, P, K = clients[0], plans[0].P, plans[0].K
    estimates: list[list[ScalarEstimate]] = [[] for _ in clients]
    # Measure, then step, K times; the step after the last measurement is the record's, and is not taken here.
    for k in range(K):
        lines = [client._line(plan.seeds[k], plan) for client, plan in zip(clients, plans, strict=True)]
        samples = [client._sample for client in clients]
        # ``values`` are each client's losses (its row or item: one a point), ``slopes`` (clients, P) or (clients, 0).
        slopes: Values = np.empty((len(clients), 0))
        if first.estimator.wants_slopes:
            losses, gradients = first.engine.gradients([line.x for line in lines], samples)
            streams = [stream_of(lines[0].seed, p) for p in range(P)]
            if first.replica.rule.scaling:  # ⟨∇f, s ⊙ z⟩ = ⟨s ⊙ ∇f, z⟩
                gradients = gradients * torch.stack([line.scale for line in lines if line.scale is not None])
            slopes = project(gradients, streams, distribution=lines[0].distribution, workers=first.replica.workers)
            values = losses[:, None]
            slopes = slopes if isinstance(losses, Tensor) else on_host(slopes)
        elif first.lean:
            points, values = first.estimator.points(P, first.mu), []
            for client, line in zip(clients, lines, strict=True):
                # The losses, where the objective forms x + c z_p itself, a layer at a time.
                perturbable: Any = client.objective
                t, distribution = client.steps_taken, line.distribution
                along = [perturbable.along(line.x, t, *stream_of(line.seed, p), c, distribution) for p, c in points]
                values.append(torch.stack(along) if isinstance(along[0], Tensor) else np.array(along))
        else:
            points = first.estimator.points(P, first.mu)
            # At the start all are at x_r, so that one x + c z_p serves everybody's batch; later each is at its own x.
            if k == 0 and _at_one_point(lines):
                values = first.engine.losses(lines[0], points, samples)
            else:
                alone = zip(lines, samples, strict=True)
                values = [first.engine.losses(line, points, [sample])[0] for line, sample in alone]
        for client, of_client, value, slope in zip(clients, estimates, values, slopes, strict=True):
            of_client.append(client.estimator.combine(value, slope, client.mu))
            client.steps_taken += 1
        if k + 1 < K:
            steps = [
                Step(plan.seeds[k], of_client[k].g, plan.eta, plan.distribution, last=False)
                for plan, of_client in zip(plans, estimates, strict=True)
            ]
            together = step_together_([client.replica for client in clients], steps)
            for client, step in zip(clients, steps, strict=True):
                if not together:
                    client.replica.step_(step)
                client._taken.append(step)
    # All clients' K estimates come to the host at once, client by client.
    arrived = fetched([estimate for of_client in estimates for estimate in of_client])
    updates: list[Update] = []
    for n, client in enumerate(clients):
        of_steps = arrived[n * K : (n + 1) * K]
        if client.resolution is not None:
            client.resolution.see(client.estimator, client.mu, of_steps)
        curvatures = [estimate.curvature for estimate in of_steps if estimate.curvature is not None]
        loss = float(np.mean([estimate.loss for estimate in of_steps]))
        scalars = np.stack([estimate.g for estimate in of_steps])
        updates.append((scalars, loss, np.stack(curvatures) if curvatures else None))
    return updates


def _at_one_point(lines: Sequence[Line]) -> bool:
    """Whether all lines go through the same x; a GPU is asked once, and not where all have the same vector."""
    first, *others = {id(line.x): line.x for line in lines}.values()
    if first.is_cuda and others:
        return bool(torch.stack([(x == first).all() for x in others]).all())
    return all(torch.equal(x, first) for x in others)


def handle_all(clients: Sequence[Client], plans: Sequence[Plan]) -> list[Reply]:
    """``client.handle(plan)`` for each client, with the same replies; clients measure together where they can.

    That saves work where sampled clients are at the same x, so that a point x + c z_p serves the data of all of them,
    and by gradient projection, when each z_p is made once for the gradients, and for the steps, of all; and a GPU is
    waited for once. Lean clients of K > 1, and clients that differ in more than model, data and id, measure alone.
    """
    first, plan = clients[0], plans[0]

    def joins(client: Client, its: Plan) -> bool:
        alike = (client.engine is first.engine, client.estimator is first.estimator, client.mu == first.mu)
        # Lean clients of K > 1 have a snapshot each, of which there is to be one at a time.
        thin = client.lean == first.lean and (its.K == 1 or not client.lean)
        same = its.seeds == plan.seeds and (its.P, its.distribution) == (plan.P, plan.distribution)
        keyed = client.replica.private_key == first.replica.private_key
        return all(alike) and same and keyed and type(client) is Client and thin

    if all(map(joins, clients, plans)):
        return _handle(clients, plans)
    return [client.handle(its) for client, its in zip(clients, plans, strict=True)]


def _handle(clients: Sequence[Client], plans: Sequence[Plan]) -> list[Reply]:
    """Rebuild, measure step by step together, revert."""
    with ExitStack() as stack:  # left in reverse: each replica is reverted, then the points are let go
        for client, plan in zip(clients, plans, strict=True):
            client._catch_up(plan)
            stack.callback(client.release)
            stack.enter_context(client.replica.reverting(client._taken, plan.K))
        updates = _local_updates(clients, plans)
    return [Reply(client.id, plans[0].round, *update) for client, update in zip(clients, updates, strict=True)]
