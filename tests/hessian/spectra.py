"""Operators with known spectra for the tests of the estimators."""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import hessian
from torch.nn.functional import cross_entropy, interpolate

from hessian.operators.operator import DenseOperator, Operator, digest


def rotated(eigenvalues: list[float] | Tensor, seed: int = 0, dtype: torch.dtype = torch.float64) -> DenseOperator:
    """A dense matrix of these eigenvalues in a random basis."""
    values = torch.as_tensor(eigenvalues, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)).Q
    A = Q * values @ Q.T
    return DenseOperator(((A + A.T) / 2).to(dtype))


class Diagonal(Operator):
    """A diagonal matrix of any dimension."""

    name, device = "diagonal", torch.device("cpu")

    def __init__(self, eigenvalues: Sequence[float], dtype: torch.dtype = torch.float64) -> None:
        self.values = torch.tensor(np.asarray(eigenvalues), dtype=dtype)
        self.d, self.dtype = len(self.values), dtype

    def matvec(self, v: Tensor) -> Tensor:
        return self.values * v

    def fingerprint(self) -> str:
        return digest("diagonal", self.values)


@functools.cache
def mlp_hessian(hidden: int = 20, steps: int = 150, examples: int = 150) -> DenseOperator:
    """The Hessian of a ReLU net 49-hidden-hidden-10 trained on 7 × 7 digits, float64: d = 1,630 for 20."""
    digits = load_digits()
    images = torch.tensor(digits.images[:examples] / 16)
    x = interpolate(images[:, None], size=(7, 7), mode="area").flatten(1)
    y = torch.tensor(digits.target[:examples])
    generator = torch.Generator().manual_seed(0)
    shapes = [(hidden, 49), (hidden,), (hidden, hidden), (hidden,), (10, hidden), (10,)]
    parts = [torch.randn(s, generator=generator).double() * (2 / s[-1]) ** 0.5 * (len(s) - 1) for s in shapes]

    def loss(w: Tensor) -> Tensor:
        tensors = [part.view(s) for part, s in zip(w.split([p.numel() for p in parts]), shapes, strict=True)]
        h = x
        for i in (0, 2, 4):
            h = torch.nn.functional.linear(h if i == 0 else h.relu(), tensors[i], tensors[i + 1])
        return cross_entropy(h, y)

    w = torch.cat([p.flatten() for p in parts]).requires_grad_()
    optimizer = torch.optim.Adam([w], lr=2e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(w).backward()
        optimizer.step()
    H = hessian(loss)(w.detach())
    return DenseOperator((H + H.T) / 2, "mlp hessian")


@functools.cache
def eigenvalues(hidden: int = 20) -> Tensor:
    """The eigenvalues of ``mlp_hessian(hidden)``, ascending."""
    return torch.linalg.eigvalsh(mlp_hessian(hidden).matrix)


class Broken(DenseOperator):
    """Gives NaN from product number ``broken_from`` on, counted from 1."""

    def __init__(self, right: DenseOperator, broken_from: int) -> None:
        super().__init__(right.matrix, right.name)
        self.left = broken_from - 1

    def matvec(self, v: Tensor) -> Tensor:
        self.left -= 1
        return super().matvec(v) if self.left >= 0 else torch.full_like(v, float("nan"))


class Watched(DenseOperator):
    """Remembers every product and form."""

    def __init__(self, right: DenseOperator) -> None:
        super().__init__(right.matrix, right.name)
        self.asked: list[tuple[str, Tensor]] = []

    @property
    def calls(self) -> int:
        return len(self.asked)

    @property
    def forms(self) -> int:
        return [kind for kind, _ in self.asked].count("form")

    def matvec(self, v: Tensor) -> Tensor:
        self.asked.append(("product", v.clone()))
        return self.matrix @ v

    def quad(self, v: Tensor) -> float:
        self.asked.append(("form", v.clone()))
        return float(v @ (self.matrix @ v))
