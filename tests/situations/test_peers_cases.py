"""The kinds of cases that the test suites of other libraries of curvature have, as situations of our own.

curvlinops (test/cases.py, kfac_cases.py), pytorch-hessian-eigenthings (tests/) and backpack (test/extensions, core,
converter). Their conventions differ from ours where batches are combined: a sum over batches is refused here unless the
batches' weights are given.
"""

from __future__ import annotations

import math
from collections import UserDict

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hessian
from tests.nets import seeded
from tests.situations import truth
from tests.situations.situation import (
    RIGHT,
    WEIGHTS,
    Case,
    Situation,
    Table,
    either,
    every,
    refused,
)

TABLE = Table()
SPLIT = refused(WEIGHTS)
CE, MSE, BCE = nn.CrossEntropyLoss, nn.MSELoss, nn.BCEWithLogitsLoss
Shape = tuple[int, ...]


def rand(*shape, seed=1):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def classes(*shape, of=3):
    return torch.randint(0, of, shape, generator=torch.Generator().manual_seed(2))


def cast(tree):
    """In 64 bits."""
    if isinstance(tree, torch.Tensor):
        return tree.double() if tree.is_floating_point() else tree
    return {name: cast(value) for name, value in tree.items()}


def whole(loss, batches):
    """f of several batches: by the number of examples each, for a mean."""

    def f(net):
        return sum(len(y) * loss(net(cast(x)), cast(y)) for x, y in batches) / sum(len(y) for _, y in batches)

    return f


def ragged(x, y, first):
    return [(x[:first], y[:first]), (x[first:], y[first:])]


def dense_case(make, loss, batches, **options):
    return Case(seeded(make), loss, batches, whole(loss, batches), **options)


# --- losses, and how they are cut -------------------------------------------------------------------------------------


def relu_net(inputs, outputs):
    return lambda: nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, outputs))


def tanh_net(outputs):
    return lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


class DictInput(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.net = relu_net(5, outputs)()

    def forward(self, data):
        return self.net(data["x"])


TARGETS = {
    "cross-entropy": (CE, 3, lambda n, *more: classes(n, *more)),
    "binary cross-entropy of soft labels, one output": (BCE, 1, lambda n, *more: rand(n, *more, 1, seed=3)),
    "binary cross-entropy of soft labels, two outputs": (BCE, 2, lambda n, *more: rand(n, *more, 2, seed=3)),
    "squares": (MSE, 3, lambda n, *more: rand(n, *more, 3, seed=3)),
}
for _name, (_loss, _outputs, _targets) in TARGETS.items():

    @TABLE.add(f"{_name}, mean, batches of 3 and 4", kappa=RIGHT)
    def _(loss=_loss, outputs=_outputs, targets=_targets):
        return dense_case(relu_net(5, outputs), loss(), ragged(rand(7, 5), targets(7), 3))

    @TABLE.add(f"{_name}, sum, batches of 3 and 4", kappa=SPLIT)
    def _(loss=_loss, outputs=_outputs, targets=_targets):
        return Case(seeded(relu_net(5, outputs)), loss(reduction="sum"), ragged(rand(7, 5), targets(7), 3))

    @TABLE.add(f"{_name}, sum, one batch", kappa=RIGHT, train=RIGHT)
    def _(loss=_loss, outputs=_outputs, targets=_targets):
        data, total = [(rand(7, 5), targets(7))], loss(reduction="sum")
        f = whole(total, data)
        return Case(seeded(relu_net(5, outputs)), total, data, f, train={"lr": 0.01})

    @TABLE.add(f"{_name}, inputs in a dict that the model takes as one argument", kappa=either("mapping|named|keyword"))
    def _(loss=_loss, outputs=_outputs, targets=_targets):
        y = targets(7)
        batches = [(UserDict({"x": rand(3, 5)}), y[:3]), ({"x": rand(4, 5)}, y[3:])]
        return dense_case(lambda: DictInput(outputs), loss(), batches)


@TABLE.add("cross-entropy of sequences, mean, batches of 3 and 4", kappa=RIGHT)
def _():
    def loss(o, t):
        return CE()(o.transpose(1, 2), t)

    return dense_case(relu_net(5, 3), loss, ragged(rand(7, 2, 5), classes(7, 2), 3))


@TABLE.add("a plain mean over batches of unequal sizes, as weights", kappa=RIGHT)
def _():
    batches = [(cast(x), y) for x, y in ragged(rand(8, 3), classes(8, of=4), 3)]
    return Case(
        seeded(tanh_net(4)),
        CE(),
        batches,
        lambda net: sum(CE()(net(x), y) for x, y in batches) / 2,
        kappa={"weights": [1, 1]},
    )


@TABLE.add("a loader that drops its last batch", kappa=RIGHT)
def _():
    x, y = rand(12, 5), classes(12)
    loader = DataLoader(TensorDataset(x, y), batch_size=5, drop_last=True)
    return Case(seeded(relu_net(5, 3)), CE(), loader, lambda net: CE()(net(x[:10].double()), y[:10]))


for _kind, _shape in ((nn.BatchNorm1d, (5,)), (nn.BatchNorm2d, (5, 2, 2))):

    @TABLE.add(f"{_kind.__name__} in training mode, cut into batches", kappa=either("eval|normalisation"))
    def _(kind=_kind, shape=_shape):
        x, y = rand(8, *shape), classes(8, of=2)
        width = math.prod(shape)
        model = seeded(lambda: nn.Sequential(kind(5), nn.Flatten(), nn.Linear(width, 2)))
        return Case(model, CE(), ragged(x, y, 4), lambda net: CE()(net.eval()(x.double()), y))


for _tied in (False, True):

    @TABLE.add(f"a small language model with its own loss, {'tied' if _tied else 'no'} weights", kappa=RIGHT)
    def _(tied=_tied):
        ids = classes(10, 4, of=5)
        data = [{"input_ids": ids, "labels": ids}]
        return Case(seeded(lambda: Language(tied)), None, data, lambda net: next_token(net.logits(ids), ids))


# --- networks ---------------------------------------------------------------------------------------------------------


class SplitConcat(nn.Module):
    """One layer, or two with tied weights, for the two halves of an input."""

    def __init__(self, tied):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3, bias=False) if tied else self.a
        self.b.weight = self.a.weight

    def forward(self, x):
        return torch.cat([self.a(x[:, :3]), self.b(x[:, 3:]).tanh()], 1)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Upsample(scale_factor=2)
        self.last = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, x):
        return self.last(torch.cat([self.up(self.down(x).relu()), x], 1))


