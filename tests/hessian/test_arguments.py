"""Arguments that break a rule are named by whatever function of ``hessian`` is given them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from hessian import (
    DataParallelOperator,
    DenseOperator,
    KappaEvery,
    SmoothedOperator,
    as_operator,
    ball_probe,
    ball_radius,
    by_layer,
    diagonal,
    effective_rank,
    forward_only,
    lanczos,
    spectral_density,
    split_sample,
    top_eigenvalues,
)
from hessian.kappa.picture import picture
from tests.hessian import problems
from tests.hessian.operators.test_exact import mixed
from tests.hessian.operators.test_smoothed import Quadratic
from tests.hessian.spectra import Broken, rotated
from tests.refusals import refuses

THREE = rotated([1.0, 2.0, 3.0])
WIDE = rotated(list(np.linspace(0.0, 2.0, 200)))


def ball(**change: Any) -> object:
    return ball_probe(lambda _: THREE, **{"x": torch.ones(3).double(), "radius": 1.0, "seed": 0, **change})


def forward(**change: Any) -> object:
    def square(x: Tensor) -> float:
        return float(x.square().sum())

    return forward_only(square, torch.ones(60).double(), **{"seed": 0, "probes": 20, **change})


def smoothed(**change: Any) -> object:
    return SmoothedOperator(Quadratic(THREE.matrix), **{"x": torch.ones(3).double(), "mu": 1e-3, **change})


@refuses(
    (lambda: effective_rank(THREE, rtol=0.0), "rtol must be a finite number above 0"),
    (lambda: effective_rank(THREE, confidence=1.0), "confidence must be between 0 and 1"),
    (lambda: effective_rank(THREE, max_products=4), "max_products must be an integer of at least 5, got 4"),
    (lambda: effective_rank(THREE, products=4), "products must be an integer of at least 5, got 4"),
    (lambda: effective_rank(THREE, seed=-1), "seed must be an integer in 0"),
    (lambda: ball(radius=0.0), "radius must be a finite number above 0"),
    (lambda: ball(points=0), "points must be an integer of at least 1"),
    (lambda: ball(confidence=1.5), "confidence must be between 0 and 1"),
    (lambda: forward(probes=7), "probes must be an integer of at least 8"),
    (lambda: forward(mu=0.0), "mu must be a finite number above 0"),
    (lambda: forward(mu=1e-30), "mu must move x"),
    (lambda: forward(mus=(1e-3, 1e-2)), "mus must be at least three rising numbers"),
    (lambda: forward(mus=(1e-2, 1e-3, 1e-4)), "mus must be at least three rising numbers"),
    (lambda: forward(mus=(0.0, 1e-3, 1e-2)), "mu must be a finite number above 0"),
    (lambda: forward(confidence=1.0), "confidence must be between 0 and 1"),
    (lambda: forward(resamples=3), "resamples must be an integer of at least 100"),
    (lambda: spectral_density(THREE, probes=0), "probes must be an integer of at least 1"),
    (lambda: spectral_density(THREE, products=2), "products must be an integer of at least 3, got 2"),
    (lambda: spectral_density(THREE, seed=-1), "seed must be an integer in 0"),
    (lambda: spectral_density(THREE).curve([0.0], bandwidth=0.0), "bandwidth must be a finite number above"),
    (lambda: spectral_density(Broken(WIDE, 28)), "product 28 of dense must be finite"),
    (lambda: top_eigenvalues(THREE, k=0), "k must be an integer of at least 1, got 0"),
    (lambda: top_eigenvalues(THREE, k=4), "k must be an integer in 1..3, got 4"),
    (lambda: top_eigenvalues(THREE, k=3, max_products=2), "max_products must be an integer of at least 3, got 2"),
    (lambda: top_eigenvalues(THREE, which="LM"), "which must be one of magnitude, largest, smallest, got 'LM'"),
    (lambda: top_eigenvalues(THREE, rtol=0.0), "rtol must be a finite number above 0"),
    (lambda: top_eigenvalues(THREE, seed=-1), "seed must be an integer in 0"),
    (lambda: lanczos(THREE, seed=0, steps=0), "steps must be an integer of at least 1"),
    (lambda: lanczos(THREE, seed=-1, steps=2), "seed must be an integer in 0"),
    (lambda: lanczos(THREE, seed=0, steps=2, tol=0.0), "tol must be a finite number above 0"),
    (lambda: lanczos(THREE, seed=0, steps=2, max_basis=3), "max_basis must be an integer of at least 4"),
    (
        lambda: lanczos(Broken(WIDE, 4), seed=0, steps=9),
        "product 4 of dense must be finite, got 'NaN or infinity in 200",
    ),
    (
        lambda: effective_rank(THREE, sed=1),  # type: ignore[call-arg]
        r"option of effective_rank must be .*, got 'sed' \(did you mean seed\?\)",
    ),
    (lambda: KappaEvery(cross_entropy, problems.data(), every=0), "every must be an integer of at least 1, got 0"),
    (lambda: split_sample((THREE, WIDE), seed=0), r"halves must have one dimension, got \(3, 200\)"),
    (
        lambda: picture(effective_rank(THREE, seed=0), spectral_density(WIDE)),
        "density must be of d = 3 eigenvalues, got 200",
    ),
    (
        lambda: effective_rank(DenseOperator(torch.zeros(30, 30)), seed=0).plot("never.png"),
        "result must have a κ, for a picture, got nan",
    ),
    (lambda: forward_only(lambda x: math.nan, torch.ones(4), seed=0), "loss f must be finite at every point"),
    (lambda: forward_only(lambda x: math.inf, torch.ones(4), seed=0), "loss f must be finite at every point"),
    (lambda: ball_radius(0.0, 5, 1.0), "eta must be a finite number above 0, got 0.0"),
    (lambda: ball_radius(1e-3, 0, 1.0), "d must be an integer of at least 1, got 0"),
    (lambda: ball_radius(1e-3, 5, math.nan), "G must be a finite number above 0, got nan"),
    (
        lambda: by_layer(rotated([1.0, 2.0])),
        "model must be a module, or an operator of a module's parameters, got dense",
    ),
    (
        lambda: by_layer(problems.mlp(), cross_entropy, problems.data(), depth=0),
        "depth must be an integer of at least 1, got 0",
    ),
    (
        lambda: diagonal(sparse.eye_array(9)).named,
        "the dia_array must be a matrix of a module's parameters to have their names",
    ),
    (lambda: diagonal(WIDE, products=3), "products must be an integer of at least 4, got 3"),
    (lambda: DataParallelOperator(THREE, weight=1), "torch.distributed must be initialised"),
    (lambda: mixed(lambda z, y: mse_loss(z.cumsum(0), y)), "mean of losses of single examples"),
    (
        lambda: mixed(lambda z, y: mse_loss(z, y.reshape(-1)), nn.Flatten(0)),
        r"outputs must have the 6 examples in their first dimension, got \(12,\)",
    ),
    (lambda: as_operator(WIDE, d=200), "d and dtype must stay unset with"),
    (lambda: as_operator(WIDE.matrix.numpy(), dtype=torch.float64), "d and dtype must stay unset with"),
    (lambda: smoothed(mu=0.0), "mu must be a finite number above 0"),
    (lambda: smoothed(mu=1e-40), "mu must move x"),
    (lambda: smoothed(samples=0), "samples must be an integer of at least 1"),
    (lambda: smoothed(x=torch.ones(3, 3)), "x must be a vector of float32 or float64"),
    (lambda: smoothed(x=torch.ones(3).half()), "x must be a vector of float32 or float64"),
    (lambda: smoothed(seed=-1), "seed must be an integer"),
)
def test_arguments_that_break_a_rule_are_named(attempt: Callable[[], object]) -> None:
    attempt()
