"""The truth of a situation: curvature by reverse derivatives over the module's own parameters, by torch alone.

Nothing here uses the lab. f is written out by the situation, as a function of an ordinary module in float64.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Function = Callable[[nn.Module], Tensor]
"""f(net), a scalar: the loss as the user means it, at the parameters that net has."""


@dataclass(frozen=True)
class Curvature:
    """What is compared: κ = tr(H)/‖H‖₂ alone would not notice a factor."""

    trace: float
    norm: float
    absolute: float  # Σ|λ|, by which errors are measured

    @property
    def kappa(self) -> float:
        return self.trace / self.norm


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that need gradients, tied ones once."""
    return [p for p in module.parameters() if p.requires_grad]


def copied(module: nn.Module) -> nn.Module:
    """A copy; tensors with a graph that are attributes, as of pruned layers, are made anew in each forward pass."""
    held = [each for part in module.modules() for each in vars(part).values() if isinstance(each, Tensor)]
    return copy.deepcopy(module, {id(each): each.detach().clone() for each in held if not each.is_leaf})


def dense(f: Function, module: nn.Module) -> Tensor:
    """∇²f (d, d), a row at a time."""
    net = copied(module).double()
    own = trainable(net)
    with sdpa_kernel(SDPBackend.MATH):  # torch has no second derivative of fused attention
        first = torch.autograd.grad(f(net), own, create_graph=True, allow_unused=True, materialize_grads=True)
    rows = []
    for element in torch.cat([g.reshape(-1) for g in first]):
        if element.requires_grad:
            row = torch.autograd.grad(element, own, retain_graph=True, allow_unused=True, materialize_grads=True)
        else:  # f is linear in this parameter
            row = tuple(torch.zeros_like(p) for p in own)
        rows.append(torch.cat([g.reshape(-1) for g in row]))
    H = torch.stack(rows)
    # Of torch's own second derivatives some are wrong (those of weight_norm are): such a matrix is no truth.
    torch.testing.assert_close(H, H.T, rtol=0, atol=1e-6 * float(H.abs().max()))
    return H


def by_values(f: Function, module: nn.Module, step: float = 1e-4) -> Tensor:
    """∇²f (d, d) by differences of f's values alone, for what torch's derivatives leave out."""
    net = copied(module).double()
    own = trainable(net)
    x = torch.cat([p.detach().reshape(-1) for p in own])
    basis = step * torch.eye(len(x), dtype=torch.float64)

    def at(point: Tensor) -> float:
        with torch.no_grad():
            for p, part in zip(own, point.split([p.numel() for p in own]), strict=True):
                p.copy_(part.view(p.shape))
            return float(f(net))

    H = torch.zeros(len(x), len(x), dtype=torch.float64)
    for i, u in enumerate(basis):
        for j, v in enumerate(basis[: i + 1]):
            four = at(x + u + v) - at(x + u - v) - at(x - u + v) + at(x - u - v)
            H[i, j] = H[j, i] = four / (2 * step) ** 2
    return H


def curvature(H: Tensor) -> Curvature:
    λ = torch.linalg.eigvalsh((H + H.T) / 2)
    return Curvature(float(λ.sum()), float(λ.abs().max()), float(λ.abs().sum()))


def value(f: Function, module: nn.Module) -> float:
    return float(f(copied(module).double()).detach())
