"""What the doors accept: kinds of data, of outputs, of losses, of modules and of surroundings; the rest in a line."""

import types
import warnings
from collections import UserDict, namedtuple
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

from tests.decomfl_lab.datasets.test_batches import Rows
from tests.situations import zoo
from tests.situations.judge import RIGHT, Table, either, refused
from tests.situations.zoo import BATCHES, REAL, REAL64, X64, N, X, Y, around, ce, mean_ce, mlp, mse, net, through

at = TABLE = Table()

# --- kinds of data ----------------------------------------------------------------------------------------------------


class Gathered:
    """Neither list nor Dataset: gives its batches anew each time."""

    def __iter__(self):
        return iter(BATCHES)


def loader(**options):
    return DataLoader(TensorDataset(X, Y), batch_size=11, **options)


KINDS = {
    "a pair of tensors": ((X, Y), RIGHT, RIGHT),
    "a list of one pair": ([(X, Y)], RIGHT, None),
    "arrays that go backwards": ((X.numpy()[::-1], Y.numpy()[::-1]), RIGHT, RIGHT),
    "a tuple of exactly two batches": (((X[:13], Y[:13]), (X[13:], Y[13:])), refused("in a list"), None),
    "a Dataset of one's own": (Rows([*zip(X, Y, strict=True)]), RIGHT, RIGHT),
    "a DataLoader that shuffles": (loader(shuffle=True), RIGHT, RIGHT),
    "an iterable object of batches": (Gathered(), RIGHT, either("inputs, targets")),
    "a pair without examples": ((X[:0], Y[:0]), refused("at least one"), refused("one at least|at least one")),
    "no batch": ([], refused("at least one|empty"), refused("client")),
    "inputs alone": (X, refused("pair|inputs, targets"), refused("inputs, targets")),
    "lists of numbers": ((X.tolist(), Y.tolist()), either("tensor|inputs, targets|pair"), either("inputs, targets")),
    "NaN among the inputs": ((X.clone().fill_(float("nan")), Y), refused("finite"), refused("finite")),
    "a target that is no class": ((X, Y + 1), refused("class|out of bounds"), refused("class|out of bounds")),
}
for _name, (_data, _kappa, _train) in KINDS.items():
    at(f"data: {_name}", kappa=_kappa, train=_train)(data=_data, f=mean_ce, clients=[_data])

at("clients=(x, y), without the list", train=either(r"\[\(|list"))(clients=(X, Y))
at("several clients of one size, whose mean is f", train=RIGHT)(clients=zoo.batches(X, Y, 10))
at(
    "numbers beside tensors that are others in another batch",
    train=refused(r"must be the same in all batches .*, got 1\.0, 2\.0"),
)(
    loss=lambda model, batch: ce(model(batch["x"]) * batch["scale"], batch["y"]),
    clients=[{"x": X[a : a + 20], "y": Y[a : a + 20], "scale": 2.0 - a / 20} for a in (0, 20)],
)

for _kind, _pack in zoo.PACKS.items():
    _own = zoo.own_loss(_pack)
    _one = [{"h": X, "labels": Y}]
    _two = [{"h": X[:13], "labels": Y[:13]}, {"h": X[13:], "labels": Y[13:]}]
    _name = f"loss=None, the model returns its loss ({_kind})"
    at(f"{_name}, one mapping", train=RIGHT)(_own, None, _one, zoo.inner_ce, clients=[_one])
    at(f"{_name}, a list of exactly two mappings", kappa=RIGHT)(_own, None, _two, zoo.inner_ce)

for _seed in range(4):
    _batch = [{"inputs": X64[:12], "labels": Y[:12]}]
    _right, _long = (zoo.narrow(_seed, factor) for factor in (1.0, 2.0))
    at(f"loss=None, a loss in float32 whatever it is given, net {_seed}", kappa=RIGHT)(
        _right, None, _batch, lambda net: ce(net.inner(X64[:12]), Y[:12])
    )
    at(f"the same with derivatives twice too long, net {_seed}", kappa=refused("derivatives"))(_long, None, _batch)

_unnamed = [{"input": X, "labels": Y}]
at("loss=None, a model that returns no loss", both=refused("loss"))(mlp, None, _unnamed, clients=[_unnamed])


_mappings = [{"h": x, "labels": y} for x, y in BATCHES]
at("mappings with labels and a loss of one's own", kappa=RIGHT)(zoo.own_loss(), ce, _mappings, zoo.inner_ce)

# --- kinds of inputs, outputs, targets --------------------------------------------------------------------------------

