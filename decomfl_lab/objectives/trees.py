"""Trees of tensors: what a user's batches, and the outputs of a user's module, consist of."""

from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError, require

Batch = tuple[Any, Any]
"""(inputs, targets), trees of tensors; targets are None where the inputs are all that a loss of (model, batch) gets."""


def mapped(function: Callable[[Any], Tensor], tree: Any, kind: Any = Tensor) -> Any:
    """The tree with every tensor, or value of that kind, replaced; what is no tuple, list or mapping either stays."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: mapped(function, value, kind) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        values = tuple(mapped(function, value, kind) for value in tree)
        return type(tree)(*values) if hasattr(tree, "_fields") else values
    return tree


class Foreign(metaclass=ABCMeta):  # noqa: B024
    """Numbers of another library: tables, which give them by ``to_numpy``, and sparse matrices."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        table = hasattr(other, "to_numpy") and hasattr(other, "__array__")
        return table or (hasattr(other, "toarray") and hasattr(other, "tocsr"))


LEAVES = (Tensor, np.ndarray, Foreign)
"""What a user may give for a tensor."""


def torch_tree(tree: Any, name: str = "arrays") -> Any:
    """The tree with arrays and tables as tensors, which share the memory of arrays where that can be written to.

    Arrays of the other byte order are turned, and unsigned numbers of more than 8 bits are int64. InputError, which
    calls the tree by its name, where elements are masked or no numbers, beyond int64, or in a sparse matrix.
    """

    def tensor_of(value: Any) -> Tensor:
        tensor = value
        if not isinstance(value, Tensor):
            array = _array(name, value)
            plain = array.flags.writeable and min(array.strides, default=0) >= 0
            tensor = torch.as_tensor(array if plain else array.copy())
        if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):  # which few of torch's functions take
            tensor = tensor.to(torch.int64)
            require(bool((tensor >= 0).all()), f"whole numbers of {name}", "fit into int64", str(value.dtype))
        return tensor  # type: ignore[no-any-return]

    return mapped(tensor_of, tree, (*LEAVES, np.generic))


def _array(name: str, value: Any) -> NDArray[Any]:
    """The numbers of an array or a table, in the byte order of this machine; InputError if there are others."""
    require(not hasattr(value, "toarray"), name, "be dense: give its .toarray()", type(value).__name__)
    array: NDArray[Any] = np.asanyarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    columns = getattr(value, "columns", ())
    if array.dtype == object and len(columns):  # of several kinds, as numbers beside true and false
        return np.column_stack([_array(f"column {column!r} of {name}", value[column]) for column in columns])
    # Torch has no longer ones. Whole numbers of pandas of which some are missing come as floating-point ones.
    fine = array.dtype.kind in "biufc" and array.dtype.itemsize <= (16 if array.dtype.kind == "c" else 8)
    lacks = array.dtype.kind == "f" and str(getattr(value, "dtype", "")).lstrip("U").startswith("Int")
    rule = (
        "be numbers, none missing: astype('float64') makes them of objects and longer ones, of words and categories "
        "give codes, of a structured array its fields by np.stack"
    )
    require(fine and not lacks, name, rule, f"{np.isnan(array).sum()} missing" if fine else str(array.dtype))
    if isinstance(array, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(array)
        first = int(np.argwhere(hidden)[0][0]) if hidden.any() and hidden.ndim else 0
        got = f"{hidden.sum()} of {hidden.size} masked, the first in example {first}"
        require(not hidden.any(), name, "have no masked elements (fill them by filled(0.0), or leave them out)", got)
        array = array.data
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def tensors(tree: Any, kind: Any = Tensor) -> Iterator[Tensor]:
    """The tensors of a tree, or values of that kind, in their order."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, Mapping | tuple | list):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors(value, kind)


def rows(tree: Any, chosen: Any) -> Any:
    """The tree with some of the examples, by an index or a slice of the first dimension of every tensor."""
    return mapped(itemgetter(chosen), tree)


def row_count(tree: Any) -> int | None:
    """The number of examples, if every tensor has as many in its first dimension; else None."""
    counts = {tensor.shape[0] if tensor.ndim else None for tensor in tensors(tree)}
    return counts.pop() if len(counts) == 1 else None


def joined(trees: Sequence[Any]) -> Any:
    """Trees of the same form as one, their tensors one after the other.

    RuntimeError, ValueError, KeyError or TypeError if they differ in more than their first dimension.
    """
    first = trees[0]
    if len(trees) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if isinstance(first, Mapping):
        return {key: joined([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple | list):
        values = tuple(joined(parts) for parts in zip(*trees, strict=True))
        return type(first)(*values) if hasattr(first, "_fields") else values
    if any(type(tree) is not type(first) or tree != first for tree in trees):
        kinds = ", ".join(sorted({repr(tree)[:40] for tree in trees})[:3])
        raise InputError(f"what is no tensor must be the same in all batches that are put together, got {kinds}")
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
