"""Whether a loss is one function of x: those that read the module, or are no mean over examples."""

import copy
from functools import partial

import torch
from torch import nn

from tests.nets import seeded
from tests.situations import zoo
from tests.situations.judge import RIGHT, Of, Table, either, refused
from tests.situations.zoo import BATCHES, REAL, X64, X, Y, at_inputs, batches, ce, mean_ce, mlp, squares, weighted

at = TABLE = Table()
MODEL_FORM = r"\(model, batch\)"
"""The remedy where a loss reads the module behind the function."""
READS = refused(MODEL_FORM)
SPLIT = refused(r"\bweights\b")
"""The remedy where the losses of batches have to be weighed."""
ORDER = refused("order of a batch's examples")

# --- differences of (N, 1) and (N,) -----------------------------------------------------------------------------------

for _loss in (nn.functional.mse_loss, nn.SmoothL1Loss()):
    at(
        f"{getattr(_loss, '__name__', _loss)} of outputs (N, 1) and targets (N,)",
        both=refused(r"targets.reshape\(-1, 1\) mends it"),
    )(zoo.linear(4, 1), _loss, [(X, REAL[:, 0])])

# --- losses that read the module by a closure -------------------------------------------------------------------------


def distance(model, start):
    """Zero at the start, with its gradient."""
    pairs = zip(model.parameters(), start.parameters(), strict=True)
    return sum((p - q.detach().to(p)).square().sum() for p, q in pairs)


def computed_once(model):
    once = 0.1 * squares(model)
    return lambda: once


def squared(taken):
    return lambda: taken.square().sum()


def in_inference_mode(model):
    with torch.inference_mode():
        return squared(model[2].weight.view(-1))


TERMS = {
    "weight decay": lambda model: lambda: 0.1 * squares(model),
    "a term that calls the model again, on other inputs": lambda model: lambda: model(torch.ones(5, 4)).square().mean(),
    "state_dict(), which has no graph": lambda model: (
        lambda: sum(t.square().sum() for t in model.state_dict().values())
    ),
    "an alias weight.detach() captured before": lambda model: squared(model[0].weight.detach()),
    "the transpose captured before": lambda model: squared(model[2].weight.data.T),
    "a view captured in inference mode": in_inference_mode,
    "a parameter in a list": lambda model: lambda: torch.cat([model[2].weight]).square().sum(),
    "a parameter by an argument's name": lambda model: (
        lambda: nn.functional.linear(input=torch.ones(3), weight=model[2].weight).square().sum()
    ),
}


def closing_over(make):
    """A loss with a term that is made of the user's module."""

    def loss_of(model):
        term = make(model)
        return lambda o, t: ce(o, t) + term()

    return Of(loss_of)


for _name, _term in TERMS.items():
    at(f"by a closure over the user's model: {_name}", both=READS)(mlp, closing_over(_term), (X, Y))


def beside(first):
    """A loss that reads a flat tensor from an element on; a weight of the model is the twelve before that."""

    def loss_of(model):
        flat = torch.linspace(-1, 1, 16)
        model[0].weight, taken = nn.Parameter(flat[:12].view(3, 4)), flat[first:]
        return lambda o, t: ce(o, t) * taken.square().sum().item()

    return Of(loss_of)


GLOBAL = mlp()


_tail = torch.linspace(-1, 1, 16).double()[12:].square().sum()
at("the weight's norm as a factor of the loss, by item()", both=READS)(
    mlp, Of(lambda model: lambda o, t: ce(o, t) * model[0].weight.norm().item())
)
at("a function that reads a global model", both=READS)(lambda: GLOBAL, lambda o, t: ce(o, t) + 0.1 * squares(GLOBAL))
at("loss(model, batch) that also reads the user's model by its closure", both=READS)(
    mlp, Of(lambda user: zoo.plus(lambda model: squares(user), 0.1))
)
at("a tensor that begins before a parameter's end in one storage", both=READS)(mlp, beside(11))
at("a tensor beside a parameter in one storage", both=RIGHT)(mlp, beside(12), f=lambda net: _tail * mean_ce(net))

