"""Spectra: what they promise, and that groups stand for single eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from tests.theory.strategies import spectra
from theory.problems.spectrum import Spectrum


@given(spectra())
def test_kappa_is_the_trace_over_the_norm_and_within_1_and_d(spectrum: Spectrum) -> None:
    assert 1 <= spectrum.kappa <= spectrum.d
    assert spectrum.kappa == pytest.approx(spectrum.trace / spectrum.L, rel=1e-12)
    assert spectrum.lambda_min <= spectrum.L == max(spectrum.values)


@pytest.mark.parametrize("d", [1, 2, 10, 10**9])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_two_levels_have_any_effective_rank_in_any_dimension(d: int, share: float) -> None:
    kappa = 1 + share * (d - 1)
    spectrum = Spectrum.two_level(d, kappa, L=3.0)
    assert (spectrum.d, spectrum.L) == (d, 3.0)
    assert spectrum.kappa == pytest.approx(kappa, rel=1e-12)


def test_flat_and_confined_spectra_have_their_rank() -> None:
    assert Spectrum.flat(7, 2.0).kappa == 7
    assert Spectrum.confined(10**9, 4, 2.0).kappa == 4
    assert Spectrum.confined(4, 4).lambda_min == 1
    assert Spectrum.confined(5, 4).lambda_min == 0


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("d", [1, 30, 5000])
def test_a_power_distribution_in_groups_has_the_trace_of_single_eigenvalues(d: int, exponent: float) -> None:
    spectrum = Spectrum.power(d, exponent, L=2.0)
    single = 2.0 * np.arange(1, d + 1) ** -exponent
    assert (spectrum.d, spectrum.L) == (d, 2.0)
    assert spectrum.trace == pytest.approx(single.sum(), rel=2e-3)
    assert spectrum.power_sum(2) == pytest.approx((single**2).sum(), rel=2e-2)
