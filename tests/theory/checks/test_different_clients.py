"""Exact rounds of clients with different curvatures, of either sign, for Theorem 1 over local steps and Theorem 2."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from theory import Setting, statement
from theory.statements.statement import Variant

Floats = NDArray[np.float64]


def after(h: Floats, b: Floats, sigma: float, x: float, eta: float, mu: float, P: int, K: int) -> tuple[Floats, Floats]:
    """E x_i and E x_i x_j after K local steps on f_i(x; ξ) = ½h_i x² − (b_i ± σ)x, Gaussian directions that all share.

    x_i⁺ = x_i − ηZv_i − ηe_i, v_i = h_i x_i − b_i ∓ σ, Z and e_i = ½μh_i·ζ the means over P of z² and of z³ (times
    ½μh_i): E Z = 1, E Z² = 1 + 2/P, E ζ = E Zζ = 0, E ζ² = 15/P.
    """
    first, second = np.full(len(h), x), np.full((len(h), len(h)), x * x)
    for _ in range(K):
        xv = second * h - np.multiply.outer(first, b)  # E x_i v_j
        cross = np.multiply.outer(first * h, b)
        vv = np.multiply.outer(h, h) * second - cross - cross.T + np.multiply.outer(b, b) + sigma**2 * np.eye(len(h))
        ee = mu**2 / 4 * 15 / P * np.multiply.outer(h, h)
        first, second = first - eta * (h * first - b), second - eta * (xv + xv.T) + eta**2 * ((1 + 2 / P) * vv + ee)
    return first, second


def share_used(
    variant: Variant, h: Floats, b: Floats, sigma: float, x: float, mu: float, P: int, K: int, m: int
) -> float:
    """‖∇f(x_r)‖² over what the theorem says of one round, the fall of f instead of D/R (0 where f rises)."""
    M, of = len(h), statement("theorem-1", variant)
    slopes = h * x - b
    here = Setting(d=1, L=float(np.abs(h).max()), m=m, M=M, P=P, K=K, mu=mu, sigma=sigma, sigma_G=float(slopes.std()))
    eta = of.step_sizes(here).largest
    first, second = after(h, b, sigma, x, eta, mu, P, K)
    H, B = h.mean(), b.mean()
    chosen = [list(each) for each in itertools.combinations(range(M), m)]
    value = np.mean([0.5 * H * second[np.ix_(C, C)].mean() - B * first[C].mean() for C in chosen])
    fall = 0.5 * H * x**2 - B * x - value
    bound = dict(zip(of.terms, of.bound(here.at(eta)), strict=True))
    return float(slopes.mean() ** 2 / (sum(bound.values()) - bound["start"] * (1 - max(fall, 0.0))))


numbers = st.floats(-1, 1).map(lambda each: round(each, 3))


@pytest.mark.parametrize("variant", ["corrected", "sharper", "wider"])
@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=3), st.sampled_from([0.0, 0.1, 3.0]), numbers,
    st.sampled_from([0.0, 1.0]), st.integers(1, 50), st.integers(1, 15), st.data(),
)  # fmt: skip
@settings(max_examples=50)
def test_theorem_1_holds_on_every_round_of_different_clients(
    variant: Variant, clients: list[tuple[float, float]], sigma: float, x: float, mu: float, P: int, K: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    h, b = np.array(clients).T
    h[0] = 1.0
    assert share_used(variant, h, b, sigma, x + 2.0, mu, P, K, data.draw(st.integers(1, len(h)))) <= 1 + 1e-9


def outcomes(distribution: str, d: int, P: int) -> Floats:
    """Equally likely P-tuples of directions with the moments of the distribution up to degree 6, shape (n, P, d).

    On the circle 7 equal steps integrate trigonometric polynomials of degree 6 exactly.
    """
    if distribution == "rademacher":
        one = np.array(list(itertools.product((-1.0, 1.0), repeat=d)))
    else:
        angles = 2 * np.pi * np.arange(7) / 7
        one = np.sqrt(2) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.stack([np.stack(each) for each in itertools.product(one, repeat=P)])


def used(hessians: Floats, gradients: Floats, noise: Floats, z: Floats, mu: float, share: float, **more: str) -> float:
    """How much of the noise and smoothing terms a round from x_0 = 0 needs: f_i(x; ξ) = ½xᵀH_ix + (b_i ± s_i)ᵀx.

    (‖∇f(x_0)‖² − 2(f(x_0) − E f(x_1))/η)/(noise + smoothing),   at most 1 if the proof of Theorem 2 is right
    """
    M, d, P = *gradients.shape, z.shape[1]
    mean, a = hessians.mean(axis=0), gradients.mean(axis=0)
    L = float(np.abs(np.linalg.eigvalsh(hessians)).max())
    of = statement("theorem-2")
    here = Setting(d=d, L=L, m=M, M=M, P=P, mu=mu, sigma=float(np.linalg.norm(noise, axis=1).max()), D=0.0,
                   kappa=float(np.clip(np.trace(mean) / L, 1, d)), **more)  # fmt: skip
    eta = share * of.step_sizes(here).largest
    curved = 0.5 * mu * np.einsum("opi,ij,opj->op", z, mean, z)
    fall = []
    for signs in itertools.product((-1.0, 1.0), repeat=M):
        g = z @ (a + np.array(signs) @ noise / M) + curved
        step = -eta / P * np.einsum("op,opi->oi", g, z)
        fall.append(-(step @ a + 0.5 * np.einsum("oi,ij,oj->o", step, mean, step)).mean())
    return float((a @ a - 2 * np.mean(fall) / eta) / sum(of.bound(here.at(eta))))


@pytest.mark.parametrize("distribution", ["sphere", "rademacher"])
@given(st.data(), st.floats(-2, 1), st.sampled_from([0.01, 0.5, 1.0]))
@settings(max_examples=40)
def test_theorem_2_needs_no_positive_curvature(
    distribution: str, data: st.DataObject, log_mu: float, share: float
) -> None:
    d = 2 if distribution == "sphere" else data.draw(st.integers(1, 3))
    M, P = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    draw = np.array(data.draw(st.lists(numbers, min_size=M * d * (d + 2), max_size=M * d * (d + 2))))
    square = draw[: M * d * d].reshape(M, d, d)
    hessians = square + square.transpose(0, 2, 1) + 0.01 * np.eye(d)
    b, s = draw[M * d * d :].reshape(2, M, d)
    assert used(hessians, b, s, outcomes(distribution, d, P), 10**log_mu, share, distribution=distribution) <= 1


def weighted(H: Floats, v: Floats) -> float:
    """E (zᵀv)² zᵀHz for z of ±1: tr H ‖v‖² + 2vᵀHv − 2 Σ_j H_jj v_j²."""
    return float(np.trace(H) * (v @ v) + 2 * v @ H @ v - 2 * np.diag(H) @ v**2)


def _opposed(n: int) -> tuple[Floats, Floats]:
    """H = −I + 2vvᵀ on n coordinates, I on n − 1 more, and v: ‖H‖ = 1, tr H = 1."""
    v = np.concatenate([np.ones(n), np.zeros(n - 1)]) / np.sqrt(n)
    return np.diag(np.repeat([-1.0, 1.0], [n, n - 1])) + 2 * np.outer(v, v), v


def test_so_much_of_the_terms_is_used_and_smaller_ones_would_be_caught() -> None:
    H, v = _opposed(3)
    none = np.zeros((1, 5))
    z = outcomes("rademacher", 5, 1)
    assert used(H[None], none, v[None], z, 0.0, 1.0, distribution="rademacher") == pytest.approx(11 / 18)
    bowl, still = np.eye(2)[None], np.zeros((1, 2))
    assert used(bowl, still, still, outcomes("sphere", 2, 1), 1.0, 1.0, distribution="sphere") == pytest.approx(1 / 22)


def test_the_lemma_on_the_weighted_second_moment_does_need_it() -> None:
    H, v = _opposed(3)
    z = outcomes("rademacher", 5, 1)[:, 0]
    assert weighted(H, v) == pytest.approx(float(((z @ v) ** 2 * np.einsum("oi,ij,oj->o", z, H, z)).mean()))
    H, v = _opposed(200)
    lemma = statement("weighted-second-moment")
    setting = Setting(d=399, L=1.0, kappa=1.0, distribution="rademacher")
    assert sum(lemma.bound(setting, a=1.0)) == pytest.approx(3.0)
    assert weighted(H, v) == pytest.approx(4.98)
    assert "0 ⪯ H" in lemma.assumptions
    assert "0 ⪯ H" not in statement("theorem-2").assumptions