# --- what was captured before -----------------------------------------------------------------------------------------


def numpy_view(model):
    view = model[0].weight.detach().numpy()
    return lambda o, t: ce(o, t) + float((view**2).sum())


def kept_by_a_hook(model):
    kept = {}
    model[1].register_forward_hook(lambda module, inputs, output: kept.update(h=output))
    return lambda o, t: ce(o, t) + kept["h"].square().mean()


START = mlp()
at("a penalty computed once, outside the loss, with its graph", both=refused(f"{MODEL_FORM}|outside|graph"))(
    mlp, closing_over(computed_once), (X, Y)
)
at("a numpy view of a weight captured before, which no function of torch sees: a constant", both=RIGHT)(
    mlp, Of(numpy_view), (X, Y), lambda net: mean_ce(net) + START[0].weight.detach().square().sum()
)
at("activations that a hook on the user's model keeps for the loss", both=either(MODEL_FORM))(
    mlp, Of(kept_by_a_hook), f=lambda net: mean_ce(net) + torch.tanh(net[0](X64)).square().mean()
)
at("a loss that makes zeros and ones like a weight", both=RIGHT)(
    mlp,
    closing_over(lambda m: lambda w=m[2].weight: (torch.zeros_like(w) + w.new_ones(())).sum()),
    f=lambda net: mean_ce(net) + 9,
)
at("trust=True leaves out the check of a loss that is right", both=RIGHT.given(trust=True))(data=(X, Y))

# --- parameters that are not the module's -----------------------------------------------------------------------------

ELSEWHERE = refused(r"requires_grad|regist|parameters of (the|its) loss|parameters of its own|not (among|part of)")
LEAF = torch.tensor(0.5, requires_grad=True)
FOREIGN = nn.Parameter(torch.tensor(0.5))
LEAVES = {
    "learned log-variances of tasks in a closure": lambda o, t: torch.exp(-LEAF) * ce(o, t) + LEAF,
    "a parameter elsewhere, which is touched inside": lambda o, t: ce(o * FOREIGN.requires_grad_(), t),
    "what was computed of a parameter elsewhere": lambda o, t, scale=3 * FOREIGN: ce(o * scale, t),
}
for _name, _loss in LEAVES.items():
    at(_name, both=ELSEWHERE)(mlp, _loss, (X, Y))
at("a loss that learns centres of classes", both=ELSEWHERE)(mlp, zoo.Centres())
at("a loss with frozen centres", both=RIGHT)(mlp, zoo.Centres(trained=False), (X, Y))
at("layers in a plain list, which are not registered", both=refused("regist|ModuleList"))(zoo.listed)
at("a bare tensor that requires a gradient, no nn.Parameter", both=refused("regist|nn.Parameter"))(zoo.bare)

TEACHER = seeded(zoo.linear(), 5)
TEACHER64 = copy.deepcopy(TEACHER).double()


def taught_without_gradient(outputs, targets):
    with torch.no_grad():
        wanted = TEACHER(targets)
    return (outputs - wanted).square().mean()


def by_the_teacher(net):
    return (net(X64) - TEACHER64(X64).detach()).square().mean()


at("a teacher under no_grad", both=RIGHT)(mlp, taught_without_gradient, (X, X), by_the_teacher)


def with_slopes(outputs, targets):
    """A loss that differentiates in a tensor that it makes; the slopes are constant."""
    with torch.enable_grad():
        at = torch.zeros_like(outputs, requires_grad=True)
        (slope,) = torch.autograd.grad(at.sin().sum(), at, create_graph=True)
    return slope.square().mean() + ce(outputs, targets)


at("a loss that differentiates in zeros like the outputs", both=RIGHT)(
    mlp, with_slopes, f=at_inputs(lambda o, t: ce(o, t) + 1)
)

