"""FZOO's step: its moments, its floor, its bound and what it saves, against simulation; wrong constants are caught."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab.methods.fzoo import Normalised
from decomfl_lab.noise import Distribution, direction
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Step
from tests.cases import rows_of, sampled
from tests.theory.bounds.successors.test_signs import near
from tests.theory.checks.test_verdict import planted, simulated
from theory import Quadratic, Spectrum, fzoo
from theory.bounds.successors.fzoo import forward_passes_saved, normalised_step
from theory.checks.simulation import simulate
from theory.statements.algorithms import Step as LocalStep
from theory.statements.algorithms import decomfl


def drawn(P: int, scale: float = 1.0, d: int = 5, runs: int = 200_000) -> np.ndarray:
    """Steps S of a linear loss whose gradient is (scale, 0, …), shape (runs, d)."""
    z = np.random.default_rng(P).standard_normal((runs, P, d))
    g = scale * z[..., 0]
    return np.einsum("rp,rpd->rd", g / g.std(1, ddof=1, keepdims=True), z) / P


@pytest.mark.parametrize("P", [8, 9, 20])
def test_a_normalised_step_has_the_moments_of_the_closed_forms(P: int) -> None:
    of, S = normalised_step(P), drawn(P, runs=50_000)
    for wrong, answer in ((1.0, True), (1.03, False)):
        assert near(S[:, 0], wrong * of.c) is answer
        assert near(S[:, 0] ** 2, wrong * P * of.b) is answer
        assert near((S[:, 1:] ** 2).mean(1), wrong * of.b) is answer


def test_one_sided_differences_make_steps_longer_near_the_minimum_unless_their_mean_is_taken_off() -> None:
    # At a = 0 on f = ½‖x‖², g_p = ½μ‖z_p‖²: their mean is ½μd, their variance ½μ²d.
    d, P = 50, 20
    z = np.random.default_rng(0).standard_normal((4000, P, d))
    g = (z**2).sum(-1)
    for mean, longer in ((0.0, 1 + d / 2), (g.mean(1, keepdims=True), 1.0)):
        S = np.einsum("rp,rpd->rd", (g - mean) / g.std(1, ddof=1, keepdims=True), z) / P
        assert (S**2).sum(1).mean() == pytest.approx(longer * d / P, rel=0.2)


@pytest.mark.parametrize(("term", "factor", "d", "constants", "run", "runs"), rows_of(__file__)["rows"])
def test_wrong_constants_are_caught(term: str, factor: float, d: int, constants: Any, run: Any, runs: int) -> None:
    flat = Quadratic.of(Spectrum.flat(d), **constants)
    assert simulated(fzoo, flat, flat.setting(**run), runs).holds is not False
    assert simulated(planted(fzoo, term, factor), flat, flat.setting(**run), runs).holds is False


def test_the_labs_own_steps_stop_where_the_closed_form_says() -> None:
    d, P, of = 6, 8, normalised_step(8)
    replica = Replica(torch.ones(d).double(), Normalised())
    norms = []
    for seed in range(1000):
        g = np.array([direction(seed, p, d) for p in range(P)]) @ replica.x.numpy()
        replica.step_(Step(seed, g.astype(np.float32), 0.1, Distribution.GAUSSIAN))
        norms.append(float(replica.x.norm()))
    assert np.mean(norms[100:]) == pytest.approx(0.1 * of.b * (d + P - 1) / (2 * of.c), rel=0.07)


@pytest.mark.parametrize("fall", sampled([2.0, math.e], 1))
def test_both_methods_need_as_many_steps_as_the_prediction_says(fall: float) -> None:
    d, P = 200, 8
    flat = Quadratic.of(Spectrum.flat(d), D=0.5)
    of, setting = normalised_step(P), flat.setting(P=P, R=80)

    def steps(eta: float, step: LocalStep = decomfl) -> float:
        """Steps until ‖x‖ ≤ ‖x_0‖/ϱ."""

        def first(_: object, x: np.ndarray) -> np.ndarray:
            below = (x**2).sum(-1) < fall**-2
            return np.where(below.any(0), below.argmax(0), math.inf)

        return simulate(flat, setting.at(eta), runs=20, seed=0, left=first, step=step).value

    normalised = min(steps(2 * share * of.c / fall / (of.b * (d + P - 1)), fzoo.step) for share in (0.5, 0.6, 0.7, 0.8))
    plain = min(steps(share / setting.values["rho"]) for share in (0.8, 1.0))
    assert 2 * P / (P + 1) * plain / normalised == pytest.approx(forward_passes_saved(P, fall), rel=0.06)
