"""Assumption 4 over a ball: what is claimed of a dominating matrix, against one that is built."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hessian import DenseOperator, along_training, ball_probe, ball_radius, effective_rank
from tests.hessian.problems import kappa_of
from tests.hessian.spectra import rotated


def moving(x: Tensor) -> Tensor:
    """A Hessian that turns and grows with x: (2 + x_0) times the square of a vector, plus a small fixed part."""
    d = len(x)
    along = torch.linspace(1, 2, d, dtype=torch.float64) + x
    return (2 + x[0]) * torch.outer(along, along) / d + torch.diag(torch.linspace(-0.1, 0.3, d, dtype=torch.float64))


def at(x: Tensor) -> DenseOperator:
    return DenseOperator(moving(x))


def positive_part(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=0)) @ vectors.T


def test_the_recommended_kappa_is_that_of_a_matrix_that_dominates_at_all_points():
    points = [torch.zeros(10).double(), torch.full((10,), 0.4).double(), torch.linspace(-1, 1, 10).double()]
    found = along_training(at, points, seed=0, dominate=True, rtol=1e-9, max_products=80)
    matrices = [moving(x) for x in points]
    # D = (H_0)₊ + Σ (H_j − H_0)₊
    D = positive_part(matrices[0]) + sum(positive_part(h - matrices[0]) for h in matrices[1:])
    assert all(torch.linalg.eigvalsh(D - h).min() > -1e-12 for h in matrices)
    top = max(float(torch.linalg.eigvalsh(h).max()) for h in matrices)
    assert found.lambda_max == pytest.approx(top)
    assert found.trace == pytest.approx(max(float(h.trace()) for h in matrices))
    assert found.kappa_sufficient == pytest.approx(float(D.trace()) / top)
    assert kappa_of(D) <= found.recommended == found.kappa_sufficient
    assert found.kappa_necessary == pytest.approx(found.trace / top)
    assert found.kappa_necessary < found.kappa_sufficient
    assert [point.distance for point in found.points] == pytest.approx([float(x.norm()) for x in points])


@pytest.mark.parametrize(
    ("top", "least", "max_products"),
    [
        pytest.param(10.0, -1.0, 12, id="the norm is found, the trace uncertain"),
        pytest.param(2.0, 1.0, 8, id="the norm is uncertain, too"),
    ],
)
def test_what_is_necessary_is_less_than_the_truth_however_little_is_known(
    top: float, least: float, max_products: int
) -> None:
    """By another end of either interval than the cautious one it would be more than that."""
    operator = rotated([top, *torch.linspace(least, 2, 99)])
    truth = float(operator.matrix.trace()) / top
    for seed in range(5):
        found = along_training(lambda _: operator, [torch.ones(100)], seed=seed, rtol=1e-3, max_products=max_products)
        assert 0.6 * truth < found.kappa_necessary < truth


def test_points_are_in_the_ball_at_all_distances():
    d, radius = 40, 3.0
    found = ball_probe(at, torch.zeros(d).double(), radius, seed=2, points=6, dominate=False, rtol=0.5)
    distances = [point.distance for point in found.points]
    assert distances[0] == 0.0
    assert max(distances) <= radius * (1 + 1e-12)
    assert 0.0 < min(distances[1:]) < 2.0
    assert len(found.points) == 7
    assert found.recommended == found.kappa_necessary
    assert found.kappa_sufficient is None
    assert math.isinf(found.relative_radius)
    assert "larger than the model's own norm" in found.reason


@pytest.mark.parametrize(
    ("dominate", "confidence"),
    [pytest.param(True, 0.88, id="6 statements"), pytest.param(False, 0.94, id="3 statements")],
)
def test_every_statement_has_an_equal_share_of_the_error(dominate: bool, confidence: float) -> None:
    """Three points make a statement each, or two with that of D: of 0.98 each, all hold as often as was asked for."""
    points = [torch.full((60,), each).double() for each in (0.0, 0.2, 0.4)]
    found = along_training(at, points, seed=0, dominate=dominate, confidence=confidence, max_products=12)
    alone = [effective_rank(at(x), rtol=0.1, confidence=0.98, max_products=12, seed=0) for x in points]
    ends = [end for point in found.points for end in point.rank.interval]
    assert ends == pytest.approx([end for rank in alone for end in rank.interval], rel=1e-9)
    terms = [at(points[0]), *(at(x) - at(points[0]) for x in points[1:])] if dominate else []
    asked: dict[str, Any] = {"part": "positive", "confidence": 0.98, "products": 12, "seed": 0}
    wanted = sum(effective_rank(term, **asked).trace_interval[1] for term in terms) / found.lambda_max
    assert (found.kappa_sufficient or 0.0) == pytest.approx(wanted, rel=1e-6)


def test_the_result_repeats_and_its_points_are_in_its_json():
    one, two, other = (ball_probe(at, torch.ones(8).double(), 0.5, seed=seed, points=2) for seed in (3, 3, 4))
    assert [p.distance for p in one.points] == [p.distance for p in two.points] != [p.distance for p in other.points]
    assert one.recommended == two.recommended
    written = one.to_json()["points"]
    assert [point["rank"]["kappa"] for point in written] == [point.rank.kappa for point in one.points]


def test_a_loss_that_is_concave_everywhere_leaves_kappa_free_and_says_so():
    found = ball_probe(lambda _: DenseOperator(-torch.eye(6).double()), torch.ones(6).double(), 1.0, seed=0, points=1)
    assert found.kappa_sufficient is None
    assert math.isnan(found.kappa_necessary)
    assert "no sampled point has a positive eigenvalue" in found.reason


def test_a_point_that_missed_its_accuracy_is_counted():
    spread = torch.diag(torch.logspace(0, 2, 200, dtype=torch.float64))
    found = ball_probe(
        lambda _: DenseOperator(spread), torch.ones(200).double(), 1.0, seed=0, points=1, rtol=1e-3, max_products=20
    )
    assert "2 of 2 points missed the asked accuracy" in found.reason


def test_the_radius_is_the_papers():
    assert ball_radius(1e-3, 1630, 2.5) == pytest.approx(2 * 1e-3 * 1630 * 2.5)