# --- losses of (model, batch) -----------------------------------------------------------------------------------------


OF_THE_MODEL = {
    "weight decay": lambda net: 0.1 * squares(net),
    "a spectral penalty": lambda net: torch.linalg.matrix_norm(net[0].weight, 2),
    "a proximal term, 0 at x_0 with its gradient": lambda net: distance(net, START),
}
for _name, _term in OF_THE_MODEL.items():
    _f = lambda net, term=_term: mean_ce(net) + term(net)  # noqa: E731
    at(f"loss(model, batch) with {_name}", both=RIGHT)(mlp, zoo.plus(_term), f=_f)

at("a partial function of (model, batch, decay)", both=RIGHT)(
    mlp, partial(zoo.decayed, decay=0.1), f=lambda net: mean_ce(net) + 0.1 * squares(net)
)
at("loss(model, batch) of ragged batches, a mean over examples", kappa=RIGHT)(
    mlp, zoo.plus(lambda net: 0), BATCHES, mean_ce
)
at("a loss of (net, batch), whose first parameter is not named model", both=refused(f"{MODEL_FORM}|named"))(
    mlp, lambda net, batch: ce(net(batch[0]), batch[1])
)
at("the argument weight_decay", kappa=RIGHT.given(weight_decay=0.7))(f=lambda net: mean_ce(net) + 0.35 * squares(net))
at(
    "weight_decay=True", kappa=refused("weight_decay λ must be a finite number of at least 0").given(weight_decay=True)
)()

# --- losses that are no mean over examples ----------------------------------------------------------------------------


def one_two_three_four(loss):
    """f of the batches with these weights."""
    pairs = [(x.double(), y) for x, y in BATCHES]
    return lambda net: sum(w * loss(net(x), y) for w, (x, y) in zip((1, 2, 3, 4), pairs, strict=True)) / 10


for _name, _loss in zoo.NO_MEANS.items():
    _f = at_inputs(_loss)
    at(f"{_name}, one batch", both=RIGHT)(mlp, _loss, f=_f)
    at(f"{_name}, several batches", kappa=SPLIT)(mlp, _loss, BATCHES)
    at(f"{_name}, several batches with a weight each", kappa=RIGHT.given(weights=[1, 2, 3, 4]))(
        mlp, _loss, BATCHES, one_two_three_four(_loss)
    )

_weighted = at_inputs(weighted)
at("class weights, one batch, by gradients", train=RIGHT.given(method="fedavg"))(mlp, weighted)
_of_targets = RIGHT.given(weights=lambda t: zoo.RARE[t])
for _name, _cut in zoo.CUTS.items():
    at(f"class weights, {_name}", kappa=SPLIT)(mlp, weighted, _cut)
    at(f"class weights, {_name}, and weights= of the targets", kappa=_of_targets)(mlp, weighted, _cut, _weighted)
    at(f"a mean, {_name}", kappa=RIGHT)(mlp, ce, _cut, mean_ce)
    at(f"a sum, {_name}", kappa=SPLIT)(mlp, zoo.summed, _cut)

_common = Y < 2
_many = X.repeat(13, 1), Y.repeat(13).sort().values  # 520
at("class weights that differ only for a class of the last batch", kappa=SPLIT)(
    mlp,
    lambda o, t: nn.functional.cross_entropy(o, t, weight=torch.tensor([1.0, 1.0, 20.0]).to(o)),
    [*batches(X[_common], Y[_common], 9), (X[6:14], Y[6:14])],
)
at("class weights, more examples than go through at once", kappa=RIGHT)(mlp, weighted, _many)
for _dtype in (torch.float32, torch.float64):
    _apart = [(X[:20].to(_dtype) + 3, Y[:20]), (X[20:].to(_dtype) - 3, Y[20:])]
    _name, _zeros = f"a coupling of examples behind a head of zeros, {_dtype}", lambda d=_dtype: zoo.with_zeros().to(d)
    at(f"{_name}, two batches", kappa=refused("weights="))(_zeros, zoo.coupled, _apart)
