"""Every reading of κ from a density, against closed-form spectra."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from decomfl_lab.errors import InputError
from hessian.density import spectral_density
from hessian.operator import DenseOperator


def diagonal(*values: float) -> DenseOperator:
    return DenseOperator(torch.diag(torch.tensor(values, dtype=torch.float64)))


def test_where_lanczos_spans_everything_the_readings_are_exact() -> None:
    found = spectral_density(diagonal(4.0, 1.0, -8.0, 2.0), steps=4, probes=2, seed=0).kappas()
    for name, value in {"signed": -1 / 8, "positive": 7 / 4, "absolute": 15 / 8}.items():
        assert found[name] == pytest.approx((value,) * 3), name


def test_intervals_hold_the_truth_over_many_seeds() -> None:
    generator = np.random.default_rng(0)
    values = np.concatenate([[9.0, 5.0, -2.0], generator.normal(0.0, 0.2, 197)])
    operator = diagonal(*values)
    truth = {
        "signed": values.sum() / 9,
        "positive": values.clip(0).sum() / 9,
        "absolute": np.abs(values).sum() / 9,
    }
    found = [spectral_density(operator, steps=5, probes=4, probe_steps=10, seed=s).kappas() for s in range(60)]
    for name, value in truth.items():
        held = [low <= value <= high for _, low, high in (each[name] for each in found)]
        assert np.mean(held) > 0.9, name
        widths = [high - low for _, low, high in (each[name] for each in found)]
        assert np.median(widths) < 0.2 * truth["absolute"], name


def test_a_norm_that_is_not_positive_leaves_its_reading_out() -> None:
    found = spectral_density(diagonal(-1.0, -2.0), steps=2, seed=0)
    assert set(found.kappas()) == {"signed", "absolute"}
    with pytest.raises(InputError, match="steps must be at least 1 for κ, got 0"):
        replace(found, probe=np.zeros_like(found.probe)).kappas()
