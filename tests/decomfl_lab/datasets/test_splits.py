"""The rounding of a fitted table to whole examples."""

from __future__ import annotations

import numpy as np
import pytest

from decomfl_lab.datasets.splits import _UNIT, Concentration, _round_cycles, split, split_dirichlet


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
