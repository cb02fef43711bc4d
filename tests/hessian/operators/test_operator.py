"""What every operator has from its base class: @, +, *, scipy's interface."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import hessian
from hessian import DenseOperator, MeanLoss, Operator, effective_rank
from tests.hessian import problems
from tests.hessian.spectra import rotated
from tests.refusals import refuses

A, B = rotated(list(np.linspace(-1, 3, 30))), rotated(list(np.linspace(0, 1, 30)), seed=1)
INPUTS, TARGETS = problems.data()


def test_scipys_operator_takes_vectors_of_any_kind_and_matrices() -> None:
    inner = A.to_scipy()
    v = np.arange(30)  # integers, of which a part is read-only
    v.flags.writeable = False
    assert inner @ v == pytest.approx(A.matrix.numpy() @ v)
    assert inner @ v[::-1] == pytest.approx(A.matrix.numpy() @ v[::-1])
    V = np.random.default_rng(0).standard_normal((30, 4))
    assert inner @ V == pytest.approx(A.matrix.numpy() @ V)
    assert pytest.approx(inner @ V) == inner.T @ V


COMBINED: dict[str, tuple[Operator, Tensor]] = {
    "dense + dense": (A + B, A.matrix + B.matrix),
    "2 × dense": (2 * A, 2 * A.matrix),
    "0.5 × dense": (A * np.float64(0.5), A.matrix / 2),
    "-1 × dense": (-A, -A.matrix),
    "3 × (dense + 2 × dense)": (np.float32(3) * (A + 2 * B), 3 * A.matrix + 6 * B.matrix),
    "dense + -1 × dense": (A - B, A.matrix - B.matrix),
}


@pytest.mark.parametrize("name", COMBINED)
def test_sums_and_multiples_are_operators(name: str) -> None:
    operator, dense = COMBINED[name]
    assert operator.name == name
    v = torch.linspace(-1, 1, 30, dtype=torch.float64)
    kept = v.clone()
    torch.testing.assert_close(operator @ v, dense @ v)
    assert operator.quad(v) == pytest.approx(float(v @ dense @ v))
    assert torch.equal(v, kept)
    torch.testing.assert_close(A @ v, A.matrix @ v)  # the parts are as they were
    assert effective_rank(operator, products=30).kappa == pytest.approx(
        float(dense.trace() / torch.linalg.eigvalsh(dense).abs().max())
    )


def test_no_two_combinations_have_one_fingerprint() -> None:
    digests = {operator.fingerprint() for operator, _ in COMBINED.values()} | {A.fingerprint(), B.fingerprint()}
    assert len(digests) == len(COMBINED) + 2
    assert (A + B).fingerprint() == (A + B).fingerprint()


def test_a_sum_says_what_its_parts_have_to_say_once() -> None:
    f = MeanLoss(problems.mlp(), cross_entropy, (INPUTS, TARGETS), trust=True)
    H, G = hessian.curvature(f), hessian.curvature(f, operator="gauss-newton")
    assert (H + 0.5 * G).remarks == ("module, loss and data were taken on trust",)
    assert (H + G).layout == f.layout


@refuses(
    (lambda: A @ np.ones(30), r"v must be a tensor \(numpy's arrays go to H.to_scipy\(\)\), got ndarray"),
    (lambda: A @ torch.ones(29).double(), r"v must have shape, dtype and device \(\(30,\), torch.float64"),
    (lambda: A @ torch.ones(30), r"v must have shape, dtype and device .*, got \(\(30,\), torch.float32"),
    (lambda: A @ torch.ones(30, 0), r"v must be a vector \(d,\) or a matrix \(d, n\) of at least one column"),
    (lambda: A + rotated([1.0, 2.0]), "operators of a sum must have one dimension, dtype and device"),
    (lambda: A + DenseOperator(B.matrix.float()), "operators of a sum must have one dimension, dtype and device"),
)
def test_what_does_not_fit_is_refused(wrong: Callable[[], Any]) -> None:
    wrong()


@pytest.mark.parametrize("wrong", [lambda: A + 1.0, lambda: A * "2", lambda: A * float("nan"), lambda: A * A])
def test_what_no_operator_can_be_is_a_type_error(wrong: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        wrong()
