"""Losses whose derivatives by torch are not those of their values: κ is refused, or that of the values.

Training by differences looks at values alone, so it is right with all of them. Then what is right and looks otherwise:
kinks, plateaus, 32 bits, and cases that the test suites of other libraries of curvature have
(curvlinops: test/cases.py, kfac_cases.py; pytorch-hessian-eigenthings: tests/; backpack: test/extensions, core,
converter). Their conventions differ from ours where batches are combined: a sum over batches is refused here unless
the batches' weights are given.
"""

from collections import UserDict
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.situations import zoo
from tests.situations.judge import RIGHT, Table, either, refused, told
from tests.situations.zoo import WORDS, X, Y, ce, classes, mean_ce, mlp, net, ragged, rand, tanh_ce, through, wide

at = TABLE = Table()
WRONG = refused("derivative|backward|gradient|detach")
"""A refusal that says that derivatives are not those of the values."""
UNLIKE = told("torch's derivative")
"""What training by differences tells then, where they differ by enough."""
SPLIT = refused(r"\bweights\b")
GRADIENTS = {"method": "fedavg", "lr": 0.1}
NO_DERIVATIVE = refused("must have the derivative that torch gives, for fedavg")

# --- functions of autograd --------------------------------------------------------------------------------------------

FUNCTIONS = {
    "that is right, twice": (zoo.sine(torch.cos), RIGHT),
    "whose backward is detached": (zoo.sine(lambda x: x.cos().detach()), WRONG),
    "whose backward has another sign in places": (zoo.sine(lambda x: x.cos().abs()), WRONG),
    "that can be differentiated once": (zoo.sine(torch.cos, times=1), refused("differentia|derivative|twice")),
}
for _name, (_function, _verdict) in FUNCTIONS.items():
    _f = through(torch.sin)
    at(f"a function of autograd {_name}", kappa=_verdict, train=RIGHT)(net(_function), f=_f)


at("a loss whose gradient is doubled", kappa=WRONG)(loss=lambda o, t: zoo.doubled(ce(o, t)))

_pieces = zoo.batches(X, Y, 10)
_by_clients = NO_DERIVATIVE.given(**GRADIENTS, batch_size=5)
_clients = [(X[:12], Y[:12]), (X[12:], Y[12:])]  # batches of 5, 5 and 2, of 5, 5, ... and 3
for _name, _where in zoo.WHERE.items():
    _short, _name = zoo.short(_where), f"features whose backward is 10 % short {_name}"
    if "batch" not in _name:
        at(_name, kappa=WRONG)(_short, ce, _pieces)
    at(f"{_name}, by differences", train=RIGHT)(_short, f=lambda own: tanh_ce(own.inner))
    at(f"{_name}, by gradients", train=_by_clients)(_short, clients=_clients)
at("features whose forward derivative alone is wrong", kappa=RIGHT)(
    zoo.short(zoo.WHERE["everywhere"], 1.0, 0.5), f=lambda own: tanh_ce(own.inner)
)
for _kind in (nn.ReLU, nn.GELU):
    _name = f"a module that takes no float64, with {_kind.__name__}"
    at(_name, kappa=RIGHT)(zoo.without_float64(_kind), f=zoo.inner_ce)
    at(f"{_name}, whose derivatives are 30 % short", kappa=WRONG)(zoo.without_float64(_kind, 0.7))
at("features half detached, and a loss with constants of its own", kappa=WRONG, train=NO_DERIVATIVE.given(**GRADIENTS))(
    zoo.around(after=lambda z: 0.5 * z + 0.5 * z.detach()), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
)

# --- operations in forward --------------------------------------------------------------------------------------------


MIDDLES = {
    "straight-through rounding (quantised training)": (lambda h: h + ((4 * h).round() / 4 - h).detach(), None),
    "torch's fake quantisation": (lambda h: torch.fake_quantize_per_tensor_affine(h, 0.1, 0, -128, 127), None),
    "features divided by a number from item()": (lambda h: h / (1 + h.square().mean().item()), None),
    "a gate computed under no_grad": (zoo.under_no_grad, zoo.under_no_grad),
    "some features detached": (lambda h: torch.cat([h[:, :1], h[:, 1:].detach()], 1).tanh(), torch.tanh),
    "a hook that halves the gradient of features": (zoo.hooked, torch.tanh),
    "an identity that clips gradients": (lambda h: zoo.clipped(torch.tanh(h)), torch.tanh),
}
"""What is done in forward, and the function of its values, where training is right."""
for _name, (_middle, _values) in MIDDLES.items():
    _told = RIGHT if "no_grad" in _name else UNLIKE
    at(_name, kappa=WRONG, train=_told if _values else None)(net(_middle), f=through(_values))


