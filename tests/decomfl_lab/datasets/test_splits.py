"""Splits by name, what they refuse, and the rounding of a fitted table to whole examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from decomfl_lab.datasets.splits import (
    _UNIT,
    Concentration,
    _fit,
    _round_cycles,
    class_shares,
    split,
    split_dirichlet,
    split_iid,
)
from decomfl_lab.errors import InputError


@pytest.mark.parametrize("share", [0.1, 0.7])
def test_rounding_is_without_bias(share: float) -> None:
    small, large = round(share * _UNIT), _UNIT - round(share * _UNIT)
    table = np.array([[small, large, 0], [large, 2 * _UNIT, small], [0, small, large]])
    generator, draws = np.random.default_rng(3), 3000
    mean = sum(_round_cycles(table, generator) for _ in range(draws)) / draws
    assert np.abs(mean - table / _UNIT).max() < 5 * np.sqrt(share * (1 - share) / draws)


def test_rounding_keeps_the_margins_and_moves_no_cell_by_a_whole_example() -> None:
    fractions = np.random.default_rng(0).integers(0, _UNIT, (5, 4))
    table = np.pad(fractions, ((0, 1), (0, 1)))
    table[:-1, -1] = -table[:-1].sum(axis=1) % _UNIT
    table[-1] = -table[:-1].sum(axis=0) % _UNIT
    whole = _round_cycles(table, np.random.default_rng(1))
    assert np.array_equal(whole.sum(axis=0) * _UNIT, table.sum(axis=0))
    assert np.array_equal(whole.sum(axis=1) * _UNIT, table.sum(axis=1))
    assert np.abs(whole - table / _UNIT).max() < 1


@pytest.mark.parametrize(("name", "concentration"), [("dirichlet", "per-class"), ("dirichlet-total", "total")])
def test_a_name_stands_for_its_concentration(name: str, concentration: Concentration) -> None:
    labels = np.repeat([0, 0, 0, 1], 25)
    wanted = split_dirichlet(labels, 4, 0.5, 7, concentration=concentration)
    other = split_dirichlet(labels, 4, 0.5, 7, concentration="total" if concentration == "per-class" else "per-class")
    found = [part.tolist() for part in split(name, labels, 4, 7, alpha=0.5)]
    assert found == [part.tolist() for part in wanted]
    assert found != [part.tolist() for part in other]


def test_iid_stands_for_a_permutation_cut_into_pieces() -> None:
    labels = np.repeat([0, 1], 10)
    found, wanted = split("iid", labels, 3, 7, alpha=0.01), split_iid(labels, 3, 7)
    assert [part.tolist() for part in found] == [part.tolist() for part in wanted]
    assert sorted(len(set(part.tolist())) for part in found) == [6, 6, 6]


def test_a_class_without_examples_is_left_out_where_shares_follow_the_data() -> None:
    parts = split_dirichlet([0] * 10 + [2] * 30, 4, 0.5, 1, concentration="total", classes=4)
    assert sorted(np.concatenate(parts).tolist()) == list(range(40))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, -1], "labels must be of at least 0, got -1"),
        ([], "labels must be one axis of at least one label"),
        ([[0, 1]], "labels must be one axis of at least one label"),
        ([0.5, 1.0], "labels must be integers, got 'float64'"),
    ],
)
def test_what_is_no_label_is_refused(labels: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        split("iid", labels, 1, 0)


def test_a_single_label_is_a_split_and_an_empty_part_has_no_shares() -> None:
    assert [part.tolist() for part in split("iid", [3], 1, 0)] == [[0]]
    assert class_shares([0, 1, 1], [[0, 1], [2]], 2).tolist() == [[0.5, 0.5], [0.0, 1.0]]
    with pytest.raises(InputError, match="part 1 must have at least one example, got 0"):
        class_shares([0, 1], [[0], []], 2)


def test_the_fitted_table_has_the_margins_and_keeps_the_odds() -> None:
    q = np.random.default_rng(2).dirichlet(np.full(3, 0.5), size=4)
    rows, columns = np.full(4, 15), np.array([10, 20, 30])
    T = _fit(q, rows, columns)
    assert np.allclose(T.sum(axis=1), rows, rtol=1e-6)
    assert np.allclose(T.sum(axis=0), columns, rtol=1e-6)
    change = T / q  # r_i s_c
    assert np.allclose(change / change[:, :1] * change[0, 0], change[0], rtol=1e-6)
