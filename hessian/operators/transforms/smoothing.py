"""The Hessian of f^μ(x) = E_u f(x + μu), u ~ N(0, I): the curvature that a zeroth-order method sees.

f^μ is smooth whatever f is, and it is ∇²f^μ that the proofs bound. For ReLU networks it differs from what automatic
differentiation calls the Hessian, which leaves out the jumps of the gradient. It is the whole Hessian of f (jumps
included, as a distribution) averaged over a normal window. Along a unit vector v̂, with u = u_⊥ + t v̂ and t ~ N(0, 1)
independent of u_⊥ = u − v̂v̂ᵀu, differences are averages over other windows, without any second derivative:

    [∇f(y + wv̂) − ∇f(y − wv̂)]/(2w)     = ∫ ∇²f(y + tv̂)v̂ · 1/(2w) dt           (uniform, variance w²/3),
    [f(y + wv̂) + f(y − wv̂) − 2f(y)]/w² = ∫ v̂ᵀ∇²f(y + tv̂)v̂ · (w − |t|)/w² dt   (triangular, variance w²/6).

Given the normal window's variance μ², by w = √3 μ and w = √6 μ, they differ from it by O(μ⁴) where f is smooth and have
the same mass at kinks. u_⊥ is averaged over S points y_s = x + μ(u_s − v̂v̂ᵀu_s):

    H v  = ‖v‖/(2wS) Σ_s [∇f(y_s + wv̂) − ∇f(y_s − wv̂)],            w = √3 μ,
    vᵀHv = ‖v‖²/(w²S) Σ_s [f(y_s + wv̂) + f(y_s − wv̂) − 2f(y_s)],    w = √6 μ.

With fixed u_s, in pairs ±u so that terms odd in μ cancel, this is one deterministic map. On quadratics it is their
Hessian, for every μ. On smooth f it is linear and symmetric up to O(μ²). At kinks the sampling of u_s leaves an
asymmetry of relative order S^{-1/2}.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from decomfl_lab.errors import require, require_finite_positive, require_int
from decomfl_lab.objectives.trials.derivatives import SLOPES, is_gradient
from decomfl_lab.objectives.vectors import inner, relative
from hessian.operators.operator import Operator, digest
from hessian.operators.probes import probe

_SMOOTHING = 43


Smoothable = Any  # what has f(x), ``gradient(x)`` and ``fingerprint()``, as a ``MeanLoss`` has them


class SmoothedOperator(Operator):
    """∇²f^μ(x) by differences of gradients at S fixed random points."""

    name = "smoothed"

    def __init__(
        self,
        objective: Smoothable,
        x: Tensor,
        mu: float,
        *,
        samples: int = 8,
        seed: int = 0,
        forward_quad: bool | None = None,
    ) -> None:
        """The operator at x.

        Args:
            objective: The function f, as a ``MeanLoss``: f(x), ``gradient(x)`` and ``fingerprint()``.
            x: The point, (d,), float32 or float64.
            mu: The smoothing radius μ > 0, in the units of x.
            samples: The number S of samples, best even. A product costs 2S gradients.
            seed: The seed of the u_s.
            forward_quad: Whether ``quad`` uses function values, 3S of them, instead of 2S gradients. Its rounding
                error is ε_f ‖v‖²/(μ²√S), out of the question in float32. None: in float64 only.

        Raises:
            InputError: If x is no vector of floats, or μ is not positive or too small to move x.
        """
        floats = x.ndim == 1 and x.numel() > 0 and x.dtype in (torch.float32, torch.float64)
        require(floats, "x", "be a vector of float32 or float64", (tuple(x.shape), x.dtype))
        self.objective = objective
        self.x = x.detach().clone()
        self.mu = require_finite_positive("mu", mu)
        self.samples = require_int("samples", samples, 1)
        self.seed = require_int("seed", seed, 0, 2**64 - 1)
        self.forward_quad = x.dtype == torch.float64 if forward_quad is None else forward_quad
        self.d = x.numel()
        self.dtype = x.dtype
        self.device = x.device
        self.layout = getattr(objective, "layout", None)
        moved = self.x + self.mu * probe(self.x, seed, _SMOOTHING, 0)
        require(not torch.equal(moved, self.x), "mu", f"move x (it does not in {x.dtype})", mu)
        self.remark = ""
        self._tried = getattr(objective, "trusted", False)

    def _points(self, along: Tensor) -> Iterator[Tensor]:
        """The points y_s, for the unit vector ``along``."""
        for s in range(self.samples):
            u = probe(self.x, self.seed, _SMOOTHING, s // 2)
            yield self.x + (self.mu if s % 2 else -self.mu) * (u - (u @ along) * along)

    def matvec(self, v: Tensor) -> Tensor:
        """See ``Operator``; 2S gradients. Before the first product ∇f(x) is compared with differences of f."""
        norm = float(v.double().norm())
        if norm == 0.0:
            return torch.zeros_like(v)
        # A remark where ∇f(x) is not what values of f say; no error, as f may have a kink at x, or its least value.
        if not self._tried:
            self._tried = True
            z = probe(self.x, self.seed, _SMOOTHING, 0)
            z /= z.norm()
            agrees, slope, found = is_gradient(self.x, self.objective.gradient(self.x), z, self.objective)
            if not agrees:
                # Of a difference of values at the coarsest step; sums over a batch leave a few units in the last place.
                c = relative(self.x, z, SLOPES[-1])
                value = max(abs(self.objective(self.x)), abs(self.objective(self.x + c * z)))
                if abs(found - slope) > 8 * torch.finfo(self.dtype).eps * value / c:
                    self.remark = (
                        f"∇fᵀv is {slope:.3g} at x, where values of f change by {found:.3g}: f has a kink there, or a "
                        "backward of its own, a hook or detach gives another gradient"
                    )
        unit, step = v / norm, math.sqrt(3.0) * self.mu
        total = torch.zeros(self.d, dtype=torch.float64, device=self.device)
        for y in self._points(unit):
            total += self.objective.gradient(y + step * unit)
            total -= self.objective.gradient(y - step * unit)
        return (total * (norm / (2 * step * self.samples))).to(self.dtype)

    @property
    def remarks(self) -> tuple[str, ...]:
        """See ``Operator``: of the objective, and of its gradient."""
        return tuple(filter(None, (getattr(self.objective, "remark", ""), self.remark)))

    def quad(self, v: Tensor) -> float:
        """See ``Operator``; 3S function values, or as ``matvec`` (``forward_quad``)."""
        if not self.forward_quad:
            return inner(v, self.matvec(v))
        norm = float(v.double().norm())
        if norm == 0.0:
            return 0.0
        unit, step, f = v / norm, math.sqrt(6.0) * self.mu, self.objective
        total: float = sum(f(y + step * unit) + f(y - step * unit) - 2 * f(y) for y in self._points(unit))
        return total * norm**2 / (step**2 * self.samples)

    def fingerprint(self) -> str:
        facts = (self.objective.fingerprint(), self.mu, self.samples, self.seed, self.forward_quad)
        return digest(repr(facts), self.x)