def halve(module, into, out):
    return tuple(g if g is None else 0.5 * g for g in into)


HALVED = zoo.changed(mlp, lambda model: model[2].register_full_backward_hook(halve))
CLIPPED = zoo.changed(mlp, lambda model: [p.register_hook(lambda g: g.clamp(-1e-3, 1e-3)) for p in model.parameters()])


at("outputs detached for one term of the loss (distillation from itself)", kappa=WRONG, train=UNLIKE)(
    mlp, lambda o, t: ce(o, t) + (o - 2 * o.detach().tanh()).square().mean()
)
at("a full backward hook of a layer that scales gradients", kappa=WRONG, train=UNLIKE)(HALVED, f=tanh_ce)
at("hooks on the user's parameters that clip gradients", kappa=either("hook"), train=RIGHT)(CLIPPED, f=tanh_ce)


for _method in ("fedavg", "decomfl-projection"):
    _flat = refused(f"loss must have slopes for {_method}, got a gradient that is 0 in every parameter")
    at(f"rounded outputs, for {_method}", train=_flat.given(method=_method))(loss=lambda o, t: ce((8 * o).round(), t))

# --- values that are detached, and derivatives that are right nevertheless --------------------------------------------

at("a log-sum-exp that subtracts a detached maximum", both=RIGHT)(mlp, zoo.log_sum_exp, f=mean_ce)
at("checkpointed blocks", both=RIGHT)(lambda: zoo.Saving(*mlp()), f=tanh_ce)

# --- kinks, plateaus, 32 bits: nothing to refuse ----------------------------------------------------------------------

KINKS = {
    "ReLU": nn.ReLU,
    "leaky ReLU": nn.LeakyReLU,
    "Hardtanh": lambda: nn.Hardtanh(-0.5, 0.5),
    "GELU": nn.GELU,
    "Softplus": nn.Softplus,
    "log-softmax": lambda: nn.LogSoftmax(1),
    "LayerNorm": lambda: nn.LayerNorm(3),
    "Softshrink": lambda: nn.Softshrink(0.2),
}
FITTING = {"mu": 1e-3, "lr": 1e-4}
for _name, _kind in KINKS.items():
    at(f"{_name} in float32", kappa=RIGHT, train=RIGHT.given(**FITTING), optim=RIGHT)(partial(mlp, _kind))
# At a kink there is no Hessian, however few units are at it; differences there are as large as their step is small.
at("a unit of ReLU that gets 0 from every example", kappa=refused("has f a kink at x"))(
    zoo.changed(partial(mlp, nn.ReLU), lambda own: [p.data[0].zero_() for p in own[0].parameters()])
)

FUNCTIONS_WITH_KINKS = {
    "maxout": lambda h: h.max(1, keepdim=True).values + 0.1 * h,
    "sorted features": lambda h: h.sort(1).values,
    "the two largest features": lambda h: torch.cat([h.topk(2, 1).values, h[:, :1]], 1),
    "where": lambda h: torch.where(h > 0, h * h, 0.1 * h),
    "softmax in 32 bits inside": lambda h: h.float().softmax(1).to(h.dtype),
    "cumulative maxima": lambda h: h.cummax(1).values,
    "the norm of all": lambda h: h / h.norm(),
}
for _name, _middle in FUNCTIONS_WITH_KINKS.items():
    at(f"{_name} in float32", kappa=RIGHT, train=RIGHT.given(**FITTING), optim=RIGHT)(net(_middle))
_pooled = zoo.layers(lambda: nn.Conv1d(1, 2, 2), nn.ReLU, lambda: nn.MaxPool1d(2), nn.Flatten, zoo.linear(2))
at("max-pooling and convolutions in float32", kappa=RIGHT)(_pooled, ce, [(X[:, None], Y)])

_labels = mlp()(X).argmax(1)
at("half of the features rounded down, a plateau", kappa=either("derivative"), train=told("jumps"))(
    net(lambda h: h.tanh() + (4 * h).floor() / 4)
)
for _factor in (1e12, 1e-12):
    at(f"a loss times {_factor:g}", kappa=RIGHT)(loss=lambda o, t, factor=_factor: factor * ce(o, t))
