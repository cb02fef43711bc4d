"""Splits by name, what they refuse, and the rounding of a fitted table to whole examples."""

from typing import Any

import numpy as np
import pytest

from decomfl_lab.datasets.splits import UNIT, fit, round_cycles, split
from tests.cases import refuses, rows_of


@pytest.mark.parametrize("share", [0.1, 0.7])
def test_rounding_is_without_bias(share: float) -> None:
    small, large = round(share * UNIT), UNIT - round(share * UNIT)
    table = np.array([[small, large, 0], [large, 2 * UNIT, small], [0, small, large]])
    generator, draws = np.random.default_rng(3), 3000
    mean = sum(round_cycles(table, generator) for _ in range(draws)) / draws
    assert np.abs(mean - table / UNIT).max() < 5 * np.sqrt(share * (1 - share) / draws)


def test_rounding_keeps_the_margins_and_moves_no_cell_by_a_whole_example() -> None:
    fractions = np.random.default_rng(0).integers(0, UNIT, (5, 4))
    table = np.pad(fractions, ((0, 1), (0, 1)))
    table[:-1, -1] = -table[:-1].sum(axis=1) % UNIT
    table[-1] = -table[:-1].sum(axis=0) % UNIT
    whole = round_cycles(table, np.random.default_rng(1))
    assert np.array_equal(whole.sum(axis=0) * UNIT, table.sum(axis=0))
    assert np.array_equal(whole.sum(axis=1) * UNIT, table.sum(axis=1))
    assert np.abs(whole - table / UNIT).max() < 1


def test_a_name_stands_for_its_concentration() -> None:
    """Dir(α, ..., α) of two classes has an expected largest share; Dir(α p) of a total α is more skewed."""
    labels = np.repeat([0, 1], 2000)
    largest = {}
    for name in ("iid", "dirichlet", "dirichlet-total"):
        shares = [np.bincount(labels[part], minlength=2) / len(part) for part in split(name, labels, 100, 7, alpha=1.0)]
        largest[name] = float(np.mean(np.max(shares, axis=1)))
    assert largest["iid"] < 0.6
    assert largest["dirichlet"] == pytest.approx(0.75, abs=0.04)  # the larger part of a uniform cut of [0, 1]
    assert largest["dirichlet-total"] == pytest.approx(1 / 2 + 1 / np.pi, abs=0.04)  # of a Beta(1/2, 1/2) cut


def test_iid_is_a_permutation_cut_into_pieces_whatever_alpha_is() -> None:
    labels = np.repeat([0, 1], 10)
    found, other = (split("iid", labels, 3, 7, alpha=alpha) for alpha in (0.01, 1.0))
    assert [part.tolist() for part in found] == [part.tolist() for part in other]
    assert len(set(np.concatenate(found).tolist())) == 18
    assert [len(part) for part in found] == [6, 6, 6]


@refuses(*rows_of(__file__)["refused"])
def test_what_is_no_label_is_refused(labels: list[Any]) -> None:
    split("iid", labels, 1, 0)


def test_the_fitted_table_has_the_margins_and_keeps_the_odds() -> None:
    q = np.random.default_rng(2).dirichlet(np.full(3, 0.5), size=4)
    rows, columns = np.full(4, 15), np.array([10, 20, 30])
    T = fit(q, rows, columns, np.matmul)
    assert np.allclose(T.sum(axis=1), rows, rtol=1e-6)
    assert np.allclose(T.sum(axis=0), columns, rtol=1e-6)
    change = T / q  # r_i s_c
    assert np.allclose(change / change[:, :1] * change[0, 0], change[0], rtol=1e-6)
