"""Outer eigenvalues: those of the dense matrix, within their residuals, and no more is said of them than is known."""

import numpy as np
import pytest
import torch

import hessian
from hessian import DenseOperator, split_sample
from tests.cases import sampled
from tests.hessian.spectra import rotated

VALUES = np.sort(np.concatenate([[9.0, 7.0, 4.0, -8.0, -5.0], np.linspace(-1, 1, 195)]))
WANTED = {"magnitude": [9.0, -8.0, 7.0], "largest": [9.0, 7.0, 4.0], "smallest": [-8.0, -5.0, -1.0]}


@pytest.mark.parametrize("which", WANTED)
def test_they_are_those_of_the_matrix_within_their_residuals(which: str) -> None:
    operator = rotated(list(VALUES))
    for seed in range(2):
        found = hessian.top_eigenvalues(operator, k=3, which=which, rtol=1e-4, seed=seed, vectors=True)
        assert found.converged
        assert found.values == pytest.approx(WANTED[which], abs=1e-3)
        gaps = [np.abs(VALUES - value).min() for value in found.values]
        assert all(gap <= residual + 1e-12 for gap, residual in zip(gaps, found.residuals, strict=True))
        assert max(found.residuals) <= 1e-4 * 9.0
        for value, residual, u in zip(found.values, found.residuals, found.vectors, strict=True):
            assert float((operator @ u - value * u).norm()) <= residual + 1e-9
            assert float(u.norm()) == pytest.approx(1.0)
        assert "vectors" not in found.to_json()


@pytest.mark.parametrize("which", sampled(WANTED, 1))
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


SPECTRUM = torch.tensor([4.0, 2.0, 1.0, *[0.3] * 17], dtype=torch.float64)


def sampled(examples: int, generator: np.random.Generator) -> DenseOperator:
    """(1/n) Σ a aᵀ with E a aᵀ = diag(SPECTRUM)."""
    a = torch.from_numpy(generator.standard_normal((examples, len(SPECTRUM)))) * SPECTRUM.sqrt()
    return DenseOperator(a.T @ a / examples)


def test_halves_bracket_the_truth_on_average_and_come_together_with_more_examples() -> None:
    generator = np.random.default_rng(0)
    widths = []
    for n in (20, 200):
        found = [split_sample((sampled(n, generator), sampled(n, generator)), seed=s) for s in range(30)]
        above, below = (np.array([getattr(each, end) for each in found]) for end in ("above", "below"))
        errors = [3 * end.std(ddof=1) / np.sqrt(len(end)) for end in (above, below)]
        assert below.mean() - errors[1] < 4.0 < above.mean() + errors[0]
        widths.append(above.mean() - below.mean())
    assert widths[0] > 0.8
    assert widths[1] < widths[0] / 4


def test_equal_halves_have_no_width_and_kappa_is_the_quotient() -> None:
    whole = DenseOperator(torch.diag(SPECTRUM))
    found = split_sample((whole, whole), seed=1)
    assert found.own == pytest.approx((4.0, 4.0))
    assert found.crossed == pytest.approx((4.0, 4.0), rel=1e-3)
    assert found.kappa(8.0) == pytest.approx((2.0, 2.0), rel=1e-3)
    assert 2 < found.products <= 2 * 20 + 2
    assert found.to_json()["above"] == found.above
