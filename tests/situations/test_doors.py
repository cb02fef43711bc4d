"""What the two doors accept: kinds of data, of modules, of outputs and of surroundings; the rest in a clear line."""

from __future__ import annotations

import warnings
from collections import OrderedDict, UserDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import decomfl_lab as lab
import hessian
from tests.decomfl_lab.datasets.test_given import Rows
from tests.nets import Around, seeded
from tests.refusals import refuses
from tests.situations import truth
from tests.situations.situation import (
    BATCHES,
    REAL,
    REAL64,
    RIGHT,
    X64,
    Case,
    N,
    Situation,
    Table,
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
DATA = [(X, Y)]
mse = nn.functional.mse_loss


# --- kinds of data ----------------------------------------------------------------------------------------------------


class Gathered:
    """Neither list nor Dataset: gives its batches anew each time."""

    def __iter__(self):
        return iter(BATCHES)


KINDS = {
    "a pair of tensors": ((X, Y), RIGHT, RIGHT),
    "a list of one pair": ([(X, Y)], RIGHT, None),
    "a list that is a pair": ([X, Y], RIGHT, RIGHT),
    "a pair of numpy arrays": ((X.numpy(), Y.numpy()), RIGHT, RIGHT),
    "a list of exactly two batches": ([(X[:13], Y[:13]), (X[13:], Y[13:])], RIGHT, None),
    "a tuple of exactly two batches": (((X[:13], Y[:13]), (X[13:], Y[13:])), refused("in a list"), None),
    "a TensorDataset": (TensorDataset(X, Y), RIGHT, RIGHT),
    "a Dataset of one's own": (Rows([*zip(X, Y, strict=True)]), RIGHT, RIGHT),
    "a DataLoader": (DataLoader(TensorDataset(X, Y), batch_size=11), RIGHT, RIGHT),
    "a DataLoader that shuffles": (DataLoader(TensorDataset(X, Y), batch_size=11, shuffle=True), RIGHT, RIGHT),
    "an iterable object of batches": (Gathered(), RIGHT, either("inputs, targets")),
    "None": (None, refused("data"), refused("client")),
    "a pair without examples": ((X[:0], Y[:0]), refused("at least one"), refused("one at least|at least one")),
    "no batch": ([], refused("at least one|empty"), refused("client")),
    "a batch without examples": ([(X[:0], Y[:0])], refused("at least one"), None),
    "fewer targets than inputs": ((X, Y[:-1]), refused("first dimension|as many"), refused("as many")),
    "inputs alone": (X, refused("pair|inputs, targets"), refused("inputs, targets")),
    "a word": ("mnist", refused("pair|data"), refused("inputs, targets")),
    "lists of numbers": ((X.tolist(), Y.tolist()), either("tensor|inputs, targets|pair"), either("inputs, targets")),
    "triples": ([(X, Y, Y)], refused("pair|inputs, targets"), refused("inputs, targets|pair")),
    "a mapping without labels": ([{"x": X}], refused("labels|pair"), refused("labels|inputs, targets|pair")),
    "NaN among the inputs": ((X.clone().fill_(float("nan")), Y), refused("finite"), refused("finite")),
    "a target that is no class": ((X, Y + 1), refused("class|out of bounds"), refused("class|out of bounds")),
}
for _name, (_data, _kappa, _train) in KINDS.items():

    @TABLE.add(f"data: {_name}", kappa=_kappa, train=_train)
    def _(data=_data, as_client=_train is not None):
        return Case(mlp(), ce, data, mean_ce, clients=[data] if as_client else None)


for _name, _clients in {
    "(x, y)": (X, Y),
    "(numpy, numpy)": (X.numpy(), Y.numpy()),
    "a Dataset": TensorDataset(X, Y),
}.items():

    @TABLE.add(f"clients={_name}, without the list", train=either(r"\[\(|list"))
    def _(clients=_clients):
        return Case(mlp(), ce, (X, Y), mean_ce, clients=clients)


@TABLE.add("several clients of one size, whose mean is f", train=RIGHT)
def _():
    clients = list(zip(X.split(10), Y.split(10), strict=True))
    return Case(mlp(), ce, None, mean_ce, clients=clients)


class Own(nn.Module):
    """A model with its own loss, as those of transformers have it."""

    def __init__(self, kind="object"):
        super().__init__()
        self.inner, self.kind = mlp(), kind

    def forward(self, h, labels=None):
        logits = self.inner(h)
        loss = None if labels is None else ce(logits, labels)
        return {
            "object": SimpleNamespace(loss=loss, logits=logits),
            "mapping": {"loss": loss, "logits": logits},
            "tuple": (loss, logits),
        }[self.kind]


for _kind in ("object", "mapping", "tuple"):

    @TABLE.add(f"loss=None, the model returns its loss ({_kind}), one mapping", kappa=RIGHT, train=RIGHT)
    def _(kind=_kind):
        data = [{"h": X, "labels": Y}]
        return Case(Own(kind), None, data, lambda net: ce(net.inner(X64), Y), clients=[data])

    @TABLE.add(f"loss=None, the model returns its loss ({_kind}), a list of exactly two mappings", kappa=RIGHT)
    def _(kind=_kind):
        data = [{"h": X[:13], "labels": Y[:13]}, {"h": X[13:], "labels": Y[13:]}]
        return Case(Own(kind), None, data, lambda net: ce(net.inner(X64), Y))


@TABLE.add("loss=None, a model that returns no loss", kappa=refused("loss"), train=refused("loss"))
def _():
    data = [{"input": X, "labels": Y}]
    return Case(mlp(), None, data, clients=[data])


@TABLE.add("mappings with labels and a loss of one's own", kappa=RIGHT)
def _():
    data = [{"h": x, "labels": y} for x, y in BATCHES]
    return Case(Own(), ce, data, lambda net: ce(net.inner(X64), Y))


@TABLE.add("mappings and loss(model, batch), which gets the mapping as it is", kappa=RIGHT)
def _():
    def loss(model, batch):
        assert set(batch) == {"h", "labels"}
        return ce(model(h=batch["h"]).logits, batch["labels"])

    return Case(Own(), loss, [{"h": x, "labels": y} for x, y in BATCHES], lambda net: ce(net.inner(X64), Y))


# --- kinds of inputs, outputs, targets --------------------------------------------------------------------------------


class Two(nn.Module):
    """Of two inputs."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, a, b=None):
        return self.inner(torch.cat([a, b], 1))


A, B = X[:, :1], X[:, 1:]


def _two(net):
    return ce(net(X64[:, :1], X64[:, 1:]), Y)


for _name, _inputs in {
    "a tuple of two inputs": (A, B),
    "a list of two inputs": [A, B],
    "a dict of named inputs": {"b": B, "a": A},
    "an OrderedDict of named inputs": OrderedDict(a=A, b=B),
    "a UserDict of named inputs": UserDict({"a": A, "b": B}),
}.items():

    @TABLE.add(_name, kappa=RIGHT, train=either("inputs|tensor"))
    def _(inputs=_inputs):
        return Case(Two(), ce, [(inputs, Y)], _two)


@TABLE.add("a Dataset of examples with several inputs", kappa=RIGHT, train=either("inputs|pair|shape"))
def _():
    return Case(Two(), ce, Rows([((A[n], B[n]), Y[n]) for n in range(N)]), _two)


@TABLE.add("edges of a graph as a second input, which are no examples", kappa=refused("first dimension"))
def _():
    edges = torch.randint(0, N, (2, 90), generator=torch.Generator().manual_seed(0))
    return Case(Two(), ce, [((X, edges), Y)])


class Graph(nn.Module):
    """Each node adds its neighbours; the edges are a buffer."""

    def __init__(self, nodes):
        super().__init__()
        self.lin = nn.Linear(4, 3)
        self.register_buffer("edges", torch.randint(0, nodes, (2, 3 * nodes)))

    def forward(self, x):
        h = self.lin(x)
        return h.index_add(0, self.edges[0], h[self.edges[1]])


@TABLE.add("a graph whose edges are a buffer, one batch", kappa=RIGHT, train=either("order|batch of"))
def _():
    return Case(seeded(lambda: Graph(N)), ce, DATA, mean_ce, train={"lr": 0.02})


@TABLE.add(
    "a graph of 520 nodes as a pair of tensors", kappa=either(r"\[\(|one batch|order"), train=either("order|batch of")
)
def _():
    x, y = X.repeat(13, 1), Y.repeat(13)
    model = seeded(lambda: Graph(520))
    return Case(model, ce, (x, y), lambda net: ce(net(x.double()), y))


Pair = namedtuple("Pair", "mean spread")


def _nll(mean, spread, targets):
    return (0.5 * (targets[:, 0] - mean).square() * torch.exp(-spread) + 0.5 * spread).mean()


OUTPUTS = {
    "a tuple": (lambda o: (o[:, 0], o[:, 1]), lambda o: o),
    "a list": (lambda o: [o[:, 0], o[:, 1]], lambda o: o),
    "a dict": (lambda o: {"m": o[:, 0], "s": o[:, 1]}, lambda o: (o["m"], o["s"])),
    "a namedtuple": (lambda o: Pair(o[:, 0], o[:, 1]), lambda o: (o.mean, o.spread)),
    "a nested dict": (lambda o: {"a": {"m": o[:, 0]}, "s": [o[:, 1]]}, lambda o: (o["a"]["m"], o["s"][0])),
    "an object of its own": (lambda o: SimpleNamespace(m=o[:, 0], s=o[:, 1]), lambda o: (o.m, o.s)),
    "a distribution": (
        lambda o: torch.distributions.Normal(o[:, 0], (o[:, 1] / 2).exp()),
        lambda o: (o.loc, 2 * o.scale.log()),
    ),
}
for _name, (_make, _take) in OUTPUTS.items():

    @TABLE.add(f"outputs: {_name}", both=RIGHT)
    def _(make=_make, take=_take):
        return Case(
            Around(mlp(), after=make),
            lambda o, t: _nll(*take(o), t),
            [(X, REAL)],
            lambda net: _nll(*net.inner(X64)[:, :2].T, REAL64),
        )


@TABLE.add("a dict of targets", kappa=RIGHT, train=either("targets|pair|tensor"))
def _():
    def loss(o, t):
        return ce(o, t["class"]) + mse(o, t["value"].to(o))

    return Case(mlp(), loss, [(X, {"class": Y, "value": REAL})], lambda net: mean_ce(net) + mse(net(X64), REAL64))


@TABLE.add("no targets at all", kappa=RIGHT, train=either("targets|tensor"))
def _():
    def loss(o, t):
        return o.square().mean()

    return Case(mlp(), loss, [(X, None)], lambda net: net(X64).square().mean())


@TABLE.add("an autoencoder, whose targets are its inputs", both=RIGHT)
def _():
    def make():
        return nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 4))

    return Case(seeded(make), mse, (X, X), lambda net: mse(net(X64), X64))


@TABLE.add("integer inputs of an embedding", both=RIGHT)
def _():
    words = torch.arange(N).remainder(6)[:, None].expand(N, 3).clone()
    words[:, 1] = Y
    model = seeded(lambda: nn.Sequential(nn.Embedding(6, 2), nn.Flatten(), nn.Linear(6, 3)))
    return Case(model, ce, [(words, Y)], lambda net: ce(net(words), Y))


@TABLE.add("images of bytes, which forward scales", both=RIGHT)
def _():
    images = (40 * X + 128).clamp(0, 255).to(torch.uint8)

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, h):
            return self.inner(h.to(self.inner[0].weight.dtype) / 255)

    return Case(Scaled(), ce, [(images, Y)], lambda net: ce(net(images), Y))


DTYPES = {
    "inputs in 64 bits for a model in 32": (X64, Y, False, either("dtype|float64|double")),
    "a model in 64 bits": (X64, Y, True, RIGHT),
    "a model in 64 bits, inputs in 32": (X, Y, True, either("dtype|float|double")),
    "classes as numbers of 32 bits": (X, Y.int(), False, either("int|Long|class|scalar type")),
    "classes as floating-point numbers": (X, Y.float(), False, refused("class|Long|int64|Float")),
}
for _name, (_x, _y, _double, _verdict) in DTYPES.items():

    @TABLE.add(_name, both=_verdict)
    def _(x=_x, y=_y, double=_double):
        return Case(mlp().double() if double else mlp(), ce, [(x, y)], mean_ce)


@TABLE.add("probabilities of classes as targets", both=RIGHT)
def _():
    soft = nn.functional.one_hot(Y, 3) * 0.7 + 0.1
    return Case(mlp(), ce, [(X, soft)], lambda net: ce(net(X64), soft.double()))


# --- kinds of losses --------------------------------------------------------------------------------------------------

SCALAR = "scalar tensor|mean over the batch"
LOSSES = {
    "a float by item()": (lambda o, t: ce(o, t).item(), refused("float|item"), refused("float|scalar")),
    "a numpy number": (
        lambda o, t: np.float64(ce(o, t).detach().numpy()),
        refused("numpy|float64|scalar"),
        refused("numpy|float64|scalar"),
    ),
    "of shape (1,)": (lambda o, t: ce(o, t)[None], either(SCALAR), either(SCALAR)),
    "a loss for each example": (
        lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
        refused(r"mean\(\)"),
        refused(r"mean\(\)"),
    ),
    "a tuple with the loss": (lambda o, t: (ce(o, t), o), refused("tuple"), refused("tuple")),
    "None": (lambda o, t: None, refused("NoneType"), refused("NoneType")),
    "NaN": (lambda o, t: ce(o, t) * float("nan"), refused("finite"), refused("finite|nan")),
    "an integer tensor": (
        lambda o, t: (o.argmax(1) != t).sum(),
        refused("int|depend on the parameters|gradient|floating"),
        None,
    ),
    "complex": (lambda o, t: ce(o, t) * (1 + 1j), refused("complex|real"), refused("complex|real")),
    "detached": (lambda o, t: ce(o, t).detach(), refused("detach"), RIGHT),
    "an exception of its own": (lambda o, t: 1 / 0, refused("ZeroDivisionError"), refused("ZeroDivisionError")),
}
for _name, (_loss, _kappa, _train) in LOSSES.items():

    @TABLE.add(f"a loss that returns {_name}", kappa=_kappa, train=_train)
    def _(loss=_loss):
        return Case(mlp(), loss, DATA, mean_ce)


@TABLE.add("a loss that is a word", both=refused("loss must"))
def _():
    return Case(mlp(), "cross_entropy", DATA)


@TABLE.add("the class of a loss instead of an object", both=refused(r"class|instance|object|CrossEntropyLoss\(\)"))
def _():
    return Case(mlp(), nn.CrossEntropyLoss, DATA)


# --- kinds of modules -------------------------------------------------------------------------------------------------


@TABLE.add("nn.DataParallel", kappa=either(r"\.module"), train=either(r"\.module"))
def _():
    return Case(nn.DataParallel(mlp()), ce, DATA, lambda net: ce(getattr(net, "module", net)(X64), Y))


@TABLE.add('torch.compile(model, backend="eager")', both=either("compile"))
def _():
    return Case(torch.compile(mlp(), backend="eager"), ce, DATA, lambda net: ce(getattr(net, "_orig_mod", net)(X64), Y))


@TABLE.add('model.compile(backend="eager")', both=either("compile"))
def _():
    model = mlp()
    model.compile(backend="eager")
    return Case(model, ce, DATA, lambda net: ce(net[2](torch.tanh(net[0](X64))), Y))


@TABLE.add("a scripted model", both=either("script|jit|compile|copy"))
def _():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Case(torch.jit.script(mlp()), ce, DATA, mean_ce)


@TABLE.add("a sparse embedding", kappa=either("sparse"), train=RIGHT)
def _():
    words = torch.stack([Y, (Y + 1) % 6, torch.arange(N) % 6], 1)
    model = seeded(lambda: nn.Sequential(nn.Embedding(6, 2, sparse=True), nn.Flatten(), nn.Linear(6, 3)))

    def f(net):
        return ce(nn.functional.linear(net[0].weight[words].flatten(1), net[2].weight, net[2].bias), Y)

    return Case(model, ce, [(words, Y)], f)


@TABLE.add("an embedding with max_norm, which forward writes to", both=either("max_norm|in-?place"))
def _():
    words = torch.stack([Y, (Y + 1) % 6, torch.arange(N) % 6], 1)
    model = seeded(lambda: nn.Sequential(nn.Embedding(6, 2, max_norm=0.5), nn.Flatten(), nn.Linear(6, 3)))

    def f(net):
        w = net[0].weight
        w = w * (0.5 / w.norm(dim=1, keepdim=True)).clamp(max=1)
        return ce(nn.functional.linear(w[words].flatten(1), net[2].weight, net[2].bias), Y)

    return Case(model, ce, [(words, Y)], f)


@TABLE.add("LazyLinear after its first batch", both=RIGHT)
def _():
    model = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.LazyLinear(3))
    seeded(lambda: model(X))
    return Case(model, ce, DATA, mean_ce)


@TABLE.add("a parameter that is NaN", both=refused("finite"))
def _():
    model = mlp()
    nn.init.constant_(model[0].bias, float("nan"))
    return Case(model, ce, DATA)


@TABLE.add("complex parameters", both=refused("complex|float32"))
def _():
    class Phase(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4, 3, dtype=torch.complex64))

        def forward(self, x):
            return (x.to(self.w.dtype) @ self.w).abs()

    return Case(Phase(), ce, DATA)


@TABLE.add("a model in bfloat16", both=refused("float32"))
def _():
    return Case(mlp().bfloat16(), lambda o, t: ce(o.float(), t), [(X.bfloat16(), Y)])


@TABLE.add("a model of two dtypes", both=either("float"))
def _():
    model = mlp()
    model[2].double()
    model[1] = nn.Sequential(nn.Tanh(), _Cast())
    return Case(model, ce, DATA, lambda net: ce(net[2](torch.tanh(net[0](X64))), Y))


class _Cast(nn.Module):
    def forward(self, h):
        return h.double()


MODULES = {
    "no trainable parameters": (lambda: mlp().requires_grad_(False), refused("trainable|requires_grad|parameters")),
    "a module without parameters": (nn.Flatten, refused("trainable|parameters")),
    "a function instead of a module": (lambda: lambda h: h, refused("Module|operator")),
    "parameters on the meta device": (lambda: mlp().to("meta"), refused("meta")),
    "LazyLinear before its first batch": (
        lambda: nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.LazyLinear(3)),
        refused("lazy|uninitiali[sz]ed|first"),
    ),
    "Dropout(p=0) in training mode": (lambda: mlp(lambda: nn.Dropout(0.0)), either("eval")),
    "Dropout in training mode": (lambda: mlp(nn.Dropout), refused("eval")),
    "Dropout in eval mode": (lambda: mlp(nn.Dropout).eval(), RIGHT),
}
for _name, (_make, _verdict) in MODULES.items():

    @TABLE.add(_name, both=_verdict)
    def _(make=_make):
        return Case(make(), ce, DATA, mean_ce)


@TABLE.add("some parameters frozen", both=RIGHT)
def _():
    model = mlp()
    model[0].requires_grad_(False)
    return Case(model, ce, DATA, mean_ce)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b.weight = self.a.weight

    def forward(self, h):
        return self.head(self.b(torch.tanh(self.a(h))))


@TABLE.add("tied weights", both=RIGHT)
def _():
    return Case(seeded(Tied), ce, DATA, mean_ce)


@TABLE.add("weights that share memory but are two parameters", both=either("memory|storage|share"))
def _():
    """Moved together by an optimiser, apart as elements of x: f of x with two parts is what torch differentiates."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False)))
    model[2].weight = nn.Parameter(model[0].weight.data)
    return Case(model, lambda o, t: ce(o[:, :3], t), DATA, lambda net: ce(net(X64)[:, :3], Y), train={"lr": 0.1})


@TABLE.add("spectral_norm in training mode, which moves its vectors", both=either("eval|mode|same|spectral"))
def _():
    model = seeded(lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), nn.Linear(3, 3)))

    def frozen(net):
        return ce(net.eval()(X64), Y)

    return Case(model, ce, DATA, frozen)


