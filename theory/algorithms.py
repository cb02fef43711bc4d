"""What moves x in a local step: DeComFL's forward differences, central ones, momentum, or a step of your own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from decomfl_lab.errors import require
from theory.problems.problem import Floats, Integers, Problem
from theory.problems.quadratic import Quadratic, Trajectory, expected
from theory.setting import Setting

__all__ = ["CENTRAL", "FORWARD", "Algorithm", "Losses", "Step", "momentum"]


@dataclass(frozen=True)
class Losses:
    """f_i(·; ξ) of the sampled clients, each at its mini-batch of one local step, in many runs at once.

    Attributes:
        problem: The losses.
        clients: Numbers of the sampled clients, shape (runs, m).
        xi: Their mini-batches, shape (runs, m).
    """

    problem: Problem
    clients: Integers
    xi: Floats

    def __call__(self, points: Floats) -> Floats:
        """The losses at points of shape (runs, m, n) or (runs, m, P, n), in F; shape (runs, m) or (runs, m, P)."""
        between = (1,) * (points.ndim - 3)
        shape = (*self.clients.shape, *between)
        return self.problem.sampled(points, self.clients.reshape(shape), self.xi.reshape(shape))

    def gradient(self, x: Floats) -> Floats:
        """The gradients at x, in F/X; both are of shape (runs, m, n)."""
        return self.problem.sampled_gradient(x, self.clients, self.xi)


Step = Callable[[Losses, Floats, Floats, Floats, Setting], tuple[Floats, Floats]]
"""A local step (losses, x, v, z, setting) -> (x⁺, v⁺).

x holds the clients' models and v a state beside them, which is 0 at first, both of shape (runs, m, n); z the directions
that the clients share, shape (runs, P, n). After the K local steps x and v become their means over the sampled clients.
"""


@dataclass(frozen=True)
class Algorithm:
    """A local step, and what is known of it in expectation.

    Attributes:
        name: What it is called.
        step: The step, as it is simulated.
        expected: The expectation of a run on a quadratic, exactly; None where there is no closed form.
    """

    name: str
    step: Step
    expected: Callable[[Quadratic, Setting], Trajectory] | None = None


Scalars = Callable[[Losses, Floats, Floats, float], Floats]


def _forward(losses: Losses, x: Floats, z: Floats, mu: float) -> Floats:
    """(f_i(x + μz_p) − f_i(x))/μ, shape (runs, m, P)."""
    difference: Floats = losses(x[:, :, None] + mu * z[:, None]) - losses(x)[..., None]
    return difference / mu


def _central(losses: Losses, x: Floats, z: Floats, mu: float) -> Floats:
    """(f_i(x + μz_p) − f_i(x − μz_p))/(2μ), shape (runs, m, P)."""
    apart = mu * z[:, None]
    difference: Floats = losses(x[:, :, None] + apart) - losses(x[:, :, None] - apart)
    return difference / (2 * mu)


def _sgd(scalars: Scalars, beta: float = 0.0) -> Step:
    """v⁺ = βv + (1/P) Σ_p g_p z_p, x⁺ = x − ηv⁺, with g = zᵀ∇f_i where μ = 0."""

    def step(losses: Losses, x: Floats, v: Floats, z: Floats, setting: Setting) -> tuple[Floats, Floats]:
        g = scalars(losses, x, z, setting.mu) if setting.mu else np.einsum("rmn,rpn->rmp", losses.gradient(x), z)
        v = beta * v + np.einsum("rmp,rpn->rmn", g, z) / setting.P
        return x - (setting.eta or 0.0) * v, v

    return step


FORWARD = Algorithm("forward differences", _sgd(_forward), expected)
"""DeComFL as the paper writes it."""
CENTRAL = Algorithm("central differences", _sgd(_central), lambda quadratic, s: expected(quadratic, replace(s, mu=0.0)))
"""DeComFL with central differences, which on quadratics are zᵀ∇f for every μ."""


def momentum(beta: float, *, central: bool = False) -> Algorithm:
    """DeComFL with momentum as torch has it: v ← βv + (1/P) Σ_p g_p z_p, x ← x − ηv, v kept from round to round.

    Args:
        beta: β in [0, 1).
        central: Whether differences are central ones.

    Raises:
        InputError: If β is not in [0, 1).
    """
    require(0.0 <= beta < 1.0, "beta", "be in [0, 1)", beta)
    return Algorithm(
        f"momentum {beta:g}, {'central' if central else 'forward'} differences",
        _sgd(_central if central else _forward, beta),
    )
