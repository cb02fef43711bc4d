"""A user's own data: clients as pairs of tensors, as torch data sets, or as data loaders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.errors import InputError, require
from decomfl_lab.plugins import OWN

__all__ = ["data_of", "examples", "own_dataset"]


def examples(name: str, data: Any) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of all examples: of a pair of tensors or arrays, a torch data set or a data loader.

    Args:
        name: What the data are called in an error.
        data: They are read once, in their order.

    Raises:
        InputError: If they are something else, empty, not finite, or not as many inputs as targets.
    """
    bare = isinstance(data, tuple | list | Tensor | np.ndarray)
    try:
        if (
            isinstance(data, tuple | list)
            and len(data) == 2
            and all(isinstance(each, Tensor | np.ndarray) for each in data)
        ):
            inputs, targets = (torch.as_tensor(each) for each in data)
        elif isinstance(data, DataLoader):
            batches = [(torch.as_tensor(x), torch.as_tensor(y)) for x, y in data]
            inputs, targets = (torch.cat(each) for each in zip(*batches, strict=True))
        elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not bare:
            pairs = [data[n] for n in range(len(data))]
            inputs, targets = (torch.stack([torch.as_tensor(each) for each in own]) for own in zip(*pairs, strict=True))
        else:
            raise InputError(f"{name} must be (inputs, targets), a data set or a data loader, got {_kind(data)}")
    except TypeError as error:  # of torch, for what is no number
        raise InputError(f"{name} must be pairs of tensors or of arrays of numbers, got others ({error})") from None
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


def own_dataset(clients: Sequence[Any], test: Any = None, *, source: str = "own data") -> Dataset:
    """The data set of clients who bring their own examples.

    Args:
        clients: One for each client: (inputs, targets), a data set or a data loader, of the same shapes.
        test: Held-out examples likewise; None for none.
        source: A line that says what they are.

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
    digest = hashlib.sha256(ends.tobytes())
    for tensor in (inputs, targets, *held):
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data if tensor.numel() else b"")
    whole = not targets.is_floating_point() and targets.ndim == 1
    return Dataset(
        name=OWN,
        train_images=inputs,
        train_labels=targets,
        test_images=held[0],
        test_labels=held[1],
        classes=int(targets.max()) + 1 if whole else 0,
        source=f"{source}: {len(targets):,} examples of {len(pairs):,} clients, {len(held[1]):,} held out",
        digest=digest.hexdigest()[:16],
        parts=[np.arange(a, b) for a, b in pairwise(ends)],
    )


def data_of(found: Any) -> Dataset:
    """What a user's function gave as data: a ``Dataset``, a list of clients, or such a list and held-out examples."""
    if isinstance(found, Dataset):
        return found
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], list):
        return own_dataset(*found)
    require(isinstance(found, list), "data", "be a list of clients, or (clients, test)", type(found).__name__)
    return own_dataset(found)
