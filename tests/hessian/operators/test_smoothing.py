"""The Hessian of the smoothed loss: exact on quadratics, automatic differentiation's on smooth nets, known at kinks."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hessian import HessianOperator, MeanLoss, SmoothedOperator
from hessian.kappa.function_values import second_differences
from hessian.operators.probes import probe
from tests.hessian import problems


class Known:
    """A function of a vector with its gradient, and what tells it from others."""

    def __init__(self, value: Callable[[Tensor], Tensor], gradient: Callable[[Tensor], Tensor], name: str) -> None:
        self.value, self.gradient, self.fingerprint = value, gradient, lambda: name

    def __call__(self, x: Tensor) -> float:
        return float(self.value(x))


def quadratic(matrix: Tensor) -> Known:
    return Known(lambda x: 0.5 * x @ matrix @ x + x.sum(), lambda x: matrix @ x + 1, "quadratic")


QUARTIC = Known(lambda x: (x**4).sum() / 4, lambda x: x**3, "quartic")
"""∇²f^μ(x) = diag E 3(x_i + μu)² = diag 3(x_i² + μ²)."""


class Hinges:
    """f(x) = Σ_j max(a_jᵀx + b_j, 0): automatic differentiation's Hessian is 0, that of f^μ known in closed form."""

    def __init__(self, d: int, n: int, spread: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.a = torch.randn(n, d, generator=generator, dtype=torch.float64)
        self.b = spread * torch.randn(n, generator=generator, dtype=torch.float64)

    def __call__(self, x: Tensor) -> float:
        return float((self.a @ x + self.b).clamp(min=0).sum())

    def gradient(self, x: Tensor) -> Tensor:
        return self.a[self.a @ x + self.b > 0].sum(0)

    def fingerprint(self) -> str:
        return "hinges"

    def smoothed_hessian(self, x: Tensor, mu: float) -> Tensor:
        """Σ_j a_j a_jᵀ φ(t_j)/(μ‖a_j‖), t_j = (a_jᵀx + b_j)/(μ‖a_j‖): max(t, 0) convolved with a normal density."""
        scale = mu * self.a.norm(dim=1)
        t = (self.a @ x + self.b) / scale
        weights = torch.exp(-(t**2) / 2) / (math.sqrt(2 * math.pi) * scale)
        return self.a.T @ (weights[:, None] * self.a)


@pytest.mark.parametrize("mu", [0.1, 2.0])
def test_along_the_axes_of_a_quartic_the_windows_have_the_variance_of_the_normal_one(mu: float) -> None:
    x = torch.linspace(-1, 1, 3, dtype=torch.float64)
    operator, truth = SmoothedOperator(QUARTIC, x, mu), 3 * (x**2 + mu**2)
    assert (problems.columns(operator) - torch.diag(truth)).abs().max() < 1e-12
    forms = [operator.quad(e) for e in torch.eye(3, dtype=torch.float64)]
    assert forms == pytest.approx(truth.tolist(), rel=1e-10)


def test_on_a_smooth_net_it_tends_to_the_hessian_with_the_square_of_mu():
    f = MeanLoss(problems.mlp(nn.GELU), cross_entropy, [problems.data()])
    dense = problems.columns(HessianOperator(f))
    errors = [
        float((problems.columns(SmoothedOperator(f, f.x, mu, samples=2)) - dense).norm() / dense.norm())
        for mu in (1e-2, 1e-3)
    ]
    assert errors[0] < 1e-2
    assert errors[1] == pytest.approx(errors[0] / 100, rel=0.1)
    v = torch.linspace(-1, 1, f.d, dtype=torch.float64)
    for forward_quad in (True, False):
        own = SmoothedOperator(f, f.x, 1e-3, forward_quad=forward_quad)
        assert own.quad(v) == pytest.approx(float(v @ dense @ v), rel=1e-3)
        assert own.quad(0 * v) == 0.0
    assert not own.matvec(0 * v).any()


def test_at_kinks_it_is_the_closed_form_where_automatic_differentiation_finds_nothing():
    f, x, mu = Hinges(20, 400, 1.0), torch.linspace(-0.2, 0.2, 20, dtype=torch.float64), 0.1
    truth = f.smoothed_hessian(x, mu)
    operator = SmoothedOperator(f, x, mu, samples=800)
    for v in torch.eye(20, dtype=torch.float64)[:3]:
        wanted = truth @ v
        assert (operator.matvec(v) - wanted).norm() < 0.04 * wanted.norm()
        assert operator.quad(v) == pytest.approx(float(v @ wanted), rel=0.03)


def test_second_differences_estimate_the_mean_smoothed_trace_of_all_scales_up_to_mu():
    """E q = (2/μ²) ∫₀^μ s tr ∇²f^s(x) ds, with kinks, against the closed form by quadrature."""
    f, x, mu = Hinges(5, 200, 0.5), torch.zeros(5, dtype=torch.float64), 0.2
    scales = (torch.arange(2000).double() + 0.5) * mu / 2000
    traces = torch.stack([f.smoothed_hessian(x, float(s)).trace() for s in scales])
    truth = float((2 / mu**2) * (scales * traces).sum() * mu / 2000)
    q = second_differences(f, x, (probe(x, 0, 99, p) for p in range(2000)), mu)
    stderr = q.std(ddof=1) / math.sqrt(len(q))
    assert abs(q.mean() - truth) < 4 * stderr
    assert stderr < 0.03 * truth
    assert abs(float(f.smoothed_hessian(x, mu).trace()) - truth) > 4 * stderr  # the trace at scale mu is another number


def test_it_is_one_map_for_one_seed_and_its_fingerprint_tells_what_it_depends_on():
    f, x = Hinges(4, 30, 0.3), torch.zeros(4, dtype=torch.float64)
    v = torch.ones(4).double()

    def build(**change):
        return SmoothedOperator(f, **{"x": x, "mu": 0.1, "seed": 1, "samples": 4, **change})

    assert torch.equal(build().matvec(v), build().matvec(v))
    assert not torch.equal(build().matvec(v), build(seed=2).matvec(v))
    changes = ({}, {"seed": 2}, {"mu": 0.2}, {"samples": 6}, {"x": x + 1}, {"forward_quad": False})
    prints = [build(**change).fingerprint() for change in changes]
    assert len(set(prints)) == len(prints)
    assert build().fingerprint() == prints[0]
