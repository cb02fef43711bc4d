"""Densities and quadratures against dense spectra and closed forms."""

from unittest import mock

import numpy as np
import pytest
import torch

from benchmarks.ways.spectra import Diagonal
from hessian.operators.probes import probe
from hessian.spectrum.density import PROBES, spectral_density
from tests.hessian.spectra import rotated

BULK = [20.0, 12.0, -5.0, *np.linspace(-1.0, 2.0, 197)]


CLUSTERS = torch.cat([torch.linspace(0.5, 4, 8).repeat_interleave(40), torch.tensor([30.0, -5.0]), torch.zeros(678)])
"""A few single eigenvalues, and clusters, as a layer of 40 linear outputs with a square loss has them."""


def clustered(seed: int) -> float:
    """The distance of a density from the eigenvalues that it is of, in units of their mean magnitude."""
    density = spectral_density(rotated(CLUSTERS), seed=seed)
    return density.wasserstein(CLUSTERS.numpy()) / float(CLUSTERS.abs().mean())


def test_equal_eigenvalues_count_as_often_as_there_are_of_them() -> None:
    assert max(clustered(seed) for seed in range(2)) < 0.12
    with mock.patch("hessian.spectrum.density.CLUSTERED", 0.0):  # the fault: whatever has converged is one eigenvalue
        assert clustered(0) > 0.3


def test_each_probe_sees_the_moments_of_its_own_vector() -> None:
    """Gauss's rule is exact for polynomials of degree 2·products/probes − 1, and for no others."""
    operator = rotated(BULK)
    density = spectral_density(operator, products=12, probes=3)
    for p in range(3):
        z = probe(operator, 0, PROBES, p)
        power = z / z.norm()
        z = power.clone()
        for degree in range(9):
            value = float(density.seen[p] @ density.nodes**degree)
            assert (value == pytest.approx(float(z @ power), rel=1e-9)) == (degree <= 7), degree
            power = operator.matvec(power)


def test_residuals_are_those_of_the_ritz_vectors() -> None:
    """An eigenvalue is within each of them; and where the space is invariant there is none left."""
    operator = rotated(BULK)
    values = torch.linalg.eigvalsh(operator.matrix).numpy()
    density = spectral_density(operator, products=30)
    gaps = np.abs(values[:, None] - density.nodes).min(axis=0)
    assert (gaps <= density.residuals + 1e-12).all()
    assert (density.residuals > 0.05).any()
    few = spectral_density(rotated([3.0] * 60 + [1.0] * 30))
    assert few.products == 6
    assert few.residuals.max() < 1e-10
    assert few.weights @ few.nodes == pytest.approx(7 / 3, rel=0.15)


def test_wasserstein_is_the_mean_distance_of_sorted_eigenvalues() -> None:
    found = spectral_density(rotated([1.0, 2.0, 5.0]), seed=0)
    assert found.exact.all()
    assert found.products == 3
    assert found.wasserstein([1.0, 2.0, 5.0]) == pytest.approx(0.0, abs=1e-9)
    assert found.wasserstein([1.5, 2.5, 5.5]) == pytest.approx(0.5)
    assert found.wasserstein([0.0, 0.0, 0.0]) == pytest.approx(8 / 3)
    assert found.expectation(np.abs).value == pytest.approx(8 / 3)
    assert found.expectation(np.abs).stderr == 0.0


def test_outliers_are_exact_atoms() -> None:
    found = spectral_density(rotated(BULK), products=45)
    atoms = np.sort(found.nodes[found.exact])
    np.testing.assert_allclose(atoms[[0, -2, -1]], [-5, 12, 20], rtol=1e-6)
    np.testing.assert_allclose(found.weights[found.exact], 1 / 200)
    assert found.samples.shape == (3, 45)
    np.testing.assert_allclose(found.samples.sum(axis=1), 1.0)
    assert (found.lambda_min, found.lambda_max) == (pytest.approx(-5), pytest.approx(20))


def test_curve_integrates_to_one_and_its_band_covers() -> None:
    operator, grid = rotated(BULK), np.linspace(-9, 25, 1201)
    covered = []
    sigma = 0.5
    truth = np.mean([np.exp(-(((grid - x) / sigma) ** 2) / 2) / sigma / np.sqrt(2 * np.pi) for x in BULK], axis=0)
    for seed in range(6):
        found = spectral_density(operator, seed=seed, products=90, probes=5)
        mean, low, high = found.curve(grid, bandwidth=sigma)
        assert np.trapezoid(mean, grid) == pytest.approx(1.0, abs=1e-3)
        assert (low <= mean).all()
        assert (mean <= high).all()
        at = (grid > -0.5) & (grid < 1.5)
        covered.append(np.mean((low <= truth)[at] & (truth <= high)[at]))
    assert np.mean(covered) > 0.75
    wide = found.curve(grid, confidence=0.999)
    narrow = found.curve(grid)
    assert (wide[2] - wide[1]).sum() > (narrow[2] - narrow[1]).sum() > 0
    _, low, high = spectral_density(operator, seed=0, probes=1).curve(grid)
    assert not low.any()
    assert np.isinf(high).all()


# Readings of κ --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kappas"),
    [
        ([4.0, 1.0, -8.0, 2.0], {"signed": -1 / 8, "positive": 7 / 4, "absolute": 15 / 8}),
        ([-1.0, -2.0], {"signed": -3 / 2, "absolute": 3 / 2}),  # no norm is positive
    ],
)
def test_where_lanczos_spans_everything_the_readings_are_exact(values: list[float], kappas: dict[str, float]) -> None:
    found = spectral_density(Diagonal(values), products=12).kappas()
    assert found == {name: pytest.approx((value,) * 3) for name, value in kappas.items()}


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
