"""The data, modules and losses that the tables of situations name, each once.

A module is given as what makes it, and made with torch's generator at a seed.
"""

from types import SimpleNamespace

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy, embedding, normalize, one_hot, softplus
from torch.utils.checkpoint import checkpoint

from tests.nets import Around, seeded

# --- data -------------------------------------------------------------------------------------------------------------

N = 40
_generator = torch.Generator().manual_seed(7)
X = torch.randn(N, 4, generator=_generator)
Y = torch.randint(0, 3, (N,), generator=_generator)
REAL = torch.randn(N, 3, generator=_generator)
X64, REAL64 = X.double(), REAL.double()
DATA = [(X, Y)]


def batches(inputs, targets, size=11):
    return list(zip(inputs.split(size), targets.split(size), strict=True))


BATCHES = batches(X, Y)
"""Of 11, 11, 11 and 7 examples."""
CUTS = {
    "batches sorted by class": batches(X[Y.sort().indices], Y.sort().values),
    "the first batch is one example": [(X[:1], Y[:1]), (X[1:], Y[1:])],
    "batches of one example each": batches(X, Y, 1),
}
WORDS = seeded(lambda: torch.randint(1, 6, (N, 5)), 4)
WORDS[:, 2:] = 0  # short texts, mostly padding
LAST_PADS = torch.where(WORDS == 0, 5, WORDS - 1)
THREE_WORDS = torch.stack([Y, (Y + 1) % 6, torch.arange(N) % 6], 1)
IGNORED = -100
RAGGED = seeded(lambda: torch.randint(0, 3, (N, 5)), 9)
for _n in range(N):  # 1 to 5 tokens count
    RAGGED[_n, 1 + (_n * 7) % 5 :] = IGNORED
MASK = (torch.arange(N) % 3 > 0).float()
MASKED = [(x, (y, m)) for x, y, m in zip(X.split(11), REAL.split(11), MASK.split(11), strict=True)]


def rand(*shape, seed=1):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def classes(*shape, of=3):
    return torch.randint(0, of, shape, generator=torch.Generator().manual_seed(2))


def ragged(x, y, first):
    return [(x[:first], y[:first]), (x[first:], y[first:])]


def texts(*lengths):
    """Tokens padded on the right, with a label each."""
    generator = torch.Generator().manual_seed(sum(lengths))
    tokens = torch.randint(1, 7, (len(lengths), max(lengths)), generator=generator)
    labels = torch.randint(3, tokens.shape, generator=generator)
    padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    return tokens.masked_fill(padding, 0), labels.masked_fill(padding, IGNORED)


def wide(tree):
    """In 64 bits."""
    if isinstance(tree, torch.Tensor):
        return tree.double() if tree.is_floating_point() else tree
    if isinstance(tree, tuple):
        return tuple(map(wide, tree))
    return {name: wide(value) for name, value in tree.items()}


# --- modules of (n, 4) inputs and (n, 3) outputs ----------------------------------------------------------------------


def mlp(middle=nn.Tanh):
    """d = 27."""
    return seeded(lambda: nn.Sequential(nn.Linear(4, 3), middle(), nn.Linear(3, 3)))


