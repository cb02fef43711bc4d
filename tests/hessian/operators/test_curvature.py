"""Derivatives that are computed again, by other kernels or not at all, and which examples a matrix weighs how."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from decomfl_lab.errors import InputError
from hessian import FisherOperator, GaussNewtonOperator, HessianOperator, MeanLoss, SmoothedOperator
from tests.cases import refuses, sampled
from tests.hessian import problems
from tests.nets import Around
from tests.situations import zoo

# --- blocks that the backward pass computes again ---------------------------------------------------------------------


class Blocks(nn.Module):
    """Two blocks with parameters, the first also with a BatchNorm; checkpointed, they are computed twice."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())
        self.second, self.last = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3)
        self.again = again

    def forward(self, h):
        for block in (self.first, self.second):
            h = checkpoint(block, h, use_reentrant=False) if self.again else block(h)
        return self.last(h)


@pytest.mark.parametrize(
    ("product", "normalisation"),
    sampled(
        [
            (product, normalisation)
            for product in ("gradient", "hessian, kept", "hessian", "gauss-newton", "smoothed")
            for normalisation in ("eval", "batch")
        ],
        4,
    ),
)
def test_checkpointed_blocks_are_computed_again_at_x_not_at_the_weights_of_the_module(product, normalisation):
    """At another point than the module's own; in between the module is called elsewhere."""

    def made(again: bool) -> list[torch.Tensor]:
        module = problems.seeded(lambda: Blocks(again))
        f = MeanLoss(module, cross_entropy, [problems.data()], normalisation=normalisation)
        at, elsewhere = f.x + 0.5, f.x - 0.3
        if product == "gradient":
            return [f.gradient(at), f.gradient(elsewhere)]
        operator = {
            "hessian, kept": lambda: HessianOperator(f, at, cache=math.inf),
            "hessian": lambda: HessianOperator(f, at, cache=0),
            "gauss-newton": lambda: GaussNewtonOperator(f, at),
            "smoothed": lambda: SmoothedOperator(f, at, 1e-2),
        }[product]()
        v = torch.linspace(-1, 1, f.d, dtype=torch.float64)
        first, _, second = operator @ v, f.gradient(elsewhere), operator @ v
        return [first, second]

    for plain, again in zip(made(False), made(True), strict=True):
        assert torch.equal(plain, again)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_checkpoint_that_loses_a_gradient_is_told():
    """A reentrant one, whose inputs want no gradient, gives its parameters none."""

    class Lost(Blocks):
        def forward(self, h):
            return self.last(self.second(checkpoint(self.first, h, use_reentrant=True)))

    f = MeanLoss(problems.seeded(lambda: Lost(True)), cross_entropy, [problems.data()], normalisation="eval")
    v = torch.linspace(-1, 1, f.d, dtype=torch.float64)
    for operator in (HessianOperator(f), GaussNewtonOperator(f)):
        with pytest.raises(InputError, match="derivatives that torch"):
            operator @ v
    smoothed = SmoothedOperator(f, f.x, 1e-2)
    assert (smoothed @ v).isfinite().all()
    assert "gives another gradient" in " ".join(smoothed.remarks)


# --- kernels ----------------------------------------------------------------------------------------------------------


def attended(own, h):
    q, k, v = (part.unsqueeze(1) for part in own.project(h).chunk(3, -1))
    return own.out(scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1).mean(1))


attention = zoo.parts(attended, project=zoo.linear(4, 12), out=zoo.linear())
"""Queries, keys and values through the fused kernel, which has no second derivative."""


@pytest.mark.parametrize("training", [True, False])
def test_fused_kernels_stand_aside(training):
    """Against central differences of the gradient and of the outputs, which need first derivatives only."""
    module = problems.seeded(attention).train(training)
    inputs, targets = problems.data(shape=(5, 4))
    f = MeanLoss(module, cross_entropy, [(inputs, targets)], chunk=8)
    HessianOperator(MeanLoss(module, cross_entropy, [(inputs, targets)], dtype=torch.float32))  # other kernels
    v = torch.linspace(-1, 1, f.d, dtype=torch.float64)
    h = 1e-5
    difference = (f.gradient(f.x + h * v) - f.gradient(f.x - h * v)) / (2 * h)
    torch.testing.assert_close(HessianOperator(f).matvec(v), difference, rtol=1e-6, atol=1e-8)

    outputs = problems.flat_outputs(module, f.names, inputs)
    with torch.no_grad():
        p, Jv = outputs(f.x).softmax(1), (outputs(f.x + h * v) - outputs(f.x - h * v)) / (2 * h)
    form = float(((p * Jv**2).sum(1) - (p * Jv).sum(1) ** 2).mean())
    assert GaussNewtonOperator(f).quad(v) == pytest.approx(form, rel=1e-6)
    assert float(v @ GaussNewtonOperator(f).matvec(v)) == pytest.approx(form, rel=1e-6)