class Language(nn.Module):
    """Embedding, projection, head, and its own loss where labels are given."""

    def __init__(self, tied=False):
        super().__init__()
        self.e, self.p, self.head = nn.Embedding(5, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 5, bias=False)
        if tied:
            self.head.weight = self.e.weight

    def logits(self, ids):
        return self.head(torch.tanh(self.p(self.e(ids))))

    def forward(self, input_ids, labels=None):
        logits = self.logits(input_ids)
        loss = None if labels is None else next_token(logits, labels)
        return {"loss": loss, "logits": logits}


def next_token(logits, labels):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def after(layer, shape, outputs=3, activation=nn.LeakyReLU):
    """The layer, an activation and a frozen linear layer."""

    def make():
        first = layer()
        width = first(rand(1, *shape)).flatten(1).shape[1]
        return nn.Sequential(first, activation(), nn.Flatten(), nn.Linear(width, outputs).requires_grad_(False))

    return make


LAYERS: dict[str, tuple[object, Shape]] = {
    "Conv1d, stride and padding": (lambda: nn.Conv1d(2, 3, 2, stride=2, padding=1), (2, 7)),
    "Conv1d, dilation": (lambda: nn.Conv1d(2, 3, 2, dilation=2), (2, 7)),
    "Conv1d, groups": (lambda: nn.Conv1d(4, 4, 2, groups=2), (4, 5)),
    "Conv2d, stride, padding, dilation": (lambda: nn.Conv2d(2, 2, 2, stride=2, padding=2, dilation=2), (2, 5, 5)),
    "Conv2d, groups, no bias": (lambda: nn.Conv2d(3, 3, 2, groups=3, bias=False), (3, 4, 4)),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(2, 3, 2, stride=2), (2, 4)),
    "ConvTranspose2d, dilation": (lambda: nn.ConvTranspose2d(2, 2, 2, dilation=2), (2, 3, 3)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(1, 2, 2), (1, 2, 2, 2)),
    "MaxPool1d, dilation": (lambda: nn.Sequential(nn.Conv1d(2, 2, 2), nn.MaxPool1d(2, 1, 0, 2)), (2, 7)),
    "MaxPool2d, ceil_mode": (lambda: nn.Sequential(nn.Conv2d(2, 2, 2), nn.MaxPool2d(2, ceil_mode=True)), (2, 6, 6)),
    "MaxPool3d": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.MaxPool3d(2, 1)), (1, 4, 4, 4)),
    "AvgPool1d": (lambda: nn.Sequential(nn.Conv1d(2, 2, 2), nn.AvgPool1d(2, 1, 0, True)), (2, 7)),
    "AvgPool2d": (lambda: nn.Sequential(nn.Conv2d(2, 2, 2), nn.AvgPool2d(2)), (2, 5, 5)),
    "AvgPool3d": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.AvgPool3d(2)), (1, 3, 3, 3)),
    "AdaptiveAvgPool2d": (lambda: nn.Sequential(nn.Conv2d(2, 2, 2), nn.AdaptiveAvgPool2d(2)), (2, 5, 5)),
    "ZeroPad2d": (lambda: nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(2, 2, 2)), (2, 3, 3)),
}
for _name, (_layer, _shape) in LAYERS.items():

    @TABLE.add(f"{_name}, sum, one batch", kappa=RIGHT)
    def _(layer=_layer, shape=_shape):
        return dense_case(after(layer, shape), CE(reduction="sum"), [(rand(3, *shape), classes(3))])


