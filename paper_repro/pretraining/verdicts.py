"""Film reviews that say what they think of the film, line by line: so that a small language model knows some sentiment.

    prompt: a line of a review, then " The film is";    answer: " good" or " bad", as the whole review is

No task asks in these words (SST-2 has " It was"), and the reviews (IMDb) are not the source of any.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from decomfl_lab.errors import require
from decomfl_lab.language.causal import Verbalized
from decomfl_lab.language.encoding import encode
from decomfl_lab.language.opt import SPECIAL
from paper_repro.pretraining.corpus import Corpus, Line

__all__ = ["Verdicts"]

PROMPT = "{} The film is"
ANSWERS = (" bad", " good")
MAX_LENGTH = 40  # the last tokens of a prompt that are kept, or as many as the model reads
BATCH = 64
EVALUATED = 1000  # lines that a step draws, and lines of held-out reviews, evenly chosen, that the accuracy is of


class _Tokens:
    """A ``tokenizers.Tokenizer``, as ``encode`` wants one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.pad: int = tokenizer.token_to_id(SPECIAL[1])

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids


class Verdicts:
    """The lines of a corpus's film reviews, for a model to tell their sentiment."""

    def __init__(self, corpus: Corpus, tokenizer: Any, model: Any) -> None:
        """Encode them.

        Args:
            corpus: Has the reviews.
            tokenizer: A ``tokenizers.Tokenizer``, the model's.
            model: A causal LM of transformers, used as it is at the time.

        Raises:
            InputError: If the corpus has no film reviews.
        """
        require(len(corpus.held_out_reviews) > 0, "verdicts", "be 0 for a text without film reviews", corpus.source)
        self._tokens = _Tokens(tokenizer)
        answers = tuple(self._tokens.encode(word)[-1] for word in ANSWERS)
        self._answers = Verbalized(model, answers, self._tokens.pad)
        self._longest = min(MAX_LENGTH, int(model.config.max_position_embeddings))
        self._train = self._encoded(corpus.reviews)
        self._held_out = self._encoded(corpus.held_out_reviews[:: -(-len(corpus.held_out_reviews) // EVALUATED)])

    def _encoded(self, lines: tuple[Line, ...]) -> tuple[Tensor, Tensor]:
        ids = encode([PROMPT.format(line) for line, _ in lines], self._tokens, max_length=self._longest)
        return ids, torch.tensor([int(favourable) for _, favourable in lines])

    def loss(self, rng: np.random.Generator) -> Tensor:
        """Mean of −log p(answer | prompt, one of the two answers) over ``BATCH`` lines that ``rng`` draws."""
        ids, favourable = self._train
        chosen = torch.from_numpy(rng.integers(0, len(ids), BATCH))
        return cross_entropy(self._answers(ids[chosen]), favourable[chosen])

    @torch.no_grad()
    def accuracy(self) -> float:
        """How often the right answer is the more probable of the two, on lines of held-out reviews."""
        ids, favourable = self._held_out
        said = torch.cat([self._answers(part).argmax(1) for part in ids.split(BATCH)])
        return float((said == favourable).float().mean())
