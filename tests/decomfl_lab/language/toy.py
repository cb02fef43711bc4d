"""A causal language model of a few hundred parameters and a tokenizer of words, without the extra llm."""

import hashlib
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decomfl_lab.language import finetuning, tasks

WORDS = 61
PAD, FIRST = 0, 1


class ToyTokens:
    """A word's number is a hash of it; every text begins with FIRST."""

    pad = PAD

    def encode(self, text: str) -> list[int]:
        return [FIRST, *(2 + zlib.crc32(word.encode()) % (WORDS - 2) for word in text.split())]


class _Base(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.mix = nn.Linear(width, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> SimpleNamespace:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        seen = (self.embedding(input_ids) * mask[..., None]).cumsum(1) / mask.cumsum(1).clamp(min=1)[..., None]
        return SimpleNamespace(last_hidden_state=seen + torch.tanh(self.mix(seen)))


class ToyLM(nn.Module):
    """The mean of the words so far, mixed, times the output embedding: shaped like the models of transformers."""

    def __init__(self, seed: int = 0, width: int = 12) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.base_model = _Base(width)
            self.head = nn.Linear(width, WORDS, bias=False)

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def forward(self, input_ids: Tensor, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(self.base_model(input_ids, **options).last_hidden_state))


def toy_causal(source: str = "toy", *, context: int = 64) -> SimpleNamespace:
    """What ``load_causal`` would give."""
    return SimpleNamespace(module=ToyLM(), tokenizer=ToyTokens(), context=context, source=f"toy {source}")


def write_sst2(folder: Path, *, copies: int = 20) -> Path:
    """A tiny SST-2 in the hub's layout: films of four kinds, each of one opinion."""
    kinds = [("a warm tale", 1), ("so very dull", 0), ("fine work indeed by all", 1), ("no plot", 0)]
    folder.mkdir(parents=True, exist_ok=True)
    for name, repeats in (("train.tsv", copies), ("validation.tsv", 5)):
        rows = [f"{text} number {n} \t{label}" for n in range(repeats) for text, label in kinds]
        (folder / name).write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


def put_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are for a model of a few hundred parameters whatever its name."""
    monkeypatch.setattr(finetuning, "load_causal", toy_causal)


def toy_sst2(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny SST-2 under DECOMFL_DATA, and a model of a few hundred parameters whatever its name."""
    folder = write_sst2(data / "sst2")
    (folder / "validation.tsv").rename(folder / "dev.tsv")
    sums = [{file: hashlib.sha256((folder / file).read_bytes()).hexdigest()} for file in ("train.tsv", "dev.tsv")]
    monkeypatch.setitem(tasks.TASKS, "sst2", replace(tasks.TASKS["sst2"], files=tasks.TaskFiles(*sums)))
    monkeypatch.setenv("DECOMFL_DATA", str(data))
    put_toy(monkeypatch)
