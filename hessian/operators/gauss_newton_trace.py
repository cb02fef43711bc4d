"""The trace of a Gauss-Newton matrix without sampling: a finite sum over examples and outputs."""

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from decomfl_lab.errors import require
from decomfl_lab.objectives.function import Piece
from hessian.operators.curvature import GaussNewtonOperator
from hessian.operators.mean_loss import MeanLoss

_BYTES = 1 << 26  # memory for the Jacobians of the examples that are worked on together


def gauss_newton_trace(operator: GaussNewtonOperator, *, memory: int = _BYTES, whiten: Tensor | None = None) -> float:
    """tr(G), up to rounding, for a model with few outputs an example.

        tr(G) = Σ_n ω_n tr(J_nᵀ M_n J_n) = Σ_n ω_n Σ_{a,b} (M_n)_{ab} ⟨∇z_{n,a}, ∇z_{n,b}⟩

    with z_n the C outputs of example n, J_n (C, d) their Jacobian, and M_n (C, C) the second derivative of its loss in
    them. It needs C gradients of every example: with C = 10 the time of about 11 gradients of f, or 5 products with
    the Hessian. For piecewise affine nets it is tr(H) (see ``trace_operator``), and then κ has no sampling error.

    Args:
        operator: The Gauss-Newton matrix G.
        memory: The bytes for the Jacobians of the examples that are worked on together.
        whiten: The vector s (d,) for tr(DGD), D = diag(s), instead of tr(G): J_n D instead of J_n.

    Raises:
        InputError: If the loss is no mean of losses of single examples, each of its own outputs.
    """
    objective = operator.objective
    require(
        objective.is_of_examples,
        "loss",
        "be the mean of losses of single examples for an exact trace",
        "something else (or statistics of the batch)",
    )
    total = torch.zeros((), dtype=torch.float64, device=operator.device)
    for piece in objective.pieces:
        with torch.no_grad():
            outputs = objective.outputs(operator.x, piece)
        fits = outputs.ndim > 0 and outputs.shape[0] == piece.examples
        require(fits, "outputs", f"have the {piece.examples} examples in their first dimension", tuple(outputs.shape))
        each = outputs[0].numel()
        chunk = max(1, memory // (each * operator.d * operator.x.element_size()))
        for part in piece.cut(chunk, objective.weight_of):
            jacobians = _jacobians(objective, operator.x, part)
            jacobians = jacobians if whiten is None else jacobians * whiten
            gram = torch.einsum("nad,nbd->nab", jacobians, jacobians).double()
            # M_n of every example, (n, C, C).
            with torch.no_grad():
                z = objective.outputs(operator.x, part)
            z.requires_grad_()
            (slope,) = torch.autograd.grad(part.examples * objective.loss_of(z, part), z, create_graph=True)
            columns = []
            for a in range(z.numel() // part.examples):
                unit = torch.zeros_like(z).reshape(part.examples, -1)
                unit[:, a] = 1.0
                (column,) = torch.autograd.grad(slope, z, unit.view_as(z), retain_graph=True)
                columns.append(column.reshape(part.examples, -1))
            middle = torch.stack(columns, 2).double()
            total += part.share * (gram * middle).sum() / part.examples
    across = operator.d if whiten is None else float(whiten.double().square().sum())
    return float(total) + objective.weight_decay * across  # tr(λI), or tr(λD²)


def _jacobians(objective: MeanLoss, x: Tensor, part: Piece) -> Tensor:
    """J_n of every example, (n, C, d)."""

    def outputs(at: Tensor, inputs: Tensor) -> Tensor:
        one = Piece(inputs[None], None, 1, 1.0)
        flat: Tensor = objective.outputs(at, one).reshape(-1)  # also where the module squeezes an only example
        return flat

    require(isinstance(part.inputs, Tensor), "inputs", "be one tensor for an exact trace", type(part.inputs).__name__)
    jacobians: Tensor = vmap(jacrev(outputs), (None, 0))(x, part.inputs)
    return jacobians
