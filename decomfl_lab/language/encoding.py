"""Prompts as token numbers, padded on the left so that every prompt's last token stands in the last column.

    ids[n] = (pad, ..., pad, first, ..., last)

The answer is not part of them: the loss is that of the token after the last one.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.language.tasks import Task


class Tokens(Protocol):
    """A tokenizer."""

    @property
    def pad(self) -> int:
        """The number that fills up; no text has it."""

    def encode(self, text: str) -> list[int]:
        """The token numbers of a text, with those special ones that the model expects around it."""


def encode(prompts: Sequence[str], tokenizer: Tokens, *, max_length: int, truncate: bool = True) -> Tensor:
    """The prompts' token numbers.

    Args:
        prompts: The N prompts.
        tokenizer: The model's tokenizer.
        max_length: The most tokens that a prompt may have.
        truncate: Keep the last ``max_length`` tokens of a longer prompt (so the first, special ones go) or refuse it.

    Returns:
        ids, (N, T) int64, T the length of the longest prompt.

    Raises:
        InputError: If there are no prompts, one is empty or too long (with its index and length), or has the padding
            token in it.
    """
    require_int("max_length", max_length, 1)
    require(len(prompts) > 0, "prompts", "be at least one", 0)
    rows = []
    for n, prompt in enumerate(prompts):
        row = tokenizer.encode(prompt)
        require(len(row) > 0, f"prompt {n}", "have at least one token", prompt)
        if len(row) > max_length and not truncate:
            rule = f"fit the model's context of {max_length} tokens (a max_length of at most that cuts longer prompts)"
            raise InputError(f"prompt {n} must {rule}, got {len(row)} tokens")
        rows.append(row[-max_length:])
        require(tokenizer.pad not in rows[-1], f"prompt {n}", f"be free of the padding token {tokenizer.pad}", prompt)
    longest = max(map(len, rows))
    return torch.tensor([[tokenizer.pad] * (longest - len(row)) + row for row in rows])


def verbalizer_ids(task: Task, tokenizer: Tokens) -> tuple[int, ...]:
    """The token that stands for each class: the last one of its verbalizer.

    Raises:
        InputError: If two classes have the same.
    """
    ids = tuple(tokenizer.encode(word)[-1] for word in task.verbalizers)
    rule = f"end with different tokens for {', '.join(map(repr, task.verbalizers))}"
    require(len(set(ids)) == len(ids), f"verbalizers of task {task.name}", rule, ids)
    return ids


def by_length(ids: Tensor, pad: int) -> Tensor:
    """The order of prompts (N, T) by length: those that pass together cost what the longest of them does."""
    return (ids != pad).sum(1).argsort(stable=True).cpu()
