"""Text as data: the bytes of a corpus, cut into sequences whose targets are the bytes that follow."""

import platform
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.errors import require, require_int

LENGTH = 128
"""Bytes of a sequence."""


def documentation() -> tuple[bytes, str]:
    """The reference manual that ships with every CPython (``help("topics")``), and what it is: English, 0.5 MB."""
    return "\n".join(topics[name] for name in sorted(topics)).encode(), (
        f"embedded: the language reference that ships with Python {platform.python_version()}"
    )


def next_bytes(text: bytes, length: int = LENGTH) -> tuple[Tensor, Tensor, bytes]:
    """Cut ``text`` into sequences of ``length`` that follow each other; what is left over at the end is dropped.

        inputs[n, t] = v(text[n·length + t]),    targets[n, t] = v(text[n·length + t + 1])

    with v the place of a byte in the vocabulary.

    Returns:
        inputs and targets, each (N, length) int64, and the vocabulary: the bytes that occur, in order.

    Raises:
        InputError: If the text is too short for one sequence.
    """
    require_int("length", length, 1)
    require(len(text) > length, "text", f"be longer than {length} bytes", len(text))
    vocabulary, places = np.unique(np.frombuffer(text, dtype=np.uint8), return_inverse=True)
    tokens = torch.from_numpy(places.astype(np.int64))
    n = (len(tokens) - 1) // length
    inputs, targets = (tokens[a : a + n * length].view(n, length) for a in (0, 1))
    return inputs.contiguous(), targets.contiguous(), vocabulary.tobytes()
