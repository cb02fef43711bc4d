"""FedKSeed's pool: what S directions leave of the loss, against pools of the lab's own seeds and against integrals."""

import re
from pathlib import Path

import numpy as np
import pytest

from decomfl_lab.noise import direction
from theory.bounds.successors.pool import pool_contraction, pool_left, pool_left_about
from theory.problems.spectrum import Spectrum


def pool(d: int, S: int, first: int = 0) -> np.ndarray:
    """Directions of the seeds first, …, first + S − 1, shape (d, S)."""
    return np.stack([direction(first + s, 0, d) for s in range(S)], 1).astype(np.float64)


def left_by(values: np.ndarray, x: np.ndarray, Z: np.ndarray) -> float:
    """The least ½xᵀHx over x + span(Z), as a share of that at x."""
    H = np.diag(values)
    return 1 - (x @ H @ Z) @ np.linalg.solve(Z.T @ H @ Z, Z.T @ H @ x) / (x @ H @ x)


def test_a_run_with_the_seeds_of_a_pool_ends_at_the_minimum_over_their_span_as_fast_as_the_gram_matrix_says() -> None:
    values, x, Z = np.linspace(0.5, 2.0, 30), np.ones(30), pool(30, 6)
    gram, f = Z.T @ (values[:, None] * Z), [0.5 * values.sum()]
    eta, least = 1 / np.diag(gram).max(), left_by(values, x, Z) * f[0]
    for s in np.random.default_rng(0).integers(0, 6, 200):
        x = x - eta * Z[:, s] * (Z[:, s] @ (values * x))
        f.append(0.5 * x @ (values * x))
    assert least == pytest.approx(f[-1], rel=1e-6)
    assert 0.5 * f[0] < least
    assert f[50] - least < 10 * (f[0] - least) * pool_contraction(gram, eta) ** 50 < 0.1 * f[0]


def test_the_mean_over_a_pools_seeds_contracts_as_promised_and_no_faster_for_small_steps() -> None:
    Z, values = pool(8, 3, 90), np.linspace(1.0, 3.0, 8)
    gram = Z.T @ (values[:, None] * Z)
    starts = (*np.random.default_rng(1).standard_normal((20, 3)), np.linalg.eigh(gram)[1][:, 0])

    def slowest(eta: float) -> float:
        """The largest E f(x⁺)/f(x) over starts x = Za, of which the pool leaves 0."""
        steps = [np.eye(3) - eta * np.outer(each, each @ gram) for each in np.eye(3)]
        return max(np.mean([(A @ a) @ gram @ (A @ a) for A in steps]) / (a @ gram @ a) for a in starts)

    for eta in (1.5 / np.diag(gram).max(), 1 / np.diag(gram).max()):
        assert slowest(eta) <= pool_contraction(gram, eta)
    assert 1 - slowest(1e-6) == pytest.approx(1 - pool_contraction(gram, 1e-6), rel=1e-4)


@pytest.mark.parametrize(
    ("spectrum", "at"), [(Spectrum.flat(20), 0), (Spectrum((5.0, 1.0), (1, 19)), 0), (Spectrum((5.0, 1.0), (1, 19)), 1)]
)
def test_where_at_most_one_eigenvalue_is_another_the_share_left_is_that_of_real_pools(
    spectrum: Spectrum, at: int
) -> None:
    values, x = np.repeat(spectrum.eigenvalues, spectrum.counts), np.eye(20)[at]
    left = np.array([left_by(values, x, pool(20, 6, 6 * run)) for run in range(400)])
    low, high = pool_left(spectrum, 6)
    error = left.std() / 20
    assert low[at] == pytest.approx(high[at])
    assert abs(left.mean() - low[at]) < 4 * error
    for wrong in (5, 7):
        assert abs(left.mean() - pool_left(spectrum, wrong)[0][at]) > 4 * error


@pytest.mark.parametrize("S", [3, 8, 14])
def test_between_its_bounds_and_near_the_estimate_lies_what_random_pools_leave(S: int) -> None:
    spectrum = Spectrum((4.0, 1.0, 0.2, 0.0), (2, 4, 10, 3))
    values = np.sqrt(np.repeat(spectrum.eigenvalues, spectrum.counts))
    basis = np.linalg.qr(values[:, None] * np.random.default_rng(S).standard_normal((4000, 19, S)))[0]
    shares = 1 - (basis**2).sum(-1).mean(0)
    found = np.array([part.mean() for part in np.split(shares, np.cumsum(spectrum.counts)[:-1])])
    low, high = pool_left(spectrum, S)
    assert (low - 0.01 < found).all()
    assert (found < high + 0.01).all()
    assert np.abs(found - pool_left_about(spectrum, S)).max() < 0.04


@pytest.mark.thorough
def test_the_table_of_the_docs_has_these_numbers() -> None:
    text = (Path(__file__).parents[4] / "docs" / "methods-theory.md").read_text().split("| exponent |")[1]
    rows = re.findall(r"^\| ([\d.]+) \| [^|]+ \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == 5
    for exponent, row in rows:
        spectrum = Spectrum.power(10**6, float(exponent))
        weights = spectrum.multiplicities * spectrum.eigenvalues / spectrum.trace
        for S, cell in zip((64, 1024, 4096), row.split("|"), strict=True):
            said = [float(number) for number in re.findall(r"[\d.]+", cell)]
            found = [float(weights @ each) for each in (pool_left_about(spectrum, S), *pool_left(spectrum, S))]
            assert found[: len(said)] == pytest.approx(said, rel=0.03, abs=5e-4)
