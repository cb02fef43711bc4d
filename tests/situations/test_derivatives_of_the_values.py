"""Losses whose derivatives by torch are not those of their values: κ is refused, or that of the values.

Training looks at values alone, so it is right with all of them.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding

import decomfl_lab as lab
import hessian
from tests.nets import seeded
from tests.situations import truth
from tests.situations.situation import (
    REAL,
    REAL64,
    RIGHT,
    X64,
    Case,
    Situation,
    Table,
    Verdict,
    X,
    Y,
    assert_same,
    ce,
    either,
    every,
    mean_ce,
    mlp,
    refused,
)

TABLE = Table()
WRONG = refused("derivative|backward|gradient|detach")
"""A refusal that says that derivatives are not those of the values."""
DATA = [(X, Y)]


class Net(nn.Module):
    """a → middle → b."""

    def __init__(self, middle):
        super().__init__()
        self.a, self.b, self.middle = nn.Linear(4, 3), nn.Linear(3, 3), middle

    def forward(self, x):
        return self.b(self.middle(self.a(x)))


def net(middle):
    return seeded(lambda: Net(middle))


# --- functions of autograd --------------------------------------------------------------------------------------------


class Sine(Function):
    """Right, twice."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class SineDetached(Sine):
    """The first derivative is right."""

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos().detach()


class SineWrong(Sine):
    @staticmethod
    def backward(ctx, g):
        return 0.9 * g * ctx.saved_tensors[0].cos()


class SineOtherSign(Sine):
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos().abs()


class SineOnce(Sine):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class Reversal(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


class Clipped(Reversal):
    """The identity, which clips gradients."""

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-1e-3, 1e-3)


FUNCTIONS: dict[str, tuple[type[Function], Verdict]] = {
    "that is right, twice": (Sine, RIGHT),
    "whose backward is detached": (SineDetached, WRONG),
    "whose backward is 10 % short": (SineWrong, WRONG),
    "whose backward has another sign in places": (SineOtherSign, WRONG),
    "that can be differentiated once": (SineOnce, refused("differentia|derivative|twice")),
}
for _name, (_function, _verdict) in FUNCTIONS.items():

    @TABLE.add(f"a function of autograd {_name}", kappa=_verdict, train=RIGHT)
    def _(function=_function):
        def f(own):
            return ce(own.b(own.a(X64).sin()), Y)

        return Case(net(function.apply), ce, DATA, f)


@TABLE.add("a gradient reversal inside the loss", kappa=WRONG, train=RIGHT)
def _():
    return Case(
        mlp(),
        lambda o, t: ce(o, t) + 0.5 * Reversal.apply(o).square().mean(),
        DATA,
        lambda own: mean_ce(own) + 0.5 * own(X64).square().mean(),
    )


# --- operations in forward --------------------------------------------------------------------------------------------


def straight_through(h):
    return h + ((4 * h).round() / 4 - h).detach()


def normalised(h):
    return h / h.norm(dim=1, keepdim=True).detach()


def scaled_by_item(h):
    return h / (1 + h.square().mean().item())


def under_no_grad(h):
    with torch.no_grad():
        gate = torch.sigmoid(h)
    return gate * h


def half_detached(h):
    return torch.cat([h[:, :1], h[:, 1:].detach()], 1).tanh()


def hooked(h):
    h = torch.tanh(h)
    if h.requires_grad:
        h.register_hook(lambda g: 0.5 * g)
    return h


def fake_quantised(h):
    return torch.fake_quantize_per_tensor_affine(h, 0.1, 0, -128, 127)


MIDDLES = {
    "straight-through rounding (quantised training)": (straight_through, None),
    "torch's fake quantisation": (fake_quantised, None),
    "features divided by a number from item()": (scaled_by_item, None),
    "features divided by a detached norm": (normalised, normalised),
    "a gate computed under no_grad": (under_no_grad, under_no_grad),
    "some features detached": (half_detached, torch.tanh),
    "a hook that halves the gradient of features": (hooked, torch.tanh),
    "a gradient reversal (domain adaptation)": (lambda h: Reversal.apply(torch.tanh(h)), torch.tanh),
    "an identity that clips gradients": (lambda h: Clipped.apply(torch.tanh(h)), torch.tanh),
}
"""What is done in forward, and the function of its values, where training is right."""
for _name, (_middle, _values) in MIDDLES.items():

    @TABLE.add(_name, kappa=WRONG, train=RIGHT if _values else None)
    def _(middle=_middle, values=_values):
        return Case(net(middle), ce, DATA, lambda own: ce(own.b(values(own.a(X64))), Y))


