"""Arguments that break a rule are named by whatever function of ``hessian`` is given them."""

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import hessian
from hessian import DenseOperator, KappaEvery, effective_rank, forward_only, lanczos, spectral_density, split_sample
from hessian.kappa.picture import picture
from tests.cases import calls, refuses, rows_of
from tests.hessian import problems
from tests.hessian.operators.test_gauss_newton_trace import mixed
from tests.hessian.operators.test_smoothing import quadratic
from tests.hessian.spectra import Broken, rotated

THREE = rotated([1.0, 2.0, 3.0])
WIDE = rotated(list(np.linspace(0.0, 2.0, 200)))


def ball(**change: Any) -> object:
    return hessian.ball_probe(lambda _: THREE, **{"x": torch.ones(3).double(), "radius": 1.0, "seed": 0, **change})


def forward(**change: Any) -> object:
    def square(x: Tensor) -> float:
        return float(x.square().sum())

    return forward_only(square, torch.ones(60).double(), **{"seed": 0, "probes": 20, **change})


def smoothed(**change: Any) -> object:
    return hessian.SmoothedOperator(quadratic(THREE.matrix), **{"x": torch.ones(3).double(), "mu": 1e-3, **change})


# Functions of the operator THREE, each under its own name.
OF_THREE = [
    wraps(of)(partial(of, THREE)) for of in (effective_rank, spectral_density, hessian.top_eigenvalues, lanczos)
]


@refuses(
    *calls(rows_of(__file__)["refused"], ball, forward, smoothed, *OF_THREE),
    (lambda: spectral_density(THREE).curve([0.0], bandwidth=0.0), "bandwidth must be a finite number above"),
    (lambda: spectral_density(Broken(WIDE, 28)), "product 28 of dense must be finite"),
    (
        lambda: lanczos(Broken(WIDE, 4), seed=0, steps=9),
        "product 4 of dense must be finite, got 'NaN or infinity in 200",
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
    (lambda: hessian.ball_radius(0.0, 5, 1.0), "eta must be a finite number above 0, got 0.0"),
    (lambda: hessian.ball_radius(1e-3, 0, 1.0), "d must be an integer of at least 1, got 0"),
    (lambda: hessian.ball_radius(1e-3, 5, math.nan), "G must be a finite number above 0, got nan"),
    (
        lambda: hessian.by_layer(rotated([1.0, 2.0])),
        "model must be a module, or an operator of a module's parameters, got dense",
    ),
    (
        lambda: hessian.by_layer(problems.mlp(), cross_entropy, problems.data(), depth=0),
        "depth must be an integer of at least 1, got 0",
    ),
    (
        lambda: hessian.diagonal(sparse.eye_array(9)).named,
        "the dia_array must be a matrix of a module's parameters to have their names",
    ),
    (lambda: hessian.diagonal(WIDE, products=3), "products must be an integer of at least 4, got 3"),
    (lambda: mixed(lambda z, y: mse_loss(z.cumsum(0), y)), "mean of losses of single examples"),
    (
        lambda: mixed(lambda z, y: mse_loss(z, y.reshape(-1)), nn.Flatten(0)),
        r"outputs must have the 6 examples in their first dimension, got \(12,\)",
    ),
    (lambda: hessian.DataParallelOperator(WIDE, weight=1), "torch.distributed must be initialised"),
    (lambda: hessian.as_operator(WIDE, d=200), "d and dtype must stay unset with"),
    (lambda: hessian.as_operator(WIDE.matrix.numpy(), dtype=torch.float64), "d and dtype must stay unset with"),
    (lambda: smoothed(x=torch.ones(3, 3)), "x must be a vector of float32 or float64"),
    (lambda: smoothed(x=torch.ones(3).half()), "x must be a vector of float32 or float64"),
)
def test_arguments_that_break_a_rule_are_named(attempt: Callable[[], object]) -> None:
    attempt()