@TABLE.add("spectral_norm in eval mode", kappa=either("spectral|derivative"), train=either("spectral"))
def _():
    def make():
        return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), nn.Linear(3, 3))

    return Case(seeded(make).eval(), ce, DATA, mean_ce)


@TABLE.add("weight_norm, whose second derivative by torch is wrong", kappa=either("derivative|backward"), train=RIGHT)
def _():
    def make():
        return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 3))

    return Case(seeded(make), ce, DATA, mean_ce, values=True)


NUMPY = np.random.default_rng(0)
NOISES = {
    "functional.dropout without training=": lambda h: nn.functional.dropout(h, 0.5),
    "Gaussian noise on the inputs": lambda h: h + 0.1 * torch.randn_like(h),
    "numpy's noise": lambda h: h + 0.1 * torch.from_numpy(NUMPY.standard_normal(h.shape)).to(h),
    "a random permutation of features": lambda h: h[:, torch.randperm(4)],
}
for _name, _noise in NOISES.items():

    @TABLE.add(f"noise in forward: {_name}", both=refused("same in every evaluation|random|noise"))
    def _(noise=_noise):
        return Case(Around(mlp(), before=noise), ce, DATA)


@pytest.mark.parametrize("door", ["kappa", "train"])
@pytest.mark.parametrize("seed", range(3))
def test_rare_noise_is_refused_whatever_is_drawn(seed: int, door: str):
    """One row of forty is dropped on average: two evaluations are equal in 13 % of all pairs."""

    def make() -> Case:
        return Case(Around(mlp(), before=lambda h: h * (torch.rand(len(h), 1) > 0.025)), ce, DATA)

    Situation("rare noise", make, door, refused("same in every evaluation|random|noise")).judge(seed)


