"""Trees of tensors: what becomes of every leaf, and in which order."""

from hashlib import blake2b
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from decomfl_lab.objectives.trees import feed, joined, mapped, rows, shape_of, tensors

A, B, C = torch.arange(6.0).view(3, 2), torch.arange(3), torch.ones(3, 1, 2)


class Pair(NamedTuple):
    left: Any
    right: Any


TREE = {"b": (A, [B, "text"]), "a": Pair(C, None)}


def test_batches_are_joined_leaf_by_leaf_in_their_order() -> None:
    parts = [rows(TREE, slice(0, 1)), rows(TREE, slice(1, 3))]
    whole = joined(parts)
    assert all(torch.equal(a, b) for a, b in zip(tensors(whole), (A, B, C), strict=True))
    assert list(whole) == ["b", "a"]  # a tree keeps its form, its keys, and what is no tensor
    assert whole["b"][1][1] == "text"
    assert isinstance(whole["a"], Pair)
    assert whole["a"].right is None
    assert shape_of(whole) == shape_of(parts[0]) != shape_of(mapped(Tensor.double, whole))


@pytest.mark.parametrize(
    "other", [{"b": A}, {"a": torch.ones(3, 3)}, {"a": (A,)}], ids=["another key", "another width", "a tree"]
)
def test_batches_of_other_forms_are_not_joined(other: Any) -> None:
    with pytest.raises((RuntimeError, ValueError, KeyError, TypeError)):
        joined([{"a": A}, other])
    assert shape_of({"a": A}) != shape_of(other)


def test_a_digest_is_of_shape_dtype_and_numbers_and_not_of_strides() -> None:
    def digest(tensor: Tensor) -> str:
        feed(h := blake2b(), tensor)
        return h.hexdigest()

    assert digest(A) == digest(A.T.contiguous().T) == digest(A.clone().requires_grad_())
    assert len({digest(tensor) for tensor in (A, A.T, A.view(-1), A.double(), A + 1, A[:0], A.int())}) == 7