A, B = X[:, :1], X[:, 1:]
_pairs = Rows([((A[n], B[n]), Y[n]) for n in range(N)])
for _name, _inputs in {
    "a tuple of two inputs": (A, B),
    "a UserDict of named inputs": UserDict({"a": A, "b": B}),
}.items():
    at(_name, kappa=RIGHT, train=either("inputs|tensor"))(zoo.two, ce, [(_inputs, Y)], zoo.inner_ce)
at("a Dataset of examples with several inputs", kappa=RIGHT, train=either("inputs|pair|shape"))(
    zoo.two, ce, _pairs, zoo.inner_ce
)
Pair = namedtuple("Pair", "mean spread")


def _nll(mean, spread, targets):
    return (0.5 * (targets[:, 0] - mean).square() * torch.exp(-spread) + 0.5 * spread).mean()


OUTPUTS = {
    "a namedtuple": (lambda o: Pair(o[:, 0], o[:, 1]), lambda o: (o.mean, o.spread)),
    "a nested dict": (lambda o: {"a": {"m": o[:, 0]}, "s": [o[:, 1]]}, lambda o: (o["a"]["m"], o["s"][0])),
    "a distribution": (
        lambda o: torch.distributions.Normal(o[:, 0], (o[:, 1] / 2).exp()),
        lambda o: (o.loc, 2 * o.scale.log()),
    ),
    "an object with logits, of which another is taken": (
        lambda o: SimpleNamespace(logits=0 * o, aux=o),
        lambda o: o.aux[:, :2].T,
    ),
}
for _name, (_make, _take) in OUTPUTS.items():
    at(f"outputs: {_name}", both=RIGHT)(
        around(after=_make),
        lambda o, t, take=_take: _nll(*take(o), t),
        [(X, REAL)],
        lambda net: _nll(*net.inner(X64)[:, :2].T, REAL64),
    )


_bytes = (40 * X + 128).clamp(0, 255).to(torch.uint8)
_words = torch.arange(N).remainder(6)[:, None].expand(N, 3).clone()
_words[:, 1] = Y
_embedding = zoo.layers(lambda: nn.Embedding(6, 2), nn.Flatten, zoo.linear(6))
_soft = nn.functional.one_hot(Y, 3) * 0.7 + 0.1
at("a dict of targets", kappa=RIGHT, train=either("targets|pair|tensor"))(
    mlp,
    lambda o, t: ce(o, t["class"]) + mse(o, t["value"].to(o)),
    [(X, {"class": Y, "value": REAL})],
    lambda net: mean_ce(net) + mse(net(X64), REAL64),
)
at("no targets at all", kappa=RIGHT, train=either("targets|tensor"))(
    mlp, lambda o, t: o.square().mean(), [(X, None)], lambda net: net(X64).square().mean()
)
at("integer inputs of an embedding", both=RIGHT)(_embedding, ce, [(_words, Y)])
at("images of bytes, which forward scales", both=RIGHT)(zoo.scaled_bytes, ce, [(_bytes, Y)])
at("probabilities of classes as targets", both=RIGHT)(mlp, ce, [(X, _soft)])

DTYPES = {
    "inputs in 64 bits for a model in 32": (mlp, X64, Y, either("dtype|float64|double")),
    "a model in 64 bits": (lambda: mlp().double(), X64, Y, RIGHT),
    "a model in 64 bits, inputs in 32": (lambda: mlp().double(), X, Y, either("dtype|float|double")),
    "classes as numbers of 32 bits": (mlp, X, Y.int(), either("int|Long|class|scalar type")),
    "classes as floating-point numbers": (mlp, X, Y.float(), refused("class|Long|int64|Float")),
}
for _name, (_module, _x, _y, _verdict) in DTYPES.items():
    at(_name, both=_verdict)(_module, ce, [(_x, _y)], mean_ce)

# --- kinds of losses --------------------------------------------------------------------------------------------------

