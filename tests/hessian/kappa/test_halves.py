"""Halves of a sample bracket λ_max of what they were drawn from."""

import numpy as np
import pytest
import torch

from hessian import DenseOperator, split_sample

SPECTRUM = torch.tensor([4.0, 2.0, 1.0, *[0.3] * 17], dtype=torch.float64)


def sampled(examples: int, generator: np.random.Generator) -> DenseOperator:
    """(1/n) Σ a aᵀ with E a aᵀ = diag(SPECTRUM)."""
    a = torch.from_numpy(generator.standard_normal((examples, len(SPECTRUM)))) * SPECTRUM.sqrt()
    return DenseOperator(a.T @ a / examples)


def test_halves_bracket_the_truth_on_average_and_come_together_with_more_examples() -> None:
    generator = np.random.default_rng(0)
    widths = []
    for n in (20, 200):
        found = [split_sample((sampled(n, generator), sampled(n, generator)), seed=s) for s in range(60)]
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


def test_the_vector_of_one_half_is_put_into_the_other() -> None:
    """Tops along different axes: each half sees nothing of the other's."""
    first = DenseOperator(torch.diag(torch.tensor([3.0, 0.0, 1.0])))
    second = DenseOperator(torch.diag(torch.tensor([0.5, 5.0, 1.0])))
    found = split_sample((first, second), seed=0)
    assert found.own == pytest.approx((3.0, 5.0), rel=1e-4)
    assert found.crossed == pytest.approx((0.5, 0.0), abs=1e-4)
