"""Quadratic forms on a sphere: their moments, and the interval for the trace."""

import math
from itertools import product
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from hessian.spectrum.forms import PRODUCTS, SphereForms, sketch
from tests.cases import sampled

SPECTRA = {
    "one": [3.0, *[0.0] * 39],
    "few": [5.0, 3.0, 2.0, 1.0, *[0.1] * 36],
    "many": torch.linspace(-0.5, 1.0, 40).tolist(),
    "flat": torch.linspace(0.9, 1.1, 40).tolist(),
}


def sphere(values: Tensor, count: int, generator: torch.Generator) -> SphereForms:
    forms = SphereForms(len(values))
    for _ in range(count):
        u = torch.randn(len(values), generator=generator, dtype=torch.float64)
        u *= math.sqrt(len(values)) / float(u.norm())
        product = values * u if forms.wants_products else None
        forms.add(float(u @ (values * u)), u, product, torch.zeros)
    return forms


def misses(values: Tensor, count: int, seed: int, times: int = 400) -> tuple[float, float]:
    """The shares of intervals of 95 %, by so many forms, that are below the trace, and above it."""
    generator = torch.Generator().manual_seed(seed)
    ends = np.array([sphere(values, count, generator).interval(0.95) for _ in range(times)])
    return float((ends[:, 1] < float(values.sum())).mean()), float((ends[:, 0] > float(values.sum())).mean())


@pytest.mark.parametrize("name", sampled(SPECTRA, 2))
def test_forms_squares_and_pairs_have_the_stated_expectations(name: str) -> None:
    values, generator = torch.tensor(SPECTRA[name]).double(), torch.Generator().manual_seed(0)
    centred, n = values - values.mean(), len(values)
    found = [sphere(values, PRODUCTS, generator) for _ in range(500)]
    variance = 2 * n / (n + 2) * float((centred**2).sum())
    forms = np.array([each.values for each in found])
    assert forms.mean() == pytest.approx(float(values.sum()), abs=4 * math.sqrt(variance / forms.size))
    assert forms.var() == pytest.approx(variance, rel=0.15)
    stated = np.mean([each.moments()[0] for each in found])
    assert stated == pytest.approx(variance, rel=0.05)
    pairs = np.array([each.pairs for each in found]).reshape(-1, 3)
    for sample, power in ((pairs[:, 0] ** 2, 2), (pairs[:, :2].prod(1), 3), (pairs[:, 1] ** 2, 4)):
        truth, own = float((centred**power).sum()), float((centred.abs() ** power).sum())
        assert sample.mean() == pytest.approx(truth, abs=5 * sample.std() / math.sqrt(len(found)) + 0.1 * own)


def test_a_wrong_variance_or_a_wrong_sign_of_the_skewness_is_caught() -> None:
    """The check of the interval, checked: half the variance loses coverage, the sign sends the misses to one side."""
    right, those = SphereForms.moments, (torch.tensor([1.0] * 8 + [0.0] * 72).double(), 6, 2, 800)
    low, high = misses(*those)
    assert low + high < 0.065
    assert abs(low - high) < 0.03
    with mock.patch.object(SphereForms, "moments", lambda self: (right(self)[0] / 2, *right(self)[1:])):
        assert sum(misses(*those)) > 0.1
    with mock.patch.object(SphereForms, "moments", lambda self: (right(self)[0], -right(self)[1], right(self)[2])):
        low, high = misses(*those)
    assert low - high > 0.03


def test_the_state_brings_everything_back() -> None:
    generator, values = torch.Generator().manual_seed(3), torch.tensor(SPECTRA["few"]).double()
    one = sphere(values, 4, generator)
    other = SphereForms()
    other.restore(*one.state(), torch.device("cpu"))
    for forms in (one, other):
        generator.manual_seed(4)
        for _ in range(4):
            u = torch.randn(40, generator=generator, dtype=torch.float64)
            forms.add(float(u @ (values * u)), u, values * u if forms.wants_products else None, torch.zeros)
    assert one.interval(0.9) == other.interval(0.9)
    assert len(one.pairs) == PRODUCTS * (PRODUCTS - 1) / 2
    assert not one.state()[0]


def test_sketches_and_probes_to_come_stand_for_whole_products() -> None:
    generator, values = torch.Generator().manual_seed(6), torch.linspace(-1, 1, 5000).double() ** 3
    drawn = torch.randn(PRODUCTS, 5000, generator=generator, dtype=torch.float64)

    def pairs(large: int) -> Tensor:
        forms = SphereForms(5000)
        with mock.patch.multiple("hessian.spectrum.forms", LARGE=large, SKETCH=1 << 10):
            for z in drawn:
                forms.add(float((u := forms.on_sphere_(z.clone())) @ (values * u)), u, values * u, drawn.__getitem__)
        return torch.tensor(forms.pairs)

    whole, sketched = pairs(1 << 20), pairs(1)
    torch.testing.assert_close(sketched[:, 0], whole[:, 0], rtol=0, atol=1e-6 * float(whole[:, 0].abs().max()))
    assert 0 < (sketched[:, 1] - whole[:, 1]).abs().max() < 4 / 32 * whole[:, 2].max().sqrt()
    # The fault: all blocks meet with one sign.
    with mock.patch.multiple("hessian.spectrum.forms", derive_seed=lambda *at: 0, SKETCH=1 << 10):
        assert abs(sketch(torch.ones(5000)).square().sum() / 5000 - 1) > 1


@pytest.mark.parametrize(("name", "count"), [("one", 3), ("many", 8)])
def test_below_is_the_inverse_of_quantile(name: str, count: int) -> None:
    forms = sphere(torch.tensor(SPECTRA[name]).double(), count, torch.Generator().manual_seed(5))
    chances = np.array([0.025, 0.2, 0.5, 0.9, 0.975])
    np.testing.assert_allclose(forms.below([forms.quantile(chance) for chance in chances]), chances, rtol=1e-6)
    assert forms.below([-math.inf, math.inf]).tolist() == [0.0, 1.0]
    assert forms.interval(0.95) == pytest.approx((forms.quantile(0.025), forms.quantile(0.975)))


FEW = {
    "one of 40": [1.0, *[0.0] * 39],
    "one beside a bulk": [1.0, *[0.02] * 200],
    "two": [1.0, 1.0, *[0.0] * 100],
    "halves": [2.0**-j for j in range(30)],
    "either sign": [1.0, -1.0, *[0.0] * 60],
    "six in all": [0.1, 0.3, 0.5, 0.7, 0.9, 1.1],
}


SHARED = {"many": torch.linspace(0.0, 2.0, 12).repeat(6).tolist()}


@pytest.mark.parametrize(("name", "count"), sampled([*product(FEW, (3, 5)), *product(SHARED, (3, 6, 16))], 4))
def test_the_interval_holds_where_few_eigenvalues_have_the_trace_and_where_many_do(name: str, count: int) -> None:
    assert 0.925 <= 1 - sum(misses(torch.tensor((FEW | SHARED)[name]).double(), count, seed=6, times=600)) <= 0.985
