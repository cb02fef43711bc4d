"""A user's own data: clients with examples of their own, or examples that a split deals out."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.datasets.batches import one_batch, tell_draws
from decomfl_lab.datasets.images import Dataset
from decomfl_lab.errors import InputError, plural, require, require_int
from decomfl_lab.objectives.trees import LEAVES, Batch, joined, mapped, row_count, rows, shape_of, tensors
from decomfl_lab.plugins import OWN


def examples(name: str, data: Any, *, whole: bool = False, draw: int = 0) -> Batch:
    """(inputs, targets) of all examples that a client, or a test, was given as (see ``datasets.batches``).

    They are read once, in their order; a loader that shuffles has the same one each time. InputError if they are
    something else, empty, not finite, or not as many inputs as targets.
    """
    batch = one_batch(name, data, whole=whole, draw=draw)
    for what, tree in (("inputs", batch[0]), ("targets", batch[1])):
        for values in tensors(tree):
            require(not values.is_meta, f"{what} of {name}", "have values, and not be on the meta device", "meta")
            try:
                broken = (~values.isfinite()).nonzero()
            except RuntimeError as error:  # quantised numbers, say
                raise InputError(
                    f"{what} of {name} must be of a dtype that has isfinite, got {values.dtype}"
                ) from error
            if len(broken):
                place = tuple(broken[0].tolist())
                require(False, f"{what} of example {place[0]} of {name}", "be finite numbers", float(values[place]))
    return batch


def own_dataset(
    clients: Sequence[Any], test: Any = None, *, whole: bool = False, redraw: int = 1, only: str = ""
) -> Dataset:
    """The data set of clients who bring their own examples, of the same shapes, as ``examples`` takes them.

    Their examples are drawn ``redraw`` times, as many each time, and the held-out ones of ``test`` once. An error calls
    clients by their numbers, or the one client there is by the name ``only``. InputError if there are no clients, or
    examples do not fit together.
    """
    listed = isinstance(clients, Sequence) and not isinstance(clients, str) and len(clients) > 0
    require(listed, "clients", "be a list with the examples of one client at least", clients)
    one = isinstance(clients, tuple) and all(isinstance(value, LEAVES) for value in clients)
    kinds = tuple(type(value).__name__ for value in clients) if one else clients
    require(not one, "clients", "be a list with the examples of each client: of one client [(inputs, targets)]", kinds)
    named = {only or f"client {i}": data for i, data in enumerate(clients)}
    M, draws = len(clients), range(require_int("redraw", redraw, 1))
    pairs = [examples(name, data, whole=whole, draw=draw) for draw in draws for name, data in named.items()]
    counts = [row_count(pair) or 0 for pair in pairs]
    require(counts == counts[:M] * redraw, "clients", "have as many examples in every draw", counts)
    usual, *_ = counted = Counter(_form(pair) for pair in pairs).most_common()
    if len(counted) > 1:
        i, other = next((i % M, _form(pair)) for i, pair in enumerate(pairs) if _form(pair) != usual[0])
        raise InputError(
            f"clients must have inputs and targets of the same shapes and types, got client {i} with {other}, where "
            f"{plural(usual[1], 'other')} {'have' if usual[1] > 1 else 'has'} {usual[0]}"
        )
    inputs, targets = joined(pairs)
    held = mapped(lambda tensor: tensor[:0], pairs[0]) if test is None else examples("test", test, whole=whole)
    if redraw == 1:
        tell_draws(named | {"test": test})
    ends = np.cumsum([0, *counts[:M]])
    classes = isinstance(targets, Tensor) and not targets.is_floating_point() and targets.ndim == 1
    return Dataset(
        name=OWN,
        train_images=inputs,
        train_labels=targets,
        test_images=held[0],
        test_labels=held[1],
        classes=int(targets.max()) + 1 if classes else 0,
        source=f"own data: {ends[-1]:,} examples of {plural(M, 'client')}, {row_count(held):,} held out",
        digest=_digest(ends, (inputs, targets, *held)),
        parts=[np.arange(a, b) for a, b in pairwise(ends)],
        redraw=redraw,
    )


def _form(batch: Batch) -> str:
    """The shapes and types of an example, in words: what clients must have in common."""
    return " and ".join(
        f"{what} {_words(shape_of(tree))}" for what, tree in zip(("input", "target"), batch, strict=True)
    )


def _words(form: Any) -> str:
    """What ``shape_of`` says of a tree, in words."""
    if isinstance(form, dict):
        return f"{{{', '.join(f'{key}: {_words(value)}' for key, value in form.items())}}}"
    if not isinstance(form, tuple):
        return str(form)
    if len(form) == 2 and isinstance(form[1], str) and all(isinstance(size, int) for size in form[0]):
        shape, dtype = form
        return f"of shape {shape} ({dtype})" if shape else f"a single {dtype}"
    return f"({', '.join(map(_words, form))})"


def _digest(ends: NDArray[np.int64], tree: Any) -> str:
    """The digest of clients' examples, which end at ``ends``, and of those held out."""
    digest = hashlib.sha256(ends.tobytes())
    for tensor in tensors(tree):
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()[:16]


def first_clients(dataset: Dataset, M: int) -> Dataset | None:
    """The data of the first M clients, as ``own_dataset`` makes them; None if the data were not made by that."""
    train = dataset.train_images, dataset.train_labels
    held = dataset.test_images, dataset.test_labels
    ends = np.cumsum([0, *map(len, dataset.parts or ())])
    if dataset.parts is None or dataset.digest != _digest(ends, (*train, *held)):
        return None
    first = [rows(train, slice(start, start + ends[M])) for start in dataset.N * np.arange(dataset.redraw)]
    inputs, targets = joined(first)
    digest = _digest(ends[: M + 1], (inputs, targets, *held))
    return replace(dataset, train_images=inputs, train_labels=targets, digest=digest, parts=dataset.parts[:M])


def data_of(found: Any, *, whole: bool = False, redraw: int = 1) -> Dataset:
    """The data set of what a user's function gave.

        [client, client, ...]       clients with examples of their own
        examples                    all examples together, which a run's split deals to its clients
        (one of these, test)        beside held-out examples

    Each of client, examples and test is what ``examples`` takes; a ``Dataset`` is taken as it is. InputError if it is
    something else, or examples do not fit together.
    """
    if isinstance(found, Dataset):
        return found
    test = None
    if isinstance(found, tuple) and len(found) == 2 and not isinstance(found[0], LEAVES):
        found, test = found
    if isinstance(found, list):
        return own_dataset(found, test, whole=whole, redraw=redraw)
    dealt = own_dataset([found], test, whole=whole, redraw=redraw, only="data")
    return replace(dealt, parts=None, source=dealt.source.replace(" of 1 client,", ","))
