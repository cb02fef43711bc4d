"""κ by layer without sampling: of a task with two classes, from one gradient for each prompt.

    G = 1/N Σ_n p_n (1 − p_n) a_n a_nᵀ,    a_n = ∇_x (z_n1 − z_n0),    p_n the probability of the second class

So the block of G that belongs to a layer has, beside zeros, the eigenvalues of the N × N matrix of the products
⟨a_m, a_n⟩ over the layer's parameters, weighted by √(p_n (1 − p_n)/N) on both sides. It is what the intervals of
``decomfl kappa --operator gauss-newton --by-layer`` are compared with where d is 134 million.

``python -m paper_repro.language_models.by_prompt DEPTH MODEL [WEIGHTS]`` prints it as JSON, for 64 prompts of SST-2.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from decomfl_lab.storage.provenance import provenance
from hessian.operators.options import CurvatureOptions
from hessian.trained_models import TrainedModel, from_task, from_weights

TASK = "sst2"
EXAMPLES = 64
MEMORY = 8 << 30
_BLOCK = 1 << 18  # elements of a gradient that are widened to float64 at once


def exact_by_layer(
    trained: TrainedModel, *, depth: int, examples: int = EXAMPLES, memory: int = MEMORY
) -> dict[str, Any]:
    """κ, trace and norm of every layer's block of G; and of G itself, as layer "all".

    Args:
        trained: A language model as a classifier with two classes.
        depth: The parts of a module's name that tell layers apart, as of ``--depth``.
        examples: The number of training prompts, the same ones that ``TrainedModel.mean_loss`` takes.
        memory: The bytes for the gradients of all prompts, of as many layers as they have room for.
    """
    (objective,) = trained.mean_loss(CurvatureOptions(chunk=1, trust=True), examples=examples)
    prompts = [piece.inputs for piece in objective.pieces]
    with torch.no_grad():
        p = torch.cat([trained.module(ids) for ids in prompts]).double().softmax(1)
    weights = (p[:, 0] * p[:, 1] / len(prompts)).sqrt()
    layers: dict[str, list[nn.Parameter]] = {}
    for name, parameter in trained.module.named_parameters():
        layers.setdefault(".".join(name.split(".")[:-1][:depth]), []).append(parameter)
    # Layers whose gradients are kept together.
    turns: list[dict[str, list[nn.Parameter]]] = [{}]
    room = memory
    for name, of_layer in layers.items():
        size = len(prompts) * sum(4 * parameter.numel() for parameter in of_layer)
        if turns[-1] and size > room:
            turns.append({})
            room = memory
        turns[-1][name] = of_layer
        room -= size
    # The products ⟨a_m, a_n⟩ over the parameters of each layer.
    products: dict[str, Tensor] = {}
    for together in turns:
        parameters = [parameter for of_layer in together.values() for parameter in of_layer]
        gradients = []  # of each prompt, a_n: a tensor a parameter
        for ids in prompts:
            (z,) = trained.module(ids)
            gradients.append(torch.autograd.grad(z[1] - z[0], parameters))
        start = 0
        for name, of_layer in together.items():
            total = torch.zeros(len(prompts), len(prompts), dtype=torch.float64)
            for place in range(start, start + len(of_layer)):
                blocks = zip(*(gradient[place].flatten().split(_BLOCK) for gradient in gradients), strict=True)
                for parts in blocks:
                    block = torch.stack(parts).double()
                    total += block @ block.T
            start += len(of_layer)
            products[name] = total
    products["all"] = torch.stack(list(products.values())).sum(0)
    rows = []
    for name, product in products.items():
        eigenvalues = torch.linalg.eigvalsh(weights[:, None] * product * weights)
        trace, norm = float(eigenvalues.sum()), float(eigenvalues.max())
        rows.append({"layer": name, "kappa": trace / norm, "trace": trace, "norm": norm})
    facts = {"model": trained.name, "history": trained.history, "examples": examples, "loss": objective.value}
    return {**facts, **provenance(trained.dataset), "rows": rows}


if __name__ == "__main__":
    asked_depth, named, *files = sys.argv[1:]
    asked = from_weights(Path(files[0]), model=named, task=TASK) if files else from_task(TASK, model=named)
    print(json.dumps(exact_by_layer(asked, depth=int(asked_depth)), ensure_ascii=False))
