"""Lanczos against dense spectra, closed forms, and a Lanczos without reorthogonalisation."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.ways.spectra import SPECTRA
from hessian.operators.operator import Counted, DenseOperator
from hessian.operators.probes import probe
from hessian.spectrum import lanczos as lanczos_module
from hessian.spectrum.lanczos import Krylov, Lanczos, complement_, lanczos
from tests.cases import rows_of
from tests.hessian.spectra import Watched, rotated

ENDED = rows_of(__file__)["ended"]
OUTLIERS = [10.0, 7.0, -6.0, 4.0, *np.linspace(-1, 1, 60)]


def recurrence_error(operator: DenseOperator, found: Lanczos) -> float:
    """How far H Qᵀ = Qᵀ T + q cᵀ and (Q, q) orthonormal are from true."""
    Q, H = torch.stack(found.vectors).double(), operator.matrix.double()
    rest = H @ Q.T - Q.T @ found.projected
    vectors = Q
    if found.following is not None:
        rest -= torch.outer(found.following.double(), found.coupling)
        vectors = torch.cat([Q, found.following.double()[None]])
    gram = vectors @ vectors.T - torch.eye(len(vectors), dtype=torch.float64)
    return float(max(rest.abs().max() / (H.abs().max() + 1e-300), gram.abs().max()))


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=12),
    st.integers(1, 14),
    st.integers(0, 2**64 - 1),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([None, 4]),
)
def test_recurrence_orthogonality_and_residuals_hold_for_every_spectrum(
    values: list[float], steps: int, seed: int, dtype: torch.dtype, most: int | None
) -> None:
    operator = Watched(rotated(values, dtype=dtype))
    found = lanczos(operator, steps=steps, seed=seed, max_basis=most)
    eps = torch.finfo(dtype).eps
    true = torch.linalg.eigvalsh(operator.matrix.double())
    scale = float(true.abs().max())
    assert found.products == operator.calls
    if most is None:
        assert found.products == len(found.vectors) == min(steps, len(values))
        assert found.weights is not None  # Gauss's rule: the first moments are those of the start vector
        first, square = found.projected[0, 0], found.projected[0].square().sum()
        moments = [float(found.weights @ found.ritz_values**k) for k in range(3)]
        assert moments == pytest.approx([1.0, float(first), float(square)], rel=1e-4, abs=1e-4 * scale**2)
    assert recurrence_error(operator, found) < 200 * eps
    distances = (found.ritz_values[:, None] - true[None, :]).abs().min(dim=1).values
    assert bool((distances <= found.ritz_residuals + 100 * eps * scale).all())
    assert float(found.ritz_values[-1]) <= float(true[-1]) + 100 * eps * scale
    assert float(found.ritz_values[0]) >= float(true[0]) - 100 * eps * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_second_pass_is_taken_where_little_is_left(dtype: torch.dtype) -> None:
    vectors = lanczos(rotated(list(range(300)), dtype=dtype), steps=9, seed=0).vectors
    v, errors = vectors[2] + 1e-4 * probe(vectors[0], 0, 0, 0), []
    for small in (lanczos_module.SMALL, float("inf")):  # the second never takes another pass
        with mock.patch.object(lanczos_module, "SMALL", small):
            u = complement_(vectors, v.clone())
        errors.append(float((torch.stack(vectors) @ u).abs().max() / u.norm()) / torch.finfo(dtype).eps)
    assert errors[0] < 10 < 100 < errors[1]


@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_sums_in_float32_bear_every_scale(scale: float) -> None:
    found, plain = (
        lanczos(rotated([c * v for v in OUTLIERS], dtype=torch.float32), steps=9, seed=1) for c in (scale, 1)
    )
    np.testing.assert_allclose(found.ritz_values / scale, plain.ritz_values, rtol=1e-4)


def test_bits_do_not_depend_on_where_a_product_begins() -> None:
    class Shifted(DenseOperator):
        def matvec(self, v: Tensor) -> Tensor:
            return torch.empty(1030)[next(at) :][:999].copy_(self.matrix @ v)

    operator, at = Shifted(rotated([*range(999)], dtype=torch.float32).matrix), (n**2 % 31 for n in range(99))
    assert torch.equal(*(lanczos(operator, steps=20, seed=0).projected for _ in range(2)))


def test_outer_eigenvalues_converge_and_are_certified() -> None:
    operator = Watched(rotated(OUTLIERS))
    found = lanczos(operator, steps=40, seed=1, tol=1e-6)
    assert found.converged
    assert found.products == operator.calls < 40
    assert float(found.ritz_values[found.top]) == pytest.approx(10.0, rel=1e-10)  # quadratic in the residual
    assert not lanczos(operator, steps=2, seed=1, tol=1e-6).converged
    u = found.ritz_vectors([found.top])[0]
    residual = float((operator.matvec(u) - 10.0 * u).norm())
    assert residual == pytest.approx(float(found.ritz_residuals[found.top]), rel=1e-3)


@pytest.mark.thorough
def test_vectors_are_orthogonal_in_float32_after_200_steps_so_no_eigenvalue_has_a_ghost() -> None:
    wide, true = SPECTRA["transformer"]()
    operator = DenseOperator(wide.matrix.float())  # type: ignore[attr-defined]
    found = lanczos(operator, steps=200, seed=0)
    assert recurrence_error(operator, found) < 200 * torch.finfo(torch.float32).eps
    level = 0.005 * true[-1]
    assert int((found.ritz_values > level).sum()) == int((true > level).sum()) > 10


@pytest.mark.parametrize("name", ENDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spaces_that_end(name: str, dtype: torch.dtype) -> None:
    values, steps, ritz = ENDED[name]
    found = lanczos(rotated(values, dtype=dtype), steps=steps, seed=0)
    np.testing.assert_allclose(found.ritz_values, ritz, atol=1e-5)
    assert (found.following is None) == (steps >= len(values))
    assert not found.ritz_residuals.any()


def test_restarts_keep_the_basis_small_and_still_converge() -> None:
    operator = Watched(rotated(OUTLIERS))
    for steps in (8, 9, 13, 60):
        found = lanczos(operator, steps=steps, seed=2, max_basis=8)
        assert len(found.vectors) <= 8
        assert found.products == steps == operator.calls
        operator.asked.clear()
        assert recurrence_error(operator, found) < 1e-12
        assert (found.weights is None) == (steps > 8)
    np.testing.assert_allclose(found.ritz_values[found.ritz_values.abs() > 5], [-6, 7, 10], rtol=1e-8)


@pytest.mark.parametrize(("values", "steps"), [([*range(-3, 20)], 5), ([2.0] * 30, 1)], ids=["coupled", "invariant"])
def test_a_finished_space_is_resumed_at_the_same_vector(values: list[float], steps: int) -> None:
    krylov = Krylov(Counted(rotated(values)), seed=1)
    for _ in range(steps):
        krylov.step()
    following = krylov.following
    krylov.finish()
    krylov.resume()
    torch.testing.assert_close(krylov.following, following)
