"""Whether tensors are apart in memory, so that to move one of them leaves the others where they are."""

import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from decomfl_lab.errors import InputError
from decomfl_lab.objectives.perturbation import memory_of

_LAZY = (UninitializedBuffer, UninitializedParameter)


def require_apart(named: Iterable[tuple[str, Tensor]]) -> None:
    """InputError where a trainable tensor shares an element with another tensor, or with itself.

    As elements of x they would move apart, while in their user's code they always hold the same numbers. Tensors that
    lie beside each other in one storage, or between each other's elements, are apart.

    Args:
        named: Tensors, each once, by their names; those that require gradients are trained.
    """
    given = [(n, name, t) for n, (name, t) in enumerate(named) if not isinstance(t, _LAZY)]
    # On which device each lies, from the address of its first byte to that behind its last.
    places = []
    for n, name, t in given:
        if t.numel() and memory_of(t):
            last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
            places.append((str(t.device), t.data_ptr(), t.data_ptr() + (last + 1) * t.itemsize, n, name, t))
    before: list[tuple[str, int, int, int, str, Tensor]] = []  # those that reach as far as the place that is looked at
    for place in sorted(places, key=lambda place: place[:2]):
        device, begin, _, n, name, t = place
        if t.requires_grad and _folds(t):
            rule = "have memory for each of its elements: register a copy (.contiguous())"
            raise InputError(f"parameter {name!r} must {rule}, got a view of strides {t.stride()}")
        before = [other for other in before if other[0] == device and other[2] > begin]
        for *_, m, named_so, other in before:
            if (t.requires_grad or other.requires_grad) and np.shares_memory(_place(t), _place(other)):
                (_, first), (_, second) = sorted([(n, name), (m, named_so)])
                raise InputError(
                    f"parameters {first!r} and {second!r} must share no memory, as they would move apart: register one "
                    f"Parameter twice ({_attribute(second)} = {_attribute(first)}), or a .clone(), got two over one "
                    "storage"
                )
        before.append(place)


def _place(t: Tensor) -> Any:
    """An array over the memory of a tensor, perhaps on a GPU: to be asked where it lies, and never to be read."""
    strides = tuple(stride * t.itemsize for stride in t.stride())
    form = {"version": 3, "typestr": f"|V{t.itemsize}", "shape": tuple(t.shape), "strides": strides}
    return np.asarray(SimpleNamespace(__array_interface__=form | {"data": (t.data_ptr(), True)}))


def _folds(t: Tensor) -> bool:
    """Whether an element is at two places of a tensor: then so is one of the first slice along some dimension."""
    if torch.ops.aten.is_non_overlapping_and_dense(t):
        return False
    place = _place(t)
    while place.ndim:
        if np.shares_memory(place[:1], place[1:]):
            return True
        place = place[0, ...]  # a view: ``place[0]`` of one dimension would be read
    return False


def _attribute(name: str) -> str:
    """How a tensor of this name is written in the code of its module."""
    return "self" + re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f".{name}")
