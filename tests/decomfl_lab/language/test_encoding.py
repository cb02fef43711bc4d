"""Prompts as token numbers: padded on the left, cut on the left, refused where they do not fit."""

from __future__ import annotations

import pytest
import torch

from decomfl_lab.errors import InputError
from decomfl_lab.language.encoding import encode
from tests.decomfl_lab.language.toy import FIRST, PAD, ToyTokens

TOKENS = ToyTokens()


def _words(text: str) -> list[int]:
    return TOKENS.encode(text)[1:]


def test_prompts_end_in_the_last_column() -> None:
    ids = encode(["one two three", "four"], TOKENS, max_length=9)
    expected = [[FIRST, *_words("one two three")], [PAD, PAD, FIRST, *_words("four")]]
    assert torch.equal(ids, torch.tensor(expected))
    assert ids.dtype == torch.int64


def test_a_prompt_that_may_not_be_cut_is_named() -> None:
    assert encode(["one two", "one two three"], TOKENS, max_length=4, truncate=False).shape == (2, 4)
    with pytest.raises(InputError, match="prompt 1 must fit the model's context of 3 tokens .*, got 4 tokens"):
        encode(["one two", "one two three"], TOKENS, max_length=3, truncate=False)