for _factor in (1e3, 1e-3):
    at(f"a loss times {_factor:g}, trained with steps that fit", train=RIGHT.given(lr=0.3 / _factor))(
        loss=lambda o, t, factor=_factor: factor * ce(o, t)
    )
at("a loss with a large constant", kappa=RIGHT)(loss=lambda o, t: ce(o, t) + 1e6)
at("tiny weights, 1e-4", kappa=RIGHT)(zoo.changed(mlp, lambda model: [p.data.mul_(1e-4) for p in model.parameters()]))
at("saturated outputs, whose curvature is 1e-3 of what it was", kappa=RIGHT)(
    mlp, lambda o, t: ce(20 * o, t), [(X, _labels)]
)
at("parameters that are not used", both=RIGHT)(zoo.partly_used)
at("an indefinite Hessian, whose trace nearly cancels", kappa=RIGHT)(
    zoo.linear(), lambda o, t: (o[:, 0] * o[:, 1]).mean() + 0.01 * o.square().mean()
)

# --- embeddings with a row that is held fixed -------------------------------------------------------------------------

_bag = zoo.layers(lambda: nn.EmbeddingBag(6, 3, padding_idx=0), nn.Tanh, zoo.linear(3))
_last = partial(zoo.Text, padding=-1)
at("nn.Embedding with padding_idx: its row is held fixed", both=RIGHT)(zoo.Text, ce, [(WORDS, Y)])
at("padding_idx=-1, the last row", both=RIGHT)(_last, ce, [(zoo.LAST_PADS, Y)])
at("functional.embedding with padding_idx", kappa=either("padding"), train=UNLIKE)(
    partial(zoo.Text, functional=True), ce, [(WORDS, Y)]
)
at("a padding row that is tied to the outputs' weights", kappa=either("padding|derivative|tied"))(
    partial(zoo.Text, tied=True), ce, [(WORDS, Y)]
)
at("nn.EmbeddingBag with padding_idx", kappa=either("derivatives of every operation"), train=RIGHT)(
    _bag, ce, [(WORDS, Y)]
)

# --- cases of other libraries: losses, and how they are cut -----------------------------------------------------------

CE = nn.CrossEntropyLoss()
TARGETS = {
    "cross-entropy": (nn.CrossEntropyLoss, 3, classes(7)),
    "binary cross-entropy of soft labels, two outputs": (nn.BCEWithLogitsLoss, 2, rand(7, 2, seed=3)),
    "squares": (nn.MSELoss, 3, rand(7, 3, seed=3)),
}
for _name, (_loss, _outputs, _y) in TARGETS.items():
    _module, _data, _total = zoo.relu_net(5, _outputs), ragged(rand(7, 5), _y, 3), _loss(reduction="sum")
    _named = [(UserDict({"x": rand(3, 5)}), _y[:3]), ({"x": rand(4, 5)}, _y[3:])]
    at(f"{_name}, mean, batches of 3 and 4", kappa=RIGHT)(_module, _loss(), _data)
    at(f"{_name}, sum, batches of 3 and 4", kappa=SPLIT)(_module, _total, _data)
    _small = RIGHT.given(lr=0.01)
    at(f"{_name}, sum, one batch", kappa=RIGHT, train=_small)(_module, _total, [(rand(7, 5), _y)])
    at(f"{_name}, inputs in a dict that the model takes as one argument", kappa=either("mapping|named|keyword"))(
        zoo.layers(zoo.step(lambda data: data["x"]), _module), _loss(), _named
    )

_twelve = rand(12, 5), classes(12)
_loader = DataLoader(TensorDataset(*_twelve), batch_size=5, drop_last=True)
_double = zoo.changed(zoo.layers(zoo.linear(3, 5), nn.Tanh, zoo.linear(5, 4)), nn.Module.double)
_unequal = [(wide(x), y) for x, y in ragged(rand(8, 3), classes(8, of=4), 3)]
at("a plain mean over batches of unequal sizes, as weights", kappa=RIGHT.given(weights=[1, 1]))(
    _double, CE, _unequal, lambda own: sum(CE(own(x), y) for x, y in _unequal) / 2
)
at("a loader that drops its last batch", kappa=RIGHT)(
    zoo.relu_net(5, 3), CE, _loader, lambda own: CE(own(_twelve[0][:10].double()), _twelve[1][:10])
)
