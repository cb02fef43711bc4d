"""DeComFL simulated: many runs at once in numpy, or the algorithm of ``decomfl_lab`` itself, run after run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from decomfl_lab.errors import require, require_int, require_possible
from hessian.estimate import Estimate
from theory.notation.setting import Setting
from theory.problems.problem import Floats, Problem, directions, subspace
from theory.problems.quadratic import Quadratic
from theory.statements.algorithms import Losses, Step, decomfl
from theory.statements.left_sides import Path, average

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.federations.simulation import DeComFLFederation

_ELEMENTS = 1 << 21
"""Numbers of x + μz that are held at a time."""
_KEPT = 1 << 25
"""Numbers of x_0..x_R that are held at a time."""


def simulate(
    problem: Problem | Quadratic,
    setting: Setting,
    *,
    runs: int,
    seed: int,
    left: Path = average,
    step: Step = decomfl,
    with_eta: bool = True,
) -> Estimate:
    """The left side of a statement, (1/R) Σ_{r<R} ‖∇f(x_r)‖² unless another is given, its mean over independent runs.

    Args:
        problem: The losses.
        setting: η, β, m, M, P, K, R, μ (0: g = zᵀ∇f_i(x; ξ)), distribution, central, replacement; no other constant is
            read.
        runs: Number of runs.
        seed: Seed of numpy's generator.
        left: Function of the problem and of x_0..x_R, shape (R + 1, runs, n), to a number a run, shape (runs,).
        step: The local step.
        with_eta: Whether η must be given, as for all steps but one that takes none.

    Raises:
        InputError: If η was not given, or d or M are not the problem's.
    """
    if with_eta:
        setting.require("eta")
    explicit = _explicit(problem, setting)
    require_int("runs", runs, 1)
    work = 1e2 * runs * setting.R * setting.m * setting.K * setting.P
    require_possible("runs, R, m, K and P", (runs, setting.R, setting.m, setting.K, setting.P), operations=work)
    rng = np.random.default_rng(seed)
    n = explicit.start.size
    at_once = max(1, min(_ELEMENTS // (setting.m * setting.P * n), _KEPT // ((setting.R + 1) * n)))
    lefts = []
    for done in range(0, runs, at_once):
        with np.errstate(over="ignore", invalid="ignore"):
            # x_0..x_R of so many runs, shape (R + 1, runs, n).
            count = min(at_once, runs - done)
            m = setting.m
            x = np.tile(explicit.start, (count, 1))  # (count, n)
            v, path = np.zeros_like(x), [x]
            for _ in range(setting.R):
                if setting.replacement:
                    clients = rng.integers(0, explicit.M, (count, m))
                else:
                    clients = rng.random((count, explicit.M)).argsort(-1)[:, :m]
                local, state = (np.repeat(means[:, None], m, axis=1) for means in (x, v))  # (count, m, n)
                for _ in range(setting.K):
                    z = directions(setting.distribution, (count, setting.P), x.shape[1], explicit.d, rng)
                    local, state = step(Losses(explicit, clients, rng.random((count, m))), local, state, z, setting)
                x, v = local.mean(axis=1), state.mean(axis=1)
                path.append(x)
            left_of_runs = left(explicit, np.stack(path))
        lefts.append(np.where(np.isfinite(left_of_runs), left_of_runs, math.inf))  # diverged
    return Estimate.of(np.concatenate(lefts).tolist())


def _explicit(problem: Problem | Quadratic, setting: Setting) -> Problem:
    """The problem coordinate by coordinate; InputError if d or M are not the setting's."""
    require(setting.d == problem.d, "d", f"be the problem's {problem.d}", setting.d)
    return subspace(problem, setting.clients)


class _Sampled:
    """f_i as an ``Objective`` of the lab, of x (n,) float64; a step's data sample is one of (seed, client, step)."""

    def __init__(self, problem: Problem, client: int, seed: int) -> None:
        self.problem, self.client, self.seed = problem, np.array(client), seed
        self._current: tuple[int, Floats] | None = None

    def __call__(self, x: Tensor, step: int) -> float:
        if self._current is None or self._current[0] != step:  # ξ is kept while the step is measured
            sequence = np.random.SeedSequence(self.seed, spawn_key=(int(self.client), step))
            self._current = step, np.array(np.random.default_rng(sequence).random())
        return float(self.problem.sampled(x.numpy(), self.client, self._current[1]))


def federation(problem: Problem | Quadratic, setting: Setting, *, seed: int) -> DeComFLFederation:
    """The federation of ``decomfl_lab`` for this problem: float64 replicas, the setting's differences and momentum.

    Where the problem holds n of d coordinates, so do the replicas: z[j] is a function of (seed, p, j) alone, so the
    first n elements of a direction in R^d are the direction in R^n, but on the sphere, whose norm is that of all.

    Raises:
        InputError: If it cannot run: on the sphere d more than the coordinates held; μ = 0; clients with replacement.
    """
    import torch  # which simulation does without

    from decomfl_lab.estimators.differences import central, forward
    from decomfl_lab.federations.simulation import DeComFLFederation
    from decomfl_lab.noise import Distribution
    from decomfl_lab.protocol.client import Client
    from decomfl_lab.protocol.server import Server
    from decomfl_lab.records.schedules import Schedule
    from decomfl_lab.replicas.replica import Replica
    from decomfl_lab.replicas.rules import Momentum, Sgd

    setting.require("eta")
    explicit = _explicit(problem, setting)
    held = explicit.start.size
    require(held == setting.d or setting.distribution != "sphere", "d", f"be the {held} coordinates held", setting.d)
    require(not setting.replacement, "replacement", "be false in a real run", setting.replacement)
    x = torch.from_numpy(explicit.start.copy())
    start = Replica(x, Momentum(setting.beta) if setting.beta else Sgd())
    estimator = central if setting.central else forward
    clients = [Client(i, start.clone(), _Sampled(explicit, i, seed), estimator, setting.mu) for i in range(explicit.M)]
    server = Server(
        M=explicit.M, m=setting.m, K=setting.K, P=Schedule(setting.P), eta=Schedule(setting.eta or 0.0), seed=seed,
        distribution=Distribution(setting.distribution),
    )  # fmt: skip
    return DeComFLFederation(server, clients, start)


def run(problem: Problem | Quadratic, setting: Setting, *, runs: int, seed: int, left: Path = average) -> Estimate:
    """As ``simulate``, by the lab's server, clients, wire and noise stream, with the seeds ``seed`` and up."""
    require_int("runs", runs, 1)
    explicit = _explicit(problem, setting)
    lefts = []
    for number in range(runs):
        trained = federation(explicit, setting, seed=seed + number)
        path = [trained.x.numpy().copy()]
        for _ in range(setting.R):
            trained.advance()
            path.append(trained.x.numpy().copy())
        lefts.append(float(left(explicit, np.stack(path)[:, None])[0]))
    return Estimate.of(lefts)
