"""Losses that read the module behind the function f: refused, as it is not known at which x they read it."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import nn

from tests.nets import seeded
from tests.situations.situation import (
    BATCHES,
    MODEL_FORM,
    RIGHT,
    X64,
    Case,
    Situation,
    Table,
    X,
    Y,
    ce,
    either,
    every,
    mean_ce,
    mlp,
    refused,
)

TABLE = Table()
READS = refused(MODEL_FORM)


def _squares(net):
    return sum(p.square().sum() for p in net.parameters())


def _orthogonality(w):
    return (w @ w.T - torch.eye(len(w), dtype=w.dtype)).square().sum()


# --- by a closure -----------------------------------------------------------------------------------------------------


def _proximal(model):
    """Zero at x_0 with its gradient."""
    start = [p.detach().clone() for p in model.parameters()]
    return lambda: sum((p - q).square().sum() for p, q in zip(model.parameters(), start, strict=True))


def _of_a_bias(model):
    nn.init.zeros_(model[2].bias)
    return lambda: model[2].bias.square().sum()


def _squared(alias):
    return lambda: alias.square().sum()


TERMS = {
    "weight decay": lambda model: lambda: 0.1 * _squares(model),
    "a penalty on one layer alone": lambda model: lambda: model[2].weight.square().sum(),
    "a penalty on one bias that is zero at x_0": _of_a_bias,
    "a proximal term": _proximal,
    "a term that calls the model again, on other inputs": lambda model: lambda: model(torch.ones(5, 4)).square().mean(),
    "a term that calls one layer of the model": lambda model: lambda: model[0](torch.ones(5, 4)).square().mean(),
    "a spectral penalty": lambda model: lambda: torch.linalg.matrix_norm(model[0].weight, 2),
    "state_dict(), which has no graph": lambda model: (
        lambda: sum(t.square().sum() for t in model.state_dict().values())
    ),
    "an alias weight.data captured before": lambda model: _squared(model[0].weight.data),
    "an alias weight.detach() captured before": lambda model: _squared(model[0].weight.detach()),
    "a parameter captured before": lambda model: _squared(next(iter(model.parameters()))),
}
for _name, _term in TERMS.items():

    @TABLE.add(f"by a closure over the user's model: {_name}", both=READS)
    def _(term_of=_term):
        model = mlp()
        term = term_of(model)
        return Case(model, lambda o, t: ce(o, t) + term(), (X, Y))


@TABLE.add("weight decay in one batch of a list", kappa=READS)
def _():
    model = mlp()
    return Case(model, lambda o, t: ce(o, t) + 0.1 * _squares(model), [(X, Y)])


@TABLE.add("the absolute values of all parameters, of which only the gradient is missing", train=READS)
def _():
    model = mlp()
    return Case(model, lambda o, t: ce(o, t) + 0.1 * sum(p.abs().sum() for p in model.parameters()), (X, Y))


@TABLE.add("the weight's norm as a factor of the loss, by item()", both=READS)
def _():
    model = mlp()
    return Case(model, lambda o, t: ce(o, t) * model[0].weight.norm().item(), (X, Y))


@TABLE.add("the model given to the loss by functools.partial", both=READS)
def _():
    model = mlp()
    return Case(model, partial(lambda o, t, net: ce(o, t) + 0.1 * _squares(net), net=model), (X, Y))


class Trainer:
    def __init__(self, model):
        self.model = model

    def loss(self, outputs, targets):
        return ce(outputs, targets) + 0.1 * _squares(self.model)


@TABLE.add("a method of a trainer that holds the model", both=READS)
def _():
    trainer = Trainer(mlp())
    return Case(trainer.model, trainer.loss, (X, Y))


GLOBAL = mlp()


def _of_the_global_model(outputs, targets):
    return ce(outputs, targets) + 0.1 * _squares(GLOBAL)


@TABLE.add("a function that reads a global model", both=READS)
def _():
    return Case(GLOBAL, _of_the_global_model, (X, Y))


class OwnLoss(nn.Sequential):
    def criterion(self, outputs, targets):
        return ce(outputs, targets) + 0.1 * _squares(self)


@TABLE.add("the model's own method as the loss, which reads its parameters", both=READS)
def _():
    model = seeded(lambda: OwnLoss(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)))
    return Case(model, model.criterion, (X, Y))


# --- captured before --------------------------------------------------------------------------------------------------


@TABLE.add("a penalty computed once, outside the loss, with its graph", both=refused(f"{MODEL_FORM}|outside|graph"))
def _():
    model = mlp()
    once = 0.1 * _squares(model)
    return Case(model, lambda o, t: ce(o, t) + once, (X, Y))


@TABLE.add("a numpy view of a weight captured before, which no function of torch sees: a constant", both=RIGHT)
def _():
    model = mlp()
    view = model[0].weight.detach().numpy()
    once = float((view**2).sum())
    return Case(model, lambda o, t: ce(o, t) + float((view**2).sum()), (X, Y), lambda net: mean_ce(net) + once)


@TABLE.add("activations that a hook on the user's model keeps for the loss", both=either(MODEL_FORM))
def _():
    model, kept = mlp(), {}
    model[1].register_forward_hook(lambda module, inputs, output: kept.update(h=output))
    return Case(
        model,
        lambda o, t: ce(o, t) + kept["h"].square().mean(),
        [(X, Y)],
        lambda net: ce(net(X64), Y) + kept["h"].square().mean(),
    )


# --- parameters that are not the module's -----------------------------------------------------------------------------

ELSEWHERE = refused(r"requires_grad|regist|parameters of (the|its) loss|parameters of its own|not (among|part of)")


class Centres(nn.Module):
    def __init__(self, trained=True):
        super().__init__()
        self.c = nn.Parameter(torch.eye(3), requires_grad=trained)

    def forward(self, outputs, targets):
        return (outputs - self.c[targets]).square().sum(1).mean()


@TABLE.add("a loss that learns centres of classes", both=ELSEWHERE)
def _():
    return Case(mlp(), Centres(), (X, Y))


@TABLE.add("learned log-variances of tasks in a closure", both=ELSEWHERE)
def _():
    s = torch.zeros((), requires_grad=True)
    return Case(mlp(), lambda o, t: torch.exp(-s) * ce(o, t) + s, (X, Y))


@TABLE.add("a loss with frozen centres", both=RIGHT)
def _():
    return Case(
        mlp(),
        Centres(trained=False),
        (X, Y),
        lambda net: (net(X64) - torch.eye(3, dtype=torch.float64)[Y]).square().sum(1).mean(),
    )


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]  # no ModuleList
        self.head = nn.Linear(4, 3)

    def forward(self, h):
        for layer in self.layers:
            h = torch.tanh(layer(h))
        return self.head(h)


@TABLE.add("layers in a plain list, which are not registered", both=refused("regist|ModuleList"))
def _():
    return Case(seeded(Listed), ce, (X, Y))


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.randn(4, 4).requires_grad_()  # no nn.Parameter
        self.head = nn.Linear(4, 3)

    def forward(self, h):
        return self.head(torch.tanh(h @ self.w))


@TABLE.add("a bare tensor that requires a gradient, no nn.Parameter", both=refused("regist|nn.Parameter"))
def _():
    return Case(seeded(Bare), ce, (X, Y))


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, h):
        return self.function(h)


@TABLE.add("a backbone behind a lambda, which is not registered", both=refused("regist|ModuleList"))
def _():
    backbone = seeded(lambda: nn.Linear(4, 4))
    model = nn.Sequential(Lambda(lambda h: torch.tanh(backbone(h))), seeded(lambda: nn.Linear(4, 3), 1))
    return Case(model, ce, (X, Y))


@TABLE.add("a teacher with gradients, called without no_grad", both=either("no_grad|requires_grad|detach"))
def _():
    teacher = seeded(lambda: nn.Linear(4, 3), 5)
    teacher64 = copy.deepcopy(teacher).double()
    return Case(
        mlp(),
        lambda o, t: (o - teacher(t)).square().mean(),
        [(X, X)],
        lambda net: (net(X64) - teacher64(X64).detach()).square().mean(),
    )


# --- the right ways ---------------------------------------------------------------------------------------------------


TERMS_OF_THE_MODEL = {
    "weight decay": lambda net: 0.1 * _squares(net),
    "a penalty on one layer": lambda net: net[2].weight.square().sum(),
    "a spectral and an orthogonality penalty": lambda net: (
        torch.linalg.matrix_norm(net[0].weight, 2) + 0.1 * _orthogonality(net[0].weight)
    ),
    "a term that calls the model again": lambda net: net(torch.ones(5, 4, dtype=net[0].weight.dtype)).square().mean(),
}
for _name, _term in TERMS_OF_THE_MODEL.items():

    @TABLE.add(f"loss(model, batch) with {_name}", both=RIGHT)
    def _(term=_term):
        def loss(model, batch):
            return ce(model(batch[0]), batch[1]) + term(model)

        return Case(mlp(), loss, [(X, Y)], lambda net: mean_ce(net) + term(net))


@TABLE.add("loss(model, batch) of a pair of tensors", both=RIGHT)
def _():
    return Case(mlp(), lambda model, batch: ce(model(batch[0]), batch[1]), (X, Y), mean_ce)


@TABLE.add("loss(model, batch) with a proximal term", both=RIGHT)
def _():
    model = mlp()
    start = [p.detach().clone() for p in model.parameters()]

    def term(net):
        return sum((p - q.to(p)).square().sum() for p, q in zip(net.parameters(), start, strict=True))

    def loss(model, batch):
        return ce(model(batch[0]), batch[1]) + 0.5 * term(model)

    return Case(model, loss, [(X, Y)], lambda net: mean_ce(net) + 0.5 * term(net))


@TABLE.add("loss(model, batch) that calls layers one by one", both=RIGHT)
def _():
    def loss(model, batch):
        h = torch.tanh(model[0](batch[0]))
        return ce(model[2](h), batch[1]) + h.square().mean()

    return Case(mlp(), loss, [(X, Y)], lambda net: mean_ce(net) + torch.tanh(net[0](X64)).square().mean())


@TABLE.add("loss(model, batch) of ragged batches, a mean over examples", kappa=RIGHT)
def _():
    return Case(mlp(), lambda model, batch: ce(model(batch[0]), batch[1]), BATCHES, mean_ce)


@TABLE.add("an object that is called as (model, batch)", both=RIGHT)
def _():
    class Penalised:
        def __call__(self, model, batch):
            return ce(model(batch[0]), batch[1]) + 0.1 * _squares(model)

    return Case(mlp(), Penalised(), [(X, Y)], lambda net: mean_ce(net) + 0.1 * _squares(net))


@TABLE.add("a partial function of (model, batch, decay)", both=RIGHT)
def _():
    def loss(model, batch, decay):
        return ce(model(batch[0]), batch[1]) + decay * _squares(model)

    return Case(mlp(), partial(loss, decay=0.1), [(X, Y)], lambda net: mean_ce(net) + 0.1 * _squares(net))


@TABLE.add("loss(model, batch) that also reads the user's model by its closure", both=READS)
def _():
    user = mlp()

    def loss(model, batch):
        return ce(model(batch[0]), batch[1]) + 0.1 * _squares(user)

    return Case(user, loss, [(X, Y)])


@TABLE.add("a loss of (net, batch), whose first parameter is not named model", both=refused(f"{MODEL_FORM}|named"))
def _():
    return Case(mlp(), lambda net, batch: ce(net(batch[0]), batch[1]), [(X, Y)])


@TABLE.add("the argument weight_decay", kappa=RIGHT)
def _():
    return Case(mlp(), ce, (X, Y), lambda net: mean_ce(net) + 0.35 * _squares(net), kappa={"weight_decay": 0.7})


@TABLE.add("a negative weight_decay", kappa=refused("weight_decay λ must be"))
def _():
    return Case(mlp(), ce, (X, Y), kappa={"weight_decay": -1.0})


@TABLE.add("a teacher under no_grad", both=RIGHT)
def _():
    teacher = seeded(lambda: nn.Linear(4, 3), 5)
    teacher64 = copy.deepcopy(teacher).double()

    def loss(outputs, targets):
        with torch.no_grad():
            wanted = teacher(targets)
        return (outputs - wanted).square().mean()

    return Case(mlp(), loss, (X, X), lambda net: (net(X64) - teacher64(X64).detach()).square().mean())


@TABLE.add("a loss that reads only the weight's shape, device and dtype", both=RIGHT)
def _():
    model = mlp()

    def loss(outputs, targets):
        w = model[0].weight
        return w.shape[0] * ce(outputs.to(w.device), targets) + 0 * torch.zeros((), device=w.device, dtype=w.dtype)

    return Case(model, loss, (X, Y), lambda net: 3 * mean_ce(net))


@TABLE.add("a loss that reads whether the model is training, and its number of parameters", both=RIGHT)
def _():
    model = mlp()

    def loss(outputs, targets):
        return ce(outputs, targets) * (1.0 if model.training else 2.0) * sum(p.numel() for p in model.parameters())

    return Case(model, loss, (X, Y), lambda net: 27 * mean_ce(net))


@TABLE.add("a clone of the weight as a constant", both=RIGHT)
def _():
    model = mlp()
    start = model[2].weight.detach().clone()
    return Case(
        model,
        lambda o, t: (o @ start.to(o)).square().mean(),
        (X, Y),
        lambda net: (net(X64) @ start.double()).square().mean(),
    )


@TABLE.add("trust=True leaves out the check of a loss that is right", both=RIGHT)
def _():
    return Case(mlp(), ce, (X, Y), mean_ce, kappa={"trust": True}, train={"trust": True})


@every(TABLE)
def test_a_loss_that_reads_the_module_is_refused_or_right(situation: Situation):
    situation.judge()
