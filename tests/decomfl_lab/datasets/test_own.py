"""Data of one's own in every form that a user's function may give them in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from decomfl_lab.datasets.own import data_of
from decomfl_lab.errors import InputError

X = torch.arange(24.0).view(12, 2)
Y = torch.arange(12) % 3
HELD = (X[:4], Y[:4])


class Rows(Dataset[Any]):
    """A data set of these rows."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __getitem__(self, n: int) -> Any:
        return self.rows[n]

    def __len__(self) -> int:
        return len(self.rows)


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


def test_a_loader_that_shuffles_gives_the_same_data_each_time_and_leaves_torchs_generator_alone() -> None:
    loader, state = DataLoader(TensorDataset(X, Y), 5, shuffle=True), torch.get_rng_state()
    first, again = data_of(loader), data_of(loader)
    assert first.digest == again.digest != data_of((X, Y)).digest
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("found", [7, X, "mnist", {"train": (X, Y)}])
def test_other_things_are_named_with_what_they_should_be(found: Any) -> None:
    with pytest.raises(
        InputError, match=r"^(data must be \(inputs, targets\), mappings|keys of data must have labels)"
    ):
        data_of(found)


@pytest.mark.parametrize("rows", [[1, 2], [(X[0], Y[0]), (X[0, :1], Y[0])], [{"x": X[0], "y": Y[0]}]])
@pytest.mark.parametrize("kind", [Rows, lambda rows: DataLoader(rows, 2)])
def test_examples_that_are_no_pairs_of_one_shape_are_told_in_a_line(kind: Any, rows: list[Any]) -> None:
    with pytest.raises(
        InputError, match=r"^(data must be .*, examples of one shape|.* must have labels|.*data must be a pair)"
    ) as e:
        data_of(kind(rows))
    assert "\n" not in str(e.value)
