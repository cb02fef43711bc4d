"""Densities and quadratures against dense spectra and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab.errors import InputError
from hessian.counted import Counted
from hessian.density import spectral_density
from hessian.operator import DenseOperator
from hessian.quadrature import quadrature
from tests.hessian.spectra import Broken, eigenvalues, mlp_hessian, rotated

BULK = [20.0, 12.0, -5.0, *np.linspace(-1.0, 2.0, 197)]


def vector(d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_quadrature_is_exact_on_polynomials_of_its_degree_and_no_higher() -> None:
    operator, u = rotated(BULK), vector(200)
    for steps in (1, 2, 3, 5):
        rule = quadrature(Counted(operator), u, steps)
        degree = max(1, 2 * steps - 1)
        power = u
        for p in range(2 * steps + 1):
            truth = float(u @ power)
            value, error = rule.expectation(lambda x, p=p: x**p)  # type: ignore[misc]
            if p <= degree:
                assert value == pytest.approx(truth, rel=1e-9)
            if p <= 2 * steps - 3:
                assert error < 1e-9 * abs(truth) + 1e-9
            power = operator.matvec(power)
        assert value != pytest.approx(truth, rel=1e-6)


def test_quadrature_error_estimate_is_of_the_right_size_on_a_kink() -> None:
    operator = rotated(BULK)
    values, vectors = torch.linalg.eigh(operator.matrix)
    ratios = []
    for seed in range(30):
        u = vector(200, seed)
        truth = float(((vectors.T @ u) ** 2 * values.abs()).sum())
        value, error = quadrature(Counted(operator), u, 5).expectation(np.abs)
        ratios.append(abs(value - truth) / error)
    assert 0.02 < np.median(ratios) < 1.0


def test_quadrature_of_invariant_vectors_and_of_nothing() -> None:
    counted = Counted(DenseOperator(3.0 * torch.eye(6)))
    rule = quadrature(counted, torch.full((6,), 2.0), 5)
    assert counted.products == 1
    assert rule.expectation(np.abs) == (pytest.approx(72.0), 0.0)
    assert quadrature(counted, torch.zeros(6), 5).expectation(np.abs) == (0.0, 0.0)


@pytest.mark.slow
def test_within_0_12_of_the_mean_magnitude_after_50_products() -> None:
    true = eigenvalues().numpy()
    scale = np.abs(true).mean()
    deflated, plain = [], []
    for seed in range(6):
        found = spectral_density(mlp_hessian(), seed=seed)
        assert found.products == 50
        deflated.append(found.wasserstein(true) / scale)
        without = spectral_density(mlp_hessian(), steps=0, probes=5, probe_steps=10, seed=seed)
        plain.append(without.wasserstein(true) / scale)
    assert max(deflated) <= 0.12
    assert np.median(plain) > 0.12  # stochastic Lanczos quadrature as usual does not get there
    assert spectral_density(DenseOperator(torch.zeros(5, 5)), seed=0).wasserstein(np.zeros(1)) == 0.0


def test_wasserstein_is_the_mean_distance_of_sorted_eigenvalues() -> None:
    found = spectral_density(rotated([1.0, 2.0, 5.0]), seed=0)
    assert found.probes == 0
    assert found.products == 3
    assert found.wasserstein([1.0, 2.0, 5.0]) == pytest.approx(0.0, abs=1e-9)
    assert found.wasserstein([1.5, 2.5, 5.5]) == pytest.approx(0.5)
    assert found.wasserstein([0.0, 0.0, 0.0]) == pytest.approx(8 / 3)
    assert found.expectation(np.abs).value == pytest.approx(8 / 3)
    assert found.expectation(np.abs).stderr == 0.0


def test_outliers_are_exact_atoms() -> None:
    found = spectral_density(rotated(BULK), seed=0, steps=15)
    atoms = np.sort(found.nodes[found.exact])
    np.testing.assert_allclose(atoms[[0, -2, -1]], [-5, 12, 20], rtol=1e-6)
    np.testing.assert_allclose(found.weights[found.exact], 1 / 200)
    assert found.weights.sum() == pytest.approx(1.0)
    assert (found.probe[:15] == -1).all()
    assert set(found.probe[15:]) == {0, 1, 2}
    assert not found.exact[15:].any()
    assert (found.lambda_min, found.lambda_max) == (pytest.approx(-5), pytest.approx(20))


def test_expectations_match_the_spectrum_within_their_errors() -> None:
    operator, true = rotated(BULK), np.array(BULK)
    for f in (lambda x: x, np.square, lambda x: np.maximum(x, 0.0), np.exp):
        found = [
            spectral_density(operator, seed=s, steps=20, probes=4, probe_steps=8).expectation(f) for s in range(40)
        ]
        off = np.array([each.value for each in found]) - f(true).mean()
        assert np.sqrt((off**2).mean()) < 0.05 * np.abs(f(true)).mean()
        stated = np.sqrt(np.mean([each.stderr**2 for each in found]))
        assert 0.5 < stated / off.std() < 2.0


def test_curve_integrates_to_one_and_its_band_covers() -> None:
    operator, grid = rotated(BULK), np.linspace(-9, 25, 1201)
    covered = []
    sigma = 0.5
    truth = np.mean([np.exp(-(((grid - x) / sigma) ** 2) / 2) / sigma / np.sqrt(2 * np.pi) for x in BULK], axis=0)
    for seed in range(25):
        found = spectral_density(operator, seed=seed, steps=15, probes=5, probe_steps=15)
        mean, low, high = found.curve(grid, bandwidth=sigma)
        assert np.trapezoid(mean, grid) == pytest.approx(1.0, abs=1e-3)
        assert (low <= mean).all()
        assert (mean <= high).all()
        at = (grid > -0.5) & (grid < 1.5)
        covered.append(np.mean((low <= truth)[at] & (truth <= high)[at]))
    assert np.mean(covered) > 0.8
    wide = found.curve(grid, confidence=0.999)
    narrow = found.curve(grid)
    assert (wide[2] - wide[1]).sum() > (narrow[2] - narrow[1]).sum() > 0
    _, low, high = spectral_density(operator, seed=0, probes=1).curve(grid)
    assert not low.any()
    assert np.isinf(high).all()


def test_bandwidth_is_about_the_spacing_of_nodes_in_the_bulk() -> None:
    found = spectral_density(rotated(BULK), seed=0, steps=20, probes=3, probe_steps=10)
    assert 3 / 40 < found.bandwidth < 3 / 5  # a bulk of width 3 on 19 nodes
    finer = spectral_density(rotated(BULK), seed=0, steps=20, probes=3, probe_steps=30)
    assert finer.bandwidth < found.bandwidth
    assert spectral_density(DenseOperator(torch.zeros(30, 30)), seed=0).bandwidth > 0


def test_same_seed_same_density_other_seed_another() -> None:
    a, b, c = (spectral_density(rotated(BULK), seed=s) for s in (1, 1, 2))
    assert np.array_equal(a.nodes, b.nodes)
    assert not np.array_equal(a.nodes, c.nodes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": -1}, "steps must be an integer of at least 0"),
        ({"probes": 0}, "probes must be an integer of at least 1"),
        ({"probe_steps": 0}, "probe_steps must be an integer of at least 1"),
        ({"distribution": "sphere"}, "distribution must be one of rademacher, gaussian"),
    ],
)
def test_bad_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        spectral_density(rotated([1.0, 2.0]), **{"seed": 0, **settings})
    with pytest.raises(InputError, match="bandwidth must be a finite number above 0"):
        spectral_density(rotated([1.0, 2.0]), seed=0).curve([0.0], bandwidth=0.0)
    with pytest.raises(InputError, match="product 28 of dense must be finite"):
        spectral_density(Broken(rotated(BULK), 28), seed=0)
