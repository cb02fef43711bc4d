"""uᵀf(H)u by a few Lanczos steps: Gauss quadrature, and the averaged rule that says how far off it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessian.counted import Counted
from hessian.krylov import Krylov, dot

__all__ = ["Quadrature", "quadrature"]

Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Quadrature:
    """Σ w f(node) ≈ uᵀf(H)u, by two rules on the same nodes.

    Attributes:
        nodes: The nodes, (n,), ascending.
        gauss: The weights of the Gauss rule, (n,), summing to ‖u‖².
        averaged: The weights of the mean of Gauss and anti-Gauss rule, (n,), summing to ‖u‖².
    """

    nodes: NDArray[np.float64]
    gauss: NDArray[np.float64]
    averaged: NDArray[np.float64]

    def expectation(self, f: Function) -> tuple[float, float]:
        """The averaged rule's value, and its distance from Gauss's as an error estimate."""
        values = f(self.nodes)
        value = float(self.averaged @ values)
        return value, abs(value - float(self.gauss @ values))


def quadrature(operator: Counted, u: Tensor, steps: int, product: Tensor | None = None) -> Quadrature:
    """The rules of ``steps`` products with H from u, on 2·steps − 1 nodes.

    With T_k from k Lanczos steps, Gauss's rule has the eigenvalues of T_k as nodes and ‖u‖² times the squared first
    elements of its eigenvectors as weights. The anti-Gauss rule of T_k with its last β times √2 errs by as much to
    the other side on polynomials of degree 2k − 1; the mean of Gauss (k − 1) and anti-Gauss (k) is the averaged
    rule. It matters where f has a kink amid the spectrum, as |λ| has.

    Args:
        operator: The matrix H.
        u: The start vector, (d,), not normalised; zero gives no mass.
        steps: The number k of steps, at least 1; fewer products are made where the Krylov space of u becomes invariant.
        product: The product Hu where it is known: then one product fewer is made.

    Source: Golub and Meurant 1994; Laurie 1996 (anti-Gaussian formulas).
    """
    mass = dot(u, u)
    if mass == 0.0:
        return Quadrature(*(np.zeros(1) for _ in range(3)))
    krylov = Krylov(operator, seed=0, start=u / mass**0.5)
    while krylov.steps < steps and not krylov.invariant:
        krylov.step(None if product is None or krylov.steps else product / mass**0.5)
    T = krylov.projected
    if krylov.invariant or len(T) < 2:
        nodes, weights = _rule(T)
        return Quadrature(nodes, mass * weights, mass * weights)
    anti = T.clone()
    anti[-1, -2] = anti[-2, -1] = T[-1, -2] * 2**0.5
    inner, inner_weights = _rule(T[:-1, :-1])
    outer, outer_weights = _rule(anti)
    nodes = np.concatenate([inner, outer])
    order = np.argsort(nodes, kind="stable")
    gauss = np.concatenate([inner_weights, np.zeros_like(outer_weights)])
    averaged = np.concatenate([inner_weights, outer_weights]) / 2
    return Quadrature(nodes[order], mass * gauss[order], mass * averaged[order])


def _rule(T: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights, summing to 1, of a tridiagonal matrix."""
    values, s = torch.linalg.eigh(T)
    return values.cpu().numpy(), (s[0] ** 2).cpu().numpy()
