"""Data in every form that a user may give them in: which batches they are, and whether they were cut."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from decomfl_lab.datasets.batches import Gathered, batches_of, one_batch
from decomfl_lab.datasets.user_data import data_of, examples, first_clients, own_dataset
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


# --- clients, or examples that a split deals out ---------------------------------------------------------------------

HELD = (X[:4], Y[:4])


@pytest.mark.parametrize(
    ("found", "clients", "held"),
    [
        ((X, Y), None, 0),
        ((X.numpy(), Y.numpy()), None, 0),
        (TensorDataset(X, Y), None, 0),
        (DataLoader(TensorDataset(X, Y), 5), None, 0),
        (((X, Y), HELD), None, 4),
        ((TensorDataset(X, Y), DataLoader(TensorDataset(*HELD), 3)), None, 4),
        ([(X[:5], Y[:5]), TensorDataset(X[5:], Y[5:])], [5, 7], 0),
        (([(X[:5], Y[:5]), (X[5:], Y[5:])], HELD), [5, 7], 4),
    ],
)
def test_all_examples_are_there_as_clients_or_to_be_dealt(found: Any, clients: list[int] | None, held: int) -> None:
    data = data_of(found)
    assert torch.equal(data.train_images, X)
    assert torch.equal(data.train_labels, Y)
    assert (None if data.parts is None else [len(part) for part in data.parts]) == clients
    assert len(data.test_labels) == held
    whole = "12 examples" + ("" if clients is None else " of 2 clients")
    assert data.source == f"own data: {whole}, {held} held out"


NAMED = {"x": X, "mask": Y > 0, "labels": Y}


@refuses(
    ((torch.where(X == 5, torch.nan, X), Y), "inputs of example 2 of client 1 must be finite numbers, got nan"),
    (((Y, torch.where(X == 6, torch.inf, X)), Y), "inputs of example 3 of client 1 must be finite numbers, got inf"),
    ((X, torch.where(Y == 2, torch.nan, Y.float())), "targets of example 2 of client 1 must be finite numbers"),
    ((X.to("meta"), Y), "inputs of client 1 must have values, and not be on the meta device"),
    ((X[:0], Y[:0]), "client 1 must have at least one example"),
)
def test_numbers_that_are_none_are_named_by_their_example_in_any_tree(batch: Any) -> None:
    examples("client 1", batch)


@refuses(
    ([], "clients must be a list with the examples of one client at least"),
    ((X, Y), r"clients must be a list .*: of one client \[\(inputs, targets\)\], got \('Tensor', 'Tensor'\)"),
    ([(X, Y), (X[:, :1], Y)], "clients must have inputs and targets of the same shapes and types, got client "),
    ([(X, Y)] * 3 + [(X[:, :1], Y)], r"got client 3 with input of shape \(1,\).*, where 3 others have input of shape"),
    ([(X, Y), (X.double(), Y)], "clients must have inputs and targets of the same shapes and types.*float64"),
    ([(X, Y), NAMED], "clients must have inputs and targets of the same shapes and types"),
)
def test_clients_that_do_not_fit_together_are_refused(clients: Any) -> None:
    own_dataset(clients)


def test_the_digest_tells_apart_examples_clients_and_what_is_held_out() -> None:
    changed = X.clone()
    changed[3, 1] += 1e-6
    made = [
        own_dataset([(X[:5], Y[:5]), (X[5:], Y[5:])]),
        own_dataset([(X[:6], Y[:6]), (X[6:], Y[6:])]),
        own_dataset([(changed[:5], Y[:5]), (changed[5:], Y[5:])]),
        own_dataset([(X[:5], Y[:5]), (X[5:], Y[5:])], HELD),
        own_dataset([((X[:5], X[:5]), Y[:5]), ((X[5:], X[5:]), Y[5:])]),
    ]
    assert len({data.digest for data in made}) == len(made)
    assert own_dataset([(X[:5], Y[:5]), (X[5:], Y[5:])]).digest == made[0].digest


@pytest.mark.parametrize("form", [lambda x, y: (x, y), lambda x, y: ((x, y), y), lambda x, y: ({"x": x}, y)])
def test_the_first_clients_are_those_that_would_have_been_alone(form: Any) -> None:
    cuts = [form(X[a:b], Y[a:b]) for a, b in ((0, 3), (3, 7), (7, 12))]
    whole, two = own_dataset(cuts, form(*HELD)), own_dataset(cuts[:2], form(*HELD))
    found = first_clients(whole, 2)
    assert found is not None
    assert found.digest == two.digest != whole.digest
    assert [part.tolist() for part in found.parts or ()] == [part.tolist() for part in two.parts or ()]
    assert first_clients(data_of((X, Y)), 1) is None