@TABLE.add("outputs detached for one term of the loss (distillation from itself)", kappa=WRONG, train=RIGHT)
def _():
    def loss(o, t):
        return ce(o, t) + (o - 2 * o.detach().tanh()).square().mean()

    return Case(mlp(), loss, DATA, lambda own: loss(own(X64), Y))


@TABLE.add("the detached loss as its own weight", kappa=WRONG, train=RIGHT)
def _():
    return Case(mlp(), lambda o, t: ce(o, t) * ce(o, t).detach(), DATA, lambda own: mean_ce(own) ** 2)


@TABLE.add("a full backward hook of a layer that scales gradients", kappa=WRONG, train=RIGHT)
def _():
    model = net(torch.tanh)
    model.b.register_full_backward_hook(lambda module, into, out: tuple(g if g is None else 0.5 * g for g in into))
    return Case(model, ce, DATA, lambda own: ce(_tanh_net(own), Y))


def _tanh_net(own):
    h = torch.tanh(X64 @ own.a.weight.T + own.a.bias)
    return h @ own.b.weight.T + own.b.bias


@TABLE.add("hooks on the user's parameters that clip gradients", kappa=either("hook"), train=RIGHT)
def _():
    model = net(torch.tanh)
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-1e-3, 1e-3))
    return Case(model, ce, DATA, lambda own: ce(_tanh_net(own), Y))


# --- values that are detached, and derivatives that are right nevertheless --------------------------------------------


@TABLE.add("a log-sum-exp that subtracts a detached maximum", both=RIGHT)
def _():
    def loss(o, t):
        most = o.max(1, keepdim=True).values.detach()
        return ((o - most).exp().sum(1).log() + most[:, 0] - o.gather(1, t[:, None])[:, 0]).mean()

    return Case(mlp(), loss, DATA, mean_ce)


@TABLE.add("a detached copy of the loss for a log", both=RIGHT)
def _():
    seen = []

    def loss(o, t):
        value = ce(o, t)
        seen.append(value.detach())
        return value

    return Case(mlp(), loss, DATA, mean_ce)


@TABLE.add("hard targets by argmax of the outputs", both=either("derivative|detach|mean"))
def _():
    def loss(o, t):
        return ce(o, o.argmax(1)) + ce(o, t)

    return Case(mlp(), loss, DATA, lambda own: loss(own(X64), Y))


@TABLE.add("a network that differentiates in its inputs", kappa=RIGHT, train=either("grad"))
def _():
    class Slopes(nn.Module):
        def __init__(self):
            super().__init__()
            self.u = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().clone().requires_grad_()
                return torch.autograd.grad(self.u(x).sum(), x, create_graph=True)[0][:, :3]

    mse = nn.functional.mse_loss
    return Case(seeded(Slopes), mse, [(X, REAL)], lambda own: mse(own(X64), REAL64))


@TABLE.add("checkpointed blocks", both=RIGHT)
def _():
    from torch.utils.checkpoint import checkpoint

    class Saving(Net):
        def forward(self, x):
            return self.b(checkpoint(lambda h: torch.tanh(self.a(h)), x, use_reentrant=False))

    return Case(seeded(lambda: Saving(None)), ce, DATA, lambda own: ce(_tanh_net(own), Y))


@TABLE.add(
    "an operation whose second derivative torch does not have",
    kappa=either("derivatives of every operation"),
    train=RIGHT,
)
def _():
    class Sampler(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 8)
            self.register_buffer("image", torch.linspace(-1, 1, 16).view(1, 1, 4, 4) ** 3)

        def forward(self, x):
            at = torch.tanh(self.a(x)).view(1, -1, 4, 2)
            return nn.functional.grid_sample(self.image, at, mode="bicubic", align_corners=True).view(len(x), 4)[:, :3]

    return Case(seeded(Sampler), ce, DATA, mean_ce)


# --- kinks, plateaus, 32 bits: nothing to refuse ----------------------------------------------------------------------

KINKS = {
    "ReLU": nn.ReLU,
    "leaky ReLU": nn.LeakyReLU,
    "ELU": nn.ELU,
    "Hardtanh": lambda: nn.Hardtanh(-0.5, 0.5),
    "Hardswish": nn.Hardswish,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Softplus": nn.Softplus,
    "softmax": lambda: nn.Softmax(1),
    "log-softmax": lambda: nn.LogSoftmax(1),
    "LayerNorm": lambda: nn.LayerNorm(3),
    "Softshrink": lambda: nn.Softshrink(0.2),
}
for _name, _kind in KINKS.items():

    @TABLE.add(f"{_name} in float32", kappa=RIGHT)
    def _(kind=_kind):
        return Case(mlp(kind), ce, DATA, mean_ce)


