"""Operators with known spectra for the tests of the estimators."""

import torch
from torch import Tensor

from hessian.operators.operator import DenseOperator


def rotated(eigenvalues: list[float] | Tensor, seed: int = 0, dtype: torch.dtype = torch.float64) -> DenseOperator:
    """A dense matrix of these eigenvalues in a random basis."""
    values = torch.as_tensor(eigenvalues, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)).Q
    A = Q * values @ Q.T
    return DenseOperator(((A + A.T) / 2).to(dtype))


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
