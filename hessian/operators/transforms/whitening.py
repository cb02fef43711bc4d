"""Curvature as a method sees it whose directions are scaled by coordinates, u = s ⊙ z: D H D with D = diag(s).

In the variables y = D⁻¹x the loss is F(y) = f(Dy), with ∇F = D∇f and ∇²F = D∇²fD, and the method's directions are z.
"""

import math
from typing import Final

import torch
from torch import Tensor

from decomfl_lab.errors import require
from hessian.operators.operator import Around, Noise, Operator, digest
from hessian.operators.transforms.smoothing import Smoothable

WHITENED: Final = "whitened "  # what the name of an operator begins with that is whitened


def _scale(s: Tensor, d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The vector s as it multiplies others; InputError unless it is d positive numbers, in ``dtype`` too."""
    require(s.shape == (d,), "whiten", f"have shape ({d},)", tuple(s.shape))
    s = s.to(device, dtype)
    bad = s[~(torch.isfinite(s) & (s > 0))]
    require(not len(bad), "whiten", f"be finite and above 0 in every element, in {dtype}", bad[:1].tolist())
    return s


class WhitenedOperator(Around):
    """D H D of an operator H, at the cost of H's own products."""

    def __init__(self, operator: Operator, s: Tensor) -> None:
        """Scale products of ``operator`` by ``s`` (d,) on both sides; InputError unless s is finite and positive."""
        super().__init__(operator, WHITENED + operator.name)
        self.s = _scale(s, self.d, self.dtype, self.device)
        if operator.noise.size:  # DED is at most max(s²) times as long as E, and its trace then √d times that
            size = operator.noise.size * float(self.s.max()) ** 2
            self.noise = Noise(math.sqrt(self.d) * size, size)

    def lifted(self, v: Tensor) -> Tensor:
        return self.s * v

    reduced = lifted

    def gradient(self) -> Tensor | None:
        """See ``Operator``: of F."""
        slope = self.inner.gradient()
        return None if slope is None else self.s * slope

    def fingerprint(self) -> str:
        return digest(self.inner.fingerprint(), self.s)


class WhitenedObjective:
    """F(y) = f(s ⊙ y), for what works by values and gradients of f: its radius μ is one of y, as that of the method is.

    Attributes:
        y: The point, x/s, (d,).
        trusted: Whether f was taken on trust.
        remark: What is to be said of f.
    """

    def __init__(self, objective: Smoothable, x: Tensor, s: Tensor) -> None:
        """F of ``objective``, at ``x`` (d,); InputError unless ``s`` (d,) is finite and positive."""
        self.objective = objective
        self.s = _scale(s, x.numel(), x.dtype, x.device)
        self.y = x / self.s
        self.trusted = getattr(objective, "trusted", False)
        self.remark = getattr(objective, "remark", "")

    def __call__(self, x: Tensor) -> float:
        """F at the point x of the scaled variables."""
        return float(self.objective(self.s * x))

    def gradient(self, x: Tensor) -> Tensor:
        """∇F(x) = s ⊙ ∇f(s ⊙ x), shape (d,)."""
        slope: Tensor = self.objective.gradient(self.s * x)
        return self.s * slope

    def fingerprint(self) -> str:
        """A digest of f and s."""
        return digest(self.objective.fingerprint(), self.s)