SCALAR = either("scalar tensor|mean over the batch")
EACH = refused(r"mean\(\)")
INTEGER = refused("int|depend on the parameters|gradient|floating")
LOSSES = {
    "a float by item()": (lambda o, t: ce(o, t).item(), refused("float|item"), refused("float|scalar")),
    "of shape (1,)": (lambda o, t: ce(o, t)[None], SCALAR, SCALAR),
    "a loss for each example": (lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"), EACH, EACH),
    "None": (lambda o, t: None, refused("NoneType"), refused("NoneType")),
    "NaN": (lambda o, t: ce(o, t) * float("nan"), refused("finite"), refused("finite|nan")),
    "an integer tensor": (lambda o, t: (o.argmax(1) != t).sum(), INTEGER, None),
    "complex": (lambda o, t: ce(o, t) * (1 + 1j), refused("complex|real"), refused("complex|real")),
    "detached": (lambda o, t: ce(o, t).detach(), refused("detach"), RIGHT),
    "an exception of its own": (lambda o, t: 1 / 0, refused("ZeroDivisionError"), refused("ZeroDivisionError")),
}
for _name, (_loss, _kappa, _train) in LOSSES.items():
    at(f"a loss that returns {_name}", kappa=_kappa, train=_train)(mlp, _loss, f=mean_ce)

at("a loss that is a number", both=refused("loss must be a function"))(loss=7)
at("the class of a loss instead of an object", both=refused(r"class|instance|object|CrossEntropyLoss\(\)"))(
    loss=nn.CrossEntropyLoss
)
at(
    "a loss that is infinite for the last batch of a client",
    train=refused("loss of client 0 must be finite .*got inf").given(batch_size=5),
)(mlp, zoo.infinite_of_two, clients=[(X[:12], Y[:12]), (X[12:], Y[12:])])

# --- kinds of modules -------------------------------------------------------------------------------------------------


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(mlp())


def made_in_inference_mode():
    with torch.inference_mode():
        return mlp()


def of_rows(model, rows):
    h = rows[zoo.THREE_WORDS].flatten(1)
    return ce(nn.functional.linear(h, model[2].weight, model[2].bias), Y)


def with_max_norm(model):
    w = model[0].weight
    return of_rows(model, w * (0.5 / w.norm(dim=1, keepdim=True)).clamp(max=1))


def embedded(**options):
    return zoo.layers(lambda: nn.Embedding(6, 2, **options), nn.Flatten, zoo.linear(6))


def normed(norm):
    return zoo.layers(lambda: norm(nn.Linear(4, 3)), zoo.linear(3))


LAZY = zoo.layers(lambda: nn.LazyLinear(3), nn.Tanh, lambda: nn.LazyLinear(3))
_texts = [(zoo.THREE_WORDS, Y)]
at("nn.DataParallel", both=either(r"\.module"))(
    lambda: nn.DataParallel(mlp()), f=lambda net: mean_ce(getattr(net, "module", net))
)
at('model.compile(backend="eager")', both=either("compile"))(
    zoo.changed(mlp, lambda model: model.compile(backend="eager")), f=through(torch.tanh)
)
at("a scripted model", both=either("script|jit|compile|copy"))(scripted, f=mean_ce)
at("a sparse embedding", kappa=either("sparse"), train=RIGHT)(
    embedded(sparse=True), data=_texts, f=lambda net: of_rows(net, net[0].weight)
)
at("an embedding with max_norm, which forward writes to", both=either("max_norm|in-?place"))(
    embedded(max_norm=0.5), data=_texts, f=with_max_norm
)
at("LazyLinear after its first batch", both=RIGHT)(zoo.changed(LAZY, lambda model: model(X)))
at("LazyLinear before its first batch", both=refused("lazy|uninitiali[sz]ed|first"))(LAZY)
at("a parameter that is NaN", both=refused("finite"))(
    zoo.changed(mlp, lambda model: nn.init.constant_(model[0].bias, float("nan")))
)
at("complex parameters", both=refused("complex|float32"))(zoo.phase)
at("a model in bfloat16", both=refused("float32"))(
    lambda: mlp().bfloat16(), lambda o, t: ce(o.float(), t), [(X.bfloat16(), Y)]
)
at("a model of two dtypes", both=either("float"))(
    zoo.changed(net(lambda h: h.tanh().double()), lambda model: model[2].double()), f=through(torch.tanh)
)
at("a model made in inference mode", both=either("inference"))(made_in_inference_mode)
at("no trainable parameters", both=refused("trainable|requires_grad|parameters"))(lambda: mlp().requires_grad_(False))
at("a function instead of a module", both=refused("Module|operator"))(lambda: lambda h: h)
at("parameters on the meta device", both=refused("meta"))(lambda: mlp().to("meta"))
at("Dropout in training mode", both=refused("eval"))(lambda: mlp(nn.Dropout))
at("Dropout in eval mode", both=RIGHT)(lambda: mlp(nn.Dropout).eval())
at("some parameters frozen", both=RIGHT)(zoo.changed(mlp, lambda model: model[0].requires_grad_(False)))
at("tied weights", both=RIGHT)(zoo.tied)
at("spectral_norm in training mode, which moves its vectors", both=either("eval|mode|same|spectral"))(
    normed(nn.utils.parametrizations.spectral_norm), f=lambda net: mean_ce(net.eval())
)
at("a module pruned of weights and biases, which was called", both=RIGHT)(
    zoo.changed(mlp, lambda net: [*(prune.l1_unstructured(net[2], name, 0.4) for name in ("weight", "bias")), net(X)])
)


def _old_weight_norm(net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(net[0])


at("torch.nn.utils.weight_norm, called", kappa=either("derivative|backward"), train=RIGHT)(
    zoo.changed(mlp, lambda net: [_old_weight_norm(net), net(X)]), values=True
)


def _kept(net):
    """An attribute that is computed of the weight, and read in each forward pass."""
    net.double_weight = 2 * net[0].weight
    net.forward = types.MethodType(lambda own, x: own[2](torch.tanh(x @ own.double_weight.T.to(x))), net)


at(
    "a weight that was computed once and is read",
    both=refused("no parameters but the module's|see the parameters"),
)(zoo.changed(mlp, _kept))
at("a BatchNorm in training mode: κ takes its running statistics", kappa=either("eval|normalisation"))(
    zoo.with_batchnorm, f=lambda net: mean_ce(net.eval())
)
at("a BatchNorm in training mode: training takes those of the batch", train=either("eval|running|batchnorm"))(
    zoo.with_batchnorm, f=lambda net: ce(zoo.by_the_batch(net), Y)
)
at("BatchNorm in eval mode", kappa=RIGHT)(lambda: zoo.with_batchnorm().eval(), data=BATCHES)
at("a BatchNorm in eval mode, asked for by the batch", kappa=RIGHT.given(normalisation="batch"))(
    lambda: zoo.with_batchnorm().eval(), f=lambda net: ce(zoo.by_the_batch(net), Y)
)
at("a BatchNorm in training mode, asked for in eval mode", kappa=RIGHT.given(normalisation="eval"))(
    zoo.with_batchnorm, f=lambda net: mean_ce(net.eval())
)
at("a BatchNorm of one's own in training mode", kappa=RIGHT, train=refused("buffer 'mean'"))(zoo.own_batchnorm)
at("nn.LSTM", both=RIGHT)(zoo.lstm)
at("nn.MultiheadAttention", both=RIGHT)(zoo.attention)

# --- noise and state --------------------------------------------------------------------------------------------------

NUMPY = np.random.default_rng(0)
NOISE = refused("same in every evaluation|random|noise")
at("noise in forward: numpy's", both=NOISE)(
    around(before=lambda h: h + 0.1 * torch.from_numpy(NUMPY.standard_normal(h.shape)).to(h))
)
for _seed in range(3):  # one row of forty is dropped on average: two evaluations are equal in 13 % of all pairs
    _rare = around(before=lambda h: h * (torch.rand(len(h), 1) > 0.025))
    at(f"rare noise in forward, drawn from seed {_seed}", both=NOISE)(_rare, seed=_seed)
at("a forward that counts its calls", both=refused("same in every evaluation|state"))(lambda: zoo.Counts(mlp()))
at("a forward that counts its calls in a buffer", kappa=RIGHT, train=refused("buffer 'passes'"))(zoo.counts_in_buffer)
at("a module that keeps something of x, two batches", both=refused("keep no state"))(
    lambda: zoo.Cached(mlp()), ce, [(X[:20], Y[:20]), (X[20:], Y[20:])]
)
at("a forward that writes to its inputs", both=either("input|in-place|same in every evaluation"))(
    around(before=lambda h: h.mul_(2)), ce, [(X.clone(), Y)], lambda net: ce(net.inner(2 * X64), Y)
)

# --- words of others, and surroundings --------------------------------------------------------------------------------

for _around in (torch.no_grad, torch.inference_mode, torch.enable_grad):
    at(f"called inside {_around.__name__}", both=RIGHT)(inside=_around)
at("outputs in float32 whatever is given, by gradients", train=RIGHT.given(method="fedavg"))(
    around(lambda: mlp(nn.Softplus), after=lambda z: z.float().to(z.dtype))
)
at("a module that takes no float64, by gradients", train=RIGHT.given(method="fedavg"))(
    net(lambda h: h @ torch.eye(3) if h.dtype == torch.float32 else h.no_such_dtype()), f=through(lambda h: h)
)
