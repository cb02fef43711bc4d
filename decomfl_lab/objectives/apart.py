"""Whether tensors are apart in memory, so that to move one of them leaves the others where they are."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from decomfl_lab.errors import InputError
from decomfl_lab.objectives.perturbed import memory_of

_LAZY = (UninitializedBuffer, UninitializedParameter)


@dataclass(frozen=True)
class _Place:
    """Where the n-th tensor lies: on which device, from the address of its first byte to that behind its last."""

    n: int
    name: str
    tensor: Tensor
    device: str
    begin: int
    end: int

    @classmethod
    def of(cls, n: int, name: str, tensor: Tensor) -> Self:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        begin = tensor.data_ptr()
        return cls(n, name, tensor, str(tensor.device), begin, begin + (last + 1) * tensor.itemsize)

    @property
    def dense(self) -> bool:
        """Whether the elements fill the place, each once."""
        return bool(torch.ops.aten.is_non_overlapping_and_dense(self.tensor))

    def map(self, begin: int, end: int, cell: int) -> NDArray[np.bool_]:
        """Which cells from one address to another, of so many bytes, the elements take."""
        cells = np.zeros((end - begin) // cell, dtype=bool)
        width = self.tensor.itemsize // cell
        strides = (*(stride * width for stride in self.tensor.stride()), 1)
        as_strided(cells[(self.begin - begin) // cell :], (*self.tensor.shape, width), strides)[...] = True
        return cells


def require_apart(named: Iterable[tuple[str, Tensor]]) -> None:
    """InputError where a trainable tensor shares an element with another tensor, or with itself.

    As elements of x they would move apart, while in their user's code they always hold the same numbers. Tensors that
    lie beside each other in one storage, or between each other's elements, are apart.

    Args:
        named: Tensors, each once, by their names; those that require gradients are trained.
    """
    given = [(n, name, t) for n, (name, t) in enumerate(named) if not isinstance(t, _LAZY)]
    stored = (_Place.of(*each) for each in given if each[-1].numel() and memory_of(each[-1]))
    places = sorted(stored, key=lambda place: (place.device, place.begin))
    before: list[_Place] = []  # those that reach as far as the place that is looked at
    for place in places:
        if place.tensor.requires_grad and not place.dense:
            cells = int(place.map(place.begin, place.end, place.tensor.itemsize).sum())
            rule = "have memory for each of its elements: register a copy (.contiguous())"
            got = f"got a view of strides {place.tensor.stride()}"
            if cells < place.tensor.numel():
                raise InputError(f"parameter {place.name!r} must {rule}, {got}")
        before = [other for other in before if other.device == place.device and other.end > place.begin]
        for other in before:
            if (place.tensor.requires_grad or other.tensor.requires_grad) and _overlap(other, place):
                first, second = (each.name for each in sorted((other, place), key=lambda each: each.n))
                raise InputError(
                    f"parameters {first!r} and {second!r} must share no memory, as they would move apart: register one "
                    f"Parameter twice ({_attribute(second)} = {_attribute(first)}), or a .clone(), got two over one "
                    "storage"
                )
        before.append(place)


def _overlap(one: _Place, other: _Place) -> bool:
    """Whether two tensors whose places cross have an element in common; by maps where one has gaps."""
    if one.dense and other.dense:
        return True
    cell = math.gcd(one.tensor.itemsize, other.tensor.itemsize, one.begin - other.begin)
    area = min(one.begin, other.begin), max(one.end, other.end), cell
    return bool((one.map(*area) & other.map(*area)).any())


def _attribute(name: str) -> str:
    """How a tensor of this name is written in the code of its module."""
    return "self" + re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f".{name}")
