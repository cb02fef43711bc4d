"""Every operator is its dense matrix however it is asked; @, +, *, solving and what products are spent on."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator, eigsh
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hessian
from hessian import BlockOperator, DenseOperator, MeanLoss, SmoothedOperator, WhitenedOperator, effective_rank
from hessian.kappa.function_values import mu_ladder
from tests.cases import refuses, sampled
from tests.hessian import problems
from tests.hessian.operators.test_smoothing import quadratic
from tests.hessian.spectra import Watched, rotated

A, B = rotated(list(np.linspace(-1, 3, 30))), rotated(list(np.linspace(0, 1, 30)), seed=1)
I = torch.eye(30, dtype=torch.float64)  # noqa: E741
M, ARRAY = A.matrix, A.matrix.numpy()
SCALE, PLACES = torch.logspace(-1, 1, 30, dtype=torch.float64), [1, 2, 3, *range(10, 15)]
INPUTS, TARGETS = problems.data()

# --- dense matrices ---------------------------------------------------------------------------------------------------

NETS: dict[str, tuple[nn.Module, tuple[Tensor, Tensor]]] = {
    "mlp-relu": (problems.mlp(nn.ReLU), problems.data()),
    "mlp-gelu": (problems.mlp(nn.GELU), problems.data()),
    "cnn-relu": (problems.cnn(nn.ReLU), problems.data(shape=(1, 6, 6))),
    "cnn-gelu": (problems.cnn(nn.GELU), problems.data(shape=(1, 6, 6))),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "float64": {},
    "some parameters, decay": {"weight_decay": 0.3, "parameters": ["0", "*.bias"]},
    "float32": {"dtype": torch.float32},
}


def of_net(kind: str, net: str, setting: str) -> tuple[Any, Tensor]:
    """A penalty adds to all but the Fisher matrix; of some parameters it is the block of these."""
    module, (inputs, targets) = NETS[net]
    options = SETTINGS[setting]
    f = MeanLoss(module, cross_entropy, [(inputs, targets)], chunk=5, **options)
    wide = MeanLoss(module, cross_entropy, [(inputs, targets)], parameters=options.get("parameters"))
    own = 0.0 if kind == "fisher" else options.get("weight_decay", 0.0)
    dense = problems.DENSE[kind](wide, module, inputs, targets).detach() + own * torch.eye(f.d, dtype=torch.float64)
    return hessian.curvature(f, operator=kind), dense


COMBINED: dict[str, tuple[Any, Tensor]] = {
    "dense + dense": (A + B, M + B.matrix),
    "2 × dense": (2 * A, 2 * M),
    "0.5 × dense": (A * np.float64(0.5), M / 2),
    "-1 × dense": (-A, -M),
    "3 × (dense + 2 × dense)": (np.float32(3) * (A + 2 * B), 3 * M + 6 * B.matrix),
    "dense + -1 × dense": (A - B, M - B.matrix),
    "dense + 0.1": (0.1 + A.T, M + 0.1 * I),
    "2 × (dense + -3)": ((A - 3) / 0.5, 2 * M - 6 * I),
    "-1 × dense + 1": (1 - A, I - M),
    "whitened dense": (WhitenedOperator(A, SCALE), SCALE[:, None] * M * SCALE),
    "dense": (BlockOperator(A, [slice(1, 4), slice(10, 15)]), M[PLACES][:, PLACES]),
}
GIVEN: dict[str, Any] = {
    "tensor": M,
    "array": ARRAY,
    "scipy's linear operator": aslinearoperator(ARRAY),
    "scipy's linear operator of a function": LinearOperator((30, 30), matvec=lambda v: ARRAY @ v),
    "sparse array": sparse.csr_array(ARRAY),
    "sparse matrix": sparse.csc_matrix(ARRAY),
    "sparse tensor": M.to_sparse(),
    "float32 array": ARRAY.astype(np.float32),
    "float32 sparse array": sparse.csr_array(ARRAY.astype(np.float32)),
    "ours for scipy": A.to_scipy(),
    "smoothed quadratic": SmoothedOperator(quadratic(M), torch.linspace(-1, 1, 30, dtype=torch.float64), 1e-3),
    "widely smoothed quadratic": SmoothedOperator(quadratic(M), torch.ones(30, dtype=torch.float64), 50.0, samples=4),
}
OF_NETS = {" ".join(each): partial(of_net, *each) for each in product(problems.DENSE, NETS, SETTINGS)}
DENSE: dict[str, Callable[[], tuple[Any, Tensor]]] = {
    **OF_NETS,
    **{name: lambda own=own: own for name, own in COMBINED.items()},
    **{name: lambda own=own: (own, M) for name, own in GIVEN.items()},
}


@pytest.mark.parametrize("name", [*sampled(OF_NETS, 5), *sampled(COMBINED, 5), *GIVEN])
def test_an_operator_is_its_dense_matrix_however_it_is_asked(name: str) -> None:
    """By products and forms, scipy, κ, the trace, the diagonal and eigenvalues."""
    given, dense = DENSE[name]()
    operator = hessian.as_operator(given)
    close = 1e-6 if operator.dtype == torch.float32 else 1e-12
    if isinstance(operator, SmoothedOperator):
        close = 1e-7  # of second differences
    scale = max(float(dense.abs().max()), 1.0)
    d = operator.d
    assert operator.shape == dense.shape
    V = torch.randn(d, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(operator.dtype)
    kept = V.clone()
    assert (operator @ V - dense @ V.double()).abs().max() < 10 * close * scale
    assert torch.equal(V, kept)
    v = torch.linspace(-1, 1, d, dtype=operator.dtype)
    assert operator.quad(v) == pytest.approx(float(v.double() @ dense @ v.double()), rel=10 * close)
    assert torch.equal(operator.matvec(v), operator.matvec(v))
    eigenvalues = torch.linalg.eigvalsh(dense)
    largest = eigsh(operator.to_scipy(), k=3, which="LA", return_eigenvectors=False)
    assert sorted(largest) == pytest.approx(eigenvalues[-3:].tolist(), rel=1e-4, abs=1e-8)
    assert hessian.top_eigenvalues(given, which="largest", rtol=1e-5).values == pytest.approx(
        [float(eigenvalues[-1])], rel=1e-4, abs=1e-4
    )
    whole = effective_rank(given, products=d)
    assert whole.kappa == pytest.approx(problems.kappa_of(dense), rel=1e-4)
    assert whole.trace.value == pytest.approx(float(dense.trace()), rel=1e-5, abs=10 * close)
    assert (whole.trace.stderr, whole.operator, whole.products) == (0.0, operator.name, d)
    diagonal = hessian.diagonal(given, products=d)
    assert (diagonal.samples, diagonal.products, diagonal.error) == (0, d, 0.0)
    assert (diagonal.values - dense.diagonal()).abs().max() < 10 * close * scale
    if operator.layout is not None:
        assert torch.equal(torch.cat([each.flatten() for each in diagonal.named.values()]), diagonal.values)


def test_names_and_fingerprints_tell_operators_apart() -> None:
    assert [operator.name for operator, _ in COMBINED.values()] == [*COMBINED]
    operators = [A, B, BlockOperator(A, [slice(0, 8)]), *(operator for operator, _ in COMBINED.values())]
    assert len({operator.fingerprint() for operator in operators}) == len(operators)
    assert (A + B).fingerprint() == (A + B).fingerprint()


def test_the_matrices_are_not_each_other_nor_those_of_another_point() -> None:
    """The comparison above can fail: each dense matrix differs from the others by far more than its tolerance."""
    module, (inputs, targets) = NETS["mlp-gelu"]
    f = MeanLoss(module, cross_entropy, [(inputs, targets)])
    dense = [make(f, module, inputs, targets) for make in problems.DENSE.values()]
    gaps = [float((a - b).abs().max()) for i, a in enumerate(dense) for b in dense[:i]]
    assert min(gaps) > 1e-3
    moved = hessian.HessianOperator(f, f.x + 0.1)
    assert (problems.columns(moved) - dense[0]).abs().max() > 1e-3


# --- vectors of every form, and solving -------------------------------------------------------------------------------

H = hessian.curvature(MeanLoss(problems.mlp(), cross_entropy, (INPUTS, TARGETS)), operator="gauss-newton")


def test_scipys_operator_takes_vectors_of_any_kind_and_matrices() -> None:
    inner = A.to_scipy()
    v = np.arange(30)  # integers, of which a part is read-only
    v.flags.writeable = False
    assert inner @ v[::-1] == pytest.approx(ARRAY @ v[::-1])
    V = np.random.default_rng(0).standard_normal((30, 4))
    assert inner @ V == pytest.approx(ARRAY @ V)
    assert pytest.approx(inner @ V) == inner.T @ V


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
