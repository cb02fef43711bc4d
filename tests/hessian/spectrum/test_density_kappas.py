"""Every reading of κ from a density, against closed-form spectra."""

from __future__ import annotations

import numpy as np
import pytest

from hessian import spectral_density
from tests.hessian.spectra import Diagonal


def test_where_lanczos_spans_everything_the_readings_are_exact() -> None:
    found = spectral_density(Diagonal([4.0, 1.0, -8.0, 2.0]), products=12).kappas()
    for name, value in {"signed": -1 / 8, "positive": 7 / 4, "absolute": 15 / 8}.items():
        assert found[name] == pytest.approx((value,) * 3), name


@pytest.mark.thorough
def test_intervals_hold_the_truth_over_many_seeds() -> None:
    generator = np.random.default_rng(0)
    values = np.concatenate([[9.0, 5.0, -2.0], generator.normal(0.0, 0.2, 197)])
    operator = Diagonal(values)
    truth = {
        "signed": values.sum() / 9,
        "positive": values.clip(0).sum() / 9,
        "absolute": np.abs(values).sum() / 9,
    }
    found = [spectral_density(operator, products=45, probes=4, seed=s).kappas() for s in range(120)]
    for name, value in truth.items():
        held = [low <= value <= high for _, low, high in (each[name] for each in found)]
        assert np.mean(held) > 0.9, name
        widths = [high - low for _, low, high in (each[name] for each in found)]
        assert np.median(widths) < 0.25 * truth["absolute"], name


def test_a_norm_that_is_not_positive_leaves_its_reading_out() -> None:
    found = spectral_density(Diagonal([-1.0, -2.0]))
    assert set(found.kappas()) == {"signed", "absolute"}
