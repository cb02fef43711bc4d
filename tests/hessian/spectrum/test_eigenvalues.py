"""Outer eigenvalues: those of the dense matrix, within their residuals, and no more is said of them than is known."""

import numpy as np
import pytest
import torch

import hessian
from tests.hessian.spectra import rotated

VALUES = np.sort(np.concatenate([[9.0, 7.0, 4.0, -8.0, -5.0], np.linspace(-1, 1, 195)]))
WANTED = {"magnitude": [9.0, -8.0, 7.0], "largest": [9.0, 7.0, 4.0], "smallest": [-8.0, -5.0, -1.0]}


@pytest.mark.parametrize("which", WANTED)
def test_they_are_those_of_the_matrix_within_their_residuals(which: str) -> None:
    operator = rotated(list(VALUES))
    for seed in range(5):
        found = hessian.top_eigenvalues(operator, k=3, which=which, rtol=1e-4, seed=seed)
        assert found.converged
        assert found.values == pytest.approx(WANTED[which], abs=1e-3)
        gaps = [np.abs(VALUES - value).min() for value in found.values]
        assert all(gap <= residual + 1e-12 for gap, residual in zip(gaps, found.residuals, strict=True))
        assert max(found.residuals) <= 1e-4 * 9.0


def test_vectors_are_eigenvectors_and_no_json() -> None:
    operator = rotated(list(VALUES))
    found = hessian.top_eigenvalues(operator, k=2, rtol=1e-6, vectors=True)
    for value, residual, u in zip(found.values, found.residuals, found.vectors, strict=True):
        assert float((operator @ u - value * u).norm()) <= residual + 1e-9
        assert float(u.norm()) == pytest.approx(1.0)
    assert "vectors" not in found.to_json()
    assert found.to_json()["values"] == list(found.values)


@pytest.mark.parametrize("which", WANTED)
def test_seldom_is_anything_further_out_than_the_bound(which: str) -> None:
    operator, outer, missed = rotated(list(VALUES)), WANTED[which][0], 0
    for seed in range(100):
        found = hessian.top_eigenvalues(operator, which=which, rtol=0.05, seed=seed)
        missed += abs(found.bound) < abs(outer) - 1e-9
    assert missed <= 4  # 1 % of 100 are allowed
    assert abs(hessian.top_eigenvalues(operator, which=which, max_products=3).bound) > 2 * abs(outer)


def test_the_zero_matrix_has_zeros_alone() -> None:
    assert hessian.top_eigenvalues(torch.zeros_like, d=10, k=2).values == (0.0, 0.0)


def test_what_is_not_proved_is_said() -> None:
    found = hessian.top_eigenvalues(rotated(list(VALUES)), max_products=6)
    assert not found.converged
    assert f"(6 products, not converged; none beyond {found.bound:.5g}, with 99 %)" in str(found)
    assert found.bound > 1.01 * abs(found.values[0])
    whole = hessian.top_eigenvalues(rotated([3.0, 2.0, -1.0]), k=3)
    assert (whole.converged, whole.bound) == (True, whole.values[0])
    assert str(whole).endswith("(3 products; all are known)")
