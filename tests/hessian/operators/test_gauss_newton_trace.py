"""Traces of Gauss-Newton matrices without sampling, and where tr(H) = tr(G) is exact, and where it is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from decomfl_lab.errors import InputError
from decomfl_lab.models.registry import MODELS, build_model
from hessian import GaussNewtonOperator, HessianOperator, MeanLoss, gauss_newton_trace, trace_operator
from hessian.operators.gauss_newton_trace import why_not_piecewise_affine
from tests.cases import sampled
from tests.hessian import problems
from tests.situations import zoo

IMAGES = problems.data(shape=(1, 6, 6))
OWN = torch.tensor([1.0, 5.0, 0.0], dtype=torch.float64)
"""Weights of the examples, by their classes."""


def _diagonal_sum(operator: GaussNewtonOperator) -> float:
    return float(problems.columns(operator).trace())


@pytest.mark.parametrize(
    "settings", [{}, {"weights": [3.0, 1.0]}, {"weights": lambda y: OWN[y]}, {"weight_decay": 0.7}]
)
def test_it_is_the_sum_of_the_diagonal(settings: dict[str, Any]) -> None:
    loss = nn.CrossEntropyLoss(OWN) if callable(settings.get("weights")) else cross_entropy
    inputs, targets = IMAGES
    batches = [(inputs[:7], targets[:7]), (inputs[7:], targets[7:])]
    operator = GaussNewtonOperator(MeanLoss(problems.cnn(nn.GELU), loss, batches, **settings))
    exact = gauss_newton_trace(operator)
    assert exact == pytest.approx(_diagonal_sum(operator), rel=1e-12)
    assert gauss_newton_trace(operator, memory=1) == pytest.approx(exact, rel=1e-12)  # an example at a time


class Squeezing(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).squeeze()


@pytest.mark.parametrize(("outputs", "memory"), [(1, 1 << 20), (3, 1)])
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


def mixed(loss: Callable[[Tensor, Tensor], Tensor], *layers: nn.Module) -> float:
    data = torch.randn(6, 3), torch.randn(6, 2)
    return gauss_newton_trace(GaussNewtonOperator(MeanLoss(nn.Sequential(nn.Linear(3, 2), *layers), loss, [data])))


class Residual(nn.Module):
    """Functions and operators beside modules: BatchNorm, a gain, PReLU, pooling, writing in place, a frozen layer."""

    def __init__(self, activation=relu):
        super().__init__()
        self.stem, self.norm, self.branch = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, padding=1)
        self.gain, self.slope, self.out = nn.Parameter(torch.ones(1)), nn.PReLU(3), nn.Linear(3, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.activation = activation

    def forward(self, h):
        h = self.slope(self.norm(self.stem(h)))
        h = self.activation(h + self.gain * self.branch(h))
        h = nn.functional.max_pool2d(h, 2).mean((2, 3)).clone()
        h += 1
        return self.out(self.frozen(h).clamp(-2, 2))


def objective(build, batch=None, **options) -> MeanLoss:
    module = problems.seeded(build)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.sin(torch.arange(p.numel(), dtype=p.dtype)).view(p.shape))
    return MeanLoss(
        module, cross_entropy, [problems.data() if batch is None else batch], **{"normalisation": "eval", **options}
    )


AFFINE = {
    "mlp-relu": objective(lambda: problems.mlp(nn.ReLU)),
    "mlp-leaky": objective(lambda: problems.mlp(nn.LeakyReLU)),
    "cnn-relu6": objective(lambda: problems.cnn(nn.ReLU6), IMAGES),
    "residual": objective(Residual, IMAGES),
    "residual-block": objective(Residual, IMAGES, parameters=["branch", "out"]),
}


@pytest.mark.parametrize("case", AFFINE)
def test_the_diagonals_of_both_matrices_are_equal(case):
    f = AFFINE[case]
    assert why_not_piecewise_affine(f) is None
    hessian = HessianOperator(f, f.x + 0.01)
    trace = trace_operator(hessian)
    H, G = problems.columns(hessian), problems.columns(trace)
    assert (H.diagonal() - G.diagonal()).abs().max() < 1e-12
    assert (H - G).abs().max() > 1e-3  # the matrices are not


twice = zoo.parts(lambda own, h: own.out(relu(own.layer(relu(own.layer(h))))), layer=zoo.linear(4, 4), out=zoo.linear())
"""A layer that is used twice, without a tied name."""
tied = zoo.changed(
    zoo.parts(lambda own, h: own.b(relu(own.a(h)))[:, :3], a=zoo.linear(4, 4), b=zoo.linear(4, 4)),
    lambda module: setattr(module.b, "weight", module.a.weight),
)
gate = zoo.layers(zoo.linear(4, 4), zoo.step(lambda h: h * relu(h)), zoo.linear())
"""A product of two values that depend on one weight."""
branching = zoo.layers(zoo.linear(), zoo.step(lambda h: h if h.sum() > 0 else 2 * h))


NOT = {
    "gelu": (objective(lambda: problems.mlp(nn.GELU)), "operation 'gelu'"),
    "tanh": (objective(lambda: problems.mlp(nn.Tanh)), "operation 'tanh'"),
    "smooth inside": (objective(lambda: Residual(torch.square), IMAGES), "operation 'pow'"),
    "twice": (objective(twice), "'addmm' of two values that both depend on parameter 'layer.weight'"),
    "tied": (objective(tied), "'addmm' of two values that both depend on parameter 'a.weight'"),
    "gate": (objective(gate), "'mul' of two values that both depend on parameter '0.bias'"),
    "batch statistics": (
        objective(Residual, IMAGES, normalisation="batch"),
        "operation 'native_batch_norm' with the statistics of the batch",
    ),
    "layer norm": (objective(lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))), "operation 'native_layer_norm'"),
    "branching": (objective(branching), "a forward pass that cannot be traced"),
}


NEEDED = ("gelu", "twice", "tied", "gate", "batch statistics")


@pytest.mark.parametrize("case", NOT)
def test_others_are_refused_by_what_spoils_them_and_have_to_be(case):
    f, reason = NOT[case]
    H, G = HessianOperator(f), GaussNewtonOperator(f)
    with pytest.raises(InputError, match=f"^module must be piecewise affine in each weight.*{reason}") as caught:
        trace_operator(H)
    assert "\n" not in str(caught.value)
    if case in NEEDED:
        assert (problems.columns(H).diagonal() - problems.columns(G).diagonal()).abs().max() > 1e-4


@pytest.mark.parametrize("name", sampled([name for name in MODELS if not name.startswith("gpt")], 3))
def test_every_image_model_of_the_lab_is_piecewise_affine(name):
    module = build_model(name, seed=0, in_shape=(1, 28, 28), classes=10)
    images, labels = problems.data(shape=(1, 28, 28))
    f = MeanLoss(module, cross_entropy, [(images, labels)], dtype=torch.float32, normalisation="eval")
    assert why_not_piecewise_affine(f) is None
