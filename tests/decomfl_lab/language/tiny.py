"""Causal language models small enough for tests, initialised from a seed; nothing pretrained is needed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decomfl_lab.errors import InputError
from decomfl_lab.language.causal_model import Verbalized
from decomfl_lab.language.extra import llm_library

V, PAD = 97, 1
ARCHITECTURES = ("opt", "opt-narrow", "llama", "llama-untied", "gpt2", "neox")
TIED = ("opt", "opt-narrow", "llama", "gpt2")


def transformers() -> Any:
    """The library; the test is skipped where it is not."""
    try:
        return llm_library("transformers", "a test")
    except InputError as error:
        return pytest.skip(str(error))


def tiny(
    kind: str,
    *,
    seed: int = 0,
    width: int = 16,
    depth: int = 2,
    heads: int = 2,
    keys: int = 1,
    vocabulary: int = V,
    tied: bool = True,
) -> nn.Module:
    """A model of the architecture ``kind``, a few thousand parameters; ``keys`` are the heads of keys of "llama"."""
    library = transformers()
    ids = {"vocab_size": vocabulary, "pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": 2}
    opt = {
        "hidden_size": width,
        "ffn_dim": 4 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "max_position_embeddings": 40,
    }
    llama = {k: v for k, v in opt.items() if k != "ffn_dim"} | {"intermediate_size": 4 * width}
    configs: dict[str, Any] = {
        "opt": lambda: library.OPTConfig(**ids, **opt, word_embed_proj_dim=width, tie_word_embeddings=tied),
        "opt-narrow": lambda: library.OPTConfig(  # as opt-350m is
            **ids, **opt, word_embed_proj_dim=width // 2, do_layer_norm_before=False
        ),
        "llama": lambda: library.LlamaConfig(**ids, **llama, num_key_value_heads=keys, tie_word_embeddings=True),
        "llama-untied": lambda: library.LlamaConfig(**ids, **llama, tie_word_embeddings=False),
        "gpt2": lambda: library.GPT2Config(**ids, n_embd=width, n_layer=depth, n_head=2, n_positions=40),
        "neox": lambda: library.GPTNeoXConfig(**ids, **llama, tie_word_embeddings=False),
    }
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module: nn.Module = library.AutoModelForCausalLM.from_config(configs[kind]())
    return module.eval()


def prompts(n: int, length: int, *, seed: int = 0, padded: bool = True) -> Tensor:
    """Random prompts (n, length), left padded to different lengths."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, V, (n, length), generator=generator)
    for row in range(n if padded else 0):
        ids[row, : (row * 2) % (length - 1)] = PAD
    return ids


def answers(kind: str, **options: Any) -> Verbalized:
    """The two-class module over ``tiny``."""
    return Verbalized(tiny(kind, **options), (7, 30), PAD)


def save_tokenizer(folder: Path, **special: str) -> None:
    """Write a tokenizer of seven words; ``</s>`` comes first."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: n for n, word in enumerate(["<unk>", "<pad>", "</s>", "it", "was", "good", "bad"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("</s> $A", special_tokens=[("</s>", 2)])
    transformers().PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def save_opt(folder: Path, *, seed: int = 0) -> Path:
    """Save a model of the architecture "opt" with its tokenizer."""
    tiny("opt", seed=seed).save_pretrained(folder)  # type: ignore[operator]
    save_tokenizer(folder, pad_token="<pad>")
    return folder
