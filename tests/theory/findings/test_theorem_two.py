"""Audit of Theorem 2: findings are borne out, fixes turn counter-examples off, planted faults are caught."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import rows_of, sampled
from theory import Setting, Statement, statement
from theory.findings.evidence import gaussian, theorem_two, theorem_two_proof
from theory.findings.evidence.covariance import Clients, mended_covariance
from theory.findings.evidence.designs import design
from theory.findings.instruments import same
from theory.notation.formula import parsed
from theory.notation.setting import DISTRIBUTIONS, effective_factor, sixth_moment

# Designs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distribution", "d"),
    [("sphere", 1), ("sphere", 4), ("sphere", 8), ("gaussian", 1), ("gaussian", 3), ("rademacher", 4)],
)
def test_designs_have_the_moments_of_their_distribution(distribution: str, d: int) -> None:
    directions = design(distribution, d)
    z, fourth = directions.z, {"sphere": 3 * d / (d + 2), "gaussian": 3.0, "rademacher": 1.0}[distribution]
    np.testing.assert_allclose(directions.mean(z[:, :, None] * z[:, None, :]), np.eye(d), atol=1e-12)
    assert directions.mean(z[:, 0] ** 4) == pytest.approx(fourth)
    for odd in (z, z[:, 0] ** 3, z[:, 0] * z[:, -1] ** 2):
        np.testing.assert_allclose(directions.mean(odd), 0, atol=1e-12)
    if d > 1:
        mixed = {"sphere": d / (d + 2)}.get(distribution, 1.0)
        assert directions.mean((z[:, 0] * z[:, 1]) ** 2) == pytest.approx(mixed)
    if directions.order >= 6:
        assert directions.mean((z**2).sum(axis=1) ** 3) == pytest.approx(sixth_moment(distribution, d=d))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_sandwich_is_the_mean_over_every_choice_of_directions(distribution: str) -> None:
    directions, A = design(distribution, 1 if distribution == "sphere" else 2), np.array([[Fraction(1, 3)]])
    if directions.d == 2:
        A = np.array([[Fraction(1, 3), 2], [0, -1]])
    total, weight = 0, 0
    dyads = [directions.scale * np.outer(v, v) for v in directions.points]
    for y, u in zip(dyads, directions.weights, strict=True):
        for z, w in zip(dyads, directions.weights, strict=True):
            total, weight = total + int(u * w) * ((y + z) @ A @ (y + z)), weight + int(u * w)
    assert same(directions.sandwich(A, 2), total * Fraction(1, 4 * weight), "").holds


# The covariance lemma --------------------------------------------------------------------------------------------

vectors = st.lists(st.lists(st.integers(-4, 4), min_size=4, max_size=4), min_size=3, max_size=3)


@given(vectors, vectors, st.integers(1, 3), st.integers(1, 2))
def test_the_mended_lemma_holds_for_any_clients(gradients: Any, noises: Any, m: int, P: int) -> None:
    clients = Clients(gradients, noises)
    found = clients.second_moment(m, P, replacement=False)
    assert same(found, mended_covariance(clients, m, P), "").holds


# The theorem -----------------------------------------------------------------------------------------------------


def test_the_counter_example_by_adding_up_every_direction() -> None:
    """Two clients, z over E8: g z_1 from the losses themselves."""
    eta, mu, delta, h, sigma_G = 0.1, 0.5, 0.2, 1.5, 0.7
    directions = design("sphere", 8)
    total = 0.0
    for sign in (-1, 1):

        def loss(x: Any, sign: int = sign) -> Any:
            return h / 2 * x[:, 0] ** 2 + sign * sigma_G * (np.sqrt((x**2).sum(axis=1) + delta**2) - delta)

        g = (loss(mu * directions.z) - loss(0 * directions.z)) / mu
        total += directions.mean((h * eta * g * directions.z[:, 0]) ** 2) / 2
    setting = Setting(d=8, L=1.0, eta=eta, mu=mu, sigma_G=sigma_G, distribution="sphere")
    assert theorem_two.rough_clients(setting, curvature=h, delta=delta) == pytest.approx(0.5 * total)


def test_smooth_clients_turn_the_counter_example_off() -> None:
    """The larger δ, the smoother the clients: at σ_G/δ = 1 they are 2-smooth, and the printed bound holds."""
    setting = Setting(d=10**4, L=2.0, M=2, R=2, mu=1e-9, sigma_G=1.0, D=0.0, kappa=1.0, distribution="sphere")
    setting = replace(setting, eta=theorem_two.STATED.step_sizes(setting).largest)
    bound = theorem_two.without_remainder(setting)
    assert theorem_two.rough_clients(setting, curvature=1.0, delta=1.0) <= bound
    assert theorem_two.rough_clients(setting, curvature=1.0, delta=1e-14) > bound


@given(st.lists(st.floats(0, 1), min_size=8, max_size=8), st.lists(st.floats(-1, 1), min_size=8, max_size=8))
def test_remainders_of_low_rank_have_moments_without_d(values: list[float], axis: list[float]) -> None:
    """Moments of δ = ½ zᵀHz over E8 and over signs, H of norm 1 with its eigenvectors turned; κ = tr H."""
    values[0] = 1.0
    normal = np.array(axis) + 1e-3
    turn = np.eye(8) - 2 * np.outer(normal, normal) / (normal @ normal)
    H, kappa = turn @ np.diag(values) @ turn, sum(values)
    for distribution in ("sphere", "rademacher"):
        directions = design(distribution, 8)
        z = directions.z
        forms = ((z @ H) * z).sum(axis=1)
        assert directions.mean(forms**2) <= kappa * (kappa + 2) * (1 + 1e-9)
        assert directions.mean(forms**3) <= kappa * (kappa + 2) * (kappa + 4) * (1 + 1e-9)
        worst = directions.mean((0.5 * forms * np.sign(z @ normal))[:, None] * z)
        assert worst @ worst <= 0.25 * kappa * (kappa + 2) * (1 + 1e-9)


def planted(claim: Statement, terms: dict[str, str]) -> Statement:
    return replace(claim, terms={**claim.terms, **{name: parsed(text) for name, text in terms.items()}})


def _smaller(share: float) -> Any:
    return lambda distribution, **at: share * effective_factor(distribution, **at)


_SMALL_SMOOTHING = planted(statement("theorem-2-dimension-free"), {"smoothing": "mu**2*L**2/20"})


class Lighter(theorem_two_proof.Step):
    """With less weight on E ∇̄fᵀ H ∇̄f."""

    def __init__(self, at: Mapping[str, float]) -> None:
        super().__init__(at)
        self.weighted *= 0.4


_EVIDENCE = {"theorem_two": theorem_two, "gaussian": gaussian}
_PLANTED = [
    (_EVIDENCE[module], "CORRECTED", planted(_EVIDENCE[module].CORRECTED, terms), check)
    for module, terms, check in rows_of(__file__)["planted"]
]


@pytest.mark.parametrize(
    ("owner", "name", "fault", "check"),
    sampled(
        [
            *_PLANTED,
            (theorem_two, "without_remainder", lambda here: sum(theorem_two.STATED.bound(here)) / 9, "quadratics"),
            (theorem_two, "statement", lambda name: _SMALL_SMOOTHING, "without_dimension"),
            (theorem_two_proof, "effective_factor", _smaller(0.3), "descent_by_rank"),
            (theorem_two_proof, "Step", Lighter, "descent_by_trace"),
            (theorem_two_proof, "Step", Lighter, "hessian_first"),
        ],
        4,
    ),
)
def test_searches_catch_planted_constants(owner: Any, name: str, fault: Any, check: str) -> None:
    run = getattr(owner, check)
    assert run().holds
    with mock.patch.object(owner, name, fault):
        assert not run().holds


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_factor_of_every_distribution_is_kept_and_one_hundredth_less_is_not(distribution: str) -> None:
    assert theorem_two_proof.weighted_by_rank(distribution).holds
    with mock.patch.object(theorem_two_proof, "effective_factor", _smaller(0.99)):
        assert not theorem_two_proof.weighted_by_rank(distribution).holds