at("a coupling of examples behind a head of zeros, one batch", both=RIGHT)(zoo.with_zeros, zoo.coupled)
at("a loss of pairs of neighbours, several batches", kappa=SPLIT)(mlp, zoo.neighbours, batches(X, Y, 10))
at("a loss of pairs of neighbours, one batch", both=RIGHT)(mlp, zoo.neighbours)
at("a loss by the place in a batch that is drawn", train=ORDER.given(batch_size=5))(mlp, zoo.by_place)
at("a loss by the place in a batch of all examples", both=RIGHT)(mlp, zoo.by_place)

# --- masks, ignored tokens, weights in the targets --------------------------------------------------------------------


def weighted_errors(o, t):
    return ((o - t[0]).square().mean(1) * t[1]).mean()


def of_counted_labels(pairs, first):
    """f of texts, as a mean over the labels that count, from the first on of each."""

    def f(net):
        each = [(net(x)[:, : x.shape[1] - first].flatten(0, 1), y[:, first:].flatten()) for x, y in pairs]
        total = sum(nn.functional.cross_entropy(z, y, reduction="sum") for z, y in each)
        return total / sum((y != zoo.IGNORED).sum() for _, y in each)

    return f


_ragged = batches(X, zoo.RAGGED)
at("ignored tokens, ragged counts, one batch", both=RIGHT)(zoo.tagger, zoo.tags, [(X, zoo.RAGGED)])
for _name, _weights in {"": None, ", weights= those that count": lambda t: (t != zoo.IGNORED).float()}.items():
    at(f"ignored tokens, ragged counts, several batches{_name}", kappa=RIGHT.given(weights=_weights))(
        zoo.tagger, zoo.tags, _ragged, lambda net: zoo.tags(net(X64), zoo.RAGGED)
    )


def of_batch(loss):
    """The same loss of (model, batch), of a mapping with labels or a pair."""

    def own(model, batch):
        ids, labels = batch.values() if isinstance(batch, dict) else batch
        return loss(model(ids), labels)

    return own


TEXTS = [zoo.texts(2, 5, 3), zoo.texts(4, 1), zoo.texts(6)]
MAPPED = [{"ids": ids, "labels": labels} for ids, labels in TEXTS]
ONE = [zoo.texts(2, 5, 3, 4)]
# As many labels count in each text, but not after the first.
LEFT = [zoo.texts(*[5] * n) for n in (3, 2)]
LEFT = [(ids, y.index_fill(1, torch.tensor([k]), zoo.IGNORED)) for k, (ids, y) in enumerate(LEFT)]
for _name, _loss, _first in (("labels", zoo.of_tokens, 0), ("labels after the first", zoo.shifted, 1)):
    for _what, _own, _texts, _verdict in (
        ("ragged texts", _loss, TEXTS, RIGHT),
        ("ragged texts, one at once", _loss, TEXTS, RIGHT.given(chunk=1)),
        ("mappings", of_batch(_loss), MAPPED, RIGHT),
        ("pairs that the loss gets", of_batch(_loss), TEXTS, RIGHT),
        ("texts of which as many count of each", _loss, LEFT, RIGHT),
        ("one batch", _loss, ONE, RIGHT),
    ):
        _f = of_counted_labels(TEXTS if _texts is MAPPED else _texts, _first)
        at(f"a mean over {_name}: {_what}", kappa=_verdict)(zoo.padded_tagger, _own, _texts, _f)
