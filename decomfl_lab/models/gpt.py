"""A causal language model in plain torch: the decoder of GPT-2, as small as one likes.

    h ← h + attention(norm(h)),    h ← h + W₂ gelu(W₁ norm(h))        depth times, then norm and a linear head

Source: Radford, Wu, Child, Luan, Amodei and Sutskever, "Language models are unsupervised multitask learners", 2019,
section 2.3 (normalisation before each part, residual projections scaled by 1/sqrt(2 depth) at the start).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from decomfl_lab.errors import require
from decomfl_lab.models.initialisers import begin_, constant, normal

_STD = 0.02


class Gpt(nn.Module):
    """The model, initialised from torch's global generator.

        d = (12 width² + 13 width)·depth + width·(T + tokens + 2) + (0 if tied else width·tokens)

    It maps token numbers (B, T) to logits (B, tokens, T): position t's are of the token after it, from positions
    0..t alone. The tokens' axis comes second, where ``torch.nn.functional.cross_entropy`` and ``argmax(1)`` look for
    classes, so that every loss of images is one of text too.

    Sequences have the shape ``in_shape`` = (T,), InputError for others. The width of the residual stream is a multiple
    of the ``heads`` of each of the ``depth`` blocks. A ``tied`` head is the embedding, transposed.
    """

    def __init__(
        self, in_shape: tuple[int, ...], tokens: int, *, width: int, depth: int, heads: int, tied: bool = False
    ) -> None:
        require(len(in_shape) == 1 and in_shape[0] >= 1, "inputs for a gpt", "be sequences of shape (T,)", in_shape)
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.empty(in_shape[0], width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        nn.init.normal_(self.position, std=_STD)
        for name, weight in self.named_parameters():
            layer, _, own = name.rpartition(".")
            if own == "bias":
                nn.init.zeros_(weight)
                begin_(self.get_submodule(layer), bias=constant(0.0))
            elif weight.ndim == 2:
                std = _STD * ((2 * depth) ** -0.5 if layer.endswith("out") else 1.0)
                nn.init.normal_(weight, std=std)
                begin_(self.get_submodule(layer), **{own: normal(std)})
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, tokens, T) of token numbers (B, T)."""
        h = self.embedding(tokens) + self.position[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(h)))
        return logits.transpose(1, 2)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        B, T, width = h.shape
        q, k, v = self.qkv(self.norm(h)).view(B, T, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, width)
        h = h + self.attention_out(mixed)
        transformed: Tensor = self.mlp_out(gelu(self.mlp(self.mlp_norm(h))))
        return h + transformed