class Parts(nn.Module):
    """Named parts (modules, parameters; other tensors are buffers), and the function that puts them together."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs, **named):
        return self.function(self, *inputs, **named)


def parts(function, **makers):
    return lambda: Parts(function, **{name: make() for name, make in makers.items()})


def step(function):
    """A module without parameters."""
    return lambda: Parts(lambda own, h: function(h))


def net(middle):
    """An mlp with a function of its features."""
    return lambda: mlp(step(middle))


def around(inner=mlp, **functions):
    """A function of the inputs (``before``) or of the outputs (``after``)."""
    return lambda: Around(inner(), **functions)


def layers(*makers):
    return lambda: nn.Sequential(*(make() for make in makers))


def linear(inputs=4, outputs=3, **options):
    return lambda: nn.Linear(inputs, outputs, **options)


def changed(make, change):
    """What ``make`` makes, after a change."""

    def made():
        model = make()
        change(model)
        return model

    return made


with_zeros = changed(mlp, lambda model: [nn.init.zeros_(p) for p in model[2].parameters()])
"""A head of zeros, behind which nothing is seen at x_0."""
with_batchnorm = changed(
    layers(linear(), lambda: nn.BatchNorm1d(3), nn.Tanh, linear(3)), lambda model: model[1].running_mean.add_(0.3)
)


def by_the_batch(model):
    """The outputs of such a model for X, by the statistics of the batch."""
    h = model[0](X64)
    scaled = (h - h.mean(0)) / (h.var(0, correction=0) + model[1].eps).sqrt()
    return model[3](torch.tanh(model[1].weight * scaled + model[1].bias))


own_batchnorm = parts(
    lambda own, h: nn.functional.batch_norm(own.inner(h), own.mean, own.var, training=own.training),
    inner=mlp,
    mean=lambda: torch.zeros(3),
    var=lambda: torch.ones(3),
)
"""A BatchNorm of one's own, whose statistics a kernel writes: torch counts no change."""
z_scored = layers(
    linear(), step(lambda h: torch.tanh((h - h.mean(0)) / (h.var(0, correction=0) + 0.1).sqrt())), linear(3)
)
"""Normalises by the batch in forward, without a BatchNorm that could be seen."""
batch_attention = layers(linear(), step(lambda h: (h @ h.T).softmax(1) @ h), linear(3))
"""Attends from each example to the others."""
listed = parts(
    lambda own, h: own.head(torch.tanh(own.layers[1](torch.tanh(own.layers[0](h))))),
    layers=lambda: [nn.Linear(4, 4), nn.Linear(4, 4)],  # no ModuleList
    head=linear(),
)
phase = parts(
    lambda own, x: (x.to(own.w.dtype) @ own.w).abs(), w=lambda: nn.Parameter(torch.ones(4, 3, dtype=torch.complex64))
)
two = parts(lambda own, a, b: own.inner(torch.cat([a, b], 1)), inner=mlp)
"""Of two inputs."""
scaled_bytes = parts(lambda own, h: own.inner(h.to(own.inner[0].weight.dtype) / 255), inner=mlp)
partly_used = parts(lambda own, h: own.used(h), used=mlp, unused=linear(2, 2))
counts_in_buffer = parts(
    lambda own, h: own.inner(h) + 0 * own.passes.add_(1), inner=mlp, passes=lambda: torch.zeros(())
)
tied = changed(
    parts(lambda own, h: own.head(own.b(torch.tanh(own.a(h)))), a=linear(4, 4), b=linear(4, 4), head=linear()),
    lambda model: setattr(model.b, "weight", model.a.weight),
)
bare = changed(
    parts(lambda own, h: own.head(torch.tanh(h @ own.w)), head=linear()),
    lambda model: setattr(model, "w", torch.randn(4, 4).requires_grad_()),  # no nn.Parameter
)


class Counts(Around):
    """Its forward depends on how often it was called."""

    calls = 0

    def forward(self, h):
        self.calls += 1
        return self.inner(h) * (1 + 0.1 * self.calls)


class Cached(Around):
    """It keeps what it made of its weight at the first call."""

    kept = None

    def forward(self, h):
        if self.kept is None or self.kept.dtype != h.dtype:
            self.kept = self.inner[0].weight.detach().tanh()
        return self.inner[2](h @ self.kept.T)


PACKS = {
    "object": lambda loss, logits: SimpleNamespace(loss=loss, logits=logits),
    "mapping": lambda loss, logits: {"loss": loss, "logits": logits},
    "tuple": lambda loss, logits: (loss, logits),
}


def own_loss(pack=PACKS["object"]):
    """A model with its own loss, as those of transformers have it."""

    def forward(own, h, labels=None):
        logits = own.inner(h)
        return pack(None if labels is None else ce(logits, labels), logits)

    return parts(forward, inner=mlp)


def narrow(seed, factor):
    """Its own loss is computed in float32, whatever it is given; its backward is too long by a factor."""

    def forward(own, inputs, labels):
        z = own.inner(inputs).float()
        return {"loss": 50 + ce(z + (factor - 1) * (z - z.detach()), labels)}

    inner = seeded(layers(linear(4, 6), nn.GELU, linear(6)), seed)
    return parts(forward, inner=lambda: inner.double())


as_pairs = step(lambda h: h.view(len(h), 2, 2))


