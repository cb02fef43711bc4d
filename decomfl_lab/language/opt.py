"""OPT models of any size, initialised at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decomfl_lab.language.extra import llm_library
from decomfl_lab.storage.tables import table_beside

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Size:
    """The shape of an OPT model: width h, depth L, heads, and context T, the most tokens that it reads.

    d = (V + T + 4)·h + L·(12h² + 13h) for V tokens; the output embedding is the input's.
    """

    width: int
    depth: int
    heads: int
    context: int


SIZES: dict[str, Size] = {name: Size(*shape) for name, shape in table_beside(__name__, "sizes.toml").items()}
"""Shapes by name."""


def build_opt(size: Size, tokenizer: Any, *, seed: int) -> nn.Module:
    """The ``OPTForCausalLM`` of this size for a ``tokenizers.Tokenizer``, without dropout, initialised from a seed."""
    library = llm_library("transformers", "an OPT model")
    _, pad, text, _ = (tokenizer.token_to_id(token) for token in SPECIAL)
    config = library.OPTConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=size.width,
        word_embed_proj_dim=size.width,
        ffn_dim=4 * size.width,
        num_hidden_layers=size.depth,
        num_attention_heads=size.heads,
        max_position_embeddings=size.context,
        dropout=0.0,
        pad_token_id=pad,
        bos_token_id=text,
        eos_token_id=text,
        architectures=["OPTForCausalLM"],
        dtype="float32",
    )
    from decomfl_lab.models.registry import initialising

    with initialising(seed):
        model: nn.Module = library.OPTForCausalLM(config)
    return model.eval()


SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
"""OPT's special tokens, ids 0 to 3; ``</s>`` begins every text."""
