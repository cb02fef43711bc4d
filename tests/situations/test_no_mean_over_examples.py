"""Losses that are no mean over examples: the whole batch as it is, weights for several batches, or a refusal."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.nets import seeded
from tests.situations.situation import (
    BATCHES,
    REAL,
    REAL64,
    RIGHT,
    WEIGHTS,
    X64,
    Case,
    N,
    Situation,
    Table,
    X,
    Y,
    ce,
    every,
    mean_ce,
    mlp,
    refused,
)

TABLE = Table()
SPLIT = refused(WEIGHTS)
SORTED = Y.sort().indices
IGNORED = -100


def batches(inputs, targets, size=11):
    return list(zip(inputs.split(size), targets.split(size), strict=True))


# --- the losses, of (outputs, targets) --------------------------------------------------------------------------------

RARE = torch.tensor([1.0, 5.0, 60.0])


def weighted(o, t):
    return nn.functional.cross_entropy(o, t, weight=RARE.to(o))


def summed(o, t):
    return nn.functional.cross_entropy(o, t, reduction="sum")


def infonce(o, t):
    z = nn.functional.normalize(o, dim=1)
    return nn.functional.cross_entropy(4 * z @ z.T, torch.arange(len(z)))


def soft_f1(o, t):
    p, q = o.softmax(1)[:, 2], (t == 2).to(o)
    return 1 - 2 * (p * q).sum() / (p.sum() + q.sum() + 1e-6)


def pairwise_ranking(o, t):
    s = o[:, 0]
    above = (t[:, None] > t).to(o)
    return (above * nn.functional.softplus(s[None, :] - s[:, None])).sum() / (above.sum() + 1)


def worst_example(o, t):
    return nn.functional.cross_entropy(o, t, reduction="none").max()


def perplexity(o, t):
    return ce(4 * o, t).exp()


def batch_entropy(o, t):
    p = o.softmax(1).mean(0)
    return ce(o, t) + (p * p.log()).sum()


LOSSES = {
    "class weights": weighted,
    "reduction='sum'": summed,
    "InfoNCE, whose negatives are the batch": infonce,
    "soft F1": soft_f1,
    "a pairwise ranking": pairwise_ranking,
    "the loss of the worst example": worst_example,
    "perplexity": perplexity,
    "the entropy of the batch's mean prediction": batch_entropy,
}


@pytest.mark.parametrize("name", LOSSES)
def test_to_cut_one_of_these_losses_would_be_seen(name):
    """Else a table that trains them says nothing."""
    loss, outputs = LOSSES[name], mlp().double()(X64).detach()
    whole, pieces = float(loss(outputs, Y)), [loss(*piece) for piece in batches(outputs, Y, 16)]
    mean = sum(float(piece) * n for piece, n in zip(pieces, (16, 16, 8), strict=True)) / N
    assert abs(whole - mean) > 0.003 * abs(whole)


for _name, _loss in LOSSES.items():

    @TABLE.add(f"{_name}, one batch", both=RIGHT)
    def _(loss=_loss):
        return Case(mlp(), loss, [(X, Y)], lambda net: loss(net(X64), Y))

    @TABLE.add(f"{_name}, a pair of tensors", kappa=RIGHT)
    def _(loss=_loss):
        return Case(mlp(), loss, (X, Y), lambda net: loss(net(X64), Y))

    @TABLE.add(f"{_name}, several batches", kappa=SPLIT)
    def _(loss=_loss):
        return Case(mlp(), loss, BATCHES)

    @TABLE.add(f"{_name}, several batches with a weight each", kappa=RIGHT)
    def _(loss=_loss):
        f = [lambda net, x=x, y=y: loss(net(x.double()), y) for x, y in BATCHES]
        return Case(
            mlp(),
            loss,
            BATCHES,
            lambda net: (f[0](net) + 2 * f[1](net) + 3 * f[2](net) + 4 * f[3](net)) / 10,
            kappa={"weights": [1, 2, 3, 4]},
        )


# --- class weights ----------------------------------------------------------------------------------------------------


CUTS = {
    "batches sorted by class": batches(X[SORTED], Y[SORTED]),
    "a batch for each class": [(X[c == Y], Y[c == Y]) for c in range(3)],
    "the first batch has one class alone": [(X[Y == 0], Y[Y == 0]), (X[Y > 0], Y[Y > 0])],
    "the first batch is one example": [(X[:1], Y[:1]), (X[1:], Y[1:])],
    "batches of one example each": batches(X, Y, 1),
}
for _name, _cut in CUTS.items():

    @TABLE.add(f"class weights, {_name}", kappa=SPLIT)
    def _(cut=_cut):
        return Case(mlp(), weighted, cut)

    @TABLE.add(f"class weights, {_name}, and weights= of the targets", kappa=RIGHT)
    def _(cut=_cut):
        return Case(mlp(), weighted, cut, lambda net: weighted(net(X64), Y), kappa={"weights": lambda t: RARE[t]})

    @TABLE.add(f"a mean, {_name}", kappa=RIGHT)
    def _(cut=_cut):
        return Case(mlp(), ce, cut, mean_ce)


@TABLE.add("class weights that differ only for a class of the last batch", kappa=SPLIT)
def _():
    def rare(o, t):
        return nn.functional.cross_entropy(o, t, weight=torch.tensor([1.0, 1.0, 20.0]).to(o))

    common = Y < 2
    return Case(mlp(), rare, [*batches(X[common], Y[common], 9), (X[6:14], Y[6:14])])


@TABLE.add("class weights, more examples than go through at once", kappa=RIGHT)
def _():
    x, y = X.repeat(13, 1), Y.repeat(13)[torch.arange(13 * N).roll(7)]  # 520
    return Case(mlp(), weighted, (x, y), lambda net: weighted(net(x.double()), y))


@TABLE.add("class weights, loss(model, batch) with weights= of the batch", kappa=RIGHT)
def _():
    return Case(
        mlp(),
        lambda model, batch: weighted(model(batch[0]), batch[1]),
        BATCHES,
        lambda net: weighted(net(X64), Y),
        kappa={"weights": lambda batch: RARE[batch[1]]},
    )


@TABLE.add("class weights, nn.CrossEntropyLoss itself", train=RIGHT, kappa=SPLIT)
def _():
    return Case(mlp(), nn.CrossEntropyLoss(weight=RARE), BATCHES, lambda net: weighted(net(X64), Y), clients=[(X, Y)])


# --- masks, ignored tokens, weights in the targets --------------------------------------------------------------------

TOKENS = seeded(lambda: torch.randint(0, 3, (N, 5)), 9)
RAGGED = TOKENS.clone()
for _n in range(N):  # 1 to 5 tokens count
    RAGGED[_n, 1 + (_n * 7) % 5 :] = IGNORED


class Tagger(nn.Module):
    """Logits (n, 3, 5) of five tokens."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 15)

    def forward(self, h):
        return self.b(torch.tanh(self.a(h))).view(-1, 3, 5)