for _activation in (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.LogSigmoid, nn.ELU, nn.SELU):

    @TABLE.add(f"a convolution without bias, {_activation.__name__}, the rest frozen", kappa=RIGHT)
    def _(activation=_activation):
        def layer():
            return nn.Conv2d(2, 2, 2, bias=False)

        return dense_case(after(layer, (2, 4, 4), activation=activation), CE(), [(rand(3, 2, 4, 4), classes(3))])


class Branches(nn.Module):
    def __init__(self, join):
        super().__init__()
        self.a, self.b, self.c, self.join = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2), join

    def forward(self, x):
        h = self.a(x)
        return self.join(self.b(h), self.c(h))


JOINS = {
    "added": lambda b, c: (b + c).relu().add(c),
    "multiplied": lambda b, c: 0.5 * b * c.multiply(3.1),
    "one after the other, the same activation twice": lambda b, c: torch.cat([b.relu(), c.relu()], 1)[:, 1:3],
    "transposed and back": lambda b, c: (b.t() * 2.5).transpose(0, 1) + c,
}


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3, padding=1, bias=False)
        self.n, self.c, self.head = nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.Linear(2, 3)

    def forward(self, x):
        h = self.n(self.stem(x)).relu()
        return self.head((h + self.c(h)).relu().mean((2, 3)))


class Characters(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.d, self.r, self.head = (
            nn.Embedding(4, 3),
            nn.Dropout(0.2),
            nn.LSTM(3, 2, 1, batch_first=True),
            nn.Linear(2, 4),
        )

    def forward(self, x):
        return self.head(self.d(self.r(self.d(self.e(x)))[0])).permute(0, 2, 1)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.r = kind(3, 2, batch_first=True)

    def forward(self, x):
        return self.r(x)[0].permute(0, 2, 1)


NETWORKS = (
    {
        "a small convolutional network with max-pooling": (
            lambda: nn.Sequential(
                *(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)),
            ),
            CE,
            ragged(rand(10, 1, 8, 8), classes(10), 5),
        ),
        "a deep linear network, batches of 1 and 7": (
            lambda: nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3)),
            MSE,
            ragged(rand(8, 5), rand(8, 3, seed=3), 1),
        ),
        "linear regression without bias": (
            lambda: nn.Linear(5, 1, bias=False),
            MSE,
            [(rand(16, 5), rand(16, 1, seed=3))],
        ),
        "logistic regression": (
            lambda: nn.Linear(5, 1, bias=False),
            BCE,
            [(rand(16, 5), classes(16, 1, of=2).float())],
        ),
        "softmax regression of one example": (lambda: nn.Linear(4, 3), CE, [(rand(1, 4), classes(1))]),
        "a linear layer over two further dimensions": (
            lambda: nn.Linear(5, 3),
            MSE,
            ragged(rand(9, 4, 2, 5), rand(9, 4, 2, 3, seed=3), 2),
        ),
        "a convolution that is averaged over places": (
            lambda: nn.Sequential(
                nn.Conv2d(2, 3, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)
            ),
            MSE,
            ragged(rand(9, 2, 4, 4), rand(9, 2, seed=3), 1),
        ),
        "halves of the input through one layer under two names": (
            lambda: SplitConcat(False),
            MSE,
            [(rand(7, 6), rand(7, 6, seed=3))],
        ),
        "halves of the input through two layers with tied weights": (
            lambda: SplitConcat(True),
            MSE,
            [(rand(7, 6), rand(7, 6, seed=3))],
        ),
        "a network that goes down and up, with a way beside": (
            UNet,
            MSE,
            ragged(rand(5, 1, 4, 4), rand(5, 1, 4, 4, seed=3), 2),
        ),
        "activations in place": (
            lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3), nn.Sigmoid()),
            MSE,
            [(rand(7, 5), rand(7, 3, seed=3))],
        ),
        "LayerNorm, cut into batches": (
            lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 2)),
            CE,
            ragged(rand(8, 4), classes(8, of=2), 3),
        ),
        "BatchNorm, linear, BatchNorm in eval mode": (
            lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU()).eval(),
            CE,
            [(rand(4, 3, 4), classes(4, 3))],
        ),
        "an embedding, a linear layer": (
            lambda: nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 3)),
            CE,
            [(classes(8, 2, of=4), classes(8))],
        ),
        "a small residual network in eval mode": (
            lambda: Residual().eval(),
            CE,
            ragged(rand(5, 1, 4, 4), classes(5), 2),
        ),
        "characters, an LSTM with dropout in eval mode": (
            lambda: Characters().eval(),
            CE,
            [(classes(8, 3, of=4), classes(8, 3, of=4))],
        ),
        "a loss that does not depend on some parameters": (
            lambda: Branches(lambda b, c: b),
            MSE,
            [(rand(5, 3), rand(5, 2, seed=3))],
        ),
    }
    | {
        f"branches, {name}": (lambda join=join: Branches(join), MSE, [(rand(5, 3), rand(5, 2, seed=3))])
        for name, join in JOINS.items()
    }
    | {
        f"{kind.__name__}, cross-entropy at each place": (
            lambda kind=kind: Recurrent(kind),
            CE,
            [(rand(8, 4, 3), classes(8, 4, of=2))],
        )
        for kind in (nn.RNN, nn.LSTM, nn.GRU)
    }
)
for _name, (_make, _loss, _batches) in NETWORKS.items():

    @TABLE.add(_name, kappa=RIGHT)
    def _(make=_make, loss=_loss, batches=_batches):
        return dense_case(make, loss(), batches)


