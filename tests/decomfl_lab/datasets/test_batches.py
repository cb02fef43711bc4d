"""Data in every form that a user may give them in: which batches they are, and whether they were cut."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from decomfl_lab.datasets.batches import Gathered, batches_of, one_batch
from decomfl_lab.objectives.trees import tensors
from tests.refusals import refuses

X, Y = torch.arange(24.0).view(12, 2), torch.arange(12) % 3


class Sequenced:
    """What has examples by number, without being torch's Dataset, nor iterable by its type."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __getitem__(self, n: int) -> Any:
        return self.rows[n]

    def __len__(self) -> int:
        return len(self.rows)


class Rows(Sequenced, Dataset[Any]):
    """A data set of these rows."""


def same(found: Any, wanted: Any) -> bool:
    pairs = zip(tensors(found), tensors(wanted), strict=True)
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


# --- one batch, or several --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        (X.numpy(), Y),
        Gathered(X, Y),
        {"inputs": X, "labels": Y},
        ((X,), Y),
        ([X], Y),
        ({"inputs": X}, Y),
        TensorDataset(X, Y),
        Rows(list(zip(X, Y, strict=True))),
        Rows(list(zip(X.numpy(), Y.tolist(), strict=True))),
        Rows([{"inputs": x, "labels": y} for x, y in zip(X, Y, strict=True)]),
        Sequenced(list(zip(X, Y, strict=True))),
    ],
)
def test_these_are_all_examples_as_one_batch_that_is_nobodys_cut(data: Any) -> None:
    found, cut = batches_of("data", data)
    assert not cut
    assert same(found, [(X, Y)])


# --- nothing is copied, and no generator is read ----------------------------------------------------------------------


@pytest.mark.parametrize("data", [(X, Y), (X.numpy(), Y.numpy()), [(X, Y)], Gathered(X, Y), {"x": X, "labels": Y}])
def test_tensors_and_arrays_are_used_where_they_are(data: Any) -> None:
    found, _ = batches_of("data", data)
    assert [tensor.data_ptr() for tensor in tensors(found)] == [X.data_ptr(), Y.data_ptr()]


@pytest.mark.parametrize("form", [lambda x: (x, Y), lambda x: [(x, Y)], lambda x: {"x": x, "labels": Y}])
def test_data_are_constants_whatever_they_were_computed_from(form: Any) -> None:
    found, _ = batches_of("data", form(X * torch.ones((), requires_grad=True)))
    assert not any(tensor.requires_grad for tensor in tensors(found))
    assert same(found, [(X, Y)])


# --- what is no data --------------------------------------------------------------------------------------------------


class Broken(Rows):
    def __getitem__(self, n: int) -> Any:
        raise OSError("no such\nfile")


MUST = (
    r"^data must be \(inputs, targets\), mappings with labels, batches of them in a list or a DataLoader, or a Dataset"
)


@refuses(
    (7, f"{MUST}, got 'int'"),
    (X, f"{MUST}, got 'Tensor'"),
    (X.numpy(), f"{MUST}, got 'ndarray'"),
    ("mnist", f"{MUST}, got 'str'"),
    (None, f"{MUST}, got 'NoneType'"),
    ([], "^data must hold at least one batch, got an empty list$"),
    (Rows([]), "^data must have at least one example, got 0"),
    ({"x": X}, r"^keys of data must have labels, the targets, got \['x'\]"),
    ([{"x": X}], "^keys of batch 0 of data must have labels"),
    ([(X, Y, X)], r"^batch 0 of data must be a pair \(inputs, targets\), .*got '\(Tensor \(12, 2\), Tensor \(12,\), "),
    ([X, Y, X], "^batch 0 of data must be a pair .*got 'Tensor'"),
    ([("a", "b")], "^inputs of batch 0 of data must be tensors or arrays, got 'str'"),
    ([(X, Y), (X, "b")], "^targets of batch 1 of data must be tensors or arrays, got 'str'"),
    ((X.to_sparse(), Y), "^inputs of data must be dense tensors, as to_dense.*, got 'torch.sparse_coo'"),
    (
        Rows([(X[0], Y[0]), (X[0, :1], Y[0])]),
        rf"{MUST}, examples of one shape, got .?Rows \(Runtime",
    ),
    (Rows([{"x": X[0], "labels": 1}, {"y": X[0]}]), rf"{MUST}, examples of one shape, got .*KeyError"),
    (Broken([1]), rf"{MUST}, examples of one shape, got Broken \(OSError: .no such"),
    (DataLoader(Broken([1])), rf"{MUST}, examples of one shape, got DataLoader \(OSError"),
)
def test_other_things_are_named_with_what_they_should_be_in_one_line(data: Any) -> None:
    batches_of("data", data)


@refuses(
    ((X, Y[:5]), r"^tensors of data must have as many examples as each other.*got \[\(12, 2\), \(5,\)\]"),
    ([(X, Y), (X, Y[:5])], r"^tensors of batch 1 of data must have as many"),
    ((X[:0], Y[:0]), "^data must have at least one example, got 0"),
    ([(X, Y), (X[:0], Y[:0])], "^batch 1 of data must have at least one example"),
    ([(X, Y), (X[:, :1], Y)], "^data must have batches that differ in their first dimension only"),
    ([(X, Y), (X.double(), Y)], "^data must have batches that differ in their first dimension only.*float64"),
)
def test_batches_that_do_not_fit_together_are_no_one_batch(data: Any) -> None:
    one_batch("data", data)
