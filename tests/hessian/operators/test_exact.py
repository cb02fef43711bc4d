"""Traces without sampling against dense matrices."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from decomfl_lab.errors import InputError
from hessian import GaussNewtonOperator, HessianOperator, MeanLoss, effective_rank, gauss_newton_trace


def _objective(activation: type[nn.Module], sizes: tuple[int, ...] = (7, 4), **settings: object) -> MeanLoss:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Sequential(
            nn.Conv2d(1, 3, 3),
            activation(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(12, 6),
            activation(),
            nn.Linear(6, 5),
        ).double()
    batches = [
        (
            torch.randn(n, 1, 6, 6, generator=generator, dtype=torch.float64),
            torch.randint(5, (n,), generator=generator),
        )
        for n in sizes
    ]
    return MeanLoss(net, cross_entropy, batches, **settings)  # type: ignore[arg-type]


def _diagonal_sum(operator: HessianOperator | GaussNewtonOperator) -> float:
    unit = torch.eye(operator.d, dtype=operator.dtype)
    return sum(float(operator.matvec(e)[i]) for i, e in enumerate(unit))


@pytest.mark.parametrize("weights", [None, [3.0, 1.0]])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_it_is_the_sum_of_the_diagonal(activation: type[nn.Module], weights: list[float] | None) -> None:
    operator = GaussNewtonOperator(_objective(activation, weights=weights))
    exact = gauss_newton_trace(operator)
    assert exact == pytest.approx(_diagonal_sum(operator), rel=1e-12)
    assert gauss_newton_trace(operator, memory=1) == pytest.approx(exact, rel=1e-12)  # an example at a time


def test_it_is_the_hessians_trace_for_relu_and_not_for_gelu() -> None:
    for activation, same in ((nn.ReLU, True), (nn.GELU, False)):
        objective = _objective(activation)
        exact, trace = gauss_newton_trace(GaussNewtonOperator(objective)), _diagonal_sum(HessianOperator(objective))
        assert (abs(exact / trace - 1.0) < 1e-10) is same


class Squeezing(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).squeeze()


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_a_net_that_squeezes_an_only_example_has_the_same_trace(outputs: int, memory: int) -> None:
    inputs, targets = torch.randn(4, 2).double(), torch.randn(4, outputs).double().squeeze()
    for n in (4, 1):
        net = Squeezing(2, outputs).double()
        f = MeanLoss(net, lambda z, y: (z - y.view_as(z)).square().sum() / len(y), [(inputs[:n], targets[:n])])
        operator = GaussNewtonOperator(f)
        if n == 1:
            with pytest.raises(InputError, match="outputs must have the 1 examples in their first dimension, got"):
                gauss_newton_trace(operator)
        else:
            assert gauss_newton_trace(operator, memory=memory) == pytest.approx(_diagonal_sum(operator), rel=1e-12)


def test_weights_of_examples_count_in_it() -> None:
    weights = torch.tensor([1.0, 5.0, 0.2, 0.0, 1.0], dtype=torch.float64)
    f = _objective(nn.GELU)
    (inputs, targets), *_ = [piece.batch for piece in f.pieces]
    weighed = MeanLoss(f.module, nn.CrossEntropyLoss(weights), [(inputs, targets)], weights=lambda y: weights[y])
    operator = GaussNewtonOperator(weighed)
    assert gauss_newton_trace(operator, memory=1) == pytest.approx(_diagonal_sum(operator), rel=1e-12)


def test_a_loss_that_mixes_examples_is_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    data = [(torch.randn(6, 3), torch.randn(6, 2))]
    gauss_newton_trace(GaussNewtonOperator(MeanLoss(net, mse_loss, data)))
    mixed = MeanLoss(net, lambda z, y: mse_loss(z.cumsum(0), y), data)
    with pytest.raises(InputError, match="mean of losses of single examples"):
        gauss_newton_trace(GaussNewtonOperator(mixed))


def test_outputs_that_are_not_by_examples_are_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Flatten(0))
    flat = MeanLoss(net, lambda z, y: mse_loss(z, y.reshape(-1)), [(torch.randn(6, 3), torch.randn(6, 2))])
    with pytest.raises(InputError, match=r"outputs must have the 6 examples in their first dimension, got \(12,\)"):
        gauss_newton_trace(GaussNewtonOperator(flat))


def test_a_known_trace_leaves_only_the_norm_to_be_found() -> None:
    objective = _objective(nn.ReLU)
    hessian = HessianOperator(objective)
    eigenvalues = torch.linalg.eigvalsh(torch.stack([hessian.matvec(e) for e in torch.eye(hessian.d).double()]))
    truth = float(eigenvalues.sum() / eigenvalues.abs().max())
    known = gauss_newton_trace(GaussNewtonOperator(objective))
    found = effective_rank(hessian, trace=known, rtol=1e-4, seed=0)
    assert found.reached
    assert (found.probes, found.products) == (0, found.steps)
    assert found.products < 20
    assert found.interval[0] <= truth * (1 + 1e-12)
    assert found.interval[1] >= truth * (1 - 1e-12)
    assert found.interval[1] / found.interval[0] < 1 + 1e-4
    assert (found.trace.stderr, found.trace.samples) == (0.0, 0)
    assert "tr(H) was known" in found.reason
    few = effective_rank(hessian, trace=known, rtol=1e-12, products=7, seed=0)
    assert few.products == 7
    assert not few.reached
    wrong = effective_rank(hessian, trace=1.1 * known, rtol=1e-4, seed=0)
    assert not wrong.interval[0] <= truth <= wrong.interval[1]


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_a_penalty_adds_d_times_its_constant(activation: type[nn.Module]) -> None:
    operator = GaussNewtonOperator(_objective(activation, weight_decay=0.7))
    plain = gauss_newton_trace(GaussNewtonOperator(_objective(activation)))
    assert gauss_newton_trace(operator) == pytest.approx(plain + 0.7 * operator.d, rel=1e-12)
    assert gauss_newton_trace(operator) == pytest.approx(_diagonal_sum(operator), rel=1e-12)
