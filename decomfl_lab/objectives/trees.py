"""Trees of tensors: what a user's batches, and the outputs of a user's module, consist of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError

__all__ = ["Batch", "feed", "joined", "mapped", "row_count", "rows", "shape_of", "tensors", "torch_tree"]

Batch = tuple[Any, Any]
"""(inputs, targets), trees of tensors; targets are None where the inputs are all that a loss of (model, batch) gets."""


def mapped(function: Callable[[Any], Tensor], tree: Any, kind: Any = Tensor) -> Any:
    """The tree with every tensor, or value of that kind, replaced; what is no tuple, list or mapping either stays."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: mapped(function, value, kind) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):  # a named one
        return type(tree)(*(mapped(function, value, kind) for value in tree))
    if isinstance(tree, tuple | list):
        return tuple(mapped(function, value, kind) for value in tree)
    return tree


def torch_tree(tree: Any) -> Any:
    """The tree with numpy's arrays as tensors, which share their memory where that can be written to."""

    def as_tensor(array: NDArray[Any] | np.generic) -> Tensor:
        plain = isinstance(array, np.generic) or (array.flags.writeable and min(array.strides, default=0) >= 0)
        return torch.as_tensor(array if plain else array.copy())

    return mapped(as_tensor, tree, np.ndarray | np.generic)


def tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree, in their order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping | tuple | list):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors(value)


def rows(tree: Any, chosen: Any) -> Any:
    """The tree with some of the examples, by an index or a slice of the first dimension of every tensor."""
    return mapped(itemgetter(chosen), tree)


def row_count(tree: Any) -> int | None:
    """The number of examples, if every tensor has as many in its first dimension; else None."""
    counts = {tensor.shape[0] if tensor.ndim else None for tensor in tensors(tree)}
    return counts.pop() if len(counts) == 1 else None


def joined(trees: Sequence[Any]) -> Any:
    """Trees of the same form as one, their tensors one after the other.

    Raises:
        RuntimeError, ValueError, KeyError or TypeError: If they differ in more than their first dimension.
    """
    first = trees[0]
    if len(trees) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if isinstance(first, Mapping):
        return {key: joined([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(joined(parts) for parts in zip(*trees, strict=True)))
    if isinstance(first, tuple | list):
        return tuple(joined(parts) for parts in zip(*trees, strict=True))
    if any(type(tree) is not type(first) or tree != first for tree in trees):
        told = ", ".join(sorted({repr(tree)[:40] for tree in trees})[:3])
        raise InputError(f"what is no tensor must be the same in all batches that are put together, got {told}")
    return first


def feed(h: Any, tensor: Tensor) -> None:
    """Feed a tensor's shape, dtype and bytes to the hash ``h``."""
    h.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
    h.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())


def shape_of(tree: Any) -> Any:
    """What examples need in common to be joined: the tree with the shape of a row of each tensor, and its dtype."""
    if isinstance(tree, Tensor):
        return tuple(tree.shape[1:]), str(tree.dtype).removeprefix("torch.")
    if isinstance(tree, Mapping):
        return {key: shape_of(value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(map(shape_of, tree))
    return type(tree).__name__
