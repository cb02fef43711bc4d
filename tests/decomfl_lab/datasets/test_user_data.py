"""Data of one's own in every form that a user's function may give them in."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from decomfl_lab.datasets.user_data import data_of, examples, first_clients, own_dataset
from tests.refusals import refuses

X = torch.arange(24.0).view(12, 2)
Y = torch.arange(12) % 3
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