class Counts(nn.Module):
    """Its forward depends on how often it was called."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()
        self.calls = 0

    def forward(self, h):
        self.calls += 1
        return self.inner(h) * (1 + 0.1 * self.calls)


@TABLE.add("a forward that counts its calls", both=refused("same in every evaluation|state"))
def _():
    return Case(Counts(), ce, DATA)


@TABLE.add("a forward that writes to its inputs", both=either("input|in-place|same in every evaluation"))
def _():
    return Case(Around(mlp(), before=lambda h: h.mul_(2)), ce, [(X.clone(), Y)], lambda net: ce(net.inner(2 * X64), Y))


def _with_batchnorm():
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 3)))
    model[1].running_mean += 0.3
    return model


@TABLE.add("a BatchNorm in training mode: κ takes its running statistics", kappa=either("eval|normalisation"))
def _():
    return Case(_with_batchnorm(), ce, DATA, lambda net: ce(net.eval()(X64), Y))


@TABLE.add("a BatchNorm in training mode: training takes those of the batch", train=either("eval|running|batchnorm"))
def _():
    return Case(_with_batchnorm(), ce, DATA, lambda net: ce(_by_the_batch(net), Y))


def _by_the_batch(net):
    h = net[0](X64)
    return net[3](
        torch.tanh(net[1].weight * (h - h.mean(0)) / (h.var(0, correction=0) + net[1].eps).sqrt() + net[1].bias)
    )


@TABLE.add("BatchNorm in eval mode", kappa=RIGHT)
def _():
    return Case(_with_batchnorm().eval(), ce, BATCHES, mean_ce)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.r, self.head = kind(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, h):
        return self.head(self.r(h.view(len(h), 2, 2))[0][:, -1])


for _kind in (nn.RNN, nn.GRU, nn.LSTM):

    @TABLE.add(f"{_kind.__name__}", both=RIGHT)
    def _(kind=_kind):
        return Case(seeded(lambda: Recurrent(kind)), ce, DATA, mean_ce)


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.head = nn.MultiheadAttention(2, 1, batch_first=True), nn.Linear(2, 3)

    def forward(self, h):
        h = h.view(len(h), 2, 2)
        return self.head(self.a(h, h, h, need_weights=False)[0].mean(1))


@TABLE.add("nn.MultiheadAttention", both=RIGHT)
def _():
    return Case(seeded(Attends), ce, DATA, mean_ce)


@TABLE.add("a transformer layer in eval mode", kappa=RIGHT, train=RIGHT)
def _():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.e, self.head = nn.TransformerEncoderLayer(2, 1, 3, batch_first=True), nn.Linear(2, 3)

        def forward(self, h):
            return self.head(self.e(h.view(len(h), 2, 2)).mean(1))

    def f(net):  # training mode without dropout, as torch's fast path of eval mode has no derivative
        for part in net.train().modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
            if isinstance(part, nn.MultiheadAttention):
                part.dropout = 0.0
        return ce(net(X64), Y)

    return Case(seeded(Encoder).eval(), ce, DATA, f)


# --- words of others --------------------------------------------------------------------------------------------------


@refuses(
    ({"K": 2}, "mean local_steps|local_steps ?=|local_steps \\(K\\)|K is local_steps"),
    ({"learning_rate": 0.1}, "mean lr|lr ?=|learning_rate is lr|called lr"),
    ({"epochs": 3}, "mean rounds|rounds ?=|rounds \\(|called rounds"),
    ({"steps": 3}, "mean (rounds|local_steps)|rounds ?=|local_steps ?="),
    ({"local_epochs": 2}, "mean local_steps|local_steps ?=|called local_steps"),
    ({"bs": 8}, "mean batch_size|batch_size ?=|called batch_size"),
)
def test_an_option_by_another_librarys_name_is_refused_with_ours(given: dict[str, float]):
    lab.train(mlp(), ce, DATA, rounds=1, **given)


# --- surroundings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("door", ["kappa", "train"])
def test_inside_a_block_of_evaluation_the_doors_do_the_same(around, door: str):
    situation = Situation("inside", lambda: Case(mlp(), ce, DATA, mean_ce), door, RIGHT)
    if door == "kappa":
        with around():
            k = hessian.effective_rank(mlp(), ce, DATA, products=32)
        assert_same(k, truth.curvature(truth.dense(mean_ce, mlp())))
    else:
        with around():
            run = lab.train(mlp(), ce, DATA, rounds=2, batch_size=N, lr=0.3, seed=3)
        outside = lab.train(mlp(), ce, DATA, rounds=2, batch_size=N, lr=0.3, seed=3)
        assert run.metrics.train_loss.tolist() == outside.metrics.train_loss.tolist()
        situation.judge()


def test_first_order_training_inside_no_grad_moves_by_the_gradient():
    model = mlp().double()
    with torch.no_grad():
        run = lab.train(model, ce, [(X64, Y)], method="fedavg", rounds=1, lr=0.1, batch_size=N)
    gradient = torch.autograd.grad(mean_ce(model), list(model.parameters()))
    for p, q, g in zip(model.parameters(), run.model.parameters(), gradient, strict=True):
        torch.testing.assert_close(q, p - 0.1 * g, rtol=1e-5, atol=1e-7)


def _made_in_inference_mode() -> Case:
    with torch.inference_mode():
        model = mlp()
    return Case(model, ce, DATA, mean_ce)


@pytest.mark.parametrize("door", ["kappa", "train"])
def test_a_model_made_in_inference_mode_is_taken_or_refused_in_a_line(door: str):
    Situation("a model made in inference mode", _made_in_inference_mode, door, either("inference")).judge()


@pytest.mark.parametrize("matrix", [np.eye(3)[:2], np.array([[0.0, 1.0], [0.0, 0.0]]), "eye"])
def test_what_is_no_symmetric_matrix_is_refused(matrix):
    with pytest.raises(lab.InputError, match="matrix"):
        hessian.DenseOperator(matrix)


def test_the_global_generator_is_left_as_it_was():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    hessian.effective_rank(mlp(), ce, DataLoader(TensorDataset(X, Y), batch_size=11, shuffle=True), products=32)
    lab.train(mlp(), ce, DATA, rounds=1)
    assert torch.equal(torch.get_rng_state(), before)


@every(TABLE)
def test_a_door_takes_it_rightly_or_says_in_a_line_why_not(situation: Situation):
    situation.judge()
