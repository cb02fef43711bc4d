"""Parameter-efficient fine-tuning: a few parameters are trained, and so perturbed and rebuilt; the others stay.

    lora_     W frozen, W + (α/r) B A in its place, for the linear maps to queries and values
    norms_    the gains and biases of the normalisations, all else frozen

Frozen parameters are no part of x: whoever has the model that it began with needs the records and nothing else.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from decomfl_lab.errors import require
from decomfl_lab.models.initialisers import begin_, constant, draw_, uniform
from decomfl_lab.noise.draws import LIBRARIES, STREAM


class AdaptedLinear(nn.Module):
    """A linear layer with a low-rank update: y = base(u) + (α/r) B A u.

    Source: Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang and Chen, "LoRA: Low-Rank Adaptation of Large Language Models",
    ICLR 2022, section 4.1.
    """

    def __init__(self, base: nn.Linear, A: Tensor, scale: float) -> None:
        """The layer ``base`` with A (r, in) and B = 0."""
        super().__init__()
        self.base = base  # the layer, frozen
        self.A = nn.Parameter(A)  # factor (r, in)
        # factor (out, r), 0 at first, so that the layer begins as it was
        self.B = nn.Parameter(A.new_zeros(base.out_features, len(A)))
        self.scale = scale  # α/r
        begin_(self, A=uniform(1 / math.sqrt(base.in_features)), B=constant(0.0))

    def forward(self, u: Tensor) -> Tensor:
        """(..., in) to (..., out); B A is never formed."""
        y: Tensor = self.base(u) + self.scale * linear(linear(u, self.A), self.B)
        return y


def lora_(
    module: nn.Module,
    *,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] = ("q_proj", "v_proj"),
    seed: int = 0,
    draws: str = STREAM,
) -> None:
    """Freeze ``module`` and give every linear layer that is called one of ``targets`` a trainable ``AdaptedLinear``.

        d = Σ r (in + out),    A uniform in ±1/√in (as in the peft library), B = 0

    Outputs of the module, which is changed in place, are as before until it is trained. The paper has α = 8, the
    authors' code 16. Targets are the last parts of layers' names, by default of those of OPT and Llama. Each layer's A
    has a stream of its own, of the lab's or, for ``draws`` = "libraries", by which earlier versions drew, of numpy's.
    InputError if the rank exceeds a layer's width, or a target names no linear layer.

    Source: [DeComFL, appendix, settings of LoRA].
    """
    parts = [(name, part) for name, part in module.named_modules() if name.rpartition(".")[2] in targets]
    linears = [(name, part) for name, part in parts if isinstance(part, nn.Linear)]
    for target in targets:
        named = any(name.rpartition(".")[2] == target for name, _ in linears)
        rule = (
            f"each name linear layers of {type(module).__name__} (queries and values that share a matrix with keys, "
            "as GPT-2's c_attn, are not taken apart: tune norms or full)"
        )
        require(named, "targets", rule, target)
    for name, layer in linears:
        width = min(layer.in_features, layer.out_features)
        require(rank <= width, "rank", f"be at most the width {width} of layer {name}", rank)
    module.requires_grad_(False)
    for n, (name, layer) in enumerate(linears):
        A = torch.zeros(rank, layer.in_features)
        if draws == LIBRARIES:
            bound = 1 / math.sqrt(layer.in_features)
            rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(n,)))
            A = torch.from_numpy(rng.uniform(-bound, bound, A.shape))
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, AdaptedLinear(layer, A.to(layer.weight), alpha / rank))
    if draws == STREAM:
        draw_(module, seed)


@torch.no_grad()
def merge_(module: nn.Module) -> None:
    """Put W + (α/r) B A instead of every ``AdaptedLinear``: the module of before ``lora_``, with what it learnt."""
    for name, part in list(module.named_modules()):
        if isinstance(part, AdaptedLinear):
            part.base.weight += part.scale * (part.B @ part.A)
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, part.base)


def norms_(module: nn.Module) -> None:
    """Freeze ``module`` but for the parameters of its normalisations (classes called ...Norm), InputError for none.

    Source: Zhao, Tu, Wei, Mei and Xie, "Tuning LayerNorm in Attention: Towards Efficient Multi-Modal LLM Finetuning",
    ICLR 2024.
    """
    norms = [part for part in module.modules() if type(part).__name__.endswith("Norm")]
    require(bool(norms), "module", "have normalisations", type(module).__name__)
    module.requires_grad_(False)
    for part in norms:
        part.requires_grad_(True)
