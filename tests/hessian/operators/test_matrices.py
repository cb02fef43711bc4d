"""Matrices of others, and functions: each is tried, and what is no symmetric matrix is refused."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hessian
from decomfl_lab.errors import InputError
from hessian import FunctionOperator, as_operator
from tests.cases import refuses, sampled
from tests.hessian import problems
from tests.hessian.spectra import rotated

D = 40
H = rotated(list(np.concatenate([[9.0, -4.0], np.linspace(0.5, 1.5, D - 2)]))).matrix
ARRAY = H.numpy()
KAPPA = float(H.trace() / 9.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, "float64"])
@pytest.mark.parametrize("to", [lambda v: H.to(v.dtype) @ v, lambda v: (ARRAY @ v.numpy()).astype(np.float32)])
def test_a_function_with_its_dimension_will_do(to: Callable[[Tensor], Any], dtype: Any) -> None:
    found = hessian.effective_rank(to, d=D, dtype=dtype, products=D)
    assert found.kappa == pytest.approx(KAPPA, rel=1e-4)
    assert (found.operator, found.dtype) == ("<lambda>", str(dtype).removeprefix("torch."))


def test_an_operator_is_tried_once_and_has_a_name() -> None:
    calls = 0

    def product(v: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return H @ v

    operator = as_operator(product, D, dtype=torch.float64, name="mine")
    assert calls == 3
    assert hessian.effective_rank(operator, products=12).operator == "mine"
    assert calls == 3 + 12
    assert as_operator(operator) is operator
    trusted = hessian.effective_rank(product, d=D, dtype=torch.float64, products=12, trust=True)
    assert calls == 3 + 2 * 12
    assert trusted.reason.endswith("; product was taken on trust")


def lopsided() -> Tensor:
    other = H.clone()
    other[3, :] += 0.3 * torch.linspace(-1, 1, D, dtype=torch.float64)
    return other


def noisy(v: Tensor) -> Tensor:
    return H @ v + 0.01 * torch.randn(D, dtype=torch.float64)


def writing(v: Tensor) -> Tensor:
    return v.mul_(2)


def scaled(v: Tensor) -> Tensor:
    return (H @ v) / v.norm()


def shifted(v: Tensor) -> Tensor:
    return H @ v + 1


def with_nan(v: Tensor) -> Tensor:
    return torch.where(torch.arange(D) == 7, torch.nan, H @ v)


@refuses(
    (lambda v: lopsided() @ v, "<lambda> must be symmetric, uᵀHv = vᵀHu, got"),
    (aslinearoperator(lopsided().numpy()), "MatrixLinearOperator must be symmetric, uᵀHv"),
    (sparse.csr_array(lopsided().numpy()), "csr_array must be symmetric, uᵀHv = vᵀHu"),
    (lopsided(), r"matrix must be symmetric, got '\|A - Aᵀ\| up to"),
    (noisy, r"noisy must give the same product for the same vector \(is there noise, dropout, or a new"),
    (writing, "writing must not write to the vector that it is given"),
    (scaled, r"scaled must be linear, H\(-2v\) = -2 Hv"),
    (shifted, r"shifted must be linear, H\(-2v\) = -2 Hv"),
    (with_nan, "what with_nan gives for a vector must be finite, got 'NaN or infinity'"),
    (lambda v: v[1:], r"must have shape \(40,\) and numbers of float32 or float64, got \(\(39,\)"),
    (lambda v: v[:, None], r"must have shape \(40,\) and numbers of float32 or float64, got \(\(40, 1\)"),
    (lambda v: v.long(), r"must have shape \(40,\) and numbers of float32 or float64, got .*torch.int64"),
    (lambda v: v.half(), r"must have shape \(40,\) and numbers of float32 or float64, got .*torch.float16"),
    (np.ma.masked_array(np.eye(5), mask=np.eye(5)), "have no mask"),
    (lambda v: None, "what <lambda> gives for a vector must be a tensor or an array, got NoneType"),
    (sparse.csr_array(ARRAY[:30]), r"shape of csr_array must be \(d, d\), got \(30, 40\)"),
    (ARRAY[0], r"shape of ndarray must be \(d, d\), got \(40,\)"),
    (sparse.eye_array(5, dtype=int), "dtype of dia_array must be float32 or float64, got 'int64'"),
    (sparse.eye_array(5, dtype=complex), "dtype of dia_array must be float32 or float64, got 'complex128'"),
    (H + 0j, "matrix must be of float32 or float64, got torch.complex128"),
    ([[1.0]], "model must be a torch module, an operator .*, a matrix or a function"),
)
def test_what_is_no_symmetric_matrix_is_refused_with_a_word(matrix: Any) -> None:
    d = D if callable(matrix) and not hasattr(matrix, "shape") else None
    hessian.effective_rank(matrix, d=d, **({"dtype": torch.float64} if d else {}))


@refuses(
    ({}, "d must be given with a function of a vector, as the dimension of its matrix, got None"),
    ({"d": 0}, "d must be an integer of at least 1, got 0"),
    ({"d": D, "dtype": "float16"}, "dtype must be one of float32, float64, got 'float16'"),
    ({"d": D, "weight_decay": 0.1}, "weight_decay must be given with a module, and not with an operator"),
    ({"d": D, "operator": "fisher"}, "operator must be given with a module, and not with an operator"),
)
def test_options_that_do_not_fit_a_function_are_named(options: dict[str, Any]) -> None:
    hessian.effective_rank(lambda v: v, **options)


def test_a_checkpoint_of_a_function_knows_its_matrix_by_a_product(tmp_path: Path) -> None:
    path, other = tmp_path / "k", rotated(list(np.linspace(0, 1, D))).matrix
    found = hessian.effective_rank(lambda v: H @ v, d=D, dtype="float64", checkpoint=path)
    again = hessian.effective_rank(lambda v: H @ v, d=D, dtype="float64", checkpoint=path, trust=True)
    assert again.kappa == found.kappa
    for unlike in ((lambda v: other @ v, "float64"), (lambda v: H.float() @ v, "float32")):
        with pytest.raises(InputError, match=r"checkpoint must be of this run \(operator differ\)"):
            hessian.effective_rank(unlike[0], d=D, dtype=unlike[1], checkpoint=path)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_the_unit_of_the_matrix_changes_no_verdict(scale: float) -> None:
    assert FunctionOperator(lambda v: scale * (H.float() @ v), D).d == D
    with pytest.raises(InputError, match="must be symmetric"):
        FunctionOperator(lambda v: scale * (lopsided() @ v), D, dtype="float64")
    assert FunctionOperator(torch.zeros_like, D).d == D


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", sampled(["HessianLinearOperator", "GGNLinearOperator", "KFACLinearOperator"], 1))
def test_curvlinops_operators_have_the_kappa_of_their_dense_matrix(kind: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        library = pytest.importorskip("curvlinops")
    module, (inputs, targets) = problems.mlp(nn.Tanh).float(), problems.data()
    data = [(inputs.float(), targets)]
    operator = getattr(library, kind)(module, nn.CrossEntropyLoss(), list(module.parameters()), data)
    found = hessian.effective_rank(operator, products=operator.shape[0])
    dense = (operator @ torch.eye(found.d)).double()
    true = float(dense.trace() / torch.linalg.eigvalsh((dense + dense.T) / 2).abs().max())
    assert found.kappa == pytest.approx(true, rel=1e-3)
    assert hessian.effective_rank(operator.to_scipy(), products=found.d).kappa == pytest.approx(true, rel=1e-3)
    if kind == "HessianLinearOperator":
        ours = hessian.effective_rank(module, cross_entropy, data, products=found.d)
        assert ours.kappa == pytest.approx(true, rel=1e-3)


@pytest.mark.parametrize("coarse", [torch.float32, torch.float16])
def test_a_function_that_works_in_a_coarser_dtype_gets_room_for_it(coarse: torch.dtype) -> None:
    H = rotated(np.linspace(0.1, 2.0, 60).tolist()).matrix
    low = H.to(coarse).double() if coarse == torch.float32 else H.half().double()
    truth = float(H.trace() / torch.linalg.eigvalsh(H).abs().max())
    found = hessian.effective_rank(
        lambda v: (low @ v.to(coarse).double()).to(coarse).double(), d=60, dtype="float64", products=70
    )
    assert found.interval[0] <= truth <= found.interval[1]


def test_a_name_makes_no_matrix_semidefinite() -> None:
    named = as_operator(np.diag([1.0, -0.9, -0.9, -0.9] + [0.0] * 60), name="gauss-newton")
    assert hessian.effective_rank(named, products=6).others == ()
    assert as_operator(torch.eye(4, requires_grad=True)).fingerprint()
