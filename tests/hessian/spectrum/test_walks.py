"""Walks: what the moments of a few Lanczos steps allow of a sum of positive parts, and no more."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hessian.spectrum.walks import Walk

NODES = st.lists(st.floats(-1.0, 1.0).map(lambda x: x**3), min_size=2, max_size=40, unique=True)


def walked(values: NDArray[np.float64], weights: NDArray[np.float64], steps: int) -> Walk:
    """The walk of so many steps, or fewer, from a vector with these weights along eigenvectors of these eigenvalues."""
    vectors, alphas, betas = [np.sqrt(weights / weights.sum())], [], []
    while len(alphas) < min(steps, len(values)):
        w = values * vectors[-1]
        alphas.append(float(vectors[-1] @ w))
        for _ in range(2):
            for v in vectors:
                w = w - (v @ w) * v
        betas.append(float(np.linalg.norm(w)))
        if len(alphas) == len(values) or betas[-1] < 1e-8:
            return Walk(alphas, [*betas[:-1], 0.0])
        vectors.append(w / betas[-1])
    return Walk(alphas, betas)


@given(NODES, st.integers(1, 12), st.integers(0, 99))
def test_the_bounds_hold_the_truth_and_each_is_that_of_a_spectrum_with_these_moments(
    nodes: list[float], steps: int, seed: int
) -> None:
    values = np.array(nodes)
    weights = np.random.default_rng(seed).chisquare(1, len(values)) + 1e-6
    walk = walked(values, weights, steps)
    least, most = walk.bounds()
    truth = float(weights @ values.clip(0)) / float(weights.sum())
    assert least - 1e-7 <= truth <= most + 1e-7
    if walk.betas[-1]:
        # Every rule with one number more has the same moments: none of them is outside, and some are at the ends.
        scale = np.geomspace(1e-9, 1e4, 300)
        found = [rule[1] @ rule[0].clip(0) for rule in map(walk.rule, [*-scale, 0.0, *scale])]
        assert min(found) >= least - 1e-7
        assert max(found) == pytest.approx(most, rel=0.02, abs=1e-7)
        moments = [
            [rule[1] @ rule[0] ** k for k in range(2 * len(walk.alphas) + 1)] for rule in map(walk.rule, (0.1, -2.0))
        ]
        np.testing.assert_allclose(*moments, atol=1e-10)
