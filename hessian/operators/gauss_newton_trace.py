"""The trace of a Gauss-Newton matrix without sampling, and the networks whose Hessian has the same.

    H = G + Σ_c (∂loss/∂z_c) ∇²z_c,    diag ∇²z_c = 0 wherever each z_c is affine in each x_j, the others held fixed

So diag(H) = diag(G) for almost all x, whatever the loss: H and its Gauss-Newton matrix G have one trace, and that of G
needs no second derivative of the network. It holds for ReLU and max-pooling networks, residual or not, and fails for
smooth activations and wherever a weight meets itself: tied weights, attention.
"""

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.func import functionalize, jacrev, vmap
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from decomfl_lab.errors import InputError, require
from decomfl_lab.objectives.function import Piece
from decomfl_lab.storage.tables import table_beside
from hessian.operators.curvature import GaussNewtonOperator, HessianOperator
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
    objective.require_examples("an exact trace")

    def of_example(at: Tensor, inputs: Tensor) -> Tensor:
        flat: Tensor = objective.outputs(at, Piece(inputs[None], None, 1, 1.0))
        return flat.reshape(-1)  # also where the module squeezes an only example

    total = torch.zeros((), dtype=torch.float64, device=operator.device)
    for piece in objective.pieces:
        with torch.no_grad():
            outputs = objective.outputs(operator.x, piece)
        fits = outputs.ndim > 0 and outputs.shape[0] == piece.examples
        require(fits, "outputs", f"have the {piece.examples} examples in their first dimension", tuple(outputs.shape))
        outputs_an_example = outputs[0].numel()
        chunk = max(1, memory // (outputs_an_example * operator.d * operator.x.element_size()))
        for part in piece.cut(chunk, objective.weight_of):
            # J_n of every example, (n, C, d).
            whole = isinstance(part.inputs, Tensor)
            require(whole, "inputs", "be one tensor for an exact trace", type(part.inputs).__name__)
            jacobians: Tensor = vmap(jacrev(of_example), (None, 0))(operator.x, part.inputs)
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


_OPERATIONS = table_beside(__name__, "gauss_newton_trace.toml")
_AFFINE, _PIECEWISE = frozenset(_OPERATIONS["affine"]), frozenset(_OPERATIONS["piecewise"])
_PRODUCTS: Mapping[str, Sequence[int]] = _OPERATIONS["products"]
_CONSTANT_PLACES: Mapping[str, Sequence[int]] = _OPERATIONS["constant"]


def trace_operator(hessian: HessianOperator) -> GaussNewtonOperator:
    """The Gauss-Newton operator at the Hessian's point, where both have the same trace (see the module's formula).

    Raises:
        InputError: If the network's outputs are not piecewise affine in each of its weights, by the operation and the
            weight that spoil it, or are not known to be.
    """
    reason = why_not_piecewise_affine(hessian.objective)
    if reason is not None:
        raise InputError(
            f"module must be piecewise affine in each weight, so that tr(H) is the Gauss-Newton matrix's, got {reason}"
        )
    return GaussNewtonOperator(hessian.objective, hessian.x)


def why_not_piecewise_affine(objective: MeanLoss) -> str | None:
    """None if the module's outputs are known to be piecewise affine in each single weight, else what is in the way.

    All operations of a forward pass over (at most) two examples are recorded, with the weights that each result depends
    on. Sums, rearrangements and piecewise linear functions are allowed, and products of what depends on different
    weights. Operations that are not known are refused.
    """
    piece = next(iter(objective.pieces[0].cut(2)))
    try:
        traced = make_fx(functionalize(lambda x: objective.outputs(x, piece)))(objective.x)
    except Exception as error:  # whatever a module's code does when it is traced
        return f"a forward pass that cannot be traced ({type(error).__name__}: {str(error).splitlines()[0][:100]})"
    names = objective.names
    # The first operation of the graph, whose argument is the flat x, that is not piecewise affine in each weight.
    weights: dict[Node, frozenset[str]] = {}  # that the node's value depends on
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            weights[node] = frozenset(names)
        elif node.op in ("call_function", "call_method"):
            target: Any = node.target
            name = str(getattr(target, "__name__", target)).split(".")[0]
            source = node.args[0] if node.args else None
            if target is getitem and isinstance(source, Node) and _is_cut_of_x(source):
                weights[node] = frozenset({names[node.args[1]]})
                continue
            weights[node] = frozenset().union(*(weights[used] for used in node.all_input_nodes))
            if not weights[node] or _is_cut_of_x(node):
                continue
            if not (name in _AFFINE or name in _PIECEWISE or name in _PRODUCTS or name in _CONSTANT_PLACES):
                return f"operation {name!r}"
            weights_at = {place: weights[used] for place, used in enumerate(node.args) if isinstance(used, Node)}
            for place in _CONSTANT_PLACES.get(name, ()):
                if weights_at.get(place):
                    return f"operation {name!r} with what depends on {min(weights_at[place])!r}"
            if name == "native_batch_norm" and node.args[5]:
                return f"operation {name!r} with the statistics of the batch"
            factors = [weights_at.get(place, frozenset()) for place in _PRODUCTS.get(name, ())]
            shared = frozenset[str]().union(*factors[:1]).intersection(*factors[1:])
            if shared:
                return f"operation {name!r} of two values that both depend on parameter {min(shared)!r}"
        else:  # constants and the output
            weights[node] = frozenset()
    return None


def _is_cut_of_x(node: Node) -> bool:
    """Whether the node cuts the flat x into the parameters, the first thing that is done to it."""
    source = node.args[0] if node.args else None
    return "split_with_sizes" in str(node.target) and isinstance(source, Node) and source.op == "placeholder"