def tags(o, t):
    return nn.functional.cross_entropy(o, t, ignore_index=IGNORED)


@TABLE.add("ignored tokens, ragged counts, one batch", both=RIGHT)
def _():
    return Case(seeded(Tagger), tags, [(X, RAGGED)], lambda net: tags(net(X64), RAGGED))


@TABLE.add("ignored tokens, ragged counts, several batches", kappa=RIGHT)
def _():
    return Case(seeded(Tagger), tags, batches(X, RAGGED), lambda net: tags(net(X64), RAGGED))


@TABLE.add("ignored tokens, equal counts in the first batch alone", kappa=RIGHT)
def _():
    targets = torch.cat([TOKENS[:11], RAGGED[11:]])
    return Case(seeded(Tagger), tags, batches(X, targets), lambda net: tags(net(X64), targets))


@TABLE.add("ignored tokens, weights= the number that count", kappa=RIGHT)
def _():
    return Case(
        seeded(Tagger),
        tags,
        batches(X, RAGGED),
        lambda net: tags(net(X64), RAGGED),
        kappa={"weights": lambda t: (t != IGNORED).float()},
    )


@TABLE.add("tokens that all count, several batches", kappa=RIGHT)
def _():
    return Case(seeded(Tagger), tags, batches(X, TOKENS), lambda net: tags(net(X64), TOKENS))


MASK = (torch.arange(N) % 3 > 0).float()


