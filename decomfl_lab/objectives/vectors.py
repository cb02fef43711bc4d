"""Vectors of the size of a model: steps from a point, norms and sums in float64, without copies in it."""

import math

import torch
from torch import Tensor

BLOCK = 1 << 20
"""Elements of which copies in float64 are made at a time."""


def inner(u: Tensor, v: Tensor) -> float:
    """The inner product of two vectors of any dtypes, summed in float64, of which no copies in float64 are made."""
    parts = zip(u.split(BLOCK), v.split(BLOCK), strict=True)
    return float(torch.stack([a.double() @ b.double() for a, b in parts]).sum())


def add_(u: Tensor, v: Tensor, c: float) -> Tensor:
    """Add cv to u, in place. Where v is of another dtype, torch would make a copy of it in that of the sum."""
    for block, part in zip(u.split(BLOCK), v.split(BLOCK), strict=True):
        block.add_(part, alpha=c)
    return u


def moved(x: Tensor, step: float, drawn: torch.dtype = torch.float32) -> Tensor:
    """The point at that distance from x relative to ‖x‖, in a direction that is the same each time.

    The direction is drawn in one dtype whatever that of x is, by default the one that is four times faster.
    """
    if not step:
        return x
    # Block by block: x may fill much of the memory.
    stream, z = torch.Generator().manual_seed(0), torch.empty_like(x)
    for block in z.split(BLOCK):
        block.copy_(torch.randn(block.numel(), generator=stream, dtype=drawn))
    return z.mul_(relative(x, z, step)).add_(x)


def relative(x: Tensor, z: Tensor, step: float) -> float:
    """The c at which ‖c z‖ is ``step`` times ‖x‖, or times √d where x is smaller."""
    across = max(length(x), math.sqrt(x.numel()) * 1e-3)
    return step * across / length(z)


def length(x: Tensor) -> float:
    """The norm of a vector, summed in float64."""
    return math.hypot(*(float(block.double().norm()) for block in x.split(BLOCK)))
