"""English text to pretrain small language models on, and a byte-level vocabulary for it.

With DECOMFL_DATA set the text is that of ``$DECOMFL_DATA/corpus``: film reviews (IMDb), addresses of presidents,
WikiText-2's validation and test parts, Tiny Shakespeare; 14 MB. None of it is the source of SST (Rotten Tomatoes).
Without it the text is the language reference that ships with Python, which no task resembles.

The film reviews are known to be favourable or not, so each of their lines comes with a sentiment, which a small
language model learns to tell.

    prompt: a line of a review, then " The film is";    answer: " good" or " bad", as the whole review is

No task asks in these words (SST-2 has " It was"), and the reviews (IMDb) are not the source of any.
"""

import gzip
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import TEXT, WRITTEN, documentation, read_checked
from decomfl_lab.errors import require
from decomfl_lab.language.causal_model import Verbalized
from decomfl_lab.language.extra import llm_library
from decomfl_lab.language.finetuning import encode
from decomfl_lab.language.opt import SPECIAL

CORPUS: dict[str, str] = WRITTEN["corpus"]["files"] | TEXT
"""File name under ``$DECOMFL_DATA/corpus``: sha256."""

REVIEWS = "movie_reviews.txt.gz"
UNFAVOURABLE = 1000
"""The file of film reviews, separated by empty lines; this many unfavourable ones come first, then the favourable."""

PIECE = 1 << 14
HELD_OUT = 20  # characters that a piece of the text has at least; it ends with a line, and one in this many is held out


T = TypeVar("T")
Line = tuple[str, bool]  # a line of a film review, and whether the review is favourable


@dataclass(frozen=True)
class Corpus:
    """Text in pieces."""

    train: tuple[str, ...]  # pieces in the order of the text
    held_out: tuple[str, ...]  # pieces from all parts of the text that are not trained on
    source: str  # one line: which text it is
    digest: str  # hex digest of its bytes
    # (line, whether its review is favourable) for every line of the film reviews; none where there are no reviews
    reviews: tuple[Line, ...] = ()
    # the same for every ``HELD_OUT``-th review, whose lines are not among the others
    held_out_reviews: tuple[Line, ...] = ()


def load_corpus() -> Corpus:
    """The text that is available here; InputError if a file of ``$DECOMFL_DATA/corpus`` is missing or altered."""
    users = os.environ.get("DECOMFL_DATA")
    if users:
        folder = Path(users) / "corpus"
        contents = {file: read_checked(folder, file, sha256) for file, sha256 in CORPUS.items()}
        files = {file: gzip.decompress(c) if file.endswith(".gz") else c for file, c in contents.items()}
        texts = list(files.values())
        films = files.get(REVIEWS, b"").decode("utf-8", "replace").split("\n\n")
        lines = [[line.strip() for line in review.split("\n") if line.strip()] for review in films]
        reviews = [[(line, n >= UNFAVOURABLE) for line in review] for n, review in enumerate(filter(None, lines))]
        source = f"{', '.join(file.split('.')[0] for file in CORPUS)}, from DECOMFL_DATA"
    else:
        text, source = documentation()
        texts, reviews = [text], []
    pieces = []
    for content in texts:
        whole = content.decode("utf-8", "replace")
        first = 0
        while first < len(whole):
            last = whole.find("\n", first + PIECE) + 1 or len(whole)
            pieces.append(whole[first:last])
            first = last
    train, held_out = _split(pieces)
    of_train, of_held_out = (tuple(line for review in part for line in review) for part in _split(reviews))
    size = sum(map(len, texts)) / 1e6
    digest = hashlib.sha256(b"".join(texts)).hexdigest()[:16]
    source = f"{source}: {size:.1f} MB of text, a {HELD_OUT}th of it held out"
    return Corpus(train, held_out, source, digest, of_train, of_held_out)


def _split(items: Sequence[T]) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """What is trained on, and every ``HELD_OUT``-th, which is held out."""
    last = HELD_OUT - 1
    return tuple(item for n, item in enumerate(items) if n % HELD_OUT != last), tuple(items[last::HELD_OUT])


def train_vocabulary(corpus: Corpus, size: int) -> Any:
    """A byte-level BPE of ``size`` tokens, merges by frequency in the training part; the same text, the same tokens.

    It is a ``tokenizers.Tokenizer``, ids 0 to 3 the ``SPECIAL`` tokens; InputError if the text has too few pairs.

    Source: Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.2.
    """
    library = llm_library("tokenizers", "a vocabulary")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.train, trainer)
    tokens = tokenizer.get_vocab_size()
    require(tokens == size, "vocabulary", f"be at most the {tokens} tokens that the text has merges for", size)
    # As OPT's does, it puts </s> before every text.
    first = "</s>"
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single=f"{first} $A", special_tokens=[(first, tokenizer.token_to_id(first))]
    )
    return tokenizer


# --- the sentiment of reviews -----------------------------------------------------------------------------------------

PROMPT = "{} The film is"
ANSWERS = (" bad", " good")
MAX_LENGTH = 40  # the last tokens of a prompt that are kept, or as many as the model reads
BATCH = 64
EVALUATED = 1000  # lines that a step draws, and lines of held-out reviews, evenly chosen, that the accuracy is of


class Verdicts:
    """The lines of a corpus's film reviews, for a model to tell their sentiment."""

    def __init__(self, corpus: Corpus, tokenizer: Any, model: Any) -> None:
        """Encode them by a ``tokenizers.Tokenizer`` for its causal LM as it is then; InputError for no film reviews."""
        require(len(corpus.held_out_reviews) > 0, "verdicts", "be 0 for a text without film reviews", corpus.source)
        self._tokens: Any = SimpleNamespace(
            pad=tokenizer.token_to_id(SPECIAL[1]), encode=lambda text: tokenizer.encode(text).ids
        )
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
        answers = torch.cat([self._answers(part).argmax(1) for part in ids.split(BATCH)])
        return float((answers == favourable).float().mean())
