"""The diagonal of H: exact from columns, and from random signs with the standard errors that it states."""

import numpy as np
import pytest

import hessian
from tests.hessian.spectra import rotated

H = rotated(list(np.concatenate([[20.0, -5.0], np.linspace(0, 2, 118)])))


def test_its_standard_errors_are_right_and_its_intervals_hold() -> None:
    held, ratios, diagonal = [], [], H.matrix.diagonal()
    for seed in range(15):
        found = hessian.diagonal(H, products=40, seed=seed)
        low, high = found.interval()
        held += ((low <= diagonal) & (diagonal <= high)).tolist()
        ratios.append(float((found.values - diagonal).norm() / found.stderr.norm()))
        assert (found.samples, found.products) == (20, 40)
    assert np.mean(held) == pytest.approx(0.95, abs=0.025)
    assert np.mean(np.square(ratios)) == pytest.approx(1.0, abs=0.2)
    assert str(found).endswith("of its norm (40 products)")
    assert str(hessian.diagonal(H, products=120)).endswith("exact (120 products)")


def test_what_lanczos_found_takes_the_outliers_out_of_the_error() -> None:
    spiked = rotated([20.0, -9.0, 6.0, *np.linspace(0, 0.2, 197)])
    plain, deflated = (hessian.diagonal(spiked, products=60, max_basis=basis) for basis in (1, None))
    off = [float((each.values - spiked.matrix.diagonal()).norm()) for each in (plain, deflated)]
    assert off[1] < off[0] / 5
    assert deflated.error < plain.error / 5
