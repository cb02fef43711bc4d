"""DeComFL simulated: many runs at once in numpy, or the algorithm of ``decomfl_lab`` itself, run after run."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.errors import require, require_int
from decomfl_lab.estimators.differences import central, forward
from decomfl_lab.federations.in_process import DeComFLFederation
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Momentum, Sgd
from hessian.estimate import Estimate
from theory.problems.problem import Floats, Problem, directions, subspace
from theory.problems.quadratic import Quadratic
from theory.setting import Setting

__all__ = ["federation", "run", "simulate"]

_ELEMENTS = 1 << 21
"""Numbers of x + μz that are held at a time."""


def simulate(problem: Problem | Quadratic, setting: Setting, *, runs: int, seed: int) -> Estimate:
    """(1/R) Σ_{r<R} ‖∇f(x_r)‖² under DeComFL, its mean over independent runs.

    Args:
        problem: The losses.
        setting: η, β, m, M, P, K, R, μ (0: g = zᵀ∇f_i(x; ξ)), distribution, central, replacement; no other constant is
            read.
        runs: Number of runs.
        seed: Seed of numpy's generator.

    Raises:
        InputError: If η was not given, or d or M are not the problem's.
    """
    explicit = _explicit(problem, setting)
    require_int("runs", runs, 1)
    rng = np.random.default_rng(seed)
    each = max(1, _ELEMENTS // (setting.m * setting.P * explicit.start.size))
    parts = [_batch(explicit, setting, min(each, runs - done), rng) for done in range(0, runs, each)]
    return Estimate.of(np.concatenate(parts).tolist())


def _explicit(problem: Problem | Quadratic, setting: Setting) -> Problem:
    setting.require("eta")
    require(setting.d == problem.d, "d", f"be the problem's {problem.d}", setting.d)
    return subspace(problem, setting.clients)


def _batch(problem: Problem, setting: Setting, runs: int, rng: np.random.Generator) -> Floats:
    """The averages of so many runs, shape (runs,)."""
    m, P, mu, eta = setting.m, setting.P, setting.mu, setting.eta or 0.0
    x = np.tile(problem.start, (runs, 1))
    v = np.zeros_like(x)  # η times the momentum
    total = np.zeros(runs)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(setting.R):
            total += (problem.gradient(x) ** 2).sum(-1)
            if setting.replacement:
                clients = rng.integers(0, problem.M, (runs, m))
            else:
                clients = rng.random((runs, problem.M)).argsort(-1)[:, :m]
            local, moving = (np.repeat(each[:, None], m, axis=1) for each in (x, v))
            for _ in range(setting.K):
                z = directions(setting.distribution, (runs, P), x.shape[1], problem.d, rng)
                xi = rng.random((runs, m))
                if mu:
                    there = problem.sampled(local[:, :, None] + mu * z[:, None], clients[..., None], xi[..., None])
                    if setting.central:
                        back = problem.sampled(local[:, :, None] - mu * z[:, None], clients[..., None], xi[..., None])
                        g = (there - back) / (2 * mu)
                    else:
                        g = (there - problem.sampled(local, clients, xi)[..., None]) / mu
                else:
                    g = np.einsum("rmn,rpn->rmp", problem.sampled_gradient(local, clients, xi), z)
                moving = setting.beta * moving + eta / P * np.einsum("rmp,rpn->rmn", g, z)
                local = local - moving
            x, v = local.mean(axis=1), moving.mean(axis=1)
    total[~np.isfinite(total)] = math.inf  # diverged
    return total / setting.R


class _Sampled:
    """f_i as an ``Objective`` of the lab; the data sample of a step is a function of (seed, client, step)."""

    def __init__(self, problem: Problem, client: int, seed: int) -> None:
        self.problem, self.client, self.seed = problem, np.array(client), seed
        self._current: tuple[int, Floats] | None = None

    def _sample(self, step: int) -> Floats:
        """ξ of a step, kept while the step is measured."""
        if self._current is None or self._current[0] != step:
            sequence = np.random.SeedSequence(self.seed, spawn_key=(int(self.client), step))
            self._current = step, np.array(np.random.default_rng(sequence).random())
        return self._current[1]

    def __call__(self, x: Tensor, step: int) -> float:
        return float(self.problem.sampled(x.numpy(), self.client, self._sample(step)))


def federation(problem: Problem | Quadratic, setting: Setting, *, seed: int) -> DeComFLFederation:
    """The federation of ``decomfl_lab`` for this problem: float64 replicas, the setting's differences and momentum.

    Where the problem holds n of d coordinates, so do the replicas: z[j] is a function of (seed, p, j) alone, so the
    first n elements of a direction in R^d are the direction in R^n, but on the sphere, whose norm is that of all.

    Raises:
        InputError: If it cannot run: on the sphere d more than the coordinates held; μ = 0; clients with replacement.
    """
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


def run(problem: Problem | Quadratic, setting: Setting, *, runs: int, seed: int) -> Estimate:
    """As ``simulate``, by the lab's server, clients, wire and noise stream, with the seeds ``seed`` and up.

    Raises:
        InputError: See ``federation``.
    """
    require_int("runs", runs, 1)
    explicit = _explicit(problem, setting)
    averages = []
    for number in range(runs):
        running = federation(explicit, setting, seed=seed + number)
        total = 0.0
        for _ in range(setting.R):
            total += float((explicit.gradient(running.x.numpy()) ** 2).sum())
            running.advance()
        averages.append(total / setting.R)
    return Estimate.of(averages)