def test_global_switches_are_put_back():
    before = (torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled)
    f = MeanLoss(problems.seeded(attention), cross_entropy, [problems.data(shape=(5, 4))])
    HessianOperator(f).matvec(f.x)
    assert (torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled) == before
    z = torch.zeros(1, 1, 2, 4, requires_grad=True)
    outputs = scaled_dot_product_attention(z, z, z)
    with pytest.raises(RuntimeError, match="derivative for"):  # fused attention is used again
        torch.autograd.grad(torch.autograd.grad(outputs.sum(), z, create_graph=True)[0].sum(), z)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope):
        return slope


def broken(h):
    if torch.is_grad_enabled():
        raise RuntimeError("out of cheese")
    return h


def of(after=lambda z: z, loss=cross_entropy, net=None, **options):
    """The mean loss of a net whose outputs go through a function before the loss."""
    return MeanLoss(net or problems.mlp(), lambda z, t: loss(after(z), t), [problems.data()], **options)


def of_zeros():
    """|x|^(3/2) has a second derivative that is infinite at 0."""
    zeros = zoo.changed(zoo.linear(), lambda module: [nn.init.zeros_(p) for p in module.parameters()])
    return of(loss=lambda z, t: (z.abs() ** 1.5).mean(), net=problems.seeded(zeros))


def with_batches():
    """Each output depends on all examples."""
    module = problems.seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    return of(net=module, normalisation="batch")


ONCE = Around(problems.mlp(), after=Once.apply)
WRONG = [
    (lambda h: h.exp().mul_(2), r"inplace operation.*; use .* \(y = 2 \* y instead of y \*= 2\), or forward_only$"),
    (lambda h: torch.from_numpy(np.exp(h.numpy())), r"numpy\(\) on Tensor that .*; use torch's operations"),
    (lambda h: h.detach(), r"loss must depend on the parameters by operations of torch \(is there detach, no_grad"),
]
"""What would be differentiated wrongly, and what is said of it."""


@refuses(
    (HessianOperator, of(net=ONCE), r"the Hessian needs derivatives of every .*once_differentiable.*; use"),
    (HessianOperator, of(Once.apply), r"the Hessian needs derivatives of every .*once_differentiable"),
    (
        lambda f: GaussNewtonOperator(f).matvec(f.x),
        of(net=ONCE),
        "product with the gauss-newton needs derivatives .*custom",
    ),
    (
        lambda f: GaussNewtonOperator(f).quad(f.x),
        of(Once.apply),
        "form of the gauss-newton needs .*once_differentiable",
    ),
    *((HessianOperator, of(after), told) for after, told in WRONG),
    *((lambda f: f.gradient(f.x), of(after), told) for after, told in WRONG),
    (HessianOperator, of(broken, trust=True), r"got 'out of cheese' \(RuntimeError\)$"),
    (lambda f: HessianOperator(f) @ f.x, of_zeros(), "product of the hessian with v must be finite"),
    (FisherOperator, with_batches(), "be the mean of losses of single examples for the Fisher"),
    (FisherOperator, of(loss=nn.CrossEntropyLoss(reduction="sum")), "be the mean of losses of single examples for the"),
)
def test_what_has_no_such_derivatives_is_refused_with_what_to_do(use, f):
    use(f)


# --- Fisher -----------------------------------------------------------------------------------------------------------


OWN = torch.tensor([1.0, 5.0, 0.0], dtype=torch.float64)
"""Weights of the examples, by their classes."""


@pytest.mark.parametrize("own", [False, True], ids=["weighted batches", "weighted examples"])
def test_fisher_weighs_examples_as_the_mean_does(own):
    """F = Σ ω_i g_i g_iᵀ of gradients of examples, one at a time, with ω of ragged, weighted batches or of examples."""
    module, (inputs, targets) = problems.mlp(nn.GELU), problems.data()
    if own:
        f = MeanLoss(module, nn.CrossEntropyLoss(OWN), [(inputs, targets)], weights=lambda y: OWN[y], chunk=5)
        weights = OWN[targets] / OWN[targets].sum()
    else:
        batches = [(inputs[:3], targets[:3]), (inputs[3:], targets[3:])]
        f = MeanLoss(module, cross_entropy, batches, weights=[1.0, 2.0], chunk=2)
        weights = [1 / 9] * 3 + [2 / 27] * 9
    v = torch.linspace(-1, 1, f.d, dtype=torch.float64)
    expected = torch.zeros_like(v)
    for i, weight in enumerate(weights):
        one = MeanLoss(module, cross_entropy, [(inputs[i : i + 1], targets[i : i + 1])])
        g = one.gradient(one.x)
        expected += weight * g * (g @ v)
    torch.testing.assert_close(FisherOperator(f).matvec(v), expected, rtol=1e-12, atol=1e-15)
