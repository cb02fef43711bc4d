"""Film reviews that say what they think of the film, line by line: so that a small language model knows some sentiment.

    prompt: a line of a review, then " The film is";    answer: " good" or " bad", as the whole review is

No task asks in these words (SST-2 has " It was"), and the reviews (IMDb) are not the source of any.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.errors import require
from decomfl_lab.llm.corpus import SPECIAL, Corpus, Line
from decomfl_lab.llm.encoding import encode

__all__ = ["Verdicts"]

PROMPT = "{} The film is"
ANSWERS = (" bad", " good")
MAX_LENGTH = 40
"""The last tokens of a prompt that are kept."""
BATCH = 64
EVALUATED = 1000
"""Lines that a step draws, and lines of held-out reviews, evenly chosen, that the accuracy is of."""


class _Tokens:
    """A ``tokenizers.Tokenizer``, as ``encode`` wants one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.pad: int = tokenizer.token_to_id(SPECIAL[1])

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids


class Verdicts:
    """The lines of a corpus's film reviews, ready for a model with this tokenizer."""

    def __init__(self, corpus: Corpus, tokenizer: Any) -> None:
        """Encode them.

        Raises:
            InputError: If the corpus has no film reviews.
        """
        require(len(corpus.held_out_reviews) > 0, "verdicts", "be 0 for a text without film reviews", corpus.source)
        self._tokens = _Tokens(tokenizer)
        self._answers = torch.tensor([self._tokens.encode(word)[-1] for word in ANSWERS])
        self._train = self._encoded(corpus.reviews)
        self._held_out = self._encoded(corpus.held_out_reviews[:: -(-len(corpus.held_out_reviews) // EVALUATED)])

    def _encoded(self, lines: tuple[Line, ...]) -> tuple[Tensor, Tensor]:
        ids = encode([PROMPT.format(line) for line, _ in lines], self._tokens, max_length=MAX_LENGTH)
        return ids, torch.tensor([int(favourable) for _, favourable in lines])

    def loss(self, model: nn.Module, rng: np.random.Generator) -> Tensor:
        """Mean of −log p(answer | prompt) over ``BATCH`` lines that ``rng`` draws; p over the whole vocabulary."""
        ids, favourable = self._train
        chosen = torch.from_numpy(rng.integers(0, len(ids), BATCH))
        return cross_entropy(self._logits(model, ids[chosen]), self._answers[favourable[chosen]])

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """How often the right answer is the more probable of the two, on lines of held-out reviews."""
        ids, favourable = self._held_out
        said = torch.cat([self._logits(model, part)[:, self._answers].argmax(1) for part in ids.split(64)])
        return float((said == favourable).float().mean())

    def _logits(self, model: Any, ids: Tensor) -> Tensor:
        """Of the token after each prompt, (N, vocabulary)."""
        used = ids != self._tokens.pad
        ids, used = (part[:, int(used.any(0).int().argmax()) :] for part in (ids, used))
        hidden = model.base_model(input_ids=ids, attention_mask=used.long(), use_cache=False).last_hidden_state[:, -1]
        logits: Tensor = model.get_output_embeddings()(hidden)
        return logits