# --- the other matrices -----------------------------------------------------------------------------------------------


def _gauss_newton(net, loss, x, y):
    """Σ Jᵀ(∇²loss)J over the examples, for a mean loss of outputs (n, c)."""
    parameters = truth.trainable(net)
    outputs = net(x)
    rows = [torch.autograd.grad(o, parameters, retain_graph=True) for o in outputs.flatten()]
    J = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    inner = torch.autograd.functional.hessian(lambda o: loss(o.view_as(outputs), y), outputs.detach().flatten())
    return J.T @ inner @ J


def _fisher(net, loss, x, y):
    """The mean of ggᵀ over the examples."""
    parameters = truth.trainable(net)
    each = [torch.autograd.grad(loss(net(x[n : n + 1]), y[n : n + 1]), parameters) for n in range(len(x))]
    g = torch.stack([torch.cat([part.flatten() for part in own]) for own in each])
    return g.T @ g / len(x)


MATRICES = {
    "hessian": (hessian.HessianOperator, lambda net, loss, x, y: truth.dense(lambda own: loss(own(x), y), net)),
    "Gauss-Newton": (hessian.GaussNewtonOperator, _gauss_newton),
    "empirical Fisher": (hessian.FisherOperator, _fisher),
}
PROBLEMS = {
    "cross-entropy": (tanh_net(4), CE(), classes(8, of=4)),
    "squares": (tanh_net(2), MSE(), rand(8, 2, seed=3).double()),
    "binary cross-entropy": (tanh_net(1), BCE(), rand(8, 1, seed=3).double()),
}


@pytest.mark.parametrize("cut", ["one batch", "batches of 3 and 5"])
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("matrix", MATRICES)
def test_an_operator_is_the_dense_matrix_column_by_column(matrix: str, problem: str, cut: str):
    kind, dense = MATRICES[matrix]
    make, loss, y = PROBLEMS[problem]
    x = rand(8, 3).double()
    batches = [(x, y)] if cut == "one batch" else ragged(x, y, 3)
    operator = kind(hessian.MeanLoss(seeded(make), loss, batches))
    columns = torch.stack([operator.matvec(e) for e in torch.eye(operator.d, dtype=torch.float64)])
    torch.testing.assert_close(columns, dense(seeded(make), loss, x, y), rtol=1e-8, atol=1e-10)
    with pytest.raises(ValueError, match="shape"):
        operator.matvec(torch.zeros(operator.d + 1, dtype=torch.float64))


@every(TABLE)
def test_a_kind_of_case_of_other_libraries(situation: Situation):
    situation.judge()
