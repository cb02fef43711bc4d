"""A local step, as it is simulated: DeComFL's, or one of your own."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from theory.notation.setting import Setting
from theory.problems.problem import Floats, Integers, Problem


@dataclass(frozen=True)
class Losses:
    """f_i(·; ξ) of the sampled clients, each at its mini-batch of one local step, in many runs at once."""

    problem: Problem  # the losses
    clients: Integers  # numbers of the sampled clients, shape (runs, m)
    xi: Floats  # their mini-batches, shape (runs, m)

    def __call__(self, points: Floats) -> Floats:
        """The losses at points of shape (runs, m, n) or (runs, m, P, n), in F; shape (runs, m) or (runs, m, P)."""
        shape = self.clients.shape + (1,) * (points.ndim - 3)
        return self.problem.sampled(points, self.clients.reshape(shape), self.xi.reshape(shape))

    def gradient(self, x: Floats) -> Floats:
        """The gradients at x, in F/X; both are of shape (runs, m, n)."""
        return self.problem.sampled_gradient(x, self.clients, self.xi)


Step = Callable[[Losses, Floats, Floats, Floats, Setting], tuple[Floats, Floats]]
"""A local step (losses, x, v, z, setting) -> (x⁺, v⁺).

x holds the clients' models and v a state beside them, which is 0 at first, both of shape (runs, m, n); z the directions
that the clients share, shape (runs, P, n). After the K local steps x and v become their means over the sampled clients.
"""


def decomfl(losses: Losses, x: Floats, v: Floats, z: Floats, setting: Setting) -> tuple[Floats, Floats]:
    """v⁺ = βv + (η/P) Σ_p g_p z_p, x⁺ = x − v⁺, with the setting's differences g_p, or zᵀ∇f_i where μ = 0."""
    mu, apart = setting.mu, setting.mu * z[:, None]
    if not mu:
        g = np.einsum("rmn,rpn->rmp", losses.gradient(x), z)
    elif setting.central:
        g = (losses(x[:, :, None] + apart) - losses(x[:, :, None] - apart)) / (2 * mu)
    else:
        g = (losses(x[:, :, None] + apart) - losses(x)[..., None]) / mu
    v = setting.beta * v + (setting.eta or 0.0) / setting.P * np.einsum("rmp,rpn->rmn", g, z)
    return x - v, v