_f = of_counted_labels(TEXTS, 1)
at(
    "a mean over labels after the first, weights= of a mapping",
    kappa=RIGHT.given(weights=lambda batch: batch["labels"][:, 1:] != zoo.IGNORED),
)(zoo.padded_tagger, of_batch(zoo.shifted), MAPPED, _f)
at(
    "weights= that asks a mapping for another key",
    kappa=refused("weights.*batch.*ids, labels").given(weights=lambda batch: batch["targets"] != zoo.IGNORED),
)(zoo.padded_tagger, of_batch(zoo.shifted), MAPPED, _f)
at("weights= that fails on targets", kappa=refused("weights.*targets").given(weights=lambda y: y.no_such))(
    zoo.padded_tagger, zoo.shifted, TEXTS, _f
)
at("texts of ragged lengths, a mean over texts", kappa=RIGHT)(
    zoo.padded_tagger, lambda z, y: torch.stack([zoo.of_tokens(*pair) for pair in zip(z, y, strict=True)]).mean(), TEXTS
)
at("texts of ragged lengths, neither mean", kappa=refused("mean over the batch's examples"))(
    zoo.padded_tagger, lambda z, y: zoo.of_tokens(z, y).square(), TEXTS
)
at("a masked mean, several batches", kappa=SPLIT)(mlp, zoo.masked, zoo.MASKED)
at("a mean of weighted errors, which is a mean over examples", kappa=RIGHT)(
    mlp, weighted_errors, zoo.MASKED, lambda net: weighted_errors(net(X64), (zoo.REAL64, zoo.MASK))
)

# --- a forward pass that looks at the batch ---------------------------------------------------------------------------

LOOKS = {"a z-score of the batch": zoo.z_scored, "attention between the batch's examples": zoo.batch_attention}
for _name, _module in LOOKS.items():
    at(f"{_name} in forward, one batch", both=RIGHT)(_module)
    at(f"{_name} in forward, several batches", kappa=SPLIT)(_module, ce, BATCHES)
at("a BatchNorm that keeps no running statistics, one batch", train=RIGHT)(
    zoo.layers(zoo.linear(), lambda: nn.BatchNorm1d(3, track_running_stats=False), zoo.linear(3)), data=(X, Y)
)

# --- what is a mean, however it is cut --------------------------------------------------------------------------------

for _name, _loss in zoo.MEANS.items():
    at(f"{_name}, over ragged batches", both=RIGHT)(mlp, _loss, BATCHES, at_inputs(_loss), clients=[(X, Y)])


_sure = zoo.around(after=lambda z: 40 * z)
_labels = mlp()(X).argmax(1)
at("a mean, with weights= other than the numbers of examples", kappa=RIGHT.given(weights=[3.0, 1.0]))(
    mlp, ce, BATCHES[:2], lambda net: (3 * ce(net(X64[:11]), Y[:11]) + ce(net(X64[11:22]), Y[11:22])) / 4
)
at("outputs that are nearly always right, by much", kappa=RIGHT)(_sure, ce, batches(X, _labels))
at("the same with class weights", kappa=SPLIT)(_sure, weighted, batches(X, _labels))
at("rounding of float32 that depends on the number of rows", kappa=RIGHT)(
    zoo.around(after=lambda z: 10 * z),
    lambda z, y: ce(z * (1 + 2.0**-16 * (len(y) % 3)) if z.dtype == torch.float32 else z, y),
    BATCHES,
)
at("a difference in every dtype that depends on the number of rows", kappa=SPLIT)(
    mlp, lambda z, y: ce(z * (1 + 1e-4 * (len(y) % 3)), y), BATCHES
)

# --- weights that are none --------------------------------------------------------------------------------------------

NO_WEIGHTS = {
    "fewer weights than batches": ([1, 2], "weights must .*4"),
    "a weight that is True": ([True, 1, 1, 1], "weights must be a number for each batch"),
    "a word instead of weights": ("balanced", "weights must"),
    "a function of weights that returns less than zero": (lambda t: -1.0 - t, "weights of a batch must add up to"),
}
for _name, (_weights, _word) in NO_WEIGHTS.items():
    at(_name, kappa=refused(_word).given(weights=_weights))(mlp, weighted, BATCHES)