def masked(o, t):
    errors = (o - t[0]).square().mean(1)
    return (errors * t[1]).sum() / t[1].sum()


def _masked_batches():
    return [(x, (y, m)) for x, y, m in zip(X.split(11), REAL.split(11), MASK.split(11), strict=True)]


@TABLE.add("a masked mean, several batches", kappa=SPLIT)
def _():
    return Case(mlp(), masked, _masked_batches())


@TABLE.add("a masked mean, weights= the mask", kappa=RIGHT)
def _():
    return Case(
        mlp(),
        masked,
        _masked_batches(),
        lambda net: masked(net(X64), (REAL64, MASK)),
        kappa={"weights": lambda targets: targets[1]},
    )


@TABLE.add("a mean of weighted errors, which is a mean over examples", kappa=RIGHT)
def _():
    def loss(o, t):
        return ((o - t[0]).square().mean(1) * t[1]).mean()

    return Case(mlp(), loss, _masked_batches(), lambda net: loss(net(X64), (REAL64, MASK)))


# --- a forward pass that looks at the batch ---------------------------------------------------------------------------


class ZScore(nn.Module):
    """Normalises by the batch in forward, without a BatchNorm that could be seen."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.tanh((h - h.mean(0)) / (h.var(0, correction=0) + 0.1).sqrt()))


class Centred(ZScore):
    """Attends from each example to the others."""

    def forward(self, x):
        h = self.a(x)
        return self.b((h @ h.T).softmax(1) @ h)


for _what, _kind in (("a z-score of the batch", ZScore), ("attention between the batch's examples", Centred)):

    @TABLE.add(f"{_what} in forward, one batch", both=RIGHT)
    def _(kind=_kind):
        return Case(seeded(kind), ce, [(X, Y)], mean_ce)

    @TABLE.add(f"{_what} in forward, several batches", kappa=SPLIT)
    def _(kind=_kind):
        return Case(seeded(kind), ce, BATCHES)

    @TABLE.add(f"{_what} in forward, batches of one example each", kappa=SPLIT)
    def _(kind=_kind):
        return Case(seeded(kind), ce, batches(X, Y, 1))


@TABLE.add("a BatchNorm that keeps no running statistics, one batch", train=RIGHT)
def _():
    def make():
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 3))

    return Case(seeded(make), ce, (X, Y), mean_ce)


# --- what is a mean, however it is cut --------------------------------------------------------------------------------


def focal(o, t):
    each = nn.functional.cross_entropy(o, t, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


MEANS = {
    "a mean": ce,
    "a mean plus a constant": lambda o, t: ce(o, t) + 3,
    "label smoothing": nn.CrossEntropyLoss(label_smoothing=0.1),
    "a focal loss": focal,
}
for _name, _loss in MEANS.items():

    @TABLE.add(f"{_name}, over ragged batches", kappa=RIGHT, train=RIGHT)
    def _(loss=_loss):
        return Case(mlp(), loss, BATCHES, lambda net: loss(net(X64), Y), clients=[(X, Y)])


@TABLE.add("a mean, with weights= other than the numbers of examples", kappa=RIGHT)
def _():
    def f(net):
        return (3 * ce(net(X64[:11]), Y[:11]) + ce(net(X64[11:22]), Y[11:22])) / 4

    return Case(mlp(), ce, BATCHES[:2], f, kappa={"weights": [3.0, 1.0]})


# --- weights that are none --------------------------------------------------------------------------------------------


NO_WEIGHTS = {
    "fewer weights than batches": ([1, 2], "weights must .*4"),
    "a weight below zero": ([1, 2, -1, 1], "weights must .*0"),
    "a function of weights that returns NaN": (lambda t: t / 0.0 - t / 0.0, "weights .*(finite|nan)"),
    "a function of weights that fails": (lambda t: t.no_such_method(), "weights.*no_such_method"),
    "a word instead of weights": ("balanced", "weights must"),
}
for _name, (_weights, _word) in NO_WEIGHTS.items():

    @TABLE.add(_name, kappa=refused(_word))
    def _(weights=_weights):
        return Case(mlp(), weighted, BATCHES, kappa={"weights": weights})


@every(TABLE)
def test_a_loss_that_is_no_mean_is_taken_whole_or_refused(situation: Situation):
    situation.judge()
