"""Trace estimators against closed forms, the literal definition of XTrace, and each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab.errors import InputError
from decomfl_lab.noise import Distribution
from hessian.operator import DenseOperator
from hessian.probes import probe
from hessian.trace import SKETCH, Trace, hutch_plus_plus, hutchinson, krylov_deflated, xtrace
from tests.hessian.spectra import Broken, rotated

DISTRIBUTIONS = (Distribution.RADEMACHER, Distribution.GAUSSIAN)
METHODS = [hutchinson, hutch_plus_plus, xtrace, krylov_deflated]
DECAYING = torch.cat([100.0 * 0.7 ** torch.arange(30.0), -0.01 * torch.ones(30)]).double()

each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)
each_distribution = pytest.mark.parametrize("distribution", DISTRIBUTIONS)


def runs(method: Callable[..., Trace], operator: DenseOperator, seeds: int, **settings: Any) -> list[Trace]:
    return [method(operator, seed=seed, **settings) for seed in range(seeds)]


def errors(found: list[Trace], truth: float) -> np.ndarray:
    return np.array([each.estimate.value - truth for each in found])


@each_method
@each_distribution
def test_unbiased_with_the_spread_that_the_standard_error_states(method: Any, distribution: Distribution) -> None:
    operator = rotated(DECAYING)
    found = runs(method, operator, 150, products=18, distribution=distribution)
    off = errors(found, float(DECAYING.sum()))
    assert abs(off.mean()) < 3.5 * off.std(ddof=1) / np.sqrt(len(off))
    stated = np.sqrt(np.mean([each.estimate.stderr**2 for each in found]))
    low = 0.4 if method is xtrace else 0.7  # xtrace's is known to be too small
    assert low < stated / off.std(ddof=1) < 1.4
    assert all(each.products == 18 for each in found)


@each_distribution
def test_variance_of_hutchinson_is_the_closed_form(distribution: Distribution) -> None:
    operator = rotated(DECAYING)
    A = operator.matrix
    expected = 2 * float((A**2).sum() - ((A.diagonal() ** 2).sum() if distribution == Distribution.RADEMACHER else 0.0))
    off = errors(runs(hutchinson, operator, 600, products=4, distribution=distribution), float(A.trace()))
    assert 4 * off.var() == pytest.approx(expected, rel=0.3)  # chi-squared-like: relative deviation about 0.1


@each_method
def test_exact_where_nothing_is_left_to_sample(method: Any) -> None:
    low_rank = rotated([5.0, -2.0, 1.0, *[0.0] * 37])
    if method is not hutchinson:
        found = method(low_rank, products=18, seed=3)
        assert found.estimate.value == pytest.approx(4.0, abs=1e-9)
        assert found.estimate.stderr < 1e-9
    assert method(DenseOperator(torch.zeros(9, 9)), products=12, seed=0).estimate.value == 0.0
    whole = method(rotated([2.0, -3.0, 0.5]), products=12, seed=0)
    assert method is hutchinson or (whole.estimate.samples == 0 and whole.estimate.stderr == 0.0)
    assert method is hutchinson or whole.estimate.value == pytest.approx(-0.5, abs=1e-12)


@each_method
def test_probes_of_identity_like_matrices_are_exact(method: Any) -> None:
    found = method(DenseOperator(-torch.eye(1)), products=12, seed=0)
    assert found.estimate.value == -1.0


@each_distribution
def test_xtrace_is_its_definition(distribution: Distribution) -> None:
    """Each leave-one-out estimate with its own orthonormal basis, d × (n − 1), written out."""
    operator, n = rotated(DECAYING, seed=2), 7
    A = operator.matrix
    Omega = torch.stack([probe(operator, 11, SKETCH, i, distribution) for i in range(n)], 1)
    expected = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        Q = torch.linalg.qr(A @ Omega[:, others]).Q
        left = Omega[:, i] - Q @ (Q.T @ Omega[:, i])
        expected.append(float((Q.T @ A @ Q).trace() + left @ A @ left))
    found = xtrace(operator, products=15, seed=11, distribution=distribution)
    assert found.products == 14
    assert found.estimate.value == pytest.approx(np.mean(expected), rel=1e-9)
    assert found.estimate.stderr == pytest.approx(np.std(expected, ddof=1) / np.sqrt(n), rel=1e-7)


def test_deflation_beats_plain_probes_and_student_intervals_cover() -> None:
    operator, truth = rotated(DECAYING), float(DECAYING.sum())
    rms = {}
    for method in METHODS:
        found = runs(method, operator, 150, products=24)
        rms[method] = float(np.sqrt((errors(found, truth) ** 2).mean()))
        if method in (hutchinson, krylov_deflated):
            covered = np.mean([low <= truth <= high for low, high in (each.interval() for each in found)])
            assert 0.89 <= covered <= 0.99
    assert rms[krylov_deflated] < rms[hutch_plus_plus] < rms[hutchinson] / 5
    assert rms[xtrace] < rms[hutch_plus_plus]


def test_float32_agrees_with_float64() -> None:
    wide, single = rotated(DECAYING), rotated(DECAYING, dtype=torch.float32)
    for method in METHODS:
        a, b = (method(operator, products=18, seed=1).estimate for operator in (wide, single))
        assert b.value == pytest.approx(a.value, rel=1e-4)


def test_curvlinops_agrees_within_its_spread() -> None:
    curvlinops = pytest.importorskip("curvlinops")
    operator, truth = rotated(DECAYING), float(DECAYING.sum())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = np.array([float(curvlinops.xtrace(operator.matrix, 18)) - truth for _ in range(60)])
    ours = errors(runs(xtrace, operator, 60, products=18), truth)
    assert abs(theirs.mean() - ours.mean()) < 4 * np.hypot(theirs.std(), ours.std()) / np.sqrt(60)
    assert 0.4 < ours.std() / theirs.std() < 2.5


@each_method
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"products": 1}, "products must be an integer of at least"),
        ({"seed": 2**64}, "seed must be an integer in 0"),
        ({"distribution": "uniform"}, "distribution must be one of rademacher, gaussian, got 'uniform'"),
    ],
)
def test_bad_arguments(method: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        method(rotated([1.0, 2.0]), **{"products": 12, "seed": 0, **settings})


def test_nan_is_named() -> None:
    with pytest.raises(InputError, match="product 3 of dense must be finite"):
        krylov_deflated(Broken(rotated(DECAYING), 3), products=12, seed=0)
    with pytest.raises(InputError, match="steps must be an integer in 1..10, got 11"):
        krylov_deflated(rotated(DECAYING), products=12, seed=0, steps=11)
