"""Small models and losses whose Hessian is known as a dense matrix, by another way than the operators'."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev
from torch.nn.functional import cross_entropy

from hessian.operators.mean_loss import MeanLoss
from hessian.operators.operator import Operator
from tests import nets

N, CLASSES = 12, 3


def data(seed: int = 0, *, n: int = N, shape: tuple[int, ...] = (4,)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (n,), generator=generator)


def seeded(build: Callable[[], nn.Module], seed: int = 1) -> nn.Module:
    return nets.seeded(build, seed).double()  # type: ignore[no-any-return]


def mlp(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 4), activation(), nn.Linear(4, 3)))


def cnn(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """For images of shape (1, 6, 6)."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), activation(), nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), activation(), nn.Flatten(),
            nn.Linear(3, CLASSES),
        )
    )  # fmt: skip


def flat_outputs(module: nn.Module, names: tuple[str, ...], inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """The module's outputs as a function of the flat parameters ``names``."""
    shapes = [module.get_parameter(name).shape for name in names]

    def outputs(x: Tensor) -> Tensor:
        parts = x.split([shape.numel() for shape in shapes])
        return functional_call(
            module, {name: part.view(shape) for name, shape, part in zip(names, shapes, parts, strict=True)}, inputs
        )

    return outputs


def dense_hessian(f: MeanLoss, module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    outputs = flat_outputs(module, f.names, inputs)
    return hessian(lambda x: cross_entropy(outputs(x), targets))(f.x)


def dense_gauss_newton(f: MeanLoss, module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """1/n Σ J_iᵀ (diag(p_i) − p_i p_iᵀ) J_i, the closed form for cross-entropy."""
    outputs = flat_outputs(module, f.names, inputs)
    J = jacrev(outputs)(f.x)
    p = outputs(f.x).softmax(1)
    M = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    return torch.einsum("nad,nab,nbe->de", J, M, J) / len(inputs)


def dense_fisher(f: MeanLoss, module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """1/n Σ g_i g_iᵀ, by each example's own gradient."""
    outputs = flat_outputs(module, f.names, inputs)
    G = jacrev(lambda x: cross_entropy(outputs(x), targets, reduction="none"))(f.x)
    return G.T @ G / len(inputs)


def kappa_of(matrix: Tensor) -> float:
    """κ of a dense matrix: its trace over the largest magnitude of its eigenvalues."""
    return float(matrix.trace() / torch.linalg.eigvalsh(matrix).abs().max())


def columns(operator: Operator) -> Tensor:
    """The operator as a dense matrix, by d products."""
    return torch.stack([operator.matvec(e) for e in torch.eye(operator.d, dtype=operator.dtype)], 1)


DENSE = {"hessian": dense_hessian, "gauss-newton": dense_gauss_newton, "fisher": dense_fisher}
"""The dense matrix of each operator, by its name."""
