"""A user's own data: clients as pairs of tensors, as torch data sets, or as data loaders."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.errors import InputError, plural, require, shown
from decomfl_lab.models.registry import initialising
from decomfl_lab.plugins import OWN

__all__ = ["data_of", "examples", "first_clients", "own_dataset"]


def examples(name: str, data: Any) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of all examples: of a pair of tensors or arrays, a torch data set or a data loader.

    Args:
        name: What the data are called in an error.
        data: They are read once, in their order; a loader that shuffles has the same one each time.

    Raises:
        InputError: If they are something else, empty, not finite, or not as many inputs as targets.
    """
    bare = isinstance(data, tuple | list | Tensor | np.ndarray | str | Mapping)
    rule = f"{name} must be (inputs, targets), a data set or a data loader"
    try:
        if (
            isinstance(data, tuple | list)
            and len(data) == 2
            and all(isinstance(each, Tensor | np.ndarray) for each in data)
        ):
            inputs, targets = (torch.as_tensor(each) for each in data)
        elif isinstance(data, DataLoader):
            with initialising(0):  # a loader that shuffles draws from torch's generator
                batches = [(torch.as_tensor(x), torch.as_tensor(y)) for x, y in data]
            inputs, targets = (torch.cat(each) for each in zip(*batches, strict=True))
        elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not bare:
            pairs = [data[n] for n in range(len(data))]
            inputs, targets = (torch.stack([torch.as_tensor(each) for each in own]) for own in zip(*pairs, strict=True))
        else:
            raise InputError(f"{rule}, got {_kind(data)}")
    except (TypeError, ValueError, KeyError, RuntimeError) as error:  # what is in them is the user's own
        if isinstance(error, InputError):
            raise
        told = f"{_kind(data)} ({type(error).__name__}: {shown(str(error))})"
        raise InputError(f"{rule}, each example of which is a pair of one shape, got {told}") from error
    for what, values in (("inputs", inputs), ("targets", targets)):
        dense = values.ndim > 0 and values.layout == torch.strided and not values.is_meta
        require(dense, f"{what} of {name}", "be a dense tensor, one row an example", values)
    sizes = len(inputs), len(targets)
    require(sizes[0] == sizes[1] > 0, name, "have as many inputs as targets, and one at least", sizes)
    for what, values in (("inputs", inputs), ("targets", targets)):
        broken = (~values.isfinite()).nonzero()
        if len(broken):
            at = tuple(broken[0].tolist())
            require(False, f"{what} of example {at[0]} of {name}", "be finite numbers", float(values[at]))
    return inputs, targets


def _kind(data: Any) -> str:
    """What a user gave, by its types."""
    if isinstance(data, tuple):
        return f"({', '.join(type(each).__name__ for each in data)})"
    return type(data).__name__


def own_dataset(clients: Sequence[Any], test: Any = None) -> Dataset:
    """The data set of clients who bring their own examples.

    Args:
        clients: One for each client: (inputs, targets), a data set or a data loader, of the same shapes.
        test: Held-out examples likewise; None for none.

    Raises:
        InputError: If there are no clients, or examples do not fit together.
    """
    listed = isinstance(clients, Sequence) and not isinstance(clients, str) and len(clients) > 0
    require(listed, "clients", "be a list with the examples of one client at least", clients)
    pairs = [examples(f"client {i}", own) for i, own in enumerate(clients)]
    shapes = {(x.shape[1:], x.dtype, y.shape[1:], y.dtype) for x, y in pairs}
    alike = "have inputs and targets of the same shapes and types"
    require(len(shapes) == 1, "clients", alike, sorted(map(str, shapes)))
    inputs, targets = (torch.cat(own) for own in zip(*pairs, strict=True))
    held = (inputs[:0], targets[:0]) if test is None else examples("test", test)
    ends = np.cumsum([0, *(len(y) for _, y in pairs)])
    whole = not targets.is_floating_point() and targets.ndim == 1
    return Dataset(
        name=OWN,
        train_images=inputs,
        train_labels=targets,
        test_images=held[0],
        test_labels=held[1],
        classes=int(targets.max()) + 1 if whole else 0,
        source=f"own data: {len(targets):,} examples of {plural(len(pairs), 'client')}, {len(held[1]):,} held out",
        digest=_digest(ends, (inputs, targets, *held)),
        parts=[np.arange(a, b) for a, b in pairwise(ends)],
    )


def _digest(ends: NDArray[np.int64], tensors: Sequence[Tensor]) -> str:
    """The digest of clients' examples, which end at ``ends``, and of those held out."""
    digest = hashlib.sha256(ends.tobytes())
    for tensor in tensors:
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()[:16]


def first_clients(dataset: Dataset, M: int) -> Dataset | None:
    """The data of the first M clients, as ``own_dataset`` makes them; None if the data were not made by that."""
    held = dataset.test_images, dataset.test_labels
    ends = np.cumsum([0, *map(len, dataset.parts or ())])
    if dataset.parts is None or dataset.digest != _digest(ends, (dataset.train_images, dataset.train_labels, *held)):
        return None
    inputs, targets = dataset.train_images[: ends[M]], dataset.train_labels[: ends[M]]
    return replace(
        dataset,
        train_images=inputs,
        train_labels=targets,
        digest=_digest(ends[: M + 1], (inputs, targets, *held)),
        parts=dataset.parts[:M],
    )


def data_of(found: Any) -> Dataset:
    """The data set of what a user's function gave.

        [client, client, ...]       clients with examples of their own
        examples                    all examples together, which a run's split deals to its clients
        (one of these, test)        beside held-out examples

    Each of client, examples and test is (inputs, targets), a data set or a data loader; a ``Dataset`` is taken as it
    is.

    Raises:
        InputError: If it is something else, or examples do not fit together.
    """
    if isinstance(found, Dataset):
        return found
    test = None
    if isinstance(found, tuple) and len(found) == 2 and not isinstance(found[0], Tensor | np.ndarray):
        found, test = found
    if isinstance(found, list):
        return own_dataset(found, test)
    whole = own_dataset([examples("data", found)], test)
    return replace(whole, parts=None, source=whole.source.replace(" of 1 client,", ","))
