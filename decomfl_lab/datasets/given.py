"""What a user may give as data, for training and for curvature alike: examples, as batches (inputs, targets)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from decomfl_lab.errors import THEIRS, InputError, require, shown
from decomfl_lab.models.registry import initialising
from decomfl_lab.objectives.trees import Batch, joined, mapped, row_count, shape_of, tensors, torch_tree

__all__ = ["Data", "Gathered", "batches_of", "one_batch"]


class Gathered(NamedTuple):
    """All examples as one batch (inputs, targets) that is nobody's own cut."""

    inputs: Any
    targets: Any


Data = Iterable[Any] | Dataset[Any] | tuple[Any, Any] | Mapping[str, Any]
"""Batches in a list or a DataLoader; a Dataset of examples; or one batch: a pair (inputs, targets) or a mapping."""

_RULE = "be (inputs, targets), mappings with labels, batches of them in a list or a DataLoader, or a Dataset"


def batches_of(name: str, data: Any, *, whole: bool = False) -> tuple[list[Batch], bool]:
    """The batches of what a user gave.

        (inputs, targets)               one batch; both may be trees, of tensors and numpy's arrays
        {"labels": targets, ...}        one batch of named inputs, as loaders for models of transformers have them
        [batch, batch, ...]             these batches, as they are cut; a DataLoader likewise
        Dataset                         all its examples, as one batch

    A loader that shuffles gives the same batches each time, and leaves torch's global generator as it was.

    Args:
        name: What the data are called in an error.
        data: See above.
        whole: Whether a batch may have any form, as a loss of (model, batch) takes it; a tuple is then one batch.

    Returns:
        The batches, and whether they were cut by the user.

    Raises:
        InputError: If they are something else, or empty.
    """
    if isinstance(data, Gathered):
        return [(data.inputs, data.targets)], False
    if _is_batch(name, data, whole):
        return [_batch(name, data, whole)], False
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return [_of_examples(name, data, whole)], False
    bare = isinstance(data, Tensor | np.ndarray | str | Mapping)
    if not isinstance(data, Iterable) and hasattr(data, "__getitem__") and hasattr(data, "__len__") and not bare:
        return [_of_examples(name, data, whole)], False
    require(isinstance(data, Iterable) and not bare, name, _RULE, _kind(data))
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=250)
    with initialising(0):  # a loader that shuffles draws from torch's generator
        try:
            found = list(data)
        except THEIRS as error:  # what is in them is the user's own
            raise _refusal(name, data, error) from error
    if not found:
        kind = "an empty list" if isinstance(data, list) else f"a {_kind(data)} without any"
        raise InputError(f"{name} must hold at least one batch, got {kind}")
    return [_batch(f"batch {b} of {name}", own, whole) for b, own in enumerate(found)], True


def one_batch(name: str, data: Any, *, whole: bool = False) -> Batch:
    """All examples of ``data`` as one batch; InputError as ``batches_of``, or if batches do not fit together."""
    batches, _ = batches_of(name, data, whole=whole)
    for b, batch in enumerate(batches):
        own = name if len(batches) == 1 else f"batch {b} of {name}"
        counts = [tuple(tensor.shape) for tensor in tensors(batch)]
        count = row_count(batch)
        require(
            count is not None,
            f"tensors of {own}",
            "have as many examples as each other, in their first dimension",
            counts,
        )
        require(count != 0, own, "have at least one example", 0)
    if len(batches) == 1:
        return batches[0]
    alike = {str(shape_of(batch)) for batch in batches}
    rule = "have batches that differ in their first dimension only"
    require(len(alike) == 1, name, rule, sorted(alike))
    inputs, targets = joined(batches)
    return inputs, targets


