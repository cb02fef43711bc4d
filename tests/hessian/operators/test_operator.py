"""What every operator has from its base class: @, +, *, scipy's interface."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import hessian
from hessian import BlockOperator, DenseOperator, MeanLoss, Operator, effective_rank
from hessian.kappa.function_values import mu_ladder
from tests.cases import refuses
from tests.hessian import problems
from tests.hessian.spectra import Watched, rotated

A, B = rotated(list(np.linspace(-1, 3, 30))), rotated(list(np.linspace(0, 1, 30)), seed=1)
I = torch.eye(30, dtype=torch.float64)  # noqa: E741
SCALE, PLACES = torch.logspace(-1, 1, 30, dtype=torch.float64), [1, 2, 3, *range(10, 15)]
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
    "dense + 0.1": (0.1 + A.T, A.matrix + 0.1 * I),
    "2 × (dense + -3)": ((A - 3) / 0.5, 2 * A.matrix - 6 * I),
    "-1 × dense + 1": (1 - A, I - A.matrix),
    "whitened dense": (hessian.WhitenedOperator(A, SCALE), SCALE[:, None] * A.matrix * SCALE),
    "dense": (BlockOperator(A, [slice(1, 4), slice(10, 15)]), A.matrix[PLACES][:, PLACES]),
}


@pytest.mark.parametrize("name", COMBINED)
def test_sums_multiples_whitened_ones_and_blocks_are_operators(name: str) -> None:
    operator, dense = COMBINED[name]
    assert operator.name == name
    v = torch.linspace(-1, 1, operator.d, dtype=torch.float64)
    kept = v.clone()
    torch.testing.assert_close(operator @ v, dense @ v)
    assert operator.quad(v) == pytest.approx(float(v @ dense @ v))
    assert torch.equal(v, kept)
    torch.testing.assert_close(A @ I, A.matrix)  # the parts are as they were
    assert effective_rank(operator, products=30).kappa == pytest.approx(problems.kappa_of(dense))


H = hessian.curvature(MeanLoss(problems.mlp(), cross_entropy, (INPUTS, TARGETS)), operator="gauss-newton")


@pytest.mark.parametrize("form", [list, tuple, dict])
def test_tensors_in_the_shapes_of_the_parameters_have_products_like_them(form: Any) -> None:
    v = torch.linspace(-1, 1, H.d, dtype=H.dtype)
    parts = [each.view(shape) for each, shape in zip(v.split(H.layout.sizes), H.layout.shapes, strict=True)]
    tree = dict(reversed([*zip(H.layout.names, parts, strict=True)])) if form is dict else form(parts)
    product, x = H @ tree, hessian.solve(H + 0.1, tree, rtol=1e-8).x
    assert type(product) is type(x) is form
    assert form is not dict or list(product) == list(tree)
    assert torch.equal(H.flat(product), H @ v)
    assert (H @ v.numpy()).tolist() == (H @ v).tolist()
    torch.testing.assert_close((H + 0.1) @ H.flat(x), v, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("damping", "most"), [(1.5, 200), (1.001, 4)])
def test_conjugate_gradients_solve_or_say_how_far_they_are(damping: float, most: int) -> None:
    watched, b = Watched(A), torch.linspace(-1, 2, 30, dtype=torch.float64)
    found = hessian.solve(watched + damping, b, max_products=most)
    off = b - (A.matrix + damping * I) @ found.x
    assert found.residual == pytest.approx(float(off.norm() / b.norm()), rel=1e-6)
    assert found.converged == (found.residual <= 1.1e-4) == (most == 200)
    assert found.products == watched.calls <= most
    assert found.form == pytest.approx(float(b @ found.x))
    assert f"residual {found.residual:.2g} after {found.products} products" in repr(found)


def test_a_solution_that_float32_hides_is_not_called_converged() -> None:
    """The residual that conjugate gradients carry along falls below any rtol; what it really is does not."""
    ill = rotated(torch.logspace(-3, 0, 30).tolist()).matrix.float()
    found = hessian.solve(DenseOperator(ill), torch.ones(30), rtol=1e-6, max_products=300)
    assert found.products < 300  # it ended because of the one, and is judged by the other
    assert found.residual > 1e-6
    assert not found.converged
    assert "take float64" in found.summary()


def test_no_two_combinations_have_one_fingerprint() -> None:
    operators = [A, B, BlockOperator(A, [slice(0, 8)]), *(operator for operator, _ in COMBINED.values())]
    assert len({operator.fingerprint() for operator in operators}) == len(operators)
    assert (A + B).fingerprint() == (A + B).fingerprint()


def test_a_sum_says_what_its_parts_have_to_say_once() -> None:
    f = MeanLoss(problems.mlp(), cross_entropy, (INPUTS, TARGETS), trust=True)
    H, G = hessian.curvature(f), hessian.curvature(f, operator="gauss-newton")
    assert (H + 0.5 * G).remarks == ("module, loss and data were taken on trust",)
    assert (H + G).layout == f.layout


@refuses(
    (lambda: A @ "v", "v must be a tensor, an array or tensors like the parameters, got str"),
    (lambda: A @ [torch.ones(30)], "v must be a tensor with an operator that has no parameters, got list"),
    (lambda: H @ [torch.ones(3)], r"v must have the parameters' shapes \[\("),
    (lambda: H @ {"other": torch.ones(3)}, r"v must have the parameters' names alone, got \['other'\]"),
    (
        lambda: hessian.solve(A, torch.ones(30).double()),
        r"dense must be positive definite \(add more than −λ_min, which is at least .*Gauss",
    ),
    (lambda: A @ torch.ones(29).double(), r"v must have shape, dtype and device \(\(30,\), torch.float64"),
    (lambda: A @ torch.ones(30), r"v must have shape, dtype and device .*, got \(\(30,\), torch.float32"),
    (lambda: A @ torch.ones(30, 0), r"v must be a vector \(d,\) or a matrix \(d, n\) of at least one column"),
    (lambda: A + rotated([1.0, 2.0]), "operators of a sum must have one dimension, dtype and device"),
    (lambda: A + DenseOperator(B.matrix.float()), "operators of a sum must have one dimension, dtype and device"),
)
def test_what_does_not_fit_is_refused(wrong: Callable[[], Any]) -> None:
    wrong()


@pytest.mark.parametrize(
    "wrong", [lambda: A + "1", lambda: A / "2", lambda: A * "2", lambda: A * float("nan"), lambda: A * A]
)
def test_what_no_operator_can_be_is_a_type_error(wrong: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        wrong()


VALUES = torch.cat([torch.tensor([40.0, 25.0, 11.0, 6.0, -4.0]), torch.linspace(-0.2, 1.0, 55)]).double()


def asked(settings: dict[str, Any]) -> tuple[list[Watched], dict[str, Any]]:
    """The operators that are counted, and the arguments of ``effective_rank`` with them."""
    operator, twin = Watched(rotated(VALUES)), Watched(rotated(VALUES, seed=1))
    both = settings.get("trace_operator")
    return [operator, twin], {"model": operator, **settings, **({"trace_operator": twin} if both else {})}


WAYS = [
    pytest.param({"rtol": 0.05}, id="steps and products of probes"),
    pytest.param({"rtol": 0.02}, id="forms of probes, too"),
    pytest.param({"products": 17}, id="a budget"),
    pytest.param({"products": 80}, id="the whole space"),
    pytest.param({"max_products": 30, "max_basis": 6}, id="a small basis"),
    pytest.param({"trace": float(VALUES.sum()), "rtol": 1e-12}, id="a known trace"),
    pytest.param({"trace": float(VALUES.sum()), "products": 20, "max_basis": 4}, id="restarts"),
    pytest.param({"whiten": torch.linspace(0.5, 2, 60)}, id="whitened"),
    pytest.param({"trace_operator": True, "rtol": 0.3}, id="forms of another operator"),
    pytest.param({"trace_operator": True, "rtol": 1e-3, "max_products": 33}, id="both, and a most"),
    pytest.param({"trace_operator": True, "rtol": 0.3, "whiten": torch.linspace(0.5, 2, 60)}, id="both whitened"),
]
STEPS: list[dict[str, Any]] = [{"steps": 17}, {"steps": 17, "max_basis": 5}, {"steps": 90}, {"steps": 50, "tol": 1e-6}]
"""Ways to have Lanczos vectors, each of which ``tests.restarts`` stops at every event of its disk."""


@pytest.mark.parametrize("settings", WAYS)
def test_an_effective_rank_tells_its_products(settings: dict[str, Any]) -> None:
    operators, arguments = asked(settings)
    seen: list[hessian.EffectiveRankProgress] = []
    found = effective_rank(**arguments, seed=3, on_progress=seen.append)
    assert found.products == sum(each.calls for each in operators)
    assert found.products <= settings.get("max_products", found.products)
    assert found.quadratic_forms == sum(each.forms for each in operators)
    told = [each.products for each in seen]
    assert told == [each[0] for each in found.history]
    assert "trace_operator" in settings or told == [*range(1, found.products + 1)]  # a step and a form at once, there
    assert found.history[-1][1:] == (found.lambda_max, found.kappa, *found.interval)
    assert (seen[-1].kappa, seen[-1].low, seen[-1].high) == (found.kappa, *found.interval)


@pytest.mark.parametrize(("another", "products"), [(False, 1 + 1 + 3), (True, 1 + 1 + 1 + 3)])
def test_of_a_multiple_of_the_identity_the_products_are_foretold_to_the_last(another: bool, products: int) -> None:
    """A scout, a step (and the form of its vector by another operator), and three probes without any variance."""
    operator, twin = Watched(rotated([2.0] * 50)), Watched(rotated([2.0] * 50))
    seen: list[hessian.EffectiveRankProgress] = []
    effective_rank(operator, trace_operator=twin if another else None, on_progress=seen.append)
    assert operator.calls + twin.calls == products
    assert {each.needed for each in seen[1:]} == {products}


@pytest.mark.parametrize("count", [2, 7])
def test_values_of_the_loss_are_those_that_are_told(count: int) -> None:
    values = 0

    def f(x: Tensor) -> float:
        nonlocal values
        values += 1
        return float((x**4).sum())

    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    assert mu_ladder(f, x, seed=0, probes=count).evaluations == values
    values = 0
    assert hessian.forward_only(f, x, seed=0, probes=10 * count).evaluations == values
