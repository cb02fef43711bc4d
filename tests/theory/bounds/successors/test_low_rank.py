"""The fourth moment of low-rank directions against the expectation itself, and the bounds that follow from it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from decomfl_lab.noise import LowRank
from theory.bounds.successors import low_rank
from theory.bounds.successors.low_rank import fourth_moment, low_rank_effective_factor, low_rank_second_moment_factor
from theory.notation.setting import second_moment_factor

NODES, WEIGHTS = np.array([-(3**0.5), 0.0, 3**0.5]), np.array([1, 4, 1]) / 6
"""Three points with the moments of N(0, 1) up to the fifth: every polynomial of degree 4 in each factor is exact."""


def directions(a: int, b: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """All z of factors among the nodes, (n, ab), and their weights."""
    at = np.array(list(itertools.product(range(3), repeat=rank * (a + b))))
    factors, weights = NODES[at].reshape(-1, rank, a + b), WEIGHTS[at].prod(1)
    z = np.einsum("nka,nkb->nab", factors[:, :, :a], factors[:, :, a:]) / rank**0.5
    return z.reshape(len(z), -1), weights


def pair(a: int, b: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    square = rng.standard_normal((a * b, a * b))
    return rng.standard_normal((a, b)), square + square.T


def gap(a: int, b: int, rank: int) -> float:
    """How far the closed form is from the expectation over all nodes."""
    V, H = pair(a, b, rank)
    z, weights = directions(a, b, rank)
    wanted = weights @ ((z @ V.reshape(-1)) ** 2 * np.einsum("ni,ij,nj->n", z, H, z))
    return abs(low_rank.fourth_moment(V, H, rank) - wanted)


@pytest.mark.parametrize(("a", "b", "rank"), [(2, 3, 1), (3, 4, 1), (2, 2, 2), (1, 3, 2), (1, 1, 3)])
def test_the_fourth_moment_is_exact(a: int, b: int, rank: int) -> None:
    assert gap(a, b, rank) < 1e-9


@pytest.mark.parametrize("wrong", ["half", "no partial transpose", "rows and columns exchanged", "rank squared"])
def test_a_wrong_term_is_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(V: np.ndarray, H: np.ndarray, rank: int) -> float:
        a, b = V.shape
        right, limit = fourth_moment(V, H, rank), fourth_moment(V, H, 10**12)
        turned = H.reshape(a, b, a, b).swapaxes(1, 3).reshape(H.shape)
        return {
            "half": (right + limit) / 2,
            "no partial transpose": right - 2 / rank * V.reshape(-1) @ turned @ V.reshape(-1),
            "rows and columns exchanged": fourth_moment(V.T, H, rank),
            "rank squared": limit + (right - limit) / rank,
        }[wrong]

    monkeypatch.setattr(low_rank, "fourth_moment", planted)
    assert max(gap(2, 2, 2), gap(2, 3, 1)) > 0.1


def test_rho_is_the_mean_of_squares_and_the_gaussians_for_large_ranks() -> None:
    for a, b, rank in ((2, 3, 1), (2, 2, 2)):
        z, weights = directions(a, b, rank)
        V, _ = pair(a, b, 0)
        wanted = weights @ ((z @ V.reshape(-1)) ** 2 * (z * z).sum(1)) / (V * V).sum()
        assert fourth_moment(V, np.eye(a * b), rank) / (V * V).sum() == pytest.approx(wanted)
        assert wanted == pytest.approx(a * b + 2 + 2 / rank * (a + b + 1))
    of = LowRank(((30, 20), (7,), (4, 40)), 2)
    assert low_rank_second_moment_factor(of, 5) == pytest.approx(1 + (of.d + 1 + 2 / 2 * 51) / 5)
    assert low_rank_second_moment_factor(LowRank(((7,),)), 5) == second_moment_factor("gaussian", d=7, P=5)


def projector(*directions: np.ndarray) -> np.ndarray:
    basis = np.stack([own.reshape(-1) for own in directions], 1)
    return basis @ basis.T


def unit(i: int, j: int, a: int = 4, b: int = 5) -> np.ndarray:
    out = np.zeros((a, b))
    out[i, j] = 1
    return out


def test_the_worst_case_for_an_effective_rank_is_1_plus_2_over_r_times_the_gaussians() -> None:
    """V = u wᵀ, H the projector on κ of the a + b − 1 matrices u yᵀ and y wᵀ; the bound is above by 1/(2r) at most."""
    cross = [unit(0, j) for j in range(5)] + [unit(i, 0) for i in range(1, 4)]
    for rank, kappa in itertools.product((1, 2, 5), range(1, 9)):
        found = fourth_moment(unit(0, 0), projector(*cross[:kappa]), rank)
        assert found == pytest.approx((1 + 2 / rank) * (kappa + 2))
        bound = low_rank_effective_factor(rank=rank, P=1, kappa=kappa)
        assert found <= bound <= found + 1 / (2 * rank) + 1e-12


def worst(s: np.ndarray, kappa: int) -> float:
    """The largest ⟨Q, H⟩ over 0 ⪯ H ⪯ I with tr H = κ for V of singular values s: a sum of eigenvalues of Q."""
    a = len(s)
    at = np.eye(a * a)
    Q = np.zeros((a * a, a * a))
    for i, j in itertools.product(range(a), repeat=2):
        Q += (s[i] ** 2 + s[j] ** 2) * np.outer(at[a * i + j], at[a * i + j])
        Q += s[i] * s[j] * np.outer(at[a * i + j], at[a * j + i])
    return float(np.linalg.eigvalsh(Q)[::-1][:kappa].sum())


@pytest.mark.thorough
def test_no_matrix_has_more_beyond_the_gaussian_than_kappa_and_nine_quarters() -> None:
    rng, most = np.random.default_rng(0), 0.0
    for _ in range(500):
        n = int(rng.integers(1, 9))
        s = np.abs(rng.standard_normal(n)) ** rng.uniform(0.2, 4)
        s[0] += rng.choice([0, 3, 10])
        s /= np.linalg.norm(s)
        most = max(most, *(worst(s, kappa) - kappa for kappa in range(1, n * n + 1)))
    assert 2.1 < most < 2.25  # above 2, which is right for κ = 1 alone