_last = step(lambda found: found[0][:, -1])
lstm = layers(as_pairs, lambda: nn.LSTM(2, 3, batch_first=True), _last, linear(3))
_attend = parts(
    lambda own, h: own.a(h, h, h, need_weights=False)[0].mean(1),
    a=lambda: nn.MultiheadAttention(2, 1, batch_first=True),
)
attention = layers(as_pairs, _attend, linear(2))


class Saving(nn.Sequential):
    """An mlp with a checkpointed block."""

    def forward(self, x):
        return self[2](checkpoint(lambda h: torch.tanh(self[0](h)), x, use_reentrant=False))


# --- modules of tokens, images and other shapes -----------------------------------------------------------------------


class Text(nn.Module):
    """Of tokens, with an embedding whose row for padding is held fixed."""

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


tagger = layers(linear(), nn.Tanh, linear(3, 15), step(lambda z: z.view(-1, 3, 5)))
"""Logits (n, 3, 5) of five tokens."""


def attended(own, tokens):
    h = own.embedding(tokens)
    seen = (h @ h.mT / 2).masked_fill((tokens == 0)[:, None, :], -1e9).softmax(-1)
    return own.head((h + seen @ h).tanh())


padded_tagger = parts(attended, embedding=lambda: nn.Embedding(7, 4), head=linear())
"""One block of attention over tokens, with logits (n, length, 3)."""


def relu_net(inputs, outputs):
    return layers(linear(inputs, 4), nn.ReLU, linear(4, outputs))


# --- derivatives that are not those of the values ---------------------------------------------------------------------


def sine(slope, times=2):
    """sin, with this derivative of x, which can be differentiated once or twice."""

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g * slope(ctx.saved_tensors[0])

    if times == 1:
        Sine.backward = staticmethod(once_differentiable(Sine.backward))
    return Sine.apply