FUNCTIONS_WITH_KINKS = {
    "abs": torch.abs,
    "maxout": lambda h: h.max(1, keepdim=True).values + 0.1 * h,
    "sorted features": lambda h: h.sort(1).values,
    "clamp": lambda h: h.clamp(-0.3, 0.3),
    "the two largest features": lambda h: torch.cat([h.topk(2, 1).values, h[:, :1]], 1),
    "where": lambda h: torch.where(h > 0, h * h, 0.1 * h),
    "softmax in 32 bits inside": lambda h: h.float().softmax(1).to(h.dtype),
}
for _name, _middle in FUNCTIONS_WITH_KINKS.items():

    @TABLE.add(f"{_name} in float32", kappa=RIGHT)
    def _(middle=_middle):
        return Case(net(middle), ce, DATA, mean_ce)


@TABLE.add("max-pooling and convolutions in float32", kappa=RIGHT)
def _():
    def make():
        return nn.Sequential(nn.Conv1d(1, 2, 2), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(2, 3))

    return Case(seeded(make), ce, [(X[:, None], Y)], lambda own: ce(own(X64[:, None]), Y))


@TABLE.add("half of the features rounded down, a plateau", kappa=either("derivative"), train=RIGHT)
def _():
    return Case(net(lambda h: h.tanh() + (4 * h).floor() / 4), ce, DATA, mean_ce)


for _factor in (1e6, 1e-6, 1e12, 1e-12):

    @TABLE.add(f"a loss times {_factor:g}", kappa=RIGHT)
    def _(factor=_factor):
        return Case(mlp(), lambda o, t: factor * ce(o, t), DATA, lambda own: factor * mean_ce(own))


for _factor in (1e3, 1e-3):

    @TABLE.add(f"a loss times {_factor:g}, trained with steps that fit", train=RIGHT)
    def _(factor=_factor):
        return Case(
            mlp(), lambda o, t: factor * ce(o, t), DATA, lambda own: factor * mean_ce(own), train={"lr": 0.3 / factor}
        )


@TABLE.add("a loss with a large constant", kappa=RIGHT)
def _():
    return Case(mlp(), lambda o, t: ce(o, t) + 1e6, DATA, lambda own: mean_ce(own) + 1e6)


@TABLE.add("tiny weights, 1e-4", kappa=RIGHT)
def _():
    model = mlp()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1e-4)
    return Case(model, ce, DATA, mean_ce)


@TABLE.add("saturated outputs, whose curvature is 1e-3 of what it was", kappa=RIGHT)
def _():
    model = mlp()
    labels = model(X).argmax(1)
    return Case(model, lambda o, t: ce(20 * o, t), [(X, labels)], lambda own: ce(20 * own(X64), labels))


@TABLE.add("parameters that are not used", both=RIGHT)
def _():
    return Case(Partly(), ce, DATA, mean_ce)


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = mlp(), seeded(lambda: nn.Linear(2, 2))

    def forward(self, x):
        return self.used(x)


@TABLE.add("an indefinite Hessian, whose trace nearly cancels", kappa=RIGHT)
def _():
    def loss(o, t):
        return (o[:, 0] * o[:, 1]).mean() + 0.01 * o.square().mean()

    return Case(seeded(lambda: nn.Linear(4, 3)), loss, DATA, lambda own: loss(own(X64), Y))


@TABLE.add("a network of 800 parameters in float32, by its interval", kappa=RIGHT)
def _():
    def make():
        return nn.Sequential(nn.Linear(4, 25), nn.ReLU(), nn.Linear(25, 23), nn.ReLU(), nn.Linear(23, 3))

    return Case(seeded(make), ce, DATA, mean_ce, exact=False)


# --- embeddings with a row that is held fixed -------------------------------------------------------------------------

WORDS = seeded(lambda: torch.randint(1, 6, (40, 5)), 4)
WORDS[:, 2:] = 0  # short texts, mostly padding


