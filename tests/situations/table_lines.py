"""Whether differences at μ are slopes: losses that jump, slopes of others, closures that are no function.

At the doors of differences the value is that of f, and one line is told where it jumps or torch's slope is another's;
at all that is continuous, kinks at x itself and steep places too, nothing is.
"""

import itertools

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.situations import zoo
from tests.situations.judge import RIGHT, Table, refused, told
from tests.situations.zoo import X64, X, Y, ce, mlp

at = TABLE = Table()
FITTING = {"mu": 1e-3, "lr": 1e-4}
JUMPS = told("^the loss (jumps by|is rough)", known=False)
UNLIKE = told("^the loss changes by .* where torch's derivative is")
MEND = r"A method of differences \(decomfl\) follows"

# --- weights ----------------------------------------------------------------------------------------------------------


class OfWeights(nn.Module):
    """A linear layer behind another, with functions of its weights."""

    def __init__(self, *functions):
        super().__init__()
        self.first, self.last, self.functions = nn.Linear(4, 5), nn.Linear(5, 3), functions

    def forward(self, x):
        w = self.last.weight
        for function in self.functions:
            w = function(w)
        return functional.linear(torch.tanh(self.first(x)), w, self.last.bias)


def of_weights(*functions):
    return lambda: OfWeights(*functions)


def straight(function):
    """The function with the derivative of the identity."""
    return lambda w: w + (function(w) - w).detach()


def grid(w):
    return (8 * w).round() / 8


def at_zero(make):
    """The same where the weights of the last layer are 0, and its biases."""
    return zoo.changed(make, lambda model: [nn.init.zeros_(p) for p in model.last.parameters()])


def orthogonal(kind):
    return zoo.changed(mlp, lambda model: nn.utils.parametrizations.orthogonal(model[0], orthogonal_map=kind))


JUMPING = {
    "weights on a grid": of_weights(grid),
    "weights that begin at 0, by their signs": at_zero(of_weights(straight(torch.sign))),
    "weights above a threshold": zoo.changed(
        of_weights(lambda w: w * (w.abs() > 0.1)), lambda model: nn.init.constant_(model.last.weight, 0.1)
    ),
}
JUMPING["weights in 16 bits"] = of_weights(lambda w: w.bfloat16().to(w))
for _name, _make in JUMPING.items():
    at(f"{_name}: they jump", train=JUMPS.given(**FITTING), optim=JUMPS)(_make)
at("householder's orthogonal weights: they jump", train=JUMPS.given(**FITTING))(orthogonal("householder"))

CONTINUOUS = {
    "weights at 0 by their absolute values": at_zero(of_weights(torch.abs)),
    "weights by a steep sigmoid": of_weights(lambda w: torch.sigmoid(30 * w)),
    "sorted weights": of_weights(lambda w: w.sort(1).values),
    "weights by a product of themselves": of_weights(lambda w: w @ w.T @ w),
    "orthogonal weights by matrix_exp": orthogonal("matrix_exp"),
    "a bias that a ReLU has at 0 for inputs of 0": zoo.layers(zoo.linear(bias=False), nn.ReLU, zoo.linear(3)),
}
for _name, _make in CONTINUOUS.items():
    _doors = {"train": RIGHT.given(**FITTING), "optim": None if "orthogonal" in _name else RIGHT}
    at(f"{_name}: continuous", **_doors)(_make)


class Autocast(nn.Sequential):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).to(x)


at("autocast in forward: it is rough", train=told("no slopes.*autocast", known=False).given(mu=1e-4), optim=JUMPS)(
    lambda: Autocast(*mlp())
)

# --- losses ---------------------------------------------------------------------------------------------------------


LOSSES = {
    "the largest error": lambda o, t: (o[:, 0] - t).abs().amax(),
    "a trimmed mean of errors": lambda o, t: (o[:, 0] - t).square().topk(20, largest=False).values.mean(),
}
for _name, _loss in LOSSES.items():
    at(f"{_name}: continuous", train=RIGHT.given(**FITTING), optim=RIGHT)(mlp, _loss)
at("the share of wrong answers, which jumps", train=told("jumps|scalars of the first rounds are 0"), optim=JUMPS)(
    loss=lambda o, t: (o.argmax(1) != t).to(o).mean(), f=lambda model: (model(X64).argmax(1) != Y).double().mean()
)

# --- slopes that are not the values' ----------------------------------------------------------------------------------


product = zoo.parts(
    lambda own, x: (own.w.detach() * own.u).square() * x[:, :1],
    w=lambda: nn.Parameter(torch.ones(1)),
    u=lambda: nn.Parameter(torch.ones(1)),
)
"""(w̄ u)² with w̄ a constant for torch: its derivative in w is 0."""
OTHERS = {
    "a detached factor of a product": (product, lambda o, t: o.mean() + 2),
    "a loss whose gradient is doubled": (mlp, lambda o, t: zoo.doubled(ce(o, t))),
}
for _name, (_make, _loss) in OTHERS.items():
    at(f"{_name}: told", train=UNLIKE.given(**FITTING), optim=UNLIKE)(_make, _loss)
    at(f"{_name}, by gradients", train=refused(MEND).given(method="fedavg", lr=0.1))(_make, _loss)
at("a loss without a graph: there is nothing to compare", train=RIGHT.given(**FITTING), optim=RIGHT)(
    loss=lambda o, t: ce(o.detach(), t)
)
at("a loss by numpy: there is nothing to compare", train=RIGHT.given(**FITTING), optim=RIGHT)(
    loss=lambda o, t: torch.tensor(np.abs(o.detach().numpy() - 1).mean()).to(o),
    f=lambda model: (model(X64) - 1).abs().mean(),
)
at(
    "weights by their signs, by gradients: differences are no remedy",
    train=refused(rf"^(?!.*{MEND})").given(method="fedavg"),
)(at_zero(of_weights(straight(torch.sign))))

# --- closures ---------------------------------------------------------------------------------------------------------

AGAIN = refused("same in every evaluation: draw the batch before the closure")


def drawn(**options):
    """The closure takes the next batch of a loader, for ever."""
    return lambda: itertools.chain.from_iterable(
        DataLoader(TensorDataset(X, Y), batch_size=8, **options) for _ in itertools.count()
    )


at("a closure that takes the next batch of a loader that shuffles", optim=AGAIN)(data=drawn(shuffle=True))
at("a closure that takes a list's batches in turn", optim=AGAIN)(data=lambda: itertools.cycle(zoo.BATCHES))
for _name, _noise in {
    "numpy's noise": lambda: float(np.random.standard_normal()),
    "the number of its calls": itertools.count().__next__,
}.items():
    at(f"a closure with {_name}", optim=AGAIN)(loss=lambda o, t, noise=_noise: ce(o, t) + 0.1 * noise(), f=zoo.mean_ce)
at("a closure with a transform of torch.func", optim=refused("torch.func transform"))(
    loss=lambda model, batch: torch.func.vmap(lambda x, t: ce(model(x[None]), t[None]))(*batch).mean(), f=zoo.mean_ce
)
at("a closure that returns an array of one", optim=RIGHT)(loss=lambda o, t: ce(o, t).detach().numpy(), f=zoo.mean_ce)
at("a closure with noise of torch's generator, which is put back", optim=RIGHT)(
    loss=lambda o, t: ce(o, t) + 0 * torch.rand(()), f=zoo.mean_ce
)