def identity(backward):
    """What it is given; gradients go through a function."""

    class Identity(Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return backward(g)

    return Identity.apply


clipped = identity(lambda g: g.clamp(-1e-3, 1e-3))
doubled = identity(lambda g: 2 * g)
"""Doubled gradients have doubled differences, so only the values can tell."""


class Scaled(Function):
    """The identity, whose backward and jvp are multiplied by factors, (n, 1)."""

    @staticmethod
    def forward(h, backward, along):
        return h.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factors = inputs[1:]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factors[0], None, None

    @staticmethod
    def jvp(ctx, *tangents):
        return tangents[0] * ctx.factors[1]


WHERE = {
    "everywhere": lambda h: torch.ones(len(h), dtype=torch.bool),
    "for some inputs": lambda h: h[:, 0] > 0.5,
    "for ten examples of forty": lambda h: torch.stack([(row == X[30:].to(h.dtype)).all(1).any() for row in h]),
    "in the last batch of a client": lambda h: torch.full((len(h),), len(h) == 2),
}
"""Masks of inputs: the derivatives are wrong there."""


def short(where, backward=0.9, along=0.9):
    """An mlp whose features have derivatives that are wrong by factors, for the inputs that ``where`` says."""

    def forward(own, h):
        picked = where(h)[:, None]
        factors = [torch.where(picked, factor, 1.0).to(h.dtype) for factor in (backward, along)]
        return own.inner[2](Scaled.apply(torch.tanh(own.inner[0](h)), *factors))

    return parts(forward, inner=mlp)


def without_float64(kind, factor=1.0):
    """An mlp with a tensor in float32 that nobody casts; its derivatives are wrong by a factor."""
    table, factors = torch.eye(3), [torch.tensor(factor)] * 2
    return parts(lambda own, h: Scaled.apply(own.inner(h) @ table, *factors), inner=lambda: mlp(kind))


def under_no_grad(h):
    with torch.no_grad():
        gate = torch.sigmoid(h)
    return gate * h


def hooked(h):
    h = torch.tanh(h)
    if h.requires_grad:
        h.register_hook(lambda g: 0.5 * g)
    return h


# --- losses of (outputs, targets) -------------------------------------------------------------------------------------


def ce(outputs, targets):
    return cross_entropy(outputs, targets)


mse = nn.functional.mse_loss


def mean_ce(model):
    """f of most situations."""
    return ce(model(X64), Y)


def inner_ce(model):
    """The same where that is the inner module."""
    return mean_ce(model.inner)


def tanh_ce(model):
    """The same for an mlp, written out from its weights, so that no hook of a module has a part in it."""
    h = torch.tanh(X64 @ model[0].weight.T + model[0].bias)
    return ce(h @ model[2].weight.T + model[2].bias, Y)


def through(values):
    """f of an mlp whose features have these values."""
    return lambda model: ce(model[2](values(model[0](X64))), Y)


def at_inputs(function):
    """f of a function of outputs for X and the targets Y."""
    return lambda model: function(model(X64), Y)


RARE = torch.tensor([1.0, 5.0, 60.0])


def weighted(o, t):
    return cross_entropy(o, t, weight=RARE.to(o))


def summed(o, t):
    return cross_entropy(o, t, reduction="sum")


def infonce(o, t):
    z = normalize(o, dim=1)
    return cross_entropy(4 * z @ z.T, torch.arange(len(z)))


def soft_f1(o, t):
    p, q = o.softmax(1)[:, 2], (t == 2).to(o)
    return 1 - 2 * (p * q).sum() / (p.sum() + q.sum() + 1e-6)


def pairwise_ranking(o, t):
    s = o[:, 0]
    above = (t[:, None] > t).to(o)
    return (above * softplus(s[None, :] - s[:, None])).sum() / (above.sum() + 1)


NO_MEANS = {
    "class weights": weighted,
    "reduction='sum'": summed,
    "InfoNCE, whose negatives are the batch": infonce,
    "soft F1": soft_f1,
    "a pairwise ranking": pairwise_ranking,
    "half a per cent from a mean": lambda o, t: ce(o, t) * (1 + 0.2 / len(t)),
}


def focal(o, t):
    each = cross_entropy(o, t, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


MEANS = {
    "a mean": ce,
    "a mean plus a large constant": lambda o, t: ce(o, t) + 1e4,
    "a focal loss": focal,
    "weights of examples, divided by their number": lambda o, t: (
        (RARE.to(o)[t] * cross_entropy(o, t, reduction="none")).mean() / 10
    ),
}


def coupled(z, y):
    return ce(z, y) + 5 * z.mean(0).square().sum()


def neighbours(z, y):
    return ce(z, y) + ((z[::2] * z[1::2]).mean() if len(z) % 2 == 0 else 0)


def by_place(z, y):
    """Later examples count more, by where they are in the batch."""
    return (torch.arange(1.0, len(y) + 1, dtype=z.dtype) * cross_entropy(z, y, reduction="none")).mean()


def infinite_of_two(z, y):
    return ce(z, y) / (len(y) != 2)


def tags(o, t):
    return cross_entropy(o, t, ignore_index=IGNORED)


def of_tokens(logits, labels):
    return cross_entropy(logits.flatten(0, -2), labels.flatten())


def shifted(logits, labels):
    return of_tokens(logits[:, :-1], labels[:, 1:])


def next_token(logits, labels):
    return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)


def masked(o, t):
    errors = (o - t[0]).square().mean(1)
    return (errors * t[1]).sum() / t[1].sum()


def log_sum_exp(o, t):
    most = o.max(1, keepdim=True).values.detach()
    return ((o - most).exp().sum(1).log() + most[:, 0] - o.gather(1, t[:, None])[:, 0]).mean()


def first_order(z, y):
    """Cross-entropy to first order: its second derivative in the outputs is not there."""
    slope = (z.softmax(1) - one_hot(y, 3)).detach() / len(y)
    return ce(z.detach(), y) + (slope * (z - z.detach())).sum()


def short_loss(z, y):
    return 0.9 * ce(z, y) + 0.1 * ce(z.detach(), y)


class Centres(nn.Module):
    """A loss with centres of classes, which are trained or frozen."""

    def __init__(self, trained=True):
        super().__init__()
        self.c = nn.Parameter(torch.eye(3), requires_grad=trained)

    def forward(self, outputs, targets):
        return (outputs - self.c.to(outputs)[targets]).square().sum(1).mean()


# --- losses of the model ----------------------------------------------------------------------------------------------


def squares(model):
    return sum(p.square().sum() for p in model.parameters())


def plus(term, times=1.0):
    """A loss of (model, batch) with a term of the model."""

    def loss(model, batch):
        return ce(model(batch[0]), batch[1]) + times * term(model)

    return loss


def decayed(model, batch, decay=0.1):
    return ce(model(batch[0]), batch[1]) + decay * squares(model)