def _is_leaf(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _is_batch(name: str, data: Any, whole: bool) -> bool:
    """Whether the data are one batch, and not several; InputError where they may be either."""
    if isinstance(data, Mapping):
        return True
    if whole:
        return _is_leaf(data) or isinstance(data, tuple)
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    inputs, targets = data
    either = isinstance(data, tuple) and isinstance(inputs, tuple | list) and isinstance(targets, tuple | list)
    rule = "be in a list: [batch, batch] for two batches, [(inputs, targets)] for one, as two tuples may be either"
    require(not either, name, rule, _kind(data))
    if isinstance(data, list) and isinstance(inputs, Mapping) and isinstance(targets, Mapping):
        return False  # two batches of named inputs
    tree = (
        isinstance(inputs, tuple | list)
        and len(list(tensors(torch_tree(inputs)))) > 0
        and not isinstance(targets, tuple | list)
    )
    return _is_leaf(inputs) or isinstance(inputs, Mapping) or tree


def _batch(name: str, batch: Any, whole: bool) -> Batch:
    """(inputs, targets) of one batch; InputError if it is none."""
    try:
        batch = mapped(Tensor.detach, torch_tree(batch))  # data are constants
    except (TypeError, ValueError) as error:  # an array of objects, say
        raise _refusal(name, batch, error) from error
    if isinstance(batch, Mapping):
        if whole:
            inputs, targets = batch, None
        else:
            require("labels" in batch, f"keys of {name}", "have labels, the targets", list(batch))
            inputs, targets = {key: value for key, value in batch.items() if key != "labels"}, batch["labels"]
    elif isinstance(batch, tuple) and len(batch) == 2 and not hasattr(batch, "_fields"):
        inputs, targets = batch
    else:
        rule = "be a pair (inputs, targets), of several inputs ((inputs, ...), targets), or a mapping with labels"
        require(whole, name, rule, _kind(batch))
        inputs, targets = batch, None
    require(next(tensors(inputs), None) is not None, f"inputs of {name}", "be tensors or arrays", type(inputs).__name__)
    fine = targets is None or next(tensors(targets), None) is not None
    require(fine, f"targets of {name}", "be tensors or arrays", type(targets).__name__)
    for what, tree in (("inputs", inputs), ("targets", targets)):
        for tensor in tensors(tree):
            dense = tensor.layout == torch.strided and not tensor.is_nested
            require(dense, f"{what} of {name}", "be dense tensors", str(tensor.layout))
    return inputs, targets


def _of_examples(name: str, data: Any, whole: bool) -> Batch:
    """All examples of a Dataset as one batch."""
    try:
        found = [_example(data[n]) for n in range(len(data))]
        require(bool(found), name, "have at least one example", 0)
        stacked = _batch(name, _stacked(found), whole)
    except InputError:
        raise
    except THEIRS as error:  # what is in them is the user's own
        raise _refusal(name, data, error) from error
    return stacked


def _example(example: Any) -> Any:
    """An example with tensors for its arrays and numbers."""
    if isinstance(example, Mapping):
        return {key: _example(value) for key, value in example.items()}
    if isinstance(example, tuple) and hasattr(example, "_fields"):
        return type(example)(*map(_example, example))
    if isinstance(example, tuple | list):
        return tuple(map(_example, example))
    return torch.as_tensor(example)


def _stacked(trees: list[Any]) -> Any:
    first = trees[0]
    if isinstance(first, Mapping):
        return {key: _stacked([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_stacked(list(parts)) for parts in zip(*trees, strict=True)))
    if isinstance(first, tuple):
        return tuple(_stacked(list(parts)) for parts in zip(*trees, strict=True))
    return torch.stack(trees)


def _refusal(name: str, data: Any, error: BaseException) -> InputError:
    told = f"{_kind(data)} ({type(error).__name__}: {shown(str(error))})"
    return InputError(f"{name} must {_RULE}, examples of one shape, got {told}")


def _kind(data: Any) -> str:
    """What a user gave, by its types."""
    if isinstance(data, tuple | list):
        inside = ", ".join(type(each).__name__ for each in data[:6]) + ", ..." * (len(data) > 6)
        return f"({inside})" if isinstance(data, tuple) else f"[{inside}]"
    return type(data).__name__
