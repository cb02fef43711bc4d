"""What is measured on the held-out examples: the accuracy of a loss with classes, and measures of the user's own."""

import itertools
import math

import torch
from torch import nn
from torch.nn import functional

from tests.situations.judge import RIGHT, Table, either, refused
from tests.situations.zoo import IGNORED, REAL, X, Y, ce, mlp, of_tokens, padded_tagger, rand, texts
from tests.situations.zoo import next_token as shifted

at = TABLE = Table()


def share(x=X, y=Y, ignored=IGNORED, dim=1, scores=lambda outputs: outputs):
    """The accuracy on the labels that count."""

    def value(net):
        right = (scores(net(x)).argmax(dim) == y)[y != ignored]
        return right.double().mean()

    return value


def empty(net):
    return math.nan


def some(ignored):
    return torch.where(torch.arange(len(Y)) % 4 == 0, ignored, Y)


# --- the accuracy of losses with classes ------------------------------------------------------------------------------


_prior = torch.tensor([0.8, 0.1, 0.1]).log()
CLASSES = {
    "nn.CrossEntropyLoss": nn.CrossEntropyLoss(),
    "nll_loss of log_softmax": lambda z, y: functional.nll_loss(functional.log_softmax(z, dim=1), y),
    "multi_margin_loss": functional.multi_margin_loss,
    "log_softmax and gather": lambda z, y: -z.log_softmax(1).gather(1, y[:, None]).mean(),
    "logits adjusted by a prior": lambda z, y: ce(z + _prior, y),
    "examples in a loop": lambda z, y: torch.stack([ce(z[i], y[i]) for i in range(len(y))]).mean(),
}
for _name, _loss in CLASSES.items():
    at(f"the accuracy of {_name}", measure=RIGHT)(mlp, _loss, [(X, Y)], share())
at("the accuracy of distances", measure=RIGHT)(mlp, lambda z, y: ce(-z, y), [(X, Y)], share(scores=torch.neg))
IGNORING = {
    "labels of -100 that the loss takes out": (lambda z, y: ce(z[y != IGNORED], y[y != IGNORED]), IGNORED),
    "ignore_index=1, a class": (lambda z, y: functional.cross_entropy(z, y, None, None, 1), 1),
    "labels of -1 of nll_loss": (lambda z, y: functional.nll_loss(z.log_softmax(1), y, ignore_index=-1), -1),
}
for _name, (_loss, _ignored) in IGNORING.items():
    _y = some(_ignored)
    at(f"the accuracy with {_name}", measure=RIGHT)(mlp, _loss, [(X, _y)], share(X, _y, _ignored))
at("the accuracy of batches with labels of -100", measure=RIGHT.given(batch_size=7))(
    mlp, nn.CrossEntropyLoss(), [(X, some(IGNORED))], share(X, some(IGNORED))
)
at("the accuracy where every label is ignored", measure=either("finite").given(test=(X, Y * 0 + IGNORED)))(
    mlp, nn.CrossEntropyLoss(), [(X, Y)], empty
)
TEXTS = texts(2, 5, 3)
at("the accuracy of tokens, classes last", measure=RIGHT)(padded_tagger, of_tokens, [TEXTS], share(*TEXTS, dim=2))
at("the accuracy of next tokens", measure=RIGHT)(
    padded_tagger, shifted, [TEXTS], share(TEXTS[0], TEXTS[1][:, 1:], dim=2, scores=lambda z: z[:, :-1])
)

# --- losses without classes -------------------------------------------------------------------------------------------


_soft = rand(len(X), 3).softmax(1)
EMPTY = {
    "mean and variance of counts": (lambda z, y: functional.gaussian_nll_loss(z[:, 0], y + 0.0, z[:, 1].exp()), Y),
    "distances to prototypes": (lambda z, y: ce(-torch.cdist(z, torch.eye(3).to(z)), y), Y),
    "probabilities": (functional.cross_entropy, _soft),
    "a mixture of labels": (lambda z, y: 0.7 * ce(z, y) + 0.3 * ce(z, y.flip(0)), Y),
    "numbers": (functional.mse_loss, REAL),
}
for _name, (_loss, _y) in EMPTY.items():
    at(f"no accuracy of {_name}", measure=RIGHT)(mlp, _loss, [(X, _y)], empty)

# --- measures of one's own --------------------------------------------------------------------------------------------


def f1(outputs, targets):
    """The mean over classes, which is no mean over batches."""
    seen = outputs.argmax(1)
    each = [2 * ((seen == c) & (targets == c)).sum() / ((seen == c).sum() + (targets == c).sum()) for c in range(3)]
    return float(sum(each) / 3)


def writes_by_numpy(outputs, targets):
    outputs.numpy()[:] = 0
    return 0.5


def own(metric, name="f1", verdict=RIGHT, **options):
    return verdict.given(metrics={name: metric}, column=f"test_{name}", **options)


def of_all(net):
    return f1(net(X).detach(), Y)


at("F1", measure=own(f1))(f=of_all)
at("F1 of batches", measure=own(f1, batch_size=7))(mlp, nn.CrossEntropyLoss(), f=of_all)
at("F1 of many held-out examples", measure=own(f1, test=(X.repeat(30, 1), Y.repeat(30))))(f=of_all)
at("a measure that is a tensor", measure=own(lambda z, y: torch.tensor([f1(z, y)])))(f=of_all)
at("a measure without held-out examples", measure=own(f1, test=None))(f=empty)
REFUSED = {
    "is infinite": lambda z, y: math.inf,
    "is complex": lambda z, y: torch.tensor(1j),
    "fails": lambda z, y: z[10**6],
    "writes to the outputs by numpy": writes_by_numpy,
    "is no function": 0.5,
}
for _name, _metric in REFUSED.items():
    at(f"a measure that {_name}", measure=own(_metric, verdict=refused("f1")))()
for _name in ("accuracy", "", "a,b"):
    at(f"a measure by the name {_name!r}", measure=own(f1, _name, refused("metrics")))()
_calls = itertools.count()


def _next(outputs, targets):
    return float(next(_calls))


at(
    "a measure that goes on from call to call",
    measure=refused("metric 'f1' must be the same").given(metrics={"f1": _next}),
)()
at("measures in a list", measure=refused("metrics").given(metrics=[f1]))()