class Text(nn.Module):
    def __init__(self, padding=0, *, functional=False, tied=False):
        super().__init__()
        self.e = nn.Embedding(6, 3, padding_idx=None if functional else padding)
        with torch.no_grad():
            self.e.weight[padding] = torch.tensor([0.5, -1.0, 1.5])  # a trained row, not zeros
        self.l, self.padding, self.functional, self.tied = nn.Linear(3, 3), padding, functional, tied

    def forward(self, x):
        h = embedding(x, self.e.weight, self.padding) if self.functional else self.e(x)
        h = self.l(torch.tanh(h).sum(1))
        return h @ self.e.weight.T if self.tied else h


def text(**options):
    return seeded(lambda: Text(**options))


@TABLE.add("nn.Embedding with padding_idx: its row is held fixed", kappa=RIGHT, train=RIGHT)
def _():
    return Case(text(), ce, [(WORDS, Y)], lambda own: ce(own(WORDS), Y))


@TABLE.add("padding_idx=-1, the last row", kappa=RIGHT, train=RIGHT)
def _():
    words = torch.where(WORDS == 0, 5, WORDS - 1)
    return Case(text(padding=-1), ce, [(words, Y)], lambda own: ce(own(words), Y))


@TABLE.add("functional.embedding with padding_idx", kappa=either("padding"), train=either("padding"))
def _():
    return Case(text(functional=True), ce, [(WORDS, Y)], lambda own: ce(own(WORDS), Y))


@TABLE.add("a padding row that is tied to the outputs' weights", kappa=either("padding|derivative|tied"))
def _():
    return Case(text(tied=True), ce, [(WORDS, Y)], lambda own: ce(own(WORDS), Y))


@TABLE.add("nn.EmbeddingBag with padding_idx", kappa=either("derivatives of every operation"), train=RIGHT)
def _():
    def make():
        return nn.Sequential(nn.EmbeddingBag(6, 3, padding_idx=0), nn.Tanh(), nn.Linear(3, 3))

    return Case(seeded(make), ce, [(WORDS, Y)], lambda own: ce(own(WORDS), Y))


@pytest.mark.parametrize("padding", [0, -1])
def test_training_leaves_the_padding_row_as_it_was(padding: int):
    words = WORDS if padding == 0 else torch.where(WORDS == 0, 5, WORDS - 1)
    model = text(padding=padding)
    after = lab.train(model, ce, [(words, Y)], rounds=3, lr=0.3, batch_size=40).model
    assert torch.equal(after.e.weight[padding], model.e.weight[padding])
    moved = (after.e.weight != model.e.weight).any(1)
    assert int(moved.sum()) >= 4


@pytest.mark.parametrize("kind", ["hessian", "gauss-newton", "fisher"])
def test_operators_of_a_padded_embedding_are_symmetric_and_leave_the_row_out(kind: str):
    f = hessian.MeanLoss(text(), ce, [(WORDS, Y)], dtype=torch.float64)
    kinds = {
        "hessian": hessian.HessianOperator,
        "gauss-newton": hessian.GaussNewtonOperator,
        "fisher": hessian.FisherOperator,
    }
    operator = kinds[kind](f)
    M = torch.stack([operator.matvec(column) for column in torch.eye(f.d, dtype=torch.float64)])
    v = torch.linspace(-1, 1, f.d, dtype=torch.float64)
    torch.testing.assert_close(M, M.T, rtol=0, atol=1e-10)
    assert operator.quad(v) == pytest.approx(float(v @ M @ v), rel=1e-6)
    if f.d == sum(p.numel() for p in text().parameters()):  # the row is in x, without curvature
        assert not M[:3].any()


def test_gauss_newton_of_a_padded_embedding_is_the_dense_one():
    model = text()
    G = hessian.GaussNewtonOperator(hessian.MeanLoss(model, ce, [(WORDS, Y)], dtype=torch.float64))
    own = model.double()
    parameters = truth.trainable(own)
    logits = own(WORDS)
    rows = [torch.autograd.grad(o, parameters, retain_graph=True) for o in logits.flatten()]
    J = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]).view(len(WORDS), 3, -1)
    p = logits.softmax(1).detach()
    inner = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    dense = torch.einsum("nci,ncd,ndj->ij", J, inner, J) / len(WORDS)
    assert_same(hessian.effective_rank(G, products=G.d + 5), truth.curvature(dense))


def test_a_loss_that_is_linear_in_all_parameters_has_no_kappa():
    k = hessian.effective_rank(seeded(lambda: nn.Linear(4, 3)), lambda o, t: o.mean(), DATA, products=20)
    assert math.isnan(k.kappa)
    assert "undefined" in str(k)


@every(TABLE)
def test_derivatives_that_are_not_those_of_the_values_are_refused(situation: Situation):
    situation.judge()
